"""What the core takes for notifications of one channel: pn_notify_in."""

from __future__ import annotations

from pynotify._ffi import ffi

TYPE_CHECKING = False
if TYPE_CHECKING:
    from array import array
    from typing import Any


class NotifyIn:
    """A pn_notify_in; `native` lives as long as this."""

    __slots__ = ("_kept", "native")

    def __init__(
        self, name: bytes, blob: bytes, lengths: array[int], headers: bytes, *, dedup: bool
    ) -> None:
        native = ffi.new("pn_notify_in *")
        parts = [ffi.from_buffer("char[]", part) for part in (name, blob, headers)]
        lens = ffi.from_buffer("uint32_t[]", lengths)
        self._kept = parts, lens
        native.channel, native.payloads, native.headers = parts
        native.channel_len, native.headers_len = len(name), len(headers)
        native.lens, native.n = lens, len(lengths)
        native.keep_equal = not dedup
        self.native: Any = native
