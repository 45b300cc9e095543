"""What a full queue has lost, in tasks."""

from __future__ import annotations

import asyncio

import pytest

import pynotify
from receiving import PATIENCE
from sessions import EngineFactory
from tasks import AsyncConnections

PAGES = 64
PAGE = 8192


@pytest.fixture
def engine(make_engine: EngineFactory) -> pynotify.Engine:
    return make_engine(queue_pages=PAGES, on_full="drop-slowest")


def send(conn: pynotify.Connection, count: int) -> None:
    for number in range(count):
        conn.notify("c", f"{number:08}".ljust(7999, "x"))


def shown(message: pynotify.Notify | pynotify.Gap) -> int | str:
    return message.reason if isinstance(message, pynotify.Gap) else int(message.payload[:8])


async def test_poll_and_poll_batch(
    kind: str, aconnect: AsyncConnections, conn: pynotify.Connection
) -> None:
    slow = await aconnect()
    await slow.listen("c")
    send(conn, 150)
    gap, *rest = await slow.poll()
    assert isinstance(gap, pynotify.Gap)
    assert [shown(message) for message in rest] == list(range(gap.missed_bytes // PAGE, 150))
    send(conn, 150)
    batch = await slow.poll_batch()
    assert [(index, gap.reason) for index, gap in batch.gaps] == [(0, "evicted")]


async def test_notifies(kind: str, aconnect: AsyncConnections, conn: pynotify.Connection) -> None:
    """The gap first, and then everything after it."""
    slow = await aconnect()
    await slow.listen("c")
    send(conn, 150)
    found = [shown(message) async for message in slow.notifies(timeout=0)]
    assert found[0] == "evicted"
    assert found[1:] == list(range(150 - len(found) + 1, 150))


async def test_subscription(
    kind: str, aconnect: AsyncConnections, conn: pynotify.Connection
) -> None:
    slow = await aconnect()
    async with slow.subscribe("c") as one, slow.subscribe("d") as other:
        send(conn, 150)
        assert shown(await one.next(PATIENCE)) == "evicted"
        assert isinstance(shown(await one.next(PATIENCE)), int)
        assert shown(await other.next(PATIENCE)) == "evicted"
        assert await slow.poll() == []


async def test_callbacks_do_not_get_it(
    aconnect: AsyncConnections, conn: pynotify.Connection
) -> None:
    """They have no argument for it."""
    slow = await aconnect()
    heard: list[int] = []
    all_there = asyncio.Event()

    def callback(_: object, pid: int, channel: str, payload: str) -> None:
        heard.append(int(payload[:8]))
        if heard[-1] == 149:
            all_there.set()

    await slow.add_listener("c", callback)
    send(conn, 150)
    await all_there.wait()
    assert heard == list(range(150 - len(heard), 150))
    assert len(heard) < 150
