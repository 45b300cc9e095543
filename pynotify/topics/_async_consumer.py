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

from pynotify._closing import ClosedByAsyncWith
from pynotify._descriptor import Descriptor
from pynotify._ffi import ffi, lib
from pynotify._off_loop import end_of, in_thread
from pynotify._ownership import CLOSED_CONSUMER
from pynotify._task_waiter import TaskWaiter
from pynotify._time import nanoseconds
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
    from typing import Self, TypeAlias

    from pynotify._link import TaskLink
    from pynotify.topics._base_channel import BaseChannel
    from pynotify.topics._options import ConsumerOptions
    from pynotify.topics._stats import ConsumerStats

    Handler: TypeAlias = Callable[[AsyncMessage], object | Awaitable[object]]

_DRAIN_S = 0.1


class AsyncConsumer(ClosedByAsyncWith, BaseConsumer[AsyncMessage]):
    """`Consumer` for the tasks of one event loop, made by `AsyncChannel.consumer`.

    It is there from `async with` on, from `await`, or from the first `get`.  A cancelled `get`
    loses nothing: a message that was on its way to it goes to the next call.
    """

    _message = AsyncMessage
    link: TaskLink

    def __init__(
        self, channel: BaseChannel, link: TaskLink, ref: int, options: ConsumerOptions
    ) -> None:
        super().__init__(channel, link, ref, options)
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
            await self.link.off_loop.retry(self._open_once)
        return self

    def _open_once(self) -> None:
        if not self._made:
            self._open()
            self._made = True

    @property
    def closed(self) -> bool:
        """Whether it was closed, by `close()` or with its connection."""
        return self._handle is CLOSED_CONSUMER and (self._made or self.handle.closed)

    # ---- receiving -----------------------------------------------------------------------

    async def get(self, timeout: float | None = None) -> AsyncMessage:
        """Return the next message, which is then in flight until it is answered or times out.

        `timeout` in seconds: None: no limit, 0: what is there.  Raises `Timeout`, and
        `ActiveTransaction` while the calling task has a transaction open.  Cancelling it loses
        nothing.
        """
        self.link.transactions.refuse("get")
        nanoseconds(timeout)
        await self._make()
        message: AsyncMessage | None = None
        if self._left:
            message = self._left.popleft()
            self._show()
        elif not self._waiters or (timeout is not None and timeout <= 0):
            message = await self.link.off_loop.retry(self._look)
        if message is None and (timeout is None or timeout > 0):
            message = await self._wait(timeout)
        if message is None:
            raise Timeout(f"nothing came from {self._path} in {timeout} s")
        return message

    def _look(self) -> AsyncMessage | None:
        if self._handle is CLOSED_CONSUMER:
            self._check_open()
        return self._take(0)

    def _release(self, message: AsyncMessage) -> None:
        """Put the message back in front, as if it had not been delivered.  May be repeated."""
        release = *message.address, lib.PN_ANSWER_RELEASE, 0, ffi.NULL, 0
        self.handle.run(lib.pn_message_answer, *release)

    async def _wait(self, timeout: float | None) -> AsyncMessage | None:
        waiter = TaskWaiter(self.link.receiver.turn)
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
            self.link.off_loop.loop.add_reader(self._core_fileno(), self._on_readable)
            self._reading = True

    def _stop_reading(self) -> None:
        if self._reading:
            self._reading = False
            loop = self.link.off_loop.loop
            if not loop.is_closed():
                loop.remove_reader(self._fd)

    def _on_readable(self) -> None:
        """Level-triggered: when a message is left the loop calls again at once."""
        woken: list[TaskWaiter] = []
        try:
            for waiter in self._waiters:
                if waiter.done() or waiter.message is not None:
                    continue
                waiter.message = self.link.off_loop.nowait(self._look)
                if waiter.message is None:
                    break
                woken.append(waiter)
            else:
                self._stop_reading()  # every task has one; the next one that waits starts again
        except WouldWait:
            self._stop_reading()
            self.link.off_loop.background.start(self._read_when_free())
        except Exception as error:
            self._stop_reading()
            for waiter in self._waiters:
                if waiter.message is None:
                    waiter.fail(error)
        self.link.receiver.turn.resume(woken)

    async def _read_when_free(self) -> None:
        """Read on when the writer lock is free."""
        await self.link.off_loop.until_free()
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
        """A descriptor for other loops than its own: readable when `get(0)` may return a message.

        It also becomes readable through a timer, or the death of another consumer; call `get(0)`
        until it raises `Timeout`.
        """
        self._check_open()
        if self._descriptor is None:
            self._descriptor = Descriptor(self._core_fileno())
            self._show()
        return self._descriptor.fileno()

    # ---- run(), drain() --------------------------------------------------------------------

    async def run(self, handler: Handler, backoff: tuple[float, float] = (1.0, 120.0)) -> None:
        """Call `handler(message)` for each message, until the consumer is closed or drained.

        `handler` may be a coroutine function.  The message is finished when the handler returns,
        unless it has answered the message.  When it raises, or returns False, that is logged and
        the message is requeued, and consumer and message back off: for `backoff[0]` seconds,
        doubled with every further failure, up to `backoff[1]`.  After a pause the consumer takes
        one message; the pauses get shorter with each success.  Several tasks may run a consumer.
        When the writer lock is not free in time, or a dead letter finds no room, that is logged and
        backed off from in the same way.
        """
        state = self._begin_backing_off(backoff)
        await self._make()
        while not self._is_over():
            pause = state.pause(self.link.off_loop.loop.time())
            if pause > 0:
                with contextlib.suppress(LockTimeout):  # it takes nothing here in any case
                    await self.link.off_loop.retry(partial(self._set_level, 0))
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._over_waiter.wait(), pause)
                continue
            try:
                await self.link.off_loop.retry(partial(self._set_level, state.in_flight))
                message = await self.get()
            except InterfaceError:
                if self._is_over():
                    return
                raise
            except (LockTimeout, TopicFull) as error:
                state.record(self._took_nothing(error), self.link.off_loop.loop.time())
                continue
            state.record(await self._handle_one(handler, message), self.link.off_loop.loop.time())

    async def _handle_one(self, handler: Handler, message: AsyncMessage) -> Outcome:
        error: Exception | None = None
        try:
            result = handler(message)
            if inspect.isawaitable(result):
                result = await result
            good = result is not False
        except Exception as caught:
            good, error = False, caught
        except BaseException as interruption:
            await message.__aexit__(type(interruption), interruption, None)
            raise
        try:
            if not good:
                delay = self._failed(message, error)
                if not message.answered:
                    await message.requeue(delay)
            elif not message.answered:
                await message.finish()
        except (MessageNotInFlight, NotOwner) as late:
            self._too_late(message, late)
        except (LockTimeout, TopicFull) as refused:
            self._not_answered(message, refused)
            return Outcome.FAILURE
        return self._outcome(message, good)

    async def drain(self, timeout: float | None = 0) -> bool:
        """Take no more messages; those in flight can still be answered.

        `get` in other tasks and iterating end, and what was fetched ahead goes back.  Waits up to
        `timeout` seconds (None: no limit) until everything was answered or has timed out, and
        returns whether that is so.
        """
        nanoseconds(timeout)
        await self._make()
        await self.link.off_loop.retry(self._stop_taking)
        while self._left:  # as what the core has fetched ahead
            await self.link.off_loop.retry(partial(self._release, self._left.popleft()))
        deadline = None if timeout is None else self.link.off_loop.loop.time() + timeout
        while not self.closed and (await self.stats()).in_flight:
            left = _DRAIN_S if deadline is None else deadline - self.link.off_loop.loop.time()
            if left <= 0:
                return False
            await asyncio.sleep(min(left, _DRAIN_S))
        return True

    async def stats(self) -> ConsumerStats:
        """What the consumer has in flight now, and what it has done since it was made."""
        return await self.link.off_loop.retry(self._stats)

    # ---- closing -------------------------------------------------------------------------

    async def close(self) -> None:
        """Put the messages in flight back at the head of the queue, in their old order.

        Tasks in `get()` raise `InterfaceError`.  Closing twice is allowed; in a forked child it
        does nothing, since the consumer is the parent's.
        """
        self._made = True
        last = [self.give_up()]
        if last[0] is not None:
            # The last reference goes in a thread: giving messages back takes the writer lock.
            await self.link.off_loop.background.run(_cleared(last))

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

    def __await__(self) -> Generator[Any, None, Self]:
        return self._make().__await__()


async def _cleared(last: list[Any]) -> None:
    await end_of(in_thread(last.clear))
