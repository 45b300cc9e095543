"""What a message carries, as bytes; and the ids of messages as text."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, overload

from pynotify._encoding import encode_headers, encode_payload
from pynotify._ffi import ffi
from pynotify.topics._options import positive_to_ns, seconds_to_ns

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from typing_extensions import Buffer

_ID = re.compile(r"[0-9a-fA-F]{16}")


def encode_body(body: str | Buffer) -> bytes:
    """The body as bytes; a str as UTF-8."""
    return encode_payload(body, "body")


class MessageIn:
    """A pn_message_in; `native` lives as long as this.  Of several bodies none is in it."""

    __slots__ = ("_kept", "native")

    def __init__(
        self,
        delay: float,
        ttl: float | None,
        headers: Mapping[str, str] | None,
        body: bytes = b"",
    ) -> None:
        native = ffi.new("pn_message_in *")
        kept = []
        if body:
            native.body = content = ffi.from_buffer("char[]", body)
            native.body_len = len(body)
            kept.append(content)
        if headers:
            encoded = encode_headers(headers)
            native.headers = content = ffi.from_buffer("char[]", encoded)
            native.headers_len = len(encoded)
            kept.append(content)
        native.delay_ns = seconds_to_ns("delay", delay)
        native.ttl_ns = 0 if ttl is None else positive_to_ns("ttl", ttl)
        self._kept = kept
        self.native: Any = native

    @classmethod
    def of_one(
        cls,
        body: str | Buffer,
        delay: float,
        ttl: float | None,
        headers: Mapping[str, str] | None,
    ) -> MessageIn:
        """The whole of one message."""
        return cls(delay, ttl, headers, encode_body(body))


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
