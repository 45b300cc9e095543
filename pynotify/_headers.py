"""Headers as JSON, and back."""

from __future__ import annotations

import json
from collections.abc import Mapping

_encode_json = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def encode(headers: Mapping[str, str]) -> bytes:
    """The bytes of headers that are not empty."""
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
