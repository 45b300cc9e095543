"""Litestar: the channels of all workers of a host.

```
from litestar import Litestar
from litestar.channels import ChannelsPlugin

plugin = ChannelsPlugin(PynotifyChannelsBackend("app"), arbitrary_channels_allowed=True)
app = Litestar(plugins=[plugin])
```
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from litestar.channels.backends.base import ChannelsBackend

from pynotify.contrib._stream import Stream

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterable
    from typing import Unpack

    from pynotify._open_options import OpenOptions

__all__ = ["PynotifyChannelsBackend"]


class PynotifyChannelsBackend(ChannelsBackend):
    """The backend.  Data is bytes of any size.  There is no history, as of Redis' pub/sub.

    `prefix`: what the names of its channels begin with in the segment.  `wakeup` and `options` as
    of `pynotify.connect`.
    """

    def __init__(
        self,
        segment: str = "default",
        *,
        prefix: str = "litestar",
        wakeup: str | int | None = None,
        **options: Unpack[OpenOptions],
    ) -> None:
        self._stream = Stream(segment, prefix, wakeup, **options)

    async def on_startup(self) -> None:
        """Connect, in the loop and the process that use it."""
        await self._stream.connect()

    async def on_shutdown(self) -> None:
        """Give the connection up."""
        await self._stream.close()

    async def publish(self, data: bytes, channels: Iterable[str]) -> None:
        """Send data to the subscribers of each channel in all processes.  Raises `QueueFull`."""
        for channel in channels:
            await self._stream.publish(channel, data)

    async def subscribe(self, channels: Iterable[str]) -> None:
        """Receive what is published on the channels from now on."""
        await self._stream.subscribe(channels)

    async def unsubscribe(self, channels: Iterable[str]) -> None:
        """Receive nothing more of the channels."""
        await self._stream.unsubscribe(channels)

    async def stream_events(self) -> AsyncGenerator[tuple[str, bytes], None]:
        """Channel and data of what comes, until `on_shutdown`."""
        async for received in self._stream.received():
            yield received

    async def get_history(self, channel: str, limit: int | None = None) -> list[bytes]:
        """There is none: raises NotImplementedError."""
        raise NotImplementedError("PynotifyChannelsBackend keeps no history")
