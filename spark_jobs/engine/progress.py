"""How far reading is, shown at a terminal: bytes of all, records a second, and how long it will
take.

1. Each process that reads has a number in memory that they share, and is the only one to write it.
   Spark's workers are no children of this process: they find the memory by its name, where they are
   on this host. Elsewhere each task tells when it is done.
2. There is a bar where stderr is a terminal and rich is installed, once reading has taken a while.
   While this host reads no thread draws it: a program with threads is not forked. Spark keeps this
   process waiting, and a thread looks meanwhile.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import secrets
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, Final, Self

import numpy as np

from spark_jobs.logs.schema import RECORD_BYTES

SHOWN_EVERY_S: Final = 0.1
_AFTER_S = 0.5

Count = Callable[[int], None]
"""Takes how many records were read, or passed over."""


def uncounted(_: int) -> None:
    """Where there is no bar."""


def is_wanted() -> bool:
    """Whether a bar can be seen."""
    return sys.stderr is not None and sys.stderr.isatty() and find_spec("rich") is not None


class Progress:
    """A bar for reading `records` in all, for `what`, in so many processes. A context."""

    def __init__(self, what: str, records: int, processes: int) -> None:
        self.wanted = is_wanted() and records > 0
        self._what, self._all = what, records * RECORD_BYTES
        self._name = f"pynotify-progress-{secrets.token_hex(8)}"
        self._file = os.memfd_create(self._name) if self.wanted else -1
        self._told = 0
        self._began = self._shown = time.monotonic()
        self._bar: Any = None
        if self.wanted:
            os.ftruncate(self._file, 8 * processes)
            self._read = _numbers(self._file, processes)

    def __del__(self) -> None:
        if self._file >= 0:
            os.close(self._file)

    def counter(self, process: int, *, shows: bool = False) -> Count:
        """What that process counts with; it draws the bar itself, or the one that waits for it."""
        if not self.wanted:
            return uncounted

        def count(records: int) -> None:
            self._read[process] += records * RECORD_BYTES
            if shows:
                self.show()

        return count

    def place(self, processes: int) -> Place | None:
        """Where processes that are no children of this one count; None: no bar."""
        path = f"/proc/{os.getpid()}/fd/{self._file}"
        return Place(path, self._name, processes) if self.wanted else None

    def tell(self, records: int) -> None:
        """So many in all were read by processes that do not reach the memory."""
        self._told = records * RECORD_BYTES

    def show(self) -> None:
        """Draws it, if it is time to."""
        now = time.monotonic()
        if not self.wanted or now < max(self._shown + SHOWN_EVERY_S, self._began + _AFTER_S):
            return
        self._shown = now
        if self._bar is None:
            self._bar = _bar(self._what, self._all)
        read = min(int(self._read.sum()) + self._told, self._all)
        self._bar.update(self._bar.task_ids[0], completed=read, refresh=True)

    @contextlib.contextmanager
    def watched(self, told: Callable[[], int]) -> Iterator[None]:
        """Draws the bar from time to time until the context ends; `told` as for `tell`."""
        done = threading.Event()

        def look() -> None:
            while not done.wait(SHOWN_EVERY_S):
                self.tell(told())
                self.show()

        if not self.wanted or int(self._read.sum()) + self._told >= self._all:
            yield  # not, or no more
            return
        thread = threading.Thread(target=look, name="progress", daemon=True)
        thread.start()
        try:
            with self:
                yield
        finally:
            done.set()
            thread.join()
            self.__exit__()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


@dataclass(frozen=True)
class Place:
    """Memory of a process of this host, with a number for each of so many processes. It is that
    one if the descriptor leads to what has this name.
    """

    path: str
    name: str
    processes: int

    def counter(self, process: int) -> Count | None:
        """What that process counts with, from 0 on; None: the memory is another host's."""
        try:
            if os.readlink(self.path) != f"/memfd:{self.name} (deleted)":
                return None
            file = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            return None
        read = _numbers(file, self.processes)
        os.close(file)
        read[process] = 0  # a task that was tried before begins again

        def count(records: int) -> None:
            read[process] += records * RECORD_BYTES

        return count


def _numbers(file: int, count: int) -> Any:
    return np.frombuffer(mmap.mmap(file, 8 * count), dtype=np.int64)


def _bar(what: str, size: int) -> Any:
    from rich import progress
    from rich.console import Console
    from rich.filesize import decimal
    from rich.text import Text

    class Figures(progress.ProgressColumn):
        def render(self, task: progress.Task) -> Text:
            speed = task.speed or (task.completed / task.elapsed if task.elapsed else 0)
            rate = f", {speed / RECORD_BYTES:,.0f} records/s" if speed else ""
            return Text(f"{decimal(int(task.completed))} of {decimal(size)}{rate}")

    bar = progress.Progress(
        progress.TextColumn("{task.description}"),
        progress.BarColumn(),
        Figures(),
        progress.TimeRemainingColumn(),
        console=Console(stderr=True),
        auto_refresh=False,
        transient=True,
    )
    bar.add_task(what, total=size)
    bar.start()
    return bar


@contextlib.contextmanager
def waiting(what: str) -> Iterator[None]:
    """On a terminal: says what this process waits for, and how long by now."""
    if not is_wanted():
        yield
        return
    from rich import progress
    from rich.console import Console

    bar = progress.Progress(
        progress.SpinnerColumn(),
        progress.TextColumn("{task.description}"),
        progress.TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=True,
    )
    bar.add_task(what, total=None)
    with bar:
        yield
