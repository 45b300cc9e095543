"""AsyncPubSub: objects that are larger than a transaction may be."""

from __future__ import annotations

import asyncio

import pytest

import pynotify
from pubsub.objects import take_objects
from receiving import PATIENCE
from sessions import EngineFactory
from tasks import AsyncConnections


@pytest.fixture
def engine(make_engine: EngineFactory) -> pynotify.Engine:
    return make_engine(queue_pages=64)  # 512 KiB


async def test_an_object_larger_than_the_queue_arrives(aconnect: AsyncConnections) -> None:
    """Also at the connection that sends it."""
    sender = pynotify.AsyncPubSub(await aconnect())
    await sender.subscribe("c")
    async with pynotify.AsyncPubSub(await aconnect()) as pubsub:
        await pubsub.subscribe("c")
        obj = bytes(range(256)) * 8000
        async with asyncio.TaskGroup() as group:
            group.create_task(sender.publish("c", obj))
            group.create_task(sender.publish("c", {"k": "v" * 2_000_000}))
            received = await take_objects(pubsub, 2)
        assert obj in received
        assert {"k": "v" * 2_000_000} in received
        assert obj in await take_objects(sender, 2)
        assert pubsub.stats() == pynotify.PubSubStats(2, 0, 0, 0, 0)
    await sender.close()


async def test_cancelled_it_takes_back_what_it_has_sent(aconnect: AsyncConnections) -> None:
    sender = pynotify.AsyncPubSub(await aconnect())
    deaf = await aconnect()
    await deaf.listen("c")
    async with pynotify.AsyncPubSub(await aconnect()) as pubsub:
        await pubsub.subscribe("c")
        sending = asyncio.ensure_future(sender.publish("c", bytes(2_000_000)))
        async with asyncio.timeout(PATIENCE):
            while pubsub.stats().pending == 0:
                await pubsub.run(0)
                await asyncio.sleep(0)
        sending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sending
        await sender.publish("c", "x")
        assert await take_objects(pubsub, 1) == ["x"]
        assert pubsub.stats() == pynotify.PubSubStats(1, 0, 1, 0, 0)
    await sender.close()
