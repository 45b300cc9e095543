"""await_upstream() for tasks."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

from pynotify._async_connection import AsyncConnection
from pynotify.bridge._control import CONTROL_DATABASE, Question, bridge_of, engine_of

if TYPE_CHECKING:
    from collections.abc import Sequence


async def await_upstream(
    connection: AsyncConnection, channels: Sequence[str], timeout: float | None
) -> None:
    """As for threads."""
    loop = asyncio.get_running_loop()
    find = partial(bridge_of, connection)
    question = Question(connection.database, channels, await connection._patiently(find))
    died: asyncio.Future[None] = loop.create_future()
    loop.add_reader(question.pidfd, _mark, died)
    try:
        control = await AsyncConnection._connect_to(
            lambda: engine_of(connection), CONTROL_DATABASE, None, None
        )
        async with control:
            await control.listen(question.database)
            await control.notify_many(question.database, question.texts())
            question.check_bridge(await connection._patiently(find))
            asking = asyncio.ensure_future(_hear(control, question))
            try:
                await asyncio.wait(
                    {asking, died}, timeout=timeout, return_when=asyncio.FIRST_COMPLETED
                )
                if asking.done():
                    asking.result()
                elif died.done():
                    raise question.died()
                else:
                    raise question.late(timeout)
            finally:
                asking.cancel()
                await asyncio.gather(asking, return_exceptions=True)
    finally:
        loop.remove_reader(question.pidfd)
        died.cancel()
        question.close()


async def _hear(control: AsyncConnection, question: Question) -> None:
    while not question.answered:
        await control.wait()
        for message in await control.poll():
            question.take(message)


def _mark(died: asyncio.Future[None]) -> None:
    if not died.done():
        died.set_result(None)
