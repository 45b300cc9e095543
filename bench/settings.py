"""How long to measure, and where."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bench.figures import Figure


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
