"""The open transactions of one connection: at most one for each thread, or each task.

Waiting.  With pn_set_never_wait() on, a method that would have to wait raises `WouldWait`, and
has done nothing: it can be called again where waiting is allowed.  Methods that say "may be
repeated" keep that promise, and do not ask which thread calls them.

Signals.  A call of the core that waits returns -EINTR in between, having done nothing, and is
made again; between the two Python runs its signal handlers, which may raise.
"""

from __future__ import annotations

import weakref
from threading import get_ident, local
from typing import TYPE_CHECKING, Any, TypeVar

from pynotify._ffi import ffi
from pynotify._hot import finalizer
from pynotify._ownership import CLOSED
from pynotify._process import process
from pynotify._transaction import FAILED, OpenTransaction, in_own_transaction
from pynotify.errors import (
    ActiveTransaction,
    InFailedTransaction,
    NoActiveTransaction,
    ProgrammingError,
    SyncFailed,
    WouldWait,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from pynotify._handle import Handle
    from pynotify._receiver import Receiver

_T = TypeVar("_T")


class Transactions:
    """The open transaction of each owner that has one; a subclass says what owns one."""

    def __init__(self, handle: Handle, receiver: Receiver) -> None:
        self.handle = handle
        self._receiver = receiver
        #: The same dict for the connection's life.
        self.by_owner: dict[Hashable, OpenTransaction] = {}

    def owner(self) -> Hashable:
        """The thread or task that owns a transaction that is begun now."""
        raise NotImplementedError

    def _watch_owner(self, owner: Hashable) -> None:
        """Roll the owner's transaction back when the owner ends."""
        raise NotImplementedError

    def current(self) -> OpenTransaction | None:
        """The caller's transaction.  Raises when the connection cannot be used."""
        handle = self.handle
        if handle.native is CLOSED or process.pid != handle.pid:  # as check_usable(), uncalled
            handle.check_usable()
        # asyncio may ask the kernel for the pid before it says which task runs
        return self.by_owner.get(self.owner()) if self.by_owner else None

    def of_caller(self) -> OpenTransaction | None:
        """The same, without asking whether the connection can be used."""
        return self.by_owner.get(self.owner())

    def refuse(self, what: str) -> None:
        """Raise `ActiveTransaction` inside a transaction of the caller."""
        if self.current() is not None:
            raise ActiveTransaction(f"{what}() cannot be used inside a transaction")

    def explicit(self, action: str) -> OpenTransaction:
        """The caller's transaction, for commit() and rollback()."""
        transaction = self.current()
        if transaction is None:
            self.handle.check_usable()
            raise NoActiveTransaction("there is no transaction in progress")
        if transaction.blocks:
            raise ProgrammingError(
                f"{action}() cannot be used inside a transaction block",
                hint="Leave the block, by an exception (pynotify.Rollback) to undo it.",
            )
        return transaction

    def _required(self, command: str) -> OpenTransaction:
        transaction = self.current()
        if transaction is None:
            self.handle.check_usable()  # it may have been closed since
            raise NoActiveTransaction(f"{command} can only be used in transaction blocks")
        return transaction

    # ---- beginning and ending ------------------------------------------------------------

    def begin_explicitly(self) -> None:
        """begin(): not inside another transaction."""
        transaction = self.current()
        if transaction is not None:
            if transaction.failed:
                raise InFailedTransaction(FAILED)
            raise ActiveTransaction("there is already a transaction in progress")
        self.begin()

    def begin(self) -> OpenTransaction:
        """Open a transaction of the caller."""
        owner = self.owner()
        transaction = OpenTransaction(self.handle, owner)
        try:
            self._watch_owner(owner)
            self.by_owner[owner] = transaction
            if self.handle.native is CLOSED:  # close() may not have seen this transaction
                self.handle.check_usable()
        except BaseException:
            self.roll_back(transaction)
            raise
        return transaction

    def commit(self, transaction: OpenTransaction, *, stays_open: bool = False) -> None:
        """Commit; afterwards nothing is open, also when this raises.  May be repeated.

        With `stays_open` it is, when a signal handler has raised before it was committed.
        """
        try:
            self.finish(transaction, stays_open=stays_open)
        except WouldWait:
            raise
        except BaseException:
            if transaction.ended or not stays_open:
                self.roll_back(transaction)
            raise
        self.by_owner.pop(transaction.owner, None)

    def finish(self, transaction: OpenTransaction, *, stays_open: bool = False) -> None:
        """Commit in the core, and forget what is not listened to any more."""
        try:
            result = transaction.commit(stays_open=stays_open)
            if result:
                self.handle.check(result)
        except SyncFailed:  # it has been committed
            if transaction.unlistens:
                self._receiver.forget_unlistened()
            raise
        if transaction.unlistens:
            self._receiver.forget_unlistened()

    def roll_back(self, transaction: OpenTransaction) -> None:
        """Undo everything; nothing is open afterwards."""
        try:
            self.by_owner.pop(transaction.owner, None)
        finally:
            transaction.abort()

    def owner_ended(self, owner: Hashable) -> None:
        """Roll back what a thread or task has left open."""
        transaction = self.by_owner.get(owner)
        if transaction is not None:
            self.roll_back(transaction)

    def abort_all(self) -> None:
        """Roll back all transactions: the connection was closed."""
        while self.by_owner:
            self.by_owner.popitem()[1].abort()

    # ---- savepoints ----------------------------------------------------------------------

    def savepoint(self, name: str) -> None:
        """SAVEPOINT."""
        if not isinstance(name, str):
            raise TypeError(f"savepoint name must be a str, not {type(name).__name__}")
        self._required("SAVEPOINT").savepoint(name)

    def release(self, name: str) -> None:
        """RELEASE SAVEPOINT."""
        transaction = self._required("RELEASE SAVEPOINT")
        transaction.require_usable()
        transaction.release(transaction.find_savepoint(name))

    def rollback_to(self, name: str) -> None:
        """ROLLBACK TO SAVEPOINT."""
        transaction = self._required("ROLLBACK TO SAVEPOINT")
        transaction.require_unprepared()
        transaction.roll_back_to(transaction.find_savepoint(name))
        transaction.savepoint(name)

    # ---- what runs in a transaction, or in none ------------------------------------------

    def on_its_own(self, action: Callable[[OpenTransaction], None]) -> None:
        """Do `action` in a transaction of its own.  May be repeated."""
        in_own_transaction(self.handle, action, self.finish)

    def run_deferred(self, call: Callable[..., int], *arguments: Any) -> int:
        """Call pn_...(connection, transaction or not, ...), to take effect at commit.

        May be repeated.
        """
        transaction = self.current()
        if transaction is not None:
            return transaction.add(call, arguments)
        return self.handle.run(call, ffi.NULL, *arguments)

    def run_at_once(self, call: Callable[..., int], *arguments: Any) -> int:
        """Call pn_...(connection, ...), which takes effect at once; not in a failed transaction.

        May be repeated.
        """
        transaction = self.current()
        if transaction is not None:
            transaction.require_unfailed()
        return self.handle.run(call, *arguments)

    def attempt(self, encode: Callable[..., _T], *values: Any) -> _T:
        """Encode a value; a bad one fails the transaction of the caller."""
        transaction = self.current()
        if transaction is None:
            return encode(*values)
        transaction.require_usable()
        return transaction.attempt(encode, *values)


class ThreadTransactions(Transactions):
    """Transactions that belong to threads."""

    def __init__(self, handle: Handle, receiver: Receiver) -> None:
        super().__init__(handle, receiver)
        self._thread = local()

    owner = staticmethod(get_ident)

    def _watch_owner(self, owner: Hashable) -> None:
        if not hasattr(self._thread, "guard"):
            self._thread.guard = _ThreadGuard(self, owner)


class _ThreadGuard:
    """Lives in a thread's local data, and rolls its transaction back when the thread ends."""

    __slots__ = ("_owner", "_transactions")

    def __init__(self, transactions: Transactions, owner: Hashable) -> None:
        self._owner = owner
        self._transactions = weakref.ref(transactions)

    @finalizer
    def __del__(self) -> None:
        find = getattr(self, "_transactions", None)  # Ctrl-C may have come before it was set
        transactions = find and find()
        if transactions is not None:
            transactions.owner_ended(self._owner)
