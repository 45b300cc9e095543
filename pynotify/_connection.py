"""A connection as threads use it.

What has been read ahead for notifies() waits in `_backlog`, from which every receiver takes
first.  Nothing is read ahead while another thread sleeps or somebody watches `fileno()`: both
are told only of what the core has unread.  With subscriptions whoever waits reads for all.
"""

from __future__ import annotations

import errno
import time
import weakref
from importlib import import_module
from itertools import repeat, starmap
from threading import get_ident, local
from typing import TYPE_CHECKING

from pynotify._base import BaseConnection, limit_of, nanoseconds, process
from pynotify._batch import NotifyBatch
from pynotify._ffi import lib
from pynotify._generation import Generation
from pynotify._lookout import Lookout, ThreadWaiter
from pynotify._ownership import CLOSED
from pynotify._reader import AHEAD_BYTES
from pynotify._subscription import Subscription
from pynotify._transaction import OpenTransaction, Transaction
from pynotify.errors import native_error
from pynotify.topics._options import OMITTED
from pynotify.topics._topic import Topic, topic_names, topic_ref

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Hashable
    from types import TracebackType
    from typing import Any, Self

    from pynotify._encoding import Payloads
    from pynotify._engine import Engine
    from pynotify._types import Gap, Notify

_pn_wait = lib.pn_wait
_NOTICE = lib.PN_NOTICE

_READ_AHEAD = 256  # messages that notifies() takes at a time
_WATCH_S = 1.0


class Connection(BaseConnection):
    """One backend: it listens, notifies and receives.  Made by `pynotify.connect`.

    Thread-safe.  A transaction belongs to the thread that began it; another thread's `notify`
    is a transaction of its own.  A connection cannot be used in a forked child
    (`ForkedConnectionError`; `pynotify.get` connects again there).  The semantics are
    PostgreSQL's.  After `close()` every method raises `InterfaceError`, after a forced
    `unlink` of the segment `SegmentUnlinked`.
    """

    def __init__(self, engine: Engine, handle: Any, database: str) -> None:
        super().__init__(engine, handle, database)
        self._lookout = Lookout(self._receiving, self._kick)
        self._thread = local()
        #: The leader while a full subscription forbids it to read.
        self._stalled: ThreadWaiter | None = None

    def _reset_in_child(self) -> None:
        super()._reset_in_child()
        self._lookout = Lookout(self._receiving, self._kick)

    _owner = staticmethod(get_ident)

    def _watch_owner(self, owner: Hashable) -> None:
        if not hasattr(self._thread, "guard"):
            self._thread.guard = _ThreadGuard(self, owner)

    # ---- sending -------------------------------------------------------------------------

    # Not called through: a notification takes about as long as four calls.
    notify = BaseConnection._notify

    def notify_many(self, channel: str, payloads: Payloads, *, dedup: bool = True) -> int:
        """Send any number of notifications on one channel, all or none.

        Outside a transaction they are one of their own.  `dedup=False` keeps duplicates among
        them.  Returns how many are left after collapsing, heard or not.  Errors as `notify`.
        """
        transaction = self._open_transaction()
        if transaction is not None:
            return transaction.notify_many(channel, payloads, dedup=dedup)
        return self._send_many(channel, payloads, dedup)

    def generation(self, name: str) -> Generation:
        """The shared counter of that name in this database; made, at 0, by who comes first.

        It is made at once, inside a transaction as well, and stays as long as the segment.  Its
        name follows the rule for channels.  Raises `InvalidChannelName`, `TooManyGenerations`.
        """
        return Generation(self, name)

    def topic(
        self,
        name: str,
        *,
        durable: bool = OMITTED,
        fsync: str = OMITTED,
        max_depth: int | None = OMITTED,
        overflow: str = OMITTED,
    ) -> Topic:
        """The topic of that name in this database; made, at once, by who comes first.

        `durable` (False): it is kept on disk, too; `fsync` ("interval", "none", "always"): when
        that is synced.  `max_depth` (None): how many unfinished messages it may have; `overflow`
        ("disk", "error", "drop-oldest", "drop-new"): what happens to more than that, or than
        the segment's `topic_memory` holds.  Who comes later may leave them out; other values are a
        `ProgrammingError`.  Raises `InvalidTopicName`, `TooManyTopics`.
        """
        given = {"durable": durable, "fsync": fsync, "max_depth": max_depth, "overflow": overflow}
        ref = topic_ref(self, name, given)
        made = self._topics_made
        found: Topic = made.get(ref) or made.setdefault(ref, Topic(self, name, ref))
        return found

    def topics(self) -> list[str]:
        """The names of the topics of this database, sorted."""
        return topic_names(self)

    def queue_usage(self) -> float:
        """How full the queue is, 0 to 1, after advancing its tail (pg_notification_queue_usage)."""
        return self._queue_usage()

    # ---- listening -----------------------------------------------------------------------

    def listen(
        self, *channels: str, wait_upstream: bool = False, timeout: float | None = 30.0
    ) -> None:
        """Listen, from the commit on.  All or none; outside a transaction committed at once.

        `wait_upstream`: return when the bridge (docs/bridge.md) listens in PostgreSQL, too.
        Raises `InvalidChannelName`, and at commit `TooManyChannels`; with `wait_upstream`
        `ActiveTransaction` inside a transaction, `OperationalError` when there is no bridge or it
        ends, `ProgrammingError` when it does not have the channel, `Timeout` after `timeout`
        seconds; after the latter three one listens here all the same.
        """
        if wait_upstream:
            self._refuse_transaction("listen(wait_upstream=True)")
        if channels:
            self._in_transaction(lambda transaction: transaction.listen(channels))
        if channels and wait_upstream:
            module = import_module("pynotify.bridge._control")
            module.await_upstream(self, channels, timeout)

    def unlisten(self, *channels: str) -> None:
        """Stop listening, from the commit on; what was not returned by then never will be.

        Channels that are not listened to are no error.
        """
        if channels:
            self._in_transaction(lambda transaction: transaction.unlisten(channels))

    def unlisten_all(self) -> None:
        """Stop listening to all channels, from the commit on (UNLISTEN *).

        Subscriptions are not touched.
        """
        self._in_transaction(OpenTransaction.unlisten_all)

    def listening_channels(self) -> frozenset[str]:
        """The channels of the committed LISTENs (pg_listening_channels).

        Those of subscriptions are not among them.
        """
        return self._listening_channels()

    def _in_transaction(self, action: Callable[[OpenTransaction], None]) -> None:
        """Do it in the thread's transaction, or else in one of its own."""
        transaction = self._open_transaction()
        if transaction is not None:
            action(transaction)
        else:
            self._on_its_own(action)

    def subscribe(
        self,
        *channels: str,
        maxlen: int | None = 1024,
        overflow: str = "drop-oldest",
        skip_self: bool = False,
    ) -> Subscription:
        """Listen for oneself alone: an object with messages of its own, from now on.

        Any number of subscriptions share the connection's backend slot.  `maxlen`: how many
        messages it keeps unread, None without a limit; beyond it `overflow` drops the oldest
        ("drop-oldest") or the newest ("drop-newest") and puts a `Gap` in their place, or reads
        nothing more, for nobody on this connection, until there is room ("block").
        `skip_self`: without what this connection itself sends.  Raises `ActiveTransaction`
        inside a transaction, `InvalidChannelName`, `TooManyChannels`.
        """
        self._refuse_transaction("subscribe")
        return Subscription(self, channels, maxlen, overflow, skip_self=skip_self)

    # ---- transactions --------------------------------------------------------------------

    def transaction(self) -> Transaction:
        """A block: `with conn.transaction() as tx`; inside another transaction a savepoint."""
        self._check_usable()
        return Transaction(self)

    def begin(self) -> None:
        """Open a transaction of the calling thread.  Raises `ActiveTransaction` inside one."""
        self._begin_explicitly()

    def commit(self) -> None:
        """Commit what `begin()` opened; afterwards nothing is open, also when this raises.

        Only a signal handler that raises (Ctrl-C) before it was committed leaves it open, as
        `in_transaction` tells: commit again, or roll back.
        Raises `QueueFull`, `TooManyChannels`, `LockTimeout`; `InFailedTransaction` when an
        error failed the transaction, which is then rolled back; `NoActiveTransaction` outside
        of one, and `ProgrammingError` inside a `with transaction()` block.
        """
        self._commit(self._explicit("commit"), stays_open=True)

    def rollback(self) -> None:
        """Undo what `begin()` opened.  Raises as `commit` when there is nothing to roll back."""
        transaction = self._explicit("rollback")
        if transaction.committing:  # this is a signal handler in the middle of its commit()
            transaction.require_open()
        self._roll_back(transaction)

    def savepoint(self, name: str) -> None:
        """Set a savepoint.  One of the same name is hidden until this one is released."""
        self._savepoint(name)

    def release(self, name: str) -> None:
        """End the savepoint and those set after it, keeping the work since.

        Raises `InvalidSavepoint`, and in a failed transaction `InFailedTransaction`.
        """
        self._release(name)

    def rollback_to(self, name: str) -> None:
        """Undo the work since the savepoint; it stays, those set after it end.

        Makes a failed transaction usable again.  Raises `InvalidSavepoint`.
        """
        self._rollback_to(name)

    # ---- receiving -----------------------------------------------------------------------

    def poll(self, max: int | None = None) -> list[Notify | Gap]:
        """Everything owed that was committed before the call, at most `max`.  Never blocks.

        Empty while the calling thread has a transaction open.
        """
        if self._transactions and self._open_transaction() is not None:
            return []
        limit = 0 if max is None else limit_of(max)
        if limit < 0:
            self._check_usable()
            return []
        return self._poll(limit)

    def poll_batch(self, max: int | None = None) -> NotifyBatch:
        """The same as `poll`, as columns: no object per message."""
        if self._open_transaction() is not None:
            return NotifyBatch.from_messages([])
        limit = 0 if max is None else limit_of(max)
        if limit < 0:
            return NotifyBatch.from_messages([])
        return self._poll_batch(limit)

    def wait(self, timeout: float | None = None) -> bool:
        """Sleep until there may be something to read, and say whether there may be.

        `timeout` in seconds: None blocks, 0 looks once.  Delivers nothing.  Other threads run
        meanwhile, and Python's signal handlers, whose exceptions (Ctrl-C) are raised here.
        Raises `ActiveTransaction` while the calling thread has a transaction open.
        """
        if self._transactions:
            self._refuse_transaction("wait")
        remaining = -1 if timeout is None else nanoseconds(timeout)
        if remaining == 0:
            return self._glance()
        deadline = time.monotonic_ns() + remaining if remaining > 0 else -1
        lookout, waiters = self._lookout, self._inboxes.main.waiters
        waiter = ThreadWaiter(lookout)
        try:
            # In one step, or what is read ahead between the two would find nobody to wake.
            with self._receiving:
                if self._backlog:
                    self._check_usable()
                    return True
                waiters.append(waiter)
                lookout.enter(waiter)
            if lookout.leader is waiter and not (self._routed or self._loose_ends):
                # The usual case, without detours.
                waiter.in_core = True
                if not waiter.woken:
                    result = _pn_wait(self._handle, remaining)
                    if (result == 1 or self._judge(result)) and not self._routed:
                        return True
                waiter.in_core = False
            found = lookout.wait(waiter, deadline, self._look)
            if self._handle is CLOSED:
                self._check_usable()
            return found
        finally:
            interruption = None
            while not waiter.left:
                try:
                    lookout.leave(waiter, waiters)
                except BaseException as error:  # Ctrl-C: nobody would lead any more
                    interruption = error
            if interruption is not None:
                raise interruption

    def _glance(self) -> bool:
        """wait(0).  Not by the core's wait(), which would take the kick meant for the leader."""
        with self._receiving:
            if self._loose_ends:
                self._recover()
            if self._routed:
                self._feed()
            if self._backlog:
                self._check_usable()
                return True
        return not self._routed and self._sleep_in_core(0)

    def _look(self, waiter: ThreadWaiter, timeout_ns: int) -> bool:
        """What the leader does.  True: there may be something for poll()."""
        inboxes = self._inboxes
        if self._loose_ends:
            with self._receiving:
                self._recover()
        if inboxes.blocking and inboxes.room() == 0 and self._stall(waiter, timeout_ns):
            timeout_ns = 0
        try:
            waiter.in_core = True
            found = not waiter.woken and self._sleep_in_core(timeout_ns)
        finally:
            waiter.in_core = False
        if not self._routed:
            return found
        if found:
            with self._receiving:
                self._feed(max_bytes=AHEAD_BYTES)  # whoever waits on comes back for the rest
        return False  # whom it was for was woken

    def _sleep_in_core(self, timeout_ns: int) -> bool:
        return self._judge(_pn_wait(self._handle, timeout_ns))

    def _judge(self, result: int) -> bool:
        """What pn_wait() returned.  True: there may be something for poll()."""
        if result < 0:
            if result != -errno.EINTR:
                raise native_error(result)
            # Python's handlers have run by now.  The sign hides whether there is a notice.
            self._log_notices()
            return False
        if result & _NOTICE:
            self._log_notices()
        return bool(result & ~_NOTICE)

    def _stall(self, waiter: ThreadWaiter, timeout_ns: int) -> bool:
        """Sleep until a full subscription lets us read on.  False: none does not.

        Not longer than the core's slow timer takes, which has its work in the meantime, too.
        """
        with self._receiving:
            if self._inboxes.room() != 0:
                return False
            waiter.called = False
            before, self._stalled = self._stalled, waiter
        try:
            waiter.sleep(_WATCH_S if timeout_ns < 0 else min(timeout_ns / 1e9, _WATCH_S))
        finally:
            self._stalled = before
        return True

    def _room_made(self) -> None:
        super()._room_made()
        stalled = self._stalled
        if stalled is not None:
            stalled.call()

    def notifies(
        self, *, timeout: float | None = None, stop_after: int | None = None
    ) -> Generator[Notify | Gap]:
        """Receive for ever, or until nothing came for `timeout` seconds (0: drain).

        `stop_after` ends it after exactly that many.  Leaving the loop loses nothing.  Raises
        `ActiveTransaction` while the calling thread has a transaction open.
        """
        self._check_usable()
        self._refuse_transaction("notifies")
        nanoseconds(timeout)
        if stop_after is not None and stop_after < 0:
            raise ValueError(f"stop_after must not be negative, is {stop_after}")
        return self._notifies(timeout, stop_after)

    def _notifies(self, timeout: float | None, stop_after: int | None) -> Generator[Notify | Gap]:
        left = -1 if stop_after is None else stop_after
        # These three are the same objects for the connection's life.
        backlog, transactions, handlers = self._backlog, self._transactions, self._handlers
        # A call made by `for`: Ctrl-C cannot come between taking a message and having it.
        taking = starmap(backlog.popleft, repeat(()))
        while left:
            try:
                # What has been read ahead already, as long as nothing is out of the ordinary.
                for message in taking:
                    if handlers:
                        try:
                            self._run_handlers((message,))
                        except BaseException:
                            self._give_back((message,))
                            raise
                    left -= 1
                    yield message
                    if transactions or not left:
                        break
            except IndexError:  # none left, or another thread was faster
                if not self._refill(timeout, _READ_AHEAD if left < 0 else min(left, _READ_AHEAD)):
                    return
            if transactions:
                self._refuse_transaction("notifies")

    def _refill(self, timeout: float | None, ahead: int) -> bool:
        """Wait for messages, and up to `ahead` may be read; False when none came in time.

        It waits first and reads then.  wait() costs little when something is there, and only a
        slot that a read has left awake may linger in it; a read in vain puts the slot to sleep,
        and every message would cost its sender a signal.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while not self._backlog:
            if self._transactions or process.pid != self._pid:
                self._refuse_transaction("notifies")
            if not self.wait(None if deadline is None else deadline - time.monotonic()):
                return False
            self._read_ahead(ahead)
        return True

    def _read_ahead(self, count: int) -> None:
        """Up to `count` messages, when nobody else waits for them."""
        try:
            with self._receiving:
                if not (self._backlog or self._routed):
                    alone = not (self._watched or self._lookout.occupied)
                    count = count if alone else 1
                    self._backlog.extend(self._reader.read(self, count, AHEAD_BYTES))
        except BaseException:
            self._loose_ends = True
            self._give_back(())
            raise

    def fileno(self) -> int:
        """A descriptor for event loops, constant: readable iff `poll` may return something.

        With subscriptions it is readable for their messages as well, and `poll` hands them out.
        """
        self._check_usable()
        self._watched = True
        descriptor = self._check(lib.pn_fileno(self._handle))
        self._post()
        return descriptor

    def _ask_others(self) -> None:
        leader = self._lookout.leader
        if leader is not None and leader.in_core:
            self._kick()

    def _kick(self) -> None:
        """Out with the leader, wherever he sleeps."""
        if process.pid == self._pid:
            lib.pn_conn_kick(self._handle)

    # ---- the connection itself -----------------------------------------------------------

    def close(self) -> None:
        """Roll back all transactions and free the backend slot.

        Threads in `wait()` are woken and raise `InterfaceError`.  Closing twice is allowed; in
        a forked child it does nothing, the connection is the parent's.
        """
        self._give_up()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


class _ThreadGuard:
    """Lives in a thread's local data, and rolls its transaction back when the thread ends."""

    __slots__ = ("_connection", "_owner")

    def __init__(self, connection: Connection, owner: Hashable) -> None:
        self._connection = weakref.ref(connection)
        self._owner = owner

    def __del__(self) -> None:
        connection = self._connection()
        if connection is not None:
            connection._owner_ended(self._owner)
