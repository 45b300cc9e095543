"""NSQ's channel_test.go, each test under its name."""

from __future__ import annotations

import pytest
from consuming import SOON, assert_nothing, bodies, figures, take

import pynotify
from receiving import PATIENCE


def test_put_message(topic: pynotify.Topic, channel: pynotify.Channel) -> None:
    """TestPutMessage: what is published comes out of the one channel."""
    published = topic.publish("test")
    with channel.consumer() as consumer:
        message = consumer.get(PATIENCE)
        assert (message.id, message.body) == (published, b"test")
        message.finish()


def test_put_message_2chan(topic: pynotify.Topic) -> None:
    """TestPutMessage2Chan: both channels get it."""
    channels = [topic.channel("ch1"), topic.channel("ch2")]
    published = topic.publish("test")
    for channel in channels:
        with channel.consumer() as consumer, consumer.get(PATIENCE) as message:
            assert (message.id, message.body) == (published, b"test")


def test_in_flight_worker(topic: pynotify.Topic, channel: pynotify.Channel) -> None:
    """TestInFlightWorker: 250 in flight, and after their time-out none."""
    topic.publish_many([b"test"] * 250)
    with channel.consumer(max_in_flight=250, msg_timeout=SOON) as first:
        taken = take(first, 250)
        assert len({message.id for message in taken}) == 250
        first.drain()
        with channel.consumer(max_in_flight=250) as second:
            again = take(second, 250)
            assert {message.attempts for message in again} == {2}
            assert figures(channel) == (0, 250, 0)
            assert channel.stats().timed_out == first.stats().timed_out == 250
            assert first.stats().in_flight == 0
            for message in again:
                message.finish()
    assert figures(channel) == (0, 0, 0)


def test_channel_empty(topic: pynotify.Topic, channel: pynotify.Channel) -> None:
    """TestChannelEmpty: ready, in flight and deferred ones are gone."""
    topic.publish_many([b"test"] * 26)
    with channel.consumer(max_in_flight=25) as consumer:
        taken = take(consumer, 25)
        taken[0].requeue(3600)
        assert figures(channel) == (1, 24, 1)
        channel.empty()
        assert figures(channel) == (0, 0, 0)
        with pytest.raises(pynotify.MessageNotInFlight):
            taken[1].finish()
        assert_nothing(consumer)
        assert topic.stats().unfinished == 0


def test_channel_empty_consumer(topic: pynotify.Topic, channel: pynotify.Channel) -> None:
    """TestChannelEmptyConsumer: what it had in flight counts no more, and it goes on."""
    topic.publish_many([b"test"] * 25)
    with channel.consumer(max_in_flight=25) as consumer:
        take(consumer, 25)
        assert consumer.stats().in_flight == 25
        channel.empty()
        assert consumer.stats().in_flight == 0
        topic.publish_many([b"more"] * 25)
        assert bodies(take(consumer, 25)) == [b"more"] * 25


def test_max_channel_consumers(topic: pynotify.Topic) -> None:
    """TestMaxChannelConsumers: the second of one is refused."""
    channel = topic.channel("one", max_consumers=1)
    with channel.consumer():
        with pytest.raises(pynotify.TooManyConsumers, match="1"):
            channel.consumer()
        assert len(channel.stats().consumers) == 1
    channel.consumer().close()


def test_channel_health(conn: pynotify.Connection) -> None:
    """TestChannelHealth: full is said to the publisher, and is over when there is room."""
    topic = conn.topic("health", max_depth=2, overflow="error")
    with topic.channel("ch").consumer() as consumer:
        topic.publish("1")
        topic.publish("2")
        with pytest.raises(pynotify.TopicFull):
            topic.publish("3")
        consumer.get(PATIENCE).finish()
        topic.publish("4")
        assert bodies(topic.channel("ch").peek()) == [b"2", b"4"]
