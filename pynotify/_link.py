"""What the children of a connection see of it: subscriptions, counters, topics, blocks.

A child holds the link, not the connection, and touches nothing else.  The parts know one another
downwards only (handle < receiver < transactions < sender), so a connection that is dropped is
freed at once, and its backend slot with it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import MutableSet

    from pynotify._handle import Handle
    from pynotify._off_loop import OffLoop
    from pynotify._receiver import Receiver
    from pynotify._registry import Transactions
    from pynotify._task_receiver import TaskReceiver
    from pynotify._task_registry import TaskTransactions
    from pynotify._thread_receiver import ThreadReceiver


class Link(Protocol):
    """A connection, whether of threads or of tasks."""

    @property
    def handle(self) -> Handle:
        """The C connection: `native` to call the core with, `check_usable`, `check`, `run`."""

    @property
    def transactions(self) -> Transactions:
        """Open transactions, and what runs in them or outside of them."""

    @property
    def receiver(self) -> Receiver:
        """Reading, and the inboxes."""

    @property
    def consumers(self) -> MutableSet[Any]:
        """Consumers that `close()` closes; each adds and removes itself."""


class ThreadLink(Link, Protocol):
    """A `Connection`."""

    @property
    def receiver(self) -> ThreadReceiver:
        """Reading, the inboxes, and the threads that wait."""


class TaskLink(Link, Protocol):
    """An `AsyncConnection`."""

    @property
    def receiver(self) -> TaskReceiver:
        """Reading, the inboxes, and the tasks that wait."""

    @property
    def transactions(self) -> TaskTransactions:
        """Open transactions of tasks."""

    @property
    def off_loop(self) -> OffLoop:
        """How tasks wait for the lock, for room and for the disk."""
