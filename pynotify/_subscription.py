"""Many listeners in one process: subscriptions, which share their connection's backend slot."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, NamedTuple

from pynotify._closing import ClosedByWith
from pynotify._hot import finalizer
from pynotify._inbox import Inbox, keys_of
from pynotify._leader import ThreadWaiter
from pynotify._log import logger
from pynotify._public import public
from pynotify._time import nanoseconds
from pynotify.errors import Error, InterfaceError, Timeout

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Self

    from pynotify._link import ThreadLink
    from pynotify._types import Gap, Notify

    Handler = Callable[[Notify | Gap], object]
    ErrorHandler = Callable[[Exception], object]


class Subscription(ClosedByWith):
    """Messages of some channels and patterns, made by `Connection.subscribe`.

    Thread-safe: each message is returned once, to the thread that has waited longest.  Iterating
    waits for the next message, and ends when the subscription is closed.
    """

    def __init__(
        self,
        link: ThreadLink,
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
        self._inbox = Inbox(maxlen, overflow, link.handle.backend_id if skip_self else None)
        self._closed = False
        self._receiver.subscribe(self._inbox, keys)

    @property
    def channels(self) -> tuple[str, ...]:
        """The channels it listens to."""
        return self._inbox.channels

    @property
    def patterns(self) -> tuple[str, ...]:
        """The patterns it listens to."""
        return self._inbox.patterns

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
        return self._inbox.closed or self._link.handle.closed

    def next(self, timeout: float | None = None) -> Notify | Gap:
        """The next message; a `Gap` where messages were dropped.

        `timeout` in seconds, None: no limit, 0: what is there.  Raises `Timeout`,
        `InterfaceError` when the subscription is closed, and `ActiveTransaction` while the calling
        thread has a transaction open.
        """
        message = self._receive(self._waiter(), nanoseconds(timeout))
        if message is None:
            names = ", ".join((*self.channels, *self.patterns))
            raise Timeout(f"nothing came on {names} in {timeout} s")
        return message

    def start(
        self,
        handler: Handler,
        *,
        daemon: bool = True,
        on_error: ErrorHandler | None = None,
    ) -> SubscriptionThread:
        """Start a thread that calls `handler(message)` for each message, Gaps too.

        End it by `stop()`.

        When the handler raises, `on_error(exception)` is called, or without it the exception is
        logged, and the thread goes on.
        """
        self._check_open()
        self._link.handle.check_usable()
        listen = _Listening(self._receive, self._waiter, self._cancel, lambda: self.closed)
        thread = SubscriptionThread(self, listen, handler, on_error, daemon=daemon)
        thread.start()
        return thread

    def add(self, *channels: str, patterns: Iterable[str] = ()) -> None:
        """Listen to more channels and patterns: to what is committed from now on.

        Those that it listens to already change nothing.  Errors as `Connection.subscribe`; then
        none is added.  In a transaction of the calling thread `ActiveTransaction`.
        """
        self._check_open()
        self._link.transactions.refuse("subscribe")
        self._receiver.subscribe(self._inbox, keys_of(channels, patterns))

    def discard(self, *channels: str, patterns: Iterable[str] = ()) -> None:
        """Listen to these channels and patterns no more; what is unread of them is gone.

        Those that it does not listen to change nothing.  A subscription to nothing stays open, for
        `add`.
        """
        self._check_open()
        self._link.transactions.refuse("unsubscribe")
        self._receiver.unsubscribe(self._inbox, keys_of(channels, patterns))
        self._receiver.room_made()

    def close(self) -> None:
        """Stop listening; unread messages are gone, and threads in `next()` are woken.

        Closing twice is allowed.  In a signal handler it waits for no other thread: one that is
        subscribing stops listening for it.
        """
        self._closed = True
        self._receiver.close_inbox(self._inbox)
        self._receiver.room_made()

    def _waiter(self) -> ThreadWaiter:
        return ThreadWaiter(self._receiver.election)

    def _receive(self, waiter: ThreadWaiter, timeout_ns: int) -> Notify | Gap | None:
        """None: the time is over, or the waiter was cancelled."""
        receiver, inbox = self._receiver, self._inbox
        election = receiver.election
        self._check_open()
        self._link.transactions.refuse("next")
        deadline = time.monotonic_ns() + timeout_ns if timeout_ns > 0 else -1
        try:
            try:
                with receiver.lock:
                    if self._must_wait(waiter, timeout_ns):
                        election.enter(waiter)
                if waiter.entered:
                    election.wait(waiter, deadline, receiver.look)
            finally:
                interruption = None
                while waiter.entered and not waiter.left:
                    try:
                        with receiver.lock:
                            election.leave(waiter, inbox.waiters)
                    except BaseException as error:  # Ctrl-C: no thread would lead any more
                        interruption = error
                if interruption is not None:
                    raise interruption
            if inbox.blocks:
                receiver.room_made()
        except BaseException:
            if waiter.message is not None:
                with receiver.lock:
                    inbox.put_back(waiter.message)
            raise
        if waiter.message is None:
            self._check_open()
        # Nothing is called from here to the caller: Ctrl-C cannot come in between.
        return waiter.message

    def _must_wait(self, waiter: ThreadWaiter, timeout_ns: int) -> bool:
        """Then the waiter is among those of the inbox; else it may have a message already."""
        inbox = self._inbox
        if self._receiver.interrupted:
            self._receiver.recover()
        if timeout_ns == 0 and not inbox.messages:
            self._receiver.dispatch()
        if inbox.messages:
            waiter.message = inbox.take()
        found = waiter.message is not None or inbox.messages  # where they are not handed out
        if timeout_ns == 0 or found or waiter.cancelled or inbox.closed:
            return False
        waiter.entered = True
        inbox.waiters.append(waiter)
        return True

    def _cancel(self, waiter: ThreadWaiter) -> None:
        """Make _receive() in another thread return, now or when it comes to it."""
        with self._receiver.lock:
            waiter.cancelled = True
            self._inbox.forget(waiter)
            waiter.wake()

    def _check_open(self) -> None:
        if self._closed:
            raise InterfaceError("the subscription is closed", hint="Subscribe again.")
        if self._inbox.closed:
            self._link.handle.check_usable()

    @finalizer
    def __del__(self) -> None:
        # Forgotten, not closed: nothing is kept for it any more; the next one that is opened or
        # closed takes it off the connection's list.
        inbox: Inbox | None = getattr(self, "_inbox", None)
        if inbox is not None:
            inbox.closed = True

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Notify | Gap:
        try:
            return self.next()
        except InterfaceError:
            if self._closed:
                raise StopIteration from None
            raise

    def __repr__(self) -> str:
        state = "closed" if self.closed else f"{self.pending} pending, {self.dropped} dropped"
        names = ", ".join((*self.channels, *self.patterns))
        return f"<pynotify.Subscription to {names} ({state})>"


class _Listening(NamedTuple):
    """What a `SubscriptionThread` does with its subscription."""

    receive: Callable[[ThreadWaiter, int], Notify | Gap | None]
    waiter: Callable[[], ThreadWaiter]
    cancel: Callable[[ThreadWaiter], None]
    closed: Callable[[], bool]


class SubscriptionThread(threading.Thread):
    """The thread that `Subscription.start` returns."""

    def __init__(
        self,
        subscription: Subscription,
        listening: _Listening,
        handler: Handler,
        on_error: ErrorHandler | None,
        *,
        daemon: bool,
    ) -> None:
        name = "-".join(("pynotify", *subscription.channels, *subscription.patterns))
        super().__init__(name=name, daemon=daemon)
        self._listening = listening
        self._handler = handler
        self._on_error = on_error
        self._waiter = listening.waiter()
        self._stopping = False

    def stop(self, timeout: float | None = None) -> None:
        """End the thread, and wait for it, at most `timeout` seconds.

        The message that its handler is working on is finished; the subscription stays open.
        """
        patience = None if timeout is None else nanoseconds(timeout) / 1e9
        self._stopping = True
        self._listening.cancel(self._waiter)
        if threading.current_thread() is not self:
            self.join(patience)

    def run(self) -> None:
        """Handle messages until the thread is stopped or the subscription closed."""
        while True:
            self._waiter = self._listening.waiter()
            try:
                # stop() sets its flag before it looks at the waiter
                if self._stopping:
                    return
                message = self._listening.receive(self._waiter, -1)
            except Error as error:
                if not self._listening.closed():
                    self._report(error)
                return
            if message is not None:
                try:
                    self._handler(message)
                except Exception as error:
                    self._report(error)

    def _report(self, error: Exception) -> None:
        if self._on_error is not None:
            self._on_error(error)
        else:
            logger.error("%s: %r raised", self.name, self._handler, exc_info=error)


public(Subscription)
