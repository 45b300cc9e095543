"""AsyncPubSub: the vectors, handlers, cancellation, and segments that go away."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

import pynotify
from pubsub.objects import random_objects, take_objects
from pubsub.vectors import USUAL, as_received
from receiving import PATIENCE
from sessions import Connect
from tasks import AsyncConnections

LONG = bytes(20_000)


async def test_vectors_and_random_objects_arrive(kind: str, aconnect: AsyncConnections) -> None:
    sender = pynotify.AsyncPubSub(await aconnect())
    pubsub = pynotify.AsyncPubSub(await aconnect())
    await pubsub.subscribe("c")
    for obj in [*(row.obj for row in USUAL), *random_objects(200)]:
        await sender.publish("c", obj)
        assert await take_objects(pubsub, 1) == [as_received(obj)]
    await sender.close()
    await pubsub.close()
    assert pubsub.stats().malformed == 0


async def test_threads_and_tasks_understand_each_other(
    aconnect: AsyncConnections, connect: Connect
) -> None:
    async with pynotify.AsyncPubSub(await aconnect()) as pubsub:
        await pubsub.subscribe("c")
        with pynotify.PubSub(connect()) as other:
            other.subscribe("d")
            other.publish("c", LONG)
            assert await take_objects(pubsub, 1) == [LONG]
            await pubsub.publish("d", {"a": 1})
            for received in other:
                assert received.obj == {"a": 1}
                break


async def test_handlers_may_be_coroutine_functions(
    aconnect: AsyncConnections, caplog: pytest.LogCaptureFixture
) -> None:
    heard: list[Any] = []

    async def slow(obj: Any) -> None:
        await asyncio.sleep(0)
        heard.append(obj)

    async def failing(obj: Any) -> None:
        raise LookupError("of the test")

    async with pynotify.AsyncPubSub(await aconnect()) as pubsub:
        await pubsub.subscribe("c")
        for handler in (failing, slow, heard.append):
            pubsub.on("c", handler)
        await pubsub.publish("c", 1)
        await pubsub.publish("c", 2)
        assert await pubsub.run(0) == 2
    assert heard == [1, 1, 2, 2]
    assert len(caplog.records) == 2


async def test_a_cancelled_wait_loses_nothing(aconnect: AsyncConnections) -> None:
    """Whatever step it is at: each object is handed out once, to it or to the next caller."""
    heard: list[Any] = []
    async with pynotify.AsyncPubSub(await aconnect()) as pubsub:
        await pubsub.subscribe("c")
        pubsub.on("c", heard.append)
        for number in range(20):
            waiting = asyncio.ensure_future(pubsub.run())
            for _ in range(number % 5):
                await asyncio.sleep(0)
            await pubsub.publish("c", [number, "é" * 6000])
            for _ in range(number % 3):
                await asyncio.sleep(0)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
        await pubsub.run(0)
    assert [obj[0] for obj in heard] == list(range(20))


async def test_skip_self_and_unsubscribe(aconnect: AsyncConnections) -> None:
    sender = pynotify.AsyncPubSub(await aconnect())
    async with pynotify.AsyncPubSub(await aconnect(), skip_self=True) as pubsub:
        await pubsub.subscribe("c", "d")
        await pubsub.publish("c", "own")
        await sender.publish("d", "unsubscribed before it is handed out")
        await sender.publish("c", "another's")
        await pubsub.unsubscribe("d")
        assert await take_objects(pubsub, 1) == ["another's"]
        assert pubsub.channels == ("c",)
    await sender.close()


async def test_close_ends_waiting(aconnect: AsyncConnections) -> None:
    pubsub = pynotify.AsyncPubSub(await aconnect())
    await pubsub.subscribe("c")
    waiting = asyncio.ensure_future(pubsub.run())
    await asyncio.sleep(0)
    await pubsub.close()
    assert await waiting == 0
    with pytest.raises(pynotify.InterfaceError):
        await pubsub.publish("c")


async def test_close_while_it_connects(aconnect: AsyncConnections) -> None:
    """run() ends, and the connection that comes then is closed."""
    connecting, free = asyncio.Event(), asyncio.Event()
    made: list[pynotify.AsyncConnection] = []

    async def make() -> pynotify.AsyncConnection:
        connecting.set()
        await free.wait()
        made.append(await aconnect())
        return made[0]

    pubsub = pynotify.AsyncPubSub(make)
    running = asyncio.create_task(pubsub.run())
    await connecting.wait()
    await pubsub.close()
    free.set()
    async with asyncio.timeout(PATIENCE):
        assert await running == 0
    assert made[0].closed


async def test_another_task_loses_the_connection(aconnect: AsyncConnections) -> None:
    """run() goes on with the next one."""
    async with pynotify.AsyncPubSub(aconnect) as pubsub:
        await pubsub.subscribe("c")
        taking = asyncio.ensure_future(take_objects(pubsub, 2))
        await asyncio.sleep(0)
        transport = await pubsub._connected()
        await pubsub._lose(transport, pynotify.ConnectionLost("as if"))
        await pubsub.publish("c", "1")
        async with asyncio.timeout(PATIENCE):
            assert "1" in await taking


async def test_subscribing_while_another_task_unsubscribes(
    aconnect: AsyncConnections, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They take effect in the order of their calls, however long the first one takes."""
    async with pynotify.AsyncPubSub(await aconnect()) as pubsub:
        await pubsub.subscribe("c")
        transport: Any = await pubsub._connected()
        unlisten = transport.unlisten

        async def slowly(channel: str) -> None:
            await asyncio.sleep(0)
            await unlisten(channel)
            await asyncio.sleep(0)

        monkeypatch.setattr(transport, "unlisten", slowly)
        await asyncio.gather(pubsub.unsubscribe("c"), pubsub.subscribe("c"))
        assert pubsub.channels == ("c",)
        await pubsub.publish("c", "1")
        assert await take_objects(pubsub, 1) == ["1"]


async def test_subscribing_after_an_unsubscribe_that_was_cancelled(
    aconnect: AsyncConnections, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with pynotify.AsyncPubSub(await aconnect()) as pubsub:
        await pubsub.subscribe("c")
        transport: Any = await pubsub._connected()
        receiver = transport._strands._receiver
        drop = receiver.drop

        async def cancelled(inbox: Any) -> None:
            await drop(inbox)
            raise asyncio.CancelledError

        with monkeypatch.context() as patched:
            patched.setattr(receiver, "drop", cancelled)
            with pytest.raises(asyncio.CancelledError):
                await pubsub.unsubscribe("c")
        await pubsub.subscribe("c")
        await pubsub.publish("c", "1")
        assert await take_objects(pubsub, 1) == ["1"]


async def test_subscribing_to_a_connection_that_is_just_lost(aconnect: AsyncConnections) -> None:
    """Another task has connected again, and knew nothing of the channel."""
    async with pynotify.AsyncPubSub(aconnect) as pubsub:
        transport: Any = await pubsub._connected()
        listen = transport.listen

        async def listen_and_lose(channel: str) -> None:
            await listen(channel)
            await pubsub._lose(transport, pynotify.ConnectionLost("as if"))
            await pubsub._connected()

        transport.listen = listen_and_lose
        await pubsub.subscribe("c")
        await pubsub.publish("c", "1")
        assert [obj for obj in await take_objects(pubsub, 2) if isinstance(obj, str)] == ["1"]


async def test_given_a_coroutine_function_it_opens_the_segment_again(
    new_name: Callable[[], str],
) -> None:
    name = new_name()
    async with pynotify.AsyncPubSub(lambda: pynotify.AsyncConnection.connect(name)) as pubsub:
        await pubsub.subscribe("c")
        pynotify.unlink(name, force=True)
        (gap,) = await take_objects(pubsub, 1)
        assert isinstance(gap, pynotify.Gap)
        await pubsub.publish("c", LONG)
        assert await take_objects(pubsub, 1) == [LONG]


async def test_given_a_connection_it_is_lost_with_it(new_name: Callable[[], str]) -> None:
    name = new_name()
    async with await pynotify.AsyncConnection.connect(name) as conn:
        pubsub = pynotify.AsyncPubSub(conn)
        await pubsub.subscribe("c")
        pynotify.unlink(name, force=True)
        with pytest.raises(pynotify.ConnectionLost):
            await pubsub.run()
        await pubsub.close()


async def test_connections_of_other_kinds_are_refused(conn: pynotify.Connection) -> None:
    pubsub: Any = pynotify.AsyncPubSub
    with pytest.raises(TypeError, match="AsyncConnection"):
        await pubsub(conn).subscribe("c")
