"""broadcaster: its own tests, of the same names, on the backend; and several processes.

Its source distribution has no tests: these are those of its repository, written again.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import pynotify
from broadcasting import Publish, hear_beside_a_kill
from requirement import require

try:
    from broadcaster import Broadcast

    from chatting import example_talks_beside_a_kill
except ImportError as missing:
    require("broadcaster", str(missing))

from pynotify.contrib.broadcaster import PynotifyBackend


def on(segment: str, **options: Any) -> Broadcast:
    return Broadcast(backend=PynotifyBackend(segment, **options))


def test_pynotify(segment_name: str) -> None:
    async def run() -> None:
        async with on(segment_name) as broadcast, broadcast.subscribe("chatroom") as subscriber:
            await broadcast.publish("chatroom", "hello")
            event = await subscriber.get()
            assert event.channel == "chatroom"
            assert event.message == "hello"

    asyncio.run(run())


def test_a_cancelled_wait(segment_name: str) -> None:
    """The next one gets what comes."""

    async def run() -> None:
        backend = PynotifyBackend(segment_name)
        await backend.connect()
        await backend.subscribe("chatroom")
        waiting = asyncio.create_task(backend.next_published())
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await backend.publish("chatroom", "hello")
        assert (await backend.next_published()).message == "hello"
        await backend.disconnect()

    asyncio.run(run())


def test_unsubscribe(segment_name: str) -> None:
    """The queue should be removed when the context manager is left."""

    async def run() -> None:
        async with on(segment_name) as broadcast:
            async with broadcast.subscribe("chatroom"):
                pass
            assert "chatroom" not in broadcast._subscribers
            with pynotify.open(segment_name) as segment:
                assert [each.channels for each in segment.stat().backends] == [0]

    asyncio.run(run())


def test_unsubscribe_w_gen(segment_name: str) -> None:
    """If an async generator is closed, its subscription ends as well."""

    async def run() -> None:
        async with on(segment_name) as broadcast:
            subscribed = asyncio.Event()

            async def gen() -> AsyncIterator[str]:
                async with broadcast.subscribe("chatroom") as subscriber:
                    subscribed.set()
                    async for event in subscriber:
                        yield event.message

            async def publish() -> None:
                await subscribed.wait()
                await broadcast.publish("chatroom", "hello")

            task = asyncio.create_task(publish())
            messages = gen()
            assert await anext(messages) == "hello"
            await task
            await messages.aclose()
            assert "chatroom" not in broadcast._subscribers

    asyncio.run(run())


def test_objects_and_long_names_and_messages(segment_name: str) -> None:
    name, large = "room/" + "x" * 300, b"\x00\xff" * 500_000

    async def run() -> None:
        async with on(segment_name) as broadcast, broadcast.subscribe(name) as subscriber:
            for message in ("", "körper", large, {"a": [1, None]}):
                await broadcast.publish(name, message)
                event = await subscriber.get()
                assert (event.channel, event.message) == (name, message)

    asyncio.run(run())


def test_two_prefixes_are_apart(segment_name: str) -> None:
    async def run() -> None:
        async with (
            on(segment_name) as one,
            on(segment_name, prefix="other") as other,
            one.subscribe("c") as subscriber,
            other.subscribe("c") as beside,
        ):
            await other.publish("c", "there")
            await one.publish("c", "here")
            assert (await subscriber.get()).message == "here"
            assert (await beside.get()).message == "there"

    asyncio.run(run())


def test_before_it_is_connected(segment_name: str) -> None:
    backend = PynotifyBackend(segment_name)
    calls: list[Callable[[], Coroutine[Any, Any, object]]] = [
        lambda: backend.publish("c", "x"),
        lambda: backend.subscribe("c"),
        backend.next_published,
    ]
    for call in calls:
        with pytest.raises(pynotify.InterfaceError, match="not connected"):
            asyncio.run(call())
    asyncio.run(backend.disconnect())


def test_four_processes_of_which_one_is_killed(segment_name: str) -> None:
    @asynccontextmanager
    async def publishing() -> AsyncIterator[Publish]:
        async with on(segment_name) as broadcast:
            yield partial(broadcast.publish, "chatroom")

    async def heard() -> AsyncGenerator[str | None]:
        async with on(segment_name) as broadcast, broadcast.subscribe("chatroom") as subscriber:
            yield None
            async for event in subscriber:
                yield event.message

    hear_beside_a_kill(publishing, heard)


def test_four_workers_of_which_one_is_killed(tmp_path: Path, segment_name: str) -> None:
    """The example's, as a server."""
    example_talks_beside_a_kill("broadcaster_chat:app", tmp_path, segment_name)
