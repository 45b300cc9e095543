"""Bytes of any size on the channels of one AsyncConnection, for adapters with many receivers.

The format is PubSub's, and what is too large for one transaction is sent by a PubSub.  It comes
without a PubSub's arrays, handlers and reconnecting, which cost a process that wakes up for one
message more than all the rest.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from pynotify._types import Gap
from pynotify.pubsub import AsyncPubSub
from pynotify.pubsub._assembly import LIFETIME, Assembler, Segment
from pynotify.pubsub._format import BYTES, POSTGRES_LIMIT, container, cut, is_plain
from pynotify.pubsub._parts import Room
from pynotify.pubsub._state import DEFAULT_BOUND

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from typing import Self

    from pynotify._async_connection import AsyncConnection
    from pynotify._async_subscription import AsyncSubscription
    from pynotify._types import Notify


class Whole:
    """Made by `await Whole.open(connection)`; it listens to nothing yet.

    What it sends in one transaction is what PostgreSQL takes, too: so whether a bridge sends the
    channel on need not be asked.
    """

    def __init__(self, connection: AsyncConnection, subscription: AsyncSubscription) -> None:
        self._connection, self._subscription = connection, subscription
        self._room = Room(connection.link.handle)
        self._limit = min(self._room.limit, POSTGRES_LIMIT)
        self._loop = asyncio.get_running_loop()
        #: Of what does not go in one transaction; made when there is something.
        self._pubsub: AsyncPubSub | None = None
        self._assembler = Assembler(
            max_object=DEFAULT_BOUND, max_pending=DEFAULT_BOUND, lifetime=LIFETIME
        )
        self._expiring: asyncio.TimerHandle | None = None

    @classmethod
    async def open(cls, connection: AsyncConnection, channel: str) -> Self:
        """`channel`: any, which it leaves at once, since a subscription begins with one."""
        subscription = await connection.subscribe(channel, maxlen=None)
        await subscription.discard(channel)
        return cls(connection, subscription)

    async def send(self, channel: str, data: bytes) -> None:
        """Send to all that listen to the channel; in a transaction of the task, at its commit."""
        whole = container(data)
        if is_plain(whole, self._limit):
            await self._connection.notify(channel, whole)
            return
        in_transaction = self._connection.link.transactions.current() is not None
        if in_transaction or self._room.takes_in_one(len(whole)):
            await self._connection.notify_many(channel, cut(whole, self._limit), dedup=False)
            return
        if self._pubsub is None:
            self._pubsub = AsyncPubSub(self._connection)
        await self._pubsub.publish(channel, data)

    async def listen(self, channel: str) -> None:
        """Receive what is committed on the channel from now on."""
        await self._subscription.add(channel)

    async def unlisten(self, channel: str) -> None:
        """Receive nothing more of it; what was not received by now is dropped."""
        await self._subscription.discard(channel)
        self._assembler.forget_channel(channel)

    async def received(self) -> AsyncIterator[bytes | Gap]:
        """What was sent, in the order of its commits, and a Gap where something may be missing.

        Raises `InterfaceError` when it was closed.
        """
        while True:
            message = await self._subscription.next()
            if isinstance(message, Gap):
                self._assembler.forget_all("something is missing")
                yield message
                continue
            if message.data[:1] == BYTES:
                yield message.data[1:]
            elif (data := self._assembled(message)) is not None:
                yield data

    def _assembled(self, message: Notify) -> bytes | None:
        """What becomes complete by this message."""
        assembler = self._assembler
        assembler.begin()  # nothing is undone here, and no note of it need be kept
        arrived = assembler.take(
            Segment(message.channel, message.sender, message.pid, message.data)
        )
        if self._expiring is None:
            self._expire()
        return arrived.obj if arrived is not None and isinstance(arrived.obj, bytes) else None

    def _expire(self) -> None:
        """Give up what its sender does not end, for instance since it was killed."""
        self._assembler.expire()
        due = self._assembler.due()
        self._expiring = None if due is None else self._loop.call_later(due, self._expire)

    async def close(self) -> None:
        """Stop listening.  The connection stays open."""
        if self._expiring is not None:
            self._expiring.cancel()
        if self._pubsub is not None:
            await self._pubsub.close()
        await self._subscription.close()
