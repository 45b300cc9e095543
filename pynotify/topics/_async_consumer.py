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
from itertools import repeat, starmap
from typing import TYPE_CHECKING, Any

from pynotify._closing import ClosedByAsyncWith
from pynotify._descriptor import Descriptor
from pynotify._ffi import ffi, lib
from pynotify._off_loop import end_of, in_thread
from pynotify._ownership import CLOSED_CONSUMER
from pynotify._public import public
from pynotify._task_waiter import TaskWaiter
from pynotify._time import nanoseconds
from pynotify.errors import (
    Error,
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
        #: Taken, and not yet in the hands of a task; it is put there at once.
        self._left: deque[AsyncMessage] = deque()
        #: Takes the first of them.  A call made by `for`: Ctrl-C cannot come between that and
        #: having the message.
        self._taking = starmap(self._left.popleft, repeat(()))
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
        if not self._left and (not self._waiters or (timeout is not None and timeout <= 0)):
            await self._fetch()
        message = self._take_left()
        if message is None and (timeout is None or timeout > 0):
            message = await self._wait(timeout)
        if message is None:
            raise Timeout(f"nothing came from {self._path} in {timeout} s")
        return message

    async def _fetch(self) -> None:
        try:
            await self.link.off_loop.retry(self._look)
        except BaseException:  # cancelled, or Ctrl-C: perhaps it has taken one
            self._pass_on()
            raise

    def _look(self) -> None:
        """Take what is there into `_left`.  May be repeated."""
        if self._handle is CLOSED_CONSUMER:
            self._check_open()
        message = self._take(0)
        if message is not None:
            self._left.append(message)

    def _take_left(self) -> AsyncMessage | None:
        message: AsyncMessage | None = None
        try:
            if self._left:
                for message in self._taking:  # noqa: B007
                    break
                if self._descriptor is not None:
                    self._show()
        except BaseException:
            if message is not None:
                self._left.appendleft(message)
            raise
        return message

    def _release_left(self) -> None:
        """Put the first that is left back, as if it had not been delivered.  May be repeated."""
        if self._left:
            release = *self._left[0].address, lib.PN_ANSWER_RELEASE, 0, ffi.NULL, 0
            with contextlib.suppress(MessageNotInFlight, NotOwner):  # Ctrl-C came after it
                self.handle.run(lib.pn_message_answer, *release)
            self._left.popleft()

    async def _wait(self, timeout: float | None) -> AsyncMessage | None:
        waiter = TaskWaiter(self.link.receiver.turn)
        try:
            try:
                self._waiters.append(waiter)
                self._start_reading()
                woken = await (waiter if timeout is None else waiter.within(timeout))
            finally:
                if waiter in self._waiters:
                    self._waiters.remove(waiter)
            if waiter.message is None and woken:
                self._check_open()
        except BaseException:  # cancelled, or Ctrl-C, perhaps with a message in hand
            if waiter.message is not None:
                self._put_back(waiter.message)
            raise
        message: AsyncMessage | None = waiter.message
        return message

    def _put_back(self, message: AsyncMessage) -> None:
        self._left.append(message)
        self._pass_on()

    def _pass_on(self) -> None:
        """Hand what is left to tasks that wait."""
        try:
            self._hand_out()
        except BaseException:  # Ctrl-C: a task has a message, and may not have been woken
            self._hand_out()
            raise

    def _hand_out(self) -> None:
        """Wake the tasks that have a message, those too that get one now.  May be repeated."""
        for waiter in self._waiters:
            if self._left and waiter.message is None and not waiter.done():
                for waiter.message in self._taking:
                    break
            if waiter.message is not None:
                waiter.wake()
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
            descriptor = self._core_fileno()
            try:
                self._reading = True
                self.link.off_loop.loop.add_reader(descriptor, self._on_readable)
            except BaseException:
                self._stop_reading()
                raise

    def _stop_reading(self) -> None:
        """In any case: Ctrl-C may have come before the loop was told."""
        self._reading = False
        loop = self.link.off_loop.loop
        if self._fd >= 0 and not loop.is_closed():
            loop.remove_reader(self._fd)

    def _on_readable(self) -> None:
        """Level-triggered: when a message is left the loop calls again at once."""
        try:
            self._read()
            served = [waiter for waiter in self._waiters if waiter.message is not None]
            self.link.receiver.turn.resume(served)
        except BaseException:  # Ctrl-C: the loop ends, and may run again
            self._pass_on()
            raise

    def _read(self) -> None:
        """Read for each task that waits."""
        try:
            for waiter in self._waiters:
                if waiter.done() or waiter.message is not None:
                    continue
                if not self._left:
                    self.link.off_loop.nowait(self._look)
                    if not self._left:
                        break
                for waiter.message in self._taking:
                    break
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
            try:
                outcome = await self._handle_one(handler, message)
            except BaseException as error:  # the handler's, cancelled, or Ctrl-C since get()
                with contextlib.suppress(Error):
                    await message.__aexit__(type(error), error, None)
                raise
            state.record(outcome, self.link.off_loop.loop.time())

    async def _handle_one(self, handler: Handler, message: AsyncMessage) -> Outcome:
        error: Exception | None = None
        try:
            result = handler(message)
            if inspect.isawaitable(result):
                result = await result
            good = result is not False
        except Exception as caught:
            good, error = False, caught
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
            await self.link.off_loop.retry(self._release_left)
        deadline = None if timeout is None else self.link.off_loop.loop.time() + timeout
        while not self.closed and (await self.stats()).in_flight:
            left = _DRAIN_S if deadline is None else deadline - self.link.off_loop.loop.time()
            if left <= 0:
                return False
            await asyncio.sleep(min(left, _DRAIN_S))
        return True

    async def set_max_in_flight(self, max_in_flight: int) -> None:
        """Take so many messages at a time from now on (NSQ's RDY).

        At most what the consumer was made with.  0: none; what was fetched ahead goes back.  What
        is in flight beyond it stays in flight.  Raises ValueError.
        """
        await self._make()
        await self.link.off_loop.retry(partial(self._set_max_in_flight, max_in_flight))

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


public(AsyncConsumer)
