"""NSQ's protocol_v2_test.go, stats_test.go and nsqd_test.go, each test under its name.

What is about the wire, TLS, heartbeats and buffers has no place on one host.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Callable

import pytest
from consuming import SOON, assert_nothing, figures, numbered, take, work

import pynotify
from crowd import run_threads
from forking import in_child
from receiving import PATIENCE, readable
from sessions import Connect, EngineFactory

GOOD = ["a", "test", "test-with_hyphen", ".", "0.9", "x" * 64, "x" * 54 + "#ephemeral"]
BAD = ["", " ", "test with space", "test#", "test#ephemerals", "#ephemeral", "a/b", "é", "x" * 65,
       "x" * 55 + "#ephemeral", "a\0", "\ud800", "a\n"]  # fmt: skip


@pytest.mark.parametrize("name", GOOD)
def test_channel_topic_names(conn: pynotify.Connection, name: str) -> None:
    """TestChannelTopicNames: both follow one rule."""
    assert conn.topic(name).channel(name).name == name


@pytest.mark.parametrize("name", BAD)
def test_channel_topic_names_refused(topic: pynotify.Topic, conn: pynotify.Connection, name: str):
    """TestChannelTopicNames: and nothing else."""
    with pytest.raises(pynotify.InvalidTopicName):
        conn.topic(name)
    with pytest.raises(pynotify.InvalidTopicName):
        topic.channel(name)
    assert conn.topics() == ["orders"]
    assert topic.channels() == []


def test_basic_v2(topic: pynotify.Topic, channel: pynotify.Channel) -> None:
    """TestBasicV2: id, body, and the first attempt."""
    published = topic.publish("test body")
    with channel.consumer() as consumer:
        message = consumer.get(PATIENCE)
        assert (message.id, message.body, message.attempts) == (published, b"test body", 1)
        message.finish()


def test_multiple_consumer_v2(topic: pynotify.Topic, connect: Connect) -> None:
    """TestMultipleConsumerV2: the consumer of each channel gets it, each for the first time."""
    channels = [connect().topic("orders").channel(name) for name in ("ch1", "ch2")]
    published = topic.publish("test body")
    for channel in channels:
        with channel.consumer() as consumer, consumer.get(PATIENCE) as message:
            assert (message.id, message.body, message.attempts) == (published, b"test body", 1)


def test_pausing(topic: pynotify.Topic, channel: pynotify.Channel) -> None:
    """TestPausing: a paused channel keeps its message, and delivers it afterwards."""
    with channel.consumer() as consumer:
        topic.publish("test body")
        assert work(consumer, 1) == [b"test body"]
        channel.pause()
        topic.publish("test body2")
        assert_nothing(consumer)
        assert (channel.stats().depth, channel.stats().paused) == (1, True)
        channel.unpause()
        assert work(consumer, 1) == [b"test body2"]


def test_size_limits(make_engine: EngineFactory, connect: Connect) -> None:
    """TestSizeLimits: 95 of 100 bytes and 100 pass; 105, none, and such ones among many do not."""
    topic = connect(to=make_engine(max_body=100)).topic("sizes")
    topic.publish(b"x" * 95)
    topic.publish(b"x" * 100)
    refused = pynotify.PayloadTooLong, pynotify.ProgrammingError
    for body, error in zip((b"x" * 105, b""), refused, strict=True):
        with pytest.raises(error) as alone:
            topic.publish(body)
        with pytest.raises(error) as among:
            topic.publish_many([b"a", body, b"b"])
        assert type(alone.value) is type(among.value) is error
        with pytest.raises(error):
            topic.publish(body, headers={"a": "b"})
    with pytest.raises(pynotify.PayloadTooLong, match=r'105.*100\..*PYNOTIFY_NAME="max_body='):
        topic.publish(b"x" * 105)
    assert topic.publish_many([]) == []
    assert topic.stats().message_count == 2
    assert topic.stats().message_bytes == 195


def test_dpub(topic: pynotify.Topic, channel: pynotify.Channel) -> None:
    """TestDPUB: one deferred; a time that cannot be is an error."""
    topic.publish("later", delay=SOON)
    stats = channel.stats()
    assert (stats.depth, stats.deferred, stats.message_count) == (0, 1, 1)
    for bad in (-1, -0.001, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="delay"):
            topic.publish("x", delay=bad)
    topic.publish("in a year", delay=365 * 86400)
    with channel.consumer() as consumer:
        began = time.monotonic()
        assert work(consumer, 1) == [b"later"]
        assert time.monotonic() - began < PATIENCE / 2
    assert figures(channel) == (0, 0, 1)


def test_touch(topic: pynotify.Topic, channel: pynotify.Channel) -> None:
    """TestTouch: touched in time, it does not time out."""
    topic.publish_many(["touched", "not touched"])
    with channel.consumer(max_in_flight=3, msg_timeout=0.5) as consumer:
        touched, untouched = take(consumer, 2)
        again = None
        while again is None:
            touched.touch()
            with contextlib.suppress(pynotify.Timeout):
                again = consumer.get(0.02)
        assert (again.id, again.attempts) == (untouched.id, 2)
        with pytest.raises(pynotify.NotOwner):
            untouched.touch()
        touched.finish()
        again.finish()
        assert (consumer.stats().timed_out, consumer.stats().finished) == (1, 2)


def test_max_rdy_count(topic: pynotify.Topic, channel: pynotify.Channel) -> None:
    """TestMaxRdyCount: a level, with bounds, and never more than that in flight."""
    topic.publish_many(numbered(60))
    with channel.consumer(max_in_flight=50) as consumer:
        taken = take(consumer, 50)
        assert_nothing(consumer)
        assert figures(channel) == (10, 50, 0)
        taken[0].finish()
        taken[1].requeue()
        assert len(take(consumer, 2)) == 2
        assert_nothing(consumer)
    channel.consumer(max_in_flight=65535).close()
    for bad in (0, -1, 65536):
        with pytest.raises(ValueError, match="max_in_flight"):
            channel.consumer(max_in_flight=bad)


def test_rdy_changes(topic: pynotify.Topic, channel: pynotify.Channel) -> None:
    """TestMaxRdyCount's commands: another level at any time, also none."""
    topic.publish_many(numbered(60))
    with channel.consumer(max_in_flight=50) as consumer:
        consumer.set_max_in_flight(1)
        (first,) = take(consumer, 1)
        assert_nothing(consumer)
        assert (figures(channel), consumer.max_in_flight) == ((59, 1, 0), 1)
        consumer.set_max_in_flight(50)
        take(consumer, 1)
        assert channel.stats().in_flight > 2, "some are fetched ahead"
        consumer.set_max_in_flight(0)
        assert figures(channel) == (58, 2, 0)
        assert_nothing(consumer)
        first.finish()
        assert_nothing(consumer)
        for bad in (-1, 51):
            with pytest.raises(ValueError, match="max_in_flight"):
                consumer.set_max_in_flight(bad)
        consumer.set_max_in_flight(2)
        readable(consumer.fileno(), PATIENCE)
        take(consumer, 1)
        assert_nothing(consumer)
    with pytest.raises(pynotify.InterfaceError):
        consumer.set_max_in_flight(1)


def test_rdy_changes_while_tasks_wait(segment_name: str) -> None:
    async def run() -> None:
        async with await pynotify.AsyncConnection.connect(segment_name) as conn:
            topic = conn.topic("orders")
            await topic.publish_many(numbered(3))
            async with topic.channel("c").consumer(max_in_flight=3) as consumer:
                await consumer.set_max_in_flight(1)
                await consumer.get(PATIENCE)
                waiting = asyncio.ensure_future(consumer.get(PATIENCE))
                with pytest.raises(pynotify.Timeout):
                    await consumer.get(0)
                await consumer.set_max_in_flight(2)
                assert (await waiting).body == b"1"

    asyncio.run(run())


def test_fatal_error(conn: pynotify.Connection, channel: pynotify.Channel) -> None:
    """TestFatalError closes the connection; here a wrong call does nothing, and one goes on."""
    for wrong in (
        {"max_in_flight": "1"}, {"msg_timeout": "1"}, {"max_attempts": 1.5}, {"sample_rate": True},
        {"dead_letter": 5},
    ):  # fmt: skip
        with pytest.raises(TypeError):
            channel.consumer(**wrong)
    for wrong in (
        {"msg_timeout": 0}, {"msg_timeout": -1}, {"msg_timeout": float("nan")},
        {"max_msg_timeout": 0}, {"msg_timeout": 901}, {"max_attempts": -1}, {"sample_rate": 0},
        {"sample_rate": 100},
    ):  # fmt: skip
        with pytest.raises(ValueError, match=next(iter(wrong))):
            channel.consumer(**wrong)
    with pytest.raises(pynotify.InvalidTopicName):
        channel.consumer(dead_letter="no name")
    assert channel.stats().consumers == []
    assert conn.topics() == ["orders"]


def test_sampling(topic: pynotify.Topic, channel: pynotify.Channel) -> None:
    """TestSampling: of 10,000 messages 42 % within five points, and nothing is left."""
    topic.publish_many([b"x"] * 10_000)
    with channel.consumer(max_in_flight=10_000, sample_rate=42) as consumer:
        taken = 0
        try:
            while True:
                consumer.get(0)
                taken += 1
        except pynotify.Timeout:
            pass
        assert 3700 <= taken <= 4700
        stats = channel.stats()
        assert (stats.depth, stats.in_flight, stats.dropped) == (0, taken, 10_000 - taken)


def test_client_msg_timeout(topic: pynotify.Topic, channel: pynotify.Channel) -> None:
    """TestClientMsgTimeout: timed out, and not requeued, and too late to be finished."""
    published = topic.publish("test body")
    with channel.consumer(msg_timeout=SOON) as slow:
        late = slow.get(PATIENCE)
        slow.drain()
        with channel.consumer() as other:
            again = other.get(PATIENCE)
            assert (again.id, again.attempts) == (published, 2)
            stats = channel.stats()
            assert (stats.timed_out, stats.requeued) == (1, 0)
            with pytest.raises(pynotify.NotOwner):
                late.finish()
            again.finish()
            with pytest.raises(pynotify.MessageNotInFlight):
                late.finish()
            assert channel.stats().finished == 1


def test_bad_fin(conn: pynotify.Connection, channel: pynotify.Channel) -> None:
    """TestBadFin: a delivery that never was is refused, whatever it says."""
    from pynotify._ffi import ffi, lib

    rng = random.Random(4)
    for _ in range(1000):
        delivery, tag, number = rng.getrandbits(64), rng.getrandbits(32), rng.getrandbits(64)
        result = lib.pn_message_answer(
            conn.link.handle.native,
            ffi.NULL,
            delivery,
            tag,
            number,
            lib.PN_ANSWER_FINISH,
            0,
            ffi.NULL,
            0,
        )
        assert result in (-lib.PN_ENOTINFLIGHT, -lib.PN_ENOTOWNER, -lib.PN_ETOPICDELETED), result
    assert figures(channel) == (0, 0, 0)


def test_req_timeout_range(topic: pynotify.Topic, channel: pynotify.Channel) -> None:
    """TestReqTimeoutRange: none is at once, more than the longest is the longest."""
    topic.publish("x")
    with channel.consumer(max_attempts=0) as consumer:
        for delay in (None, 0, -1, -1e300):
            consumer.get(PATIENCE).requeue(delay)
        for delay in (7200, float("inf")):
            consumer.get(PATIENCE).requeue(delay)
            (peeked,) = channel.peek()
            assert peeked.state == "deferred"
            assert 3590 < peeked.due_in <= 3600
            channel.empty()
            topic.publish("x")
        with pytest.raises(ValueError, match="NaN"):
            consumer.get(PATIENCE).requeue(float("nan"))
        assert channel.stats().requeued == 6


# ---- stats_test.go -------------------------------------------------------------------------------


def test_stats(topic: pynotify.Topic, conn: pynotify.Connection) -> None:
    """TestStats: topics, channels and consumers, by name; what is not there is not made."""
    topic.publish("test body")
    with topic.channel("ch").consumer(max_in_flight=3):
        stats = topic.stats()
        assert (stats.name, [channel.name for channel in stats.channels]) == ("orders", ["ch"])
        (consumer,) = stats.channels[0].consumers
        assert (consumer.pid, consumer.max_in_flight) == (conn.pid, 3)
    assert topic.stats().channels[0].consumers == []
    assert conn.topics() == ["orders"]


def test_stats_channel_locking(topic: pynotify.Topic, channel: pynotify.Channel) -> None:
    """TestStatsChannelLocking: statistics while others publish and take; exact at the end."""
    with channel.consumer(max_in_flight=25) as consumer:

        def publish() -> None:
            for number in range(25):
                topic.publish(b"%d" % number)

        def look() -> None:
            for _ in range(50):
                stats = topic.stats()
                (only,) = stats.channels
                assert only.depth + only.in_flight == only.message_count
                assert stats.message_count >= only.message_count

        run_threads(publish, lambda: take(consumer, 25), look)
        stats = channel.stats()
        assert (stats.in_flight, stats.consumers[0].in_flight) == (25, 25)


# ---- nsqd_test.go --------------------------------------------------------------------------------


def test_startup(new_name: Callable[[], str]) -> None:
    """TestStartup: 300 messages, half of them read; the next processes find the rest."""
    name = new_name()

    def publish() -> None:
        with pynotify.connect(name) as conn:
            conn.topic("test").publish_many(numbered(300))

    def read(first: int) -> None:
        consumer = pynotify.connect(name).topic("test").channel("ch1").consumer()
        assert work(consumer, 150) == numbered(300)[first : first + 150]

    in_child(publish)
    in_child(lambda: read(0))
    with pynotify.connect(name) as conn:
        stats = conn.topic("test").stats()
        assert (stats.depth, stats.channels[0].depth) == (0, 150)
    in_child(lambda: read(150))


def test_ephemeral_topics_and_channels(conn: pynotify.Connection) -> None:
    """TestEphemeralTopicsAndChannels: with its last consumer it goes, and its topic with it."""
    topic = conn.topic("an#ephemeral")
    channel = topic.channel("ch#ephemeral")
    topic.publish("x")
    with channel.consumer(), channel.consumer():
        pass
    with pytest.raises(pynotify.TopicDeleted):
        channel.stats()
    assert conn.topics() == []


def test_pause_metadata(new_name: Callable[[], str]) -> None:
    """TestPauseMetadata: paused it stays, whichever process ends; there is nothing to persist."""
    name = new_name()

    def pause() -> None:
        with pynotify.connect(name) as conn:
            topic = conn.topic("test")
            topic.channel("ch").pause()
            topic.pause()

    in_child(pause)
    with pynotify.connect(name) as conn:
        topic = conn.topic("test")
        assert topic.stats().paused
        assert topic.channel("ch").stats().paused
        topic.unpause()
        topic.channel("ch").unpause()
        assert not topic.stats().paused
        assert not topic.channel("ch").stats().paused


def test_set_health(conn: pynotify.Connection) -> None:
    """TestSetHealth: the error is the topic's own, and None when there is none."""
    full = conn.topic("full", max_depth=1, overflow="error")
    full.publish("1")
    with pytest.raises(pynotify.TopicFull):
        full.publish("2")
    assert conn.topic("other").stats().error is None
    full.empty()
    full.publish("3")
    assert full.stats().error is None
