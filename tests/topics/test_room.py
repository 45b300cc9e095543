"""Room in memory: what one topic's consumers leave does not stop another topic."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from consuming import PATIENCE, take, work

import pynotify
from sessions import Connect, EngineFactory
from waiting import Call

MEMORY = 256 * 1024
BACKLOG = 2000  # of such messages: several times what memory has room for
BODY = bytes(400)
Opener = Callable[..., pynotify.Connection]


@pytest.fixture(params=["disk", "memory"])
def crowded(
    request: pytest.FixtureRequest, tmp_path: Path, new_name: Callable[[], str]
) -> Iterator[pynotify.Connection]:
    """A segment with little memory, with a data_dir and without."""
    options = {"data_dir": str(tmp_path)} if request.param == "disk" else {}
    with pynotify.connect(new_name(), topic_memory=MEMORY, **options) as conn:
        yield conn


@pytest.fixture
def on_disk(tmp_path: Path, new_name: Callable[[], str]) -> Iterator[pynotify.Connection]:
    with pynotify.connect(new_name(), topic_memory=MEMORY, data_dir=str(tmp_path)) as conn:
        yield conn


def fill(topic: pynotify.Topic, delay: float | None = None) -> int:
    """Until there is no more room, or there is a backlog; how many."""
    for number in range(BACKLOG):
        try:
            topic.publish(BODY, delay=delay)
        except pynotify.TopicFull:
            return number
    return BACKLOG


def hold(consumer: pynotify.Consumer) -> None:
    """Whatever there is, in flight."""
    while True:
        try:
            consumer.get(0)
        except pynotify.Timeout:
            return


def assert_goes_on(conn: pynotify.Connection, name: str) -> None:
    """A topic whose messages are consumed at once has what it publishes, in memory."""
    topic = conn.topic(name)
    channel = topic.channel("c")
    with channel.consumer(max_in_flight=5) as consumer:
        for _ in range(3):
            topic.publish_many([b"%d" % number for number in range(5)])
            assert topic.stats().on_disk == 0
            assert work(consumer, 5) == [b"%d" % number for number in range(5)]


@pytest.mark.parametrize("state", ["ready", "deferred", "in flight", "kept", "paused", "ephemeral"])
def test_a_backlog_of_one_topic_stops_no_other(crowded: pynotify.Connection, state: str) -> None:
    before = crowded.topic("before")
    before.channel("c")
    backlog = crowded.topic("backlog")
    channel = None
    if state != "kept":
        channel = backlog.channel("c#ephemeral" if state == "ephemeral" else "c")
    if state == "paused":
        backlog.pause()
    if state in ("in flight", "ephemeral"):
        assert channel is not None
        with channel.consumer(max_in_flight=BACKLOG) as consumer:
            fill(backlog)
            hold(consumer)
            fill(backlog)
            assert_goes_on(crowded, "before")
            assert_goes_on(crowded, "after")
        return
    assert fill(backlog, 3600 if state == "deferred" else None) > 50
    assert_goes_on(crowded, "before")
    assert_goes_on(crowded, "after")


def test_several_backlogs_stop_no_other(crowded: pynotify.Connection) -> None:
    for name in ("a", "b", "c"):
        crowded.topic(name).channel("c")
        assert fill(crowded.topic(name)) > 10
    assert_goes_on(crowded, "after")


def test_large_messages_fit_among_small_ones_that_are_left(
    make_engine: EngineFactory, connect: Connect
) -> None:
    """One of twelve stays, so that no page of memory is free, though most of it is."""
    engine = make_engine(topic_memory=MEMORY)
    conn = connect(to=engine)
    topic = conn.topic("t")
    with topic.channel("c").consumer() as consumer:
        small = 0
        with suppress(pynotify.TopicFull):
            while True:
                topic.publish(bytes(100))
                small += 1
        for number in range(small):
            with consumer.get(PATIENCE) as message:
                if number % 12 == 0:
                    message.requeue(delay=3600)
        large = [bytes([number]) * 5000 for number in range(16)]
        for body in large:
            topic.publish(body)
        assert engine.check().ok
        assert work(consumer, len(large)) == large
        assert topic.stats().unfinished == (small + 11) // 12


@pytest.mark.parametrize(
    ("memory", "size"),
    [(65536, 100), (65536, 3000), (65536, 15500), (98304, 30000), (4 << 20, 900_000)],
)
def test_a_channel_that_is_not_read_leaves_room_for_one_message(
    tmp_path: Path, new_name: Callable[[], str], memory: int, size: int
) -> None:
    """Also where a quarter of a topic's share is less than that."""
    with pynotify.connect(new_name(), topic_memory=memory, data_dir=str(tmp_path)) as conn:
        topic = conn.topic("t")
        channel = topic.channel("read")
        topic.channel("abandoned")
        bodies = [b"%d" % number + bytes(size) for number in range(3 * memory // size + 5)]
        for body in bodies:
            topic.publish(body)
        with channel.consumer() as consumer:
            assert work(consumer, len(bodies)) == bodies


def test_all_topics_come_back_from_disk_in_turn(on_disk: pynotify.Connection) -> None:
    """The first has much on disk, the last a little: it does not wait for the first."""
    first, last = on_disk.topic("first"), on_disk.topic("last")
    with first.channel("c").consumer() as one, last.channel("c").consumer() as other:
        fill(last)
        fill(first)
        waits = last.stats().on_disk
        assert waits > 0
        assert first.stats().on_disk > 0
        work(other, BACKLOG)
        assert last.stats().on_disk == 0
        assert first.stats().on_disk > 0
        work(one, BACKLOG)


@pytest.mark.parametrize("answered", ["by the consumer", "by attempts"])
def test_dead_letters_go_to_disk_if_need_be(on_disk: pynotify.Connection, answered: str) -> None:
    """They are not read, and all of the work becomes one of them."""
    topic = on_disk.topic("work")
    channel = topic.channel("c")
    assert fill(topic) == BACKLOG
    attempts = 1 if answered == "by attempts" else 5
    with channel.consumer(dead_letter="dead", max_in_flight=20, max_attempts=attempts) as consumer:
        for _ in range(BACKLOG // 20):
            for message in take(consumer, 20):
                if answered == "by attempts":
                    message.requeue()
                else:
                    message.dead_letter("bad")
    dead = on_disk.topic("dead")
    assert dead.stats().unfinished == BACKLOG
    assert dead.stats().on_disk > 0
    assert topic.stats().unfinished == 0
    with dead.channel("look").consumer(max_in_flight=20) as consumer:
        for _ in range(BACKLOG):
            with consumer.get(PATIENCE) as letter:
                assert letter.headers["dead-letter-topic"] == "work"
    assert dead.stats().unfinished == 0


def test_an_ephemeral_channel_that_is_not_read_makes_room(crowded: pynotify.Connection) -> None:
    topic = crowded.topic("t")
    fast = topic.channel("fast")
    tail = topic.channel("tail#ephemeral")
    with tail.consumer(), fast.consumer() as consumer:
        for number in range(BACKLOG):
            topic.publish(b"%06d" % number + BODY)
            with consumer.get(PATIENCE) as message:
                assert message.body[:6] == b"%06d" % number
        assert topic.stats().on_disk == 0
        stats = tail.stats()
        assert stats.dropped > 0
        assert stats.depth + stats.dropped == BACKLOG


@pytest.mark.parametrize("in_flight", [1, 64, 100])
def test_the_oldest_that_is_not_in_flight_is_dropped(
    conn: pynotify.Connection, in_flight: int
) -> None:
    topic = conn.topic("t", max_depth=200, overflow="drop-oldest")
    channel = topic.channel("c")
    topic.publish_many([b"%d" % number for number in range(200)])
    with channel.consumer(max_in_flight=in_flight) as consumer:
        held = take(consumer, in_flight)
        topic.publish(b"new")
        assert channel.stats().dropped == 1
        held[0].requeue()  # from now on it can be dropped, but it is not the first in line
        with channel.consumer() as other:
            assert work(other, 1) == [b"%d" % (in_flight + 1)]
        topic.publish_many([b"newer"] * 2)
        assert topic.stats().unfinished == 200
        for message in held[1:]:
            message.finish()


def test_a_large_message_drops_as_many_as_it_takes(
    make_engine: Callable[..., pynotify.Engine], connect: Callable[..., pynotify.Connection]
) -> None:
    topic = connect(to=make_engine(topic_memory=1 << 20)).topic("t", overflow="drop-oldest")
    channel = topic.channel("c")
    for _ in range(BACKLOG):
        topic.publish(b"small")
    topic.publish(bytes(200_000))
    assert channel.stats().dropped > 64


@pytest.mark.parametrize("overflow", ["disk", "error", "drop-oldest", "drop-new"])
def test_a_body_that_can_never_have_room_is_refused(
    on_disk: pynotify.Connection, overflow: str
) -> None:
    topic = on_disk.topic("t", overflow=overflow)
    with pytest.raises(pynotify.PayloadTooLong, match="topic_memory"):
        topic.publish(bytes(200_000))
    with pytest.raises(pynotify.PayloadTooLong, match="topic_memory"):
        topic.publish_many([b"x", bytes(200_000)])
    with pytest.raises(pynotify.PayloadTooLong, match="topic_memory"), on_disk.transaction():
        topic.publish(bytes(200_000))
    assert topic.stats().unfinished == 0
    with topic.channel("c").consumer() as consumer:
        topic.publish(bytes(100_000))
        assert len(consumer.get(PATIENCE).body) == 100_000


@pytest.mark.parametrize("channels", [2, 3])
def test_what_a_topic_kept_goes_on_to_its_channels_as_they_consume(
    crowded: pynotify.Connection, channels: int
) -> None:
    """All of memory is what the topic has kept, and its channels need some for each message."""
    topic = crowded.topic("t")
    names = [f"c{number}" for number in range(channels)]
    consumers = [topic.channel(name).consumer(max_in_flight=10) for name in names]
    topic.pause()
    kept = fill(topic)
    topic.unpause()
    for _ in range(kept):
        for consumer in consumers:
            work(consumer, 1)
    assert topic.stats().unfinished == 0
    for consumer in consumers:
        consumer.close()


def test_topic_memory_is_a_whole_number_of_pages(new_name: Callable[[], str]) -> None:
    name = new_name()
    for _ in range(2):  # made, and found again
        with pynotify.connect(name, topic_memory=5_000_001) as conn:
            conn.topic("t").publish("x")
    with pytest.raises(pynotify.LayoutMismatch, match="topic_memory"):
        pynotify.open(name, topic_memory=5_000_001 + 4096)


def test_a_durable_backlog_comes_back_though_shares_have_become_smaller(
    tmp_path: Path, new_name: Callable[[], str]
) -> None:
    """What a topic had of the memory before there were others it gets again, with them."""
    name = new_name()
    options = {"topic_memory": MEMORY, "data_dir": str(tmp_path)}
    with pynotify.connect(name, **options) as conn:
        backlog = conn.topic("backlog", durable=True, fsync="none", overflow="error")
        backlog.channel("c")
        count = fill(backlog)
        assert 0 < count < BACKLOG
        for number in range(4):
            conn.topic(f"later{number}", durable=True, fsync="none").channel("c")
    pynotify.unlink(name)
    with pynotify.connect(name, **options) as conn:
        assert conn.topic("backlog").stats().unfinished == count
        assert_goes_on(conn, "another")


# ---- channels of one topic ----------------------------------------------------------------------


@pytest.mark.parametrize("state", ["ready", "paused", "in flight", "ephemeral"])
def test_an_abandoned_channel_stops_no_other_of_its_topic(
    on_disk: pynotify.Connection, state: str
) -> None:
    topic = on_disk.topic("t")
    name = "abandoned#ephemeral" if state == "ephemeral" else "abandoned"
    with topic.channel("fast").consumer(max_in_flight=5) as fast:
        abandoned = topic.channel(name)
        if state == "paused":
            abandoned.pause()
        with abandoned.consumer(max_in_flight=BACKLOG) as hung:
            for number in range(BACKLOG):
                topic.publish(b"%d" % number + BODY)
                if state == "in flight" and number % 100 == 0:
                    hold(hung)
                message = fast.get(0)  # it is there at once
                assert message.body == b"%d" % number + BODY
                message.finish()
            if state != "ephemeral":
                stats = abandoned.stats()
                assert stats.depth + stats.in_flight == BACKLOG
                assert topic.stats().on_disk > 0
    assert on_disk.topic("t").channel("fast").stats().finished == BACKLOG


def test_what_an_abandoned_channel_has_on_disk_is_its_own(on_disk: pynotify.Connection) -> None:
    topic = on_disk.topic("t")
    fast, abandoned = topic.channel("fast"), topic.channel("abandoned")
    with fast.consumer() as consumer:
        for number in range(BACKLOG):
            topic.publish(b"%d" % number + BODY)
            consumer.get(0).finish()
        late = topic.channel("late")
        assert (abandoned.stats().depth, fast.stats().depth, late.stats().depth) == (BACKLOG, 0, 0)
        abandoned.empty()
        assert abandoned.stats().depth == topic.stats().on_disk == 0
        topic.publish(b"more")
        for channel in (abandoned, late):
            with channel.consumer() as other:
                assert work(other, 1) == [b"more"]
        consumer.get(0).finish()
    assert topic.stats().unfinished == 0


@pytest.mark.parametrize("durable", [False, True])
def test_what_the_only_channel_has_on_disk_is_its_own(
    on_disk: pynotify.Connection, durable: bool
) -> None:
    """It counts in its depth, goes with empty(), and none of it comes to a later channel."""
    topic = on_disk.topic("t", durable=durable)
    only = topic.channel("only")
    topic.publish_many(b"%d" % number + BODY for number in range(BACKLOG))
    late = topic.channel("late")
    assert topic.stats().on_disk > BACKLOG / 2
    assert (only.stats().depth, late.stats().depth) == (BACKLOG, 0)
    with only.consumer() as consumer, late.consumer() as other:
        topic.publish(b"for both")
        assert work(other, 1) == [b"for both"]
        assert work(consumer, 2) == [b"0" + BODY, b"1" + BODY]
        only.empty()
        assert only.stats().depth == topic.stats().on_disk == 0
        topic.publish(b"more")
        assert work(consumer, 1) == work(other, 1) == [b"more"]
    assert topic.stats().unfinished == 0


def test_a_consumer_that_hangs_leaves_room_for_the_others_of_its_channel(
    on_disk: pynotify.Connection,
) -> None:
    """With as many in flight as it gets, and the channel's others on disk for want of room."""
    topic = on_disk.topic("t")
    channel = topic.channel("c")
    topic.publish_many(b"%d" % number + BODY for number in range(BACKLOG))
    with channel.consumer(max_in_flight=BACKLOG) as hung, channel.consumer() as other:
        hold(hung)
        held = channel.stats().in_flight
        assert 0 < held < BACKLOG / 2
        for number in range(held, BACKLOG):
            message = other.get(0)  # it is there at once
            assert message.body == b"%d" % number + BODY
            message.finish()
    assert channel.stats().depth == held


def test_a_consumer_that_has_left_some_to_others_gets_what_they_leave(
    on_disk: pynotify.Connection,
) -> None:
    topic = on_disk.topic("t")
    channel = topic.channel("c")
    topic.publish_many(b"%d" % number + BODY for number in range(BACKLOG))
    with channel.consumer(max_in_flight=BACKLOG) as slow, channel.consumer() as other:
        hold(slow)
        waiting = Call(slow.get, PATIENCE)
        while topic.stats().on_disk > 0:
            other.get(PATIENCE).finish()
        assert waiting.result().body.endswith(BODY)


def test_a_channel_that_rested_gets_all_of_it_in_order(on_disk: pynotify.Connection) -> None:
    topic = on_disk.topic("t")
    with topic.channel("fast").consumer() as fast, topic.channel("slow").consumer() as slow:
        topic.publish_many(b"%d" % number + BODY for number in range(BACKLOG))
        wanted = [b"%d" % number + BODY for number in range(BACKLOG)]
        assert work(fast, BACKLOG) == wanted
        assert work(slow, BACKLOG) == wanted
    assert (topic.stats().on_disk, topic.stats().unfinished) == (0, 0)


def test_a_channel_rests_on_when_it_is_the_last(on_disk: pynotify.Connection) -> None:
    """What is published after its sibling was deleted comes behind what it has on disk."""
    topic = on_disk.topic("t")
    slow, other = topic.channel("slow"), topic.channel("other")
    topic.publish_many(b"%d" % number + BODY for number in range(BACKLOG))
    other.delete()
    topic.publish_many(b"%d" % number + BODY for number in range(BACKLOG, BACKLOG + 10))
    with slow.consumer() as consumer:
        assert work(consumer, BACKLOG + 10) == [
            b"%d" % number + BODY for number in range(BACKLOG + 10)
        ]


def test_a_transaction_stays_in_order_where_only_its_small_messages_have_room(
    on_disk: pynotify.Connection,
) -> None:
    for count in range(120, 200, 2):
        topic = on_disk.topic(f"t{count}")
        topic.channel("a"), topic.channel("b")
        topic.publish_many(b"%d" % number + BODY for number in range(count))
        with on_disk.transaction():
            topic.publish(bytes(20_000))
            topic.publish(b"small")
        for name in ("a", "b"):
            with topic.channel(name).consumer() as consumer:
                last = work(consumer, count + 2)[-2:]
                assert [len(body) for body in last] == [20_000, 5], count
        topic.delete()
