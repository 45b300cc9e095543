"""A consumer as threads use it.

One thread at a time is in the core, and sleeps there if need be; the others wait for a lock, with
their own time-outs.  A caller that only looks does not wait for a sleeper: it would take whatever
comes.
"""

from __future__ import annotations

import contextlib
import time
from itertools import repeat
from queue import Empty
from threading import RLock
from typing import TYPE_CHECKING

from pynotify._closing import ClosedByWith
from pynotify._ffi import lib
from pynotify._locks import Event
from pynotify._time import nanoseconds
from pynotify.errors import (
    Error,
    InterfaceError,
    LockTimeout,
    MessageNotInFlight,
    NotOwner,
    Timeout,
    TopicFull,
)
from pynotify.topics._backoff import Outcome
from pynotify.topics._base_consumer import BaseConsumer
from pynotify.topics._message import Message, address_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Literal, Self, TypeAlias

    from pynotify._link import ThreadLink
    from pynotify.topics._base_channel import BaseChannel
    from pynotify.topics._options import ConsumerOptions
    from pynotify.topics._stats import ConsumerStats

    Handler: TypeAlias = Callable[[Message], object]

_LOOK_S = 0.01
_DRAIN_S = 0.1


class Clock:
    """What run() goes by; tests have another one."""

    def now(self) -> float:
        """Seconds, from any beginning."""
        return time.monotonic()

    def pause(self, over: Event, seconds: float) -> None:
        """Sleep for so long, or until it is over."""
        over.wait(seconds)


class Consumer(ClosedByWith, BaseConsumer[Message]):
    """Gets messages of one channel, made by `Channel.consumer`.

    Thread-safe: each message is returned once, to one thread.  Iterating waits for the next
    message, and ends when the consumer is closed or drained.  When it is closed, its connection is
    closed or its process dies, all that it has not answered goes back to the head of the channel's
    queue.  Every method raises `InterfaceError` after `close()`, `TopicDeleted` when the channel
    was deleted, and `ForkedConnectionError` in a forked child.
    """

    _message = Message
    link: ThreadLink

    def __init__(
        self, channel: BaseChannel, link: ThreadLink, ref: int, options: ConsumerOptions
    ) -> None:
        super().__init__(channel, link, ref, options)
        # Re-entrant, so that a signal handler of Python that interrupted get() does not hang.
        self._taking = RLock()
        #: Each step acquires it if it is free.  A call made by `for`: Ctrl-C cannot come between
        #: having the lock and `try`.
        self._trying = map(self._taking.acquire, repeat(False))
        #: A thread sleeps in the core, or is about to.
        self._asleep = False
        self._ended = Event()
        self._clock = Clock()
        self._open()

    def get(self, timeout: float | None = None) -> Message:
        """The next message, which is then in flight until it is answered or times out.

        `timeout` in seconds: None: no limit, 0: what is there.  Raises `Timeout`, and
        `ActiveTransaction` while the calling thread has a transaction open.  While it waits,
        Python's signal handlers run, and their exceptions (Ctrl-C) are raised here.
        """
        if self.open_transactions:
            self.link.transactions.refuse("get")
        found: list[tuple[tuple[int, ...], bytes, bytes]] = []
        took: bool | None = False
        try:
            if self.in_memory:
                took = self.take_at_once(found)
            else:
                for taken in self._trying:
                    if taken:
                        try:
                            took = self.take_at_once(found)
                        finally:
                            self._taking.release()
                    break
            if found:
                return self._message(self, *found[0])
        except BaseException:
            if found:
                self._give_back(address_of(found[0][0]))
            raise
        return self._get_otherwise(timeout, looked=took is None)

    def _get_otherwise(self, timeout: float | None, *, looked: bool = False) -> Message:
        """What get() is where `take_at_once` took nothing; `looked`: there was nothing."""
        message = None if looked else self._take_alone(0, 0)
        if message:
            return message
        if timeout is not None and timeout <= 0:
            message = self._look()
        else:
            message = self._wait(nanoseconds(timeout))
        if message is None:
            raise Timeout(f"nothing came from {self._path} in {timeout} s")
        return message

    def _take_alone(self, patience_s: float, deadline: int) -> Message | Literal[False] | None:
        """What is next; None: nothing; False: another thread was at it for `patience_s`.

        Sleeps until `deadline`, 0: it does not, -1: without a limit.  An exception of a signal
        handler (Ctrl-C) leaves no lock taken and no message in flight.
        """
        message: Message | Literal[False] | None = False
        try:
            for taken in map(self._taking.acquire, (patience_s != 0,), (patience_s or -1,)):
                if taken:
                    asleep = self._asleep  # a signal handler interrupted this thread's sleep
                    try:
                        self._asleep = asleep or deadline != 0
                        left = max(deadline - time.monotonic_ns(), 0) if deadline > 0 else deadline
                        message = self._take(left)
                    finally:
                        self._asleep = asleep
                        self._taking.release()
        except BaseException:
            if message:
                self._give_back(message.address)
            raise
        return message  # nothing is called from here to the caller of get()

    def _wait(self, timeout_ns: int) -> Message | None:
        deadline = time.monotonic_ns() + timeout_ns if timeout_ns >= 0 else -1
        left_s = timeout_ns / 1e9 if timeout_ns >= 0 else -1
        while timeout_ns < 0 or left_s > 0:
            message = self._take_alone(left_s, deadline)
            if message:
                return message
            if timeout_ns >= 0:
                left_s = (deadline - time.monotonic_ns()) / 1e9
        return None

    def _look(self) -> Message | None:
        """Look, without waiting for a thread that sleeps."""
        while not self._asleep:
            message = self._take_alone(_LOOK_S, 0)
            if message is not False:
                return message
        self._check_open()
        return None

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Message:
        try:
            return self.get()
        except InterfaceError:
            if self._is_over():
                raise StopIteration from None
            raise

    def run(self, handler: Handler, backoff: tuple[float, float] = (1.0, 120.0)) -> None:
        """Call `handler(message)` for each message, until the consumer is closed or drained.

        The message is finished when the handler returns, unless it has answered the message.  When
        it raises, or returns False, that is logged and the message is requeued, and consumer and
        message back off: for `backoff[0]` seconds, doubled with every further failure, up to
        `backoff[1]`.  After a pause the consumer takes one message; the pauses get shorter with
        each success.  Several threads may run a consumer.  When the writer lock is not free in
        time, or a dead letter finds no room, that is logged and backed off from in the same way.
        """
        state = self._begin_backing_off(backoff)
        while not self._is_over():
            pause = state.pause(self._clock.now())
            if pause > 0:
                with contextlib.suppress(LockTimeout):  # it takes nothing here in any case
                    self._set_level(0)
                self._clock.pause(self._ended, pause)
                continue
            try:
                self._set_level(state.in_flight)
                message = self.get()
            except InterfaceError:
                if self._is_over():
                    return
                raise
            except (LockTimeout, TopicFull) as error:
                state.record(self._took_nothing(error), self._clock.now())
                continue
            try:
                outcome = self._handle_one(handler, message)
            except BaseException as error:  # the handler's, or Ctrl-C at any step since get()
                with contextlib.suppress(Error):
                    message.__exit__(type(error), error, None)
                raise
            state.record(outcome, self._clock.now())

    def _handle_one(self, handler: Handler, message: Message) -> Outcome:
        error: Exception | None = None
        try:
            good = handler(message) is not False
        except Exception as caught:
            good, error = False, caught
        try:
            if not good:
                delay = self._failed(message, error)
                if not message.answered:
                    message.requeue(delay)
            elif not message.answered:
                message.finish()
        except (MessageNotInFlight, NotOwner) as late:
            self._too_late(message, late)
        except (LockTimeout, TopicFull) as refused:
            self._not_answered(message, refused)
            return Outcome.FAILURE
        return self._outcome(message, good)

    def drain(self, timeout: float | None = 0) -> bool:
        """Take no more messages; those in flight can still be answered.

        `get` in other threads and iterating end, and what was fetched ahead goes back.  Waits up to
        `timeout` seconds (None: no limit) until everything was answered or has timed out, and
        returns whether that is so.
        """
        nanoseconds(timeout)
        self._stop_taking()
        deadline = None if timeout is None else time.monotonic() + timeout
        while not self.closed and self._stats().in_flight:
            left = _DRAIN_S if deadline is None else deadline - time.monotonic()
            if left <= 0:
                return False
            with contextlib.suppress(Empty):
                # A time-out wakes no thread, nor an answer more than one: look now and then.
                self._answered.get(timeout=min(left, _DRAIN_S))
        return True

    def set_max_in_flight(self, max_in_flight: int) -> None:
        """Take so many messages at a time from now on (NSQ's RDY).

        At most what the consumer was made with.  0: none; what was fetched ahead goes back.  What
        is in flight beyond it stays in flight.  Raises ValueError.
        """
        self._set_max_in_flight(max_in_flight)

    def fileno(self) -> int:
        """A descriptor for event loops: readable when `get(0)` may return a message.

        It also becomes readable through a timer, or the death of another consumer; call `get(0)`
        until it raises `Timeout`.
        """
        self._check_open()
        descriptor = lib.pn_consumer_fileno(self._handle)
        if descriptor < 0:
            self._refuse(descriptor)
        return descriptor

    def stats(self) -> ConsumerStats:
        """What the consumer has in flight now, and what it has done since it was made."""
        return self._stats()

    def close(self) -> None:
        """Put the messages in flight back at the head of the queue, in their old order.

        Threads in `get()` are woken and raise `InterfaceError`.  Closing twice is allowed; in a
        forked child it does nothing, since the consumer is the parent's.
        """
        self.give_up()
        self._ended.set()  # an earlier call may have been interrupted before it

    def _wake(self) -> None:
        self._ended.set()

    def reset_in_child(self) -> None:
        """Make new locks, in the child of a fork."""
        super().reset_in_child()
        self._taking, self._ended, self._asleep = RLock(), Event(), False
        self._trying = map(self._taking.acquire, repeat(False))
