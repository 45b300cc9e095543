"""Subscriptions whose channels come and go, for PubSub over the connections of pynotify.

Each channel is an inbox of its own, a strand, with its own beginning; all of them put what comes
into one deque, so the order between channels stays.  Nothing is dropped here: the reader of the
connection brings at most what the ring holds, and brings it when a caller waits.

A caller only waits for that deque, and then moves all of it in one step.  Were it handed a message,
as callers of Subscription.next() are, a signal handler that receives would take the rest of an
object of which the caller that it has interrupted has the first part in hand.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pynotify._async_subscription import AsyncSubscription
from pynotify._hot import finalizer
from pynotify._inbox import Inbox, take_out
from pynotify._subscription import Subscription
from pynotify._time import nanoseconds
from pynotify._types import Notify

if TYPE_CHECKING:
    from collections import deque

    from pynotify._link import TaskLink, ThreadLink
    from pynotify._receiver import Receiver
    from pynotify._types import Gap
    from pynotify.pubsub._guard import Guard


class _Stream(Inbox):
    """Without a limit, and what it has stays there until all of it is moved."""

    def __init__(self, skip_backend: int | None) -> None:
        super().__init__(None, "drop-oldest", skip_backend)

    def put(self, message: Notify | Gap) -> None:
        """Keep a message, and wake all waiters, which look for themselves."""
        if self.closed:
            return
        if message is not self._latest:
            selects = self._since or self._skip_backend
            if (selects is not None or self._added) and not self._owes(message):
                return
            self._keep(message)
        self.wake_all()  # and when the message is put again: this was interrupted

    def take(self) -> None:
        """Nothing is handed to a waiter."""


class _PartStream(_Stream):
    """The part of `root` that is one channel's."""

    def __init__(self, root: _Stream, skip_backend: int | None, guard: Guard) -> None:
        super().__init__(skip_backend)
        self.messages = root.messages
        self.waiters = root.waiters
        self._guard = guard

    def put(self, message: Notify | Gap) -> None:
        if message.__class__ is not Notify:
            return  # a gap is the root's, or it would come once a channel
        selects = self._since or self._skip_backend is not None or self._added
        if not (selects or self.waiters or self.closed or message is self._latest):
            # What Inbox.put() would do, for each part of a large object.  No call comes in between.
            self.messages += (message,)
            self.held += 1
            self._latest = message
            self._guard.pending = True
            return
        super().put(message)
        if self._latest is message:
            self._guard.pending = True

    def close(self) -> None:
        """The other channels, and the callers that wait for them, stay."""
        self.closed = True
        self._latest = None
        for channel in self.channels:
            take_out(self.messages, channel, [])


def _move(inbox: Inbox, guard: Guard, came: deque[Any]) -> None:
    """All that is there.  No call comes in between, and so no signal handler."""
    messages = inbox.messages
    guard.taking = True
    came += messages
    messages *= 0


def _watch(receiver: Receiver, guard: Guard) -> None:
    with receiver.lock:
        receiver.guards += (guard,)


def _unwatch(receiver: Receiver, guard: Guard) -> None:
    with receiver.lock:
        receiver.guards = tuple(other for other in receiver.guards if other is not guard)
        guard.close()


def _settle(
    receiver: Receiver, inbox: Inbox, guard: Guard, commit: int, oldest: int | None
) -> None:
    if guard.pending:
        with receiver.lock:
            if oldest is not None:
                guard.advance(oldest)
            elif not (inbox.messages or guard.taking):
                guard.settle(commit)


class _MergedStreams:
    """The strands by channel."""

    def __init__(self, root: _Stream, skip_backend: int | None, guard: Guard) -> None:
        self._root, self._guard = root, guard
        self._skip_backend = skip_backend
        self.strands: dict[str, _PartStream] = {}

    def has(self, channel: str) -> bool:
        """Whether it is listened to; one that a call was about to leave, and did not, is not."""
        strand = self.strands.get(channel)
        return strand is not None and not strand.closed

    def forget(self, channel: str, strand: _PartStream) -> None:
        """It was left; the channel may have another one by now."""
        if self.strands.get(channel) is strand:
            del self.strands[channel]

    def strand(self) -> _PartStream:
        return _PartStream(self._root, self._skip_backend, self._guard)

    def close(self) -> None:
        for strand in self.strands.values():
            strand.closed = True  # the connection forgets them with the next that is closed


class Taking:
    """What the strands of threads and of tasks have in common."""

    _receiver: Any
    _inbox: Inbox
    _guard: Guard

    def taken_in(self, commit: int, oldest: int | None) -> None:
        """What take() has appended was looked at; the last of it is of `commit`.

        `oldest`: that of the first reference of which the array is not held yet; None: no such.
        """
        self._guard.taking = False
        _settle(self._receiver, self._inbox, self._guard, commit, oldest)

    def resolved(self, commit: int, oldest: int | None) -> None:
        """The same of references, while take() may be under way."""
        _settle(self._receiver, self._inbox, self._guard, commit, oldest)


class Strands(Subscription, Taking):
    """For threads.  It listens to nothing yet."""

    def __init__(self, link: ThreadLink, guard: Guard, *, skip_self: bool) -> None:
        self._link, self._receiver = link, link.receiver
        self._closed = False
        self._inbox: _Stream = _Stream(None)
        skipped = link.handle.backend_id if skip_self else None
        self._merged = _MergedStreams(self._inbox, skipped, guard)
        _watch(self._receiver, guard)
        self._guard = guard
        self._receiver.subscribe(self._inbox, ())

    @property
    def channels(self) -> tuple[str, ...]:
        """The channels it listens to."""
        return tuple(self._merged.strands)

    def add(self, *channels: str) -> None:  # type: ignore[override]
        """Listen to the channels, too, when this returns.  Adding one twice changes nothing."""
        self._check_open()
        self._link.transactions.refuse("subscribe")
        for channel in channels:
            if not self._merged.has(channel):
                self._add(channel)

    def _add(self, channel: str) -> None:
        strand = self._merged.strand()
        try:
            self._receiver.subscribe(strand, [channel])
            self._merged.strands[channel] = strand
        except BaseException:  # Ctrl-C may have come after it
            strand.closed = True  # the connection forgets it with the next that is closed
            raise

    def discard(self, *channels: str) -> None:  # type: ignore[override]
        """Stop listening to the channels; what was not taken of them is dropped."""
        self._check_open()
        self._link.transactions.refuse("unsubscribe")
        for channel in channels:
            strand = self._merged.strands.get(channel)
            if strand is not None:
                self._receiver.unsubscribe(strand)
                self._merged.forget(channel, strand)

    def take(self, timeout: float | None, came: deque[Any]) -> None:
        """Append everything that is there, after waiting; nothing when the time is over."""
        self._receive(self._waiter(), nanoseconds(timeout))
        with self._receiver.lock:
            _move(self._inbox, self._guard, came)

    def close(self) -> None:
        """Stop listening."""
        self._merged.close()
        super().close()
        _unwatch(self._receiver, self._guard)

    @finalizer
    def __del__(self) -> None:
        merged: _MergedStreams | None = getattr(self, "_merged", None)
        if merged is not None:
            merged.close()
        super().__del__()


class AsyncStrands(AsyncSubscription, Taking):
    """For tasks.  It listens to nothing yet."""

    def __init__(self, link: TaskLink, guard: Guard, *, skip_self: bool) -> None:
        self._link, self._receiver = link, link.receiver
        self._opened = self._closed = False
        self._inbox: _Stream = _Stream(None)
        skipped = link.handle.backend_id if skip_self else None
        self._merged = _MergedStreams(self._inbox, skipped, guard)
        _watch(self._receiver, guard)
        self._guard = guard

    @property
    def channels(self) -> tuple[str, ...]:
        """The channels it listens to."""
        return tuple(self._merged.strands)

    async def open(self) -> None:
        """Start to listen, before any channel is added."""
        self._keys = ()
        await self._open()

    async def add(self, *channels: str) -> None:  # type: ignore[override]
        """Listen to the channels, too, when this returns.  Adding one twice changes nothing."""
        self._check_open()
        self._link.transactions.refuse("subscribe")
        for channel in channels:
            if not self._merged.has(channel):
                await self._add(channel)

    async def _add(self, channel: str) -> None:
        strand = self._merged.strand()

        def subscribe() -> None:
            self._receiver.subscribe(strand, [channel])
            self._merged.strands[channel] = strand

        try:
            await self._link.off_loop.retry(subscribe)
        except BaseException:
            if self._merged.strands.get(channel) is not strand:
                strand.closed = True
            raise
        self._receiver.start_reading()

    async def discard(self, *channels: str) -> None:  # type: ignore[override]
        """Stop listening to the channels; what was not taken of them is dropped."""
        self._check_open()
        self._link.transactions.refuse("unsubscribe")
        for channel in channels:
            strand = self._merged.strands.get(channel)
            if strand is not None:
                await self._receiver.drop(strand)
                self._merged.forget(channel, strand)

    async def take(self, timeout: float | None, came: deque[Any]) -> None:
        """Append everything that is there, after waiting; nothing when the time is over."""
        await self._receive(timeout)
        _move(self._inbox, self._guard, came)

    async def close(self) -> None:
        """Stop listening."""
        self._merged.close()
        await super().close()
        _unwatch(self._receiver, self._guard)

    @finalizer
    def __del__(self) -> None:
        merged: _MergedStreams | None = getattr(self, "_merged", None)
        if merged is not None:
            merged.close()
        super().__del__()
