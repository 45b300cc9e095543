"""Topics for tasks: the same rules, with await; nothing waits in the loop's thread."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator

import pytest

import pynotify
from locked import LockHolder
from receiving import PATIENCE, readable
from tasks import AsyncConnections, Counter, cancelled_after, settled, turns, until


async def take(consumer: pynotify.AsyncConsumer, count: int) -> list[pynotify.AsyncMessage]:
    return [await consumer.get(PATIENCE) for _ in range(count)]


@contextlib.asynccontextmanager
async def consuming(
    conn: pynotify.AsyncConnection, **options: float
) -> AsyncIterator[tuple[pynotify.AsyncTopic, pynotify.AsyncConsumer]]:
    topic = conn.topic("orders")
    async with topic.channel("billing").consumer(**options) as consumer:
        yield topic, consumer


async def test_publish_and_consume(aconnect: AsyncConnections, kind: str) -> None:
    async with consuming(await aconnect(), max_in_flight=4) as (topic, consumer):
        published = await topic.publish("1", headers={"a": "b"})
        many = await topic.publish_many(str(number) for number in (2, 3, 4))
        messages = await take(consumer, 4)
        assert [message.id for message in messages] == [published, *many]
        assert [message.body for message in messages] == [b"1", b"2", b"3", b"4"]
        assert messages[0].headers == {"a": "b"}
        await messages[0].finish()
        await messages[1].requeue(3600)
        await messages[2].touch()
        await messages[2].dead_letter("reason")
        async with messages[3]:
            pass
        with pytest.raises(pynotify.MessageNotInFlight):
            await messages[3].finish()
        stats = await consumer.channel.stats()
        assert (stats.finished, stats.deferred, stats.dropped) == (2, 1, 1)
        with pytest.raises(pynotify.Timeout):
            await consumer.get(0)
        with pytest.raises(pynotify.Timeout):
            await consumer.get(0.01)


async def test_everything_else(aconnect: AsyncConnections) -> None:
    conn = await aconnect()
    topic = conn.topic("t", max_depth=5, overflow="error")
    channel = topic.channel("c", max_consumers=1)
    assert (conn.topic("t"), topic.channel("c")) == (topic, channel)
    assert (await conn.topics(), await topic.channels()) == (["t"], ["c"])
    later = await topic.publish("x", delay=3600, ttl=7200)
    assert [each.state for each in await channel.peek()] == ["deferred"]
    assert await topic.cancel(later)
    await topic.pause()
    await channel.pause()
    await topic.publish("y")
    assert ((await topic.stats()).depth, (await channel.stats()).paused) == (1, True)
    await topic.empty()
    await topic.unpause()
    await channel.unpause()
    await channel.empty()
    async with channel.consumer():
        with pytest.raises(pynotify.TooManyConsumers):
            await channel.consumer()
    await topic.publish_many(["a"] * 5)
    with pytest.raises(pynotify.TopicFull):
        await topic.publish("b")
    await channel.delete()
    await topic.delete()
    with pytest.raises(pynotify.TopicDeleted):
        await topic.publish("b")


async def test_a_consumer_is_made_when_it_is_needed(aconnect: AsyncConnections) -> None:
    conn = await aconnect()
    channel = conn.topic("t").channel("c")
    first = channel.consumer()
    assert (await channel.stats()).consumers == []
    second = await channel.consumer()
    with pytest.raises(pynotify.Timeout):
        await first.get(0)
    async with second as again:
        assert again is second
        assert len((await channel.stats()).consumers) == 2
    assert second.closed
    await first.close()
    await first.close()
    with pytest.raises(pynotify.InterfaceError):
        await first.get(0)
    assert (await channel.stats()).consumers == []


async def test_tasks_wait_in_line(aconnect: AsyncConnections, kind: str) -> None:
    async with consuming(await aconnect(), max_in_flight=3) as (topic, consumer):
        tasks = [asyncio.create_task(consumer.get()) for _ in range(3)]
        await settled(tasks[-1])
        async with Counter() as counter:
            await counter.goes_on()
            await topic.publish_many(["1", "2", "3"])
            messages = await asyncio.gather(*tasks)
        assert [message.body for message in messages] == [b"1", b"2", b"3"]


async def test_another_process_wakes_a_task(aconnect: AsyncConnections, kind: str) -> None:
    from forking import ForkedChild

    async with consuming(await aconnect()) as (_topic, consumer):

        def publish() -> None:
            with pynotify.connect(aconnect.name) as conn:
                conn.topic("orders").publish("x")

        task = asyncio.create_task(consumer.get())
        await settled(task)
        child = ForkedChild(publish)
        assert (await task).body == b"x"
        child.join()


async def test_time_outs_and_delays_wake_a_task(aconnect: AsyncConnections, kind: str) -> None:
    async with consuming(await aconnect(), max_in_flight=3, msg_timeout=0.05) as (topic, consumer):
        await topic.publish("now")
        await topic.publish("later", delay=0.02)
        first, later = await take(consumer, 2)
        assert (first.body, later.body) == (b"now", b"later")
        again = await consumer.get(PATIENCE)
        assert (again.id, again.attempts) == (first.id, 2)


async def test_cancelling_loses_nothing(aconnect: AsyncConnections, kind: str) -> None:
    async with consuming(await aconnect(), max_in_flight=20) as (topic, consumer):
        for number in range(20):
            getting = consumer.get()
            task = asyncio.create_task(cancelled_after(number % 5, getting))
            await turns(number % 3)
            await topic.publish(str(number))
            result = await task
            if not isinstance(result, pynotify.AsyncMessage):
                result = await consumer.get(PATIENCE)
            assert (result.body, result.attempts) == (str(number).encode(), 1)
            await result.finish()


async def test_a_message_of_a_cancelled_task_goes_to_the_next(aconnect: AsyncConnections) -> None:
    async with consuming(await aconnect(), max_in_flight=5) as (topic, consumer):
        first, second = (asyncio.create_task(consumer.get()) for _ in range(2))
        await settled(second)
        await topic.publish("x")
        consumer._on_readable()
        first.cancel()
        assert (await asyncio.wait_for(second, PATIENCE)).body == b"x"


async def test_iterating_ends(aconnect: AsyncConnections) -> None:
    for how in ("close", "drain"):
        async with consuming(await aconnect()) as (topic, consumer):
            await topic.publish_many(["1", "2"])
            got = []

            async def consume(
                consumer: pynotify.AsyncConsumer = consumer, got: list[bytes] = got
            ) -> None:
                async for message in consumer:
                    async with message:
                        got.append(message.body)

            task = asyncio.create_task(consume())
            await until(lambda got=got: len(got) == 2, "both")
            await settled(task)
            await getattr(consumer, how)()
            await task
            assert got == [b"1", b"2"]


async def test_closing_and_deleting_wake_a_task(aconnect: AsyncConnections, kind: str) -> None:
    conn = await aconnect()
    for how, error in (("consumer", pynotify.InterfaceError), ("channel", pynotify.TopicDeleted),
                       ("connection", pynotify.InterfaceError)):  # fmt: skip
        channel = conn.topic("t").channel("c")
        consumer = await channel.consumer()
        task = asyncio.create_task(consumer.get())
        await settled(task)
        if how == "consumer":
            await consumer.close()
        elif how == "channel":
            await channel.delete()
        else:
            await conn.close()
        with pytest.raises(error):
            await task
        await consumer.close()


async def test_transactions(aconnect: AsyncConnections) -> None:
    conn = await aconnect()
    async with consuming(conn, max_in_flight=2) as (topic, consumer):
        await topic.publish("x")
        message = await consumer.get(PATIENCE)
        async with conn.transaction():
            await topic.publish("never")
            await message.finish()
            with pytest.raises(pynotify.ActiveTransaction):
                await consumer.get(0)
            raise pynotify.Rollback
        async with conn.transaction() as tx:
            await topic.publish("y")
            await message.finish()
            await tx.prepare()
        stats = await consumer.channel.stats()
        assert (stats.depth, stats.in_flight, stats.finished) == (1, 0, 1)
        with pytest.raises(LookupError):
            async with await consumer.get(PATIENCE):
                raise LookupError
        assert (await consumer.channel.stats()).requeued == 1


async def test_nothing_waits_for_the_lock_in_the_loop(
    aconnect: AsyncConnections, lock_holder: LockHolder
) -> None:
    """A process stands with the writer lock: the loop goes on, and then all of it happens."""
    async with consuming(await aconnect(), max_in_flight=5) as (topic, consumer):
        await topic.publish("first")
        message = await consumer.get(PATIENCE)
        getting = asyncio.create_task(consumer.get())
        await settled(getting)
        async with Counter() as counter:
            lock_holder.hold()
            tasks = [
                asyncio.create_task(work)
                for work in (topic.publish("second"), message.finish(), consumer.channel.stats())
            ]
            await counter.goes_on()
            assert not any(task.done() for task in tasks)
            lock_holder.release()
            await asyncio.gather(*tasks)
        assert (await getting).body == b"second"


async def test_run(aconnect: AsyncConnections, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR, "pynotify")
    async with consuming(await aconnect(), max_in_flight=5) as (topic, consumer):
        await topic.publish_many([str(number) for number in range(20)])
        done: list[bytes] = []

        async def handler(message: pynotify.AsyncMessage) -> None:
            await asyncio.sleep(0)
            if message.body == b"3" and message.attempts < 3:
                raise LookupError("of the test")
            done.append(message.body)

        task = asyncio.create_task(consumer.run(handler, backoff=(0.001, 0.002)))
        await until(lambda: len(done) == 20, "all are done")
        await consumer.drain()
        await task
        assert sorted(done, key=int) == [str(number).encode() for number in range(20)]
        assert len(caplog.records) == 2
        assert (await consumer.channel.stats()).requeued == 2


async def test_run_cancelled_gives_its_message_back(aconnect: AsyncConnections) -> None:
    async with consuming(await aconnect()) as (topic, consumer):
        await topic.publish("x")
        began = asyncio.Event()

        async def handler(_message: pynotify.AsyncMessage) -> None:
            began.set()
            await asyncio.Event().wait()

        task = asyncio.create_task(consumer.run(handler))
        await began.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (await consumer.get(PATIENCE)).attempts == 2


async def test_run_with_a_plain_function(aconnect: AsyncConnections) -> None:
    async with consuming(await aconnect()) as (topic, consumer):
        await topic.publish_many(["1", "2"])
        got = []

        def handler(message: pynotify.AsyncMessage) -> None:
            got.append(message.body)
            if len(got) == 2:
                consumer.draining = True

        await consumer.run(handler)
        assert got == [b"1", b"2"]
        assert (await consumer.channel.stats()).finished == 2


async def test_drain(aconnect: AsyncConnections) -> None:
    async with consuming(await aconnect(), max_in_flight=3) as (topic, consumer):
        await topic.publish_many(["1", "2", "3"])
        message = await consumer.get(PATIENCE)
        assert not await consumer.drain()
        with pytest.raises(pynotify.InterfaceError, match="drained"):
            await consumer.get(0)
        draining = asyncio.create_task(consumer.drain(None))
        await settled(draining)
        await message.finish()
        assert await draining
        stats = await consumer.channel.stats()
        assert (stats.depth, stats.in_flight, stats.finished) == (2, 0, 1)


async def test_descriptor(aconnect: AsyncConnections) -> None:
    """For other loops: readable also for what a cancelled task leaves behind."""
    async with consuming(await aconnect(), max_in_flight=2) as (topic, consumer):
        with pytest.raises(pynotify.Timeout):
            await consumer.get(0)
        descriptor = consumer.fileno()
        assert readable(descriptor), "no task has looked yet"
        with pytest.raises(pynotify.Timeout):
            await consumer.get(0)
        assert not readable(descriptor)
        await topic.publish("x")
        assert readable(descriptor, PATIENCE)
        task = asyncio.create_task(consumer.get())
        await turns(1)
        message = await task
        with pytest.raises(pynotify.Timeout):
            await consumer.get(0)
        consumer._put_back(message)
        assert readable(descriptor)
        assert await consumer.get(0) is message
        assert not readable(descriptor)


async def test_a_descriptor_that_comes_late_shows_what_was_put_back(
    aconnect: AsyncConnections,
) -> None:
    async with consuming(await aconnect()) as (topic, consumer):
        task = asyncio.create_task(consumer.get())
        await turns(1)
        await topic.publish("x")
        message = await task
        with pytest.raises(pynotify.Timeout):
            await consumer.get(0)
        consumer._put_back(message)
        descriptor = consumer.fileno()
        assert readable(descriptor)
        assert await consumer.get(0) is message
        assert not readable(descriptor)


async def test_settings_of_topics_and_channels(aconnect: AsyncConnections) -> None:
    conn = await aconnect()
    topic = conn.topic("orders", default_ttl=60)
    channel = topic.channel("billing", max_attempts=2)
    await topic.configure(default_ttl=None, max_disk_bytes=4096)
    await channel.configure(max_attempts=1, dead_letter="dead", msg_timeout=5)
    of_topic = await topic.stats()
    assert (of_topic.default_ttl, of_topic.max_disk_bytes) == (None, 4096)
    stats = await channel.stats()
    assert (stats.max_attempts, stats.dead_letter, stats.msg_timeout) == (1, "dead", 5.0)
    await topic.publish("x")
    async with channel.consumer() as consumer:
        (message,) = await take(consumer, 1)
        await message.requeue()
    assert [each.body for each in await conn.topic("dead").channel("c").peek()] == [b"x"]
    with pytest.raises(pynotify.ProgrammingError, match="would come back"):
        await conn.topic("dead").channel("c").configure(dead_letter="orders")
