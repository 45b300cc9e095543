"""The twelve defects of nsqd that are not copied, each with what happens here instead.

Those of the disk (7, 10 and 11 in part) are tested with the disk queue, too.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from itertools import chain

import pytest
from consuming import SOON, assert_nothing, bodies, figures, numbered, take, work

import pynotify
from crowd import run_threads
from forking import in_child
from receiving import PATIENCE
from sessions import Connect, EngineFactory


def test_defect_1_sampling_is_exact_and_loses_nothing(
    topic: pynotify.Topic, connect: Connect
) -> None:
    """nsqd: a rate of 1 lets two percent through, and a client that is passed over is lost to all.
    Here a message that one consumer passes over goes to another."""
    topic.publish_many(numbered(20_000))
    channel = topic.channel("ch")
    sampling = channel.consumer(max_in_flight=20_000, sample_rate=1)
    everything = connect().topic("orders").channel("ch").consumer(max_in_flight=20_000)
    with sampling, everything:
        got: list[bytes] = []
        sampled = 0
        while len(got) < 20_000:
            with contextlib.suppress(pynotify.Timeout):
                got.append(sampling.get(0).body)
                sampled += 1
            with contextlib.suppress(pynotify.Timeout):
                for _ in range(100):
                    got.append(everything.get(0).body)
        assert sorted(got, key=int) == numbered(20_000)
        assert sampled <= 300
        assert channel.stats().dropped == 0


def test_defect_2_full_loses_nothing(make_engine: EngineFactory, connect: Connect) -> None:
    """nsqd: a requeue or a time-out that finds no room loses the message.  Here it needs none."""
    conn = connect(to=make_engine(topic_memory=128 * 1024))
    topic = conn.topic("full", overflow="error")
    channel = topic.channel("ch")
    published = 0
    with contextlib.suppress(pynotify.TopicFull):
        while True:
            topic.publish(b"%d" % published + b" " * 100)
            published += 1
    assert published > 100
    with channel.consumer(max_in_flight=published, msg_timeout=SOON, max_attempts=0) as consumer:
        messages = take(consumer, published)
        for number, message in enumerate(messages):
            if number % 3 == 0:
                message.requeue()
            elif number % 3 == 1:
                message.requeue(SOON)
        again = take(consumer, published)
        assert {each.id for each in again} == {each.id for each in messages}


@pytest.mark.parametrize("turn", range(3))
def test_defect_3_answers_and_empty(
    topic: pynotify.Topic, channel: pynotify.Channel, engine: pynotify.Engine, turn: int
) -> None:
    """nsqd: FIN, REQ or TOUCH beside Empty can index an empty heap, and panic."""
    over = threading.Event()

    def answer() -> None:
        with channel.consumer(max_in_flight=50, max_attempts=0) as consumer:
            while not over.is_set():
                try:
                    message = consumer.get(0.01)
                except pynotify.Timeout:
                    continue
                with contextlib.suppress(pynotify.MessageNotInFlight, pynotify.NotOwner):
                    message.touch()
                    message.requeue(SOON if int(message.body) % 2 else 0)

    def publish_and_empty() -> None:
        for _ in range(100):
            topic.publish_many(numbered(50))
            channel.empty()
        over.set()

    run_threads(answer, answer, publish_and_empty)
    channel.empty()
    assert figures(channel) == (0, 0, 0)
    assert topic.stats().unfinished == 0
    assert engine.check().problems == []


def test_defect_4_requeue_while_closing(topic: pynotify.Topic, channel: pynotify.Channel) -> None:
    """nsqd: a requeue with a delay during the shutdown may vanish."""
    for _ in range(20):
        topic.publish_many(numbered(20))
        consumer = channel.consumer(max_in_flight=20)
        messages = take(consumer, 20)

        def requeue(messages: list[pynotify.Message] = messages) -> None:
            for message in messages:
                with contextlib.suppress(pynotify.MessageNotInFlight):
                    message.requeue(3600)

        run_threads(requeue, consumer.close)
        ready, in_flight, deferred = figures(channel)
        assert (ready + deferred, in_flight) == (20, 0)
        channel.empty()


def test_defect_5_nothing_is_in_flight_twice(
    topic: pynotify.Topic, channel: pynotify.Channel
) -> None:
    """nsqd ignores the error that a message is in flight already.  Here there is no such state."""
    topic.publish_many(numbered(2000))
    got: list[list[bytes]] = [[], [], []]

    def consume(mine: list[bytes]) -> Callable[[], None]:
        def body() -> None:
            with contextlib.suppress(pynotify.Timeout), channel.consumer() as consumer:
                while True:
                    with consumer.get(0.2) as message:
                        mine.append(message.body)

        return body

    run_threads(*map(consume, got))
    assert sorted(chain(*got), key=int) == numbered(2000)


def test_defect_6_attempts_do_not_wrap(topic: pynotify.Topic, channel: pynotify.Channel) -> None:
    """nsqd: after 65,535 deliveries it is the first again.  Here the count stays there."""
    topic.publish("x")
    with channel.consumer(max_attempts=0) as consumer:
        before = 0
        for number in range(1, 65_600):
            message = consumer.get(0)
            assert message.attempts >= before
            before = message.attempts
            assert before == number or before >= 65_535
            message.requeue()


def test_defect_7_order_is_kept(topic: pynotify.Topic, channel: pynotify.Channel) -> None:
    """nsqd: what overflowed to disk and what is in memory come in any order."""
    for number in range(3000):
        topic.publish(b"%d" % number)
    with channel.consumer(max_in_flight=100) as consumer:
        assert work(consumer, 3000) == numbered(3000)


def test_defect_8_delays_are_kept(new_name: Callable[[], str]) -> None:
    """nsqd: a delay counts from when a channel gets the message, and is lost on the way."""
    name = new_name()

    def publish() -> None:
        with pynotify.connect(name) as conn:
            topic = conn.topic("test")
            topic.publish("first", delay=SOON)
            topic.publish("second", delay=2 * SOON)
            topic.publish("not now", delay=3600)

    in_child(publish)
    with pynotify.connect(name) as conn:
        topic = conn.topic("test")
        assert topic.stats().channels == []
        with topic.channel("late").consumer() as consumer:
            assert work(consumer, 2) == [b"first", b"second"]
            assert_nothing(consumer)
            (left,) = topic.channel("late").peek()
            assert (left.body, left.state) == (b"not now", "deferred")
            assert 3500 < left.due_in <= 3600


def test_defect_9_the_end_of_a_process_releases(new_name: Callable[[], str]) -> None:
    """nsqd: what a consumer had stays in flight until its deadline.  Here it is there at once."""
    name = new_name()
    with pynotify.connect(name) as conn:
        topic = conn.topic("test")
        channel = topic.channel("ch")
        topic.publish_many(numbered(3))

        def die() -> None:
            consumer = pynotify.connect(name).topic("test").channel("ch").consumer(max_in_flight=3)
            take(consumer, 3)

        in_child(die)
        with channel.consumer(max_in_flight=3) as consumer:
            messages = take(consumer, 3)
            assert bodies(messages) == numbered(3)
            assert {message.attempts for message in messages} == {2}
        assert channel.stats().timed_out == 0


def test_defect_10_health_is_the_topics_own(conn: pynotify.Connection) -> None:
    """nsqd: one flag for all topics, which a good write anywhere clears."""
    full = conn.topic("full", max_depth=1, overflow="error")
    full.publish("1")
    for _ in range(3):
        conn.topic("fine").publish("x")
        with pytest.raises(pynotify.TopicFull, match="full"):
            full.publish("2")


def test_defect_11_there_is_no_metadata_to_lose(new_name: Callable[[], str]) -> None:
    """nsqd: its file of topics may be lost with its directory entry.  Here the state is one."""
    name = new_name()

    def make() -> None:
        with pynotify.connect(name) as conn:
            conn.topic("a", max_depth=7, overflow="drop-new").channel("x", max_consumers=3).pause()

    in_child(make)
    with pynotify.connect(name) as conn:
        topic = conn.topic("a", max_depth=7, overflow="drop-new")
        (channel,) = topic.stats().channels
        assert (channel.name, channel.max_consumers, channel.paused) == ("x", 3, True)
        with pytest.raises(pynotify.ProgrammingError):
            conn.topic("a", max_depth=8)


def test_defect_12_errors_say_it_once(topic: pynotify.Topic) -> None:
    """nsqd: E_BAD_TOPIC E_BAD_TOPIC MPUB ..."""
    with pytest.raises(pynotify.InvalidTopicName) as caught:
        topic.channel("no good")
    assert str(caught.value).count("no good") == 1
    with pytest.raises(pynotify.ProgrammingError) as empty:
        topic.publish_many(["a", ""])
    words = str(empty.value).partition("\n")[0].split()
    assert len(words) == len(set(words)) or "empty" in words
    assert PATIENCE > 0
