"""Deferred messages leave memory for what is for now, and come back when they are due."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from consuming import PATIENCE, work

import pynotify

MEMORY = 256 * 1024
MANY = 2000  # several times what memory has room for
BODY = bytes(400)
TOMORROW = 86400


@pytest.fixture
def on_disk(tmp_path: Path, new_name: Callable[[], str]) -> Iterator[pynotify.Connection]:
    with pynotify.connect(new_name(), topic_memory=MEMORY, data_dir=str(tmp_path)) as conn:
        yield conn


def put_off(topic: pynotify.Topic, number: int, delay: float = TOMORROW) -> None:
    for start in range(0, number, 50):
        topic.publish_many([BODY] * min(50, number - start), delay=delay)


@pytest.mark.parametrize("durable", [False, True])
@pytest.mark.parametrize("channels", [1, 2])
@pytest.mark.parametrize("at_once", [1, 50])
def test_a_job_for_now_does_not_wait_for_those_of_tomorrow(
    on_disk: pynotify.Connection, durable: bool, channels: int, at_once: int
) -> None:
    topic = on_disk.topic("jobs", durable=durable)
    queues = [topic.channel(f"c{number}") for number in range(channels)]
    for _ in range(MANY // at_once):
        topic.publish_many([BODY] * at_once, delay=TOMORROW)
    assert topic.stats().on_disk > 0
    assert [queue.stats().deferred for queue in queues] == [MANY] * channels
    consumers = [queue.consumer(max_in_flight=5) for queue in queues]
    for number in range(300):
        topic.publish(b"%d" % number + BODY)
        for consumer in consumers:
            with consumer.get(0 if not durable else PATIENCE) as message:
                assert message.body == b"%d" % number + BODY
    for consumer in consumers:
        with pytest.raises(pynotify.Timeout):
            consumer.get(0)
        consumer.close()
    stats = topic.stats()
    assert stats.unfinished == MANY > stats.on_disk > 0
    assert [queue.stats().deferred for queue in queues] == [MANY] * channels
    assert [queue.stats().depth for queue in queues] == [0] * channels


def test_what_is_deferred_comes_when_it_is_due_each_once(on_disk: pynotify.Connection) -> None:
    topic = on_disk.topic("jobs")
    channel = topic.channel("c")
    due = {}
    begun = time.monotonic()
    for number in range(100):
        put_off(topic, 10)
        delay = 1.5 + number / 100
        due[topic.publish(b"soon %d" % number, delay=delay)] = time.monotonic() + delay
        put_off(topic, 10)
    gone = [topic.publish(b"gone", delay=1.7) for _ in range(20)]
    put_off(topic, MANY)
    assert all(topic.cancel(one) for one in gone)
    assert not any(topic.cancel(one) for one in gone)
    assert channel.stats().deferred == 2 * MANY + 100
    late = []
    came = []
    with channel.consumer(max_in_flight=3) as consumer:
        while len(came) < len(due):
            with consumer.get(PATIENCE) as message:
                late.append(time.monotonic() - due[message.id])
                came.append(message.id)
        with pytest.raises(pynotify.Timeout):
            consumer.get(0.5)
    assert sorted(came) == sorted(due)
    assert min(late) > -0.1
    print(f"late by {max(late):.3f} s, {time.monotonic() - begun:.1f} s in all")
    stats = topic.stats()
    assert stats.unfinished == 2 * MANY > stats.on_disk > 0
    assert channel.stats().deferred == 2 * MANY


def test_those_that_were_requeued_leave_as_well_with_their_attempts(
    on_disk: pynotify.Connection,
) -> None:
    topic = on_disk.topic("jobs")
    topic.publish_many(b"%d" % number + BODY for number in range(MANY))
    with topic.channel("c").consumer(max_in_flight=1) as consumer:
        for _ in range(MANY):
            message = consumer.get(0)
            message.requeue(delay=3)
        topic.publish(b"now")
        with consumer.get(0) as message:
            assert message.body == b"now"
        came = set()
        while len(came) < MANY:
            with consumer.get(PATIENCE) as message:
                assert message.attempts == 2
                came.add(message.id)
        with pytest.raises(pynotify.Timeout):
            consumer.get(0)
    assert (topic.stats().unfinished, topic.stats().on_disk) == (0, 0)


def test_deferred_messages_of_one_channel_leave_its_sibling_room(
    on_disk: pynotify.Connection,
) -> None:
    topic = on_disk.topic("jobs")
    with topic.channel("a").consumer() as puts_off, topic.channel("b").consumer() as works:
        for number in range(MANY):
            topic.publish(b"%d" % number + BODY)
            puts_off.get(0).requeue(delay=TOMORROW)
            with works.get(0) as message:
                assert message.body == b"%d" % number + BODY
        stats = topic.channel("a").stats(), topic.channel("b").stats()
        assert (stats[0].deferred, stats[0].depth) == (MANY, 0)
        assert (stats[1].deferred, stats[1].depth, stats[1].finished) == (0, 0, MANY)


def test_a_channel_that_is_made_later_gets_none_of_it(on_disk: pynotify.Connection) -> None:
    topic = on_disk.topic("jobs")
    first = topic.channel("first")
    put_off(topic, MANY, delay=2)
    late = topic.channel("late")
    topic.publish(b"now")
    with first.consumer() as consumer, late.consumer() as other:
        assert len(work(consumer, MANY + 1)) == MANY + 1
        assert work(other, 1) == [b"now"]
        with pytest.raises(pynotify.Timeout):
            other.get(0.1)


@pytest.mark.parametrize("how", ["empty", "delete"])
def test_a_channel_that_is_emptied_or_deleted_leaves_nothing(
    on_disk: pynotify.Connection, how: str
) -> None:
    topic = on_disk.topic("jobs")
    channel = topic.channel("c")
    put_off(topic, MANY)
    assert topic.stats().on_disk > 0
    if how == "empty":
        channel.empty()
        assert (channel.stats().deferred, channel.stats().depth) == (0, 0)
    else:
        channel.delete()
    assert (topic.stats().unfinished, topic.stats().on_disk) == (0, 0)
    channel = topic.channel("c")
    topic.publish(b"more")
    with channel.consumer() as consumer:
        assert work(consumer, 1) == [b"more"]
        with pytest.raises(pynotify.Timeout):
            consumer.get(0)


def test_one_of_two_channels_is_emptied(on_disk: pynotify.Connection) -> None:
    topic = on_disk.topic("jobs")
    kept, emptied = topic.channel("kept"), topic.channel("emptied")
    put_off(topic, MANY, delay=2)
    emptied.empty()
    assert (kept.stats().deferred, emptied.stats().deferred) == (MANY, 0)
    with kept.consumer() as consumer:
        assert len(work(consumer, MANY)) == MANY
    assert emptied.stats().depth == emptied.stats().deferred == 0
    assert (topic.stats().unfinished, topic.stats().on_disk) == (0, 0)


def test_a_topic_that_is_emptied_keeps_what_its_channels_have(
    on_disk: pynotify.Connection,
) -> None:
    topic = on_disk.topic("jobs")
    channel = topic.channel("c")
    put_off(topic, MANY, delay=3)
    topic.empty()
    assert (topic.stats().unfinished, channel.stats().deferred) == (MANY, MANY)
    with channel.consumer(max_in_flight=10) as consumer:
        assert len(work(consumer, MANY)) == MANY
        with pytest.raises(pynotify.Timeout):
            consumer.get(0)
    assert (topic.stats().unfinished, topic.stats().on_disk) == (0, 0)


def test_a_topic_that_is_deleted_leaves_nothing(
    on_disk: pynotify.Connection, tmp_path: Path
) -> None:
    other = on_disk.topic("other")
    other.channel("c")
    for _ in range(2):
        topic = on_disk.topic("jobs")
        topic.channel("c")
        put_off(topic, MANY, delay=1)
        assert topic.stats().on_disk > 0
        topic.delete()
        assert [path for path in tmp_path.iterdir() if path.stat().st_size > 0] == []
    topic = on_disk.topic("jobs")
    with topic.channel("c").consumer() as consumer:
        topic.publish(b"now")
        assert work(consumer, 1) == [b"now"]
        with pytest.raises(pynotify.Timeout):
            consumer.get(1.2)
    assert (topic.stats().unfinished, topic.stats().on_disk) == (0, 0)
    put_off(other, MANY)
    assert other.stats().on_disk > 0, "their room is free for others"


def test_those_that_were_tried_too_often_become_dead_letters(on_disk: pynotify.Connection) -> None:
    """Their attempts go to disk with them, and come back."""
    few = 300
    topic, dead = on_disk.topic("jobs"), on_disk.topic("dead")
    graves = dead.channel("c")
    topic.channel("c")
    put_off(topic, MANY)
    with topic.channel("c").consumer(max_attempts=2, dead_letter="dead") as consumer:
        topic.publish_many(b"poison %d" % number for number in range(few))
        attempts = []
        while len(attempts) < 2 * few:
            message = consumer.get(PATIENCE)
            attempts.append(message.attempts)
            message.requeue(delay=1 if message.attempts == 1 else 0)
            if attempts.count(1) == few and attempts[-1] == 1:
                put_off(topic, MANY)
    assert (attempts.count(1), attempts.count(2)) == (few, few)
    assert topic.channel("c").stats().dead_lettered == few
    with graves.consumer() as consumer:
        bodies = work(consumer, few)
    assert sorted(bodies) == sorted(b"poison %d" % number for number in range(few))
    assert topic.channel("c").stats().deferred == 2 * MANY


def test_a_dead_letter_finds_room_where_deferred_ones_have_it(on_disk: pynotify.Connection) -> None:
    topic, dead = on_disk.topic("jobs"), on_disk.topic("dead")
    graves = dead.channel("c")
    put_off(dead, MANY)
    given_up = topic.channel("c").consumer(dead_letter="dead")
    with given_up as consumer, graves.consumer() as digger:
        for number in range(50):
            topic.publish(b"poison %d" % number + BODY)
            consumer.get(PATIENCE).dead_letter("poison")
            with digger.get(PATIENCE) as message:
                assert message.body == b"poison %d" % number + BODY
    assert graves.stats().deferred == MANY


def test_it_expires_there(on_disk: pynotify.Connection) -> None:
    topic = on_disk.topic("jobs")
    channel = topic.channel("c")
    for _ in range(MANY):
        topic.publish(BODY, delay=TOMORROW, ttl=1.5)
    with channel.consumer() as consumer, pytest.raises(pynotify.Timeout):
        consumer.get(3)
    stats = channel.stats()
    assert (stats.expired, stats.deferred, topic.stats().on_disk) == (MANY, 0, 0)


@pytest.mark.parametrize("where", ["memory", "later"])
def test_a_transaction_cancels_what_leaves_memory_before_it_commits(
    tmp_path: Path, new_name: Callable[[], str], where: str
) -> None:
    name, options = new_name(), {"topic_memory": MEMORY, "data_dir": str(tmp_path)}
    with pynotify.connect(name, **options) as conn, pynotify.connect(name) as other:
        topic = conn.topic("jobs")
        consumer = topic.channel("c").consumer()
        cancelled = [topic.publish(b"cancelled", delay=TOMORROW) for _ in range(10)]
        if where == "later":
            put_off(topic, MANY)
        with conn.transaction():
            assert all(topic.cancel(one) for one in cancelled)
            put_off(other.topic("jobs"), MANY)
        topic.publish(b"now")
        assert work(consumer, 1) == [b"now"]
        wanted = 2 * MANY if where == "later" else MANY
        assert topic.channel("c").stats().deferred == wanted
        assert not any(topic.cancel(one) for one in cancelled)


def test_it_is_there_after_a_reboot(tmp_path: Path, new_name: Callable[[], str]) -> None:
    name = new_name()
    with pynotify.connect(name, topic_memory=MEMORY, data_dir=str(tmp_path)) as conn:
        topic = conn.topic("jobs", durable=True)
        channel = topic.channel("c")
        put_off(topic, MANY)
        topic.publish(b"due", delay=1)
        put_off(topic, MANY)
    pynotify.unlink(name)
    with pynotify.connect(name, topic_memory=MEMORY, data_dir=str(tmp_path)) as conn:
        topic = conn.topic("jobs")
        channel = topic.channel("c")
        topic.publish(b"now")
        with channel.consumer() as consumer:  # on a slow machine it is due by then
            assert sorted(work(consumer, 2)) == [b"due", b"now"]
        stats = topic.stats()
        assert stats.unfinished == 2 * MANY > stats.on_disk > 0
        assert channel.stats().deferred == 2 * MANY


@pytest.mark.parametrize("overflow", ["disk", "error"])
def test_without_a_data_dir_deferred_messages_leave_room_for_those_for_now(
    new_name: Callable[[], str], overflow: str
) -> None:
    with pynotify.connect(new_name(), topic_memory=MEMORY) as conn:
        topic = conn.topic("jobs", overflow=overflow)
        with topic.channel("c").consumer() as consumer:
            with pytest.raises(pynotify.TopicFull, match="deferred messages may have no more"):
                put_off(topic, MANY)
            for number in range(300):
                topic.publish(b"%d" % number + BODY)
                with consumer.get(0) as message:
                    assert message.body == b"%d" % number + BODY
            with (
                pytest.raises(pynotify.TopicFull, match="deferred messages may have no more"),
                conn.transaction(),
            ):
                for _ in range(MANY):
                    topic.publish(BODY, delay=TOMORROW)


def has(channel: pynotify.Channel) -> int:
    stats = channel.stats()
    return stats.depth + stats.deferred


@pytest.mark.parametrize("durable", [False, True])
def test_a_cancel_of_what_several_files_have(on_disk: pynotify.Connection, durable: bool) -> None:
    """In a transaction of its own, or in the caller's: all channels, or none."""
    topic = on_disk.topic("jobs", durable=durable)
    live, idle = topic.channel("live"), topic.channel("idle")
    with live.consumer() as consumer:
        for _ in range(600):  # the idle one rests: what comes now it has on disk
            topic.publish(BODY)
            consumer.get(PATIENCE).finish()
        ids = [topic.publish(BODY, delay=2 * TOMORROW) for _ in range(3)]
        put_off(topic, MANY)  # from memory the live one's copies go to disk, too
        before = has(live), has(idle)
        assert topic.cancel(ids[0])
        assert (has(live), has(idle)) == (before[0] - 1, before[1] - 1)
        with pytest.raises(RuntimeError), on_disk.transaction():
            assert topic.cancel(ids[1])
            raise RuntimeError
        assert (has(live), has(idle)) == (before[0] - 1, before[1] - 1)
        with on_disk.transaction():
            assert topic.cancel(ids[1])
        assert (has(live), has(idle)) == (before[0] - 2, before[1] - 2)
        assert not topic.cancel(ids[1])
        listener_is_behind(on_disk)
        with pytest.raises(pynotify.QueueFull):
            topic.cancel(ids[2])
        on_disk.poll()
        assert topic.cancel(ids[2])
        assert (has(live), has(idle)) == (before[0] - 3, before[1] - 3)


def resting_beside(conn: pynotify.Connection) -> tuple[pynotify.Topic, str]:
    """A deferred message that a channel which rests has in a file, another one in memory."""
    topic = conn.topic("jobs")
    live, _ = topic.channel("live"), topic.channel("idle")
    with live.consumer() as consumer:
        for _ in range(600):
            topic.publish(BODY)
            consumer.get(PATIENCE).finish()
    return topic, topic.publish(BODY, delay=TOMORROW)


@pytest.fixture
def blocking(tmp_path: Path, new_name: Callable[[], str]) -> Iterator[str]:
    """A segment whose notifiers wait for room, 0.2 s; its name."""
    name = new_name()
    options = {"on_full": "block", "full_timeout": 0.2, "queue_pages": 64}
    with pynotify.connect(name, topic_memory=MEMORY, data_dir=str(tmp_path), **options):
        yield name


def test_a_cancel_waits_for_room_as_long_as_others(blocking: str) -> None:
    with pynotify.connect(blocking) as conn, pynotify.connect(blocking) as behind:
        topic, message_id = resting_beside(conn)
        listener_is_behind(behind)
        with pytest.raises(pynotify.QueueFull):
            topic.cancel(message_id)
        behind.poll()
        assert topic.cancel(message_id)


def test_a_task_that_cancels_waits_for_room_as_long_as_others(blocking: str) -> None:
    async def cancel(message_id: str, behind: pynotify.Connection) -> None:
        async with pynotify.AsyncConnection.connect(blocking) as conn:
            topic = conn.topic("jobs")
            with pytest.raises(pynotify.QueueFull):
                await topic.cancel(message_id)
            behind.poll()
            assert await topic.cancel(message_id)

    with pynotify.connect(blocking) as conn, pynotify.connect(blocking) as behind:
        _, message_id = resting_beside(conn)
        listener_is_behind(behind)
        asyncio.run(cancel(message_id, behind))


@pytest.mark.parametrize("how", ["cancel", "transaction", "prepared", "empty", "delete"])
def test_what_is_over_in_one_channel_comes_to_the_other_after_a_reboot(
    tmp_path: Path, new_name: Callable[[], str], how: str
) -> None:
    """One has put its copy off, and then that is over; the other has not read so far."""
    name = new_name()
    options = {"topic_memory": MEMORY, "data_dir": str(tmp_path)}
    with pynotify.connect(name, **options) as conn:
        topic = conn.topic("jobs", durable=True)
        live, idle = topic.channel("live"), topic.channel("idle")
        with live.consumer() as consumer:
            for _ in range(600):
                topic.publish(BODY)
                consumer.get(PATIENCE).finish()
            wanted = topic.publish("wanted")
            consumer.get(PATIENCE).requeue(delay=TOMORROW)
            put_off(topic, MANY)  # so that it leaves memory
        if how == "cancel":
            assert topic.cancel(wanted)
        elif how == "transaction":
            with conn.transaction():
                assert topic.cancel(wanted)
        elif how == "prepared":
            with conn.transaction() as transaction, pynotify.connect(name) as other:
                assert topic.cancel(wanted)
                transaction.prepare()
                put_off(other.topic("jobs"), MANY)
        elif how == "empty":
            live.empty()
        else:
            live.delete()
    pynotify.unlink(name)
    with pynotify.connect(name, **options) as conn:
        idle = conn.topic("jobs", durable=True).channel("idle")
        with idle.consumer() as consumer:
            bodies = []
            for _ in range(601):
                message = consumer.get(PATIENCE)
                bodies.append(message.body)
                message.finish()
        assert bodies[-1] == b"wanted"


def listener_is_behind(conn: pynotify.Connection) -> None:
    """Until the queue is full."""
    conn.listen("full")
    with pytest.raises(pynotify.QueueFull):
        while True:
            conn.notify("full", "x" * 5000)
    with pytest.raises(pynotify.QueueFull):
        while True:
            conn.notify("full", "")
