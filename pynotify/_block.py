"""The `with` block of a transaction, as psycopg's, apart from waiting.

A signal handler may raise at the first step of `__exit__`, before that has done anything.  Then
the `with` statement is left and its transaction would stay open, with a block that nothing can
leave any more.  So a block knows how long its statement lasts: the statement keeps the callable
that it got as `__exit__`, and nothing else has that.  It is a partial and no bound method: CPython
3.14 takes a bound method apart before it calls the function, and lets go of it there.
"""

from __future__ import annotations

import weakref
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, cast

from pynotify._hot import finalizer
from pynotify._log import logger
from pynotify._transaction import FAILED, OpenTransaction
from pynotify.errors import (
    InFailedTransaction,
    OutOfOrderTransactionNesting,
    ProgrammingError,
    Rollback,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from pynotify._link import Link

    _F = TypeVar("_F", bound=Callable[..., Any])


class _Watched:
    """`__exit__`, of which each callable that is got is told to its block."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    def __get__(self, block: Block | None, owner: type) -> Callable[..., Any]:
        if block is None:
            return self._function
        leave = partial(self._function, block)
        block.watch(leave)
        return leave


def watched(function: _F) -> _F:
    """Make an `__exit__` whose block ends with its `with` statement in any case."""
    return cast("_F", _Watched(function))


class Block:
    """What a block does when it is entered and left, apart from waiting."""

    def __init__(self, link: Link) -> None:
        self._handle, self._transactions = link.handle, link.transactions
        self._open: OpenTransaction | None = None
        self._outermost = False
        self._left = False
        #: Of the callable that its `with` statement has, until it is left.
        self._statement: weakref.ref[partial[Any]] | None = None
        #: The core's level of its savepoint; 0 for the transaction itself.
        self.level = 0

    def count_listeners(self) -> None:
        """Have the commit count the connections that its notifications are for.

        Afterwards `listeners` says how many.
        """
        self._require_entered().count_listeners()

    @property
    def listeners(self) -> int | None:
        """How many connections listened to what the transaction has notified, at its commit.

        By name or by a pattern; its own, too, bridges apart.  None before the commit, after a
        rollback, and without `count_listeners()`.
        """
        return None if self._open is None else self._open.listeners

    def _to_be_prepared(self) -> OpenTransaction:
        transaction = self._require_entered()
        if not self._outermost or transaction.blocks[-1] is not self:
            raise ProgrammingError(
                "only the outermost transaction block can be prepared",
                hint="Leave the inner blocks, then prepare the outermost.",
            )
        return transaction

    def _enter(self) -> None:
        if self._open is not None:
            raise TypeError("transaction blocks can be used only once")
        transaction = self._transactions.current()
        try:
            if transaction is None:
                transaction = self._transactions.begin()
                self._outermost = transaction.block_began = True
            else:
                self.level = transaction.savepoint(None)
            self._open = transaction
            transaction.blocks.append(self)
        except BaseException:  # Ctrl-C, or an error of the transaction around it
            self._give_up()
            raise

    def watch(self, leave: partial[Any]) -> None:
        """Take notice of what a `with` statement may have got as its `__exit__`."""
        if self._open is None:
            self._statement = weakref.ref(leave, self._statement_ended)

    @finalizer
    def _statement_ended(self, _leave: object) -> None:
        """Undo its work if it was not left: a signal handler raised in `__exit__`."""
        if self._open is not None:
            self._give_up()

    def _give_up(self) -> None:
        """Undo its work, unless that was done, or is not the caller's to do."""
        self._statement = None
        transaction = self._open
        if transaction is None or self._handle.is_foreign:
            return
        if self._transactions.of_caller() is not transaction:
            return
        self._left = True
        if self in transaction.blocks:
            if transaction.blocks[-1] is not self:  # another one inside was not left
                transaction.out_of_order = transaction.failed = True
            transaction.blocks.remove(self)
        if self._outermost:
            self._transactions.roll_back(transaction)
        elif len(transaction.savepoints) >= self.level and not transaction.prepared:
            transaction.roll_back_to(self.level)

    def _leave_normally(self) -> OpenTransaction | None:
        """The transaction, when it is now to be committed."""
        transaction = self._leave()
        if self._outermost:
            return transaction
        if transaction.failed:
            # Like the commit of the whole: undone, said, and usable outside of the block.
            transaction.roll_back_to(self.level)
            self._statement = None
            raise InFailedTransaction(FAILED)
        transaction.release(self.level)
        self._statement = None
        return None

    def _leave_by(self, exc: BaseException) -> bool:
        """Undo the work; whether the exception ends here."""
        try:
            if self._open is None or not self._open.ended:  # else by closing the connection
                transaction = self._leave()
                if self._outermost:
                    self._transactions.roll_back(transaction)
                else:
                    transaction.roll_back_to(self.level)
        except OutOfOrderTransactionNesting:
            # The mistake in the program hides the exception, as it would in a commit.
            raise
        except Exception as error:
            logger.warning("error ignored in rollback of %r: %s", self, error)
        self._statement = None
        return isinstance(exc, Rollback) and (exc.transaction is None or exc.transaction is self)

    def _leave(self) -> OpenTransaction:
        """Take the block off the stack; it must be on its top."""
        transaction = self._require_entered()
        self._left = True
        in_order = transaction.blocks[-1] is self and not transaction.out_of_order
        transaction.blocks.remove(self)
        if not in_order:
            transaction.out_of_order = transaction.failed = True
            if transaction.block_began and not transaction.blocks:
                self._transactions.roll_back(transaction)
            self._statement = None
            raise OutOfOrderTransactionNesting(
                f"transaction block left at the wrong nesting level: {self!r}"
            )
        return transaction

    def _require_entered(self) -> OpenTransaction:
        transaction = self._open
        if transaction is None or self._left:
            raise ProgrammingError(
                "the transaction block is not active", hint="Use it inside its 'with' statement."
            )
        if self._transactions.current() is not transaction:
            self._handle.check_usable()  # else its transactions are gone
            raise ProgrammingError(
                "the transaction block belongs to another thread or task",
                hint="Enter and leave a block in one thread or task; each can have its own.",
            )
        return transaction

    def __repr__(self) -> str:
        state = "inactive" if self._open is None else "terminated" if self._left else "active"
        kind = "transaction" if self.level == 0 else f"savepoint {self.level}"
        return f"<pynotify.{type(self).__name__} {kind} ({state}) at {id(self):#x}>"
