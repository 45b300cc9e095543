"""Channel names, payloads and headers as the bytes that the core wants."""

from __future__ import annotations

from array import array

from pynotify._hot import Parts, join
from pynotify.errors import InvalidChannelName, PayloadDecodeError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any, TypeAlias

    from typing_extensions import Buffer

    Payloads: TypeAlias = Iterable[str | Buffer]

#: Encoded names of the channels used lately.  Emptied when full: cheaper than ordering it.
channel_cache: dict[str, bytes] = {}
_CHANNEL_CACHE_SIZE = 4096


def encode_pattern(pattern: str) -> bytes:
    """The same as `encode_channel` of a pattern."""
    if not isinstance(pattern, str):
        raise TypeError(f"pattern must be a str, not {type(pattern).__name__}")
    try:
        encoded = str.encode(pattern)
    except UnicodeEncodeError as error:
        raise InvalidChannelName(
            f"pattern name cannot be encoded as UTF-8: {error.reason}"
        ) from error
    if b"\0" in encoded:
        raise InvalidChannelName("pattern name cannot contain a NUL byte")
    return encoded


def encode_channel(channel: str) -> bytes:
    """The name as UTF-8, without NUL, which ends it; its length is the core's to judge."""
    if not isinstance(channel, str):
        raise TypeError(f"channel must be a str, not {type(channel).__name__}")
    if type(channel) is not str:  # a subclass may compare otherwise than byte for byte
        channel = str.__str__(channel)
    encoded = channel_cache.get(channel)
    if encoded is None:
        try:
            encoded = channel.encode()
        except UnicodeEncodeError as error:
            raise InvalidChannelName(
                f"channel name cannot be encoded as UTF-8: {error.reason}"
            ) from error
        if b"\0" in encoded:
            raise InvalidChannelName("channel name cannot contain a NUL byte")
        if len(channel_cache) >= _CHANNEL_CACHE_SIZE:
            channel_cache.clear()
        channel_cache[channel] = encoded
    return encoded


def encode_payload(payload: str | Buffer, what: str = "payload") -> bytes:
    """The payload as bytes; a str as UTF-8.  Raises TypeError about `what`."""
    if type(payload) is bytes:
        return payload
    # A subclass may say otherwise of itself than what it holds, of its length for instance.
    if isinstance(payload, str):
        return str.encode(payload)
    try:
        return bytes(memoryview(payload))
    except (TypeError, ValueError):  # ValueError: a numpy type that is in no buffer
        raise TypeError(f"{what} must be str or bytes-like, not {type(payload).__name__}") from None


def decode_payload(data: bytes) -> str:
    """The payload as text.  Raises `PayloadDecodeError` when it is not UTF-8."""
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise PayloadDecodeError(f"payload is not valid UTF-8: {error.reason}") from error


def kept_payload(payload: str | Buffer) -> str | Buffer:
    """The payload as it is now: the program may change a buffer before a call is repeated."""
    if isinstance(payload, (str, bytes)):
        return payload
    try:
        return encode_payload(payload)
    except TypeError:
        return payload  # the call tells what it is


def kept_payloads(payloads: Payloads) -> Payloads:
    """All of them as they are now: an iterator may fill one buffer again and again.

    So may a program, before a call is repeated.
    """
    if isinstance(payloads, (str, bytes, bytearray, memoryview)):
        return payloads  # likewise
    return _kept(payloads)


def _kept(payloads: Iterable[str | Buffer]) -> list[str | Buffer]:
    return [p if type(p) is bytes or type(p) is str else kept_payload(p) for p in payloads]


def join_payloads(payloads: Payloads) -> tuple[bytes, array[int]]:
    """The payloads one after the other, and their lengths."""
    if isinstance(payloads, (str, bytes, bytearray, memoryview)):
        raise TypeError("payloads must be an iterable of payloads, not one payload")
    items: Any = payloads
    if not isinstance(payloads, (list, tuple, Parts)):
        items = _kept(payloads)
    joined = join(items)
    if joined is None:
        encoded = [encode_payload(item) for item in items]
        return b"".join(encoded), array("I", map(len, encoded))
    lengths = array("I")
    lengths.frombytes(joined[1])
    return joined[0], lengths


def encode_headers(headers: Mapping[str, str] | None) -> bytes:
    """The headers as JSON; nothing for no headers."""
    if not headers:
        return b""
    from pynotify._headers import encode  # noqa: PLC0415, it needs json, and few have headers

    return encode(headers)


def kept_headers(headers: Mapping[str, str] | None) -> Mapping[str, str] | None:
    """Headers for a call that may be repeated: the program may change its own in between."""
    if not headers:
        return None
    from pynotify._headers import kept  # noqa: PLC0415, as above

    return kept(headers)


def decode_headers(data: bytes) -> dict[str, str]:
    """The headers that encode_headers() or another program made; strange ones are left out."""
    if not data:
        return {}
    from pynotify._headers import decode  # noqa: PLC0415, as above

    return decode(data)
