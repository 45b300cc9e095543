"""What statistics say of topics, channels and consumers."""

from __future__ import annotations

import dataclasses

from consuming import SOON, numbered, take, work

import pynotify
from receiving import PATIENCE
from sessions import Connect


def test_fields(
    topic: pynotify.Topic, channel: pynotify.Channel, conn: pynotify.Connection
) -> None:
    topic.publish_many([b"12", b"345"])
    with channel.consumer(max_in_flight=5) as consumer:
        stats = topic.stats()
        assert (stats.depth, stats.message_count, stats.message_bytes) == (0, 2, 5)
        assert (stats.paused, stats.corrupt, stats.error) == (False, 0, None)
        (only,) = stats.channels
        assert only == channel.stats()
        assert stats.database == "default"
        fields = dataclasses.asdict(only)
        assert 0 <= fields.pop("oldest_ready") < PATIENCE
        assert fields == {
            "name": "billing", "depth": 2, "in_flight": 0, "deferred": 0, "message_count": 2,
            "requeued": 0, "timed_out": 0, "finished": 0, "dead_lettered": 0, "dropped": 0,
            "expired": 0, "paused": False, "ephemeral": False, "max_consumers": 0, "e2e": {},
            "max_attempts": None, "dead_letter": None, "msg_timeout": None,
            "consumers": [
                {"pid": conn.pid, "backend_id": conn.backend_id, "in_flight": 0,
                 "max_in_flight": 5, "level": 5, "sample_rate": None, "delivered": 0,
                 "finished": 0, "requeued": 0, "timed_out": 0}
            ],
        }  # fmt: skip
        assert only.consumers == [consumer.stats()]


def test_bound_of_consumers(topic: pynotify.Topic) -> None:
    """As the channel was made, whatever is asked for since."""
    assert topic.channel("bound", max_consumers=3).stats().max_consumers == 3
    assert topic.channel("bound").stats().max_consumers == 3


def test_every_count(topic: pynotify.Topic, channel: pynotify.Channel) -> None:
    topic.publish_many(numbered(6))
    topic.publish("later", delay=3600)
    with channel.consumer(max_in_flight=6, msg_timeout=10, max_attempts=2) as consumer:
        messages = take(consumer, 6)
        messages[0].finish()
        messages[1].requeue()
        messages[2].requeue(3600)
        messages[3].dead_letter()
        again = consumer.get(PATIENCE)
        assert again.body == b"1"
        again.requeue()
        mine = consumer.stats()
        assert (mine.delivered, mine.finished, mine.requeued, mine.in_flight) == (7, 1, 3, 2)
        stats = channel.stats()
        assert (stats.depth, stats.in_flight, stats.deferred) == (0, 2, 2)
        assert (stats.finished, stats.requeued, stats.dropped, stats.timed_out) == (1, 3, 2, 0)
        assert stats.message_count == 7
        assert topic.stats().unfinished == 4


def test_a_time_out_counts_for_both(topic: pynotify.Topic, connect: Connect) -> None:
    topic.publish("x")
    channel = topic.channel("ch")
    other = connect().topic("orders").channel("ch").consumer()
    with channel.consumer(msg_timeout=SOON) as consumer, other:
        consumer.get(PATIENCE)
        other.get(PATIENCE)
        assert (consumer.stats().timed_out, other.stats().timed_out) == (1, 0)
        assert channel.stats().timed_out == 1


def test_statistics_are_true_though_no_consumer_waits(
    topic: pynotify.Topic, channel: pynotify.Channel, conn: pynotify.Connection
) -> None:
    """What is due has moved on when one looks."""
    topic.publish("in flight")
    topic.publish("deferred", delay=SOON)
    topic.publish("short-lived", ttl=SOON)
    clock = conn.topic("clock")
    with channel.consumer(msg_timeout=SOON) as consumer:
        consumer.get(PATIENCE)
        clock.publish("tick", delay=4 * SOON)
        with clock.channel("c").consumer() as ticking:
            ticking.get(PATIENCE)
        stats = channel.stats()
        assert (stats.depth, stats.in_flight, stats.deferred) == (2, 0, 0)
        assert (stats.timed_out, stats.expired) == (1, 1)


def test_e2e(topic: pynotify.Topic, channel: pynotify.Channel) -> None:
    """From publishing to finishing; several channels have each their own."""
    topic.channel("other")
    topic.publish("clock", delay=0.05)
    topic.publish_many(numbered(99))
    with channel.consumer() as consumer:
        assert channel.stats().e2e == {}
        work(consumer, 100)
    e2e = channel.stats().e2e
    assert list(e2e) == [0.5, 0.9, 0.99, 0.999]
    assert 0 < e2e[0.5] <= e2e[0.9] <= e2e[0.99] <= e2e[0.999] < PATIENCE
    assert e2e[0.999] >= 0.045
    assert topic.channel("other").stats().e2e == {}


def test_many(conn: pynotify.Connection) -> None:
    """More than there is room for at first."""
    for number in range(40):
        conn.topic(f"t{number:02}").publish("x")
        conn.topic("t00").channel(f"c{number:02}")
    assert conn.topics() == [f"t{number:02}" for number in range(40)]
    assert conn.topic("t00").channels() == [f"c{number:02}" for number in range(40)]
    consumers = [conn.topic("t00").channel("c00").consumer() for _ in range(40)]
    assert len(conn.topic("t00").stats().channels[0].consumers) == 40
    for consumer in consumers:
        consumer.close()
