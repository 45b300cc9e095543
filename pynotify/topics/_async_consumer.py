"""A consumer as asyncio uses it.

Tasks that wait stand in line.  A reader of the loop on the consumer's descriptor takes what there
is, hands it to the first of them, and resumes it as its last act.  No thread waits for a message;
one does for the writer lock, as for everything on an `AsyncConnection`.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any

from pynotify._async_waiter import TaskWaiter
from pynotify._async_waiting import end_of, in_thread
from pynotify._base import nanoseconds
from pynotify._descriptor import Descriptor
from pynotify._ffi import lib
from pynotify._ownership import CLOSED_CONSUMER
from pynotify.errors import (
    InterfaceError,
    LockTimeout,
    MessageNotInFlight,
    NotOwner,
    Timeout,
    TopicFull,
    WouldWait,
)
from pynotify.topics._backoff import Outcome
from pynotify.topics._base_consumer import BaseConsumer
from pynotify.topics._message import AsyncMessage

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Generator
    from types import TracebackType
    from typing import Self, TypeAlias

    from pynotify._async_connection import AsyncConnection
    from pynotify.topics._channel import AsyncChannel
    from pynotify.topics._options import ConsumerOptions
    from pynotify.topics._stats import ConsumerStats

    Handler: TypeAlias = Callable[[AsyncMessage], object | Awaitable[object]]

_DRAIN_S = 0.1


class AsyncConsumer(BaseConsumer[AsyncMessage]):
    """`Consumer` for the tasks of one event loop, made by `AsyncChannel.consumer`.

    It is there from `async with` on, from `await`, or from the first `get`.  A cancelled `get`
    loses nothing: a message that was on its way to it goes to the next who asks.
    """

    _message = AsyncMessage
    _connection: AsyncConnection
    _channel: AsyncChannel

    def __init__(self, channel: AsyncChannel, options: ConsumerOptions) -> None:
        super().__init__(channel, options)
        self._made = False
        self._reading = False
        self._fd = -1
        self._descriptor: Descriptor | None = None
        self._waiters: deque[TaskWaiter] = deque()
        #: Taken for a task that was cancelled.
        self._left: deque[AsyncMessage] = deque()
        self._over_waiter: asyncio.Event = asyncio.Event()

    async def _make(self) -> Self:
        if not self._made:
            await self._connection._patiently(self._open_once)
        return self

    def _open_once(self) -> None:
        if not self._made:
            self._open()
            self._made = True

    @property
    def closed(self) -> bool:
        """Whether it was closed, by `close()` or with its connection."""
        return self._handle is CLOSED_CONSUMER and (self._made or self._connection.closed)

    # ---- receiving -----------------------------------------------------------------------

    async def get(self, timeout: float | None = None) -> AsyncMessage:
        """As `Consumer.get`."""
        self._connection._refuse_transaction("get")
        nanoseconds(timeout)
        await self._make()
        message: AsyncMessage | None = None
        if self._left:
            message = self._left.popleft()
            self._show()
        elif not self._waiters or (timeout is not None and timeout <= 0):
            message = await self._connection._patiently(self._look)
        if message is None and (timeout is None or timeout > 0):
            message = await self._wait(timeout)
        if message is None:
            raise Timeout(f"nothing came from {self._channel._path} in {timeout} s")
        return message

    def _look(self) -> AsyncMessage | None:
        if self._handle is CLOSED_CONSUMER:
            self._check_open()
        return self._take(0)

    async def _wait(self, timeout: float | None) -> AsyncMessage | None:
        waiter = TaskWaiter(self._connection._turn)
        self._waiters.append(waiter)
        try:
            self._start_reading()
            woken = await (waiter if timeout is None else waiter.within(timeout))
        except BaseException:  # cancelled, perhaps with a message in hand
            if waiter.message is not None:
                self._put_back(waiter.message)
            raise
        finally:
            if waiter in self._waiters:
                self._waiters.remove(waiter)
        if waiter.message is None and woken:
            self._check_open()
        message: AsyncMessage | None = waiter.message
        return message

    def _put_back(self, message: AsyncMessage) -> None:
        for waiter in self._waiters:
            if not waiter.done() and waiter.message is None:
                waiter.message = message
                waiter.wake()
                return
        self._left.append(message)
        self._show()

    def _show(self) -> None:
        if self._descriptor is not None:
            self._descriptor.show(bool(self._left))

    def _core_fileno(self) -> int:
        if self._fd < 0:
            descriptor = lib.pn_consumer_fileno(self._handle)
            if descriptor < 0:
                self._refuse(descriptor)
            self._fd = descriptor
        return self._fd

    def _start_reading(self) -> None:
        if not self._reading:
            self._check_open()
            self._connection._loop.add_reader(self._core_fileno(), self._on_readable)
            self._reading = True

    def _stop_reading(self) -> None:
        if self._reading:
            self._reading = False
            loop = self._connection._loop
            if not loop.is_closed():
                loop.remove_reader(self._fd)

    def _on_readable(self) -> None:
        """Level-triggered: whoever leaves a message is called again at once."""
        woken: list[TaskWaiter] = []
        try:
            for waiter in self._waiters:
                if waiter.done() or waiter.message is not None:
                    continue
                waiter.message = self._connection._at_once(self._look)
                if waiter.message is None:
                    break
                woken.append(waiter)
            else:
                self._stop_reading()  # everybody has one; the next one who waits starts again
        except WouldWait:
            self._stop_reading()
            self._connection._errands.start(self._read_when_free())
        except Exception as error:
            self._stop_reading()
            for waiter in self._waiters:
                if waiter.message is None:
                    waiter.fail(error)
        self._connection._turn.resume(woken)

    async def _read_when_free(self) -> None:
        """Somebody holds the writer lock."""
        connection = self._connection
        await connection._lock_wait.until_free(connection._engine_handle, without_limit=True)
        if self._waiters and not self._is_over():
            self._start_reading()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> AsyncMessage:
        try:
            return await self.get()
        except InterfaceError:
            if self._is_over():
                raise StopAsyncIteration from None
            raise

    def fileno(self) -> int:
        """As `Consumer.fileno`, for other loops than its own."""
        self._check_open()
        if self._descriptor is None:
            self._descriptor = Descriptor(self._core_fileno())
            self._show()
        return self._descriptor.fileno()

    # ---- run(), drain() --------------------------------------------------------------------

    async def run(self, handler: Handler, backoff: tuple[float, float] = (1.0, 120.0)) -> None:
        """As `Consumer.run`; `handler` may be a coroutine function."""
        state = self._begin_backing_off(backoff)
        await self._make()
        connection = self._connection
        while not self._is_over():
            pause = state.pause(connection._loop.time())
            if pause > 0:
                with contextlib.suppress(LockTimeout):  # it takes nothing here in any case
                    await connection._patiently(partial(self._set_level, 0))
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._over_waiter.wait(), pause)
                continue
            try:
                await connection._patiently(partial(self._set_level, state.in_flight))
                message = await self.get()
            except InterfaceError:
                if self._is_over():
                    return
                raise
            except (LockTimeout, TopicFull) as error:
                state.record(self._took_nothing(error), connection._loop.time())
                continue
            state.record(await self._handle_one(handler, message), connection._loop.time())

    async def _handle_one(self, handler: Handler, message: AsyncMessage) -> Outcome:
        error: Exception | None = None
        try:
            result = handler(message)
            if inspect.isawaitable(result):
                result = await result
            good = result is not False
        except Exception as caught:
            good, error = False, caught
        except BaseException:
            await self._connection._patiently(partial(message._leave, good=False))
            raise
        try:
            if not good:
                delay = self._failed(message, error)
                if not message._answered:
                    await message.requeue(delay)
            elif not message._answered:
                await message.finish()
        except (MessageNotInFlight, NotOwner) as late:
            self._too_late(message, late)
        except (LockTimeout, TopicFull) as refused:
            self._not_answered(message, refused)
            return Outcome.FAILURE
        return self._outcome(message, good)

    async def drain(self, timeout: float | None = 0) -> bool:
        """As `Consumer.drain`."""
        nanoseconds(timeout)
        await self._make()
        connection = self._connection
        await connection._patiently(self._stop_taking)
        while self._left:  # as what the core has fetched ahead
            await connection._patiently(self._left.popleft()._release)
        deadline = None if timeout is None else connection._loop.time() + timeout
        while not self.closed and (await self.stats()).in_flight:
            left = _DRAIN_S if deadline is None else deadline - connection._loop.time()
            if left <= 0:
                return False
            await asyncio.sleep(min(left, _DRAIN_S))
        return True

    async def stats(self) -> ConsumerStats:
        """As `Consumer.stats`."""
        return await self._connection._patiently(self._stats)

    # ---- closing -------------------------------------------------------------------------

    async def close(self) -> None:
        """As `Consumer.close`; tasks in `get()` raise `InterfaceError`."""
        self._made = True
        last = [self._give_up()]
        if last[0] is not None:
            # The last reference goes in a thread: giving messages back takes the writer lock.
            await self._connection._errands.run(_cleared(last))

    def _wake(self) -> None:
        self._stop_reading()
        self._over_waiter.set()
        for waiter in self._waiters:
            if waiter.message is None:
                waiter.wake()
        if self._handle is CLOSED_CONSUMER:
            self._left.clear()
            if self._descriptor is not None:
                self._descriptor.close()
                self._descriptor = None

    async def __aenter__(self) -> Self:
        return await self._make()

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    def __await__(self) -> Generator[Any, None, Self]:
        return self._make().__await__()


async def _cleared(last: list[Any]) -> None:
    await end_of(in_thread(last.clear))
