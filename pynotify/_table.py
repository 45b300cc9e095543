"""Figures, and rows of them, as text."""

from __future__ import annotations

import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

# Not printable by Unicode's categories, but part of how people write.
_HARMLESS = frozenset("\u00a0\u200c\u200d\u3000")
_UNITS = ("KiB", "MiB", "GiB", "TiB")


def escape(text: str) -> str:
    """The text with all that is not printable (controls, bidi overrides) as in a Python string."""
    if text.isprintable():
        return text
    return "".join(
        char
        if char.isprintable() or char in _HARMLESS
        else char.encode("unicode_escape").decode("ascii")
        for char in text
    )


def table(headings: Sequence[str], rows: Iterable[Iterable[object]]) -> list[str]:
    """Lines, the headings first.  A heading that begins with ">" has its column flush right."""
    cells = [[heading.lstrip(">") for heading in headings]]
    cells += [[escape(str(cell)) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    right = [heading.startswith(">") for heading in headings]
    return [
        "  ".join(
            cell.rjust(width) if flush_right else cell.ljust(width)
            for cell, width, flush_right in zip(row, widths, right, strict=True)
        ).rstrip()
        for row in cells
    ]


def pairs(rows: Iterable[tuple[str, object]]) -> list[str]:
    """A line for each name and value, the values in one column."""
    rows = list(rows)
    width = max(len(name) for name, _ in rows)
    return [f"{name:<{width}}  {escape(str(value))}" for name, value in rows]


def size(count: float) -> str:
    """Bytes for people: 512 B, 9.8 MiB."""
    if count < 1024:
        return f"{count:.0f} B"
    for unit in _UNITS:
        count /= 1024
        if count < 1024 or unit == _UNITS[-1]:
            break
    return f"{count:,.1f} {unit}"


def duration(seconds: float) -> str:
    """Seconds for people: 0.5 s, 90 s, 12 min, 3.4 h, 20 days."""
    for limit, divisor, unit in (
        (10, 1, "s"),
        (120, 1, "s"),
        (7200, 60, "min"),
        (172800, 3600, "h"),
    ):
        if seconds < limit:
            return f"{seconds / divisor:.{1 if limit == 10 else 0}f} {unit}"
    return f"{seconds / 86400:,.0f} days"


def local_time(seconds: float) -> str:
    """Seconds since the epoch as local date and time."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))


def yes(value: bool) -> str:
    """A flag in a table."""
    return "yes" if value else "no"
