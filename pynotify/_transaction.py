"""Transactions: the open one of a thread or task, and the `with` block, as psycopg's.

The core keeps the pending LISTENs and NOTIFYs and their nesting levels.  What PostgreSQL's
transaction block state machine does is here: names of savepoints, the failed state, which
block may end what.
"""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from pynotify._encoding import (
    encode_channel,
    encode_headers,
    encode_pattern,
    encode_payload,
    join_payloads,
)
from pynotify._ffi import again, ffi, lib
from pynotify._hot import Pending
from pynotify._notify_in import NotifyIn
from pynotify._ownership import CLOSED, ENDED, adopt, keep, let_go
from pynotify.errors import (
    InFailedTransaction,
    InterfaceError,
    InvalidSavepoint,
    OutOfOrderTransactionNesting,
    ProgrammingError,
    WouldWait,
    check,
    native_error,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence

    from typing_extensions import Buffer

    from pynotify._encoding import Payloads
    from pynotify._handle import Handle

_R = TypeVar("_R")

_EINTR = -errno.EINTR

FAILED = "current transaction is aborted, commands ignored until end of transaction block"


class Level(Protocol):
    """A `with` block that was entered."""

    #: The core's level of its savepoint; 0 for the transaction itself.
    level: int


class OpenTransaction(Pending):
    """The open transaction of one thread or task."""

    __slots__ = (
        "__weakref__",
        "_out",
        "_reached",
        "block_began",
        "blocks",
        "listeners",
        "out_of_order",
        "owner",
        "savepoints",
        "unlistens",
    )

    def __init__(self, handle: Handle, owner: Hashable) -> None:
        #: The thread or task; None: it is not registered.
        self.owner = owner
        self._native: Any = ENDED
        self._out = ffi.new("pn_txn **")
        try:
            check(lib.pn_txn_begin(handle.native, self._out))
            self._native = adopt(self._out, lib.pn_txn_drop)
            keep(self, self._native)
        except BaseException:
            lib.pn_txn_drop(self._out, self._native)
            raise
        #: The outermost `with` block began it and ends it, not begin() and commit().
        self.block_began = False
        #: The `with` blocks that were entered, innermost last.
        self.blocks: list[Level] = []
        #: Names of the savepoints; None for that of a block.  Number i is the core's level i + 1.
        self.savepoints: list[str | None] = []
        #: An error happened: only rolling back is left.
        self.failed = False
        #: commit() was called, and is under way or has ended it.
        self.committing = False
        #: prepare() has succeeded: only committing and rolling back are left.
        self.prepared = False
        #: A block was left before an inner one: no block can be left properly any more.
        self.out_of_order = False
        #: An UNLISTEN may be among its actions.
        self.unlistens = False
        #: Where the core writes how many connections it was owed to, if that was asked for; then
        #: `listeners` has it once it was committed.
        self._reached: Any = None
        self.listeners: int | None = None

    @property
    def ended(self) -> bool:
        """Whether it was committed or rolled back, or the connection closed."""
        return self._native is ENDED or not self._out[0]

    def notify(self, channel: str, payload: str | Buffer) -> None:
        """Add a NOTIFY."""
        self.require_usable()
        name = self.attempt(encode_channel, channel)
        data = self.attempt(encode_payload, payload)
        self._run(lib.pn_txn_notify(self._native, name, len(name), data, len(data)))

    def notify_many(
        self,
        channel: str,
        payloads: Payloads,
        *,
        dedup: bool,
        headers: Mapping[str, str] | None = None,
    ) -> int:
        """Add all of them; how many are left after collapsing duplicates."""
        self.require_usable()
        name = self.attempt(encode_channel, channel)
        joined = self.attempt(join_payloads, payloads)
        encoded = self.attempt(encode_headers, headers)
        return self.notify_in(NotifyIn(name, *joined, encoded, dedup=dedup))

    def notify_in(self, sent: NotifyIn) -> int:
        """Add what was encoded already; how many are left."""
        queued = ffi.new("uint64_t *")  # of CLOSED: the transaction knows its own
        self._run(lib.pn_notify_headers(CLOSED, self._native, sent.native, queued))
        return int(queued[0])

    def add(self, call: Callable[..., int], arguments: Sequence[Any]) -> int:
        """Add a call of the core that takes a connection and a transaction of it."""
        self.require_usable()
        result = call(CLOSED, self._native, *arguments)
        if result == _EINTR:
            result = again(lambda: call(CLOSED, self._native, *arguments))
        return (result if result >= 0 else self._run(result)) & ~lib.PN_NOTICE

    def cancel(self, topic: int, message: int, ended: Any) -> None:
        """Add the cancel of a message; the commit writes to the C `size_t *ended` what it ends."""
        self.require_usable()
        lib.pn_txn_count_cancelled(self._native, ended)
        self.add(lib.pn_topic_cancel, (topic, message))

    def count_listeners(self) -> None:
        """Have its commit find out what `listeners` says."""
        self.require_open()
        if self._reached is None:
            self._reached = ffi.new("uint32_t *")
        lib.pn_txn_count_listeners(self._native, self._reached)

    def bump(self, generation: int) -> None:
        """Add one to the counter of that index."""
        self.require_usable()
        self._run(lib.pn_txn_bump(self._native, generation))

    def listen(self, channels: Iterable[str]) -> None:
        """Add LISTENs."""
        self.require_usable()
        for name in [self.attempt(encode_channel, channel) for channel in channels]:
            self._run(lib.pn_txn_listen(self._native, name, len(name)))

    def unlisten(self, channels: Iterable[str]) -> None:
        """Add UNLISTENs."""
        self.require_usable()
        self.unlistens = True
        for name in [self.attempt(encode_channel, channel) for channel in channels]:
            self._run(lib.pn_txn_unlisten(self._native, name, len(name)))

    def listen_pattern(self, patterns: Iterable[str]) -> None:
        """Add LISTENs to patterns."""
        self.require_usable()
        for name in [self.attempt(encode_pattern, pattern) for pattern in patterns]:
            self._run(lib.pn_txn_listen_pattern(self._native, name, len(name)))

    def unlisten_pattern(self, patterns: Iterable[str]) -> None:
        """Add UNLISTENs from patterns."""
        self.require_usable()
        self.unlistens = True
        for name in [self.attempt(encode_pattern, pattern) for pattern in patterns]:
            self._run(lib.pn_txn_unlisten_pattern(self._native, name, len(name)))

    def unlisten_all(self) -> None:
        """Add UNLISTEN *."""
        self.require_usable()
        self.unlistens = True
        self._run(lib.pn_txn_unlisten_all(self._native))

    def subscribe(self, channels: Iterable[str]) -> None:
        """Add LISTENs for subscriptions, which have a set of channels of their own."""
        for name in map(encode_channel, channels):
            self._run(lib.pn_txn_subscribe(self._native, name, len(name)))

    def subscribe_pattern(self, patterns: Iterable[str]) -> None:
        """The same of patterns."""
        for name in map(encode_pattern, patterns):
            self._run(lib.pn_txn_subscribe_pattern(self._native, name, len(name)))

    def unsubscribe_pattern(self, patterns: Iterable[str]) -> None:
        """The same of patterns."""
        for name in map(encode_pattern, patterns):
            self._run(lib.pn_txn_unsubscribe_pattern(self._native, name, len(name)))

    def unsubscribe(self, channels: Iterable[str]) -> None:
        """Add UNLISTENs for subscriptions."""
        for name in map(encode_channel, channels):
            self._run(lib.pn_txn_unsubscribe(self._native, name, len(name)))

    def savepoint(self, name: str | None) -> int:
        """Set a savepoint; its level.  `name` is None for that of a block."""
        self.require_usable()
        level = len(self.savepoints) + 1
        try:
            self._run(lib.pn_txn_savepoint(self._native))
            self.savepoints.append(name)
        except BaseException:
            # Ctrl-C may have come in between; nothing happens where there is no such level.
            lib.pn_txn_rollback_to(self._native, level)
            del self.savepoints[level - 1 :]
            raise
        return level

    def release(self, level: int) -> None:
        """Keep the work of the savepoint and of those inside it, and end them."""
        self.require_usable()
        self._end_levels(lib.pn_txn_release, level)

    def roll_back_to(self, level: int) -> None:
        """Undo the work since the savepoint, and end it and those inside it."""
        self.require_open()
        self.require_unprepared()
        self._end_levels(lib.pn_txn_rollback_to, level)
        self.failed = False

    def _end_levels(self, call: Callable[..., int], level: int) -> None:
        """End the level and those inside it, here as in the core."""
        try:
            result = call(self._native, level)
        except BaseException:
            # Ctrl-C: it may have been done.  Doing it twice is doing it once.
            call(self._native, level)
            del self.savepoints[level - 1 :]
            raise
        if result >= 0:
            del self.savepoints[level - 1 :]
        self._run(result)

    def find_savepoint(self, name: str) -> int:
        """Level of the innermost savepoint of that name within the current block."""
        if not isinstance(name, str):
            raise TypeError(f"savepoint name must be a str, not {type(name).__name__}")
        for index in range(len(self.savepoints) - 1, -1, -1):
            if self.savepoints[index] == name:
                break
        else:
            self.failed = True
            raise InvalidSavepoint(f'savepoint "{name}" does not exist')
        if self.blocks and index < self.blocks[-1].level:
            self.failed = True
            raise OutOfOrderTransactionNesting(
                f'savepoint "{name}" is outside of {self.blocks[-1]!r}'
            )
        return index + 1

    def prepare(self) -> None:
        """Reserve everything that the commit needs."""
        self.require_usable()
        self._run(again(lambda: lib.pn_txn_prepare(self._native)))
        self.prepared = True

    def commit(self, *, stays_open: bool = False) -> int:
        """End it.  When it has failed, or this fails, nothing has happened, but for SyncFailed.

        When a signal handler raises, it is rolled back as well, or with `stays_open` as it was;
        unless the core had committed it.  What is prepared is committed all the same, and then the
        exception is raised.  May be repeated.
        """
        if self.failed:
            self.abort()
            raise InFailedTransaction(FAILED)
        self.require_open()
        self.committing = ended = True
        try:
            result = self._commit_prepared() if self.prepared else again(self._commit_once)
            if result < 0:
                error = native_error(result)
                ended = not isinstance(error, WouldWait)
                raise error
            if self._reached is not None:
                self.listeners = self._reached[0]
            return result
        finally:
            # The core has cleared *out, unless a signal handler raised before it was done.
            if ended and (not stays_open or self.ended):
                self.abort()
            else:
                self.committing = False

    def _commit_once(self) -> int:
        return int(lib.pn_txn_commit_owned(self._out, self._native))

    def _commit_prepared(self) -> int:
        """Commit, whatever signal handlers raise: what was promised is kept."""
        raised: BaseException | None = None
        while True:
            try:
                result = again(self._commit_once)
                break
            except BaseException as error:
                if self.ended:
                    raise
                raised = error
        if raised is not None and result >= 0:
            raise raised
        return result

    def abort(self) -> None:
        """End it and undo everything.  Ending twice is allowed."""
        try:
            let_go(self)
        finally:
            self._native = ENDED

    def _run(self, result: int) -> int:
        if result < 0:
            error = native_error(result)
            self.failed = self.failed or not isinstance(error, WouldWait)
            raise error
        return result

    def attempt(self, encode: Callable[..., _R], *values: Any) -> _R:
        """Encode a value; a bad one fails the transaction."""
        try:
            return encode(*values)
        except (ValueError, ProgrammingError):  # but not a TypeError
            self.failed = True
            raise

    def require_open(self) -> None:
        """Raise when it has ended, or is being committed."""
        if self.committing:
            raise ProgrammingError(
                "the transaction is being committed",
                hint="Let the signal handler set a flag, and go on where the program does.",
            )
        if self._native is ENDED:
            raise InterfaceError("the connection is closed, and rolled its transactions back")

    def require_unprepared(self) -> None:
        """Raise when it is prepared."""
        if self.prepared:
            raise ProgrammingError(
                "the transaction is prepared", hint="Only commit and rollback are left."
            )

    def require_unfailed(self) -> None:
        """Raise when it has ended or failed."""
        self.require_open()
        if self.failed:
            raise InFailedTransaction(FAILED)

    def require_usable(self) -> None:
        """Raise unless more can be added to it."""
        # What each of these asks, at once: every operation in a transaction does so several times.
        if self.failed or self.prepared or self.committing or self._native is ENDED:
            self.require_unfailed()
            self.require_unprepared()


def in_own_transaction(
    handle: Handle,
    action: Callable[[OpenTransaction], None],
    finish: Callable[[OpenTransaction], None] | None = None,
) -> None:
    """Do `action` in a transaction of its own, and end it by `finish`.  May be repeated."""
    handle.check_usable()
    transaction = OpenTransaction(handle, None)
    try:
        action(transaction)
        if finish is None:
            handle.check(transaction.commit())
        else:
            finish(transaction)
    finally:
        transaction.abort()
