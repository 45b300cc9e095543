"""Messages as they are in the segment.

In a topic FastStream's headers are headers of the message.  A channel's notifications have none, so
there they stand before the body:

    "\\0FastStream\\1", the length of the headers in four bytes (the most significant one first),
    the headers as a JSON object of strings, the body

What other programs send is taken as it is: a text, bytes, or JSON.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pynotify.topics import AsyncMessage

CONTENT_TYPE = "content-type"
CORRELATION_ID = "correlation_id"
REPLY_TO = "reply_to"

_BEGINNING = b"\0FastStream\1"
_LENGTH = 4
#: A message of a topic has a body; what stands for none, and the header that says so.
_NO_BODY = b"\0"
_EMPTY = "faststream-empty"


@dataclass(slots=True, kw_only=True)
class ChannelMessage:
    """What came on a channel: `obj` is what `PubSub` made of it."""

    channel: str
    obj: Any

    @property
    def destination(self) -> str:
        """Where it was published."""
        return self.channel

    @property
    def content(self) -> tuple[bytes, dict[str, str]]:
        """The body and the headers."""
        return _unpack(self.obj)


@dataclass(slots=True, kw_only=True)
class TopicMessage:
    """What came from a topic; `taken` is the message in flight, None under a test broker."""

    topic: str
    body: bytes
    headers: Mapping[str, str]
    taken: AsyncMessage | None = None

    @property
    def destination(self) -> str:
        """Where it was published."""
        return self.topic

    @property
    def content(self) -> tuple[bytes, dict[str, str]]:
        """The body and the headers."""
        headers = dict(self.headers)
        if headers.pop(_EMPTY, None) is None:
            return self.body, headers
        return b"", headers


#: What FastStream's parsers and middlewares get: the third is a batch.
RawMessage: TypeAlias = ChannelMessage | TopicMessage | list[TopicMessage]


def for_topic(body: bytes, headers: Mapping[str, str]) -> tuple[bytes, dict[str, str]]:
    """The body and the headers of a message that is published to a topic."""
    if body:
        return body, dict(headers)
    return _NO_BODY, {**headers, _EMPTY: "1"}


def for_channel(body: bytes, headers: Mapping[str, str]) -> bytes:
    """The object that is sent on a channel."""
    head = json.dumps(headers, ensure_ascii=False, separators=(",", ":")).encode(
        "utf-8", "surrogatepass"
    )
    return b"".join((_BEGINNING, len(head).to_bytes(_LENGTH, "big"), head, body))


def _unpack(obj: Any) -> tuple[bytes, dict[str, str]]:
    if isinstance(obj, bytes):
        return _without_head(obj) or (obj, {})
    if isinstance(obj, str):
        return obj.encode("utf-8", "surrogatepass"), {CONTENT_TYPE: "text/plain"}
    if obj is None:
        return b"", {}
    return json.dumps(obj, ensure_ascii=False).encode(), {CONTENT_TYPE: "application/json"}


def _without_head(data: bytes) -> tuple[bytes, dict[str, str]] | None:
    """None: it was not packed by `for_channel`."""
    if not data.startswith(_BEGINNING):
        return None
    begin = len(_BEGINNING) + _LENGTH
    end = begin + int.from_bytes(data[len(_BEGINNING) : begin], "big")
    try:
        headers = json.loads(data[begin:end].decode("utf-8", "surrogatepass"))
    except ValueError:
        return None
    if not isinstance(headers, dict) or end > len(data):
        return None
    return data[end:], {name: str(value) for name, value in headers.items()}


def source_of(raw: RawMessage) -> str:
    """Where a message, or the first of a batch, was published."""
    return (raw[0] if isinstance(raw, list) else raw).destination


def size_of(body: bytes | list[bytes]) -> int:
    """Bytes of a message's body, or of the bodies of a batch."""
    return sum(map(len, body)) if isinstance(body, list) else len(body)


def taken_of(raw: RawMessage) -> list[AsyncMessage]:
    """The messages in flight."""
    if isinstance(raw, ChannelMessage):
        return []
    messages = raw if isinstance(raw, list) else [raw]
    return [message.taken for message in messages if message.taken is not None]
