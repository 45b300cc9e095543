"""The bridge: one loop between a segment and a PostgreSQL.

1. One connection LISTENs upstream to those of its channels that have listeners here, and what
   comes is published in the segment.  What it sent itself comes back under its own pid, and is
   dropped; what it published it does not send on.  So nothing goes in circles, through any number
   of bridges.
2. The loop waits in one place, for all: the segment, questions, PostgreSQL, close(), and the next
   attempt to connect.  Nothing else blocks it but the segment's writer lock and, with
   on_full="block", its queue.
3. A lost connection is made again, with more and more time between the attempts.  When the new one
   listens, and before anything that comes on it, each channel that the old one listened to gets a
   `Gap`: PostgreSQL keeps nothing for an absent client.  So does each channel that had listeners
   before the bridge began, since one that died may have been there.  Later listeners have lost
   nothing.
4. An exception of a signal handler (Ctrl-C) may end run() at any step.  What was read here stays
   until it is in the backlog; in what state the connection is then is not known, so the next run()
   makes another, with the Gaps of (3).
"""

from __future__ import annotations

import contextlib
import importlib
import os
import random
import select
import threading
import time
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pynotify._closing import ClosedByWith
from pynotify._engine import open as open_segment
from pynotify._locks import RLock
from pynotify._log import logger
from pynotify._process import process, reset_after_fork
from pynotify._time import nanoseconds
from pynotify.bridge._control import ControlRequest, ControlServer
from pynotify.bridge._local import LocalSide
from pynotify.bridge._outgoing import Backlog
from pynotify.bridge._retry import RetryDelay
from pynotify.errors import InterfaceError, InvalidChannelName, LockTimeout, ProgrammingError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Unpack

    from pynotify._open_options import OpenOptions
    from pynotify.bridge._upstream import Upstream

_LIMIT: Final = 7999  # bytes of a payload upstream
_MAX_CHANNEL: Final = 63
_LONG: Final = 3600.0


@dataclass(frozen=True, slots=True)
class BridgeStats:
    """What a bridge has done since it was made, and what it is about.

    `upstream_pid`: the backend of its connection, None while there is none; `listening`: to what
    it listens there.  `received` from there and published here; `dropped` of that, as the segment
    had no room.  `sent` there; `refused` by the server, `lost` since too much waited; `waiting`
    notifications' transactions wait, with `waiting_bytes`.  `connections` that were made.
    """

    upstream_pid: int | None
    listening: frozenset[str]
    received: int
    dropped: int
    sent: int
    refused: int
    lost: int
    waiting: int
    waiting_bytes: int
    connections: int


class PostgresBridge(ClosedByWith):
    """A bridge between the segment `name` and the PostgreSQL that `conninfo` names.

    `conninfo` is psycopg's; what it does not say is taken from the PG* variables (PGSERVICE too).
    `channels`: those that are bridged, literally: there are no patterns, as PostgreSQL has none.
    `both`: what is sent on them here goes upstream, too; payloads that PostgreSQL does not take
    are then refused to their senders.  While there is no connection up to `max_backlog` bytes
    wait for one.  `first_delay` and `longest_delay`: seconds between two attempts to connect.

    A database of a segment has one bridge: a second one raises `OperationalError`, which names the
    process of the first.  Nothing happens but in `run`; there is no thread.
    """

    def __init__(
        self,
        name: str = "default",
        *,
        channels: Iterable[str],
        both: bool = False,
        conninfo: str = "",
        database: str = "default",
        max_backlog: int = 64 << 20,
        first_delay: float = 0.1,
        longest_delay: float = 30.0,
        clock: Callable[[], float] = time.monotonic,
        random: Callable[[], float] = random.random,
        **options: Unpack[OpenOptions],
    ) -> None:
        self._postgres = _import_upstream()
        self._postgres.parameters(conninfo)  # a mistake in it is told at once
        self._channels = _check_channels(channels)
        self._both = both
        self._dsn = conninfo
        self._clock = clock
        self._backoff = RetryDelay(first_delay, longest_delay, random)
        self._local_backoff = RetryDelay(first_delay, longest_delay, random)
        self._outgoing = Backlog(max_backlog)
        self._upstream: Upstream | None = None
        self._identity: Any = None
        self._retry_at = clock()
        self._pay_at = self._send_at = clock()
        self._down = "not connected yet"
        #: Channels with LISTEN sent; channels with LISTEN confirmed.
        self._asked: set[str] = set()
        self._listening: set[str] = set()
        #: Statements on their way, by channel.
        self._moving: Counter[str] = Counter()
        #: Channels that may miss something when the next connection listens to them.
        self._interrupted: set[str] = set()
        self._requests: list[ControlRequest] = []
        #: Requests already answered "down".
        self._told_down: set[ControlRequest] = set()
        #: When an answer without room in the queue is tried again.
        self._tell_at: float | None = None
        self._received = self._sent = self._refused = self._connections = 0
        self._stopping = self._closed = False
        #: A turn with the server has begun and not ended: what it has done is not known.
        self._in_turn = False
        # Re-entrant: a signal handler may close what its thread is about to close.
        self._running = RLock()
        self._runner: int | None = None
        self._pid = process.pid
        with open_segment(name, **options) as engine:
            self._local = LocalSide(engine, database, self._channels, both=both)
            try:
                self._control = ControlServer(engine, database)
            except BaseException:
                self._local.close()
                raise
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        reset_after_fork(self)
        try:
            self._check_segment(name)
            self._interrupted = self._local.heard()  # by an earlier bridge, for all we know
        except BaseException:
            self.close()
            raise

    def reset_in_child(self) -> None:
        """Make a lock that no thread of the parent has: close() takes it."""
        self._running, self._runner = RLock(), None

    def _check_segment(self, name: str) -> None:
        limit = int(self._local.connection.link.handle.options().max_payload)
        if limit < _LIMIT:
            raise ProgrammingError(
                f'max_payload of segment "{name}" is {limit}, PostgreSQL may send {_LIMIT}',
                hint="Create the segment with max_payload=7999 or more.",
            )

    # ---- the loop ------------------------------------------------------------------------------

    def run(self, timeout: float | None = None) -> None:
        """Be a bridge until `stop` or `close`, or for `timeout` seconds."""
        nanoseconds(timeout)
        thread = threading.get_ident()
        # A call made by `for`: Ctrl-C cannot come between having the lock and `try`.
        for free in map(self._running.acquire, (False,)):
            if not free:
                raise _runs_already()
            try:
                if self._runner is not None:  # a signal handler that has interrupted it
                    raise _runs_already()
                try:
                    self._runner = thread
                    self._run(timeout)
                finally:
                    self._runner = None
            finally:
                self._running.release()

    def _run(self, timeout: float | None) -> None:
        deadline = None if timeout is None else self._clock() + timeout
        if self._closed:
            raise InterfaceError("the bridge is closed", hint="Make a new one.")
        if self._pid != process.pid:
            raise InterfaceError("the bridge is another process's", hint="Make a new one.")
        if self._in_turn:
            self._lose("run() was interrupted")
        while not self._stopping:
            self._turn(deadline)
            if deadline is not None and self._clock() >= deadline:
                break

    def _turn(self, deadline: float | None) -> None:
        ready = self._wait(deadline)
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._wake)
        self._control.receive(self._requests)
        came = self._local.receive()  # always, so that its descriptor is quiet again
        if self._both:
            self._outgoing.add(self._local.of_others(came), came)
        else:
            came.clear()
        self._in_turn = True  # until what is done with the server is known
        try:
            if self._upstream is None:
                self._connect_when_due()
            if self._upstream is not None:
                self._go_on(self._upstream, ready.get(self._upstream_fd, 0))
        except (self._postgres.Lost, LockTimeout) as error:
            self._lose(str(error).partition("\n")[0])
        self._in_turn = False
        self._tell_at = None
        self._answer()
        if self._local.owes and self._clock() >= self._pay_at:
            self._pay()

    def _wait(self, deadline: float | None) -> dict[int, int]:
        poll = select.poll()
        for fd in (self._wake, self._local.fileno(), self._control.fileno()):
            poll.register(fd, select.POLLIN)
        times = [] if deadline is None else [deadline]
        self._upstream_fd = -1
        if self._upstream is None:
            times.append(self._retry_at)
        else:
            with contextlib.suppress(self._postgres.Lost):  # its next step says so
                self._upstream_fd = self._upstream.fileno()
                poll.register(self._upstream_fd, self._upstream.events)
            if self._upstream_fd < 0:
                times.append(self._clock())
            if self._upstream.deadline is not None:
                times.append(self._upstream.deadline)
            if self._upstream.idle and len(self._outgoing):
                times.append(self._send_at)
        if self._local.owes:
            times.append(self._pay_at)
        if self._tell_at is not None:
            times.append(self._tell_at)
        left = min([_LONG, *(at - self._clock() for at in times)])
        # Rounded up, or the last millisecond would be waited for with the processor.
        return dict(poll.poll(int(left * 1000) + 1 if left > 0 else 0))

    # ---- the connection ------------------------------------------------------------------------

    def _connect_when_due(self) -> None:
        if self._clock() < self._retry_at:
            return
        self._upstream = self._postgres.Upstream(
            self._dsn, previous=self._identity, clock=self._clock, on_ready=self._on_ready
        )
        self._upstream_fd = -1

    def _go_on(self, upstream: Upstream, events: int) -> None:
        try:
            upstream.step(events)
            if upstream.ready:
                self._listen(upstream)
                self._send(upstream)
                upstream.step(0)
        finally:
            incoming = [n for n in upstream.notifications if n[2] != self._identity.pid]
            upstream.notifications.clear()
            if incoming:
                self._received += self._local.publish(incoming)
                self._pay_later()

    def _on_ready(self) -> None:
        upstream = self._upstream
        assert upstream is not None
        self._identity = upstream.identity
        if self._both and upstream.encoding not in ("UTF8", "SQL_ASCII"):
            raise self._postgres.Lost(
                f"its encoding is {upstream.encoding}, and not every text can be sent there;"
                " with --both it must be UTF8"
            )
        self._connections += 1
        self._down = ""
        self._local.changed()
        channels = self._local.heard()
        self._asked = set(channels)
        self._move("LISTEN", channels, self._established)
        if not channels:
            self._established(channels)

    def _established(self, channels: set[str]) -> None:
        """Called before anything is published that comes on this connection."""
        self._backoff.reset()
        self._local.owe(channels & self._interrupted)
        self._interrupted.clear()
        self._pay()
        assert self._upstream is not None
        logger.info(
            "bridge: connected to %s (backend %d)", self._upstream.server, self._identity.pid
        )

    def _lose(self, why: str) -> None:
        delay = self._backoff.next()
        self._retry_at = self._clock() + delay
        self._down = why
        if self._upstream is not None:
            self._upstream.close()
            self._upstream = None
        self._outgoing.again()
        self._interrupted |= self._listening
        self._asked.clear()
        self._listening.clear()
        self._moving.clear()
        self._told_down.clear()
        self._in_turn = False
        logger.warning("bridge: no connection to PostgreSQL: %s; again in %.1f s", why, delay)

    # ---- to what it listens --------------------------------------------------------------------

    def _listen(self, upstream: Upstream) -> None:
        """Follow listeners that come and go."""
        if not self._local.changed() and not self._requests:
            return
        heard = self._local.heard()
        gone, come = self._asked - heard, heard - self._asked
        if gone:
            self._move("UNLISTEN", gone, lambda _: None)
        if come:
            self._move("LISTEN", come, lambda _: None)
        self._asked = heard

    def _move(self, verb: str, channels: set[str], then: Callable[[set[str]], None]) -> None:
        """One transaction for all of them."""
        assert self._upstream is not None
        if not channels:
            return
        self._moving.update(channels)
        change = self._listening.update if verb == "LISTEN" else self._listening.difference_update

        def done(_: Any) -> None:
            self._moving.subtract(channels)
            change(channels)
            then(channels)

        quoted = self._postgres.quoted
        text = b"; ".join(verb.encode() + b" " + quoted(channel) for channel in sorted(channels))
        self._upstream.execute(text, None, done)

    def _answer(self) -> None:
        """Answer the requests that are settled by now; the others stay."""
        waiting = [asked for asked in self._requests if not self._is_answered(asked)]
        self._requests = waiting
        self._told_down.intersection_update(waiting)

    def _is_answered(self, asked: ControlRequest) -> bool:
        """False: it has to wait; or the answer has, as there is no room for it."""
        ready = self._upstream is not None and self._upstream.ready
        if asked.channel not in self._channels:
            known = ", ".join(self._channels)
            return self._tell(asked, "refused", f"{asked.channel} is none of {known}")
        if asked.channel in self._listening and not self._moving[asked.channel]:
            return self._tell(asked, "listening")
        if ready:
            return asked.channel not in self._asked  # the process that asked has gone
        if asked not in self._told_down and self._tell(asked, "down", self._down):
            self._told_down.add(asked)
        return False

    def _tell(self, asked: ControlRequest, state: str, detail: str = "") -> bool:
        told = self._control.answer(asked, state, detail)
        if not told:
            self._tell_at = self._clock() + self._local_backoff.next()
        return told

    # ---- what goes upstream --------------------------------------------------------------------

    def _send(self, upstream: Upstream) -> None:
        if self._clock() < self._send_at:
            return
        outward = self._outgoing.send()
        if outward is not None:
            upstream.execute(outward.statement, outward.values, self._was_sent, self._was_refused)

    def _was_sent(self, _: Any) -> None:
        self._sent += self._outgoing.sent()
        if self._upstream is not None:
            self._send(self._upstream)

    def _was_refused(self, error: Any) -> None:
        """The server has refused it.  A full queue there, say, is no reason to give it up."""
        text = error.diag.message_primary or str(error)
        if (error.sqlstate or "")[:2] in ("40", "53", "54", "55", "57"):
            delay = self._local_backoff.next()
            self._send_at = self._clock() + delay
            self._outgoing.again()
            logger.warning("bridge: PostgreSQL takes nothing: %s; again in %.1f s", text, delay)
            return
        count = self._outgoing.sent()
        self._refused += count
        logger.error("bridge: PostgreSQL refused %d notifications: %s", count, text)

    # ---- gaps ----------------------------------------------------------------------------------

    def _pay(self) -> None:
        if self._local.pay():
            self._local_backoff.reset()
        else:
            self._pay_at = self._clock() + self._local_backoff.next()

    def _pay_later(self) -> None:
        if self._local.owes and self._pay_at <= self._clock():
            self._pay_at = self._clock() + self._local_backoff.next()

    # ---- outside of the loop -------------------------------------------------------------------

    def stats(self) -> BridgeStats:
        """What the bridge has done since it was made; may be called by any thread."""
        up = self._upstream
        return BridgeStats(
            upstream_pid=self._identity.pid if up is not None and up.ready else None,
            listening=frozenset(self._listening),
            received=self._received,
            dropped=self._local.dropped,
            sent=self._sent,
            refused=self._refused,
            lost=self._outgoing.dropped,
            waiting=len(self._outgoing),
            waiting_bytes=self._outgoing.bytes,
            connections=self._connections,
        )

    def stop(self) -> None:
        """Let `run` return, also from a signal handler."""
        self._stopping = True
        if self._wake >= 0:
            os.eventfd_write(self._wake, 1)

    def close(self) -> None:
        """Stop, and be no bridge any more.  Closing twice is allowed."""
        if self._pid != process.pid:
            self._closed = True  # the rest is the parent's
            return
        self.stop()
        if self._runner == threading.get_ident():
            raise ProgrammingError("close() inside of run()", hint="Call stop() there.")
        with self._running:
            if not self._closed and len(self._outgoing):
                logger.warning("bridge: %d transactions were not sent", len(self._outgoing))
            # Each step may be done again: an exception of a signal handler may come between them.
            self._closed = True
            if self._upstream is not None:
                self._upstream.close()
                self._upstream = None
            try:
                self._local.close()
            finally:
                self._control.close()
            wake, self._wake = self._wake, -1
            if wake >= 0:
                os.close(wake)

    def __repr__(self) -> str:
        state = "closed" if self._closed else "connected" if not self._down else self._down
        return f"<pynotify.bridge.PostgresBridge of {', '.join(self._channels)} ({state})>"


def _runs_already() -> ProgrammingError:
    return ProgrammingError("the bridge runs already", hint="One thread runs it.")


def _check_channels(channels: Iterable[str]) -> tuple[str, ...]:
    if isinstance(channels, str):
        raise TypeError("channels must be several names, not one string")
    names = tuple(dict.fromkeys(channels))
    if not names:
        raise ValueError("a bridge needs at least one channel")
    for name in names:
        if not isinstance(name, str):
            raise TypeError(f"channel must be a str, not {type(name).__name__}")
        if not 0 < len(name.encode()) <= _MAX_CHANNEL or "\0" in name:
            raise InvalidChannelName(
                f"channel name {name!r} is not one of PostgreSQL's",
                hint=f"It has 1 to {_MAX_CHANNEL} bytes of UTF-8 without NUL there.",
            )
    return names


def _import_upstream() -> Any:
    """What needs psycopg."""
    try:
        module = importlib.import_module("pynotify.bridge._upstream")
    except ImportError as error:
        raise ImportError(
            'a bridge needs psycopg 3: pip install "pynotify-ipc[postgres]"'
        ) from error
    return module
