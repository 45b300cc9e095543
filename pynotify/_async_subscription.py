"""Subscriptions for tasks, and the callbacks of add_listener()."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from typing import TYPE_CHECKING

from pynotify._closing import ClosedByAsyncWith
from pynotify._hot import finalizer
from pynotify._inbox import Inbox, keys_of
from pynotify._log import logger
from pynotify._public import public
from pynotify._task_waiter import TaskWaiter
from pynotify._time import nanoseconds
from pynotify._types import Notify
from pynotify.errors import Error, InterfaceError, Timeout

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Generator, Iterable
    from typing import Any, Self

    from pynotify._link import TaskLink
    from pynotify._types import Gap

    Handler = Callable[[Notify | Gap], object]
    ErrorHandler = Callable[[Exception], object]


class AsyncSubscription(ClosedByAsyncWith):
    """Messages of some channels and patterns, for tasks.

    Made by `AsyncConnection.subscribe`; it listens from `async with` on, or from
    `await conn.subscribe(...)`.  Each message is returned once, to the task that has waited
    longest.  `async for` ends when the subscription is closed.
    """

    _was_full = False

    def __init__(
        self,
        link: TaskLink,
        channels: tuple[str, ...],
        maxlen: int | None,
        overflow: str,
        *,
        skip_self: bool,
        patterns: Iterable[str] = (),
    ) -> None:
        keys = keys_of(channels, patterns)
        if not keys:
            raise TypeError("a subscription needs at least one channel or pattern")
        self._link = link
        self._receiver = link.receiver
        self._keys = keys
        self._inbox = Inbox(maxlen, overflow, link.handle.backend_id if skip_self else None)
        self._opened = self._closed = False

    @property
    def channels(self) -> tuple[str, ...]:
        """The channels it listens to."""
        keys = self._inbox.keys if self._opened else self._keys
        return tuple(key for key in keys if isinstance(key, str))

    @property
    def patterns(self) -> tuple[str, ...]:
        """The patterns it listens to."""
        keys = self._inbox.keys if self._opened else self._keys
        return tuple(key.text for key in keys if not isinstance(key, str))

    @property
    def pending(self) -> int:
        """How many messages have been read for the subscription and not returned yet."""
        return 0 if self._inbox.closed else self._inbox.held

    @property
    def dropped(self) -> int:
        """How many messages overflow has dropped."""
        return self._inbox.dropped

    @property
    def closed(self) -> bool:
        """Whether the subscription was closed, by `close()` or with its connection."""
        return self._inbox.closed

    async def next(self, timeout: float | None = None) -> Notify | Gap:
        """The next message; a `Gap` where messages were dropped.

        `timeout` in seconds, None: no limit, 0: what is there.  Cancelling it loses nothing.
        Raises `Timeout`, `InterfaceError` when the subscription is closed, and `ActiveTransaction`
        while the calling task has a transaction open.
        """
        nanoseconds(timeout)
        message = await self._receive(timeout)
        if message is None:
            names = ", ".join((*self.channels, *self.patterns))
            raise Timeout(f"nothing came on {names} in {timeout} s")
        return message

    def start(self, handler: Handler, *, on_error: ErrorHandler | None = None) -> SubscriptionTask:
        """Start a task that calls `handler(message)` for each message, Gaps too.

        End it by `stop()`.

        `handler` may be a coroutine function: then the next message waits for it.  When it
        raises, `on_error(exception)` is called, or without it the exception is logged, and the
        task goes on.
        """
        return SubscriptionTask(self, self._receive, handler, on_error)

    async def add(self, *channels: str, patterns: Iterable[str] = ()) -> None:
        """Listen to more channels and patterns: to what is committed from now on.

        Those that it listens to already change nothing.  Errors as `AsyncConnection.subscribe`;
        then none is added.  In a transaction of the calling task `ActiveTransaction`.
        """
        self._check_open()
        self._link.transactions.refuse("subscribe")
        keys = keys_of(channels, patterns)
        await self._link.off_loop.retry(lambda: self._receiver.subscribe(self._inbox, keys))

    async def discard(self, *channels: str, patterns: Iterable[str] = ()) -> None:
        """Listen to these channels and patterns no more; what is unread of them is gone.

        Those that it does not listen to change nothing.  A subscription to nothing stays open, for
        `add`.
        """
        self._check_open()
        self._link.transactions.refuse("unsubscribe")
        keys = keys_of(channels, patterns)
        await self._link.off_loop.retry(lambda: self._receiver.unsubscribe(self._inbox, keys))
        self._receiver.room_made()

    async def close(self) -> None:
        """Stop listening; unread messages are gone, and tasks in `next()` are woken.

        Closing twice is allowed.
        """
        handle = self._link.handle
        if handle.closed or handle.is_foreign:
            self._closed = True
            self._inbox.close()
            return
        self._link.off_loop.check_loop()
        self._closed = True
        await self._receiver.drop(self._inbox)

    async def _open(self) -> Self:
        self._link.transactions.refuse("subscribe")

        def subscribe() -> None:
            if self._opened or self._closed:
                raise InterfaceError("the subscription was used already", hint="Subscribe again.")
            self._receiver.subscribe(self._inbox, self._keys)
            self._opened = True

        await self._link.off_loop.retry(subscribe)
        self._receiver.start_reading()
        return self

    async def _receive(
        self, timeout: float | None, announce: Callable[[TaskWaiter], object] | None = None
    ) -> Notify | Gap | None:
        """None: the time is over, or the waiter, which is given to `announce`, was woken."""
        receiver, inbox = self._receiver, self._inbox
        patient = timeout is None or timeout > 0
        self._check_open()
        self._link.transactions.refuse("next")
        if not inbox.messages and not (receiver.reading and patient):
            receiver.read_ahead()
        if inbox.messages:
            return self._take()
        if not patient:
            return None
        waiter = TaskWaiter(receiver.turn)
        if announce is not None:
            announce(waiter)
        try:
            try:
                inbox.waiters.append(waiter)
                receiver.start_reading()
                woken = await (waiter if timeout is None else waiter.within(timeout))
            finally:
                if waiter in inbox.waiters:
                    inbox.waiters.remove(waiter)
            if waiter.message is None and woken:
                self._check_open()
        except BaseException:  # cancelled, or Ctrl-C, perhaps with a message in hand
            if waiter.message is not None:
                inbox.put_back(waiter.message)
            raise
        handed: Notify | Gap | None = waiter.message
        return handed

    def _take(self) -> Notify | Gap | None:
        taken = None
        try:
            taken = self._inbox.take()
            self._receiver.room_made()
        except BaseException:  # Ctrl-C
            if taken is not None:
                self._inbox.put_back(taken)
            raise
        return taken

    def _check_open(self) -> None:
        if self._closed:
            raise InterfaceError("the subscription is closed", hint="Subscribe again.")
        if self._inbox.closed:
            self._link.handle.check_usable()
        if not self._opened:
            raise InterfaceError(
                "the subscription does not listen yet", hint="Use it in 'async with'."
            )

    @finalizer
    def __del__(self) -> None:
        inbox: Inbox | None = getattr(self, "_inbox", None)
        if inbox is None:
            return
        if not inbox.closed:
            full = inbox.room == 0
            self._was_full, inbox.closed = full, True  # forgotten, not closed: as Subscription
        if self._was_full:  # and reading had stopped
            with contextlib.suppress(RuntimeError):  # its loop is closed
                self._link.off_loop.loop.call_soon_threadsafe(self._receiver.room_made)
            self._was_full = False

    async def __aenter__(self) -> Self:
        return await self._open()

    def __await__(self) -> Generator[Any, None, Self]:
        return self._open().__await__()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Notify | Gap:
        try:
            return await self.next()
        except InterfaceError:
            if self._closed:
                raise StopAsyncIteration from None
            raise

    def __repr__(self) -> str:
        state = "closed" if self.closed else f"{self.pending} pending, {self.dropped} dropped"
        names = ", ".join((*self.channels, *self.patterns))
        return f"<pynotify.AsyncSubscription to {names} ({state})>"


class SubscriptionTask:
    """The task that `AsyncSubscription.start` returns."""

    def __init__(
        self,
        subscription: AsyncSubscription,
        receive: Callable[..., Awaitable[Notify | Gap | None]],
        handler: Handler,
        on_error: ErrorHandler | None,
    ) -> None:
        self._subscription = subscription
        self._receive = receive
        self._handler = handler
        self._on_error = on_error
        self._stopping = False
        self._waiter: TaskWaiter | None = None
        self._task = asyncio.create_task(self._run(), name=f"{subscription!r}")

    async def stop(self) -> None:
        """End it, after the message that its handler is working on.  The subscription stays."""
        self._stopping = True
        if self._waiter is not None:
            self._waiter.wake()
        if self._task is not asyncio.current_task():
            await asyncio.wait([self._task])

    def _wait_with(self, waiter: TaskWaiter) -> None:
        self._waiter = waiter

    async def _run(self) -> None:
        while not self._stopping:
            try:
                message = await self._receive(None, self._wait_with)
            except Error as error:
                if not self._subscription.closed:
                    self._report(error)
                return
            finally:
                self._waiter = None
            if message is not None:
                try:
                    result = self._handler(message)
                    if inspect.isawaitable(result):
                        await result
                except asyncio.CancelledError as error:
                    if self._task.cancelling():
                        raise
                    self._report(error)  # a part of the handler was cancelled, not this task
                except Exception as error:
                    self._report(error)

    def _report(self, error: BaseException) -> None:
        if self._on_error is not None and isinstance(error, Exception):
            self._on_error(error)
        else:
            logger.error("%r: %r raised", self._subscription, self._handler, exc_info=error)


class Listeners(Inbox):
    """The callbacks of one channel: nothing is kept, the loop calls them."""

    def __init__(self, connection: object, loop: asyncio.AbstractEventLoop, channel: str) -> None:
        super().__init__(None, "drop-oldest", None)
        self.callbacks: list[Callable[..., object]] = []
        # A reference, so that a connection that is only listened to stays; close() ends it.
        self._connection: object | None = connection
        self._loop = loop
        self._channel = channel
        #: The loop keeps only weak references.
        self._tasks: set[asyncio.Future[Any]] = set()

    def close(self) -> None:
        """Call nothing any more, and let the connection go."""
        super().close()
        self._connection = None

    def _keep(self, message: Notify | Gap) -> None:
        self._latest = message
        if isinstance(message, Notify):
            for callback in self.callbacks:
                self._loop.call_soon(self._call, callback, message)

    def _call(self, callback: Callable[..., object], message: Notify) -> None:
        if callback not in self.callbacks or self.closed:
            return  # removed since
        result = callback(self._connection, message.pid, self._channel, message.payload)
        if inspect.isawaitable(result):
            task = asyncio.ensure_future(result, loop=self._loop)
            self._tasks.add(task)
            task.add_done_callback(self._called)

    def _called(self, task: asyncio.Future[Any]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            task.get_loop().call_exception_handler(
                {"message": f"listener on {self._channel} raised", "exception": error, "task": task}
            )


public(AsyncSubscription)
