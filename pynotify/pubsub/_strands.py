"""Subscriptions whose channels come and go, for PubSub over the connections of pynotify.

Each channel is an inbox of its own, a strand, with its own beginning; all of them put what comes
into one deque, so the order between channels stays.  Nothing is dropped here: the reader of the
connection brings at most what the ring holds, and brings it when somebody waits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pynotify._async_subscription import AsyncSubscription
from pynotify._base import nanoseconds
from pynotify._inbox import Inbox
from pynotify._lookout import ThreadWaiter
from pynotify._subscription import Subscription
from pynotify._types import Notify

if TYPE_CHECKING:
    from pynotify._async_connection import AsyncConnection
    from pynotify._connection import Connection
    from pynotify._types import Gap


def _without_limit(skip_backend: int | None) -> Inbox:
    return Inbox(None, "drop-oldest", skip_backend)


class _Strand(Inbox):
    """The part of `root` that is one channel's."""

    def __init__(self, root: Inbox, skip_backend: int | None) -> None:
        super().__init__(None, "drop-oldest", skip_backend)
        self.messages = root.messages
        self.waiters = root.waiters

    def put(self, message: Notify | Gap) -> None:
        if isinstance(message, Notify):  # a gap is the root's, or it would come once a channel
            super().put(message)

    def close(self) -> None:
        """The other channels, and who waits for them, stay."""
        self.closed = True
        self._latest = None
        others = [m for m in self.messages if m.channel not in self.channels]
        self.messages.clear()
        self.messages.extend(others)


class _Braid:
    """The strands by channel."""

    def __init__(self, root: Inbox, skip_backend: int | None) -> None:
        self._root = root
        self._skip_backend = skip_backend
        self.strands: dict[str, _Strand] = {}

    def strand(self) -> _Strand:
        return _Strand(self._root, self._skip_backend)

    def close(self) -> None:
        for strand in self.strands.values():
            strand.closed = True  # the connection forgets them with the next that is closed


class Strands(Subscription):
    """For threads.  It listens to nothing yet."""

    def __init__(self, connection: Connection, *, skip_self: bool) -> None:
        self._connection = connection
        self._closed = False
        self._inbox = _without_limit(None)
        self._braid = _Braid(self._inbox, connection.backend_id if skip_self else None)
        connection._subscribe(self._inbox, ())

    @property
    def channels(self) -> tuple[str, ...]:
        """What it listens to."""
        return tuple(self._braid.strands)

    def add(self, channel: str) -> None:
        """Listen to it too, when this returns.  Once more changes nothing."""
        self._check_open()
        self._connection._refuse_transaction("subscribe")
        if channel not in self._braid.strands:
            strand = self._braid.strand()
            self._connection._subscribe(strand, [channel])
            self._braid.strands[channel] = strand

    def remove(self, channel: str) -> None:
        """What was not taken of it is gone."""
        self._check_open()
        self._connection._refuse_transaction("unsubscribe")
        strand = self._braid.strands.pop(channel, None)
        if strand is not None:
            self._connection._unsubscribe(strand)

    def take(self, timeout: float | None) -> list[Notify | Gap]:
        """Everything that is there, after waiting for something; empty when the time is over."""
        waiter = ThreadWaiter(self._connection._lookout)
        first = self._receive(waiter, nanoseconds(timeout))
        if first is None:
            return []
        with self._connection._receiving:
            messages = [first, *self._inbox.messages]
            self._inbox.messages.clear()
        return messages

    def close(self) -> None:
        """Stop listening."""
        self._braid.close()
        super().close()

    def __del__(self) -> None:
        braid: _Braid | None = getattr(self, "_braid", None)
        if braid is not None:
            braid.close()
        super().__del__()


class AsyncStrands(AsyncSubscription):
    """For tasks.  It listens to nothing yet."""

    def __init__(self, connection: AsyncConnection, *, skip_self: bool) -> None:
        self._connection = connection
        self._opened = self._closed = False
        self._inbox = _without_limit(None)
        self._braid = _Braid(self._inbox, connection.backend_id if skip_self else None)

    @property
    def channels(self) -> tuple[str, ...]:
        """What it listens to."""
        return tuple(self._braid.strands)

    async def open(self) -> None:
        """Before everything else."""
        self._channels = ()
        await self._open()

    async def add(self, channel: str) -> None:
        """As `Strands.add`."""
        self._check_open()
        self._connection._refuse_transaction("subscribe")
        if channel in self._braid.strands:
            return
        strand = self._braid.strand()

        def subscribe() -> None:
            self._connection._subscribe(strand, [channel])
            self._braid.strands[channel] = strand

        await self._connection._patiently(subscribe)
        self._connection._start_reading()

    async def remove(self, channel: str) -> None:
        """As `Strands.remove`."""
        self._check_open()
        self._connection._refuse_transaction("unsubscribe")
        strand = self._braid.strands.pop(channel, None)
        if strand is not None:
            await self._connection._drop(strand)

    async def take(self, timeout: float | None) -> list[Notify | Gap]:
        """As `Strands.take`."""
        first = await self._receive(timeout)
        if first is None:
            return []
        messages = [first, *self._inbox.messages]
        self._inbox.messages.clear()
        return messages

    async def close(self) -> None:
        """Stop listening."""
        self._braid.close()
        await super().close()

    def __del__(self) -> None:
        braid: _Braid | None = getattr(self, "_braid", None)
        if braid is not None:
            braid.close()
        super().__del__()
