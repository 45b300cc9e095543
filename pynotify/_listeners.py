"""Which channels are listened to, and by how many connections."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pynotify._encoding import encode_channel
from pynotify._ffi import again, ffi, lib
from pynotify.errors import check

if TYPE_CHECKING:
    from pynotify._handle import Handle

_ROWS = 64


def count_listeners(handle: Handle, channel: str) -> int:
    """What `Connection.listeners` returns.  May be repeated."""
    name = encode_channel(channel)
    handle.check_usable()
    return check(again(lambda: int(lib.pn_channel_listeners(handle.native, name, len(name)))))


def listened_channels(handle: Handle, prefix: str) -> dict[str, int]:
    """What `Connection.channels` returns.  May be repeated."""
    start = encode_channel(prefix)
    handle.check_usable()
    rows = ffi.new("pn_channel_row[]", _ROWS)
    place = ffi.new("uint32_t *")
    asked = start, len(start), place, rows, _ROWS
    found: dict[str, int] = {}
    while True:
        count = check(again(lambda: int(lib.pn_channel_list(handle.native, *asked))))
        for row in rows[0:count]:
            name = bytes(ffi.buffer(row.name, row.name_len)).decode("utf-8", "replace")
            found[name] = row.listeners
        if place[0] == 0:
            return found
