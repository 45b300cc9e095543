"""Bytes of any size on the channels of one AsyncConnection, for adapters with many receivers.

The format is PubSub's, and what is too large for one transaction is sent by a PubSub.  It comes
without a PubSub's arrays, handlers and reconnecting, and without a task that waits for it, all of
which cost a process that wakes up for one message more than the message.

1. The loop's reader puts each message into the inbox here, which hands it on at once.
2. A thread may put one there, too: the call of a task that waits for room, after Ctrl-C.  Then it
   is kept until the loop's thread comes by.  All of it happens with the receiver's lock held, or in
   the loop's thread; so what was kept goes before what comes.
3. When the reader has stopped, by an error or since the connection was closed, it wakes what waits
   in each inbox.  Here that is `run`, which reads once more, and so raises the error itself.
"""

from __future__ import annotations

import asyncio
from threading import get_ident
from typing import TYPE_CHECKING

from pynotify._inbox import Inbox
from pynotify._log import logger
from pynotify._types import Gap
from pynotify.errors import InterfaceError
from pynotify.pubsub import AsyncPubSub
from pynotify.pubsub._assembly import LIFETIME, Assembler, Segment
from pynotify.pubsub._format import BYTES, POSTGRES_LIMIT, container, cut, is_plain
from pynotify.pubsub._parts import Room
from pynotify.pubsub._state import DEFAULT_BOUND

if TYPE_CHECKING:
    from collections.abc import Callable

    from pynotify._async_connection import AsyncConnection
    from pynotify._types import Notify


class _Passing(Inbox):
    """Keeps nothing: what is put into it goes to `take`, in the thread of the loop."""

    def __init__(self, take: Callable[[Notify | Gap], None]) -> None:
        super().__init__(None, "drop-oldest", None)
        self._take = take
        self._loop, self._thread = asyncio.get_running_loop(), get_ident()
        self.woken = asyncio.Event()

    def _keep(self, message: Notify | Gap) -> None:
        self._latest = message
        if get_ident() != self._thread:
            self.messages += (message,)
            self._loop.call_soon_threadsafe(self._pass_kept)
            return
        if self.messages:
            self._pass_kept()
        self._take(message)

    def _pass_kept(self) -> None:
        while self.messages:
            self._take(self.messages.popleft())

    def wake_all(self) -> None:
        """In the thread of the loop: what stops the reader, or closes the connection, is there."""
        self.woken.set()


class Whole:
    """It calls `take` with what was sent, in the order of its commits, and with a Gap where
    something may be missing; it listens to nothing yet.

    What it sends in one transaction is what PostgreSQL takes, too: so whether a bridge sends the
    channel on need not be asked.
    """

    def __init__(self, connection: AsyncConnection, take: Callable[[bytes | Gap], None]) -> None:
        self._connection, self._link, self._take = connection, connection.link, take
        self._room = Room(connection.link.handle)
        self._limit = min(self._room.limit, POSTGRES_LIMIT)
        self._loop = asyncio.get_running_loop()
        self._inbox = _Passing(self._came)
        #: Of what does not go in one transaction; made when there is something.
        self._pubsub: AsyncPubSub | None = None
        self._assembler = Assembler(
            max_object=DEFAULT_BOUND, max_pending=DEFAULT_BOUND, lifetime=LIFETIME
        )
        self._expiring: asyncio.TimerHandle | None = None

    async def send(self, channel: str, data: bytes) -> None:
        """Send to all that listen to the channel; in a transaction of the task, at its commit."""
        whole = container(data)
        # There equal notifications would collapse, and an object goes whole or not at all.
        in_transaction = self._link.transactions.current() is not None
        if not in_transaction and is_plain(whole, self._limit):
            await self._connection.notify(channel, whole)
            return
        if in_transaction or self._room.takes_in_one(len(whole)):
            await self._connection.notify_many(channel, cut(whole, self._limit), dedup=False)
            return
        if self._pubsub is None:
            self._pubsub = AsyncPubSub(self._connection)
        await self._pubsub.publish(channel, data)

    async def listen(self, channel: str) -> None:
        """Receive what is committed on the channel from now on."""
        self._link.transactions.refuse("subscribe")
        receiver = self._link.receiver
        await self._link.off_loop.retry(lambda: receiver.subscribe(self._inbox, [channel]))
        receiver.start_reading()

    async def unlisten(self, channel: str) -> None:
        """Receive nothing more of it."""
        self._link.transactions.refuse("unsubscribe")
        receiver = self._link.receiver
        await self._link.off_loop.retry(lambda: receiver.unsubscribe(self._inbox, [channel]))
        self._assembler.forget_channel(channel)

    def read_all(self) -> None:
        """Hand on all that is committed by now, before this returns.  In the thread of the loop."""
        self._link.handle.check_usable()
        self._link.receiver.read_ahead()

    async def run(self) -> None:
        """Wait until nothing comes any more, and raise why."""
        receiver, inbox = self._link.receiver, self._inbox
        while True:
            await inbox.woken.wait()
            inbox.woken.clear()
            if inbox.closed:
                raise InterfaceError("the connection is closed")
            self.read_all()
            receiver.start_reading()

    def _came(self, message: Notify | Gap) -> None:
        """A message that cannot be read, of another program for instance, is left out."""
        try:
            if isinstance(message, Gap):
                self._assembler.forget_all("something is missing")
                self._take(message)
            elif message.data[:1] == BYTES:
                self._take(message.data[1:])
            elif (data := self._assembled(message)) is not None:
                self._take(data)
        except Exception:
            logger.exception("what came on channel %r was left out", message.channel)

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
        if not self._connection.closed:
            await self._link.receiver.drop(self._inbox)
