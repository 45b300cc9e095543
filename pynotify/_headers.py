"""Headers as JSON, and back."""

from __future__ import annotations

import json
from collections.abc import Mapping

from pynotify._ffi import lib
from pynotify.errors import PayloadTooLong

_encode_json = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


class Taken(dict[str, str]):
    """Headers as they were when a call began, and their bytes.

    `optional`: a transport that has no headers leaves them out, in the place of an error.
    """

    __slots__ = ("data", "optional")

    def __init__(self, headers: Mapping[str, str], *, optional: bool = False) -> None:
        """TypeError as of `encode`; `PayloadTooLong` for more than a notification takes."""
        self.data = encode(headers)
        self.optional = optional
        super().__init__(headers)
        most = int(lib.PN_NOTIFY_HEADERS_MAX)
        if len(self.data) > most:
            raise PayloadTooLong(
                "headers too long",
                hint=f"They have {len(self.data)} bytes; a notification takes {most}. Send large"
                " things as its payload.",
            )


def take(headers: Mapping[str, str]) -> Taken:
    """What a caller has given, which is not empty.  Errors as of `Taken`."""
    return headers if type(headers) is Taken else Taken(headers)


def kept(headers: Mapping[str, str]) -> Mapping[str, str]:
    """A copy, that the program cannot change; what is no mapping is left for `encode` to refuse."""
    if isinstance(headers, Mapping) and type(headers) is not Taken:
        return dict(headers)
    return headers


def encode(headers: Mapping[str, str]) -> bytes:
    """The bytes of headers that are not empty."""
    if type(headers) is Taken:
        return headers.data
    if not isinstance(headers, Mapping):
        raise TypeError(f"headers must be a mapping, not {type(headers).__name__}")
    for name, value in headers.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise TypeError(f"a header is a str and has a str, not {name!r}: {value!r}")
    return _encode_json(dict(headers)).encode("utf-8", "surrogatepass")


def decode(data: bytes) -> dict[str, str]:
    """The headers that bytes say, which are not empty; what is no header is left out."""
    try:
        found = json.loads(data.decode("utf-8", "surrogatepass"))
    except ValueError:
        return {}
    if not isinstance(found, dict):
        return {}
    return {name: value for name, value in found.items() if isinstance(value, str)}
