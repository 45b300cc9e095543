"""A message of kombu as the body of a topic's message: its properties as JSON, NUL, its body."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from kombu.utils.encoding import str_to_bytes
from kombu.utils.json import JSONEncoder, object_hook

if TYPE_CHECKING:
    from pynotify.topics import Message

_encode = JSONEncoder(separators=(",", ":")).encode
_decode = json.JSONDecoder(object_hook=object_hook).decode


def encoded(message: dict[str, Any]) -> bytes:
    """What is published of a message."""
    properties = {name: value for name, value in message.items() if name != "body"}
    # JSON has no NUL in it.
    return b"\0".join((_encode(properties).encode(), str_to_bytes(message["body"] or b"")))


def decoded(message: Message, delivery_tag: int) -> dict[str, Any]:
    """What was published, as kombu's virtual transports have it.  Raises ValueError."""
    end = message.body.index(b"\0")
    raw: dict[str, Any] = _decode(message.body[:end].decode())
    raw["body"] = message.body[end + 1 :]
    properties = raw["properties"]
    properties["delivery_tag"] = delivery_tag
    if message.attempts > 1:
        properties["delivery_info"]["redelivered"] = True
    return raw


def expiration(message: dict[str, Any]) -> float | None:
    """Seconds for which a message is to be delivered, None: no limit.  It has milliseconds."""
    given = message["properties"].get("expiration")
    return None if given is None else max(int(given), 1) / 1000
