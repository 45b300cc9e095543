"""A connection as asyncio uses it: the same as for threads, with other waiting.

* Waiting for messages: a future for each waiter, and a reader of the event loop on the
  connection's descriptor, which takes what there is and puts it where it belongs.  No thread, no
  set_wakeup_fd(); so it works in any loop and any thread.
* Waiting for others (the writer lock, room in a full queue): never in the loop.  A call is tried
  with pn_set_never_wait(), and if it would have to wait it is made again in a thread of the
  loop's executor.
"""

from __future__ import annotations

import asyncio
import inspect
import weakref
from typing import TYPE_CHECKING, Any, TypeVar

from pynotify._async_subscription import AsyncSubscription, FutureWaiter
from pynotify._base import BaseConnection, limit_of, nanoseconds
from pynotify._batch import NotifyBatch
from pynotify._engine import open as open_segment
from pynotify._ffi import lib
from pynotify._generation import AsyncGeneration
from pynotify._inbox import Inbox
from pynotify._transaction import AsyncTransaction, OpenTransaction
from pynotify._types import Notify
from pynotify.errors import InterfaceError, WouldWait

if TYPE_CHECKING:
    import os
    from collections.abc import AsyncGenerator, Callable, Hashable
    from types import TracebackType
    from typing import Self

    from typing_extensions import Buffer

    from pynotify._encoding import Payloads
    from pynotify._engine import Engine
    from pynotify._types import Gap

    Listener = Callable[["AsyncConnection", int, str, str], object]

_T = TypeVar("_T")

_READ_AHEAD = 256  # messages that are read for notifies() at a time


class AsyncConnection(BaseConnection):
    """One backend, for the tasks of one event loop.  Made by `AsyncConnection.connect`.

    It mirrors `Connection`; what it says there holds here, "thread" read as "task".  Methods
    that may have to wait are coroutines.  A cancelled one has lost nothing: a message that was
    on its way to it is returned to the next who asks.  What a cancelled `notify` or `commit` had
    handed to the executor, because the queue was full or the lock held, may still be committed.
    """

    def __init__(self, engine: Engine, handle: Any, database: str) -> None:
        super().__init__(engine, handle, database)
        self._loop = asyncio.get_running_loop()
        self._fd = -1
        self._reading = False
        #: One at a time changes what is subscribed to: in a thread, perhaps.
        self._changing = asyncio.Lock()
        self._listeners: dict[str, _Listeners] = {}
        self._aborting: set[asyncio.Future[None]] = set()
        self._watched_tasks: weakref.WeakSet[asyncio.Task[Any]] = weakref.WeakSet()
        #: What the loop's reader met, for those who wait.
        self._failure: Exception | None = None

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
        loop = asyncio.get_running_loop()

        def claim() -> tuple[Engine, Any]:
            engine = open_segment(name, **options)
            return engine, engine._claim(database, latency_log, wakeup)

        engine, handle = await loop.run_in_executor(None, claim)
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
        if owner in self._watched_tasks:
            return
        self._watched_tasks.add(owner)
        connection = weakref.ref(self)

        def ended(task: asyncio.Task[Any]) -> None:
            this = connection()
            if this is not None:
                this._owner_ended(task)

        owner.add_done_callback(ended)

    # ---- waiting for others --------------------------------------------------------------

    async def _patiently(self, call: Callable[[], _T]) -> _T:
        """Make the call here if it need not wait, else in a thread."""
        self._check_loop()
        before = lib.pn_set_never_wait(1)
        try:
            return call()
        except WouldWait:
            pass
        finally:
            lib.pn_set_never_wait(before)
        return await self._loop.run_in_executor(None, call)

    def _check_loop(self) -> None:
        if asyncio.get_running_loop() is not self._loop:
            raise InterfaceError(
                "the connection belongs to another event loop", hint="Connect in this one."
            )

    # ---- sending -------------------------------------------------------------------------

    async def notify(self, channel: str, payload: str | Buffer = "") -> None:
        """As `Connection.notify`."""
        before = lib.pn_set_never_wait(1)
        try:
            self._notify(channel, payload)
            return
        except WouldWait:
            pass
        finally:
            lib.pn_set_never_wait(before)
        # It would not have come to waiting in a transaction.
        await self._loop.run_in_executor(None, self._send_many, channel, [payload], False)

    def notify_nowait(self, channel: str, payload: str | Buffer = "") -> None:
        """As `notify`, at once or not at all, from a coroutine or a callback of the loop.

        Raises `LockTimeout` when somebody holds the writer lock, and `QueueFull` also where
        `notify` would wait for room.
        """
        before = lib.pn_set_never_wait(1)
        try:
            self._notify(channel, payload)
        except WouldWait as would_wait:
            raise would_wait.error from None
        finally:
            lib.pn_set_never_wait(before)

    async def notify_many(self, channel: str, payloads: Payloads, *, dedup: bool = True) -> int:
        """As `Connection.notify_many`."""
        transaction = self._open_transaction()
        if transaction is not None:
            return transaction.notify_many(channel, payloads, dedup=dedup)
        if not isinstance(payloads, (str, bytes, bytearray, memoryview)):
            payloads = list(payloads)  # to be gone through twice, perhaps
        return await self._patiently(lambda: self._send_many(channel, payloads, dedup))

    async def queue_usage(self) -> float:
        """As `Connection.queue_usage`."""
        return await self._patiently(self._queue_usage)

    # ---- listening -----------------------------------------------------------------------

    async def listen(self, *channels: str) -> None:
        """As `Connection.listen`."""
        if channels:
            await self._in_transaction(lambda transaction: transaction.listen(channels))

    async def unlisten(self, *channels: str) -> None:
        """As `Connection.unlisten`."""
        if channels:
            await self._in_transaction(lambda transaction: transaction.unlisten(channels))

    async def unlisten_all(self) -> None:
        """As `Connection.unlisten_all`."""
        await self._in_transaction(OpenTransaction.unlisten_all)

    async def listening_channels(self) -> frozenset[str]:
        """As `Connection.listening_channels`."""
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
        self._refuse_transaction("add_listener")
        async with self._changing:
            listeners = self._listeners.get(channel)
            if listeners is None:
                listeners = _Listeners(self, channel)
                await self._patiently(lambda: self._subscribe(listeners, [channel]))
                self._listeners[channel] = listeners
            if callback not in listeners.callbacks:
                listeners.callbacks.append(callback)
        self._start_reading()

    async def remove_listener(self, channel: str, callback: Listener) -> None:
        """Undo `add_listener`.  One that is not there is no error."""
        self._refuse_transaction("remove_listener")
        async with self._changing:
            listeners = self._listeners.get(channel)
            if listeners is None or callback not in listeners.callbacks:
                return
            listeners.callbacks.remove(callback)
            if not listeners.callbacks:
                del self._listeners[channel]
                await self._patiently(lambda: self._unsubscribe(listeners))

    def generation(self, name: str) -> AsyncGeneration:
        """As `Connection.generation`.  The first one of a name takes the writer lock."""
        return AsyncGeneration(self, name)

    # ---- transactions --------------------------------------------------------------------

    def transaction(self) -> AsyncTransaction:
        """A block: `async with conn.transaction() as tx`; inside another one a savepoint."""
        self._check_usable()
        return AsyncTransaction(self)

    async def begin(self) -> None:
        """As `Connection.begin`, for the calling task."""
        self._begin_explicitly()

    async def commit(self) -> None:
        """As `Connection.commit`."""
        transaction = self._explicit("commit")
        await self._patiently(lambda: self._commit(transaction))

    async def rollback(self) -> None:
        """As `Connection.rollback`."""
        self._roll_back(self._explicit("rollback"))
        await self._rolled_back()

    async def savepoint(self, name: str) -> None:
        """As `Connection.savepoint`."""
        self._savepoint(name)

    async def release(self, name: str) -> None:
        """As `Connection.release`."""
        self._release(name)

    async def rollback_to(self, name: str) -> None:
        """As `Connection.rollback_to`."""
        self._rollback_to(name)

    def _roll_back(self, transaction: OpenTransaction) -> None:
        """What prepare() had reserved is given back under the lock: in a thread."""
        if not transaction.prepared:
            super()._roll_back(transaction)
            return
        self._transactions.pop(transaction.owner, None)
        future = self._loop.run_in_executor(None, transaction.abort)
        self._aborting.add(future)
        future.add_done_callback(self._aborting.discard)

    async def _rolled_back(self) -> None:
        if self._aborting:
            await asyncio.wait(self._aborting)

    # ---- receiving -----------------------------------------------------------------------

    async def poll(self, max: int | None = None) -> list[Notify | Gap]:
        """As `Connection.poll`."""
        if self._open_transaction() is not None:
            return []
        limit = 0 if max is None else limit_of(max)
        messages = [] if limit < 0 else self._read(limit)
        if self._handlers:
            self._run_handlers(messages)
        return messages

    async def poll_batch(self, max: int | None = None) -> NotifyBatch:
        """As `Connection.poll_batch`."""
        limit = 0 if max is None else limit_of(max)
        if limit < 0 or self._open_transaction() is not None:
            return NotifyBatch.from_messages([])
        if self._backlog or self._routed:
            batch = NotifyBatch.from_messages(self._read(limit))
        else:
            batch = self._reader.read_columns(self, limit)
        if self._handlers:
            self._run_handlers(list(batch))
        return batch

    async def wait(self, timeout: float | None = None) -> bool:
        """As `Connection.wait`."""
        self._refuse_transaction("wait")
        nanoseconds(timeout)
        if not self._backlog:
            self._read_ahead()
        if self._backlog or (timeout is not None and timeout <= 0):
            return bool(self._backlog)
        return await self._wait_for_main(timeout)

    async def _wait_for_main(self, timeout: float | None) -> bool:
        """False: the time is over."""
        waiters = self._inboxes.main.waiters
        waiter = FutureWaiter(self._loop)
        waiters.append(waiter)
        try:
            self._start_reading()
            woken = await waiter.wait(timeout)
        finally:
            waiters.remove(waiter)
        if woken and not self._backlog:
            self._raise_failure()
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
        while left:
            self._refuse_transaction("notifies")
            if not self._backlog:
                if timeout is not None and timeout <= 0:
                    self._read_ahead()
                    if not self._backlog:
                        return
                elif not await self._wait_for_main(timeout):
                    return
            try:
                message = self._backlog.popleft()
            except IndexError:  # another task was faster
                continue
            if self._handlers:
                self._run_handlers([message])
            left -= 1
            yield message

    def fileno(self) -> int:
        """A descriptor: readable iff `poll` may return something."""
        self._check_usable()
        if self._fd < 0:
            self._fd = self._check(lib.pn_fileno(self._handle))
        return self._fd

    # ---- the loop's reader ---------------------------------------------------------------

    def _start_reading(self) -> None:
        if not self._reading:
            self._check_loop()
            self._failure = None
            self._loop.add_reader(self.fileno(), self._on_readable)
            self._reading = True

    def _start_reading_again(self) -> None:
        """There is room again in a subscription that had forbidden to read."""
        if self._routed and not self._reading and self._handle is not None:
            self._start_reading()

    def _stop_reading(self) -> None:
        if self._reading:
            self._reading = False
            self._loop.remove_reader(self._fd)

    def _on_readable(self) -> None:
        """Level-triggered: whoever leaves something unread is called again at once."""
        main = self._inboxes.main
        if not self._routed and (main.messages or not main.waiters):
            self._stop_reading()  # nobody wants it now; the next one who waits starts again
            return
        try:
            if not self._read_ahead():
                self._stop_reading()
        except Exception as error:
            self._stop_reading()
            self._failure = error
            main.wake_all()
            for inbox in self._inboxes.all:
                inbox.wake_all()

    def _read_ahead(self) -> bool:
        """Take what there is, and put it where it belongs.  False: there is no room."""
        with self._receiving:
            if self._routed:
                return self._feed()
            for message in self._reader.read(self, _READ_AHEAD):
                self._inboxes.main.put(message)
        return True

    def _raise_failure(self) -> None:
        """For who was woken, and nothing is there."""
        self._check_usable()
        if self._failure is not None:
            raise type(self._failure)(*self._failure.args)

    # ---- the connection itself -----------------------------------------------------------

    async def close(self) -> None:
        """As `Connection.close`; tasks that wait raise `InterfaceError`."""
        if self._handle is None:
            return
        self._stop_reading()
        for transaction in tuple(self._transactions.values()):
            self._roll_back(transaction)
        await self._rolled_back()
        handle = self._give_up()
        if handle is not None:
            # The last reference goes in a thread: freeing the slot takes the writer lock.
            last = [handle]
            del handle
            await self._loop.run_in_executor(None, last.clear)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()


class _Listeners(Inbox):
    """The callbacks of one channel: nothing is kept, the loop calls them."""

    def __init__(self, connection: AsyncConnection, channel: str) -> None:
        super().__init__(None, "drop-oldest", None)
        self.callbacks: list[Listener] = []
        self._connection = weakref.ref(connection)
        self._channel = channel
        #: The loop keeps only weak references.
        self._tasks: set[asyncio.Future[Any]] = set()

    def _keep(self, message: Notify | Gap) -> None:
        connection = self._connection()
        if connection is None or not isinstance(message, Notify):
            return
        for callback in self.callbacks:
            connection._loop.call_soon(self._call, connection, callback, message)

    def _call(self, connection: AsyncConnection, callback: Listener, message: Notify) -> None:
        if callback not in self.callbacks:
            return  # removed meanwhile
        result = callback(connection, message.pid, self._channel, message.payload)
        if inspect.isawaitable(result):
            task = asyncio.ensure_future(result, loop=connection._loop)
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
