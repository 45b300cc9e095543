"""As tests/connection/test_names.py: what was listened to once is forgotten."""

from __future__ import annotations

import asyncio

import pytest

import pynotify
from forgetting import Many, assert_forgotten_in_loop, steps
from receiving import PATIENCE
from tasks import AsyncConnections


@pytest.mark.parametrize("kind", ["asyncio"])
class TestAsyncConnection:
    async def test_listen_and_poll(self, kind: str, aconnect: AsyncConnections) -> None:
        conn, other = await aconnect(), await aconnect()

        async def one(name: str) -> None:
            await conn.listen(name)
            await other.notify(name, "answer")
            (message,) = await conn.poll()
            assert (message.channel, message.payload) == (name, "answer")
            await conn.unlisten(name)

        await assert_forgotten_in_loop(one)

    async def test_subscribe(self, kind: str, aconnect: AsyncConnections) -> None:
        conn, other = await aconnect(), await aconnect()

        async def one(name: str) -> None:
            async with conn.subscribe(name) as sub:
                await other.notify(name, "answer")
                assert (await sub.next(PATIENCE)).payload == "answer"

        await assert_forgotten_in_loop(one)

    async def test_listeners(self, kind: str, aconnect: AsyncConnections) -> None:
        conn, other = await aconnect(), await aconnect()
        heard = asyncio.Event()

        def callback(*_: object) -> None:
            heard.set()

        async def one(name: str) -> None:
            await conn.add_listener(name, callback)
            await other.notify(name, "answer")
            await heard.wait()
            heard.clear()
            await conn.remove_listener(name, callback)

        await assert_forgotten_in_loop(one)


# Not a coroutine function: those have a time limit that is meant for a few messages.
@pytest.mark.full
def test_many_names(engine_name: str) -> None:
    """As tests/connection/test_names.py: a hundred thousand, each listened to and subscribed to."""
    asyncio.run(_many_names(engine_name))


async def _many_names(engine_name: str) -> None:
    async with (
        await pynotify.AsyncConnection.connect(engine_name) as conn,
        await pynotify.AsyncConnection.connect(engine_name) as other,
    ):
        await conn.listen("always")
        with pynotify.connect(engine_name) as sender:

            def work() -> int:
                sender.notify("always", "x")
                return steps(lambda: conn._receiver.poll_batch(0))

            with Many(work) as names:
                for name in names:
                    await conn.listen(name)
                    await other.notify(name, "answer")
                    (message,) = await conn.poll()
                    assert message.channel == name
                    await conn.unlisten(name)
                    async with conn.subscribe(name) as sub:
                        await other.notify(name, "answer")
                        assert (await sub.next(PATIENCE)).channel == name
        assert await conn.listening_channels() == {"always"}
