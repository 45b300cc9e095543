"""Subscriptions for tasks."""

from __future__ import annotations

import asyncio
import inspect
import logging
from typing import TYPE_CHECKING

from pynotify._base import nanoseconds
from pynotify._inbox import Inbox
from pynotify.errors import Error, InterfaceError, Timeout

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from types import TracebackType
    from typing import Any, Self

    from pynotify._async_connection import AsyncConnection
    from pynotify._types import Gap, Notify

    Handler = Callable[[Notify | Gap], object]
    ErrorHandler = Callable[[Exception], object]

logger = logging.getLogger("pynotify")


class FutureWaiter:
    """A task that waits, once."""

    #: What was handed to it.
    message: Notify | Gap | None = None

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._future: asyncio.Future[bool] = loop.create_future()

    def wake(self) -> None:
        self._end(True)

    async def wait(self, timeout: float | None) -> bool:
        """False: the time is over."""
        if timeout is None:
            return await self._future
        timer = self._loop.call_later(timeout, self._end, False)
        try:
            return await self._future
        finally:
            timer.cancel()

    def _end(self, woken: bool) -> None:
        if not self._future.done():
            self._future.set_result(woken)


class AsyncSubscription:
    """Messages of some channels, for whoever holds this object.

    Made by `AsyncConnection.subscribe`; it listens from `async with` on, or from
    `await conn.subscribe(...)`.  Each message is returned once, to the task that has waited
    longest.  `async for` ends when the subscription is closed.
    """

    def __init__(
        self,
        connection: AsyncConnection,
        channels: tuple[str, ...],
        maxlen: int | None,
        overflow: str,
        *,
        skip_self: bool,
    ) -> None:
        if not channels:
            raise TypeError("a subscription needs at least one channel")
        self._connection = connection
        self._channels = tuple(dict.fromkeys(channels))
        self._inbox = Inbox(maxlen, overflow, connection.backend_id if skip_self else None)
        self._opened = self._closed = False

    @property
    def channels(self) -> tuple[str, ...]:
        """What it listens to."""
        return self._channels

    @property
    def pending(self) -> int:
        """How many messages have been read for it and not returned yet."""
        return self._inbox.held

    @property
    def dropped(self) -> int:
        """How many messages overflow has dropped."""
        return self._inbox.dropped

    @property
    def closed(self) -> bool:
        """Whether it was closed, by `close()` or with its connection."""
        return self._inbox.closed

    async def next(self, timeout: float | None = None) -> Notify | Gap:
        """As `Subscription.next`.  Cancelling it loses nothing."""
        nanoseconds(timeout)
        message = await self._receive(FutureWaiter(self._connection._loop), timeout)
        if message is None:
            raise Timeout(f"nothing came on {', '.join(self._channels)} in {timeout} s")
        return message

    def start(self, handler: Handler, *, on_error: ErrorHandler | None = None) -> SubscriptionTask:
        """A task that calls `handler(message)` for each message, Gaps too; end it by `stop()`.

        `handler` may be a coroutine function: then the next message waits for it.  When it
        raises, `on_error(exception)` is called, or without it the exception is logged, and the
        task goes on.
        """
        return SubscriptionTask(self, handler, on_error)

    async def close(self) -> None:
        """Stop listening; unread messages are gone.  Who waits in `next()` is woken.

        Closing twice is allowed.
        """
        self._closed = True
        connection = self._connection
        if not self._opened or connection.closed:
            self._inbox.close()
            return
        async with connection._changing:
            await connection._patiently(lambda: connection._unsubscribe(self._inbox))
        connection._start_reading_again()

    async def _open(self) -> Self:
        if self._opened:
            raise InterfaceError("the subscription was opened already", hint="Subscribe again.")
        connection = self._connection
        connection._refuse_transaction("subscribe")
        self._opened = True
        async with connection._changing:
            await connection._patiently(lambda: connection._subscribe(self._inbox, self._channels))
        connection._start_reading()
        return self

    async def _receive(self, waiter: FutureWaiter, timeout: float | None) -> Notify | Gap | None:
        """None: the time is over, or somebody else woke the waiter."""
        connection, inbox = self._connection, self._inbox
        self._check_open()
        connection._refuse_transaction("next")
        if not inbox.messages and timeout is not None and timeout <= 0:
            connection._read_ahead()
        if inbox.messages:
            message = inbox.take()
            connection._start_reading_again()
            return message
        if timeout is not None and timeout <= 0:
            return None
        inbox.waiters.append(waiter)
        try:
            connection._start_reading()
            woken = await waiter.wait(timeout)
        except BaseException:  # cancelled, perhaps with a message in hand
            if waiter.message is not None:
                inbox.put_back(waiter.message)
            raise
        finally:
            if waiter in inbox.waiters:
                inbox.waiters.remove(waiter)
        if waiter.message is None and woken:
            self._check_open()
            connection._raise_failure()
        return waiter.message

    def _check_open(self) -> None:
        if self._closed:
            raise InterfaceError("the subscription is closed", hint="Subscribe again.")
        if self._inbox.closed:
            self._connection._check_usable()
        if not self._opened:
            raise InterfaceError(
                "the subscription does not listen yet", hint="Use it in 'async with'."
            )

    def __del__(self) -> None:
        inbox: Inbox | None = getattr(self, "_inbox", None)
        if inbox is not None:  # forgotten, not closed: as Subscription
            inbox.closed = True

    async def __aenter__(self) -> Self:
        return await self._open()

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

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
        return f"<pynotify.AsyncSubscription to {', '.join(self._channels)} ({state})>"


class SubscriptionTask:
    """What `AsyncSubscription.start` returns."""

    def __init__(
        self, subscription: AsyncSubscription, handler: Handler, on_error: ErrorHandler | None
    ) -> None:
        self._subscription = subscription
        self._handler = handler
        self._on_error = on_error
        self._stopping = False
        self._waiter: FutureWaiter | None = None
        self._task = asyncio.create_task(self._run(), name=f"{subscription!r}")

    async def stop(self) -> None:
        """End it, after the message that its handler is working on.  The subscription stays."""
        self._stopping = True
        if self._waiter is not None:
            self._waiter.wake()
        if self._task is not asyncio.current_task():
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        subscription = self._subscription
        while not self._stopping:
            self._waiter = FutureWaiter(subscription._connection._loop)
            try:
                message = await subscription._receive(self._waiter, None)
            except Error as error:
                if not subscription.closed:
                    self._report(error)
                return
            finally:
                self._waiter = None
            if message is not None:
                try:
                    result = self._handler(message)
                    if inspect.isawaitable(result):
                        await result
                except Exception as error:
                    self._report(error)

    def _report(self, error: Exception) -> None:
        if self._on_error is not None:
            self._on_error(error)
        else:
            logger.error("%r: %r raised", self._subscription, self._handler, exc_info=error)
