"""A connection as threads use it."""

from __future__ import annotations

import time
from importlib import import_module
from itertools import repeat, starmap
from typing import TYPE_CHECKING

from pynotify._base import BaseConnection, Parts, check_stop_after
from pynotify._batch import NotifyBatch
from pynotify._block import Block, watched
from pynotify._closing import ClosedByWith
from pynotify._generation import Generation
from pynotify._hot import Notifier
from pynotify._listeners import count_listeners, listened_channels, listened_patterns
from pynotify._process import process
from pynotify._public import public
from pynotify._receiver import poll_limit
from pynotify._registry import ThreadTransactions
from pynotify._subscription import Subscription
from pynotify._thread_receiver import ThreadReceiver
from pynotify._time import nanoseconds
from pynotify._transaction import OpenTransaction
from pynotify.topics._options import OMITTED
from pynotify.topics._rows import topic_names
from pynotify.topics._topic import Topic, topic_ref

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Mapping
    from types import TracebackType
    from typing import Self

    from typing_extensions import Buffer

    from pynotify._encoding import Payloads
    from pynotify._handle import Handle
    from pynotify._link import ThreadLink
    from pynotify._types import Gap, Notify

_READ_AHEAD = 256  # messages that notifies() takes at a time


class Connection(Notifier, ClosedByWith, BaseConnection):
    """One backend: it listens, notifies and receives.  Made by `pynotify.connect`.

    Thread-safe.  A transaction belongs to the thread that began it; another thread's `notify`
    is a transaction of its own.  A connection cannot be used in a forked child
    (`ForkedConnectionError`; `pynotify.get` connects again there).  The semantics are
    PostgreSQL's.  After `close()` every method raises `InterfaceError`, after a forced
    `unlink` of the segment `SegmentUnlinked`.
    """

    link: Parts[ThreadReceiver, ThreadTransactions]

    def __init__(self, handle: Handle) -> None:
        self._receiver = ThreadReceiver(handle)
        transactions = ThreadTransactions(handle, self._receiver)
        parts = Parts(handle, self._receiver, transactions)
        super().__init__(handle, self._receiver, transactions, parts)
        self._owner = transactions.owner

    def _sibling(self, database: str) -> Connection:
        """A connection to another database of the same segment."""
        return Connection(self._handle.sibling(database))

    # ---- sending -------------------------------------------------------------------------

    def _notify(
        self, channel: str, payload: str | Buffer = "", headers: Mapping[str, str] | None = None
    ) -> None:
        """What `notify` is where it is out of the ordinary."""
        self._sender.notify(channel, payload, headers)

    def _notify_many(
        self, channel: str, payloads: Payloads, dedup: bool, headers: Mapping[str, str] | None
    ) -> int:
        """What `notify_many` is where it is out of the ordinary."""
        transaction = self._registry.current()
        if transaction is not None:
            return transaction.notify_many(channel, payloads, dedup=dedup, headers=headers)
        return self._sender.notify_many(channel, payloads, dedup=dedup, headers=headers)

    def notify_counted(
        self,
        channel: str,
        payload: str | Buffer = "",
        *,
        headers: Mapping[str, str] | None = None,
    ) -> int:
        """`notify`, and how many connections it is for: what `PUBLISH` of Redis returns.

        Those that listened to the channel, by name or by a pattern, at its commit; this one, too,
        bridges apart.  Each of them gets it, if its process lives and goes on reading.  Several
        subscriptions of one connection count once.  Raises `ActiveTransaction` inside a
        transaction, where `Transaction.count_listeners` is for that; else as `notify`.
        """
        self._registry.refuse("notify_counted")
        return self._sender.notify_counted(channel, payload, headers)

    def generation(self, name: str) -> Generation:
        """The shared counter of that name in this database, created with value 0 on first use.

        The counter is created at once, inside a transaction as well, and stays as long as the
        segment.  Its name follows the rule for channels.  Raises `InvalidChannelName`,
        `TooManyGenerations`.
        """
        return Generation(self.link, name)

    def topic(
        self,
        name: str,
        *,
        durable: bool = OMITTED,
        fsync: str = OMITTED,
        max_depth: int | None = OMITTED,
        default_ttl: float | None = OMITTED,
        max_memory: int | None = OMITTED,
        max_disk_bytes: int | None = OMITTED,
        overflow: str = OMITTED,
    ) -> Topic:
        """The topic of that name in this database, created at once on first use.

        `durable` (False): the topic is kept on disk, too; `fsync` ("interval", "none", "always"):
        when that is synced.  `max_depth` (None): how many unfinished messages it may have;
        `overflow` ("disk", "error", "drop-oldest", "drop-new"): what happens to more than that,
        or than the segment's `topic_memory` holds.  `default_ttl` (None): seconds to live of
        messages that are published without `ttl`; `max_memory` (None): bytes of `topic_memory`
        that it may have; `max_disk_bytes` (None): bytes in `data_dir` of what has no room there,
        beyond which `TopicFull` is raised.  A later caller may leave the options out; other
        values raise `ProgrammingError`.  Raises `InvalidTopicName`, `TooManyTopics`.
        """
        given = {
            "durable": durable,
            "fsync": fsync,
            "max_depth": max_depth,
            "default_ttl": default_ttl,
            "max_memory": max_memory,
            "max_disk_bytes": max_disk_bytes,
            "overflow": overflow,
        }
        ref = topic_ref(self.link, name, given)
        return self._topic(ref, lambda: Topic(self.link, name, ref))

    def topics(self) -> list[str]:
        """The names of the topics of this database, sorted."""
        return topic_names(self.link)

    def queue_usage(self) -> float:
        """How full the queue is, 0 to 1, after advancing its tail (pg_notification_queue_usage)."""
        return self._sender.queue_usage()

    # ---- listening -----------------------------------------------------------------------

    def listen(
        self, *channels: str, wait_upstream: bool = False, timeout: float | None = 30.0
    ) -> None:
        """Listen to the channels from the commit on, which outside a transaction is at once.

        Either all of them are listened to or none.

        `wait_upstream`: return when the bridge (docs/bridge.md) listens in PostgreSQL, too.
        Raises `InvalidChannelName`, and at commit `TooManyChannels`; with `wait_upstream`
        `ActiveTransaction` inside a transaction, `OperationalError` when there is no bridge or it
        ends, `ProgrammingError` when it does not have the channel, `Timeout` after `timeout`
        seconds; after the latter three the connection listens here all the same.
        """
        if wait_upstream:
            self._registry.refuse("listen(wait_upstream=True)")
            nanoseconds(timeout)
        if channels:
            self._in_transaction(lambda transaction: transaction.listen(channels))
        if channels and wait_upstream:
            module = import_module("pynotify._upstream")  # it needs json
            module.await_upstream(self._handle, self._sibling, channels, timeout)

    def unlisten(self, *channels: str) -> None:
        """Stop listening, from the commit on; what was not returned by then never will be.

        Channels that are not listened to are no error.
        """
        if channels:
            self._in_transaction(lambda transaction: transaction.unlisten(channels))

    def listen_pattern(self, *patterns: str) -> None:
        """Listen to all channels that match one of the patterns, from the commit on.

        A pattern is as in Redis: `*` stands for any characters, `?` for one, `[abc]` or `[a-z]` for
        one of a set, `[^abc]` for one of all others; a backslash takes away the meaning of the
        character behind it.  Everything else is as with `listen`, and either all patterns are
        listened to or none.  A notification is received once, also when several patterns match:
        `Notify.pattern` is the one that was listened to first, or None when its channel is
        listened to itself.  Raises `InvalidChannelName`, and at commit `TooManyChannels`: a pattern
        counts as a channel.
        """
        if patterns:
            self._in_transaction(lambda transaction: transaction.listen_pattern(patterns))

    def unlisten_pattern(self, *patterns: str) -> None:
        """Stop listening to the patterns, from the commit on, as `unlisten` does of channels.

        What another pattern matches, or a LISTEN is for, is received all the same.
        """
        if patterns:
            self._in_transaction(lambda transaction: transaction.unlisten_pattern(patterns))

    def unlisten_all(self) -> None:
        """Stop listening to all channels and patterns, from the commit on (UNLISTEN *).

        Subscriptions are not touched.
        """
        self._in_transaction(OpenTransaction.unlisten_all)

    def listening_channels(self) -> frozenset[str]:
        """The channels of the committed LISTENs (pg_listening_channels).

        Those of subscriptions are not among them.
        """
        return self._receiver.listening_channels()

    def listening_patterns(self) -> tuple[str, ...]:
        """The patterns of the committed LISTENs, the one that was listened to first in front."""
        return self._receiver.listening_patterns()

    def listeners(self, channel: str) -> int:
        """How many connections listen to the channel itself now, bridges apart.

        A process that was killed counts until its slot is free, which is soon.  Raises
        `InvalidChannelName`, `LockTimeout`.
        """
        return count_listeners(self._handle, channel)

    def channels(self, prefix: str = "") -> dict[str, int]:
        """The channels that are listened to in this database, and by how many connections.

        Only those that begin with `prefix`; the slots of dead processes are freed first.  It is no
        snapshot: the writer lock is given back in between.  Raises `LockTimeout`.
        """
        return listened_channels(self._handle, prefix)

    def patterns(self, prefix: str = "") -> dict[str, int]:
        """The patterns that are listened to in this database, and by how many connections.

        Only those that begin with `prefix`; otherwise as `channels`.
        """
        return listened_patterns(self._handle, prefix)

    def _in_transaction(self, action: Callable[[OpenTransaction], None]) -> None:
        """Run `action` in the thread's transaction, or else in one of its own."""
        transaction = self._registry.current()
        if transaction is not None:
            action(transaction)
        else:
            self._registry.on_its_own(action)

    def subscribe(
        self,
        *channels: str,
        maxlen: int | None = 1024,
        overflow: str = "drop-oldest",
        skip_self: bool = False,
        patterns: Iterable[str] = (),
    ) -> Subscription:
        """Listen with a `Subscription`: an object with messages of its own, from now on.

        Any number of subscriptions share the connection's backend slot.  `maxlen`: how many
        messages it keeps unread, None without a limit; beyond that `overflow` drops the oldest
        ("drop-oldest") or the newest ("drop-newest") and puts a `Gap` in their place, or lets
        this connection read nothing more until there is room ("block").
        `patterns`: patterns as of `listen_pattern`, beside the channels or alone.
        `skip_self`: leave out what this connection itself sends.  Raises `ActiveTransaction`
        inside a transaction, `InvalidChannelName`, `TooManyChannels`.  Refused in a
        signal handler that interrupted subscribing.
        """
        self._registry.refuse("subscribe")
        return Subscription(
            self.link, channels, maxlen, overflow, skip_self=skip_self, patterns=patterns
        )

    # ---- transactions --------------------------------------------------------------------

    def transaction(self) -> Transaction:
        """A transaction block: `with conn.transaction() as tx`; inside another one a savepoint.

        Leaving it commits, or undoes its work when an exception leaves it.  Raises
        `InterfaceError` when the connection is closed.
        """
        self._handle.check_usable()
        return Transaction(self, self.link)

    def begin(self) -> None:
        """Open a transaction of the calling thread.  Raises `ActiveTransaction` inside one."""
        self._registry.begin_explicitly()

    def commit(self) -> None:
        """Commit what `begin()` opened; afterwards nothing is open, also when this raises.

        Only a signal handler that raises (Ctrl-C) before it was committed leaves it open, as
        `in_transaction` tells: commit again, or roll back.
        Raises `QueueFull`, `TooManyChannels`, `LockTimeout`; `InFailedTransaction` when an
        error failed the transaction, which is then rolled back; `NoActiveTransaction` outside
        of one, and `ProgrammingError` inside a `with transaction()` block.
        """
        self._registry.commit(self._registry.explicit("commit"), stays_open=True)

    def rollback(self) -> None:
        """Undo what `begin()` opened.  Raises as `commit` when there is nothing to roll back."""
        transaction = self._registry.explicit("rollback")
        if transaction.committing:  # this is a signal handler in the middle of its commit()
            transaction.require_open()
        self._registry.roll_back(transaction)

    def savepoint(self, name: str) -> None:
        """Set a savepoint.  One of the same name is hidden until this one is released."""
        self._registry.savepoint(name)

    def release(self, name: str) -> None:
        """End the savepoint and those set after it, keeping the work since.

        Raises `InvalidSavepoint`, and in a failed transaction `InFailedTransaction`.
        """
        self._registry.release(name)

    def rollback_to(self, name: str) -> None:
        """Undo the work since the savepoint; it stays, those set after it end.

        Makes a failed transaction usable again.  Raises `InvalidSavepoint`.
        """
        self._registry.rollback_to(name)

    # ---- receiving -----------------------------------------------------------------------

    def poll(self, max: int | None = None) -> list[Notify | Gap]:
        """Everything owed that was committed before the call, at most `max`.  Never blocks.

        Empty while the calling thread has a transaction open.
        """
        if self._transactions and self._registry.current() is not None:
            return []
        # As Receiver.poll(), one frame less.
        messages: list[Notify | Gap] = []
        try:
            if not self._receiver.take(messages, max):
                self._receiver.take_otherwise(messages, max)
        except BaseException:
            self._receiver.interrupted = True
            self._receiver.give_back(messages)
            raise
        return messages

    def poll_batch(self, max: int | None = None) -> NotifyBatch:
        """The same as `poll`, as columns: no object per message."""
        if self._registry.current() is not None:
            return NotifyBatch.from_messages([])
        limit = 0 if max is None else poll_limit(max)
        if limit < 0:
            return NotifyBatch.from_messages([])
        return self._receiver.poll_batch(limit)

    def wait(self, timeout: float | None = None) -> bool:
        """Sleep until there may be something to read, and say whether there may be.

        `timeout` in seconds: None blocks, 0 looks once.  Delivers nothing.  While it sleeps, other
        threads run, and Python's signal handlers, whose exceptions (Ctrl-C) are raised here.
        Raises `ActiveTransaction` while the calling thread has a transaction open.
        """
        if self._transactions:
            self._registry.refuse("wait")
        return self._receiver.wait(-1 if timeout is None else nanoseconds(timeout))

    def notifies(
        self, *, timeout: float | None = None, stop_after: int | None = None
    ) -> Generator[Notify | Gap]:
        """Receive for ever, or until nothing came for `timeout` seconds (0: drain).

        `stop_after` ends the loop after exactly that many messages.  Leaving the loop loses
        nothing.  Raises `ActiveTransaction` while the calling thread has a transaction open.
        """
        self._handle.check_usable()
        self._registry.refuse("notifies")
        nanoseconds(timeout)
        check_stop_after(stop_after)
        return self._notifies(timeout, stop_after)

    def _notifies(self, timeout: float | None, stop_after: int | None) -> Generator[Notify | Gap]:
        left = -1 if stop_after is None else stop_after
        backlog, transactions, handlers = self._backlog, self._transactions, self._handlers
        # A call made by `for`: Ctrl-C cannot come between taking a message and having it.
        taking = starmap(backlog.popleft, repeat(()))
        while left:
            try:
                # What has been read ahead already, as long as nothing is out of the ordinary.
                for message in taking:
                    if handlers:
                        try:
                            self._receiver.run_handlers([message])
                        except BaseException:
                            self._receiver.give_back((message,))
                            raise
                    left -= 1
                    yield message
                    if transactions or not left:
                        break
            except IndexError:  # none left, or another thread was faster
                if not self._refill(timeout, _READ_AHEAD if left < 0 else min(left, _READ_AHEAD)):
                    return
            if transactions:
                self._registry.refuse("notifies")

    def _refill(self, timeout: float | None, ahead: int) -> bool:
        """Wait for messages, and up to `ahead` may be read; False when none came in time.

        It waits first and reads then.  wait() costs little when something is there, and only a
        slot that a read has left awake may linger in it; a read in vain puts the slot to sleep,
        and every message would cost its sender a signal.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while not self._backlog:
            if self._transactions or process.pid != self._handle.pid:
                self._registry.refuse("notifies")
            left = -1 if deadline is None else nanoseconds(deadline - time.monotonic())
            if not self._receiver.wait(left, ahead):
                return False
            if not self._backlog:
                self._receiver.read_ahead(ahead)
        return True

    def fileno(self) -> int:
        """A descriptor for event loops, constant: readable iff `poll` may return something.

        With subscriptions it is readable for their messages as well, and `poll` hands them out.
        """
        return self._receiver.fileno()

    # ---- the connection itself -----------------------------------------------------------

    def close(self) -> None:
        """Roll back all transactions and free the backend slot.

        Threads in `wait()` are woken and raise `InterfaceError`.  Closing twice is allowed; in
        a forked child it does nothing, since the connection is the parent's.
        """
        self._give_up()


class Transaction(Block):
    """A transaction block, made by `Connection.transaction`; nested, a savepoint.

    Leaving it normally commits (or releases the savepoint), leaving it by an exception undoes
    its work.  A block can be used once, by one thread.
    """

    def __init__(self, connection: Connection, link: ThreadLink) -> None:
        super().__init__(link)
        self._connection = connection

    @property
    def connection(self) -> Connection:
        """The connection whose transaction this is."""
        return self._connection

    def prepare(self) -> None:
        """Reserve queue room and table entries for the worst case.

        Afterwards only commit and rollback are left, and the commit fails with nothing but
        `SegmentCorrupt` or `SegmentUnlinked` (`SyncFailed`: it has been committed).
        Allowed on the outermost block only, while no other is open inside it
        (`ProgrammingError`).  A failing `prepare()` (`QueueFull`,
        `TooManyChannels`) fails the transaction.
        """
        self._to_be_prepared().prepare()

    def __enter__(self) -> Self:
        self._enter()
        return self

    @watched
    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        if exc is not None:
            return self._leave_by(exc)
        transaction = self._leave_normally()
        if transaction is not None:
            self._transactions.commit(transaction)
            self._statement = None
        return False


public(Connection, Transaction)
