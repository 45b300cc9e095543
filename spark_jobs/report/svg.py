"""Plots as SVG text that needs nothing from outside: curves, bars and heat maps."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 960, 320
LEFT, RIGHT, TOP, BOTTOM = 80, 190, 14, 46
COLOURS = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#777777", "#dd8833")
_NAME_WIDTH = 26


def plain(text: str, most: int = 200) -> str:
    """`text` as HTML: escaped, on one line, and what does not print written out."""
    cut = text if len(text) <= most else text[: most - 1] + "\N{HORIZONTAL ELLIPSIS}"
    shown = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in cut)
    # A lone surrogate cannot be written in UTF-8.
    return escape(shown.encode("utf-8", "backslashreplace").decode())


def duration(ns: float) -> str:
    """Nanoseconds in a unit that a reader takes in at once."""
    for unit, size in (("s", 1e9), ("ms", 1e6), ("\N{MICRO SIGN}s", 1e3)):
        if ns >= size:
            return f"{ns / size:.3g} {unit}"
    return f"{ns:.0f} ns"


@dataclass(frozen=True)
class Axis:
    """Maps values onto pixels, linearly or by their logarithm."""

    low: float
    high: float
    start: float
    end: float
    logarithmic: bool = False

    def at(self, value: float) -> float:
        low, high = self._scaled(self.low), self._scaled(self.high)
        share = (self._scaled(value) - low) / (high - low) if high > low else 0.5
        return self.start + min(max(share, 0.0), 1.0) * (self.end - self.start)

    def _scaled(self, value: float) -> float:
        return math.log10(max(value, 1e-9)) if self.logarithmic else value

    def ticks(self) -> list[float]:
        """Powers of ten, or about five round numbers."""
        if self.logarithmic:
            first, last = math.floor(self._scaled(self.low)), math.ceil(self._scaled(self.high))
            return [10.0**i for i in range(first, last + 1) if self.low <= 10.0**i <= self.high]
        span = (self.high - self.low) or 1
        step = 10 ** math.floor(math.log10(span / 4))
        step *= next(factor for factor in (1, 2, 5, 10) if span / (step * factor) <= 5)
        first = math.ceil(self.low / step)
        return [i * step for i in range(first, math.floor(self.high / step) + 1)]


def durations(values: Sequence[float]) -> Axis:
    """A vertical axis for latencies, by decades."""
    high = max([*values, 10.0])
    low = max(1.0, min([value for value in values if value > 0], default=1.0))
    decades = math.floor(math.log10(low)), math.ceil(math.log10(high))
    return Axis(10.0 ** decades[0], 10.0 ** decades[1], HEIGHT - BOTTOM, TOP, True)


def text(x: float, y: float, content: str, anchor: str = "start", **more: str) -> str:
    """`content` is escaped already."""
    extra = "".join(f' {name.replace("_", "-")}="{value}"' for name, value in more.items())
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{extra}>{content}</text>'


def frame(label: str, parts: Sequence[str], height: float = HEIGHT, more: str = "") -> str:
    """A whole plot; `label` is for readers that do not see it, `more` are attributes."""
    return (
        f'<figure><svg viewBox="0 0 {WIDTH} {height:.0f}" role="img" '
        f'aria-label="{plain(label)}"{more}>{"".join(parts)}</svg></figure>'
    )


def window(parts: Sequence[str], height: float) -> str:
    """What is between the axes. It is cut off there, and can be stretched sideways."""
    across = WIDTH - RIGHT - LEFT
    return (
        f'<svg class="data" x="{LEFT}" y="0" width="{across}" height="{height:.0f}" '
        f'viewBox="{LEFT} 0 {across} {height:.0f}" preserveAspectRatio="none">'
        f"{''.join(parts)}</svg>"
    )


def vertical_axis(axis: Axis, labels: Mapping[float, str]) -> list[str]:
    """Grid lines and labels on the left."""
    parts = []
    for value, label in labels.items():
        y = axis.at(value)
        parts.append(f'<path class="grid" d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}"/>')
        parts.append(text(LEFT - 6, y + 4, plain(label), "end"))
    return parts


def horizontal_axis(axis: Axis, labels: Mapping[float, str], title: str, foot: float) -> list[str]:
    """Labels below `foot`."""
    parts = ['<g class="ticks">']
    for value, label in labels.items():
        x = axis.at(value)
        parts.append(f'<path class="grid" d="M{x:.1f} {TOP}V{foot:.1f}"/>')
        parts.append(text(x, foot + 19, plain(label), "middle"))
    parts += ["</g>", text((axis.start + axis.end) / 2, foot + 38, plain(title), "middle")]
    return parts


def curve(points: Sequence[tuple[float, float]], colour: str) -> str:
    """A line through those pixels."""
    path = "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
    return f'<path class="curve" stroke="{colour}" d="M{path}"/>'


def legend(names: Sequence[str]) -> list[str]:
    """On the right, in the order of `COLOURS`; names are not escaped yet."""
    parts = []
    for i, name in enumerate(names):
        y, colour = TOP + 10 + 18 * i, COLOURS[i % len(COLOURS)]
        x = WIDTH - RIGHT + 12
        parts.append(f'<path stroke="{colour}" stroke-width="3" d="M{x} {y - 4}h16"/>')
        label = text(x + 22, y, plain(name, 22))
        parts.append(f"<g><title>{plain(name)}</title>{label}</g>")
    return parts


def heat(share: float) -> str:
    """A colour for 0 (low) to 1 (high), readable on light and dark ground."""
    stops = ((68, 1, 84), (59, 82, 139), (33, 145, 140), (94, 201, 98), (253, 231, 37))
    at = min(max(share, 0.0), 1.0) * (len(stops) - 1)
    i = min(int(at), len(stops) - 2)
    mixed = (round(a + (b - a) * (at - i)) for a, b in zip(stops[i], stops[i + 1], strict=True))
    return "#" + "".join(f"{part:02x}" for part in mixed)
