"""The open transactions of tasks."""

from __future__ import annotations

import asyncio
import weakref
from functools import partial
from typing import TYPE_CHECKING, Any

from pynotify._finalizing import WeakSet
from pynotify._registry import Transactions
from pynotify._transaction import FAILED
from pynotify.errors import InFailedTransaction, InterfaceError, WouldWait

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from pynotify._handle import Handle
    from pynotify._off_loop import OffLoop
    from pynotify._receiver import Receiver
    from pynotify._transaction import OpenTransaction


class TaskTransactions(Transactions):
    """Transactions that belong to the tasks of one event loop."""

    def __init__(self, handle: Handle, receiver: Receiver, off_loop: OffLoop) -> None:
        super().__init__(handle, receiver)
        self._off_loop = off_loop
        self._watched_tasks: WeakSet[asyncio.Task[Any]] = WeakSet()
        self._task_ended = partial(_task_ended, weakref.ref(self))

    def owner(self) -> Hashable:
        """The running task; None outside of any loop."""
        try:
            return asyncio.current_task()
        except RuntimeError:  # no loop runs in this thread
            return None

    def _watch_owner(self, owner: Hashable) -> None:
        if not isinstance(owner, asyncio.Task):
            raise InterfaceError(
                "a transaction belongs to a task, and no task is running",
                hint="Begin it inside of a coroutine.",
            )
        if owner not in self._watched_tasks:
            self._watched_tasks.add(owner)
            owner.add_done_callback(self._task_ended)

    def current(self) -> OpenTransaction | None:
        """The task's transaction.  Raises in another loop as well."""
        self._off_loop.check_loop()
        return super().current()

    def roll_back(self, transaction: OpenTransaction) -> None:
        """Undo everything, in a thread where that takes the writer lock."""
        self.by_owner.pop(transaction.owner, None)
        if transaction.prepared and not transaction.failed:
            # What it had reserved is given back under the lock.
            self._off_loop.background.run_in_thread(transaction.abort)
        else:
            transaction.abort()

    async def rolled_back(self, transaction: OpenTransaction) -> None:
        """Wait for the thread of roll_back()."""
        if transaction.prepared and not transaction.failed:
            await self._off_loop.background.are_done()

    def roll_back_all(self) -> None:
        """Roll back all transactions, and watch no task any more: the connection is closed."""
        for task in self._watched_tasks:
            task.remove_done_callback(self._task_ended)
        for transaction in tuple(self.by_owner.values()):
            self.roll_back(transaction)

    async def commit_and_wait(self, transaction: OpenTransaction) -> None:
        """Commit; afterwards nothing is open, also when this raises or is cancelled."""
        off_loop = self._off_loop
        finish = partial(self.finish, transaction)
        if transaction.failed:
            self.roll_back(transaction)
            raise InFailedTransaction(FAILED)
        self.by_owner.pop(transaction.owner, None)
        try:
            off_loop.nowait(finish)
            await off_loop.until_synced()
            return
        except WouldWait:
            pass
        if transaction.prepared:
            await off_loop.background.run(self._commit_prepared(finish))
            return
        try:
            await off_loop.retry(finish)
        except BaseException:
            transaction.abort()
            raise

    async def _commit_prepared(self, finish: Callable[[], None]) -> None:
        """Commit what is not taken back, even when the caller is cancelled."""
        try:
            await self._off_loop.retry(finish, without_limit=True)
        except asyncio.CancelledError:  # the loop is being shut down
            self._off_loop.background.run_in_thread(finish)
            raise

    async def prepare_and_wait(self, transaction: OpenTransaction) -> None:
        """Prepare; a cancelled call has failed the transaction."""
        try:
            await self._off_loop.retry(transaction.prepare)
        except asyncio.CancelledError:
            if not transaction.prepared:
                # A thread may be at it, and keeps it until then: only rolling back is left.
                transaction.failed = transaction.prepared = True
            raise


def _task_ended(registry: weakref.ref[TaskTransactions], task: asyncio.Task[Any]) -> None:
    transactions = registry()
    if transactions is not None:
        transactions.owner_ended(task)
