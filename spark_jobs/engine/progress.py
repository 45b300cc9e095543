"""How far reading is, for people who wait at a terminal: records of all, how many a second, and how
long it will take.

1. Each process that reads has a number in memory that they share, and is the only one to write it.
2. There is a bar where stderr is a terminal and rich is installed, once reading has taken a while.
   No thread draws it: a program with threads is not forked.
"""

from __future__ import annotations

import mmap
import sys
import time
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any, Final, Self

import numpy as np

SHOWN_EVERY_S: Final = 0.1
_AFTER_S = 0.5

Count = Callable[[int], None]
"""Takes how many records were read."""


def uncounted(_: int) -> None:
    """For those of whom there is no bar."""


def _is_wanted() -> bool:
    return sys.stderr is not None and sys.stderr.isatty() and find_spec("rich") is not None


class Progress:
    """Of reading `records` in all, for `what`, in so many processes. A context: it ends the bar."""

    def __init__(self, what: str, records: int, processes: int) -> None:
        self.wanted = _is_wanted() and records > 0
        self._what, self._all = what, records
        self._read = np.frombuffer(mmap.mmap(-1, 8 * processes), dtype=np.int64)
        self._began = self._shown = time.monotonic()
        self._bar: Any = None

    def counter(self, process: int, *, shows: bool = False) -> Count:
        """What that process counts with; it draws the bar itself, or the one that waits for it."""
        if not self.wanted:
            return uncounted

        def count(records: int) -> None:
            self._read[process] += records
            if shows:
                self.show()

        return count

    def show(self) -> None:
        """Draws it, if it is time to."""
        now = time.monotonic()
        if not self.wanted or now < max(self._shown + SHOWN_EVERY_S, self._began + _AFTER_S):
            return
        self._shown = now
        if self._bar is None:
            self._bar = _bar(self._what, self._all)
        self._bar.update(self._bar.task_ids[0], completed=int(self._read.sum()), refresh=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


def _bar(what: str, records: int) -> Any:
    from rich import progress
    from rich.console import Console
    from rich.text import Text

    class Figures(progress.ProgressColumn):
        def render(self, task: progress.Task) -> Text:
            rate = f", {task.speed:,.0f}/s" if task.speed else ""
            return Text(f"{task.completed:,.0f} of {records:,} records{rate}")

    bar = progress.Progress(
        progress.TextColumn("{task.description}"),
        progress.BarColumn(),
        Figures(),
        progress.TimeRemainingColumn(),
        console=Console(stderr=True),
        auto_refresh=False,
        transient=True,
    )
    bar.add_task(what, total=records)
    bar.start()
    return bar
