"""PubSub as tasks use it."""

from __future__ import annotations

import asyncio
import inspect
import sys
from typing import TYPE_CHECKING, Any, cast

from pynotify._closing import ClosedByAsyncWith
from pynotify._headers import take
from pynotify._time import nanoseconds
from pynotify.errors import ConnectionLost, InterfaceError
from pynotify.pubsub._arrays import Reference
from pynotify.pubsub._dispatch import Received, report
from pynotify.pubsub._format import NOTHING
from pynotify.pubsub._local import AsyncLocalTransport
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
    from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
    from typing import Self, TypeAlias

    from pynotify._async_connection import AsyncConnection
    from pynotify.pubsub._async_postgres import AsyncPostgresTransport
    from pynotify.pubsub._postgres import AsyncPostgresConnection

    AnyConnection: TypeAlias = AsyncConnection | AsyncPostgresConnection
    Transport: TypeAlias = AsyncLocalTransport | AsyncPostgresTransport


class AsyncPubSub(ClosedByAsyncWith, State):
    """Objects of any size, over an `AsyncConnection`.

    It mirrors `PubSub`; what it says there holds here, "thread" read as "task".  `connection`:
    an AsyncConnection of pynotify, or one of psycopg in autocommit, or a coroutine function that
    makes one (`lambda: pynotify.AsyncConnection.connect("app")`).  Handlers may be coroutine
    functions: then the next object waits for them.  It opens with its first call or with
    `async with`.
    """

    def __init__(
        self,
        connection: AnyConnection | Callable[[], Awaitable[AnyConnection]],
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
        self._given = None if callable(connection) else connection
        self._receiving = asyncio.Lock()
        self._connecting = asyncio.Lock()
        #: Of subscribing and unsubscribing, which take effect in the order of their calls.
        self._subscribing = asyncio.Lock()
        self._ending = asyncio.Event()
        self._transport: Transport | None = None
        self._opened = False

    # ---- sending ---------------------------------------------------------------------------

    async def publish(
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
        transport = await self._connected()
        try:
            await transport.send_object(channel, obj, taken)
        except ConnectionLost as error:
            await self._lose(transport, error)
            if not transport.all_or_nothing:
                raise unsent(error) from error
            transport = await self._connected()
            await transport.send_object(channel, obj, taken)

    # ---- subscribing -----------------------------------------------------------------------

    async def subscribe(self, *channels: str) -> None:
        """Receive what is sent on the channels from now on.  Subscribing twice changes nothing."""
        for channel in channels:
            async with self._subscribing:
                # Another task may have connected again meanwhile, and knew nothing of it.
                while await self._again_if_lost(_listen, channel) is not self._transport:
                    pass
                self._channels[channel] = None

    async def unsubscribe(self, *channels: str) -> None:
        """Stop receiving; what was not handed out by now is dropped.

        Channels that are not subscribed to are no error.
        """
        for channel in channels:
            async with self._subscribing:
                while await self._again_if_lost(_unlisten, channel) is not self._transport:
                    pass
                self._unsubscribed(channel)

    async def _again_if_lost(
        self, action: Callable[[Transport, str], Awaitable[None]], channel: str
    ) -> Transport:
        """The transport with which it has succeeded."""
        transport = await self._connected()
        try:
            await action(transport, channel)
        except ConnectionLost as error:
            await self._lose(transport, error)
            transport = await self._connected()
            await action(transport, channel)
        return transport

    # ---- receiving -------------------------------------------------------------------------

    async def run(self, timeout: float | None = None) -> int:
        """Call handlers for `timeout` seconds, 0: for what is there, None: until it is closed.

        Returns how many objects have come, those without a handler too.  Raises `ActiveTransaction`
        while the calling task has a transaction open.  Cancelling it loses at most the object
        that a handler is working on.
        """
        nanoseconds(timeout)
        count = 0
        async for received in self._received(timeout):
            count += 1
            del received
        return count

    def __aiter__(self) -> AsyncIterator[Received]:
        """As iterating a `PubSub`."""
        return self._received(None)

    async def _received(self, timeout: float | None) -> AsyncGenerator[Received]:
        clock = asyncio.get_running_loop().time
        deadline = None if timeout is None else clock() + timeout
        self._check_open()
        over = False
        while not over:
            left = None if deadline is None else max(0.0, deadline - clock())
            over = left == 0.0
            async with self._receiving:
                if not self._ready and not self._closed:
                    await self._receive(left)
            for _ in range(len(self._ready)):
                if not self._ready:
                    break
                # In no variable: that would keep an array until the next one comes.
                yield cast("Received", await self._hand_out())
            over = over or self._closed

    async def _receive(self, timeout: float | None) -> None:
        transport = None
        try:
            if not await self._connect_in_time(timeout) or self._ready:
                return
            transport = self._transport
            if transport is None:
                return
            # What is there already was left by a cancelled task, or by Ctrl-C.
            left = 0.0 if self._came else self._until_expiry(timeout)
            await transport.receive(left, self._came)
            self._take_in(transport.gone())
            transport.taken_in(self._oldest())
        except ConnectionLost as error:
            if transport is None:
                raise
            await self._lose(transport, error)
        except InterfaceError:
            # Another task may have lost the transport, and closed it, while this one waited.
            if not self._closed and self._transport is transport:
                raise

    async def _hand_out(self) -> Received | None:
        """What is next, after its handlers.

        Ctrl-C before one of them has begun leaves it there.
        """
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
                        result = handler(argument)
                        if inspect.isawaitable(result):
                            await result
                    except Exception:
                        report(handler, received)
        except BaseException:
            if received is not None and not begun:
                self._ready.appendleft(received)
            raise
        return received

    # ---- connections -----------------------------------------------------------------------

    async def _connected(self) -> Transport:
        self._check_open()
        transport = self._transport
        if transport is not None and self._make is not None:
            try:
                if not transport.usable:
                    raise ConnectionLost("the connection was closed")
                await transport.probe()
            except ConnectionLost as error:
                await self._lose(transport, error)
        try:
            return await self._connect()
        except transient() as error:
            if self._make is None or not self._opened:
                raise
            raise ConnectionLost(
                f"could not connect: {error}", hint="The next call tries again."
            ) from error

    async def _connect(self) -> Transport:
        async with self._connecting:
            if self._transport is not None:
                return self._transport
            self._check_open()
            connection = self._given if self._make is None else await self._make()
            transport = self._over(connection)
            try:
                await transport.open()
                for channel in tuple(self._channels):
                    await transport.listen(channel)
                self._check_open()  # another task may have closed it meanwhile
            except BaseException:
                await transport.close(with_connection=self._make is not None)
                raise
            if self._opened:
                self._connected_again()
            self._opened = True
            self._transport = transport
            return transport

    def _over(self, connection: object) -> Transport:
        from pynotify._async_connection import AsyncConnection  # noqa: PLC0415

        transport: Transport
        if isinstance(connection, AsyncConnection):
            transport = AsyncLocalTransport(
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
            from pynotify.pubsub._async_postgres import AsyncPostgresTransport  # noqa: PLC0415

            transport = AsyncPostgresTransport(
                cast("Any", connection), skip_self=self._skip_self, interval=self._interval
            )
            transport.unfinished = self._senders
            self._attach, self._settled = no_array, nothing_held
        else:
            raise TypeError(
                "AsyncPubSub needs a pynotify.AsyncConnection or a psycopg.AsyncConnection, or a"
                f" coroutine function that makes one, not {type(connection).__name__} (PubSub, in"
                " a thread, takes the others)"
            )
        self._assembler.lifetime = transport.lifetime
        self._assembler.expires = transport.expires
        return transport

    async def _connect_in_time(self, timeout: float | None) -> bool:
        clock = asyncio.get_running_loop().time
        deadline = None if timeout is None else clock() + timeout
        if self._make is not None and self._transport is not None and not self._transport.usable:
            await self._lose(self._transport, ConnectionLost("the connection was closed"))
        for delay in delays():
            try:
                if self._transport is None:
                    await self._connect()
                return True
            except transient() as error:
                if self._make is None or not self._opened:
                    raise
                report_failure(error)
            left = delay if deadline is None else min(delay, deadline - clock())
            if left <= 0:
                break
            try:
                async with asyncio.timeout(left):
                    await self._ending.wait()
                break
            except TimeoutError:
                pass
        return False

    async def _lose(self, transport: Transport, error: ConnectionLost) -> None:
        if self._make is None:
            raise error
        if self._transport is transport:
            self._transport = None
            report_loss(error)
            await transport.close(with_connection=True)

    # ---- the end ---------------------------------------------------------------------------

    async def close(self) -> None:
        """Listen to nothing any more; `run` returns.  Closing twice is allowed.

        The connection stays open, unless a function made it.
        """
        transport = self._transport
        if self._closed and transport is None:
            return
        self._closed = True
        self._ending.set()
        if transport is not None:  # it stays until it is closed: this may be cancelled
            await transport.close(with_connection=self._make is not None)
            self._transport = None
        self._ready.clear()
        self._forget_came()

    async def __aenter__(self) -> Self:
        await self._connected()
        return self


async def _listen(transport: Transport, channel: str) -> None:
    await transport.listen(channel)


async def _unlisten(transport: Transport, channel: str) -> None:
    await transport.unlisten(channel)


def _is_psycopg(connection: object) -> bool:
    """Check without importing psycopg for programs that do not use it."""
    psycopg = sys.modules.get("psycopg")
    return psycopg is not None and isinstance(connection, psycopg.AsyncConnection)
