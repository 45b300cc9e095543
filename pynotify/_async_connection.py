"""A connection as asyncio uses it: the same as for threads, with other waiting.

How tasks wait for messages is in `_task_receiver`, how they wait for the writer lock, for room and
for the disk in `_off_loop`.
"""

from __future__ import annotations

import asyncio
from functools import partial
from importlib import import_module
from itertools import repeat, starmap
from threading import get_ident
from typing import TYPE_CHECKING

from pynotify._async_subscription import AsyncSubscription, Listeners
from pynotify._base import BaseConnection, Parts, check_stop_after, require_callable
from pynotify._batch import NotifyBatch
from pynotify._block import Block
from pynotify._closing import ClosedByAsyncWith
from pynotify._encoding import kept_headers, kept_payload, kept_payloads
from pynotify._ffi import lib
from pynotify._generation import AsyncGeneration
from pynotify._handle import Handle, LatencyLog
from pynotify._listeners import count_listeners, listened_channels, listened_patterns
from pynotify._off_loop import BackgroundTasks, OffLoop, end_of, in_thread
from pynotify._opening import Opening
from pynotify._public import public
from pynotify._receiver import poll_limit
from pynotify._segments import map_segment, repeat_while_unlinked
from pynotify._task_receiver import READ_AHEAD, TaskReceiver
from pynotify._task_registry import TaskTransactions
from pynotify._time import nanoseconds
from pynotify._transaction import OpenTransaction
from pynotify.errors import WouldWait
from pynotify.topics._options import OMITTED
from pynotify.topics._rows import topic_names
from pynotify.topics._topic import AsyncTopic, topic_ref

if TYPE_CHECKING:
    import os
    from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
    from types import TracebackType
    from typing import Self, Unpack

    from typing_extensions import Buffer

    from pynotify._encoding import Payloads
    from pynotify._link import TaskLink
    from pynotify._open_options import OpenOptions
    from pynotify._types import Gap, Notify

    Listener = Callable[["AsyncConnection", int, str, str], object]


class TaskParts(Parts[TaskReceiver, TaskTransactions]):
    """What the children of an `AsyncConnection` see of it; a `TaskLink`."""

    __slots__ = ("off_loop",)

    def __init__(self, handle: Handle) -> None:
        self.off_loop = OffLoop(handle)
        receiver = TaskReceiver(handle, self.off_loop)
        super().__init__(handle, receiver, TaskTransactions(handle, receiver, self.off_loop))


class AsyncConnection(ClosedByAsyncWith, BaseConnection):
    """One backend, for the tasks of one event loop.  Made by `AsyncConnection.connect`.

    It mirrors `Connection`; what is said there holds here, "thread" read as "task".  Methods
    that may have to wait are coroutines.  A cancelled one has lost nothing: a message that was
    on its way to it is returned by the next call.  A call that is cancelled while another process
    holds the writer lock has not happened, with one exception: the `commit` of a prepared
    transaction goes on.  One that waits for room (`on_full="block"`) may still happen.
    """

    link: TaskParts

    def __init__(self, handle: Handle) -> None:
        parts = TaskParts(handle)
        super().__init__(handle, parts.receiver, parts.transactions, parts)
        self._registry: TaskTransactions = parts.transactions
        self._receiver = parts.receiver
        self._off_loop = parts.off_loop
        self._loop = parts.off_loop.loop
        self._thread, self._is_running = parts.off_loop.thread, parts.off_loop.is_running

    @classmethod
    def connect(
        cls,
        name: str = "default",
        *,
        database: str = "default",
        latency_log: str | os.PathLike[str] | None = None,
        wakeup: str | int | None = None,
        latency_log_limit: int | None = None,
        application_name: str = "",
        **options: Unpack[OpenOptions],
    ) -> Opening[Self]:
        """Open the segment `name`, creating it if need be, and take a backend slot in it.

        To be awaited, or entered by `async with`, which closes it at the end.  The connection
        belongs to the running event loop.  `options` and errors are those of `pynotify.open`, the
        other arguments those of `Engine.connect`.
        """

        log = LatencyLog.of(latency_log, latency_log_limit)

        def claim() -> Handle:
            with map_segment(name, create=True, options=options) as mapping:
                handle = Handle.claim(mapping.usable, name, database, log, wakeup)
                if application_name:
                    handle.set_application_name(application_name)
                return handle

        return Opening(cls._connect_by(partial(repeat_while_unlinked, claim)))

    @classmethod
    async def _connect_by(cls, claim: Callable[[], Handle]) -> Self:
        """A connection of the handle that `claim`, called in a thread, returns."""
        claiming = in_thread(lambda: [claim()])
        try:
            claimed = await end_of(claiming)
        except asyncio.CancelledError:
            claiming.add_done_callback(_give_back)
            raise
        # Taken out: the thread may still have the list.
        return cls(claimed.pop())

    async def _sibling(self, database: str) -> AsyncConnection:
        """A connection to another database of the same segment."""
        return await AsyncConnection._connect_by(partial(self._handle.sibling, database))

    # ---- sending -------------------------------------------------------------------------

    async def notify(
        self,
        channel: str,
        payload: str | Buffer = "",
        *,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Send a notification; outside a transaction it is committed at once.

        `channel`: 1 to 63 bytes of UTF-8 without NUL, else `InvalidChannelName`.  `payload`:
        str (sent as UTF-8) or bytes-like, at most 7999 bytes, else `PayloadTooLong`; both
        limits are options of the segment.  `headers`: str to str, which go along beside the
        payload (`Notify.headers`).  Raises `QueueFull`, at commit inside a transaction.
        """
        if get_ident() != self._thread or not self._is_running():
            self._off_loop.check_loop()
        before = lib.pn_set_never_wait(0)  # see OffLoop.nowait()
        try:
            lib.pn_set_never_wait(1)
            self._sender.notify(channel, payload, headers)
            return
        except WouldWait:  # not in a transaction
            pass
        finally:
            lib.pn_set_never_wait(before)
        kept = kept_payload(payload), kept_headers(headers)
        await self._off_loop.retry(partial(self._sender.notify, channel, *kept))

    async def notify_counted(
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
        transaction, where `AsyncTransaction.count_listeners` is for that; else as `notify`.
        """
        self._registry.refuse("notify_counted")
        kept = kept_payload(payload), kept_headers(headers)
        return await self._off_loop.retry(partial(self._sender.notify_counted, channel, *kept))

    def notify_nowait(
        self,
        channel: str,
        payload: str | Buffer = "",
        *,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Send a notification at once or not at all, from a coroutine or a callback of the loop.

        Arguments and errors are those of `notify`.  Raises `LockTimeout` when another process
        holds the writer lock, and `QueueFull` also where `notify` would wait for room.
        """
        try:
            self._off_loop.nowait(lambda: self._sender.notify(channel, payload, headers))
        except WouldWait as would_wait:
            raise would_wait.error from None

    async def notify_many(
        self,
        channel: str,
        payloads: Payloads,
        *,
        dedup: bool = True,
        headers: Mapping[str, str] | None = None,
    ) -> int:
        """Send any number of notifications on one channel, all or none.

        Outside a transaction they are one of their own.  `dedup=False` keeps duplicates among
        them; each has the `headers`.  Returns how many are left after collapsing, heard or not.
        Errors as `notify`.
        """
        transaction = self._registry.current()
        if transaction is not None:
            return transaction.notify_many(channel, payloads, dedup=dedup, headers=headers)
        payloads = kept_payloads(payloads)  # the call may be repeated
        headers = kept_headers(headers)
        return await self._off_loop.retry(
            lambda: self._sender.notify_many(channel, payloads, dedup=dedup, headers=headers)
        )

    async def queue_usage(self) -> float:
        """How full the queue is, 0 to 1, after advancing its tail (pg_notification_queue_usage)."""
        return await self._off_loop.retry(self._sender.queue_usage)

    # ---- listening -----------------------------------------------------------------------

    async def listen(
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
            await self._in_transaction(lambda transaction: transaction.listen(channels))
        if channels and wait_upstream:
            module = import_module("pynotify._async_upstream")  # it needs json
            await module.await_upstream(self.link, self._sibling, channels, timeout)

    async def unlisten(self, *channels: str) -> None:
        """Stop listening, from the commit on; what was not returned by then never will be.

        Channels that are not listened to are no error.
        """
        if channels:
            await self._in_transaction(lambda transaction: transaction.unlisten(channels))

    async def listen_pattern(self, *patterns: str) -> None:
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
            await self._in_transaction(lambda transaction: transaction.listen_pattern(patterns))

    async def unlisten_pattern(self, *patterns: str) -> None:
        """Stop listening to the patterns, from the commit on, as `unlisten` does of channels.

        What another pattern matches, or a LISTEN is for, is received all the same.
        """
        if patterns:
            await self._in_transaction(lambda transaction: transaction.unlisten_pattern(patterns))

    async def unlisten_all(self) -> None:
        """Stop listening to all channels and patterns, from the commit on (UNLISTEN *).

        Subscriptions are not touched.
        """
        await self._in_transaction(OpenTransaction.unlisten_all)

    async def listening_channels(self) -> frozenset[str]:
        """The channels of the committed LISTENs (pg_listening_channels).

        Those of subscriptions are not among them.
        """
        self._off_loop.check_loop()
        return self._receiver.listening_channels()

    async def listening_patterns(self) -> tuple[str, ...]:
        """The patterns of the committed LISTENs, the one that was listened to first in front."""
        self._off_loop.check_loop()
        return self._receiver.listening_patterns()

    async def listeners(self, channel: str) -> int:
        """How many connections listen to the channel itself now, bridges apart.

        A process that was killed counts until its slot is free, which is soon.  Raises
        `InvalidChannelName`, `LockTimeout`.
        """
        return await self._off_loop.retry(lambda: count_listeners(self._handle, channel))

    async def channels(self, prefix: str = "") -> dict[str, int]:
        """The channels that are listened to in this database, and by how many connections.

        Only those that begin with `prefix`; the slots of dead processes are freed first.  It is no
        snapshot: the writer lock is given back in between.  Raises `LockTimeout`.
        """
        return await self._off_loop.retry(lambda: listened_channels(self._handle, prefix))

    async def patterns(self, prefix: str = "") -> dict[str, int]:
        """The patterns that are listened to in this database, and by how many connections.

        Only those that begin with `prefix`; otherwise as `channels`.
        """
        return await self._off_loop.retry(lambda: listened_patterns(self._handle, prefix))

    async def _in_transaction(self, action: Callable[[OpenTransaction], None]) -> None:
        transaction = self._registry.current()
        if transaction is not None:
            action(transaction)
        else:
            await self._off_loop.retry(lambda: self._registry.on_its_own(action))

    def subscribe(
        self,
        *channels: str,
        maxlen: int | None = 1024,
        overflow: str = "drop-oldest",
        skip_self: bool = False,
        patterns: Iterable[str] = (),
    ) -> AsyncSubscription:
        """Make an `AsyncSubscription`, which listens from `async with` (or `await`) on.

        Any number of subscriptions share the connection's backend slot.  `maxlen`: how many
        messages it keeps unread, None without a limit; beyond that `overflow` drops the oldest
        ("drop-oldest") or the newest ("drop-newest") and puts a `Gap` in their place, or lets
        this connection read nothing more until there is room ("block").
        `patterns`: patterns as of `listen_pattern`, beside the channels or alone.
        `skip_self`: leave out what this connection itself sends.  Opening it raises
        `ActiveTransaction` inside a transaction, `InvalidChannelName`, `TooManyChannels`.
        """
        return AsyncSubscription(
            self.link, channels, maxlen, overflow, skip_self=skip_self, patterns=patterns
        )

    async def add_listener(self, channel: str, callback: Listener) -> None:
        """Call `callback(connection, pid, channel, payload)` for every message, as asyncpg does.

        `callback` may be a coroutine function.  The loop calls it, and no task needs to wait; the
        messages do not appear in `notifies()`.  An exception goes to the loop's exception
        handler.  Adding one twice is the same as once.

        Otherwise than in asyncpg it raises `ActiveTransaction` inside a transaction, as
        `remove_listener` does, and a transaction that is open does not hold back callbacks.
        """
        require_callable(callback)
        self._registry.refuse("add_listener")
        made = self._receiver.listeners

        def add() -> None:
            listeners = made.get(channel)
            if listeners is None:
                listeners = Listeners(self, self._loop, channel)
                self._receiver.subscribe(listeners, [channel])
                made[channel] = listeners
            if callback not in listeners.callbacks:
                listeners.callbacks.append(callback)

        await self._off_loop.retry(add)
        self._receiver.start_reading()

    async def remove_listener(self, channel: str, callback: Listener) -> None:
        """Undo `add_listener`: the callback is not called any more.

        One that is not registered is no error.  Nor is it one, as in asyncpg, that the connection
        is closed.
        """
        if self._handle.closed:
            return
        self._registry.refuse("remove_listener")
        made = self._receiver.listeners
        listeners = made.get(channel)
        if listeners is None or callback not in listeners.callbacks:
            return
        listeners.callbacks.remove(callback)
        if not listeners.callbacks:
            del made[channel]
            await self._receiver.drop(listeners)

    def generation(self, name: str) -> AsyncGeneration:
        """The shared counter of that name in this database, created with value 0 on first use.

        The counter is created at once, inside a transaction as well, and stays as long as the
        segment; this takes the writer lock.  Its name follows the rule for channels.  Raises
        `InvalidChannelName`, `TooManyGenerations`.
        """
        return AsyncGeneration(self.link, name)

    # ---- topics --------------------------------------------------------------------------

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
    ) -> AsyncTopic:
        """The topic of that name in this database, created at once on first use.

        This takes the writer lock.
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
        return self._topic(ref, lambda: AsyncTopic(self.link, name, ref))

    async def topics(self) -> list[str]:
        """The names of the topics of this database, sorted."""
        return await self._off_loop.retry(partial(topic_names, self.link))

    # ---- transactions --------------------------------------------------------------------

    def transaction(self) -> AsyncTransaction:
        """A transaction block: `async with conn.transaction() as tx`; inside another a savepoint.

        Leaving it commits, or undoes its work when an exception leaves it.  Raises
        `InterfaceError` when the connection is closed.
        """
        self._handle.check_usable()
        return AsyncTransaction(self, self.link)

    async def begin(self) -> None:
        """Open a transaction of the calling task.  Raises `ActiveTransaction` inside one."""
        self._registry.begin_explicitly()

    async def commit(self) -> None:
        """Commit what `begin()` opened; afterwards nothing is open, also when this raises.

        Cancelled while it waits for the lock it has rolled back, but a prepared transaction is
        committed all the same.
        Raises `QueueFull`, `TooManyChannels`, `LockTimeout`; `InFailedTransaction` when an
        error failed the transaction, which is then rolled back; `NoActiveTransaction` outside
        of one, and `ProgrammingError` inside an `async with transaction()` block.
        """
        await self._registry.commit_and_wait(self._registry.explicit("commit"))

    async def rollback(self) -> None:
        """Undo what `begin()` opened.  Raises as `commit` when there is nothing to roll back."""
        self._registry.roll_back(self._registry.explicit("rollback"))

    async def savepoint(self, name: str) -> None:
        """Set a savepoint.  One of the same name is hidden until this one is released."""
        self._registry.savepoint(name)

    async def release(self, name: str) -> None:
        """End the savepoint and those set after it, keeping the work since.

        Raises `InvalidSavepoint`, and in a failed transaction `InFailedTransaction`.
        """
        self._registry.release(name)

    async def rollback_to(self, name: str) -> None:
        """Undo the work since the savepoint; it stays, those set after it end.

        Makes a failed transaction usable again.  Raises `InvalidSavepoint`.
        """
        self._registry.rollback_to(name)

    # ---- receiving -----------------------------------------------------------------------

    async def poll(self, max: int | None = None) -> list[Notify | Gap]:
        """Everything owed that was committed before the call, at most `max`.  Never waits.

        Empty while the calling task has a transaction open.
        """
        if self._registry.current() is not None:
            return []
        return self._receiver.poll(max)

    async def poll_batch(self, max: int | None = None) -> NotifyBatch:
        """The same as `poll`, as columns: no object per message."""
        limit = poll_limit(max)
        if self._registry.current() is not None or limit < 0:
            return NotifyBatch.from_messages([])
        return self._receiver.poll_batch(limit)

    async def wait(self, timeout: float | None = None) -> bool:
        """Wait until there may be something to read, and say whether there may be.

        `timeout` in seconds: None waits without a limit, 0 looks once.  Delivers nothing.
        Raises `ActiveTransaction` while the calling task has a transaction open.
        """
        self._registry.refuse("wait")
        nanoseconds(timeout)
        return await self._receiver.wait(timeout)

    def notifies(
        self, *, timeout: float | None = None, stop_after: int | None = None
    ) -> AsyncGenerator[Notify | Gap]:
        """Receive for ever, or until nothing came for `timeout` seconds (0: drain).

        `async for n in conn.notifies()`; `stop_after` ends the loop after exactly that many
        messages.  Leaving the loop loses nothing.  Other tasks get their turn after at most 256
        messages.  Raises `ActiveTransaction` while the calling task has a transaction open.
        """
        self._handle.check_usable()
        self._registry.refuse("notifies")
        nanoseconds(timeout)
        check_stop_after(stop_after)
        return self._notifies(timeout, stop_after)

    async def _notifies(
        self, timeout: float | None, stop_after: int | None
    ) -> AsyncGenerator[Notify | Gap]:
        receiver = self._receiver
        left = -1 if stop_after is None else stop_after
        deadline: float | None = None
        in_a_row = 0
        # A call made by `for`: Ctrl-C cannot come between taking a message and having it.
        taking = starmap(self._backlog.popleft, repeat(()))
        while left:
            if in_a_row == READ_AHEAD:
                in_a_row = 0
                await asyncio.sleep(0)
            if self._transactions or not self._backlog:
                self._registry.refuse("notifies")
            if not self._backlog:
                if timeout is not None and deadline is None:
                    deadline = self._loop.time() + timeout
                remaining = None if deadline is None else deadline - self._loop.time()
                if not await receiver.wait(remaining):
                    return
                continue
            try:
                for message in taking:  # noqa: B007
                    break
            except IndexError:  # the commit of an UNLISTEN goes through it in a thread
                continue
            try:
                if receiver.descriptor is not None:
                    receiver.post()
                if self._handlers:
                    receiver.run_handlers([message])
            except BaseException:
                receiver.give_back((message,))
                raise
            left -= 1
            in_a_row += 1
            deadline = None
            yield message

    def fileno(self) -> int:
        """A descriptor for other loops than its own: readable iff `poll` may return something."""
        return self._receiver.fileno()

    # ---- the connection itself -----------------------------------------------------------

    async def close(self) -> None:
        """Roll back all transactions and free the backend slot.

        Tasks that wait are woken and raise `InterfaceError`.  A cancelled `close` closes all the
        same.  Closing twice is allowed; in a forked child it does nothing, since the connection is
        the parent's.  When its loop is closed already, any other will do.
        """
        if self._handle.is_foreign:
            return
        background = self._off_loop.background
        if self._loop.is_closed():
            background.forget()
        elif not self._handle.closed:
            self._off_loop.check_loop()
        if not self._handle.closed:
            self._receiver.stop_reading()
            self._registry.roll_back_all()
            # The last reference goes in a thread: freeing the slot takes the writer lock.
            last = [self._give_up()]
            self._receiver.close()
            self._receiver.listeners.clear()
            background.run_in_thread(last.clear)
        await background.are_done()


class AsyncTransaction(Block):
    """A transaction block of a task, for `async with`; made by `AsyncConnection.transaction`.

    Nested, it is a savepoint.  Leaving it normally commits (or releases the savepoint), leaving it
    by an exception undoes its work.  A block can be used once, by one task.
    """

    _transactions: TaskTransactions

    def __init__(self, connection: AsyncConnection, link: TaskLink) -> None:
        super().__init__(link)
        self._connection = connection

    @property
    def connection(self) -> AsyncConnection:
        """The connection whose transaction this is."""
        return self._connection

    async def prepare(self) -> None:
        """Reserve queue room and table entries for the worst case.

        Afterwards only commit and rollback are left, and the commit fails with nothing but
        `SegmentCorrupt` or `SegmentUnlinked` (`SyncFailed`: it has been committed).
        Allowed on the outermost block only, while no other is open inside it
        (`ProgrammingError`).  A failing or cancelled `prepare()` (`QueueFull`,
        `TooManyChannels`) fails the transaction.
        """
        await self._transactions.prepare_and_wait(self._to_be_prepared())

    async def __aenter__(self) -> Self:
        self._enter()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        if exc is None:
            transaction = self._leave_normally()
            if transaction is not None:
                await self._transactions.commit_and_wait(transaction)
            return False
        swallowed = self._leave_by(exc)
        if self._outermost and self._open is not None:
            await self._transactions.rolled_back(self._open)
        return swallowed


def _give_back(claiming: asyncio.Future[list[Handle]]) -> None:
    """Drop the handle of a cancelled connect(), in a thread: it takes the writer lock."""
    if claiming.cancelled() or claiming.exception() is not None:
        return
    BackgroundTasks().run_in_thread(claiming.result().clear)


public(AsyncConnection, AsyncTransaction)
