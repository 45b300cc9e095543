"""AsyncPubSub: numpy arrays."""

from __future__ import annotations

import asyncio
import gc

import pytest

import pynotify
from pubsub.arrays import BLOCK, blocks, frame, in_queue, number_of
from pubsub.objects import take_objects
from pynotify.pubsub import _local
from receiving import PATIENCE
from sessions import EngineFactory
from tasks import AsyncConnections, cancelled_after, turns


async def test_arrays_arrive_and_go(aconnect: AsyncConnections, engine_name: str) -> None:
    async with (
        pynotify.AsyncPubSub(await aconnect()) as pubsub,
        pynotify.AsyncPubSub(await aconnect()) as sender,
    ):
        await pubsub.subscribe("c")
        for number in range(10):
            await sender.publish("c", frame(number))
            await sender.publish("c", frame(number, 5))
            large, small = await take_objects(pubsub, 2)
            assert number_of(large) == number_of(small) == number
            assert not in_queue(large)
            assert in_queue(small)
            del large
        assert len(blocks(engine_name)) <= 2
        await sender.publish("c", frame(3))
        (kept,) = await take_objects(pubsub, 1)
    assert number_of(kept) == 3
    assert len(blocks(engine_name)) == 1
    del kept
    async with pynotify.AsyncPubSub(await aconnect()):
        pass
    assert blocks(engine_name) == []


async def test_a_task_waits_for_listeners_to_read(aconnect: AsyncConnections) -> None:
    """And the loop goes on."""
    async with (
        pynotify.AsyncPubSub(await aconnect()) as pubsub,
        pynotify.AsyncPubSub(await aconnect(), max_shared=2 * BLOCK) as sender,
    ):
        await pubsub.subscribe("c")

        async def send() -> None:
            for number in range(30):
                await sender.publish("c", frame(number))

        sending = asyncio.create_task(send())
        for number in range(30):
            (received,) = await take_objects(pubsub, 1)
            assert number_of(received) == number
            assert not in_queue(received)
            del received
        await sending


async def test_what_is_not_shared_does_not_wait_for_blocks(
    aconnect: AsyncConnections, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_local, "Flow", lambda _: pytest.fail("it waits"))
    async with (
        pynotify.AsyncPubSub(await aconnect()) as pubsub,
        pynotify.AsyncPubSub(await aconnect()) as sender,
    ):
        await pubsub.subscribe("c")
        for number in range(3):
            await sender.publish("c", frame(number))
            await sender.publish("c", frame(number, 10))
        assert [number_of(array) for array in await take_objects(pubsub, 6)] == [0, 0, 1, 1, 2, 2]


async def test_iterating_keeps_no_array(aconnect: AsyncConnections, engine_name: str) -> None:
    async with (
        pynotify.AsyncPubSub(await aconnect()) as pubsub,
        pynotify.AsyncPubSub(await aconnect()) as sender,
    ):
        await pubsub.subscribe("c")
        received = aiter(pubsub)
        for number in range(3):
            await sender.publish("c", frame(number))
            assert number_of((await anext(received)).obj) == number
        assert len(blocks(engine_name)) == 1


async def test_in_a_transaction(aconnect: AsyncConnections) -> None:
    conn = await aconnect()
    async with pynotify.AsyncPubSub(await aconnect()) as pubsub, pynotify.AsyncPubSub(conn) as ps:
        await pubsub.subscribe("c")
        async with conn.transaction():
            await ps.publish("c", frame(1))
            await ps.publish("c", frame(2))
            assert await pubsub.run(0) == 0
        assert [number_of(array) for array in await take_objects(pubsub, 2)] == [1, 2]


async def test_between_tasks_and_threads(
    aconnect: AsyncConnections, make_engine: EngineFactory, engine: pynotify.Engine
) -> None:
    with engine.connect() as conn, pynotify.PubSub(conn) as sender:
        async with pynotify.AsyncPubSub(await aconnect()) as pubsub:
            await pubsub.subscribe("c")
            sender.publish("c", frame(4))
            assert number_of((await take_objects(pubsub, 1))[0]) == 4


async def test_cancelled_at_every_turn_no_block_is_lost(
    aconnect: AsyncConnections, engine_name: str
) -> None:
    async with (
        pynotify.AsyncPubSub(await aconnect()) as pubsub,
        pynotify.AsyncPubSub(await aconnect()) as sender,
    ):
        await pubsub.subscribe("c")
        for count in range(8):
            await cancelled_after(count, sender.publish("c", frame(count)))
            await cancelled_after(count, take_objects(pubsub, 1))
        await sender.publish("c", "end")
        async with asyncio.timeout(PATIENCE):
            async for _, obj, _ in pubsub:
                if isinstance(obj, str):
                    break
        del obj
        there = []
        for number in range(5):
            await sender.publish("c", frame(number))
            assert number_of((await take_objects(pubsub, 1))[0]) == number
            there.append(len(blocks(engine_name)))
        assert there[-1] <= there[0] + 1
        gc.collect()  # of what was cancelled
        await turns(20)
    assert blocks(engine_name) == []
