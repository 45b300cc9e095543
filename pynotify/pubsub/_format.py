"""The format: objects to segments and back.  Nothing here knows a connection.

1. A container is `!` and a text, `@` and JSON, or `%` and bytes; no object is the empty payload.
2. A container of the characters 20 to 7E only, not longer than a segment may be, is sent as it is.
3. Any other is sent as the base64 of its UTF-8, one base64 for the whole.  It is cut into pieces
   of one byte less than a segment may have; `$` stands before the last, `#` before the others.
4. None of the five flags is a character of base64, so the first byte of a segment says what it is.

A piece need not be a multiple of four characters, and has no number: the pieces of an object are
told from another's by channel and sender, and their order is that in which they arrive.
"""

from __future__ import annotations

import binascii
import json
import re
from typing import Any, Final

from pynotify.errors import ProgrammingError
from pynotify.pubsub._javascript import stringify

TEXT: Final = b"!"
JSON: Final = b"@"
BYTES: Final = b"%"
PIECE: Final = b"#"
LAST: Final = b"$"
#: Only between the processes of a segment (_parts.py).
PART: Final = b"~"  # and `&` (_arrays.py)

#: Bytes of one payload over PostgreSQL, where it must be shorter than 8000.
POSTGRES_LIMIT: Final = 7999

_not_plain = re.compile(rb"[^\x20-\x7e]")
_ALPHABET: Final = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/="


class Malformed(Exception):
    """A segment, or what pieces make together, is not as it has to be."""


class _Nothing:
    """What publish() sends when it is given no object."""

    def __repr__(self) -> str:
        return "nothing"


NOTHING: Final = _Nothing()


class JsonText:
    """JSON that was made by a codec (_codec.py)."""

    __slots__ = ("text",)

    def __init__(self, text: bytes) -> None:
        self.text = text


class LongContainer:
    """A container in two, of which no copy is made before its parts are."""

    __slots__ = ("body", "flag")

    def __init__(self, flag: bytes, body: bytes) -> None:
        self.flag = flag
        self.body = body

    def __len__(self) -> int:
        return len(self.flag) + len(self.body)

    def __bytes__(self) -> bytes:
        return self.flag + self.body


def segments(obj: Any, limit: int) -> list[bytes]:
    """The payloads for an object; `limit`: bytes that one of them may have.

    TypeError for what JSON does not have, ValueError for NaN, infinities and text that UTF-8
    does not have (half a surrogate pair).
    """
    if obj is NOTHING:
        return [b""]
    return cut(container(obj), limit)


def container(obj: Any) -> bytes:
    """Flag and contents."""
    flag, body = _flagged(obj)
    return flag + body


def container_for(obj: Any, limit: int) -> bytes | LongContainer:
    """The same; in two, if it is longer than a payload may be."""
    flag, body = _flagged(obj)
    return LongContainer(flag, body) if len(flag) + len(body) > limit else flag + body


def _flagged(obj: Any) -> tuple[bytes, bytes]:
    if isinstance(obj, str):
        return TEXT, obj.encode()
    if isinstance(obj, bytes | bytearray | memoryview):
        return BYTES, bytes(obj)
    return JSON, obj.text if isinstance(obj, JsonText) else stringify(obj).encode()


def is_plain(whole: bytes, limit: int) -> bool:
    """Whether a container is sent as it is."""
    return len(whole) <= limit and not _not_plain.search(whole)


def cut(whole: bytes, limit: int) -> list[bytes]:
    """A container in segments."""
    if is_plain(whole, limit):
        return [whole]
    size = limit - 1
    if size < 1:
        raise ProgrammingError(
            f"a segment of {limit} bytes has no room for a piece",
            hint="Create the segment with a larger max_payload.",
        )
    encoded = binascii.b2a_base64(whole, newline=False)
    final = (len(encoded) - 1) // size * size
    found = [PIECE + encoded[at : at + size] for at in range(0, final, size)]
    found.append(LAST + encoded[final:])
    return found


class Pieces:
    """The pieces of one object so far, decoded as they come."""

    __slots__ = ("_ended", "_rest", "data")

    def __init__(self) -> None:
        self.data = bytearray()
        #: Characters that do not make a group of four yet.
        self._rest = b""
        self._ended = False

    def __len__(self) -> int:
        return len(self.data)

    def state(self) -> tuple[int, bytes, bool]:
        """What restore() wants."""
        return len(self.data), self._rest, self._ended

    def restore(self, state: tuple[int, bytes, bool]) -> None:
        """Forget what was added since state()."""
        size, self._rest, self._ended = state
        del self.data[size:]

    def add(self, piece: bytes) -> None:
        """The next one.  Raises `Malformed`, after which no more can be added."""
        if not piece:
            return
        if self._ended:
            raise Malformed("something follows the padding of its base64")
        characters = self._rest + piece
        whole = len(characters) & ~3
        self._rest = characters[whole:]
        if self._rest.translate(None, _ALPHABET):
            raise Malformed("not base64")
        groups = characters[:whole]
        padding = whole - len(groups.rstrip(b"="))
        try:
            decoded = binascii.a2b_base64(groups, strict_mode=True)
        except ValueError as error:
            raise Malformed(f"not base64: {error}") from None
        # Strict as it is, binascii lets a whole group of padding pass.
        if padding > 2 or len(decoded) != whole // 4 * 3 - padding:
            raise Malformed("not base64: too much padding")
        self.data += decoded
        self._ended = padding > 0

    def whole(self) -> bytes:
        """The container."""
        if self._rest:
            raise Malformed("its base64 ends within a group of four")
        return bytes(self.data)


def contents(whole: bytes) -> Any:
    """The object in a container.  Raises `Malformed`."""
    flag = whole[:1]
    if flag == BYTES:
        return whole[1:]
    if flag not in (TEXT, JSON) or not flag:
        raise Malformed(f"no container begins with {flag!r}" if flag else "an empty container")
    try:
        text = whole[1:].decode()
        return text if flag == TEXT else _decoder.decode(text)
    except UnicodeDecodeError as error:
        raise Malformed(f"not UTF-8: {error.reason}") from None
    except RecursionError:
        raise Malformed("JSON nested too deeply") from None
    except ValueError as error:
        raise Malformed(f"not JSON: {error}") from None


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no number")


_decoder = json.JSONDecoder(parse_constant=_refuse)
