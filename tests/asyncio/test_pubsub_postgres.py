"""AsyncPubSub over psycopg: as PubSub over it, and with tasks."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

import pynotify
from pubsub.objects import random_objects, take_objects
from pubsub.server import Server, own_postgres, postgres
from pubsub.vectors import USUAL, as_received
from receiving import PATIENCE

__all__ = ["own_postgres", "postgres"]

LONG = bytes(20_000)
"""More than one segment, and equal ones."""


async def connect(server: Server) -> Any:
    import psycopg

    return await psycopg.AsyncConnection.connect(server.dsn, autocommit=True)


@asynccontextmanager
async def pubsub_on(server: Server, **options: Any) -> AsyncIterator[pynotify.AsyncPubSub]:
    async with await connect(server) as conn, pynotify.AsyncPubSub(conn, **options) as ps:
        yield ps


async def test_vectors_and_random_objects_arrive(kind: str, postgres: Server) -> None:
    async with pubsub_on(postgres) as sender, pubsub_on(postgres) as pubsub:
        await pubsub.subscribe("c")
        expected = [*(row.obj for row in USUAL), *random_objects(50), bytes(1 << 18)]
        for obj in expected:
            await sender.publish("c", obj)
            assert await take_objects(pubsub, 1) == [as_received(obj)]
        assert pubsub.stats().malformed == 0


async def test_threads_and_tasks_understand_each_other(postgres: Server) -> None:
    with postgres.connect() as conn, pynotify.PubSub(conn) as other:
        other.subscribe("d")
        async with pubsub_on(postgres) as pubsub:
            await pubsub.subscribe("c")
            other.publish("c", LONG)
            assert await take_objects(pubsub, 1) == [LONG]
            await pubsub.publish("d", {"a": [1, None]})
            for received in other:
                assert received.obj == {"a": [1, None]}
                break


async def test_the_connection_stays_the_callers(postgres: Server) -> None:
    """A caller may use it while a task waits in it, and what the caller reads is not lost."""
    async with await connect(postgres) as conn, pynotify.AsyncPubSub(conn) as pubsub:
        await pubsub.subscribe("c")
        waiting = asyncio.ensure_future(take_objects(pubsub, 3))
        for number in range(3):
            await asyncio.sleep(0)
            cursor = await conn.execute("SELECT pg_notify('c', %s), 7", [f"!{number}"])
            assert (await cursor.fetchone())[1] == 7
        assert await waiting == ["0", "1", "2"]
        await pubsub.close()
        cursor = await conn.execute("SELECT 1")
        assert await cursor.fetchone() == (1,)


async def test_several_share_a_connection(postgres: Server) -> None:
    async with await connect(postgres) as conn, await connect(postgres) as elsewhere:
        one, other = pynotify.AsyncPubSub(conn), pynotify.AsyncPubSub(conn)
        await one.subscribe("c", "d")
        await other.subscribe("c")
        await one.unsubscribe("c")
        await elsewhere.execute("SELECT pg_notify('c', '!1')")
        await elsewhere.execute("SELECT pg_notify('d', '!2')")
        assert await take_objects(other, 1) == ["1"]
        assert await take_objects(one, 1) == ["2"]
        await one.close()
        await other.close()


async def test_skip_self(postgres: Server) -> None:
    async with pubsub_on(postgres, skip_self=True) as ps, pubsub_on(postgres) as other:
        await ps.subscribe("c")
        await ps.publish("c", "mine")
        await other.publish("c", "theirs")
        assert await take_objects(ps, 1) == ["theirs"]


async def test_transactions_are_refused(postgres: Server) -> None:
    async with await connect(postgres) as conn, pynotify.AsyncPubSub(conn) as pubsub:
        await pubsub.subscribe("c")
        async with conn.transaction():
            with pytest.raises(pynotify.ActiveTransaction, match="4 segments"):
                await pubsub.publish("c", LONG)
            with pytest.raises(pynotify.ActiveTransaction):
                await pubsub.subscribe("d")
            await pubsub.publish("c", "one segment")
            assert await pubsub.run(0) == 0
        assert await take_objects(pubsub, 1) == ["one segment"]


async def test_not_in_autocommit(postgres: Server) -> None:
    import psycopg

    async with await psycopg.AsyncConnection.connect(postgres.dsn) as conn:
        pubsub = pynotify.AsyncPubSub(conn)
        with pytest.raises(pynotify.ProgrammingError, match="autocommit"):
            await pubsub.subscribe("c")


async def test_a_sync_connection_is_refused(postgres: Server) -> None:
    with postgres.connect() as conn:
        pubsub = pynotify.AsyncPubSub(conn)
        with pytest.raises(TypeError, match="PubSub, in a thread"):
            await pubsub.subscribe("c")


async def test_two_objects_of_one_backend_do_not_mix(postgres: Server) -> None:
    async with pubsub_on(postgres) as sender, pubsub_on(postgres) as pubsub:
        await pubsub.subscribe("c")
        objects = [f"{letter}" * 30_000 for letter in "abcd"]
        await asyncio.gather(*(sender.publish("c", obj) for obj in objects))
        assert sorted(await take_objects(pubsub, 4)) == objects
        assert pubsub.stats().malformed == 0


async def test_cancelled_it_loses_nothing(postgres: Server) -> None:
    async with pubsub_on(postgres) as sender, pubsub_on(postgres) as pubsub:
        await pubsub.subscribe("c")
        for number in range(5):
            waiting = asyncio.ensure_future(take_objects(pubsub, 1))
            await asyncio.sleep(0)
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
            await sender.publish("c", number)
            assert await take_objects(pubsub, 1) == [number]


async def test_closing_ends_waiting(postgres: Server) -> None:
    async with pubsub_on(postgres) as pubsub:
        await pubsub.subscribe("c")
        waiting = asyncio.ensure_future(pubsub.run())
        await asyncio.sleep(0)
        await pubsub.close()
        async with asyncio.timeout(PATIENCE):
            assert await waiting == 0


async def test_a_lost_connection_is_said(own_postgres: Server) -> None:
    async with await connect(own_postgres) as conn:
        pubsub = pynotify.AsyncPubSub(conn)
        await pubsub.subscribe("c")
        waiting = asyncio.ensure_future(take_objects(pubsub, 1))
        await asyncio.sleep(0)
        own_postgres.kill()
        with pytest.raises(pynotify.ConnectionLost):
            await waiting
        with pytest.raises(pynotify.ConnectionLost):
            await pubsub.publish("c", 1)
        await pubsub.close()


async def test_given_a_function_it_connects_again(
    own_postgres: Server, caplog: pytest.LogCaptureFixture
) -> None:
    made: list[Any] = []

    async def make() -> Any:
        made.append(await connect(own_postgres))
        return made[-1]

    caplog.set_level(logging.WARNING, "pynotify")
    async with pynotify.AsyncPubSub(make) as pubsub:
        await pubsub.subscribe("c")
        waiting = asyncio.ensure_future(take_objects(pubsub, 2))
        await asyncio.sleep(0)
        own_postgres.kill()
        own_postgres.start()
        async with asyncio.timeout(PATIENCE):
            while len(made) < 2:
                await asyncio.sleep(0.01)
        # Again and again: the second connection has to listen first.
        async with pubsub_on(own_postgres) as sender:
            while not waiting.done():
                await sender.publish("c", "after")
                await asyncio.sleep(0.01)
        gap, after = await waiting
        assert isinstance(gap, pynotify.Gap)
        assert after == "after"
    assert made[0].closed
    assert made[1].closed
    assert "connected again" in caplog.text


async def test_publish_connects_again_too(own_postgres: Server) -> None:
    async with pynotify.AsyncPubSub(lambda: connect(own_postgres)) as pubsub:
        await pubsub.publish("c", 1)
        own_postgres.kill()
        own_postgres.start()
        async with pubsub_on(own_postgres) as other:
            await other.subscribe("c")
            await pubsub.publish("c", LONG)
            assert await take_objects(other, 1) == [LONG]


async def test_it_looks_after_the_server_every_interval(postgres: Server) -> None:
    """With a clock of the test's: the sender of half an object has gone."""
    async with pubsub_on(postgres, interval=1000.0) as pubsub:
        await pubsub.subscribe("c")
        sender = await connect(postgres)
        await sender.execute("SELECT pg_notify('c', '#IQ==')")
        await sender.close()
        while not pubsub.stats().pending:
            await pubsub.run(0)
        transport: Any = pubsub._transport
        while pubsub.stats().pending:
            transport._checked -= 2000.0
            await pubsub.run(0)
        assert pubsub.stats().dropped == 1
