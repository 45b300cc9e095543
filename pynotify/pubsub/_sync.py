"""PubSub as threads use it."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any, Final

from pynotify._closing import ClosedByWith, is_inside_a_call
from pynotify._connection import Connection
from pynotify._headers import take
from pynotify._locks import Event, RLock
from pynotify._time import nanoseconds
from pynotify.errors import ConnectionLost, InterfaceError
from pynotify.pubsub._arrays import Reference
from pynotify.pubsub._dispatch import Received, report
from pynotify.pubsub._format import NOTHING
from pynotify.pubsub._local import LocalTransport
from pynotify.pubsub._shared import DEFAULT_SHARED
from pynotify.pubsub._state import (
    DEFAULT_BOUND,
    State,
    delays,
    no_array,
    nothing_held,
    report_failure,
    report_loss,
    transient,
    unsent,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from types import FrameType
    from typing import TypeAlias

    from pynotify._headers import Taken
    from pynotify.pubsub._postgres import PostgresConnection, PostgresTransport

    AnyConnection: TypeAlias = Connection | PostgresConnection
    Transport: TypeAlias = LocalTransport | PostgresTransport


class PubSub(ClosedByWith, State):
    """Objects of any size, over a `pynotify.Connection` or a psycopg 3 connection.

    `connection`: one, which stays the caller's, or a function that makes one, which is called
    again when that is lost; what it makes is closed with the PubSub.  A psycopg connection must
    be in autocommit, and is best left to PubSubs, any number of which may share it.
    `skip_self`: without what this connection itself sends.  `raw`: what is no plain text is sent as
    bytes and not in base64, several times as fast; only PubSubs of pynotify on the segment itself
    understand that, not those over PostgreSQL or a gateway.  `codec` makes JSON of what is no str,
    bytes or array, and objects of all JSON that comes: a `msgspec.Struct` or `pydantic.BaseModel`,
    a `pydantic.TypeAdapter`, or an object with `encode(obj)` and `decode(text)`, the text bytes of
    UTF-8; what it raises for comes as a malformed segment.  `interval`: seconds between two looks
    at whether a PostgreSQL still answers, while a caller receives; None: never.  `max_object`:
    bytes of the largest object that is received, `max_pending` of all that have begun and not
    ended; what goes beyond is dropped and counted.  `max_shared`: bytes of shared memory that the
    arrays which it publishes may have; 0: none.

    A numpy array of 64 KiB and more is copied once, into shared memory, where each listener on the
    segment maps it: it arrives as a read-only array, and lives as long as any view of it does.
    Smaller ones, and those for which there is no room, go through the queue.  Where an array is
    not there any more, a `Gap` with the reason `Gap.ARRAY` stands.  Over PostgreSQL, and on a
    channel that a bridge sends on, an array is the bytes of a .npy file.

    Nothing is read but in `run` and iteration: there is no hidden thread.  Thread-safe; each
    object is handed out once.  Over a lost connection its methods raise `ConnectionLost`; given
    a function, they connect and listen again, and a `Gap` stands where something may be missing.
    """

    def __init__(
        self,
        connection: AnyConnection | Callable[[], AnyConnection],
        *,
        skip_self: bool = False,
        raw: bool = False,
        codec: Any = None,
        interval: float | None = None,
        max_object: int = DEFAULT_BOUND,
        max_pending: int = DEFAULT_BOUND,
        max_shared: int = DEFAULT_SHARED,
    ) -> None:
        super().__init__(max_object=max_object, max_pending=max_pending, codec=codec)
        if max_shared < 0:
            raise ValueError(f"max_shared must not be negative, is {max_shared}")
        self._max_shared = max_shared
        if interval is not None and not interval > 0:
            raise ValueError(f"interval must be more than 0 s, is {interval}")
        self._skip_self, self._raw = skip_self, raw
        self._interval = interval
        self._make = connection if callable(connection) else None
        self._make_locks()
        self._transport: Transport | None = self._over(
            connection() if callable(connection) else connection
        )

    def _make_locks(self) -> None:
        #: Held while receiving: what has come is put together in the order in which it came.
        self._receiving = RLock()
        #: Of `_transport`, and of `_channels` with what the transport listens to.
        self._connecting = RLock()
        self._ending = Event()

    def reset_in_child(self) -> None:
        """A thread of the parent that is in run() has one."""
        super().reset_in_child()
        self._make_locks()

    def _over(self, connection: AnyConnection) -> Transport:
        transport: Transport
        if isinstance(connection, Connection):
            transport = LocalTransport(
                connection,
                skip_self=self._skip_self,
                raw=self._raw,
                max_shared=self._max_shared,
            )
            transport.awaited = self._awaiting()
            self._attach, self._settled = transport.attach, transport.resolved
        elif _is_psycopg(connection):
            if self._raw:
                raise ValueError("raw=True is for connections of pynotify: PostgreSQL sends text")
            from pynotify.pubsub._postgres import PostgresTransport  # noqa: PLC0415

            transport = PostgresTransport(
                connection, skip_self=self._skip_self, interval=self._interval
            )
            transport.unfinished = self._senders
            self._attach, self._settled = no_array, nothing_held
        else:
            raise TypeError(
                "PubSub needs a pynotify.Connection or a psycopg.Connection, or a function that"
                f" makes one, not {type(connection).__name__} (AsyncPubSub takes an"
                " AsyncConnection)"
            )
        self._assembler.lifetime = transport.lifetime
        self._assembler.expires = transport.expires
        return transport

    # ---- sending ---------------------------------------------------------------------------

    def publish(
        self, channel: str, obj: Any = NOTHING, *, headers: Mapping[str, str] | None = None
    ) -> None:
        """Send an object: nothing, a str, bytes, a numpy array, or anything JSON, of any size.

        `headers`: str to str, which go along beside the object (`Received.headers`), up to 65,535
        bytes as JSON, else `PayloadTooLong`.  Over PostgreSQL they raise `ProgrammingError`.

        Inside a transaction of a `pynotify.Connection` it is sent at its commit.  Over PostgreSQL
        every segment is a transaction of its own: an object of more than one raises
        `ActiveTransaction` inside another.  TypeError for what JSON does not have and for arrays
        of objects, ValueError for NaN and infinities; `ConnectionLost`, after which it may have
        been sent or not.
        """
        obj = self._encoded(obj)
        taken = take(headers) if headers else None
        self._check_open()
        try:
            self._publish(channel, obj, taken)
        finally:
            if self._closed:
                self._close_what_is_left()

    def _publish(self, channel: str, obj: Any, headers: Taken | None) -> None:
        transport = self._connected()
        try:
            transport.send_object(channel, obj, headers)
        except ConnectionLost as error:
            if self._make is None:
                raise
            self._lose(transport, error)
            if not transport.all_or_nothing:
                raise unsent(error) from error
            transport = self._connected()
            transport.send_object(channel, obj, headers)

    # ---- subscribing -----------------------------------------------------------------------

    def subscribe(self, *channels: str) -> None:
        """Receive what is sent on the channels from now on.  Subscribing twice changes nothing."""
        self._check_open()
        try:
            for channel in channels:
                with self._connecting:
                    self._again_if_lost(lambda transport, name: transport.listen(name), channel)
                    self._channels[channel] = None
        finally:
            if self._closed:
                self._close_what_is_left()

    def unsubscribe(self, *channels: str) -> None:
        """Stop receiving; what was not handed out by now is dropped.

        Channels that are not subscribed to are no error.
        """
        self._check_open()
        self._assembling.refuse()
        try:
            for channel in channels:
                with self._connecting:
                    self._again_if_lost(lambda transport, name: transport.unlisten(name), channel)
                    self._unsubscribed(channel)
        finally:
            if self._closed:
                self._close_what_is_left()

    def _again_if_lost(self, action: Callable[[Transport, str], None], channel: str) -> None:
        transport = self._connected()
        try:
            action(transport, channel)
        except ConnectionLost as error:
            self._lose(transport, error)
            action(self._connected(), channel)

    # ---- receiving -------------------------------------------------------------------------

    def run(self, timeout: float | None = None) -> int:
        """Call handlers for `timeout` seconds, 0: for what is there, None: until it is closed.

        Returns how many objects have come, those without a handler too.  Raises
        `ActiveTransaction` while the calling thread has a transaction open.
        """
        nanoseconds(timeout)
        return sum(map(_one, self._received(timeout)))

    def __iter__(self) -> Iterator[Received]:
        """(channel, object, pid of the sender), after the handlers; (None, Gap, None) for a gap.

        Ends when the PubSub is closed.  Leaving the loop loses nothing.
        """
        return self._received(None)

    def ready(self) -> Iterator[Received]:
        """What is there, as iterating gives it; ends when that is handed out, and never waits."""
        return self._received(0)

    def _received(self, timeout: float | None) -> Iterator[Received]:
        # None where another thread was faster.
        return filter(None, self._handed_out(timeout))

    def _handed_out(self, timeout: float | None) -> Iterator[Received | None]:
        deadline = None if timeout is None else time.monotonic() + timeout
        self._check_open()
        over = False
        while not over:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            over = left == 0.0
            try:
                with self._receiving:
                    if not self._ready and not self._closed:
                        self._receive(left)
            finally:
                if self._closed:
                    self._close_what_is_left()
            # Those that come from now on are for the next turn, or run(0) might never end.
            for _ in range(len(self._ready)):
                # In no variable: that would keep an array until the next one comes.
                yield self._hand_out()
            over = over or self._closed

    def _receive(self, timeout: float | None) -> None:
        """Receive until something has come, perhaps a part of an object, or the time is over."""
        transport = None
        self._assembling.refuse()
        try:
            if not self._connect_in_time(timeout) or self._ready:
                return  # too late, or the Gap of another connection is there
            transport = self._transport
            if transport is None:
                return
            # What is there already was left by an exception of a signal handler.
            left = 0.0 if self._came else self._until_expiry(timeout)
            transport.receive(left, self._came)
            self._take_in(transport.gone())
            transport.taken_in(self._oldest())
        except ConnectionLost as error:
            if transport is None:
                raise
            self._lose(transport, error)
        except InterfaceError:
            # Another thread may have lost the transport, and closed it, while this one waited.
            if not self._closed and self._transport is transport:
                raise

    def _hand_out(self) -> Received | None:
        """What is next, after its handlers; Ctrl-C before one of them has begun leaves it there."""
        received, begun = None, False
        try:
            received = self._first()
            if received is not None:
                if isinstance(reference := received.obj, Reference):
                    received = self._resolved(received, reference)
                    # No call comes in between: Ctrl-C would have it counted twice, and the block
                    # waited for for ever.
                    if received.channel is None:
                        self._arrays_gone += 1
                    self._unresolved.pop(reference.place, None)
                    self._settled(self._oldest())
                for handler, argument in self._handlers.of(received):
                    begun = True
                    try:
                        handler(argument)
                    except Exception:
                        report(handler, received)
        except BaseException:
            if received is not None and not begun:
                self._ready.appendleft(received)
            raise
        return received

    # ---- connections -----------------------------------------------------------------------

    def _connected(self) -> Transport:
        """The transport.  Given a function, one that is not known to be lost."""
        with self._connecting:
            transport = self._transport
            if transport is not None and self._make is not None:
                try:
                    if not transport.usable:
                        raise ConnectionLost("the connection was closed")
                    transport.probe()
                except ConnectionLost as error:
                    self._lose(transport, error)
            try:
                return self._connect()
            except transient() as error:
                if isinstance(error, ConnectionLost) and self._make is None:
                    raise
                raise ConnectionLost(
                    f"could not connect: {error}", hint="The next call tries again."
                ) from error

    def _connect(self) -> Transport:
        """Connect unless it is connected, and listen to everything again."""
        with self._connecting:
            if self._transport is not None:
                return self._transport
            self._check_open()
            assert self._make is not None
            connection = self._make()
            if (others := self._made_meanwhile()) is not None:
                connection.close()
                return others
            transport = self._over(connection)
            try:
                for channel in tuple(self._channels):
                    transport.listen(channel)
                self._connected_again()
                if (others := self._made_meanwhile()) is not None:
                    transport.close(with_connection=True)
                    return others
                self._transport = transport  # nothing comes between this and the look
                self._check_open()  # a signal handler may have closed it meanwhile
            except BaseException:
                if self._transport is transport:
                    self._transport = None
                transport.close(with_connection=True)
                raise
            return transport

    def _made_meanwhile(self) -> Transport | None:
        """That of a signal handler, which has connected while its thread was about to."""
        return self._transport

    def _connect_in_time(self, timeout: float | None) -> bool:
        """Connect again, with more and more time between the attempts."""
        deadline = None if timeout is None else time.monotonic() + timeout
        transport = self._transport
        if self._make is not None and transport is not None and not transport.usable:
            self._lose(transport, ConnectionLost("the connection was closed"))
        for delay in delays():
            try:
                if self._transport is None:
                    self._connect()
                return True
            except transient() as error:
                report_failure(error)
            left = delay if deadline is None else min(delay, deadline - time.monotonic())
            if left <= 0 or self._ending.wait(left):
                break
        return False

    def _lose(self, transport: Transport, error: ConnectionLost) -> None:
        """Raises it when there is no way to another connection."""
        if self._make is None:
            raise error
        with self._connecting:
            if self._transport is transport:
                self._transport = None
                report_loss(error)
                transport.close(with_connection=True)

    # ---- the end ---------------------------------------------------------------------------

    def close(self) -> None:
        """Listen to nothing any more; `run` returns.  Closing twice is allowed.

        The connection stays open, unless a function made it.  In a signal handler it waits for no
        other thread, and over psycopg for no statement that the handler has interrupted: then there
        is no UNLISTEN, and the connection goes on listening, to nothing of this PubSub's.
        """
        transport = self._transport
        if self._closed and transport is None:
            return
        self._closed = True
        self._ending.set()
        if transport is not None:
            transport.interrupt()
        self._end()

    def _end(self) -> None:
        """Close the transport; where this must not wait, a thread that receives or connects does.

        Each of them looks afterwards whether it is to.  That may be this thread, in the middle of
        receiving, which sleeps on what the transport has.
        """
        if self._is_receiving_below():
            return
        waits = not is_inside_a_call()
        # Calls made by `for`: Ctrl-C cannot come between having a lock and `try`.
        for receiving in map(self._receiving.acquire, (waits,)):
            if not receiving:
                return
            try:
                for connecting in map(self._connecting.acquire, (waits,)):
                    if not connecting:
                        return
                    try:
                        self._close_transport()
                    finally:
                        self._connecting.release()
            finally:
                self._receiving.release()

    def _is_receiving_below(self) -> bool:
        """Whether the caller, a signal handler say, has interrupted this thread in _receive()."""
        frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 - as in is_inside_a_call()
        while frame is not None and not (
            frame.f_code is _RECEIVE and frame.f_locals.get("self") is self
        ):
            frame = frame.f_back
        return frame is not None

    def _close_transport(self) -> None:
        transport = self._transport
        if transport is not None:  # it stays until it is closed: Ctrl-C may come before
            transport.close(with_connection=self._make is not None)
            self._transport = None
        self._ready.clear()
        self._forget_came()

    def _close_what_is_left(self) -> None:
        """What close() in a signal handler has left to this thread."""
        if self._transport is not None:
            self._end()


_RECEIVE: Final = PubSub._receive.__code__  # noqa: SLF001 - of this module


def _one(_received: Received) -> int:
    return 1


def _is_psycopg(connection: object) -> bool:
    """Check without importing psycopg for programs that do not use it."""
    psycopg = sys.modules.get("psycopg")
    return psycopg is not None and isinstance(connection, psycopg.Connection)
