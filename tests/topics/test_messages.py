"""One message: `with` blocks, attempts, dead letters, time to live, bounded topics."""

from __future__ import annotations

import contextlib

import pytest
from consuming import SOON, assert_nothing, bodies, figures, numbered, take, work

import pynotify
from receiving import PATIENCE
from sessions import Connect, EngineFactory


def test_a_block_finishes(topic: pynotify.Topic, channel: pynotify.Channel) -> None:
    topic.publish("x")
    with channel.consumer() as consumer:
        with consumer.get(PATIENCE) as message:
            assert figures(channel) == (0, 1, 0)
        assert (figures(channel), channel.stats().finished) == ((0, 0, 0), 1)
        with pytest.raises(pynotify.MessageNotInFlight):
            message.finish()


def test_a_block_that_raises_requeues(topic: pynotify.Topic, channel: pynotify.Channel) -> None:
    topic.publish("x")
    with channel.consumer() as consumer:
        with pytest.raises(LookupError, match="mine"), consumer.get(PATIENCE):
            raise LookupError("mine")
        assert (figures(channel), channel.stats().requeued) == ((1, 0, 0), 1)
        assert consumer.get(PATIENCE).attempts == 2


@pytest.mark.parametrize("answer", ["finish", "requeue", "dead_letter"])
def test_a_block_leaves_an_answer_alone(
    topic: pynotify.Topic, channel: pynotify.Channel, answer: str
) -> None:
    topic.publish("x")
    with channel.consumer() as consumer:
        with consumer.get(PATIENCE) as message:
            getattr(message, answer)()
        expected = (1, 0, 0) if answer == "requeue" else (0, 0, 0)
        assert figures(channel) == expected
    topic.publish("y")
    channel.empty()
    topic.publish("z")
    with channel.consumer() as consumer:
        with contextlib.suppress(LookupError), consumer.get(PATIENCE) as message:
            getattr(message, answer)()
            raise LookupError
        assert figures(channel) == expected


def test_a_block_that_took_too_long(
    topic: pynotify.Topic, channel: pynotify.Channel, connect: Connect
) -> None:
    other = connect().topic("orders").channel("billing")
    topic.publish("x")
    with channel.consumer(msg_timeout=SOON) as consumer, other.consumer() as second:
        with pytest.raises(pynotify.NotOwner), consumer.get(PATIENCE):
            again = second.get(PATIENCE)
        again.requeue()
        with pytest.raises(LookupError), consumer.get(PATIENCE):
            again = second.get(PATIENCE)
            raise LookupError
        again.finish()


def test_iterating_takes_one_after_the_other(
    topic: pynotify.Topic, channel: pynotify.Channel
) -> None:
    topic.publish_many(numbered(5))
    got = []
    with channel.consumer() as consumer:
        for message in consumer:
            with message:
                got.append(message.body)
            if len(got) == 5:
                break
        assert got == numbered(5)
    assert list(consumer) == []


# ---- attempts and dead letters -------------------------------------------------------------------


def test_five_deliveries(topic: pynotify.Topic, channel: pynotify.Channel) -> None:
    topic.publish("x")
    with channel.consumer() as consumer:
        for attempt in range(1, 6):
            message = consumer.get(PATIENCE)
            assert message.attempts == attempt
            message.requeue()
        assert_nothing(consumer)
    stats = channel.stats()
    assert (stats.dropped, stats.dead_lettered, stats.finished) == (1, 0, 0)
    assert topic.stats().unfinished == 0


@pytest.mark.parametrize("how", ["requeue", "requeue later", "time-out", "dead_letter"])
def test_dead_letters(
    conn: pynotify.Connection, topic: pynotify.Topic, channel: pynotify.Channel, how: str
) -> None:
    published = topic.publish("poison", headers={"trace": "7"})
    patience = SOON if how == "time-out" else PATIENCE  # else a busy machine times it out
    with channel.consumer(max_attempts=1, dead_letter="dead", msg_timeout=patience) as consumer:
        message = consumer.get(PATIENCE)
        dead = conn.topic("dead").channel("c")
        with dead.consumer() as undertaker:
            if how == "dead_letter":
                message.dead_letter('no "use"\n é')
            elif how != "time-out":
                message.requeue(3600 if how == "requeue later" else None)
            else:
                with pytest.raises(pynotify.Timeout):
                    consumer.get(4 * SOON)
            letter = undertaker.get(PATIENCE)
    assert (letter.body, letter.attempts) == (b"poison", 1)
    reason = letter.headers.pop("dead-letter-reason")
    assert reason == ('no "use"\n é' if how == "dead_letter" else "max_attempts")
    assert letter.headers == {
        "trace": "7",
        "dead-letter-topic": "orders",
        "dead-letter-channel": "billing",
        "dead-letter-id": published,
        "dead-letter-attempts": "1",
    }
    stats = channel.stats()
    assert (stats.dead_lettered, stats.dropped, figures(channel)) == (1, 0, (0, 0, 0))
    assert topic.stats().unfinished == 0


def test_giving_up_without_a_topic_for_it(topic: pynotify.Topic, channel: pynotify.Channel) -> None:
    topic.publish_many(["a", "b"])
    with channel.consumer(max_in_flight=2) as consumer:
        first, second = take(consumer, 2)
        first.dead_letter()
        second.dead_letter("of no use")
        with pytest.raises(TypeError, match="reason"):
            second.dead_letter(5)
    stats = channel.stats()
    assert (stats.dropped, stats.dead_lettered, figures(channel)) == (2, 0, (0, 0, 0))


def test_the_consumer_of_the_last_delivery_decides(
    conn: pynotify.Connection, topic: pynotify.Topic, channel: pynotify.Channel
) -> None:
    """Whatever the others would have said, and also when it closes, or dies of the message."""
    topic.publish_many(["x", "y"])
    with channel.consumer(max_attempts=2, dead_letter="one") as consumer:
        consumer.get(PATIENCE).requeue()
        consumer.get(PATIENCE).requeue()
    with channel.consumer(max_attempts=3, dead_letter="two") as consumer:
        consumer.get(PATIENCE).requeue()
        assert consumer.get(PATIENCE).attempts == 2
    with channel.consumer(max_attempts=3, dead_letter="three", max_in_flight=2) as consumer:
        assert [message.attempts for message in take(consumer, 2)] == [3, 3]
    assert conn.topics() == ["orders", "three"]
    assert len(conn.topic("three").channel("c").peek()) == 2
    stats = channel.stats()
    assert (stats.dead_lettered, stats.requeued, stats.timed_out) == (2, 3, 0)


def test_a_dead_letter_of_a_dead_letter(conn: pynotify.Connection) -> None:
    """Its headers say where it comes from last."""
    first = conn.topic("first").publish("x")
    with conn.topic("first").channel("c").consumer(dead_letter="second") as consumer:
        consumer.get(PATIENCE).dead_letter("one")
    with conn.topic("second").channel("d").consumer(dead_letter="third") as consumer:
        second = consumer.get(PATIENCE)
        assert second.headers["dead-letter-id"] == first
        second.dead_letter("two")
    with conn.topic("third").channel("e").consumer() as consumer:
        headers = consumer.get(PATIENCE).headers
    assert headers == {
        "dead-letter-topic": "second",
        "dead-letter-channel": "d",
        "dead-letter-id": second.id,
        "dead-letter-attempts": "1",
        "dead-letter-reason": "two",
    }


# ---- time to live --------------------------------------------------------------------------------


def test_expired_messages_are_gone_and_counted(
    conn: pynotify.Connection, topic: pynotify.Topic, channel: pynotify.Channel
) -> None:
    topic.publish("short", ttl=SOON)
    topic.publish("long", ttl=3600)
    topic.publish("never too late")
    clock = conn.topic("clock")
    clock.publish("tick", delay=4 * SOON)
    with clock.channel("c").consumer() as ticking:
        ticking.get(PATIENCE)
    with channel.consumer(max_in_flight=3) as consumer:
        assert work(consumer, 2) == [b"long", b"never too late"]
        assert_nothing(consumer)
    assert (channel.stats().expired, topic.stats().unfinished) == (1, 0)


def test_in_flight_nothing_expires(topic: pynotify.Topic, channel: pynotify.Channel) -> None:
    topic.publish("x", ttl=SOON)
    topic.publish("clock", delay=4 * SOON)
    with channel.consumer(max_in_flight=2) as consumer:
        message = consumer.get(PATIENCE)
        consumer.get(PATIENCE)
        assert message.expires_in < 0
        message.finish()
        assert (channel.stats().finished, channel.stats().expired) == (1, 0)


def test_requeued_too_late_it_expires(topic: pynotify.Topic, channel: pynotify.Channel) -> None:
    topic.publish("x", ttl=SOON)
    topic.publish("clock", delay=4 * SOON)
    with channel.consumer(max_in_flight=2) as consumer:
        message = consumer.get(PATIENCE)
        consumer.get(PATIENCE)
        message.requeue()
        assert_nothing(consumer)
        assert channel.stats().expired == 1


def test_expired_messages_make_room(make_engine: EngineFactory, connect: Connect) -> None:
    conn = connect(to=make_engine())
    topic = conn.topic("t", max_depth=10, overflow="error")
    topic.channel("c")
    clock = conn.topic("clock")
    topic.publish_many(numbered(10), ttl=SOON)
    with pytest.raises(pynotify.TopicFull):
        topic.publish("x")
    clock.publish("tick", delay=4 * SOON)
    with clock.channel("c").consumer() as ticking:
        ticking.get(PATIENCE)
    topic.publish_many(numbered(10))


# ---- bounded topics ------------------------------------------------------------------------------


def test_depth_counts_unfinished_messages_once(conn: pynotify.Connection) -> None:
    topic = conn.topic("t", max_depth=3, overflow="error")
    one, two = topic.channel("one"), topic.channel("two")
    topic.publish_many(["a", "b"])
    topic.publish("c", delay=3600)
    for attempt in (lambda: topic.publish("x"), lambda: topic.publish_many(["x"])):
        with pytest.raises(pynotify.TopicFull, match="t") as full:
            attempt()
        assert full.value.sqlstate == "54000"
    with one.consumer() as consumer:
        work(consumer, 1)
    assert topic.stats().unfinished == 3, "the other channel has it"
    with two.consumer() as consumer:
        work(consumer, 1)
    topic.publish("d")


def test_a_full_topic_says_how_many_are_deferred(conn: pynotify.Connection) -> None:
    """Its consumers cannot finish these."""
    topic = conn.topic("t", max_depth=4, overflow="error")
    topic.channel("other")
    topic.channel("c")
    topic.publish_many(["a", "b"], delay=3600)
    topic.publish_many(["c", "d"])
    full = "max_depth is 4 messages"
    with pytest.raises(pynotify.TopicFull, match=f'{full}, of which channel ".*" has 2 deferred'):
        topic.publish("x")
    with topic.channel("c").consumer() as consumer:
        message = consumer.get(PATIENCE)
        message.requeue(delay=3600)
    later = 'of which channel "c" has 3 deferred\n.*deferred ones are due'
    with pytest.raises(pynotify.TopicFull, match=f"{full}, {later}"):
        topic.publish_many(["x"])
    for name in ("c", "other"):
        topic.channel(name).empty()
    topic.publish_many(numbered(4))
    with pytest.raises(pynotify.TopicFull, match=f"{full}\n"):
        topic.publish("x")


def test_a_topic_is_not_its_own_dead_letter_topic(
    topic: pynotify.Topic, channel: pynotify.Channel, conn: pynotify.Connection
) -> None:
    """A message that no handler can take would go round without end."""
    with pytest.raises(pynotify.ProgrammingError, match="its own dead-letter topic") as caught:
        channel.consumer(dead_letter=topic.name)
    assert "name another topic" in (caught.value.hint or "")
    assert channel.stats().consumers == []
    other = conn.topic(f"{topic.name}2").channel("c")
    with other.consumer(dead_letter=topic.name), channel.consumer(dead_letter="orders2"):
        pass


def test_drop_oldest(conn: pynotify.Connection) -> None:
    """But what is in flight a consumer is working on."""
    topic = conn.topic("t", max_depth=3, overflow="drop-oldest")
    channel = topic.channel("c")
    topic.publish_many(numbered(3))
    with channel.consumer() as consumer:
        message = consumer.get(PATIENCE)
        topic.publish("3")
        topic.publish_many(["4", "5"])
        assert bodies(channel.peek(3)) == [b"4", b"5", b"0"]
        message.finish()
    assert (topic.stats().dropped, channel.stats().dropped) == (3, 3)
    assert topic.stats().unfinished == 2


def test_drop_oldest_of_more_than_there_is_room_for(conn: pynotify.Connection) -> None:
    """What goes before any channel has it counts as much as what goes out of one."""
    topic = conn.topic("t", max_depth=2, overflow="drop-oldest")
    first, second = topic.channel("c"), topic.channel("d")
    topic.publish_many(numbered(5))
    assert bodies(first.peek()) == bodies(second.peek()) == [b"3", b"4"]
    topic.pause()
    topic.publish_many([b"5", b"6", b"7"])
    topic.unpause()
    assert bodies(first.peek()) == bodies(second.peek()) == [b"6", b"7"]
    counted = [each.stats().dropped for each in (topic, first, second)]
    assert counted == [6, 6, 6]


def test_drop_new(conn: pynotify.Connection) -> None:
    topic = conn.topic("t", max_depth=2, overflow="drop-new")
    channel = topic.channel("c")
    ids = [topic.publish(body) for body in numbered(4)]
    assert len(set(ids)) == 4
    assert bodies(channel.peek()) == [b"0", b"1"]
    assert (topic.stats().dropped, topic.stats().unfinished) == (2, 2)
    assert channel.stats().dropped == 2
    topic.publish_many(numbered(3))
    with conn.transaction():
        topic.publish("5")
    assert (topic.stats().dropped, channel.stats().dropped) == (6, 6)


@pytest.mark.parametrize("overflow", ["disk", "error", "drop-oldest", "drop-new"])
def test_memory_that_is_full(make_engine: EngineFactory, connect: Connect, overflow: str) -> None:
    """One room for all topics.  Without a data_dir "disk" is an error."""
    conn = connect(to=make_engine(topic_memory=128 * 1024))
    topic = conn.topic("t", overflow=overflow)
    channel = topic.channel("c")
    published = 0
    with contextlib.suppress(pynotify.TopicFull):
        while published < 2000:
            topic.publish(b"%05d" % published + bytes(500))
            published += 1
    kept = [int(each.body[:5]) for each in channel.peek(2000)]
    assert (published < 2000) == (overflow in ("disk", "error"))
    if overflow == "drop-oldest":
        assert kept == list(range(2000 - len(kept), 2000))
    else:
        assert kept == list(range(len(kept)))
    assert topic.stats().dropped == published - len(kept)
    assert channel.stats().dropped == published - len(kept)
    with channel.consumer(max_in_flight=100) as consumer:
        assert len(work(consumer, len(kept))) == len(kept)
    conn.topic("another").publish(bytes(500))


def test_a_large_message_among_small_ones(make_engine: EngineFactory, connect: Connect) -> None:
    """Room is found and given back whole, over and over."""
    engine = make_engine(topic_memory=256 * 1024, max_body=128 * 1024)
    topic = connect(to=engine).topic("t", overflow="error")
    with topic.channel("c").consumer() as consumer:
        for turn in range(50):
            sizes = [100_000, 1, 40_000, 1500, 300 + turn]
            for size in sizes:
                topic.publish(b"x" * size)
            assert [len(body) for body in work(consumer, len(sizes))] == sizes
    assert engine.check().problems == []
