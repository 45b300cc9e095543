"""What makes JSON of objects and objects of JSON, where the program says so.

Of a type of msgspec or pydantic its own library does both, and checks what comes; neither is
imported here, since a program that has such a type has imported it.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Protocol, cast, runtime_checkable

from pynotify.pubsub._format import JSON, NOTHING, JsonText, Malformed

if TYPE_CHECKING:
    from collections.abc import Callable


@runtime_checkable
class Codec(Protocol):
    """Objects to JSON, and back."""

    def encode(self, obj: Any, /) -> bytes | str:
        """The JSON of the object, in UTF-8.  TypeError or ValueError for what it does not take."""

    def decode(self, text: bytes, /) -> Any:
        """The object of a JSON.  An exception makes the segment a malformed one."""


class _Functions:
    """Two functions of a library."""

    def __init__(
        self, encode: Callable[[Any], bytes | str], decode: Callable[[bytes], Any]
    ) -> None:
        self.encode, self.decode = encode, decode


def codec_of(given: Any) -> Codec | None:
    """The codec that a program means.  Raises TypeError."""
    if given is None:
        return None
    msgspec, pydantic = sys.modules.get("msgspec"), sys.modules.get("pydantic")
    if isinstance(given, type):
        if msgspec is not None and issubclass(given, msgspec.Struct):
            return _Functions(msgspec.json.Encoder().encode, msgspec.json.Decoder(given).decode)
        if pydantic is not None and issubclass(given, pydantic.BaseModel):
            given = pydantic.TypeAdapter(given)
    if pydantic is not None and isinstance(given, pydantic.TypeAdapter):
        return _Functions(_checking(given), given.validate_json)
    if isinstance(given, Codec) and not isinstance(given, type):
        return given
    raise TypeError(
        "codec must be a msgspec.Struct or pydantic.BaseModel, a pydantic.TypeAdapter, or an object"
        f" with encode(obj) and decode(text), not {given!r}"
    )


def _checking(adapter: Any) -> Callable[[Any], bytes]:
    """Else pydantic writes what is no such model, and only warns."""

    def encode(obj: Any) -> bytes:
        return cast("bytes", adapter.dump_json(obj, warnings="error"))

    return encode


def encoded(codec: Codec | None, obj: Any) -> Any:
    """The object as it is to be sent: with a codec its JSON, unless it is none of JSON's."""
    if codec is None or obj is None or obj is NOTHING:
        return obj
    if isinstance(obj, str | bytes | bytearray | memoryview):
        return obj
    text = codec.encode(obj)
    return JsonText(text.encode() if isinstance(text, str) else text)


def decoder(codec: Codec | None) -> Callable[[bytes], Any] | None:
    """What makes an object of a container of JSON; raises `Malformed`.  None: the usual."""
    if codec is None:
        return None

    def decode(whole: bytes) -> Any:
        text = whole[len(JSON) :]
        if text == b"null":
            return None
        try:
            return codec.decode(text)
        except Exception as error:
            reason = str(error).partition("\n")[0]
            raise Malformed(f"not what the codec takes: {reason}") from error

    return decode
