"""The `with` block of a transaction, as psycopg's, apart from waiting."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from pynotify._transaction import FAILED, OpenTransaction
from pynotify.errors import (
    InFailedTransaction,
    OutOfOrderTransactionNesting,
    ProgrammingError,
    Rollback,
)

if TYPE_CHECKING:
    from pynotify._link import Link

logger = logging.getLogger("pynotify")


class Block:
    """What a block does when it is entered and left, apart from waiting."""

    def __init__(self, link: Link) -> None:
        self._handle, self._transactions = link.handle, link.transactions
        self._open: OpenTransaction | None = None
        self._outermost = False
        self._left = False
        #: The core's level of its savepoint; 0 for the transaction itself.
        self.level = 0

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
        if transaction is None:
            transaction = self._transactions.begin()
            self._outermost = transaction.block_began = True
        else:
            self.level = transaction.savepoint(None)
        transaction.blocks.append(self)
        self._open = transaction

    def _leave_normally(self) -> OpenTransaction | None:
        """The transaction, when it is now to be committed."""
        transaction = self._leave()
        if self._outermost:
            return transaction
        if transaction.failed:
            # Like the commit of the whole: undone, said, and usable outside of the block.
            transaction.roll_back_to(self.level)
            raise InFailedTransaction(FAILED)
        transaction.release(self.level)
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
