"""How long to measure, and where, and what becomes of the values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.figures import Figure, Spread


@dataclass(frozen=True)
class Settings:
    """`report` is called with each figure as soon as there is one."""

    directory: Path
    report: Callable[[Figure], None]
    quick: bool = False
    postgres: str | None = None
    nsqd: Path | None = None

    def pairs(self, number: int) -> int:
        """Repetitions: odd, so that the median is one of them."""
        return 3 if self.quick else number

    def messages(self, number: int) -> int:
        """Messages of a pass."""
        return max(number // 10, 200) if self.quick else number

    def compare(
        self,
        topic: str,
        name: str,
        unit: str,
        ours: Sequence[float],
        peer: Sequence[float],
        **more: Any,
    ) -> Figure:
        """The figure of alternating passes: `ours[i]` and `peer[i]` ran one after the other."""
        more["ratio"] = Spread.of([a / b for a, b in zip(ours, peer, strict=True)])
        return self.alone(topic, name, unit, ours, peer=Spread.of(peer), **more)

    def alone(self, topic: str, name: str, unit: str, ours: Sequence[float], **more: Any) -> Figure:
        """Ours; `more` are attributes of `Figure`."""
        more.setdefault("repetitions", len(ours))
        more.setdefault("command", command(topic))
        figure = Figure(topic, name, unit, Spread.of(ours), **more)
        self.report(figure)
        return figure

    def scale(self, topic: str, name: str, unit: str, values: Sequence[float], peer: str) -> None:
        """A peer's alone."""
        name = f"{name}, for scale: {peer}"
        figure = Figure(topic, name, unit, None, command(topic), len(values), against=peer,
                        peer=Spread.of(values))  # fmt: skip
        self.report(figure)


def command(topic: str) -> str:
    """The command that measures it."""
    return f"python -m bench --only {topic}"
