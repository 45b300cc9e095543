"""A connection as asyncio uses it: the same as for threads, with other waiting.

* Waiting for messages: a future for each waiter, and a reader of the event loop on the
  connection's descriptor, which takes what there is, puts it where it belongs, and resumes whom
  it woke.  No thread, no set_wakeup_fd(); so it works in any loop and any thread.
* Waiting for the writer lock: a call is tried with pn_set_never_wait().  If it would have to
  wait, a thread waits until the lock is free, one for all tasks, and then each tries again in
  the loop.  So a cancelled call has done nothing, and no state of ours is touched by threads.
* Waiting for room in a full queue: the call itself is made in a thread, one at a time, since
  only the core can wait for that.
* Waiting for the disk: a call has happened when it comes back, and what it owes to the disk
  (pn_sync_owed()) is synced in a thread.  It holds no lock, and several wait for it together.
"""

from __future__ import annotations

import asyncio
import weakref
from asyncio import _get_running_loop
from functools import partial
from importlib import import_module
from threading import get_ident
from typing import TYPE_CHECKING, Any, TypeVar

from pynotify._async_subscription import AsyncSubscription, Listeners
from pynotify._async_waiter import TaskWaiter, Turn
from pynotify._async_waiting import DiskWait, Errands, LockWait, RoomWait, end_of, in_thread
from pynotify._base import (
    BaseConnection,
    limit_of,
    nanoseconds,
    process,
    require_callable,
)
from pynotify._batch import NotifyBatch
from pynotify._descriptor import Descriptor
from pynotify._engine import open as open_segment
from pynotify._engine import repeat_while_unlinked
from pynotify._ffi import ffi, lib
from pynotify._generation import AsyncGeneration
from pynotify._ownership import CLOSED
from pynotify._reader import AHEAD_BYTES
from pynotify._transaction import FAILED, AsyncTransaction, OpenTransaction
from pynotify.errors import InFailedTransaction, InterfaceError, LockTimeout, WouldWait
from pynotify.topics._options import OMITTED
from pynotify.topics._topic import AsyncTopic, topic_names, topic_ref

if TYPE_CHECKING:
    import os
    from collections.abc import AsyncGenerator, Callable, Hashable
    from types import TracebackType
    from typing import Self

    from typing_extensions import Buffer

    from pynotify._async_subscription import Listener
    from pynotify._encoding import Payloads
    from pynotify._engine import Engine
    from pynotify._inbox import Inbox, MainInbox
    from pynotify._types import Gap, Notify

_T = TypeVar("_T")

_READ_AHEAD = 256  # messages that are read at a time, so that other tasks get their turn


class AsyncConnection(BaseConnection):
    """One backend, for the tasks of one event loop.  Made by `AsyncConnection.connect`.

    It mirrors `Connection`; what it says there holds here, "thread" read as "task".  Methods
    that may have to wait are coroutines.  A cancelled one has lost nothing: a message that was
    on its way to it is returned to the next who asks.  A call that is cancelled while somebody
    holds the writer lock has not happened, with one exception: the `commit` of a prepared
    transaction goes on.  One that waits for room (`on_full="block"`) may still happen.
    """

    def __init__(self, engine: Engine, handle: Any, database: str) -> None:
        super().__init__(engine, handle, database)
        self._loop = asyncio.get_running_loop()
        self._thread, self._is_running = get_ident(), self._loop.is_running
        self._core_fd = -1
        self._reading = False
        self._turn = Turn(self._loop)
        self._descriptor: Descriptor | None = None
        self._listeners: dict[str, Listeners] = {}
        self._errands = Errands()
        self._disk_wait = DiskWait(self._errands)
        self._lock_wait = LockWait()
        self._room_wait = RoomWait()
        options = ffi.new("pn_options *")
        lib.pn_engine_options(self._engine_handle, options)
        self._full_timeout = float(options.full_timeout_ns) / 1e9
        self._watched_tasks: weakref.WeakSet[asyncio.Task[Any]] = weakref.WeakSet()
        self._task_ended = partial(_task_ended, weakref.ref(self))

    @classmethod
    async def connect(
        cls,
        name: str = "default",
        *,
        database: str = "default",
        latency_log: str | os.PathLike[str] | None = None,
        wakeup: str | int | None = None,
        **options: Any,
    ) -> Self:
        """As `pynotify.connect`, for the running loop."""
        return await cls._connect_to(
            lambda: open_segment(name, **options), database, latency_log, wakeup, again=True
        )

    @classmethod
    async def _connect_to(
        cls,
        open_engine: Callable[[], Engine],
        database: str,
        latency_log: str | os.PathLike[str] | None,
        wakeup: str | int | None,
        *,
        again: bool = False,
    ) -> Self:
        def claim() -> list[Any]:
            engine = open_engine()
            return [engine, engine._claim(database, latency_log, wakeup)]

        claiming = in_thread(partial(repeat_while_unlinked, claim) if again else claim)
        try:
            claimed = await end_of(claiming)
        except asyncio.CancelledError:
            claiming.add_done_callback(_give_back)
            raise
        # Taken out: the thread may still have the list.
        handle, engine = claimed.pop(), claimed.pop()
        with engine:
            return cls(engine, handle, database)

    def _owner(self) -> Hashable:
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

    def _owner_ended(self, owner: Hashable) -> None:
        transaction = self._transactions.get(owner)
        if transaction is not None:
            self._roll_back(transaction)

    def _open_transaction(self) -> OpenTransaction | None:
        self._check_loop()
        return super()._open_transaction()

    def _check_loop(self) -> None:
        # Nearly always settled by this: to ask for the running loop may cost a system call.
        if get_ident() == self._thread and self._is_running():
            return
        if _get_running_loop() is not self._loop:
            self._check_usable()  # a forked child has another loop, too
            raise InterfaceError(
                "the connection belongs to another event loop", hint="Connect in this one."
            )

    # ---- waiting for others --------------------------------------------------------------

    def _at_once(self, call: Callable[[], _T]) -> _T:
        """Raises `WouldWait`, and has done nothing, where it would have to wait."""
        before = lib.pn_set_never_wait(1)
        try:
            self._disk_wait.begin()
            return call()
        finally:
            lib.pn_set_never_wait(before)
            self._disk_wait.end()

    async def _patiently(self, call: Callable[[], _T], *, without_limit: bool = False) -> _T:
        """Make the call as soon as it need not wait."""
        self._check_loop()
        engine_handle = self._engine_handle  # also after close(), which a commit may outlive
        began = self._loop.time()
        while True:
            try:
                result = self._at_once(call)
                if self._disk_wait.owes:
                    await self._disk_wait.until_synced()
                return result
            except WouldWait as would_wait:
                error = would_wait.error
            if isinstance(error, LockTimeout):
                await self._lock_wait.until_free(engine_handle, without_limit=without_limit)
            elif not self._room_wait.taken:
                return await self._room_wait.make(call)
            elif self._loop.time() - began < self._full_timeout:
                await self._room_wait.until_over()
            else:
                raise error

    # ---- sending -------------------------------------------------------------------------

    async def notify(self, channel: str, payload: str | Buffer = "") -> None:
        """As `Connection.notify`."""
        if get_ident() != self._thread or not self._is_running():
            self._check_loop()
        before = lib.pn_set_never_wait(1)
        try:
            self._notify(channel, payload)
            return
        except WouldWait:  # not in a transaction
            pass
        finally:
            lib.pn_set_never_wait(before)
        await self._patiently(partial(self._notify, channel, payload))

    def notify_nowait(self, channel: str, payload: str | Buffer = "") -> None:
        """As `notify`, at once or not at all, from a coroutine or a callback of the loop.

        Raises `LockTimeout` when somebody holds the writer lock, and `QueueFull` also where
        `notify` would wait for room.
        """
        try:
            self._at_once(lambda: self._notify(channel, payload))
        except WouldWait as would_wait:
            raise would_wait.error from None

    async def notify_many(self, channel: str, payloads: Payloads, *, dedup: bool = True) -> int:
        """As `Connection.notify_many`."""
        transaction = self._open_transaction()
        if transaction is not None:
            return transaction.notify_many(channel, payloads, dedup=dedup)
        if not isinstance(payloads, (str, bytes, bytearray, memoryview)):
            payloads = list(payloads)  # to be gone through again, perhaps
        return await self._patiently(lambda: self._send_many(channel, payloads, dedup))

    async def queue_usage(self) -> float:
        """As `Connection.queue_usage`."""
        return await self._patiently(self._queue_usage)

    # ---- listening -----------------------------------------------------------------------

    async def listen(
        self, *channels: str, wait_upstream: bool = False, timeout: float | None = 30.0
    ) -> None:
        """As `Connection.listen`."""
        if wait_upstream:
            self._refuse_transaction("listen(wait_upstream=True)")
        if channels:
            await self._in_transaction(lambda transaction: transaction.listen(channels))
        if channels and wait_upstream:
            module = import_module("pynotify.bridge._async_control")
            await module.await_upstream(self, channels, timeout)

    async def unlisten(self, *channels: str) -> None:
        """As `Connection.unlisten`."""
        if channels:
            await self._in_transaction(lambda transaction: transaction.unlisten(channels))

    async def unlisten_all(self) -> None:
        """As `Connection.unlisten_all`."""
        await self._in_transaction(OpenTransaction.unlisten_all)

    async def listening_channels(self) -> frozenset[str]:
        """As `Connection.listening_channels`."""
        self._check_loop()
        return self._listening_channels()

    async def _in_transaction(self, action: Callable[[OpenTransaction], None]) -> None:
        transaction = self._open_transaction()
        if transaction is not None:
            action(transaction)
        else:
            await self._patiently(lambda: self._on_its_own(action))

    def subscribe(
        self,
        *channels: str,
        maxlen: int | None = 1024,
        overflow: str = "drop-oldest",
        skip_self: bool = False,
    ) -> AsyncSubscription:
        """As `Connection.subscribe`; it listens from `async with` (or `await`) on."""
        return AsyncSubscription(self, channels, maxlen, overflow, skip_self=skip_self)

    async def add_listener(self, channel: str, callback: Listener) -> None:
        """Call `callback(connection, pid, channel, payload)` for every message, as asyncpg does.

        `callback` may be a coroutine function.  It is called by the loop, without anybody
        waiting; the messages do not appear in `notifies()`.  An exception goes to the loop's
        exception handler.  Adding one twice is the same as once.
        """
        require_callable(callback)
        self._refuse_transaction("add_listener")

        def add() -> None:
            listeners = self._listeners.get(channel)
            if listeners is None:
                listeners = Listeners(self, channel)
                self._subscribe(listeners, [channel])
                self._listeners[channel] = listeners
            if callback not in listeners.callbacks:
                listeners.callbacks.append(callback)

        await self._patiently(add)
        self._start_reading()

    async def remove_listener(self, channel: str, callback: Listener) -> None:
        """Undo `add_listener`: it is not called any more.  One that is not there is no error.

        Nor is it one, as in asyncpg, that the connection is closed.
        """
        if self._handle is CLOSED:
            return
        self._refuse_transaction("remove_listener")
        listeners = self._listeners.get(channel)
        if listeners is None or callback not in listeners.callbacks:
            return
        listeners.callbacks.remove(callback)
        if not listeners.callbacks:
            del self._listeners[channel]
            await self._drop(listeners)

    async def _drop(self, inbox: Inbox) -> None:
        """It gets nothing more; to UNSUBSCRIBE goes on when who asked is cancelled."""
        inbox.close()
        self._room_made()
        try:
            self._at_once(lambda: self._unsubscribe(inbox))
        except WouldWait:
            await self._errands.run(self._patiently(lambda: self._unsubscribe(inbox)))

    def generation(self, name: str) -> AsyncGeneration:
        """As `Connection.generation`.  The first one of a name takes the writer lock."""
        return AsyncGeneration(self, name)

    # ---- topics --------------------------------------------------------------------------

    def topic(
        self,
        name: str,
        *,
        durable: bool = OMITTED,
        fsync: str = OMITTED,
        max_depth: int | None = OMITTED,
        overflow: str = OMITTED,
    ) -> AsyncTopic:
        """As `Connection.topic`.  It takes the writer lock."""
        given = {"durable": durable, "fsync": fsync, "max_depth": max_depth, "overflow": overflow}
        ref = topic_ref(self, name, given)
        made = self._topics_made
        found: AsyncTopic = made.get(ref) or made.setdefault(ref, AsyncTopic(self, name, ref))
        return found

    async def topics(self) -> list[str]:
        """As `Connection.topics`."""
        return await self._patiently(partial(topic_names, self))

    # ---- transactions --------------------------------------------------------------------

    def transaction(self) -> AsyncTransaction:
        """A block: `async with conn.transaction() as tx`; inside another one a savepoint."""
        self._check_usable()
        return AsyncTransaction(self)

    async def begin(self) -> None:
        """As `Connection.begin`, for the calling task."""
        self._begin_explicitly()

    async def commit(self) -> None:
        """As `Connection.commit`.

        Cancelled while it waits for the lock it has rolled back, but a prepared transaction is
        committed all the same.
        """
        await self._commit_patiently(self._explicit("commit"))

    async def rollback(self) -> None:
        """As `Connection.rollback`."""
        self._roll_back(self._explicit("rollback"))

    async def savepoint(self, name: str) -> None:
        """As `Connection.savepoint`."""
        self._savepoint(name)

    async def release(self, name: str) -> None:
        """As `Connection.release`."""
        self._release(name)

    async def rollback_to(self, name: str) -> None:
        """As `Connection.rollback_to`."""
        self._rollback_to(name)

    async def _commit_patiently(self, transaction: OpenTransaction) -> None:
        """Afterwards nothing is open, also when this raises or is cancelled."""
        finish = partial(self._finish, transaction)
        if transaction.failed:
            self._roll_back(transaction)
            raise InFailedTransaction(FAILED)
        self._transactions.pop(transaction.owner, None)
        try:
            self._at_once(finish)
            if self._disk_wait.owes:
                await self._disk_wait.until_synced()
            return
        except WouldWait:
            pass
        if transaction.prepared:
            await self._errands.run(self._commit_prepared(finish))
            return
        try:
            await self._patiently(finish)
        except BaseException:
            transaction.abort()
            raise

    async def _commit_prepared(self, finish: Callable[[], None]) -> None:
        """It is not taken back, whoever is cancelled."""
        try:
            await self._patiently(finish, without_limit=True)
        except asyncio.CancelledError:  # the loop is being shut down
            self._errands.run_in_thread(finish)
            raise

    async def _prepare_patiently(self, transaction: OpenTransaction) -> None:
        try:
            await self._patiently(transaction.prepare)
        except asyncio.CancelledError:
            if not transaction.prepared:
                # A thread may be at it, and keeps it until then: only rolling back is left.
                transaction.failed = transaction.prepared = True
            raise

    def _roll_back(self, transaction: OpenTransaction) -> None:
        self._transactions.pop(transaction.owner, None)
        if transaction.prepared and not transaction.failed:
            # What it had reserved is given back under the lock.
            self._errands.run_in_thread(transaction.abort)
        else:
            transaction.abort()

    async def _rolled_back(self, transaction: OpenTransaction) -> None:
        if transaction.prepared and not transaction.failed:
            await self._errands.are_done()

    # ---- receiving -----------------------------------------------------------------------

    async def poll(self, max: int | None = None) -> list[Notify | Gap]:
        """As `Connection.poll`."""
        if self._open_transaction() is not None:
            return []
        limit = 0 if max is None else limit_of(max)
        return [] if limit < 0 else self._poll(limit)

    async def poll_batch(self, max: int | None = None) -> NotifyBatch:
        """As `Connection.poll_batch`."""
        limit = 0 if max is None else limit_of(max)
        if self._open_transaction() is not None or limit < 0:
            return NotifyBatch.from_messages([])
        return self._poll_batch(limit)

    async def wait(self, timeout: float | None = None) -> bool:
        """As `Connection.wait`."""
        self._refuse_transaction("wait")
        nanoseconds(timeout)
        return await self._wait_for_main(timeout)

    async def _wait_for_main(self, timeout: float | None) -> bool:
        """False: the time is over."""
        main, patient = self._inboxes.main, timeout is None or timeout > 0
        with self._receiving:  # the commit of an UNLISTEN may go through the backlog in a thread
            if not main.messages and not (self._reading and patient):
                self._read_ahead()
            found = bool(main.messages)
            if patient and not found:
                waiter = TaskWaiter(self._turn)
                main.waiters.append(waiter)
        if not patient:
            return found
        if found:
            await asyncio.sleep(0)  # who waits and polls for ever leaves others their turn
            return True
        try:
            self._start_reading()
            woken = await (waiter if timeout is None else waiter.within(timeout))
        finally:
            main.waiters.remove(waiter)
        if woken and not main.messages:
            self._check_usable()
        return woken

    def notifies(
        self, *, timeout: float | None = None, stop_after: int | None = None
    ) -> AsyncGenerator[Notify | Gap]:
        """As `Connection.notifies`: `async for n in conn.notifies()`.

        Other tasks get their turn after at most 256 messages.
        """
        self._check_usable()
        self._refuse_transaction("notifies")
        nanoseconds(timeout)
        if stop_after is not None and stop_after < 0:
            raise ValueError(f"stop_after must not be negative, is {stop_after}")
        return self._notifies(timeout, stop_after)

    async def _notifies(
        self, timeout: float | None, stop_after: int | None
    ) -> AsyncGenerator[Notify | Gap]:
        left = -1 if stop_after is None else stop_after
        deadline: float | None = None
        in_a_row = 0
        while left:
            if in_a_row == _READ_AHEAD:
                in_a_row = 0
                await asyncio.sleep(0)
            if self._transactions or not self._backlog:
                self._refuse_transaction("notifies")
            if not self._backlog:
                if timeout is not None and deadline is None:
                    deadline = self._loop.time() + timeout
                remaining = None if deadline is None else deadline - self._loop.time()
                if not await self._wait_for_main(remaining):
                    return
                continue
            try:
                message = self._backlog.popleft()
            except IndexError:  # the commit of an UNLISTEN goes through it in a thread
                continue
            try:
                if self._descriptor is not None:
                    self._post()
                if self._handlers:
                    self._run_handlers((message,))
            except BaseException:
                self._give_back((message,))
                raise
            left -= 1
            in_a_row += 1
            deadline = None
            yield message

    def fileno(self) -> int:
        """A descriptor: readable iff `poll` may return something."""
        self._check_usable()
        if self._descriptor is None:
            self._watched = True
            self._descriptor = Descriptor(self._core_fileno())
        self._post()
        return self._descriptor.fileno()

    def _post(self) -> None:
        if self._descriptor is not None:
            self._descriptor.show(bool(self._backlog))

    # ---- the loop's reader ---------------------------------------------------------------

    def _core_fileno(self) -> int:
        if self._core_fd < 0:
            self._core_fd = self._check(lib.pn_fileno(self._handle))
        return self._core_fd

    def _start_reading(self) -> None:
        if not self._reading:
            self._check_loop()
            self._check_usable()
            self._loop.add_reader(self._core_fileno(), self._on_readable)
            self._reading = True

    def _room_made(self) -> None:
        super()._room_made()
        if self._routed and not self._reading and self._handle is not CLOSED:
            self._start_reading()

    def _stop_reading(self) -> None:
        if self._reading:
            self._reading = False
            if not self._loop.is_closed():
                self._loop.remove_reader(self._core_fd)

    def _on_readable(self) -> None:
        """Level-triggered: whoever leaves something unread is called again at once.

        Somebody waits for each step of this, so there are few of them.
        """
        if self._routed:
            self._read_for_subscriptions()
            return
        main = self._inboxes.main
        messages = main.messages
        waiters: list[Any] = main.waiters  # TaskWaiters
        if messages or not waiters:
            self._stop_reading()  # nobody wants it now; the next one who waits starts again
            return
        try:
            with self._receiving:
                messages += self._reader.read(self, _READ_AHEAD, AHEAD_BYTES)
                if self._descriptor is not None:
                    self._post()
        except Exception as error:
            self._stop_reading()
            self._fail(error)
        if messages:
            self._turn.resume(tuple(waiters))

    def _read_for_subscriptions(self) -> None:
        woken: list[TaskWaiter] = []
        self._turn.woken = woken
        try:
            with self._receiving:
                room = self._feed(_READ_AHEAD, max_bytes=AHEAD_BYTES)
            if not room:
                self._stop_reading()
        except Exception as error:
            self._stop_reading()
            self._fail(error)
        finally:
            self._turn.woken = None
            self._turn.resume(woken)

    def _read_ahead(self, limit: int = 0) -> bool:
        """Take what there is, and put it where it belongs.  False: there is no room.

        0: all that may be read for others, and so stand before what one is looking for.
        """
        with self._receiving:
            if self._routed:
                return self._feed(limit)
            self._inboxes.main.put_all(self._reader.read(self, _READ_AHEAD, AHEAD_BYTES))
            if self._descriptor is not None:
                self._post()
        return True

    def _fail(self, error: Exception) -> None:
        """Tell all who wait."""
        with self._receiving:
            inboxes: list[Inbox | MainInbox] = [self._inboxes.main, *self._inboxes.all]
            for inbox in inboxes:
                for waiter in inbox.waiters:
                    if isinstance(waiter, TaskWaiter):
                        waiter.fail(error)
                inbox.wake_all()
        if self._listeners:
            self._loop.call_exception_handler(
                {"message": f"{self!r}: listeners get nothing more", "exception": error}
            )

    # ---- the connection itself -----------------------------------------------------------

    async def close(self) -> None:
        """As `Connection.close`; tasks that wait raise `InterfaceError`.

        A cancelled one closes all the same.  When its loop is closed already, any other will do.
        """
        if process.pid != self._pid:
            return
        if self._loop.is_closed():
            self._errands.forget()
        elif self._handle is not CLOSED:
            self._check_loop()
        if self._handle is not CLOSED:
            self._stop_reading()
            for task in self._watched_tasks:
                task.remove_done_callback(self._task_ended)
            for transaction in tuple(self._transactions.values()):
                self._roll_back(transaction)
            # The last reference goes in a thread: freeing the slot takes the writer lock.
            last = [self._give_up()]
            if self._descriptor is not None:
                self._descriptor.close()
            self._errands.run_in_thread(last.clear)
        await self._errands.are_done()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()


def _task_ended(connection: weakref.ref[AsyncConnection], task: asyncio.Task[Any]) -> None:
    this = connection()
    if this is not None:
        this._owner_ended(task)


def _give_back(claiming: asyncio.Future[list[Any]]) -> None:
    """Of who was cancelled while connecting; freeing the slot takes the writer lock."""
    if claiming.cancelled() or claiming.exception() is not None:
        return
    Errands().run_in_thread(claiming.result().clear)
