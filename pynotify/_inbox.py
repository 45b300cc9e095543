"""What has been read for one consumer, and who waits for it.

A connection reads for all of its consumers at once: for poll() and notifies(), and for each
subscription.  `Inboxes` is where the messages go; every one is put into the inbox of each
consumer that it is owed to, in order.  Everything here happens with the connection's lock held.

Waiting consumers are served in the order in which they came.  Subscriptions hand a message to
the waiter itself, so that nobody who comes later can take it away from him; whoever gives up
waiting puts it back in front.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Protocol

from pynotify._types import Gap, Notify

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["OVERFLOW", "Inbox", "Inboxes", "MainInbox", "Waiter"]

OVERFLOW = ("drop-oldest", "drop-newest", "block")


class Waiter(Protocol):
    """Somebody who waits, a thread or a task."""

    #: What was handed to him.
    message: Notify | Gap | None

    def wake(self) -> None:
        """Let him look; once is enough."""


class MainInbox:
    """That of poll(), notifies() and wait(): nothing is ever dropped, all waiters look."""

    def __init__(self) -> None:
        self.messages: deque[Notify | Gap] = deque()
        self.waiters: list[Waiter] = []

    def put(self, message: Notify | Gap) -> None:
        self.messages.append(message)
        if self.waiters:
            self.wake_all()

    def wake_all(self) -> None:
        for waiter in self.waiters:
            waiter.wake()

    def take(self, count: int | None) -> list[Notify | Gap]:
        """Up to `count`, None: all; a thread in notifies() may be taking as well."""
        taken: list[Notify | Gap] = []
        try:
            while count is None or len(taken) < count:
                taken.append(self.messages.popleft())
        except IndexError:
            pass
        return taken


class Inbox:
    """That of a subscription: at most `maxlen` messages, not counting Gaps."""

    def __init__(self, maxlen: int | None, overflow: str, skip_backend: int | None) -> None:
        if maxlen is not None and maxlen < 1:
            raise ValueError(f"maxlen must be at least 1, is {maxlen}")
        if overflow not in OVERFLOW:
            raise ValueError(f"overflow must be one of {', '.join(OVERFLOW)}, not {overflow!r}")
        self.messages: deque[Notify | Gap] = deque()
        self.waiters: deque[Waiter] = deque()
        self.closed = False
        self.channels: tuple[str, ...] = ()
        #: Messages that overflow dropped.
        self.dropped = 0
        #: Messages among `messages`.
        self.held = 0
        #: Nothing of this commit or an earlier one is owed; None once that is past.
        self.since: int | None = None
        self._maxlen = maxlen
        self._overflow = overflow
        self._skip_backend = skip_backend

    @property
    def room(self) -> int | None:
        """How many may be read before one has to be dropped; None when it does not matter."""
        if self._overflow != "block" or self._maxlen is None or self.closed:
            return None
        return self._maxlen - self.held

    def put(self, message: Notify | Gap) -> None:
        if self.closed:
            return
        if isinstance(message, Notify):
            if self.since is not None:
                if message.seq <= self.since:
                    return
                self.since = None
            if self._skip_backend is not None and message.backend_id == self._skip_backend:
                return
        if self.waiters:
            waiter = self.waiters.popleft()
            waiter.message = message
            waiter.wake()
        else:
            self._keep(message)

    def put_back(self, message: Notify | Gap) -> None:
        """What was handed to somebody who does not want it any more: it is the oldest."""
        if self.waiters:
            waiter = self.waiters.popleft()
            waiter.message = message
            waiter.wake()
        else:
            self.messages.appendleft(message)
            self.held += isinstance(message, Notify)

    def take(self) -> Notify | Gap:
        message = self.messages.popleft()
        self.held -= isinstance(message, Notify)
        return message

    def forget(self, since: int) -> None:
        """Nothing up to commit `since` is owed, though it was read already."""
        self.since = since
        messages = [m for m in self.messages if isinstance(m, Notify) and m.seq > since]
        self.messages.clear()
        self.messages.extend(messages)
        self.held = len(messages)
        self.dropped = 0

    def close(self) -> None:
        self.closed = True
        self.messages.clear()
        self.held = 0
        self.wake_all()

    def wake_all(self) -> None:
        """With nothing: they see for themselves why."""
        while self.waiters:
            self.waiters.popleft().wake()

    def _keep(self, message: Notify | Gap) -> None:
        if not isinstance(message, Notify):
            self.messages.append(message)
            return
        if self._maxlen is None or self.held < self._maxlen or self._overflow == "block":
            self.messages.append(message)
            self.held += 1
        elif self._overflow == "drop-newest":
            self._drop(message, at_the_end=True)
        else:
            self._drop(self._oldest(), at_the_end=False)
            self.messages.append(message)

    def _oldest(self) -> Notify:
        """Out of the queue; what stands before it is at most one Gap of ours."""
        for index, message in enumerate(self.messages):
            if isinstance(message, Notify):
                del self.messages[index]
                return message
        raise AssertionError("a full inbox without messages")

    def _drop(self, message: Notify, *, at_the_end: bool) -> None:
        """One Gap stands for all that were dropped one after the other."""
        self.dropped += 1
        lost = len(message.data)
        end = -1 if at_the_end else 0
        last = self.messages[end] if self.messages else None
        if isinstance(last, Gap) and last.reason == Gap.OVERFLOW:
            self.messages[end] = last.grown(lost)
        elif at_the_end:
            self.messages.append(Gap(lost, Gap.OVERFLOW, 1))
        else:
            self.messages.appendleft(Gap(lost, Gap.OVERFLOW, 1))


class Inboxes:
    """The inboxes of one connection."""

    def __init__(self) -> None:
        self.main = MainInbox()
        self.all: set[Inbox] = set()
        self._by_channel: dict[str, list[Inbox]] = {}
        #: Those for which reading has to stop when they are full.
        self._blocking: set[Inbox] = set()

    def add(self, inbox: Inbox, channels: Iterable[str]) -> list[str]:
        """Returns the channels that nobody had before."""
        fresh = []
        inbox.channels = tuple(channels)
        self.all.add(inbox)
        if inbox.room is not None:
            self._blocking.add(inbox)
        for channel in inbox.channels:
            found = self._by_channel.setdefault(channel, [])
            if not found:
                fresh.append(channel)
            found.append(inbox)
        return fresh

    def remove(self, inbox: Inbox) -> list[str]:
        """Returns the channels that nobody has any more."""
        stale = []
        self.all.discard(inbox)
        self._blocking.discard(inbox)
        for channel in inbox.channels:
            found = self._by_channel.get(channel, [])
            if inbox in found:
                found.remove(inbox)
                if not found:
                    del self._by_channel[channel]
                    stale.append(channel)
        return stale

    def sweep(self) -> list[str]:
        """Remove those that are closed.  Returns the channels that nobody has any more."""
        closed = [inbox for inbox in self.all if inbox.closed]
        return [channel for inbox in closed for channel in self.remove(inbox)]

    def room(self) -> int | None:
        """How many messages may be read now; None: any number."""
        if not self._blocking:
            return None
        rooms = [room for inbox in self._blocking if (room := inbox.room) is not None]
        return max(0, min(rooms)) if rooms else None

    def put_for_subscriptions(self, channel: str, message: Notify | Gap) -> None:
        for inbox in self._by_channel.get(channel, ()):
            inbox.put(message)

    def clear(self) -> None:
        """In the child of a fork, where nothing of this is its own."""
        self.main.messages.clear()
        self.main.waiters.clear()
        for inbox in self.all:
            inbox.messages.clear()
            inbox.waiters.clear()
            inbox.held = 0
