"""Which channels and patterns are listened to, and by how many connections."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pynotify._encoding import encode_channel
from pynotify._ffi import again, ffi, lib
from pynotify._types import ListenedChannel
from pynotify.errors import check

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pynotify._handle import Handle

_ROWS = 64


def count_listeners(handle: Handle, channel: str) -> int:
    """What `Connection.listeners` returns.  May be repeated."""
    name = encode_channel(channel)
    handle.check_usable()
    return check(again(lambda: int(lib.pn_channel_listeners(handle.native, name, len(name)))))


def listened_channels(handle: Handle, prefix: str) -> dict[str, int]:
    """What `Connection.channels` returns.  May be repeated."""
    return _listened(handle, lib.pn_channel_list, prefix)


def listened_patterns(handle: Handle, prefix: str) -> dict[str, int]:
    """What `Connection.patterns` returns.  May be repeated."""
    return _listened(handle, lib.pn_pattern_list, prefix)


def _listened(handle: Handle, function: Callable[..., int], prefix: str) -> dict[str, int]:
    start = encode_channel(prefix)
    handle.check_usable()

    def following(*room: Any) -> int:
        return check(again(lambda: int(function(handle.native, start, len(start), *room))))

    return {name: row.listeners for name, row in _rows(following)}


def channels_of_all(
    call: Callable[..., int], database: str | None, prefix: str, *, patterns: bool = False
) -> list[ListenedChannel]:
    """What `Engine.channels` returns, or `Engine.patterns`.

    `call` calls a function of the core with the engine before the arguments, and raises what it
    returns.
    """
    start = encode_channel(prefix)
    of = b"" if database is None else encode_channel(database)
    function = lib.pn_engine_patterns if patterns else lib.pn_engine_channels

    def following(*room: Any) -> int:
        return call(function, of, len(of), start, len(start), *room)

    found = [
        ListenedChannel(
            ffi.string(row.database).decode("utf-8", "replace"),
            name,
            row.listeners,
            row.notifications,
            row.first,
        )
        for name, row in _rows(following)
    ]
    return sorted(found, key=lambda channel: (channel.database, channel.name))


def _rows(following: Callable[..., int]) -> Iterator[tuple[str, Any]]:
    """Names and rows; each call of `following` holds the writer lock for a bounded time."""
    rows = ffi.new("pn_channel_row[]", _ROWS)
    place = ffi.new("uint32_t *")
    while True:
        count = following(place, rows, _ROWS)
        for row in rows[0:count]:
            yield bytes(ffi.buffer(row.name, row.name_len)).decode("utf-8", "replace"), row
        if place[0] == 0:
            return
