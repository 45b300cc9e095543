"""Topics and channels: names, options, publishing, pausing, deferred messages, what is left."""

from __future__ import annotations

import pickle
import time

import pytest
from consuming import SOON, assert_nothing, bodies, figures, numbered, take, work

import pynotify
from receiving import PATIENCE
from sessions import Connect, EngineFactory


def test_a_database_is_a_name_space(connect: Connect) -> None:
    one, two = connect(database="one"), connect(database="two")
    one.topic("t").publish("1")
    assert two.topics() == []
    with two.topic("t").channel("c").consumer() as consumer:
        assert_nothing(consumer)
    assert one.topics() == two.topics() == ["t"]
    assert one.topic("t").channels() == []


def test_a_topic_and_a_channel_may_have_one_name(conn: pynotify.Connection) -> None:
    conn.listen("same")
    conn.topic("same").publish("x")
    assert conn.poll() == []
    assert conn.listening_channels() == {"same"}


def test_options_may_be_left_out_and_must_agree(conn: pynotify.Connection) -> None:
    topic = conn.topic("t", max_depth=5, overflow="drop-new", fsync="none", durable=False)
    assert conn.topic("t") is conn.topic("t", max_depth=5) is topic
    stats = topic.stats()
    assert (stats.max_depth, stats.overflow, stats.fsync, stats.durable) == (
        5, "drop-new", "none", False
    )  # fmt: skip
    for other in ({"max_depth": 6}, {"max_depth": None}, {"overflow": "error"},
                  {"fsync": "always"}, {"durable": True}):  # fmt: skip
        with pytest.raises(pynotify.ProgrammingError, match=next(iter(other))):
            conn.topic("t", **other)
    plain = conn.topic("plain")
    assert conn.topic("plain", max_depth=None, overflow="disk", fsync="interval") is plain


def test_bad_options_make_nothing(conn: pynotify.Connection) -> None:
    for wrong in ({"overflow": "block"}, {"fsync": "often"}, {"max_depth": 0}, {"max_depth": -1}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            conn.topic("t", **wrong)
    for wrong in ({"durable": "yes"}, {"max_depth": "1"}):
        with pytest.raises(TypeError):
            conn.topic("t", **wrong)
    for name in (None, b"t", 5):
        with pytest.raises(TypeError, match="topic name"):
            conn.topic(name)
    assert conn.topics() == []


def test_max_consumers_must_agree(topic: pynotify.Topic) -> None:
    channel = topic.channel("c", max_consumers=2)
    assert topic.channel("c") is topic.channel("c", max_consumers=2) is channel
    assert topic.channel("c", max_consumers=0) is channel  # as if it were left out
    with pytest.raises(pynotify.ProgrammingError, match="max_consumers"):
        topic.channel("c", max_consumers=3)
    topic.channel("unbounded")
    with pytest.raises(pynotify.ProgrammingError, match="max_consumers"):
        topic.channel("unbounded", max_consumers=1)


def test_other_options_lose_no_messages(segment_name: str) -> None:
    """No process is connected, and still the segment is kept while its topics hold messages."""
    with pynotify.connect(segment_name, max_consumers=10) as conn:
        conn.topic("t").channel("c")
        conn.topic("t").publish_many(["1", "2"])
    for options in ({"max_consumers": 11}, {"topic_memory": 1 << 20}, {"queue_pages": 64}):
        with pytest.raises(pynotify.LayoutMismatch, match="its topics hold 2 messages") as caught:
            pynotify.open(segment_name, **options)
        assert next(iter(options)) in str(caught.value)
    with pytest.raises(ValueError, match="max_consumers"):
        pynotify.open(segment_name, max_consumers=0)
    with (
        pynotify.connect(segment_name) as conn,  # left out, they are as they are
        conn.topic("t").channel("c").consumer() as consumer,
    ):
        assert work(consumer, 2) == [b"1", b"2"]
    with pynotify.connect(segment_name, max_consumers=11) as conn:
        assert conn.topics() == []


def test_tables_that_are_full(make_engine: EngineFactory, connect: Connect) -> None:
    engine = make_engine(max_topics=2, max_topic_channels=2, max_consumers=2)
    conn = connect(to=engine)
    topic, other = conn.topic("a"), conn.topic("b")
    with pytest.raises(pynotify.TooManyTopics) as full:
        conn.topic("c")
    assert full.value.sqlstate == "53200"
    channel, _ = topic.channel("1"), other.channel("1")
    with pytest.raises(pynotify.TooManyTopics, match="max_topic_channels"):
        topic.channel("2")
    with channel.consumer(), channel.consumer(), pytest.raises(pynotify.TooManyTopics) as full:
        channel.consumer()
    assert "max_consumers" in str(full.value)
    channel.consumer().close()
    other.delete()
    conn.topic("c").channel("2")


@pytest.mark.parametrize("body", ["é", b"bytes", bytearray(b"array"), memoryview(b"view")])
def test_bodies(topic: pynotify.Topic, channel: pynotify.Channel, body: str | bytes) -> None:
    topic.publish(body)
    topic.publish_many([body, body])
    expected = body.encode() if isinstance(body, str) else bytes(body)
    with channel.consumer() as consumer:
        assert work(consumer, 3) == [expected] * 3


def test_bodies_of_every_size(topic: pynotify.Topic, channel: pynotify.Channel) -> None:
    sizes = [*range(1, 700), 1023, 1024, 1025, 4095, 4096, 4097, 65536, 1 << 20]
    with channel.consumer() as consumer:
        for size in sizes:
            body = bytes(number * 7 % 251 for number in range(min(size, 5000))) * (size // 5000 + 1)
            topic.publish(body[:size])
            assert work(consumer, 1) == [body[:size]]
    with pytest.raises(pynotify.PayloadTooLong):
        topic.publish(bytes((1 << 20) + 1))


def test_what_is_no_body(topic: pynotify.Topic) -> None:
    for wrong in (None, 5, ["a"], object()):
        with pytest.raises(TypeError):
            topic.publish(wrong)
        with pytest.raises(TypeError):
            topic.publish_many([wrong])
    for wrong in ("text", b"bytes", None):
        with pytest.raises(TypeError):
            topic.publish_many(wrong)
    for wrong in ({"delay": "1"}, {"ttl": "1"}, {"headers": ["a"]}, {"headers": {"a": 1}},
                  {"headers": {1: "a"}}):  # fmt: skip
        with pytest.raises(TypeError):
            topic.publish("x", **wrong)
    for wrong in (0, -1, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="ttl"):
            topic.publish("x", ttl=wrong)
    assert topic.stats().message_count == 0


def test_ids_of_many_are_a_lazy_sequence(topic: pynotify.Topic, channel: pynotify.Channel) -> None:
    ids = topic.publish_many(numbered(1000))
    assert len(ids) == 1000
    assert ids == list(ids) == [message.id for message in channel.peek(1000)]
    assert ids[0] == next(iter(ids))
    assert ids[-1] in ids
    assert ids[2:5] == [ids[2], ids[3], ids[4]]
    assert "0" * 16 not in ids
    assert ids.index(ids[7]) == 7
    with pytest.raises(IndexError):
        ids[1000]
    assert "1000" in repr(ids)


def test_many_are_all_or_nothing(make_engine: EngineFactory, connect: Connect) -> None:
    topic = connect(to=make_engine(topic_memory=128 * 1024)).topic("t", overflow="error")
    with pytest.raises(pynotify.TopicFull) as full:
        topic.publish_many([bytes(1000)] * 1000)
    assert full.value.sqlstate == "54000"
    assert topic.stats().message_count == 0
    with pytest.raises(pynotify.ProgrammingError):
        topic.publish_many([b"a", b"", b"b"])
    assert topic.stats().depth == 0
    topic.publish_many([bytes(1000)] * 20)


def test_headers_and_times(topic: pynotify.Topic, channel: pynotify.Channel) -> None:
    before = time.time_ns()
    topic.publish("x", headers={"trace": 'é\n"', "empty": ""}, ttl=100)
    topic.publish("y")
    topic.publish_many(["a", "b"], headers={"k": "v"})
    with channel.consumer(max_in_flight=4) as consumer:
        first, second, third, fourth = take(consumer, 4)
        assert first.headers == {"trace": 'é\n"', "empty": ""}
        assert second.headers == {}
        assert third.headers == fourth.headers == {"k": "v"}
        assert before <= first.published_ns <= second.published_ns <= time.time_ns()
        assert first.expires_in is not None
        assert 90 < first.expires_in <= 100
        assert second.expires_in is None


def test_the_first_channel_gets_what_was_kept(topic: pynotify.Topic) -> None:
    topic.publish_many(numbered(3))
    assert topic.stats().depth == 3
    first = topic.channel("first")
    second = topic.channel("second")
    topic.publish("new")
    with first.consumer() as one, second.consumer() as two:
        assert work(one, 4) == [*numbered(3), b"new"]
        assert work(two, 1) == [b"new"]
        assert_nothing(two)
    assert topic.stats().depth == 0


def test_a_paused_topic_serves_what_the_channels_have(
    topic: pynotify.Topic, channel: pynotify.Channel
) -> None:
    topic.publish("before")
    topic.pause()
    topic.publish_many(["a", "b"])
    late = topic.channel("late")
    with channel.consumer() as consumer:
        assert work(consumer, 1) == [b"before"]
        assert_nothing(consumer)
        topic.publish("c")
        topic.unpause()
        assert work(consumer, 3) == [b"a", b"b", b"c"]
    with late.consumer() as consumer:
        assert work(consumer, 3) == [b"a", b"b", b"c"], "it was there when they were handed on"


def test_emptying_a_topic_leaves_its_channels(topic: pynotify.Topic) -> None:
    channel = topic.channel("c")
    topic.publish("in the channel")
    topic.pause()
    topic.publish("in the topic")
    topic.empty()
    topic.unpause()
    with channel.consumer() as consumer:
        assert work(consumer, 1) == [b"in the channel"]
        assert_nothing(consumer)
    assert topic.stats().unfinished == 0


def test_cancel(topic: pynotify.Topic, channel: pynotify.Channel) -> None:
    later = topic.publish("later", delay=3600)
    now = topic.publish("now")
    assert topic.cancel(later)
    assert not topic.cancel(later)
    assert not topic.cancel(now)
    assert not topic.cancel("0" * 16)
    for wrong in ("", "x" * 16, later[1:], later + "0", later.upper() + " "):
        with pytest.raises(ValueError, match="16 hex digits"):
            topic.cancel(wrong)
    with pytest.raises(TypeError):
        topic.cancel(5)
    assert figures(channel) == (1, 0, 0)
    assert topic.stats().unfinished == 1


def test_cancel_what_was_requeued(topic: pynotify.Topic, channel: pynotify.Channel) -> None:
    published = topic.publish("x")
    with channel.consumer() as consumer:
        message = consumer.get(PATIENCE)
        assert not topic.cancel(published)
        message.requeue(3600)
        assert topic.cancel(published)
        assert figures(channel) == (0, 0, 0)


def test_cancel_is_for_all_channels_or_none(topic: pynotify.Topic) -> None:
    one, two = topic.channel("one"), topic.channel("two")
    published = topic.publish("x")
    with one.consumer() as consumer:
        consumer.get(PATIENCE).requeue(3600)
    assert not topic.cancel(published), "the other channel has it ready"
    assert (figures(one), figures(two)) == ((0, 0, 1), (1, 0, 0))


def test_deferred_without_a_channel(topic: pynotify.Topic) -> None:
    topic.publish("later", delay=SOON)
    topic.publish("now")
    with topic.channel("c").consumer() as consumer:
        assert work(consumer, 2) == [b"now", b"later"]


def test_pausing_a_channel_lets_answers_and_time_outs_work(
    topic: pynotify.Topic, channel: pynotify.Channel
) -> None:
    topic.publish_many(numbered(3))
    with channel.consumer(max_in_flight=3) as consumer:
        first, second, third = take(consumer, 3)
        channel.pause()
        first.finish()
        second.requeue()
        third.touch()
        assert_nothing(consumer)
        assert figures(channel) == (1, 1, 0)
        channel.unpause()
        assert work(consumer, 1) == [b"1"]


def test_peek_changes_nothing(topic: pynotify.Topic, channel: pynotify.Channel) -> None:
    topic.publish_many(numbered(3))
    topic.publish("later", delay=3600)
    with channel.consumer(max_in_flight=1) as consumer:
        consumer.get(PATIENCE)
        for _ in range(2):
            peeked = channel.peek()
            assert [(each.state, each.body) for each in peeked] == [
                ("ready", b"1"), ("ready", b"2"), ("deferred", b"later"), ("in_flight", b"0")
            ]  # fmt: skip
            assert [each.attempts for each in peeked] == [0, 0, 0, 1]
            assert [each.due_in > 0 for each in peeked] == [False, False, True, True]
        assert bodies(channel.peek(1)) == [b"1"]
        assert channel.peek(0) == []
        with pytest.raises(ValueError, match="negative"):
            channel.peek(-1)
        assert figures(channel) == (2, 1, 1)


def test_peek_shows_large_bodies(topic: pynotify.Topic, channel: pynotify.Channel) -> None:
    sizes = [1, 100_000, 50, 1 << 20]
    for size in sizes:
        topic.publish(b"x" * size)
    assert [len(each.body) for each in channel.peek()] == sizes


def test_deleting_and_making_again(conn: pynotify.Connection) -> None:
    old = conn.topic("t")
    channel = old.channel("c")
    old.publish("x")
    old.delete()
    new = conn.topic("t", max_depth=3)
    assert new != old
    assert new.channels() == []
    with pytest.raises(pynotify.TopicDeleted):
        old.publish("y")
    with pytest.raises(pynotify.TopicDeleted):
        channel.consumer()
    assert new.stats().message_count == 0


def test_a_deleted_channel_takes_its_messages_along(topic: pynotify.Topic) -> None:
    one, two = topic.channel("one"), topic.channel("two")
    topic.publish("x")
    with one.consumer() as consumer:
        message = consumer.get(PATIENCE)
        one.delete()
        with pytest.raises((pynotify.MessageNotInFlight, pynotify.TopicDeleted)):
            message.finish()
        with pytest.raises(pynotify.TopicDeleted):
            consumer.get(0)
    assert topic.stats().unfinished == 1
    two.delete()
    assert topic.stats().unfinished == 0


def test_objects_do_not_pickle(topic: pynotify.Topic, channel: pynotify.Channel) -> None:
    topic.publish("x")
    with channel.consumer() as consumer, consumer.get(PATIENCE) as message:
        for each in (topic, channel, message):
            with pytest.raises(TypeError, match="cannot pickle"):
                pickle.dumps(each)
    assert pickle.loads(pickle.dumps(topic.stats())) == topic.stats()


def test_they_say_what_they_are(topic: pynotify.Topic, channel: pynotify.Channel) -> None:
    topic.publish("x")
    consumer = channel.consumer()
    message = consumer.get(PATIENCE)
    assert repr(topic) == "<pynotify.Topic orders>"
    assert repr(channel) == "<pynotify.Channel orders/billing>"
    assert repr(message) == f"<pynotify.Message {message.id} attempt 1>"
    assert repr(consumer) == "<pynotify.Consumer of orders/billing>"
    consumer.close()
    assert repr(consumer) == "<pynotify.Consumer of orders/billing (closed)>"
    assert (channel.topic, consumer.channel, consumer.max_in_flight) == (topic, channel, 1)


def test_a_segment_without_topics_pays_nothing(
    make_engine: EngineFactory, connect: Connect
) -> None:
    """The pages of the topics' area are taken by the first topic."""
    import os

    engine = make_engine(topic_memory=64 << 20)
    path = f"/dev/shm/pynotify.{os.geteuid()}.{make_engine.name_of(engine)}"
    conn = connect(to=engine)
    conn.notify("c", "x")
    assert os.stat(path).st_blocks * 512 < 32 << 20
    assert conn.topics() == []
    conn.topic("t")
    assert os.stat(path).st_blocks * 512 > 64 << 20
