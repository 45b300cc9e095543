"""broadcaster: its `Broadcast` over a segment, for the workers of a host.

```
broadcast = Broadcast(backend=PynotifyBackend("app"))  # it was: Broadcast("redis://...")
```
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from broadcaster import BroadcastBackend, Event

from pynotify.contrib._stream import Stream
from pynotify.errors import InterfaceError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from typing import Unpack

    from pynotify._open_options import OpenOptions

__all__ = ["PynotifyBackend"]


class PynotifyBackend(BroadcastBackend):
    """The backend.  Messages are str, bytes or anything JSON, of any size.

    `prefix`: what the names of its channels begin with in the segment.  `wakeup` and `options` as
    of `pynotify.connect`.
    """

    def __init__(
        self,
        segment: str = "default",
        *,
        prefix: str = "broadcaster",
        wakeup: str | int | None = None,
        **options: Unpack[OpenOptions],
    ) -> None:
        self._stream = Stream(segment, prefix, wakeup, **options)
        self._received: AsyncIterator[tuple[str, Any]] | None = None

    async def connect(self) -> None:
        """Connect, in the loop and the process that use it."""
        await self._stream.connect()
        self._received = self._stream.received()

    async def disconnect(self) -> None:
        """Give the connection up."""
        self._received = None
        await self._stream.close()

    async def subscribe(self, group: str) -> None:
        """Receive what is published on a channel from now on."""
        await self._stream.subscribe([group])

    async def unsubscribe(self, group: str) -> None:
        """Receive nothing more of a channel."""
        await self._stream.unsubscribe([group])

    async def publish(self, channel: str, message: Any) -> None:
        """Send a message to the subscribers in all processes.  Raises `QueueFull`."""
        await self._stream.publish(channel, message)

    async def next_published(self) -> Event:
        """Wait for the next message."""
        if self._received is None:
            raise InterfaceError("the backend is not connected", hint="Await connect() before.")
        try:
            channel, message = await anext(self._received)
        except BaseException:  # cancelled, for instance: the iterator has ended with it
            if self._received is not None:
                self._received = self._stream.received()
            raise
        return Event(channel, message)
