"""PubSub over the connections of pynotify.

All segments of an object are sent in one transaction, with dedup=False: equal ones would collapse.
So they lie one after the other in the queue, and all of them are there or none.  An object that
would take more than half of the queue goes in parts instead (_parts.py), but for one in a
transaction of the caller's, or on a channel that a bridge sends on.  With raw=True the segments
of others are parts, too.  Arrays stay beside the queue (_shared.py), or are parts as well.

Headers go along with the segment that makes an object complete, the last one: they take room once,
and what puts objects together has none to keep.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from functools import partial
from typing import TYPE_CHECKING, Any

from pynotify._array_files import ArrayFiles
from pynotify._encoding import encode_channel
from pynotify._ffi import again, ffi, lib
from pynotify._segments import backend_rows
from pynotify._types import Notify
from pynotify.errors import ConnectionLost, Error, QueueFull, SegmentUnlinked, check
from pynotify.pubsub._arena import Arena, Queue, remove_orphans
from pynotify.pubsub._arrays import (
    checked,
    describe,
    inline,
    is_array,
    portable,
    refer,
    reference_size,
)
from pynotify.pubsub._assembly import LIFETIME
from pynotify.pubsub._format import (
    NOTHING,
    POSTGRES_LIMIT,
    container,
    container_for,
    cut,
    is_plain,
)
from pynotify.pubsub._guard import Guard
from pynotify.pubsub._parts import Flow, Room
from pynotify.pubsub._shared import SHARED_FROM
from pynotify.pubsub._strands import AsyncStrands, Strands

if TYPE_CHECKING:
    from collections import deque
    from collections.abc import Callable, Hashable

    from pynotify._async_connection import AsyncConnection
    from pynotify._connection import Connection
    from pynotify._handle import Handle
    from pynotify._headers import Taken
    from pynotify._hot import Parts
    from pynotify.pubsub._arena import Block
    from pynotify.pubsub._arrays import Array, Reference
    from pynotify.pubsub._parts import Outgoing
    from pynotify.pubsub._strands import Taking


def _goes_upstream(handle: Handle, channel: str) -> bool:
    """Whether a bridge sends on what is sent on the channel here."""
    handle.check_usable()
    name = encode_channel(channel)
    upstream = again(lambda: int(lib.pn_channel_upstream(handle.native, name, len(name))))
    return bool(check(upstream))


_LOOK_S = 1.0


class _Awaited:
    """The senders of unfinished objects in parts, and whether they live.

    One of them is gone when it was dead before a look that found nothing: what it had committed
    was read by then.
    """

    def __init__(self) -> None:
        self._dead: set[Hashable] = set()
        self._looked = 0.0

    def is_due(self, found: object, awaited: dict[Hashable, int]) -> bool:
        """Whether to ask which connections live, after a look."""
        if found or not awaited:
            self._dead = set()
            return False
        return bool(self._dead) or time.monotonic() >= self._looked + _LOOK_S

    def gone(self, awaited: dict[Hashable, int], living: set[tuple[int, int]]) -> set[Hashable]:
        self._looked = time.monotonic()
        gone = self._dead
        self._dead = {
            sender
            for sender, pid in awaited.items()
            if isinstance(sender, int) and (sender & 0xFFFFFFFF, pid) not in living
        }
        return gone & self._dead

    def bound(self, timeout: float | None, awaited: dict[Hashable, int]) -> float | None:
        """Bound a wait, since the death of a sender does not end it."""
        if not awaited:
            return timeout
        return _LOOK_S if timeout is None else min(timeout, _LOOK_S)


def _living(handle: Handle) -> set[tuple[int, int]]:
    """Backend ids and pids of the connections that there are; the dead are reaped first."""
    handle.check_usable()
    stat, rows = backend_rows(handle.call_engine)
    return {(rows[i].backend_id, rows[i].pid) for i in range(stat.backends)}


def _is_foreign(sender: Hashable) -> bool:
    """A bridge has brought it in: its segments are no transaction of ours."""
    return isinstance(sender, int) and bool(sender >> 63)


#: A part that is shorter is mostly header.
_LEAST_PART = 64


class _Sending:
    """What an object goes as: segments or parts of one transaction, or parts of several."""

    def __init__(self, room: Room, whole: Any, *, raw: bool) -> None:
        self._room, self._whole = room, whole
        limit = room.limit
        self.fits = whole is NOTHING or room.takes_in_one(len(whole))
        self._raw = (
            raw and whole is not NOTHING and limit >= _LEAST_PART and not is_plain(whole, limit)
        )
        #: Whether it matters that a bridge sends the channel on.
        self.asks_for_upstream = limit > POSTGRES_LIMIT or not self.fits or self._raw

    def together(self, upstream: bool) -> list[bytes] | Parts:
        """The payloads of one transaction."""
        limit = self._room.limit
        if self._whole is NOTHING:
            return [b""]
        if self._raw and not upstream:
            return self._room.together(self._whole)
        return cut(bytes(self._whole), min(limit, POSTGRES_LIMIT) if upstream else limit)


def _queue(handle: Handle) -> Queue:
    """What arenas want to know; the dead are reaped first."""
    handle.check_usable()
    stat, commit = ffi.new("pn_stat *"), ffi.new("uint64_t *")
    handle.call_engine(lib.pn_engine_stat, stat, ffi.NULL, 0)
    handle.call_engine(lib.pn_commit_seq, commit)
    return Queue(int(stat.head), int(stat.tail), int(commit[0]))


class _Arrays:
    """The arrays that one PubSub sends and receives beside the queue."""

    def __init__(self, handle: Handle, room: Room, limit: int) -> None:
        self._handle, self._room = handle, room
        created = int(lib.pn_engine_created_ns(handle.engine()))
        self._files = ArrayFiles(handle.segment, created)
        self._queue = partial(_queue, handle)
        self._limit = limit
        self.guard = Guard(self._files)
        self.arena = Arena(self._files, limit, self._queue)
        #: Of arenas without an owner: the queue as it was when they were first seen.
        self._orphans: dict[int, Queue] = {}
        self._commit = 0

    def shares(self, array: Array) -> bool:
        """Whether it goes beside the queue, if there is a block for it."""
        fits = SHARED_FROM <= array.nbytes <= self._limit
        return fits and reference_size(describe(array)) <= self._room.limit

    def place(self, array: Array) -> tuple[Block, bytes] | None:
        """The payload that refers to the array, which is shared.  None: there is no block.

        May be repeated.
        """
        placed = self.arena.place(array)
        return None if placed is None else (placed[0], refer(placed[1], describe(array)))

    def came(self, came: deque[Any]) -> int:
        """The last commit of which something has come."""
        for message in reversed(list(came)):  # a signal handler may take them meanwhile
            if isinstance(message, Notify):
                self._commit = message.seq
                break
        return self._commit

    def remove_orphans(self) -> None:
        """Look for blocks that their owners have left.  May be repeated."""
        remove_orphans(self._files, self._queue, self._orphans)

    def prepare_to_close(self) -> None:
        """What needs the connection.  May be repeated."""
        self.arena.prepare_to_close()
        self.remove_orphans()

    def close(self) -> None:
        """Hold nothing but the arrays that live."""
        self.arena.close()
        self.guard.close()


def lost(error: SegmentUnlinked) -> ConnectionLost:
    """A `ConnectionLost` for an unlinked segment."""
    return ConnectionLost(
        str(error).partition("\n")[0],
        hint="Close the PubSub and make one on a new connection, or give it a function that"
        " makes connections.",
    )


class _BaseLocalTransport:
    """What is the same over a connection of either kind."""

    #: Of objects in parts, and of what a bridge brings in.  No other waits for its rest: nothing
    #: of it is sent here before all of it.
    lifetime = LIFETIME
    expires = staticmethod(_is_foreign)
    #: A send() that raises `ConnectionLost` has sent nothing.
    all_or_nothing = True
    _strands: Taking

    def __init__(self, handle: Handle, *, raw: bool, max_shared: int) -> None:
        self._raw = raw
        self._room = Room(handle)
        self._arrays = _Arrays(handle, self._room, max_shared)
        self.attach: Callable[[Reference], Any] = self._arrays.guard.attach
        self._commit = 0
        #: The senders of objects in parts that have not ended, and their pids.
        self.awaited: Callable[[], dict[Hashable, int]] = dict
        self._awaited = _Awaited()
        self._gone: set[Hashable] = set()

    def taken_in(self, oldest: int | None) -> None:
        """What receive() has appended was looked at, but for references from that commit on."""
        self._strands.taken_in(self._commit, oldest)

    def resolved(self, oldest: int | None) -> None:
        """The same of references; receive() may be under way in another thread."""
        self._strands.resolved(self._commit, oldest)

    def gone(self) -> set[Hashable]:
        """Senders that send nothing any more."""
        return self._gone


class LocalTransport(_BaseLocalTransport):
    """Over a `Connection`."""

    _strands: Strands

    def __init__(
        self, connection: Connection, *, skip_self: bool, raw: bool, max_shared: int
    ) -> None:
        super().__init__(connection.link.handle, raw=raw, max_shared=max_shared)
        self._connection = connection
        self._link = connection.link
        try:
            self._strands = Strands(self._link, self._arrays.guard, skip_self=skip_self)
        except SegmentUnlinked as error:
            raise lost(error) from error

    @property
    def connection(self) -> Connection:
        """The connection under this PubSub."""
        return self._connection

    @property
    def usable(self) -> bool:
        """Whether the connection is open."""
        return not self._connection.closed

    def listen(self, channel: str) -> None:
        """Receive the channel's messages from now on."""
        try:
            self._strands.add(channel)
        except SegmentUnlinked as error:
            raise lost(error) from error

    def unlisten(self, channel: str) -> None:
        """Stop receiving the channel's messages."""
        try:
            self._strands.discard(channel)
        except SegmentUnlinked as error:
            raise lost(error) from error

    def send_object(self, channel: str, obj: Any, headers: Taken | None = None) -> None:
        """Send the object whole or not at all."""
        try:
            if is_array(obj):
                self._send_array(channel, checked(obj), headers)
            else:
                whole = NOTHING if obj is NOTHING else container_for(obj, self._room.limit)
                self._send(channel, whole, headers, raw=self._raw)
        except SegmentUnlinked as error:
            raise lost(error) from error

    def _send(self, channel: str, whole: Any, headers: Taken | None, *, raw: bool) -> None:
        sending = _Sending(self._room, whole, raw=raw)
        upstream = sending.asks_for_upstream and _goes_upstream(self._link.handle, channel)
        if sending.fits or upstream or self._link.transactions.current() is not None:
            payloads = sending.together(upstream)
            if headers is None:
                self._connection.notify_many(channel, payloads, dedup=False)
            else:
                self._notify(channel, payloads, headers)
        else:
            self._send_parts(channel, self._room.outgoing(whole), headers)

    def _notify(self, channel: str, payloads: list[bytes] | Parts, headers: Taken | None) -> None:
        """All of them, in one transaction; the last one has the headers."""
        connection = self._connection
        if headers is None:
            connection.notify_many(channel, payloads, dedup=False)
        elif len(payloads) > 1:
            with connection.transaction():
                connection.notify_many(channel, list(payloads)[:-1], dedup=False)
                connection.notify_many(channel, [payloads[-1]], dedup=False, headers=headers)
        elif self._link.transactions.current() is not None:
            connection.notify_many(channel, payloads, dedup=False, headers=headers)
        else:
            connection.notify(channel, payloads[0], headers=headers)  # in half the time

    def _send_array(self, channel: str, array: Array, headers: Taken | None) -> None:
        if _goes_upstream(self._link.handle, channel):
            self._send(channel, container(portable(array)), headers, raw=False)
            return
        transaction, placed = self._link.transactions.current(), None
        if self._arrays.shares(array):
            placed = self._arrays.place(array)
            if placed is None and transaction is None:
                placed = self._place_later(array)
        if placed is None:
            self._send(channel, inline(array), headers, raw=True)
            return
        block, payload = placed
        try:
            self._notify(channel, [payload], headers)
        finally:
            self._arrays.arena.sent(block, transaction)

    def _place_later(self, array: Array) -> tuple[Block, bytes] | None:
        """Wait for a block that its listeners have read."""
        arrays, flow = self._arrays, Flow(self._room.timeout)
        while arrays.arena.awaited and (pause := flow.pause(1.0 + arrays.arena.awaited)):
            self._read_own()
            time.sleep(pause)
            placed = arrays.place(array)
            if placed is not None:
                return placed
        return None

    def _send_parts(self, channel: str, outgoing: Outgoing, headers: Taken | None) -> None:
        connection, flow = self._connection, Flow(self._room.timeout)
        try:
            for batch in outgoing.batches():
                while True:
                    while pause := flow.pause(connection.queue_usage()):
                        self._read_own()
                        time.sleep(pause)
                    try:
                        self._notify(channel, batch, headers if outgoing.ends else None)
                        break
                    except QueueFull as error:
                        if not flow.again():
                            raise outgoing.refused(error) from error
        except BaseException:
            if outgoing.sent:
                with contextlib.suppress(Error):
                    connection.notify(channel, outgoing.given_up())
            raise

    def _read_own(self) -> None:
        """What this connection itself has not read: it may be what there is no room for."""
        receiver = self._link.receiver
        with receiver.lock:
            if receiver.routed:
                receiver.dispatch()

    def receive(self, timeout: float | None, came: deque[Any]) -> None:
        """Append everything that is there, after waiting; nothing when the time is over."""
        awaited = self.awaited()
        try:
            self._strands.take(self._awaited.bound(timeout, awaited), came)
            self._commit = self._arrays.came(came)
            if self._arrays.guard.orphaned:
                self._arrays.remove_orphans()
            self._gone = set()
            if self._awaited.is_due(came, awaited):
                self._gone = self._awaited.gone(awaited, _living(self._link.handle))
        except SegmentUnlinked as error:
            raise lost(error) from error

    def probe(self) -> None:
        """Do nothing: the next statement finds out that the connection is lost."""

    def interrupt(self) -> None:
        """Make receive() return; the transport can only be closed afterwards."""
        if not self._connection.closed:
            with contextlib.suppress(SegmentUnlinked):
                self._strands.close()

    def close(self, *, with_connection: bool) -> None:
        """Stop receiving, and close the connection if asked to."""
        try:
            if not self._connection.closed:
                with contextlib.suppress(SegmentUnlinked):
                    self._strands.close()
                with contextlib.suppress(Error, OSError):
                    self._arrays.prepare_to_close()
        finally:
            self._arrays.close()
        if with_connection:
            self._connection.close()


class AsyncLocalTransport(_BaseLocalTransport):
    """Over an `AsyncConnection`."""

    _strands: AsyncStrands

    def __init__(
        self, connection: AsyncConnection, *, skip_self: bool, raw: bool, max_shared: int
    ) -> None:
        super().__init__(connection.link.handle, raw=raw, max_shared=max_shared)
        self._connection = connection
        self._link = connection.link
        self._strands = AsyncStrands(self._link, self._arrays.guard, skip_self=skip_self)

    @property
    def usable(self) -> bool:
        """Whether the connection is open."""
        return not self._connection.closed

    async def open(self) -> None:
        """Start to receive."""
        try:
            await self._strands.open()
        except SegmentUnlinked as error:
            raise lost(error) from error

    async def listen(self, channel: str) -> None:
        """Receive the channel's messages from now on."""
        try:
            await self._strands.add(channel)
        except SegmentUnlinked as error:
            raise lost(error) from error

    async def unlisten(self, channel: str) -> None:
        """Stop receiving the channel's messages."""
        try:
            await self._strands.discard(channel)
        except SegmentUnlinked as error:
            raise lost(error) from error

    async def send_object(self, channel: str, obj: Any, headers: Taken | None = None) -> None:
        """Send the object whole or not at all."""
        try:
            if is_array(obj):
                await self._send_array(channel, checked(obj), headers)
            else:
                whole = NOTHING if obj is NOTHING else container_for(obj, self._room.limit)
                await self._send(channel, whole, headers, raw=self._raw)
        except SegmentUnlinked as error:
            raise lost(error) from error

    async def _send(self, channel: str, whole: Any, headers: Taken | None, *, raw: bool) -> None:
        sending = _Sending(self._room, whole, raw=raw)
        upstream = False
        if sending.asks_for_upstream:
            find = partial(_goes_upstream, self._link.handle, channel)
            upstream = await self._link.off_loop.retry(find)
        if sending.fits or upstream or self._link.transactions.current() is not None:
            await self._notify(channel, sending.together(upstream), headers)
        else:
            await self._send_parts(channel, self._room.outgoing(whole), headers)

    async def _notify(
        self, channel: str, payloads: list[bytes] | Parts, headers: Taken | None
    ) -> None:
        """All of them, in one transaction; the last one has the headers."""
        connection = self._connection
        if headers is None:
            await connection.notify_many(channel, payloads, dedup=False)
        elif len(payloads) > 1:
            async with connection.transaction():
                await connection.notify_many(channel, list(payloads)[:-1], dedup=False)
                await connection.notify_many(channel, [payloads[-1]], dedup=False, headers=headers)
        elif self._link.transactions.current() is not None:
            await connection.notify_many(channel, payloads, dedup=False, headers=headers)
        else:
            await connection.notify(channel, payloads[0], headers=headers)  # in half the time

    async def _send_array(self, channel: str, array: Array, headers: Taken | None) -> None:
        link = self._link
        if await link.off_loop.retry(partial(_goes_upstream, link.handle, channel)):
            await self._send(channel, container(portable(array)), headers, raw=False)
            return
        transaction, placed = link.transactions.current(), None
        if self._arrays.shares(array):
            placed = await link.off_loop.retry(partial(self._arrays.place, array))
            if placed is None and transaction is None:
                placed = await self._place_later(array)
        if placed is None:
            await self._send(channel, inline(array), headers, raw=True)
            return
        block, payload = placed
        try:
            await self._notify(channel, [payload], headers)
        finally:
            self._arrays.arena.sent(block, transaction)

    async def _place_later(self, array: Array) -> tuple[Block, bytes] | None:
        """Wait for a block that its listeners have read."""
        arrays, flow = self._arrays, Flow(self._room.timeout)
        while arrays.arena.awaited and (pause := flow.pause(1.0 + arrays.arena.awaited)):
            await asyncio.sleep(pause)
            placed = await self._link.off_loop.retry(partial(arrays.place, array))
            if placed is not None:
                return placed
        return None

    async def _send_parts(self, channel: str, outgoing: Outgoing, headers: Taken | None) -> None:
        connection, flow = self._connection, Flow(self._room.timeout)
        try:
            for batch in outgoing.batches():
                while True:
                    while pause := flow.pause(await connection.queue_usage()):
                        await asyncio.sleep(pause)
                    try:
                        await self._notify(channel, batch, headers if outgoing.ends else None)
                        break
                    except QueueFull as error:
                        if not flow.again():
                            raise outgoing.refused(error) from error
        except BaseException:
            if outgoing.sent:
                with contextlib.suppress(Error):
                    connection.notify_nowait(channel, outgoing.given_up())
            raise

    async def receive(self, timeout: float | None, came: deque[Any]) -> None:
        """Append everything that is there, after waiting; nothing when the time is over."""
        awaited = self.awaited()
        try:
            bound = self._awaited.bound(timeout, awaited)
            await self._strands.take(bound, came)
            self._commit = self._arrays.came(came)
            if self._arrays.guard.orphaned:
                await self._link.off_loop.retry(self._arrays.remove_orphans)
            self._gone = set()
            if self._awaited.is_due(came, awaited):
                living = await self._link.off_loop.retry(partial(_living, self._link.handle))
                self._gone = self._awaited.gone(awaited, living)
        except SegmentUnlinked as error:
            raise lost(error) from error

    async def probe(self) -> None:
        """Do nothing: the next statement finds out that the connection is lost."""

    async def close(self, *, with_connection: bool) -> None:
        """Stop receiving, and close the connection if asked to."""
        try:
            if not self._connection.closed:
                with contextlib.suppress(SegmentUnlinked):
                    await self._strands.close()
                with contextlib.suppress(Error, OSError):
                    await self._link.off_loop.retry(self._arrays.prepare_to_close)
        finally:
            self._arrays.close()
        if with_connection:
            await self._connection.close()
