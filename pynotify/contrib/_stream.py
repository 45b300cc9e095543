"""What comes on some names of a framework, for the tasks of one loop."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pynotify._log import logger
from pynotify._segments import check_name
from pynotify._types import Gap
from pynotify.contrib._names import connect_async_preferring, fitting, limit_of
from pynotify.errors import InterfaceError
from pynotify.pubsub import AsyncPubSub

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable
    from typing import Unpack

    from pynotify._async_connection import AsyncConnection
    from pynotify._open_options import OpenOptions
    from pynotify.pubsub import Received


class Stream:
    """A connection and the names that it listens to; messages have any size."""

    def __init__(
        self,
        segment: str,
        prefix: str,
        wakeup: str | int | None,
        **options: Unpack[OpenOptions],
    ) -> None:
        check_name(segment)
        self._segment, self._prefix = segment, prefix
        self._wakeup, self._options = wakeup, options
        self._pubsub: AsyncPubSub | None = None
        self._limit = 0
        self._names: dict[str, str] = {}

    def _fitting(self, name: str) -> str:
        return fitting(self._prefix, name, self._limit)

    @property
    def open(self) -> AsyncPubSub:
        """Raises `InterfaceError` before `connect` and after `close`."""
        if self._pubsub is None:
            raise InterfaceError(
                "it is not connected", hint="The framework connects it when the application starts."
            )
        return self._pubsub

    async def connect(self) -> None:
        """Connect, in the running loop."""
        pubsub = AsyncPubSub(self._make)
        try:
            await pubsub.__aenter__()
        except BaseException:
            await pubsub.close()
            raise
        self._pubsub = pubsub

    async def _make(self) -> AsyncConnection:
        """Also after the segment was removed: then the PubSub listens in the one that is there."""
        made = await connect_async_preferring(self._segment, self._wakeup, **self._options)
        self._limit = self._limit or limit_of(made)  # names stay what they are
        return made

    async def close(self) -> None:
        """Give the connection up, and end `received`."""
        pubsub, self._pubsub = self._pubsub, None
        self._names.clear()
        if pubsub is not None:
            await pubsub.close()

    async def subscribe(self, names: Iterable[str]) -> None:
        """Receive what is published under these names from now on."""
        for name in names:
            await self.open.subscribe(self._fitting(name))
            self._names[self._fitting(name)] = name

    async def unsubscribe(self, names: Iterable[str]) -> None:
        """Receive nothing more of these."""
        for name in names:
            self._names.pop(self._fitting(name), None)
            await self.open.unsubscribe(self._fitting(name))

    async def publish(self, name: str, message: Any) -> None:
        """Send a message, of any size."""
        await self.open.publish(self._fitting(name), message)

    async def received(self) -> AsyncIterator[tuple[str, Any]]:
        """Name and message, until it is closed."""
        async for received in self.open:
            name = self._name_of(received)
            if name is not None:
                yield name, received.obj

    def _name_of(self, received: Received) -> str | None:
        if isinstance(received.obj, Gap):
            logger.warning("%s: messages were lost (%s)", self._prefix, received.obj.reason)
        return self._names.get(received.channel or "")
