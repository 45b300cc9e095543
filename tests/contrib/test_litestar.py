"""Litestar: what its own tests ask of a pub/sub backend, its plugin, and several processes.

Its distribution has no tests: those of its repository that are not about history, written again.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import pynotify
from broadcasting import Publish, hear_beside_a_kill
from receiving import PATIENCE
from requirement import require

try:
    from litestar import Litestar, WebSocket, post, websocket
    from litestar.channels import ChannelsPlugin
    from litestar.testing import TestClient

    from chatting import example_talks_beside_a_kill
except ImportError as missing:
    require("litestar", str(missing))

from pynotify.contrib.litestar import PynotifyChannelsBackend


@asynccontextmanager
async def started(segment: str, **options: Any) -> AsyncIterator[PynotifyChannelsBackend]:
    backend = PynotifyChannelsBackend(segment, **options)
    await backend.on_startup()
    try:
        yield backend
    finally:
        await backend.on_shutdown()


@pytest.mark.parametrize("channels", [{"foo"}, {"foo", "bar"}])
def test_pub_sub(segment_name: str, channels: set[str]) -> None:
    async def run() -> None:
        async with started(segment_name) as backend:
            await backend.subscribe(channels)
            await backend.publish(b"something", channels)
            events = backend.stream_events()
            got = {await asyncio.wait_for(anext(events), PATIENCE) for _ in channels}
            assert got == {(channel, b"something") for channel in channels}
            await events.aclose()

    asyncio.run(run())


def test_a_segment_that_is_removed(segment_name: str) -> None:
    """It listens in the one that is made then."""

    async def run() -> None:
        async with started(segment_name) as backend:
            await backend.subscribe(["foo"])
            events = backend.stream_events()
            waiting = asyncio.ensure_future(anext(events))
            await asyncio.sleep(0)
            pynotify.unlink(segment_name, force=True)
            await backend.publish(b"something", ["foo"])
            assert await asyncio.wait_for(waiting, PATIENCE) == ("foo", b"something")
            await events.aclose()

    asyncio.run(run())


def test_pub_sub_non_blocking(segment_name: str) -> None:
    """It is published while a task waits for it."""

    async def run() -> None:
        async with started(segment_name) as backend:
            await backend.subscribe({"something"})
            events = backend.stream_events()
            waiting = asyncio.ensure_future(anext(events))
            await asyncio.sleep(0)
            await backend.publish(b"x", {"something"})
            assert await asyncio.wait_for(waiting, PATIENCE) == ("something", b"x")
            await events.aclose()

    asyncio.run(run())


def test_pub_sub_subscribe_while_streaming(segment_name: str) -> None:
    async def run() -> None:
        async with started(segment_name) as backend:
            events = backend.stream_events()
            waiting = asyncio.ensure_future(anext(events))
            await asyncio.sleep(0)
            await backend.subscribe({"something"})
            await backend.publish(b"x", {"something"})
            assert await asyncio.wait_for(waiting, PATIENCE) == ("something", b"x")
            await events.aclose()

    asyncio.run(run())


def test_pub_sub_no_subscriptions_by_unsubscribing(segment_name: str) -> None:
    async def run() -> None:
        async with started(segment_name) as backend:
            await backend.subscribe({"foo", "bar"})
            await backend.publish(b"something", {"foo"})
            await backend.unsubscribe({"foo"})
            await backend.publish(b"else", {"foo", "bar"})
            events = backend.stream_events()
            assert await asyncio.wait_for(anext(events), PATIENCE) == ("bar", b"else")
            await events.aclose()

    asyncio.run(run())


def test_pub_sub_shutdown_leftover_messages(segment_name: str) -> None:
    async def run() -> None:
        backend = PynotifyChannelsBackend(segment_name)
        await backend.on_startup()
        await backend.subscribe({"something"})
        await backend.publish(b"something", {"something"})
        await asyncio.wait_for(backend.on_shutdown(), PATIENCE)

    asyncio.run(run())


def test_unsubscribe_without_subscription(segment_name: str) -> None:
    async def run() -> None:
        async with started(segment_name) as backend:
            await backend.unsubscribe(["foo"])

    asyncio.run(run())


def test_shutdown_ends_the_stream(segment_name: str) -> None:
    async def run() -> None:
        backend = PynotifyChannelsBackend(segment_name)
        await backend.on_startup()

        async def stream() -> list[tuple[str, bytes]]:
            return [event async for event in backend.stream_events()]

        task = asyncio.create_task(stream())
        await asyncio.sleep(0)
        await backend.on_shutdown()
        assert await asyncio.wait_for(task, PATIENCE) == []
        with pytest.raises(pynotify.InterfaceError, match="not connected"):
            await backend.publish(b"x", ["c"])

    asyncio.run(run())


def test_there_is_no_history(segment_name: str) -> None:
    with pytest.raises(NotImplementedError):
        asyncio.run(PynotifyChannelsBackend(segment_name).get_history("c"))


def test_megabytes(segment_name: str) -> None:
    data = os.urandom(2_000_000)

    async def run() -> None:
        async with started(segment_name) as backend:
            await backend.subscribe(["c"])
            await backend.publish(data, ["c"])
            events = backend.stream_events()
            assert await asyncio.wait_for(anext(events), PATIENCE) == ("c", data)
            await events.aclose()

    asyncio.run(run())


def application(segment: str) -> Litestar:
    plugin = ChannelsPlugin(
        PynotifyChannelsBackend(segment),
        arbitrary_channels_allowed=True,
        create_ws_route_handlers=True,
    )

    @post("/say")
    async def say() -> None:
        plugin.publish({"text": "hello"}, "own")

    @websocket("/own")
    async def own(socket: WebSocket[Any, Any, Any]) -> None:
        await socket.accept()
        async with plugin.start_subscription(["own"]) as subscriber:
            await socket.send_text("ready")
            async for message in subscriber.iter_events():
                await socket.send_bytes(message)
                break  # the client of the test waits for the handler's end

    return Litestar([say, own], plugins=[plugin])


def test_applications_of_two_workers(segment_name: str) -> None:
    with (
        TestClient(application(segment_name)) as one,
        TestClient(application(segment_name)) as other,
        other.websocket_connect("/own") as socket,
    ):
        assert socket.receive_text(timeout=PATIENCE) == "ready"
        one.post("/say")
        assert socket.receive_bytes(timeout=PATIENCE) == b'{"text":"hello"}'


def test_four_processes_of_which_one_is_killed(segment_name: str) -> None:
    @asynccontextmanager
    async def publishing() -> AsyncIterator[Publish]:
        async with started(segment_name) as backend:
            yield lambda text: backend.publish(text.encode(), ["c"])

    async def heard() -> AsyncGenerator[str | None]:
        async with started(segment_name) as backend:
            await backend.subscribe(["c"])
            yield None
            async for _, data in backend.stream_events():
                yield data.decode()

    hear_beside_a_kill(publishing, heard)


def test_four_workers_of_which_one_is_killed(tmp_path: Path, segment_name: str) -> None:
    """The example's, as a server."""
    example_talks_beside_a_kill("litestar_chat:app", tmp_path, segment_name)
