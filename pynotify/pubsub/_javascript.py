"""JSON as JavaScript's JSON.stringify writes it, so that equal objects are equal payloads.

Only numbers with a fraction or an exponent and halves of surrogate pairs differ from what Python's
encoder writes without blanks: 1.0 is 1 there, 1e-07 is 1e-7, and half a pair is escaped.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from json.encoder import encode_basestring
from typing import Any

_encoder = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))
_surrogate = re.compile("[\ud800-\udfff]")
# Every float that Python has written contains it; so may a string, which costs only time.
_perhaps_float = re.compile(r"\d[.e]")


def stringify(obj: Any) -> str:
    """TypeError for what JSON does not have, ValueError for NaN and infinities."""
    text = _encoder.encode(obj)
    if _perhaps_float.search(text):
        text = "".join(_pieces(obj))
    return _surrogate.sub(_escaped, text)


def _escaped(match: re.Match[str]) -> str:
    return f"\\u{ord(match[0]):04x}"


def _pieces(obj: Any) -> Iterator[str]:
    """What Python's encoder has accepted, once more."""
    if isinstance(obj, float):
        yield number(obj)
    elif isinstance(obj, dict):
        separator = "{"
        for key, value in obj.items():
            yield f"{separator}{encode_basestring(_key(key))}:"
            yield from _pieces(value)
            separator = ","
        yield "}" if obj else "{}"
    elif isinstance(obj, list | tuple):
        separator = "["
        for value in obj:
            yield separator
            yield from _pieces(value)
            separator = ","
        yield "]" if obj else "[]"
    else:
        yield _encoder.encode(obj)


def _key(key: Any) -> str:
    if isinstance(key, str):
        return key
    return number(key) if isinstance(key, float) else _encoder.encode(key)


def number(value: float) -> str:
    """Number.prototype.toString: the same digits as Python's, the point elsewhere."""
    if not math.isfinite(value):
        raise ValueError(f"JSON has no {value!r}")
    if value == 0:
        return "0"
    sign = "-" if value < 0 else ""
    mantissa, _, exponent = float.__repr__(abs(value)).partition("e")
    whole, _, fraction = mantissa.partition(".")
    fraction = "" if fraction == "0" else fraction
    digits = (whole + fraction).lstrip("0")
    # The value is 0.digits times ten to the power of `point`.
    point = len(whole) + int(exponent or 0) - (len(whole + fraction) - len(digits))
    digits = digits.rstrip("0")
    if -6 < point <= 0:
        return f"{sign}0.{'0' * -point}{digits}"
    if 0 < point <= 21:
        if len(digits) <= point:
            return sign + digits.ljust(point, "0")
        return f"{sign}{digits[:point]}.{digits[point:]}"
    fraction = f".{digits[1:]}" if len(digits) > 1 else ""
    return f"{sign}{digits[0]}{fraction}e{point - 1:+d}"
