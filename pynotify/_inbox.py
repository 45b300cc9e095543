"""What has been read for one receiver, and the threads or tasks that wait for it.

A connection reads for all of its consumers at once: for poll() and notifies(), and for each
subscription.  `Inboxes` is where the messages go; every one is put into the inbox of each
consumer that it is owed to, in order.  Everything here happens with the connection's lock held,
except that notifies() takes out of the main inbox without it.

Waiting consumers are served in the order in which they came.  Subscriptions hand a message to
the waiter itself, so that a later one cannot take it away; a waiter that gives up puts it back in
front.

An exception of a signal handler (Ctrl-C) can come at every call, and what has been read is not
only for the thread that it hits.  So what is read stays in `arrived` until it has been put
everywhere, put() may be repeated for the message it did last, and what must happen together
happens in statements without calls: assignments, `del`, `+=` on a deque.
"""

from __future__ import annotations

from collections import deque
from itertools import compress, repeat, starmap
from operator import attrgetter, eq, ne
from typing import TYPE_CHECKING, NamedTuple, Protocol

from pynotify._encoding import encode_channel, encode_pattern
from pynotify._ffi import lib
from pynotify._types import Gap, Notify

if TYPE_CHECKING:
    from collections.abc import Iterable
    from collections.abc import Set as AbstractSet
    from typing import Any, TypeAlias

__all__ = [
    "OVERFLOW",
    "Inbox",
    "Inboxes",
    "Key",
    "MainInbox",
    "Pattern",
    "Waiter",
    "keys_of",
    "take_out",
]

OVERFLOW = ("drop-oldest", "drop-newest", "block")

_LISTEN = 1 << lib.PN_ROUTE_LISTEN
_SUBSCRIBE = 1 << lib.PN_ROUTE_SUBSCRIBE
_NEVER = 1 << 64
#: So many channels that were heard by patterns are known by name; beyond that all are forgotten.
_REMEMBERED = 4096


_channel_of = attrgetter("channel")


def take_out(messages: deque[Any], channel: str, taken: list[Any]) -> None:
    """Move those of the channel to `taken`.

    Other threads, and a signal handler, may take from `messages` meanwhile: none of what they got
    comes back, and what they left stays in order.
    """
    while True:
        of_it = map(eq, map(_channel_of, messages), repeat(channel))
        of_others = map(ne, map(_channel_of, messages), repeat(channel))
        leaving, staying = compress(messages, of_it), compress(messages, of_others)
        try:
            # No call comes in between, and each list is complete, or raises.
            left, others = [*leaving], [*staying]
            messages *= 0
            messages += others
            taken += left
        except RuntimeError:  # it was changed since
            continue
        return


class Pattern(NamedTuple):
    """A pattern among the names that a subscription listens to; no channel equals it."""

    text: str

    def matches(self, channel: str) -> bool:
        """Whether the channel is one of its."""
        pattern, name = encode_pattern(self.text), encode_channel(channel)
        return bool(lib.pn_pattern_matches(pattern, len(pattern), name, len(name)))


#: A channel, or a pattern.
Key: TypeAlias = str | Pattern


def keys_of(channels: Iterable[str], patterns: Iterable[str]) -> tuple[Key, ...]:
    """Channels and patterns, each once.

    Raises `TypeError`, `InvalidChannelName` for what cannot be a pattern.
    """
    if isinstance(patterns, str):
        raise TypeError("patterns must be an iterable of patterns, not one pattern")
    found = tuple(map(Pattern, patterns))
    for pattern in found:
        encode_pattern(pattern.text)
    return tuple(dict.fromkeys((*channels, *found)))


class Waiter(Protocol):
    """A thread or task that waits."""

    #: What was handed to it.
    message: Notify | Gap | None

    def wake(self) -> None:
        """Wake it; once is enough."""


class MainInbox:
    """That of poll(), notifies() and wait(): nothing is ever dropped, all waiters look."""

    def __init__(self) -> None:
        self.messages: deque[Notify | Gap] = deque()
        self.waiters: list[Waiter] = []
        self._latest: Notify | Gap | None = None

    def put(self, message: Notify | Gap) -> None:
        """Append a message, and wake all waiters."""
        messages = self.messages
        if message is not self._latest:
            messages += (message,)
            self._latest = message
        if self.waiters:
            self.wake_all()

    def wake_all(self) -> None:
        """Wake all waiters, which look for themselves."""
        for waiter in tuple(self.waiters):  # a waiter that leaves takes itself out
            waiter.wake()

    def take(self, taken: list[Notify | Gap], count: int | None) -> None:
        """Append up to `count`, None: all; a thread in notifies() may be taking as well."""
        # One call: none can be lost between two of its steps.
        try:
            if count is None:
                taken.extend(starmap(self.messages.popleft, repeat(())))
            else:
                taken.extend(starmap(self.messages.popleft, repeat((), count)))
        except IndexError:
            pass


class Inbox:
    """That of a subscription: at most `maxlen` messages, not counting Gaps."""

    def __init__(self, maxlen: int | None, overflow: str, skip_backend: int | None) -> None:
        if maxlen is not None and maxlen < 1:
            raise ValueError(f"maxlen must be at least 1, is {maxlen}")
        if overflow not in OVERFLOW:
            raise ValueError(f"overflow must be one of {', '.join(OVERFLOW)}, not {overflow!r}")
        self.messages: deque[Notify | Gap] = deque()
        self.waiters: list[Waiter] = []
        self.closed = False
        #: What it listens to.
        self.keys: tuple[Key, ...] = ()
        #: Messages that overflow dropped.
        self.dropped = 0
        #: Messages among `messages`.
        self.held = 0
        #: Reading has to stop while it is full.
        self.blocks = overflow == "block" and maxlen is not None
        #: Nothing of this commit or an earlier one is owed; None once that is past.
        self._since: int | None = _NEVER
        #: The same of channels that were added later, until it is past; of patterns for good.
        self._added: dict[Key, int] = {}
        self._maxlen = maxlen
        self._overflow = overflow
        self._skip_backend = skip_backend
        self._latest: Notify | Gap | None = None

    @property
    def room(self) -> int | None:
        """How many may be read before one has to be dropped; None when it does not matter."""
        if not self.blocks or self._maxlen is None or self.closed:
            return None
        return self._maxlen - self.held

    @property
    def channels(self) -> tuple[str, ...]:
        """The channels among `keys`."""
        return tuple(key for key in self.keys if isinstance(key, str))

    @property
    def patterns(self) -> tuple[str, ...]:
        """The patterns among `keys`."""
        return tuple(key.text for key in self.keys if isinstance(key, Pattern))

    def put(self, message: Notify | Gap) -> None:
        """Hand a message to the first waiter, or keep it."""
        waiters = self.waiters
        if waiters and waiters[0].message is not None:
            self._serve()
        if self.closed or message is self._latest:
            return
        selects = self._since or self._skip_backend
        if (selects is not None or self._added) and not self._owes(message):
            return
        if waiters:
            waiter = waiters[0]
            waiter.message = self._latest = message
            self._serve()
        else:
            self._keep(message)

    def put_back(self, message: Notify | Gap) -> None:
        """Take back what was handed to a waiter that gave up: it is among the oldest."""
        if self.closed:
            return
        if self.waiters:
            self.waiters[0].message = message
            self._serve()
        else:
            index = 0  # several may come back, in any order
            while index < len(self.messages) and _is_older(self.messages[index], message):
                index += 1
            self.held += isinstance(message, Notify)
            self.messages.insert(index, message)

    def take(self) -> Notify | Gap | None:
        """The oldest message; None when the inbox was closed."""
        messages = self.messages
        if not messages:  # closed by a signal handler
            return None
        message = messages[0]
        self.held -= message.__class__ is Notify  # not isinstance(), which is a call
        del messages[0]
        return message

    def forget(self, waiter: Waiter) -> None:
        """Remove `waiter`."""
        if waiter in self.waiters:
            self.waiters.remove(waiter)

    def open(self, since: int) -> None:
        """Begin: everything is owed that comes after commit `since`."""
        self._since = since

    def hears(self, key: Key) -> bool:
        """Whether it is one of its, and from some commit on."""
        return key in self.keys and self._added.get(key) != _NEVER

    def expect(self, keys: Iterable[Key], since: int = _NEVER) -> None:
        """Owe everything of these that comes after commit `since`."""
        self._added.update(dict.fromkeys(keys, since))

    def expect_no_more(self, keys: Iterable[Key]) -> None:
        """Forget these, which are not among its keys any more."""
        for key in keys:
            self._added.pop(key, None)

    def rank(self, key: Key) -> int:
        """A channel comes before patterns, and these in the order in which it got them."""
        return -1 if isinstance(key, str) else self.keys.index(key)

    def key_of(self, message: Notify, keys: Iterable[Key]) -> Key | None:
        """The first of these keys, all of which fit, by which the message is owed."""
        started = (key for key in keys if message.seq > self._added.get(key, -1))
        return next(started, None)

    def drop(self, keys: Iterable[Key]) -> None:
        """Keep no message that only these were for; they are not among its keys any more."""
        messages, gone, left = self.messages, frozenset(keys), frozenset(self.keys)
        while True:
            # A signal handler may take messages, or read more, until they are changed in one step.
            now = map(id, messages)
            found = list(messages)
            seen = list(map(id, found))
            kept = [message for message in found if not self._was_for(message, gone, left)]
            held = sum(isinstance(message, Notify) for message in kept)
            try:
                # No call comes in between.  The first raises when messages have come or gone.
                if [*now] != seen:
                    continue
                messages *= 0
                messages += kept
                self.held = held
            except RuntimeError:
                continue
            return

    def _was_for(
        self, message: Notify | Gap, gone: AbstractSet[Key], left: AbstractSet[Key]
    ) -> bool:
        """Whether it was for the keys that are gone alone."""
        if not isinstance(message, Notify) or _key_of(message) not in gone:
            return False
        others = (Pattern(pattern) for pattern in self.patterns)
        fitting = [pattern for pattern in others if pattern.matches(message.channel)]
        return self.key_of(message, left & {message.channel, *fitting}) is None

    def close(self) -> None:
        """Keep no message any more, and wake all waiters."""
        self.closed = True
        # Not emptied: a signal handler that closes may have interrupted a reader of it.
        self.messages = deque()
        self.held = 0
        self._latest = None
        self.wake_all()

    def wake_all(self) -> None:
        """Wake all waiters without a message: they see for themselves why."""
        for waiter in tuple(self.waiters):
            waiter.wake()
            self.forget(waiter)

    def _serve(self) -> None:
        """Wake the waiters that have a message."""
        waiters = self.waiters
        while waiters and waiters[0].message is not None:
            waiter = waiters[0]
            waiter.wake()
            if waiters and waiters[0] is waiter:
                del waiters[0]

    def _owes(self, message: Notify | Gap) -> bool:
        if not isinstance(message, Notify):
            return self._since != _NEVER
        if self._since is not None:
            if message.seq <= self._since:
                return False
            self._since = None
        added = self._added.get(_key_of(message)) if self._added else None
        if added is not None:
            if message.seq <= added:
                return False
            if not self.patterns:  # else it has to be told apart by which a message is owed
                self._added.pop(message.channel, None)
        return self._skip_backend is None or message.backend_id != self._skip_backend

    def _keep(self, message: Notify | Gap) -> None:
        """Sets `_latest` in one step with it."""
        messages = self.messages
        if not isinstance(message, Notify):
            last = messages[-1] if messages else None
            if isinstance(last, Gap) and last.reason == message.reason:
                messages[-1] = last.joined(message)
            else:
                messages += (message,)
            self._latest = message
        elif self._maxlen is None or self.held < self._maxlen or self.blocks:
            messages += (message,)
            self.held += 1
            self._latest = message
        elif self._overflow == "drop-newest":
            self._drop_newest(messages, message)
        else:
            self._drop_oldest(messages, message)

    def _drop_newest(self, messages: deque[Notify | Gap], message: Notify) -> None:
        """One Gap stands for all that were dropped one after the other."""
        last = messages[-1]
        grows = _is_overflow(last)
        gap = _gap(last, message)
        if grows:
            messages[-1] = gap
        else:
            messages += (gap,)
        self.dropped += 1
        self._latest = message

    def _drop_oldest(self, messages: deque[Notify | Gap], message: Notify) -> None:
        at, oldest = next((i, m) for i, m in enumerate(messages) if isinstance(m, Notify))
        before = messages[at - 1] if at else oldest
        grows = _is_overflow(before)
        gap = _gap(before, oldest)
        if grows:
            messages[at - 1] = gap
            del messages[at]
        else:
            messages[at] = gap
        messages += (message,)
        self.dropped += 1
        self._latest = message


def _key_of(message: Notify) -> Key:
    """By which it came."""
    return message.channel if message.pattern is None else Pattern(message.pattern)


def _labelled(message: Notify, key: Key) -> Notify:
    """The message, as it comes by the key."""
    pattern = None if isinstance(key, str) else key.text
    if message.pattern == pattern:
        return message
    return Notify(
        message.channel,
        message.data,
        message.pid,
        message.seq,
        message.sent_ns,
        message.sender,
        message.order[1],
        pattern,
    )


def _is_older(one: Notify | Gap, other: Notify | Gap) -> bool:
    if isinstance(one, Notify) and isinstance(other, Notify):
        return one.order < other.order
    return False


def _is_overflow(message: Notify | Gap) -> bool:
    return isinstance(message, Gap) and message.reason == Gap.OVERFLOW


def _gap(before: Notify | Gap, lost: Notify) -> Gap:
    if isinstance(before, Gap) and before.reason == Gap.OVERFLOW:
        return before.grown(len(lost.data))
    return Gap(len(lost.data), Gap.OVERFLOW, 1)


class Inboxes:
    """The inboxes of one connection."""

    def __init__(self) -> None:
        self.main = MainInbox()
        self.all: set[Inbox] = set()
        #: Read, and not yet put where it belongs; with its routes.
        self.arrived: deque[tuple[Notify | Gap, int]] = deque()
        # Tuples, since a subscription may be closed while one of them is gone through.
        self._by_key: dict[Key, tuple[Inbox, ...]] = {}
        #: Patterns among these; and, where there are some, which inboxes hear a channel that came.
        self._patterns: tuple[Pattern, ...] = ()
        self._hearers: dict[str, tuple[tuple[Inbox, tuple[Key, ...]], ...]] = {}
        #: What was put last, as it comes by each pattern: put again, it must be the same object.
        self._last: tuple[Notify | Gap | None, dict[Key, Notify]] = (None, {})
        #: Those for which reading has to stop when they are full.
        self.blocking: tuple[Inbox, ...] = ()
        #: What is SUBSCRIBEd, and none of them has any more.
        self.stale: set[Key] = set()

    def add(self, inbox: Inbox, keys: Iterable[Key]) -> list[Key]:
        """Returns those that no inbox had before.  It may be there, with others."""
        keys = tuple(keys)
        inbox.keys += tuple(key for key in keys if key not in inbox.keys)
        self.all.add(inbox)
        if inbox.blocks and inbox not in self.blocking:
            self.blocking += (inbox,)
        fresh = [key for key in keys if key not in self._by_key]
        for key in keys:
            found = self._by_key.get(key, ())
            if inbox not in found:
                self._by_key[key] = (*found, inbox)
        self._changed()
        return fresh

    def remove(self, inbox: Inbox) -> None:
        """What no inbox has any more is `stale`."""
        self.blocking = tuple(other for other in self.blocking if other is not inbox)
        self._without(inbox, inbox.keys)
        self.all.discard(inbox)  # last: one that was interrupted before is done again

    def part(self, inbox: Inbox, keys: Iterable[Key]) -> None:
        """The same of some of its keys."""
        keys = tuple(keys)
        self._without(inbox, keys)
        # Not before, or what was interrupted in between would belong to it for ever.
        inbox.keys = tuple(key for key in inbox.keys if key not in keys)
        inbox.expect_no_more(keys)

    def hears(self, inbox: Inbox, key: Key) -> bool:
        """Whether the inbox gets what comes by the key, from some commit on."""
        return inbox.hears(key) and inbox in self._by_key.get(key, ())

    def _without(self, inbox: Inbox, keys: Iterable[Key]) -> None:
        for key in keys:
            found = self._by_key.get(key, ())
            left = tuple(other for other in found if other is not inbox)
            if left:
                self._by_key[key] = left
            elif found:
                # An exception may come after each call: then both have happened.
                del self._by_key[key]
                self.stale.add(key)
        self._changed()

    def _changed(self) -> None:
        """Forget what was found of patterns."""
        self._hearers = {}
        self._patterns = tuple(key for key in self._by_key if isinstance(key, Pattern))

    def sweep(self) -> None:
        """Remove those that are closed."""
        for inbox in tuple(self.all):
            if inbox.closed:
                self.remove(inbox)

    def room(self) -> int | None:
        """How many messages may be read now; None: any number."""
        if not self.blocking:
            return None
        rooms = [room for inbox in self.blocking if (room := inbox.room) is not None]
        return max(0, min(rooms)) if rooms else None

    def distribute(self) -> None:
        """Put what has arrived where it belongs."""
        arrived = self.arrived
        while arrived:
            message, routes = arrived[0]
            if routes & _LISTEN:
                self.main.put(message)
            if routes & _SUBSCRIBE:
                if self._patterns or (isinstance(message, Notify) and message.pattern):
                    self._put_by_patterns(message)
                else:
                    for inbox in self._owed(message):
                        inbox.put(message)
            del arrived[0]

    def _owed(self, message: Notify | Gap) -> Iterable[Inbox]:
        """A gap belongs to all, unless the channel of its messages is known."""
        channel = message.channel
        if isinstance(message, Gap):
            if message.of_channel is None:
                return tuple(self.all)
            channel = message.of_channel
        return self._by_key.get(channel or "", ())

    def _put_by_patterns(self, message: Notify | Gap) -> None:
        """Into each inbox once, as it comes by what that inbox has of it."""
        if isinstance(message, Gap):
            of = message.of_channel
            for inbox in tuple(self.all) if of is None else [each for each, _ in self._hearing(of)]:
                inbox.put(message)
            return
        if self._last[0] is not message:
            self._last = (message, {})
        labelled = self._last[1]
        for inbox, keys in self._hearing(message.channel):
            key = inbox.key_of(message, keys)
            if key is not None:
                inbox.put(labelled.setdefault(key, _labelled(message, key)))

    def _hearing(self, channel: str) -> tuple[tuple[Inbox, tuple[Key, ...]], ...]:
        """The inboxes that hear the channel, and by which of their keys."""
        found = self._hearers.get(channel)
        if found is None:
            fitting: tuple[Key, ...] = (channel, *(p for p in self._patterns if p.matches(channel)))
            inboxes = dict.fromkeys(inbox for key in fitting for inbox in self._by_key.get(key, ()))
            found = tuple(
                (inbox, tuple(sorted(set(inbox.keys) & set(fitting), key=inbox.rank)))
                for inbox in inboxes
            )
            if len(self._hearers) >= _REMEMBERED:
                self._hearers = {}
            self._hearers[channel] = found
        return found

    def clear(self) -> None:
        """In the child of a fork, where nothing of this is its own."""
        self.arrived.clear()
        self.main.messages.clear()
        self.main.waiters.clear()
        for inbox in self.all:
            inbox.messages.clear()
            inbox.waiters.clear()
            inbox.held = 0
