"""await_upstream() of `pynotify._upstream` for tasks."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Protocol

from pynotify._upstream import CONTROL_DATABASE, PendingRequest, bridge_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from contextlib import AbstractAsyncContextManager

    from pynotify._link import TaskLink
    from pynotify._types import Gap, Notify


class Control(Protocol):
    """A connection to the control database."""

    async def listen(self, *channels: str) -> None:
        """`AsyncConnection.listen`."""

    async def notify_many(self, channel: str, payloads: list[str]) -> int:
        """`AsyncConnection.notify_many`."""

    async def wait(self) -> bool:
        """`AsyncConnection.wait`."""

    async def poll(self) -> list[Notify | Gap]:
        """`AsyncConnection.poll`."""


async def await_upstream(
    link: TaskLink,
    connect: Callable[[str], Awaitable[AbstractAsyncContextManager[Control]]],
    channels: Sequence[str],
    timeout: float | None,
) -> None:
    """Wait until the bridge listens to the channels upstream; their LISTEN is committed.

    `connect` makes a connection to another database of the segment.
    """
    loop = asyncio.get_running_loop()
    find = partial(bridge_of, link.handle)
    request = PendingRequest(link.handle.database, channels, await link.off_loop.retry(find))
    died: asyncio.Future[None] = loop.create_future()
    loop.add_reader(request.pidfd, _mark, died)
    try:
        async with await connect(CONTROL_DATABASE) as control:
            await control.listen(request.database)
            await control.notify_many(request.database, request.texts())
            request.check_bridge(await link.off_loop.retry(find))
            asking = asyncio.ensure_future(_hear(control, request))
            try:
                await asyncio.wait(
                    {asking, died}, timeout=timeout, return_when=asyncio.FIRST_COMPLETED
                )
                if asking.done():
                    asking.result()
                elif died.done():
                    raise request.died()
                else:
                    raise request.late(timeout)
            finally:
                asking.cancel()
                await asyncio.gather(asking, return_exceptions=True)
    finally:
        loop.remove_reader(request.pidfd)
        died.cancel()
        request.close()


async def _hear(control: Control, request: PendingRequest) -> None:
    while not request.answered:
        await control.wait()
        for message in await control.poll():
            request.take(message)


def _mark(died: asyncio.Future[None]) -> None:
    if not died.done():
        died.set_result(None)
