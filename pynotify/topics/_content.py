"""What a message carries, as bytes; and the ids of messages as text."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, overload

from pynotify._encoding import encode_headers
from pynotify._ffi import ffi
from pynotify.topics._options import positive_to_ns, seconds_to_ns

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from typing_extensions import Buffer

_ID = re.compile(r"[0-9a-fA-F]{16}")


def encode_body(body: str | Buffer) -> bytes:
    """The body as bytes; a str as UTF-8."""
    if isinstance(body, bytes):
        return body
    if isinstance(body, str):
        return body.encode()
    try:
        return bytes(memoryview(body))
    except TypeError:
        raise TypeError(f"body must be str or bytes-like, not {type(body).__name__}") from None


class MessageIn:
    """A pn_message_in with everything but the body; `native` lives as long as this."""

    __slots__ = ("_headers", "native")

    def __init__(self, delay: float, ttl: float | None, headers: Mapping[str, str] | None) -> None:
        encoded = encode_headers(headers)
        self._headers = ffi.from_buffer("char[]", encoded)
        native = ffi.new("pn_message_in *")
        native.headers = self._headers
        native.headers_len = len(encoded)
        native.delay_ns = seconds_to_ns("delay", delay)
        native.ttl_ns = 0 if ttl is None else positive_to_ns("ttl", ttl)
        self.native: Any = native


def parse_id(message_id: str) -> int:
    """The number of a message id.  Raises ValueError when it is not 16 hex digits."""
    if not isinstance(message_id, str):
        raise TypeError(f"a message id is a str, not {type(message_id).__name__}")
    if not _ID.fullmatch(message_id):
        raise ValueError(f"a message id is 16 hex digits, not {message_id!r}")
    return int(message_id, 16)


class MessageIds(Sequence[str]):
    """The ids of messages that were published together: text is made when it is looked at."""

    __slots__ = ("_numbers",)

    def __init__(self, numbers: range) -> None:
        self._numbers = numbers

    def __len__(self) -> int:
        return len(self._numbers)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> MessageIds: ...
    def __getitem__(self, index: int | slice) -> str | MessageIds:
        found = self._numbers[index]
        return MessageIds(found) if isinstance(found, range) else f"{found:016x}"

    def __iter__(self) -> Iterator[str]:
        return (f"{number:016x}" for number in self._numbers)

    def __contains__(self, message_id: object) -> bool:
        return (
            isinstance(message_id, str)
            and _ID.fullmatch(message_id) is not None
            and int(message_id, 16) in self._numbers
        )

    def __eq__(self, other: object) -> bool:
        if isinstance(other, MessageIds):
            return self._numbers == other._numbers
        if isinstance(other, (list, tuple)):
            return list(self) == list(other)
        return NotImplemented

    def __hash__(self) -> int:
        return hash(self._numbers)

    def __repr__(self) -> str:
        if not self._numbers:
            return "<pynotify.MessageIds: none>"
        return f"<pynotify.MessageIds: {len(self)} from {self[0]}>"
