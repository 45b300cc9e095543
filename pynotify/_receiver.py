"""Receiving, as far as it is the same for threads and for tasks.

Receiving and sending share nothing: receivers take `lock`, senders take no lock.

What has been read ahead for notifies() waits in `backlog`, from which every receiver takes first.
With subscriptions the caller that waits reads for all of them.

An exception of a signal handler (Ctrl-C) can come at every step.  Then `interrupted` is set, and
the next caller finishes what the interrupted one has begun.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from functools import cache
from typing import TYPE_CHECKING, Protocol

from pynotify._batch import NotifyBatch
from pynotify._closing import is_inside_a_call
from pynotify._ffi import again, ffi, lib
from pynotify._hot import AT_ONCE, AT_ONCE_BYTES, Inlet
from pynotify._inbox import Inboxes, Pattern
from pynotify._locks import RLock
from pynotify._log import logger
from pynotify._ownership import CLOSED
from pynotify._process import reset_after_fork
from pynotify._reader import INTERRUPTED, INTERRUPTED_HINT, Reader
from pynotify._transaction import in_own_transaction
from pynotify._types import Gap, Notify
from pynotify.errors import Error, InterfaceError, ProgrammingError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from pynotify._handle import Handle
    from pynotify._hot import Columns
    from pynotify._inbox import Inbox, Key
    from pynotify._transaction import OpenTransaction

    NotifyHandler = Callable[[Notify], object]

    class Guard(Protocol):
        """Has to know when the queue is read; called with the receiver's lock held."""

        def reading(self) -> None:
            """It is about to be."""

        def read(self) -> None:
            """What was read is where it belongs."""


_NO_LIMIT = 1 << 62


class Receiver(Inlet):
    """What one connection has received: read ahead, or in the inboxes of subscriptions."""

    handle: Handle

    def __init__(self, handle: Handle) -> None:
        self.handle = handle
        self.reader = Reader(handle)
        self.batch = self.reader.batch
        # Re-entrant, so that a signal handler of Python that interrupted a receiver does not hang.
        self.lock = RLock()
        self.inboxes = Inboxes()
        #: Asked around each reading for all.
        self.guards: tuple[Guard, ...] = ()
        self.backlog = self.inboxes.main.messages
        #: A thread is putting what it read where it belongs.
        self._dispatching = False
        #: fileno() was called.
        self.watched = False
        #: The descriptor is kept quiet until a full subscription has room again.
        self._muted = False
        self._subscribing = RLock()
        #: An inbox was closed, and the UNSUBSCRIBE is left to the thread that subscribes.
        self._left = False
        #: The thread that holds it has begun to SUBSCRIBE or to UNSUBSCRIBE.
        self._changing = False
        self.handlers: list[NotifyHandler] = []
        #: For each thread that runs handlers: channel and commit of what it is about to return,
        #: less what is not owed any more since an UNLISTEN.
        self._returning: tuple[set[tuple[str, int]], ...] = ()
        reset_after_fork(self)

    def reset_in_child(self) -> None:
        """Forget the parent's messages and locks, in the child of a fork."""
        self.inboxes.clear()
        self.reader.reset()
        self.lock, self._subscribing = RLock(), RLock()
        self._dispatching = self._changing = self._left = False

    def discard(self) -> None:
        """Drop all messages and wake all waiters: the connection was closed."""
        with self.lock:
            self.reader.reset()
            # Not emptied: a signal handler that closes may have interrupted a thread that goes
            # through it.
            self.inboxes.arrived = deque()
            self.backlog.clear()
            self.inboxes.main.wake_all()
            for inbox in tuple(self.inboxes.all):
                inbox.close()

    def listening_channels(self) -> frozenset[str]:
        """The channels of the committed LISTENs."""
        self.handle.check_usable()
        with self.lock:
            return self.reader.listening()

    def listening_patterns(self) -> tuple[str, ...]:
        """The patterns of the committed LISTENs."""
        self.handle.check_usable()
        with self.lock:
            return self.reader.listening_patterns()

    def forget_unlistened(self) -> None:
        """Drop what was read ahead and is not owed any more, by any channel or pattern."""
        with self.lock:  # another thread may have read, and not put it there yet
            self.recover()
            if self.reader.pending and not (self.reader.busy or self._dispatching or self.routed):
                # By take_ahead(), and the event loop's reader is about to go on with it.
                self.reader.read(self.backlog, 1)
            if not (self.backlog or self._returning):
                return
            owes = cache(self.reader.owes)
            for returning in self._returning:
                returning.intersection_update([key for key in returning if owes(*key)])
            # It stays where it is meanwhile: an exception of a signal handler loses nothing of it,
            # and a thread that polls gets nothing newer before it.  A list: for a tuple the
            # collector of 3.11 may let other threads change the deque.
            messages = list(self.backlog)
            self.take_out(
                {
                    id(message)
                    for message in messages
                    if not (isinstance(message, Gap) or owes(message.channel, message.seq))
                }
            )

    # ---- poll() --------------------------------------------------------------------------

    def poll(self, maximum: int | None) -> list[Notify | Gap]:
        """What `Connection.poll` returns."""
        messages: list[Notify | Gap] = []
        try:
            if not self.take(messages, maximum):
                self.take_otherwise(messages, maximum)
        except BaseException:
            self.interrupted = True
            self.give_back(messages)
            raise
        return messages

    def take_otherwise(self, messages: list[Notify | Gap], maximum: int | None) -> None:
        """Go on where `take` returned False: append what it did not.

        When this raises, the caller gives back what is in `messages`.
        """
        limit = poll_limit(maximum)
        if limit < 0:
            self.handle.check_usable()
            return
        self._read(messages, limit)
        if self.handlers:
            self.run_handlers(messages)

    def poll_batch(self, limit: int) -> NotifyBatch:
        """The same as columns."""
        messages: list[Notify | Gap] = []
        columns: list[Columns] = []
        try:
            with self.lock:
                if self.backlog or self.routed or self.interrupted:
                    self._read(messages, limit)
                elif not self.reader.read_columns(columns, limit):
                    self._read_unread(messages, limit)
            if self.handlers:
                messages = messages or _batch(columns, messages).in_order()
                count = len(messages)
                self.run_handlers(messages)
                if len(messages) != count:
                    columns = []
            return _batch(columns, messages)
        except BaseException:
            self.interrupted = True
            self.give_back(messages or _batch(columns, messages).in_order())
            raise

    def _read(self, messages: list[Notify | Gap], limit: int) -> None:
        """Append up to `limit` messages, 0: all; with what is there already."""
        with self.lock:
            if self.routed or self.backlog or self.interrupted:
                self._read_both(messages, limit)
            else:
                self._read_unread(messages, limit)

    def _read_unread(self, messages: list[Notify | Gap], limit: int) -> None:
        """Append what nothing has been read of, a piece at a time: other threads run in between.

        A process that goes on sending does not keep us here.
        """
        began = time.monotonic_ns()
        more = True
        while more and not (limit and len(messages) >= limit):
            left = limit - len(messages) if limit else AT_ONCE
            more = self.reader.read(messages, min(left, AT_ONCE), AT_ONCE_BYTES)
            last = messages[-1] if messages else None
            if isinstance(last, Notify) and last.sent_ns >= began:
                return

    def _read_both(self, messages: list[Notify | Gap], limit: int) -> None:
        """Append what has been read already, and then what is there to read."""
        if self.routed:
            self.dispatch(post=False)  # most of it is taken out again
        else:
            self.recover()
        self.handle.check_usable()
        self.inboxes.main.take(messages, limit - len(messages) if limit else None)
        if not self.routed:
            self._read_unread(messages, limit)
        self.post()

    def give_back(self, messages: Sequence[Notify | Gap]) -> None:
        """Put messages in front of the backlog: an exception kept them from being returned."""
        with self.lock:
            self.recover()
            if messages:
                self.backlog.extendleft(reversed(messages))
                self.inboxes.main.wake_all()
                self.post()

    def run_handlers(self, messages: list[Notify | Gap]) -> None:
        """Call the notify handlers.

        What is unlistened before its turn is removed from `messages`.  When this raises, the
        caller gives back what is left of them.
        """
        returning = {
            (message.channel, message.seq) for message in messages if isinstance(message, Notify)
        }
        owed = len(returning)
        at = 0
        try:
            with self.lock:
                self._returning += (returning,)
            while at < len(messages):
                message = messages[at]
                if len(returning) != owed:
                    owed = len(returning)
                    messages[at:] = _of(returning, messages[at:])
                    continue
                if isinstance(message, Notify):
                    for handler in tuple(self.handlers):
                        self._run_handler(handler, message)
                at += 1
        except BaseException:
            messages[at:] = _of(returning, messages[at:])
            raise
        finally:
            with self.lock:
                others = (other for other in self._returning if other is not returning)
                self._returning = tuple(others)

    def _run_handler(self, handler: NotifyHandler, message: Notify) -> None:
        try:
            handler(message)
        except Exception:
            logger.exception("notify handler %r raised and was removed", handler)
            if handler in self.handlers:
                self.handlers.remove(handler)

    # ---- reading for all -----------------------------------------------------------------

    def dispatch(self, limit: int = 0, *, post: bool = True, max_bytes: int = 0) -> bool:
        """Read for all inboxes, up to `limit` messages, 0: all; the caller holds `lock`.

        With `max_bytes` not many more bytes of payload than that.  Returns False when a full
        subscription forbids reading on.
        """
        if self._dispatching:
            raise ProgrammingError(INTERRUPTED, hint=INTERRUPTED_HINT)
        inboxes = self.inboxes
        room = None
        try:
            self._dispatching = True
            if self.interrupted:
                self._finish_reading()
            if inboxes.blocking:
                room = self._read_what_fits(limit, max_bytes)
            else:
                self._read_routed(limit, max_bytes)
                inboxes.distribute()
            for guard in self.guards:
                guard.read()
        except BaseException:
            # Ctrl-C: what was read is not only ours.
            self.interrupted = True
            self._ask_others()
            self._finish_reading()
            raise
        finally:
            self._dispatching = False
        if self.watched and room == 0:
            self._muted = True
            self.handle.check(lib.pn_conn_mute_fd(self.handle.native))
        if post and self.watched:
            self.post()
        return room != 0

    def _read_what_fits(self, limit: int, max_bytes: int) -> int | None:
        """Read as much as no subscription is too full for; return what room was left."""
        inboxes = self.inboxes
        # Little room takes many turns; a process that goes on sending must not keep us here.
        began = time.monotonic_ns()
        room = inboxes.room()
        while room != 0:
            count = min(limit or _NO_LIMIT, room or _NO_LIMIT)
            messages = self._read_routed(count, max_bytes)
            inboxes.distribute()
            room = inboxes.room()
            if len(messages) < count or len(messages) == limit:
                break
            if isinstance(messages[-1], Gap) or messages[-1].sent_ns >= began:
                break
            limit = limit and limit - len(messages)
        return room

    def _read_routed(self, limit: int, max_bytes: int = 0) -> list[Notify | Gap]:
        for guard in self.guards:
            guard.reading()
        return self.reader.read_routed(self.inboxes.arrived, limit, max_bytes)

    def _finish_reading(self) -> None:
        if self.reader.pending and self.routed:
            self._read_routed(0)
        if self.inboxes.arrived:
            self.inboxes.distribute()
        if self.reader.pending:  # of one receiver: Gaps that say the same are one
            self.reader.read(self.backlog, 0)
        if self.backlog:
            self.inboxes.main.wake_all()
        self.interrupted = False

    def recover(self) -> None:
        """Put where it belongs what an exception of a signal handler (Ctrl-C) left behind."""
        if self.interrupted and not (self._dispatching or self.reader.busy):
            self._finish_reading()

    def _ask_others(self) -> None:
        """Let the thread that waits in the core finish an interrupted read."""

    def room_made(self) -> None:
        """Go on reading: a message was taken out of a subscription that may have been full."""
        if self._muted:
            self._muted = False
            lib.pn_conn_mark_readable(self.handle.native)

    def post(self) -> None:
        """Make the descriptor readable for the backlog, of which the core knows nothing."""
        if self.watched and self.backlog:
            lib.pn_conn_mark_readable(self.handle.native)

    # ---- subscriptions -------------------------------------------------------------------

    def subscribe(self, inbox: Inbox, keys: Iterable[Key]) -> None:
        """SUBSCRIBE, committed at once, also for an inbox that has others.  May be repeated."""
        keys = tuple(dict.fromkeys(keys))
        with self._subscribing:
            if self._changing:  # whose UNSUBSCRIBE may be of these channels
                raise ProgrammingError(
                    "subscribing from a signal handler that interrupted subscribing",
                    hint="Let the handler set a flag, and subscribe where the program goes on.",
                )
            try:
                self._changing = True
                while self._unsubscribe_closed():  # what was collected without close()
                    pass
                self._subscribe(inbox, keys)
            finally:
                self._changing = False
        with contextlib.suppress(Error):  # the next call tries again
            self._unsubscribe_left(waits=False)

    def _subscribe(self, inbox: Inbox, keys: tuple[Key, ...]) -> None:
        handle, inboxes = self.handle, self.inboxes
        more = inbox in inboxes.all
        fresh: list[Key] = []
        if more:
            keys = tuple(key for key in keys if not inboxes.hears(inbox, key))
        try:
            with self.lock:
                inboxes.sweep()
                if more:
                    inbox.expect(keys)
                fresh = inboxes.add(inbox, keys)
                self.routed = True
            # An earlier call may have been interrupted before it came to it.
            wanted = keys if more else fresh
            in_own_transaction(handle, lambda transaction: _subscribe(transaction, wanted))
            since = ffi.new("uint64_t *")
            handle.check(again(lambda: lib.pn_commit_seq(handle.engine(), since)))
            with self.lock:
                inboxes.stale.difference_update(keys)
                if more:
                    inbox.expect(keys, int(since[0]))
                else:
                    inbox.open(int(since[0]))
        except BaseException as error:
            with self.lock:
                if more:
                    inboxes.part(inbox, keys)
                else:
                    inboxes.remove(inbox)
                # A name that is refused cannot be UNSUBSCRIBEd either, and nothing has begun.
                if isinstance(error, (ProgrammingError, TypeError)):
                    inboxes.stale.difference_update(fresh)
                self.routed = bool(inboxes.all or inboxes.stale)
            raise

    def unsubscribe(self, inbox: Inbox, keys: Iterable[Key] | None = None) -> None:
        """UNSUBSCRIBE, from all or from these; the inbox gets nothing more in any case.

        May be repeated.
        """
        with self._subscribing:
            with self.lock:
                if keys is None:
                    inbox.close()
                else:
                    keys = tuple(keys)
                    self.inboxes.part(inbox, keys)
                    inbox.drop(keys)
            # In a signal handler that interrupted this the interrupted one goes on with it.
            if self._changing or self.handle.closed or self.handle.is_foreign:
                return
            self._unsubscribe_all_closed()
        self._unsubscribe_left(waits=False)

    def close_inbox(self, inbox: Inbox) -> None:
        """Unsubscribe from all; in the middle of another call it waits for no other thread.

        One that subscribes may need what the interrupted call holds.  It does the UNSUBSCRIBE then.
        """
        with self.lock:
            inbox.close()
        self._left = True  # before it tries: a thread that subscribes looks when it has ended
        self._unsubscribe_left(waits=not is_inside_a_call())

    def _unsubscribe_left(self, *, waits: bool) -> None:
        while self._left:
            # Calls made by `for`: Ctrl-C cannot come between having a lock and `try`.
            for having in map(self._subscribing.acquire, (waits,)):
                if not having:
                    return
                try:
                    if self._changing:  # a signal handler: the interrupted call does it
                        return
                    self._left = False
                    if self.handle.closed or self.handle.is_foreign:
                        return
                    self._unsubscribe_all_closed()
                finally:
                    self._subscribing.release()

    def _unsubscribe_all_closed(self) -> None:
        """With `_subscribing`."""
        try:
            self._changing = True
            while self._unsubscribe_closed():
                pass
        finally:
            self._changing = False

    def _unsubscribe_closed(self) -> bool:
        """UNSUBSCRIBE what no inbox has any more; whether one was closed meanwhile."""
        handle = self.handle
        with self.lock:
            self.inboxes.sweep()
            stale = tuple(self.inboxes.stale)
        if stale:
            try:
                in_own_transaction(handle, lambda transaction: _unsubscribe(transaction, stale))
            except InterfaceError:
                if handle.native is CLOSED:  # since the question above
                    return False
                raise
        with self.lock:
            self.recover()
            self.inboxes.stale.difference_update(stale)
            self.routed = bool(self.inboxes.all)
            return any(other.closed for other in self.inboxes.all)


def _subscribe(transaction: OpenTransaction, keys: Iterable[Key]) -> None:
    for key in keys:
        if isinstance(key, Pattern):
            transaction.subscribe_pattern([key.text])
        else:
            transaction.subscribe([key])


def _unsubscribe(transaction: OpenTransaction, keys: Iterable[Key]) -> None:
    for key in keys:
        if isinstance(key, Pattern):
            transaction.unsubscribe_pattern([key.text])
        else:
            transaction.unsubscribe([key])


def _batch(columns: list[Columns], messages: Sequence[Notify | Gap]) -> NotifyBatch:
    """A batch of the columns, if there are any, or else of the messages."""
    return NotifyBatch(columns[0]) if columns else NotifyBatch.from_messages(messages)


def poll_limit(maximum: int | None) -> int:
    """The `max` of pn_poll(), where 0 means all; -1 when nothing is wanted."""
    if maximum is None:
        return 0
    if maximum < 0:
        raise ValueError(f"max must not be negative, is {maximum}")
    return min(maximum, _NO_LIMIT) or -1


def _of(owed: set[tuple[str, int]], messages: list[Notify | Gap]) -> list[Notify | Gap]:
    return [
        other for other in messages if isinstance(other, Gap) or (other.channel, other.seq) in owed
    ]
