"""A figure: ours, the peer's, their ratio, and the bar it is held against."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Spread:
    """Median and extremes of the repetitions."""

    median: float
    min: float
    max: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        return cls(statistics.median(values), min(values), max(values))

    def text(self) -> str:
        return f"{number(self.median)} [{number(self.min)} .. {number(self.max)}]"


@dataclass(frozen=True)
class Figure:
    """`ratio` is ours by the peer's, pair by pair; without a peer the bar is absolute.

    A figure without `ours` is a peer's alone, for scale.
    """

    topic: str
    name: str
    unit: str
    ours: Spread | None
    command: str
    repetitions: int
    peer: Spread | None = None
    ratio: Spread | None = None
    against: str = ""
    bar: float | None = None
    at_most: bool = False
    note: str = ""

    @property
    def passed(self) -> bool | None:
        """None where there is no bar."""
        held = self.ratio or self.ours
        if self.bar is None or held is None:
            return None
        value = held.median
        return value <= self.bar if self.at_most else value >= self.bar

    @property
    def verdict(self) -> str:
        if self.bar is None:
            return ""
        sign = "<=" if self.at_most else ">="
        times = " x" if self.ratio else ""
        return f"{sign} {self.bar:g}{times}: {'PASS' if self.passed else 'below'}"

    def json(self) -> dict[str, Any]:
        return asdict(self) | {"passed": self.passed}


def number(value: float) -> str:
    """Four digits are more than a shared machine can give."""
    if value >= 1e6:
        return f"{value / 1e6:.2f} M"
    if value >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}" if value >= 100 else f"{value:.2f}"


def line(figure: Figure) -> str:
    """One figure as it is printed while the run goes on."""
    parts = [f"{figure.topic}: {figure.name}"]
    if figure.ours is not None:
        parts.append(f"    pynotify: {figure.ours.text()} {figure.unit}")
    if figure.peer is not None:
        parts.append(f"    {figure.against}: {figure.peer.text()} {figure.unit}")
    if (ratio := figure.ratio) is not None:
        parts.append(
            f"    ratio {ratio.median:.3f} x [{ratio.min:.3f} .. {ratio.max:.3f}]"
            f", {figure.repetitions} pairs"
        )
    if figure.bar is not None:
        parts.append(f"    bar {figure.verdict}")
    if figure.note:
        parts.append(f"    note: {figure.note}")
    return "\n".join(parts)


def markdown(figures: Iterable[Figure]) -> str:
    """The table for docs/benchmarks.md."""
    rows = [
        "| figure | unit | pynotify | against | its figure | ratio | bar |",
        "|---|---|---:|---|---:|---:|---|",
    ]
    for f in figures:
        ratio = (
            f"{f.ratio.median:.2f} x [{f.ratio.min:.2f} .. {f.ratio.max:.2f}]" if f.ratio else ""
        )
        ours = f.ours.text() if f.ours else ""
        peer = f.peer.text() if f.peer else ""
        rows.append(
            f"| {f.topic}: {f.name} | {f.unit} | {ours} | {f.against} | {peer} "
            f"| {ratio} | {f.verdict} |"
        )
    return "\n".join(rows)
