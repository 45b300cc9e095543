"""`AsyncConnection.listen(..., wait_upstream=True)`; the bridge itself: tests/bridge."""

from __future__ import annotations

import asyncio

import pytest

import pynotify
from bridge.bridges import Bridge
from bridge.conftest import NewBridge, new_bridge, new_bridge_process
from pubsub.server import Server, own_postgres, postgres
from receiving import PATIENCE
from tasks import AsyncConnections

__all__ = ["new_bridge", "new_bridge_process", "own_postgres", "postgres"]


@pytest.fixture
def bridge(new_bridge: NewBridge, engine_name: str, postgres: Server) -> Bridge:
    return new_bridge(engine_name, postgres, "c", "d")


async def test_it_returns_when_the_bridge_listens(
    kind: str, bridge: Bridge, aconnect: AsyncConnections, postgres: Server
) -> None:
    conn = await aconnect()
    await conn.listen("c", "d", wait_upstream=True)
    assert bridge.stats().listening == {"c", "d"}
    with postgres.connect() as sender:
        sender.execute("SELECT pg_notify('c', 'x')")
        async for note in conn.notifies(timeout=PATIENCE):
            assert note == ("c", "x", sender.info.backend_pid)
            break


async def test_without_a_bridge(aconnect: AsyncConnections) -> None:
    conn = await aconnect()
    with pytest.raises(pynotify.OperationalError, match="no bridge runs"):
        await conn.listen("c", wait_upstream=True)
    assert await conn.listening_channels() == {"c"}


async def test_a_channel_that_it_does_not_have(bridge: Bridge, aconnect: AsyncConnections) -> None:
    with pytest.raises(pynotify.ProgrammingError, match="x is none of c, d"):
        await (await aconnect()).listen("x", wait_upstream=True)


async def test_inside_a_transaction(bridge: Bridge, aconnect: AsyncConnections) -> None:
    conn = await aconnect()
    async with conn.transaction():
        with pytest.raises(pynotify.ActiveTransaction):
            await conn.listen("c", wait_upstream=True)


async def test_time_and_cancellation(
    own_postgres: Server, new_bridge: NewBridge, engine_name: str, aconnect: AsyncConnections
) -> None:
    own_postgres.kill()
    bridge = new_bridge(engine_name, own_postgres, "c")
    conn = await aconnect()
    with pytest.raises(pynotify.Timeout, match="did not listen to c upstream"):
        await conn.listen("c", wait_upstream=True, timeout=0.01)
    waiting = asyncio.ensure_future(conn.listen("c", wait_upstream=True))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    closed = asyncio.ensure_future(conn.listen("c", wait_upstream=True))
    async with asyncio.timeout(PATIENCE):
        while len(bridge.it._requests) < 2:
            await asyncio.sleep(0.001)
    bridge.close()
    with pytest.raises(pynotify.OperationalError, match="has ended"):
        await closed
