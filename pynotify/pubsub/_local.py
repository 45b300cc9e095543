"""PubSub over the connections of pynotify.

All segments of an object are sent in one transaction, with dedup=False: equal ones would collapse.
So they lie one after the other in the queue, and all of them are there or none.
"""

from __future__ import annotations

import contextlib
from functools import partial
from typing import TYPE_CHECKING

from pynotify._encoding import encode_channel
from pynotify._ffi import ffi, lib
from pynotify._types import Gap, Notify
from pynotify.errors import ConnectionLost, SegmentUnlinked, native_error
from pynotify.pubsub._assembly import LIFETIME, Segment
from pynotify.pubsub._format import POSTGRES_LIMIT
from pynotify.pubsub._strands import AsyncStrands, Strands

if TYPE_CHECKING:
    from collections.abc import Hashable

    from pynotify._async_connection import AsyncConnection
    from pynotify._base import BaseConnection
    from pynotify._connection import Connection


def limit_of(connection: BaseConnection) -> int:
    """The `max_payload` of its segment, in bytes."""
    connection._check_usable()
    options = ffi.new("pn_options *")
    lib.pn_engine_options(connection._engine(), options)
    return int(options.max_payload)


def _goes_upstream(connection: BaseConnection, channel: str) -> bool:
    """Whether a bridge sends on what is sent on it here."""
    connection._check_usable()
    name = encode_channel(channel)
    result = int(lib.pn_channel_upstream(connection._handle, name, len(name)))
    if result < 0:
        raise native_error(result)
    return bool(result)


def _is_foreign(sender: Hashable) -> bool:
    """A bridge has brought it in: its segments are no transaction of ours."""
    return isinstance(sender, int) and bool(sender >> 63)


def segments_of(messages: list[Notify | Gap]) -> list[Segment | Gap]:
    return [
        Segment(m.channel, m._sender, m.pid, m.data) if isinstance(m, Notify) else m
        for m in messages
    ]


def lost(error: SegmentUnlinked) -> ConnectionLost:
    """How PubSub says it."""
    return ConnectionLost(
        str(error).partition("\n")[0],
        hint="Close the PubSub and make one on a new connection, or give it a function that"
        " makes connections.",
    )


class LocalTransport:
    """Over a `Connection`."""

    #: Nothing of an object is sent here before all of it, so none waits for the rest of a dead
    #: sender's; what a bridge brings in is another matter.
    lifetime = LIFETIME
    expires = staticmethod(_is_foreign)
    #: A send() that raises `ConnectionLost` has sent nothing.
    all_or_nothing = True

    def __init__(self, connection: Connection, *, skip_self: bool) -> None:
        self._connection = connection
        self._limit = limit_of(connection)
        try:
            self._strands = Strands(connection, skip_self=skip_self)
        except SegmentUnlinked as error:
            raise lost(error) from error

    @property
    def connection(self) -> Connection:
        return self._connection

    @property
    def usable(self) -> bool:
        return not self._connection.closed

    def limit_on(self, channel: str) -> int:
        """Of a segment on that channel, in bytes."""
        if self._limit > POSTGRES_LIMIT and _goes_upstream(self._connection, channel):
            return POSTGRES_LIMIT
        return self._limit

    def listen(self, channel: str) -> None:
        try:
            self._strands.add(channel)
        except SegmentUnlinked as error:
            raise lost(error) from error

    def unlisten(self, channel: str) -> None:
        try:
            self._strands.remove(channel)
        except SegmentUnlinked as error:
            raise lost(error) from error

    def send(self, channel: str, segments: list[bytes]) -> None:
        try:
            self._connection.notify_many(channel, segments, dedup=False)
        except SegmentUnlinked as error:
            raise lost(error) from error

    def receive(self, timeout: float | None) -> list[Segment | Gap]:
        """Everything that is there, after waiting for something; empty when the time is over."""
        try:
            return segments_of(self._strands.take(timeout))
        except SegmentUnlinked as error:
            raise lost(error) from error

    def gone(self) -> set[Hashable]:
        """Nobody: who connects again is another sender."""
        return set()

    def probe(self) -> None:
        """Raises `ConnectionLost` when it is lost; the next statement finds out here."""

    def interrupt(self) -> None:
        """Let who is in receive() return; it can only be closed afterwards."""
        if not self._connection.closed:
            with contextlib.suppress(SegmentUnlinked):
                self._strands.close()

    def close(self, *, with_connection: bool) -> None:
        if not self._connection.closed:
            with contextlib.suppress(SegmentUnlinked):
                self._strands.close()
        if with_connection:
            self._connection.close()


class AsyncLocalTransport:
    """Over an `AsyncConnection`."""

    all_or_nothing = True
    lifetime = LIFETIME
    expires = staticmethod(_is_foreign)

    def __init__(self, connection: AsyncConnection, *, skip_self: bool) -> None:
        self._connection = connection
        self._limit = limit_of(connection)
        self._strands = AsyncStrands(connection, skip_self=skip_self)

    @property
    def usable(self) -> bool:
        return not self._connection.closed

    async def open(self) -> None:
        try:
            await self._strands.open()
        except SegmentUnlinked as error:
            raise lost(error) from error

    async def limit_on(self, channel: str) -> int:
        """As `LocalTransport.limit_on`."""
        if self._limit > POSTGRES_LIMIT:
            ask = partial(_goes_upstream, self._connection, channel)
            if await self._connection._patiently(ask):
                return POSTGRES_LIMIT
        return self._limit

    async def listen(self, channel: str) -> None:
        try:
            await self._strands.add(channel)
        except SegmentUnlinked as error:
            raise lost(error) from error

    async def unlisten(self, channel: str) -> None:
        try:
            await self._strands.remove(channel)
        except SegmentUnlinked as error:
            raise lost(error) from error

    async def send(self, channel: str, segments: list[bytes]) -> None:
        try:
            await self._connection.notify_many(channel, segments, dedup=False)
        except SegmentUnlinked as error:
            raise lost(error) from error

    async def receive(self, timeout: float | None) -> list[Segment | Gap]:
        try:
            return segments_of(await self._strands.take(timeout))
        except SegmentUnlinked as error:
            raise lost(error) from error

    def gone(self) -> set[Hashable]:
        """As `LocalTransport.gone`."""
        return set()

    async def probe(self) -> None:
        """As `LocalTransport.probe`."""

    async def close(self, *, with_connection: bool) -> None:
        if not self._connection.closed:
            with contextlib.suppress(SegmentUnlinked):
                await self._strands.close()
        if with_connection:
            await self._connection.close()
