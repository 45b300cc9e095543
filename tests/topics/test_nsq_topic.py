"""NSQ's topic_test.go, in_flight_pqueue_test.go and guid_test.go, each test under its name."""

from __future__ import annotations

import random
import struct

import pytest
from consuming import bodies, figures, numbered, work

import pynotify
from receiving import PATIENCE


def test_get_topic(conn: pynotify.Connection) -> None:
    """TestGetTopic: the same object for the same name."""
    first, again, other = conn.topic("test"), conn.topic("test"), conn.topic("test2")
    assert first is again
    assert first != other
    assert (first.name, other.name) == ("test", "test2")


def test_get_channel(topic: pynotify.Topic) -> None:
    """TestGetChannel: the same object for the same name, in its topic."""
    first, again, other = topic.channel("ch1"), topic.channel("ch1"), topic.channel("ch2")
    assert first is again
    assert first != other
    assert topic.channels() == ["ch1", "ch2"]


def test_health(conn: pynotify.Connection) -> None:
    """TestHealth: one and many are refused when full, and others are not touched by that."""
    topic = conn.topic("test", max_depth=2, overflow="error")
    topic.publish("1")
    topic.publish("2")
    with pytest.raises(pynotify.TopicFull):
        topic.publish("3")
    with pytest.raises(pynotify.TopicFull):
        topic.publish_many(["3", "4"])
    conn.topic("another").publish("fine")
    topic.empty()
    topic.publish_many(["5", "6"])
    assert topic.stats().depth == 2


def test_deletes(conn: pynotify.Connection) -> None:
    """TestDeletes: a channel goes, then the topic."""
    topic = conn.topic("test")
    channel = topic.channel("ch1")
    channel.delete()
    assert topic.channels() == []
    with pytest.raises(pynotify.TopicDeleted):
        channel.stats()
    left = topic.channel("ch2")
    topic.delete()
    assert conn.topics() == []
    for use in (lambda: topic.publish("x"), topic.channels, left.stats, left.pause):
        with pytest.raises(pynotify.TopicDeleted):
            use()


def test_delete_last(topic: pynotify.Topic) -> None:
    """TestDeleteLast: without a channel a message stays in the topic."""
    topic.channel("ch1").delete()
    topic.publish("test")
    assert topic.stats().depth == 1
    with topic.channel("ch2").consumer() as consumer:
        assert work(consumer, 1) == [b"test"]


def test_pause(topic: pynotify.Topic) -> None:
    """TestPause: nothing goes on to the channel, and then it does."""
    channel = topic.channel("ch1")
    topic.pause()
    topic.publish("test")
    assert (topic.stats().depth, topic.stats().paused, channel.stats().depth) == (1, True, 0)
    topic.unpause()
    with channel.consumer() as consumer:
        assert work(consumer, 1) == [b"test"]
    assert (topic.stats().depth, topic.stats().paused) == (0, False)


# ---- in_flight_pqueue_test.go: the order of what is due ------------------------------------------


def test_priority_queue(topic: pynotify.Topic, channel: pynotify.Channel) -> None:
    """TestPriorityQueue: it grows and shrinks, and the earliest is the first."""
    delays = list(range(1000, 1500))
    random.Random(1).shuffle(delays)
    ids = {topic.publish(struct.pack("I", delay), delay=delay): delay for delay in delays}
    assert channel.stats().deferred == 500
    due = [message.due_in for message in channel.peek(500)]
    assert len(due) == 500
    for message_id in ids:
        assert topic.cancel(message_id)
    assert figures(channel) == (0, 0, 0)


def test_unsorted_insert(
    conn: pynotify.Connection, topic: pynotify.Topic, channel: pynotify.Channel
) -> None:
    """TestUnsortedInsert: put in unsorted, they become ready in the order of their times."""
    steps = list(range(40))
    random.Random(2).shuffle(steps)
    with conn.transaction():  # all delays count from one commit
        for step in steps:
            topic.publish(b"%d" % step, delay=0.1 + step * 0.002)
    with channel.consumer(max_in_flight=40) as consumer:
        assert work(consumer, 40) == numbered(40)


def test_remove(topic: pynotify.Topic, channel: pynotify.Channel) -> None:
    """TestRemove: any may be taken out, and the rest comes in order."""
    rng = random.Random(3)
    ids = [topic.publish(b"%d" % step, delay=0.2 + step * 0.002) for step in range(40)]
    removed = set(rng.sample(range(40), 10))
    for step in removed:
        assert topic.cancel(ids[step])
        assert not topic.cancel(ids[step])
    with channel.consumer(max_in_flight=40) as consumer:
        left = [b"%d" % step for step in range(40) if step not in removed]
        assert work(consumer, 30) == left
    assert channel.stats().deferred == 0


# ---- guid_test.go --------------------------------------------------------------------------------


def test_guid(conn: pynotify.Connection, topic: pynotify.Topic) -> None:
    """BenchmarkGUID fails when an id comes twice: none does, and they ascend."""
    other = conn.topic("other")
    ids: list[str] = []
    for _ in range(500):
        ids.append(topic.publish("x"))
        ids.append(other.publish("x"))
        ids += topic.publish_many(["a", "b", "c"])
    assert all(len(each) == 16 and set(each) <= set("0123456789abcdef") for each in ids)
    assert ids == sorted(set(ids))
    with topic.channel("c").consumer(max_in_flight=10) as consumer:
        assert consumer.get(PATIENCE).id == ids[0]
    assert len(bodies(topic.channel("c").peek(3))) == 3
