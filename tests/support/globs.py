"""Patterns of Redis by Python's regular expressions: what the matcher in C is compared with."""

from __future__ import annotations

import re
from functools import cache


def fits(pattern: str, name: str) -> bool:
    """Whether the name matches; characters are those of the two strings."""
    return _expression(pattern).fullmatch(name) is not None


@cache
def _expression(pattern: str) -> re.Pattern[str]:
    made, at = "", 0
    while at < len(pattern):
        char, at = pattern[at], at + 1
        if char == "*":
            made += ".*"
        elif char == "?":
            made += "."
        elif char == "[":
            part, at = _set(pattern, at)
            made += part
        else:
            if char == "\\" and at < len(pattern):
                char, at = pattern[at], at + 1
            made += re.escape(char)
    return re.compile(made, re.DOTALL)


def _set(pattern: str, at: int) -> tuple[str, int]:
    others = pattern[at : at + 1] == "^"
    at += others
    ranges = []
    while at < len(pattern) and pattern[at] != "]":
        low, at = _literal(pattern, at)
        high = low
        if pattern[at : at + 1] == "-" and at + 1 < len(pattern) and pattern[at + 1] != "]":
            high, at = _literal(pattern, at + 1)
        ranges.append(f"{re.escape(min(low, high))}-{re.escape(max(low, high))}")
    inside = "".join(ranges)
    if not inside:
        return ("." if others else "(?!)"), at + 1
    return f"[{'^' if others else ''}{inside}]", at + 1


def _literal(pattern: str, at: int) -> tuple[str, int]:
    at += pattern[at] == "\\" and at + 1 < len(pattern)
    return pattern[at], at + 1
