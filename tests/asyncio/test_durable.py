"""Durable topics for tasks: what waits for the disk does so beside the loop."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

import pynotify
from pynotify import _off_loop
from receiving import PATIENCE


class Counting:
    """A task that is to run while others wait for the disk."""

    def __init__(self) -> None:
        self.turns = 0
        self._task = asyncio.get_running_loop().create_task(self._count())

    async def _count(self) -> None:
        while True:
            self.turns += 1
            await asyncio.sleep(0)

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])


@pytest.fixture
def data_dir(tmp_path: Path) -> str:
    tmp_path.chmod(0o700)
    return str(tmp_path)


async def test_others_run_while_it_is_synced(segment_name: str, data_dir: str) -> None:
    """publish(), finish() and commit; and it is synced when they return."""
    connect = pynotify.AsyncConnection.connect
    async with await connect(segment_name, data_dir=data_dir) as conn:
        topic = conn.topic("t", durable=True, fsync="always")
        async with topic.channel("c").consumer() as consumer:
            others = Counting()
            for _ in range(10):
                before = others.turns
                await topic.publish(b"x")
                assert others.turns > before
                message = await consumer.get(PATIENCE)
                before = others.turns
                await message.finish()
                assert others.turns > before
                before = others.turns
                async with conn.transaction():
                    await topic.publish(b"y")
                assert others.turns > before
                await (await consumer.get(PATIENCE)).finish()
            await others.stop()
    pynotify.unlink(segment_name, force=True)


async def test_another_connection_syncs_what_is_its_own(segment_name: str, data_dir: str) -> None:
    """A signal handler's, in the middle of a call of ours: it returns with that synced."""
    async with await pynotify.AsyncConnection.connect(segment_name, data_dir=data_dir) as conn:
        topic = conn.topic("t", durable=True, fsync="always")
        topic.channel("c")
        with pynotify.connect(segment_name) as handlers:
            theirs = handlers.topic("t")
            conn._off_loop.nowait(lambda: theirs.publish(b"of a handler"))
            assert not conn._off_loop._disk_wait.owes
            handlers.begin()
            theirs.publish(b"in a transaction")
            conn._off_loop.nowait(handlers.commit)
            assert not conn._off_loop._disk_wait.owes
            conn._off_loop.nowait(lambda: topic._publish_body(b"ours"))
            assert conn._off_loop._disk_wait.owes
            await conn._off_loop._disk_wait.until_synced()
    pynotify.unlink(segment_name, force=True)


async def test_no_sync_is_in_the_thread_of_the_loop(
    segment_name: str, data_dir: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All the same each call waits for its own, and has its error."""
    threads = []

    def sync(owed: Any) -> None:
        threads.append(threading.get_ident())
        real(owed)
        if len(threads) > 1:
            raise pynotify.SyncFailed("the disk")

    real = _off_loop._sync
    monkeypatch.setattr(_off_loop, "_sync", sync)
    connect = pynotify.AsyncConnection.connect
    async with await connect(segment_name, data_dir=data_dir) as conn:
        topic = conn.topic("t", durable=True, fsync="always")
        topic.channel("c")
        threads.clear()
        await topic.publish(b"1")
        assert len(threads) == 1
        with pytest.raises(pynotify.SyncFailed):
            await topic.publish(b"2")
        assert len(threads) == 2
        assert threading.get_ident() not in threads
        quick = conn.topic("quick", durable=True, fsync="none")
        count = len(threads)
        await quick.publish(b"3")
        assert len(threads) == count
    pynotify.unlink(segment_name, force=True)
