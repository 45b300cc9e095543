"""The connection of an adapter for tasks, which outlives its segment.

When the segment was removed, the first task that needs it connects again, to the one of that name
which is there then, or is made.  What the old one had is gone.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeVar

from pynotify._connect import is_gone
from pynotify._log import logger
from pynotify.errors import ConnectionLost, InterfaceError, OperationalError, SegmentUnlinked
from pynotify.pubsub._state import delays

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from pynotify._async_connection import AsyncConnection

_T = TypeVar("_T")

#: What calls raise on the connection to a segment that was removed, or that was closed since.
LOST = (SegmentUnlinked, ConnectionLost, InterfaceError)


class Lasting:
    """The connection of one event loop, made by `make`.  `prepare` gets each before it is used.

    `name` is that of the framework, for the log.
    """

    def __init__(
        self,
        name: str,
        make: Callable[[], Awaitable[AsyncConnection]],
        prepare: Callable[[AsyncConnection], Awaitable[None]],
    ) -> None:
        self._name, self._make, self._prepare = name, make, prepare
        #: None before `open` and after `close`.
        self.current: AsyncConnection | None = None
        self._renewing: asyncio.Lock

    async def open(self) -> AsyncConnection:
        """Connect, in the running loop."""
        self._renewing = asyncio.Lock()
        self.current = await self._prepared()
        return self.current

    async def _prepared(self) -> AsyncConnection:
        made = await self._make()
        try:
            await self._prepare(made)
        except BaseException:
            await made.close()
            raise
        return made

    def is_lost(self, connection: AsyncConnection) -> bool:
        """Whether there is, or will be, another one in its place."""
        if self.current is None:
            return False
        return self.current is not connection or is_gone(connection)

    async def call(self, act: Callable[[AsyncConnection], Awaitable[_T]]) -> _T:
        """Do something with the connection; once more, with another one, when it is lost.

        Inside a transaction, which is lost with it, the error is raised.
        """
        connection = self.current
        assert connection is not None
        in_transaction = connection.in_transaction
        try:
            return await act(connection)
        except LOST:
            if in_transaction or not self.is_lost(connection):
                raise
        return await act(await self.renew(connection))

    async def renew(self, lost: AsyncConnection) -> AsyncConnection:
        """Another connection than `lost`; tasks that ask at the same time get the same one."""
        async with self._renewing:
            if self.current is lost:
                try:
                    made = await self._prepared()
                except OSError as error:
                    raise OperationalError(f"could not connect: {error}") from error
                if self.current is not lost:
                    await made.close()
                else:
                    self.current = made
                    logger.warning(
                        "%s: connected again: the segment was removed, and what was in it is lost",
                        self._name,
                    )
                    await lost.close()
        if self.current is None:
            raise InterfaceError("it was closed while it connected again")
        return self.current

    async def wait_for_another(self, lost: AsyncConnection) -> None:
        """Make another connection than `lost`; try again while that fails."""
        for delay in delays():
            try:
                await self.renew(lost)
                return
            except OperationalError as error:
                reason = str(error).partition("\n")[0]
                logger.warning("%s: could not connect: %s", self._name, reason)
            await asyncio.sleep(delay)

    async def close(self) -> None:
        """Give the connection up."""
        connection, self.current = self.current, None
        if connection is not None:
            await connection.close()
