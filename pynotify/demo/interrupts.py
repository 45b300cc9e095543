"""SIGINT and SIGTERM unwind the parent: once, and not at a moment when that would leave traces."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class _Interrupts:
    def __init__(self) -> None:
        self.held_back = False
        self.pending = False

    def handle(self, _signo: int, _frame: FrameType | None) -> None:
        if self.held_back:
            self.pending = True
            return
        for signo in _SIGNALS:  # cleaning up is left in peace
            signal.signal(signo, signal.SIG_IGN)
        raise KeyboardInterrupt


_interrupts = _Interrupts()


def unwind_on_interrupt() -> None:
    """Raise KeyboardInterrupt in the main thread from now on, for the first signal only."""
    for signo in _SIGNALS:
        signal.signal(signo, _interrupts.handle)


def ignore_in_child() -> None:
    """The parent ends its children, not the terminal with Ctrl-C."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


@contextmanager
def held_back() -> Iterator[None]:
    """What comes within is raised at the end: a process may have been started but not noted.

    A child that is forked within cannot raise either, until it calls `ignore_in_child`.
    """
    _interrupts.held_back = True
    try:
        yield
    finally:
        _interrupts.held_back = False
    if _interrupts.pending:
        _interrupts.handle(signal.SIGINT, None)
