"""Messages that threads put and tasks of any event loop take."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from typing import TYPE_CHECKING, Any

from pynotify.errors import InterfaceError

if TYPE_CHECKING:
    from contextlib import AbstractContextManager


def closed() -> InterfaceError:
    """The error of a task that waits for what will not come."""
    return InterfaceError(
        "the channel layer was closed, or has lost its segment",
        hint="What was to come on this channel is gone.  End the consumer; it gets a new channel.",
    )


class _Waiter:
    """A task that waits; `message` is what it was handed."""

    __slots__ = ("future", "loop", "message")

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.future: asyncio.Future[None] = self.loop.create_future()
        self.message: tuple[float, Any] | None = None

    def wake(self) -> None:
        if not self.future.done():
            self.future.set_result(None)


class Mailbox:
    """At most `capacity` messages, each until its time is over.  Everything needs `lock`."""

    __slots__ = ("_capacity", "_ended", "_lock", "_messages", "_waiters")

    def __init__(self, lock: AbstractContextManager[Any], capacity: int) -> None:
        self._lock = lock
        self._capacity = capacity
        self._messages: deque[tuple[float, Any]] = deque()
        self._waiters: deque[_Waiter] = deque()
        self._ended = False

    @property
    def idle(self) -> bool:
        """Whether it has no message, and no task waits."""
        return not self._messages and not self._waiters

    def expire(self, now: float) -> None:
        """Drop the messages whose time is over."""
        self._messages = deque(each for each in self._messages if each[0] > now)

    def put(self, message: Any, until: float, now: float) -> bool:
        """Hand it to the task that has waited longest, or keep it; False: it is full."""
        while self._waiters:
            waiter = self._waiters.popleft()
            waiter.message = (until, message)
            with contextlib.suppress(RuntimeError):  # its loop is closed
                waiter.loop.call_soon_threadsafe(waiter.wake)
                return True
        if len(self._messages) >= self._capacity:
            self.expire(now)
        if len(self._messages) >= self._capacity:
            return False
        self._messages.append((until, message))
        return True

    async def get(self, now: float) -> Any:
        """Wait for the next message.  Called without the lock; cancelling it loses nothing."""
        with self._lock:
            self.expire(now)
            if self._messages:
                return self._messages.popleft()[1]
            if self._ended:
                raise closed()
            waiter = _Waiter()
            self._waiters.append(waiter)
        try:
            await waiter.future
        except BaseException:
            with self._lock:
                if waiter.message is not None:
                    self._messages.appendleft(waiter.message)
                    self._pass_on()
                elif not self._ended:
                    self._waiters.remove(waiter)
            raise
        if waiter.message is None:
            raise closed()
        return waiter.message[1]

    def end(self) -> None:
        """Nothing comes any more: tasks that wait, or will, raise `InterfaceError`."""
        self._ended = True
        while self._waiters:
            waiter = self._waiters.popleft()
            with contextlib.suppress(RuntimeError):  # its loop is closed
                waiter.loop.call_soon_threadsafe(waiter.wake)

    def _pass_on(self) -> None:
        """What a cancelled task gave back is for the next that waits."""
        if self._waiters:
            until, message = self._messages.popleft()
            self.put(message, until, 0.0)
