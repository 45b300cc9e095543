"""The pid of this process without a system call, and what a fork's child has to reset."""

from __future__ import annotations

import os

from pynotify._finalizing import WeakSet
from pynotify._hot import finalizer

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Protocol

    class Resettable(Protocol):
        """An object with locks or messages that are of no use in the child of a fork."""

        def reset_in_child(self) -> None:
            """Make new locks: one that another thread held at the fork is never released."""


class _Process:
    """What os.getpid() says: it is asked for before each call, and the system call is slow."""

    def __init__(self) -> None:
        self.refresh()

    def refresh(self) -> None:
        self.pid = os.getpid()


process = _Process()
_resettable: WeakSet[Resettable] = WeakSet()


def reset_after_fork(owner: Resettable) -> None:
    """Call `owner.reset_in_child()` in the child of each fork, as long as the owner lives."""
    _resettable.add(owner)


@finalizer  # Python prints what a callback of a fork raises, Ctrl-C too, and forgets it
def _forget_parent() -> None:
    process.refresh()
    for owner in _resettable:
        owner.reset_in_child()


os.register_at_fork(after_in_child=_forget_parent)
