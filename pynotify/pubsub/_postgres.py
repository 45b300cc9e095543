"""PubSub over a psycopg 3 connection to a PostgreSQL.

1. Each segment is sent in a transaction of its own, since equal ones collapse inside one, and all
   of an object with the connection's lock held: no other statement or transaction, and no
   other object of this backend, comes in between.
2. The statements go through libpq at once (`pgconn`).  A cursor would look for the connection's
   state first, and give the lock back between any two segments.
3. Any number of PubSubs share a connection.  What they have in common is its `_Hub`: how many of
   them listen to a channel, and which of them gets what comes.  What other users of the connection
   read from the socket reaches it through psycopg's notify handlers, so nothing is lost to them;
   each PubSub has a bell (an eventfd) for what another thread has read.
4. Nothing is read or checked but in calls: no hidden thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import time
import weakref
from collections import Counter, deque
from itertools import repeat, starmap
from typing import TYPE_CHECKING, Final

import psycopg
from psycopg import pq

from pynotify._closing import is_inside_a_call
from pynotify._finalizing import WeakKeyDictionary
from pynotify._hot import finalizer
from pynotify._inbox import take_out
from pynotify._locks import Lock, RLock
from pynotify.errors import (
    ActiveTransaction,
    ConnectionLost,
    InvalidChannelName,
    ProgrammingError,
)
from pynotify.pubsub._arrays import portable
from pynotify.pubsub._assembly import LIFETIME, Segment
from pynotify.pubsub._format import POSTGRES_LIMIT, segments

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Sequence
    from typing import Any, TypeAlias

    from pynotify._headers import Taken

    PostgresConnection: TypeAlias = psycopg.Connection[Any]
    AsyncPostgresConnection: TypeAlias = psycopg.AsyncConnection[Any]
    AnyPostgresConnection: TypeAlias = PostgresConnection | AsyncPostgresConnection

_MAX_CHANNEL: Final = 63
_READS: Final = 8
_LONG: Final = 86_400.0  # of one poll(2), which counts milliseconds in an int
_IDLE: Final = pq.TransactionStatus.IDLE
_GOOD: Final = (pq.ExecStatus.COMMAND_OK, pq.ExecStatus.TUPLES_OK)


def lost(error: object) -> ConnectionLost:
    """A `ConnectionLost` for an error of psycopg."""
    text = str(error).strip().replace("\n", " ") or "the connection is closed"
    return ConnectionLost(
        f"the connection to PostgreSQL is lost: {text}",
        hint="Make a PubSub on a new connection, or give it a function that makes connections.",
    )


def refuse_headers(headers: Taken | None) -> None:
    """Raise for those that a program has given: NOTIFY has no place for them."""
    if headers is not None and not headers.optional:
        raise ProgrammingError(
            "an object over PostgreSQL has no headers: NOTIFY has no place for them",
            hint="Put what they say into the object, or publish over a pynotify.Connection.",
        )


def check_channel(channel: str) -> bytes:
    """PostgreSQL's rule; LISTEN would silently cut the name."""
    if not isinstance(channel, str):
        raise TypeError(f"channel must be a str, not {type(channel).__name__}")
    try:
        name = channel.encode()
    except UnicodeEncodeError as error:
        raise InvalidChannelName(
            f"channel name cannot be encoded as UTF-8: {error.reason}"
        ) from error
    if not name:
        raise InvalidChannelName("channel name cannot be empty")
    if b"\0" in name:
        raise InvalidChannelName("channel name cannot contain a NUL byte")
    if len(name) > _MAX_CHANNEL:
        raise InvalidChannelName("channel name too long")
    return name


def _readable(descriptor: int) -> bool:
    poll = select.poll()  # select() has no descriptors above 1023
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(0))


class Hub:
    """What the PubSubs on one connection have in common."""

    def __init__(self) -> None:
        self.listeners: Counter[str] = Counter()
        #: Held while the counts change with the LISTEN or UNLISTEN that they stand for.
        self.listening = RLock()
        # Weak, or a PubSub that was never closed would keep the connection.
        self._members: tuple[weakref.ref[BasePostgresTransport], ...] = ()
        # One object, so that it can be removed again.
        self._handler = self._distribute
        #: As `listening`, for tasks.
        self.tasks = asyncio.Lock()

    def join(self, member: BasePostgresTransport, connection: AnyPostgresConnection) -> None:
        """Add a transport of this connection."""
        with self.listening:
            if not self._members:
                connection.add_notify_handler(self._handler)
            self._members += (weakref.ref(member),)

    def leave(self, member: BasePostgresTransport, connection: AnyPostgresConnection) -> None:
        """Remove a transport of this connection."""
        with self.listening:
            had = bool(self._members)
            self._members = tuple(m for m in self._members if m() not in (member, None))
            if had and not self._members:
                connection.remove_notify_handler(self._handler)

    def _distribute(self, notify: psycopg.Notify) -> None:
        """Called by psycopg, in whatever thread reads, with the connection's lock held."""
        for reference in self._members:
            member = reference()
            if member is not None:
                member.put(notify)


_hubs: WeakKeyDictionary[AnyPostgresConnection, Hub] = WeakKeyDictionary()
_hubs_lock = Lock()


def hub_of(connection: AnyPostgresConnection) -> Hub:
    """The hub of the connection, made when there is none."""
    with _hubs_lock:
        return _hubs.setdefault(connection, Hub())


class BasePostgresTransport:
    """What the transports for threads and for tasks have alike; nothing here waits."""

    lifetime: float | None = LIFETIME
    #: The statement of a connection that is lost may have happened.
    all_or_nothing = False

    def __init__(
        self,
        connection: AnyPostgresConnection,
        *,
        skip_self: bool,
        interval: float | None,
        clock: Callable[[], float],
    ) -> None:
        if not connection.autocommit:
            raise ProgrammingError(
                "PubSub needs a psycopg connection in autocommit",
                hint="Connect with autocommit=True.",
            )
        if connection.closed:
            raise lost("the connection is closed")
        self._pgconn = connection.pgconn
        self._own_pid = connection.info.backend_pid if skip_self else None
        self._interval = interval
        self._clock = clock
        self._checked = clock()
        self._channels: set[str] = set()
        self._arrived: deque[Segment] = deque()
        #: The senders of unfinished objects, which are looked for when the connection is checked.
        self.unfinished: Callable[[], Iterable[Hashable]] = tuple
        self._gone: set[Hashable] = set()
        self._interrupted = False
        self._any_connection = connection
        self._hub = hub_of(connection)

    @property
    def usable(self) -> bool:
        """Whether the connection is open."""
        return not self._any_connection.closed

    @staticmethod
    def expires(_sender: Hashable) -> bool:
        """Whether unfinished objects of the sender expire."""
        return True

    def _collect(self) -> None:
        """Give what libpq has read beside something else to the PubSubs it belongs to."""
        while notify := self._pgconn.notifies():
            if self._pgconn.notify_handler is not None:
                self._pgconn.notify_handler(notify)

    def _refuse_transaction(self, what: str, *, why: str, single: bool = False) -> None:
        """Raise unless a statement can be sent; the connection's lock is held.

        `single`: a transaction does no harm.
        """
        if self._any_connection.closed:
            raise lost("the connection is closed")
        if self._pgconn.pipeline_status != pq.PipelineStatus.OFF:
            raise ProgrammingError(
                f"{what}() cannot be used in psycopg's pipeline mode",
                hint="Leave the pipeline first, or use a connection of its own.",
            )
        status = self._pgconn.transaction_status
        in_transaction = status in (pq.TransactionStatus.INTRANS, pq.TransactionStatus.INERROR)
        if status != _IDLE and not (single and in_transaction):
            raise ActiveTransaction(
                f"{what}() cannot be used inside a transaction: {why}",
                hint="End the transaction of this connection first, or use a connection"
                " of its own.",
            )

    def put(self, notify: psycopg.Notify) -> None:
        """Called by the reader, in any thread."""
        if notify.channel in self._channels and notify.pid != self._own_pid:
            data = notify.payload.encode("utf-8", "surrogateescape")
            self._arrived.append(Segment(notify.channel, notify.pid, notify.pid, data))
            self._ring()

    def _ring(self) -> None:
        """Wake a caller of receive()."""
        raise NotImplementedError

    def _without(self, channel: str) -> None:
        """Drop what has come on it."""
        take_out(self._arrived, channel, [])

    def _take(self, came: deque[Any]) -> None:
        # One call: none can be lost between two of its steps.
        with contextlib.suppress(IndexError):
            came.extend(starmap(self._arrived.popleft, repeat(())))

    def _is_due(self) -> bool:
        """To be called when it will be checked."""
        if self._interval is None or self._clock() < self._checked + self._interval:
            return False
        self._checked = self._clock()
        return True

    def _may_check(self) -> bool:
        """Check with the connection's lock held.  False: the connection is in use."""
        if self._any_connection.closed:
            raise lost("the connection is closed")
        idle = self._pgconn.transaction_status == _IDLE
        return idle and self._pgconn.pipeline_status == pq.PipelineStatus.OFF

    def _learn(self, asked: set[Hashable], result: pq.abc.PGresult) -> None:
        values = (result.get_value(row, 0) for row in range(result.ntuples))
        self._gone |= asked - {int(value) for value in values if value is not None}

    def taken_in(self, oldest: int | None) -> None:
        """Do nothing: what was received is with the PubSub."""

    def gone(self) -> set[Hashable]:
        """Senders whose backends have ended since they were last asked after.

        To be looked at after what receive() returned: the last that they sent has come before
        the answer of the server.
        """
        gone, self._gone = self._gone, set()
        return gone


def question_after(asked: set[Hashable]) -> tuple[bytes, list[bytes]]:
    """A statement that fails when the server is gone; it tells which of these pids live."""
    if not asked:
        return b"SELECT 1", []
    pids = "{" + ",".join(map(str, asked)) + "}"
    return (
        b"SELECT pid FROM pg_catalog.pg_stat_activity WHERE pid = ANY ($1::int[])",
        [pids.encode()],
    )


def listen_statement(verb: bytes, name: bytes) -> bytes:
    """The statement that listens to the channel, or no longer does."""
    return verb + b'"' + name.replace(b'"', b'""') + b'"'


def why_segments(count: int) -> str:
    """The error for an object that was sent in part."""
    return f"the object has {count} segments, each of which is a transaction"


class PostgresTransport(BasePostgresTransport):
    """Over a psycopg `Connection` in autocommit.

    `interval`: seconds between two looks at whether the connection still lives, while a caller
    receives; None: never.
    """

    def __init__(
        self,
        connection: PostgresConnection,
        *,
        skip_self: bool,
        interval: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(connection, skip_self=skip_self, interval=interval, clock=clock)
        self.connection = connection
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._hub.join(self, connection)

    def send_object(self, channel: str, obj: Any, headers: Taken | None = None) -> None:
        """Each of its segments in a transaction of its own."""
        refuse_headers(headers)
        self.send(channel, segments(portable(obj), POSTGRES_LIMIT))

    # ---- statements ------------------------------------------------------------------------

    def _execute(self, statement: bytes, *values: bytes) -> pq.abc.PGresult:
        """Execute with the connection's lock held.  It blocks, as libpq's PQexec does."""
        try:
            result = self._pgconn.exec_params(statement, list(values))
        except psycopg.OperationalError as error:
            raise lost(error) from error
        self._collect()
        if result.status not in _GOOD:
            failure = psycopg.errors.error_from_result(result, encoding="utf-8")
            if self._pgconn.status == pq.ConnStatus.BAD:
                raise lost(failure) from failure
            raise failure
        return result

    def listen(self, channel: str) -> None:
        """LISTEN to the channel."""
        name = check_channel(channel)
        hub = self._hub
        with hub.listening:
            if channel in self._channels:
                return
            if not hub.listeners[channel]:
                self._statement("subscribe", b"LISTEN ", name)
            hub.listeners[channel] += 1
            self._channels.add(channel)

    def unlisten(self, channel: str) -> None:
        """UNLISTEN the channel."""
        hub = self._hub
        with hub.listening:
            if channel not in self._channels:
                return
            if hub.listeners[channel] == 1:
                self._statement("unsubscribe", b"UNLISTEN ", check_channel(channel))
            hub.listeners[channel] -= 1
            self._channels.discard(channel)
        with self.connection.lock:  # nothing is put there until then
            self._without(channel)

    def _statement(self, what: str, verb: bytes, name: bytes) -> None:
        with self.connection.lock:
            self._refuse_transaction(what, why="it would happen at its commit only")
            self._execute(listen_statement(verb, name))

    def send(self, channel: str, payloads: Sequence[bytes]) -> None:
        """Each in a transaction of its own, unless it is the only one."""
        name = check_channel(channel)
        with self.connection.lock:
            self._refuse_transaction(
                "publish",
                why=why_segments(len(payloads)),
                single=len(payloads) == 1,
            )
            for payload in payloads:
                self._execute(b"SELECT pg_notify($1, $2)", name, payload)

    # ---- receiving -------------------------------------------------------------------------

    def _ring(self) -> None:
        os.eventfd_write(self._bell, 1)

    def receive(self, timeout: float | None, came: deque[Any]) -> None:
        """Append everything that is there, after waiting; nothing when the time is over."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            self._read(deadline)
            self.check_when_due()
            if self._arrived:
                break
            left = None if deadline is None else deadline - time.monotonic()
            if self._interrupted or (left is not None and left <= 0):
                break
            self._sleep(left)
        self._take(came)

    def _sleep(self, timeout: float | None) -> None:
        """Wait until the socket or the bell has something, or a check is due."""
        if self._interval is not None:
            due = max(0.0, self._checked + self._interval - self._clock())
            timeout = due if timeout is None else min(due, timeout)
        poll = select.poll()
        try:
            poll.register(self._pgconn.socket, select.POLLIN)
        except psycopg.OperationalError as error:
            raise lost(error) from error
        poll.register(self._bell, select.POLLIN)
        # Rounded up, or the last millisecond would be waited for with the processor.
        poll.poll(None if timeout is None else int(min(timeout, _LONG) * 1000) + 1)
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._bell)

    def _read(self, deadline: float | None) -> None:
        """What has come, without waiting for more; for another thread's statement one waits."""
        lock = self.connection.lock
        left = -1.0 if deadline is None else max(0.0, deadline - time.monotonic())
        # A call made by `for`: Ctrl-C cannot come between having the lock and `try`.
        for taken in map(lock.acquire, (True,), (left,)):
            if not taken:
                break
            try:
                self._read_all()
            except psycopg.OperationalError as error:
                raise lost(error) from error
            finally:
                lock.release()

    def _read_all(self) -> None:
        if self.connection.closed:
            raise lost("the connection is closed")
        # What a server says last and the end of the connection are two reads.
        for _ in range(_READS):
            self._pgconn.consume_input()
            self._collect()
            if not _readable(self._pgconn.socket):
                break

    # ---- is it still there? ------------------------------------------------------------------

    def check_when_due(self) -> None:
        """A statement every `interval` seconds: it fails when the server is gone."""
        if not self._is_due():
            return
        asked = set(self.unfinished())
        text, values = question_after(asked)
        with self.connection.lock:
            if self._may_check():
                self._learn(asked, self._execute(text, *values))

    def probe(self) -> None:
        """Raises `ConnectionLost` when that can be known without asking the server."""
        self._read(time.monotonic())

    def interrupt(self) -> None:
        """Make receive() return with what there is."""
        self._interrupted = True
        os.eventfd_write(self._bell, 1)

    def close(self, *, with_connection: bool) -> None:
        """Stop receiving, and close the connection if asked to.

        In a signal handler it does not wait for a statement that the handler has interrupted.  Then
        the connection goes on listening, and the bell goes with the transport.
        """
        if self._bell < 0:
            return
        if self._is_used_below():
            self._channels.clear()  # nothing is put there from now on
        else:
            self._leave()
        if with_connection:
            self.connection.close()

    def _is_used_below(self) -> bool:
        """Whether the connection's lock may be that of a call which a signal handler interrupts."""
        return self.connection.lock.locked() and is_inside_a_call(("psycopg", __name__))

    def _leave(self) -> None:
        try:
            with contextlib.suppress(ConnectionLost, ProgrammingError):
                for channel in tuple(self._channels):
                    self.unlisten(channel)
        finally:
            self._hub.leave(self, self.connection)
            with self.connection.lock:  # no thread is about to ring it
                self._channels.clear()
                self._close_bell()

    def _close_bell(self) -> None:
        bell, self._bell = self._bell, -1
        if bell >= 0:
            os.close(bell)

    @finalizer
    def __del__(self) -> None:
        if hasattr(self, "_bell"):
            self._close_bell()
