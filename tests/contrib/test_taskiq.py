"""taskiq: tasks on a topic, run by workers of which one is killed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import pynotify
from receiving import PATIENCE, wait_until
from requirement import require
from task_workers import four_workers

try:
    from taskiq import BrokerMessage, TaskiqMessage
    from taskiq.acks import AckableMessage
except ImportError as missing:
    require("taskiq", str(missing))

from pynotify.contrib.taskiq import PynotifyBroker


@asynccontextmanager
async def started(segment: str, **options: Any) -> AsyncIterator[PynotifyBroker]:
    broker = PynotifyBroker(segment, **options)
    await broker.startup()
    try:
        yield broker
    finally:
        await broker.shutdown()


def message(body: bytes = b"my_msg", **labels: Any) -> BrokerMessage:
    return BrokerMessage(task_id="1", task_name="name", message=body, labels=labels)


async def first(broker: PynotifyBroker) -> AckableMessage:
    """The first task; it is not acknowledged yet, and goes back with the generator."""
    tasks = broker.listen()
    try:
        return await asyncio.wait_for(anext(tasks), PATIENCE)
    finally:
        await tasks.aclose()


def test_kick_success(segment_name: str) -> None:
    async def run() -> None:
        async with started(segment_name) as broker:
            await broker.kick(message(b"my_msg"))
            tasks = broker.listen()
            task = await asyncio.wait_for(anext(tasks), PATIENCE)
            assert task.data == b"my_msg"
            acknowledged = task.ack()
            assert acknowledged is not None
            await acknowledged
            await tasks.aclose()
            with pynotify.open(segment_name) as segment:
                (topic,) = segment.topics()
                assert topic.unfinished == 0

    asyncio.run(run())


def test_what_is_not_acknowledged_comes_again(segment_name: str) -> None:
    async def run() -> None:
        async with started(segment_name) as broker:
            await broker.kick(message(b"x"))
            assert (await first(broker)).data == b"x"
            assert (await first(broker)).data == b"x"

    asyncio.run(run())


def test_startup(segment_name: str) -> None:
    broker = PynotifyBroker(segment_name)
    with pytest.raises(pynotify.InterfaceError, match="not started"):
        asyncio.run(broker.kick(message()))


def test_listen_waits(segment_name: str) -> None:
    async def run() -> None:
        async with started(segment_name) as broker:
            waiting = asyncio.ensure_future(first(broker))
            await asyncio.sleep(0)
            await broker.kick(message(b"x"))
            assert (await waiting).data == b"x"

    asyncio.run(run())


def test_a_segment_that_is_removed(segment_name: str, caplog: pytest.LogCaptureFixture) -> None:
    """A worker and a client go on with the next one; a task in hand is done for nothing."""

    async def run() -> None:
        async with started(segment_name) as worker, started(segment_name) as client:
            await client.kick(message(b"before"))
            tasks = worker.listen()
            before = await asyncio.wait_for(anext(tasks), PATIENCE)
            following = asyncio.ensure_future(anext(tasks))
            await asyncio.sleep(0)
            pynotify.unlink(segment_name, force=True)
            pynotify.open(segment_name).close()
            acknowledged = before.ack()
            assert acknowledged is not None
            await acknowledged
            await client.kick(message(b"after"))
            assert (await asyncio.wait_for(following, PATIENCE)).data == b"after"
            await tasks.aclose()

    asyncio.run(run())
    assert "what was in it is lost" in caplog.text


def test_a_new_segment_to_which_it_cannot_connect(segment_name: str) -> None:
    """It tries again, until it can."""

    async def run() -> None:
        async with started(segment_name) as worker:
            tasks = worker.listen()
            waiting = asyncio.ensure_future(anext(tasks))
            await asyncio.sleep(0)
            pynotify.unlink(segment_name, force=True)
            with pynotify.connect(segment_name, max_backends=1) as conn:
                with pytest.raises(pynotify.TooManyBackends):
                    await worker.kick(message(b"nowhere"))
                conn.topic("taskiq").publish(b"after")
            assert (await asyncio.wait_for(waiting, PATIENCE)).data == b"after"
            await tasks.aclose()

    asyncio.run(run())


def test_a_topic_that_is_deleted(segment_name: str) -> None:
    async def run() -> None:
        async with started(segment_name) as broker:
            tasks = broker.listen()
            waiting = asyncio.ensure_future(anext(tasks))
            with pynotify.connect(segment_name) as conn:
                async with asyncio.timeout(PATIENCE):
                    while not conn.topics():
                        await asyncio.sleep(0.002)
                conn.topic("taskiq").delete()
            await broker.kick(message(b"after"))
            assert (await asyncio.wait_for(waiting, PATIENCE)).data == b"after"
            await tasks.aclose()

    asyncio.run(run())


def test_wrong_format_goes_through(segment_name: str) -> None:
    """What another program published: taskiq decides what to do with it."""

    async def run() -> None:
        async with started(segment_name) as broker:
            with pynotify.connect(segment_name) as conn:
                conn.topic("taskiq").publish(b"wrong")
            assert (await first(broker)).data == b"wrong"

    asyncio.run(run())


@pytest.mark.parametrize("delay", [3600, "3600"])
def test_delayed_message(segment_name: str, delay: Any) -> None:
    async def run() -> None:
        async with started(segment_name) as broker:
            await broker.kick(message(b"later", delay=delay))
            await broker.kick(message(b"now"))
            assert (await first(broker)).data == b"now"
            with pynotify.open(segment_name) as segment:
                (topic,) = segment.topics()
                assert [channel.deferred for channel in topic.channels] == [1]

    asyncio.run(run())


def test_queues_and_attempts(segment_name: str) -> None:
    async def run() -> None:
        options = {"queue": "mails", "max_attempts": 2, "dead_letter": "broken"}
        async with started(segment_name, **options) as broker:
            await broker.kick(message(b"x"))
            for _ in range(2):
                await first(broker)
            with pynotify.open(segment_name) as segment:
                left = {topic.name: topic.unfinished for topic in segment.topics()}
            assert left == {"broken": 1, "mails": 0}

    asyncio.run(run())


def test_a_task_that_is_called(segment_name: str) -> None:
    """What arrives is what taskiq's own receiver understands."""

    async def run() -> None:
        async with started(segment_name) as broker:

            @broker.task
            async def add(one: int, other: int) -> int:
                return one + other

            await add.kiq(1, other=2)
            data = (await first(broker)).data
            parsed = broker.formatter.loads(data)
            assert isinstance(parsed, TaskiqMessage)
            assert (parsed.args, parsed.kwargs) == ([1], {"other": 2})

    asyncio.run(run())


def test_four_workers_of_which_one_is_killed(segment_name: str, tmp_path: Path) -> None:
    """The example's, by taskiq's own command; each task is run, that of the killed one again."""
    command = ["taskiq", "worker", "taskiq_tasks:broker", "--workers", "1"]
    with four_workers(
        *command, sender="taskiq_tasks.py", segment_name=segment_name, tmp_path=tmp_path
    ) as workers:
        workers.send()
        workers.kill_one_when_some_are_run()
        wait_until(workers.all_are_run, "all are run")
        with pynotify.open(segment_name) as segment:
            wait_until(
                lambda: all(topic.unfinished == 0 for topic in segment.topics()), "all are done"
            )
        assert len({line[0] for line in workers.lines()}) > 1  # others went on
