"""Publishing and answering inside of transactions: all of it at the commit, or nothing."""

from __future__ import annotations

import contextlib

import pytest
from consuming import SOON, assert_nothing, figures, numbered, take, work

import pynotify
from receiving import PATIENCE, payloads
from sessions import Connect


def test_publish_takes_effect_at_commit_with_the_notifications(
    conn: pynotify.Connection, topic: pynotify.Topic, channel: pynotify.Channel, connect: Connect
) -> None:
    conn.listen("c")
    other = connect().topic("orders").channel("billing")
    with conn.transaction():
        first = topic.publish("1", headers={"a": "b"})
        many = topic.publish_many(["2", "3"])
        conn.notify("c", "published")
        assert figures(other) == (0, 0, 0)
    assert payloads(conn.poll()) == ["published"]
    assert [message.id for message in channel.peek()] == [first, *many]
    with other.consumer() as consumer:
        message = consumer.get(PATIENCE)
        assert (message.body, message.headers) == (b"1", {"a": "b"})


def test_rolled_back_nothing_happens(
    conn: pynotify.Connection, topic: pynotify.Topic, channel: pynotify.Channel
) -> None:
    topic.publish("x")
    with channel.consumer() as consumer:
        message = consumer.get(PATIENCE)
        with conn.transaction():
            topic.publish_many(numbered(100))
            message.finish()
            raise pynotify.Rollback
        assert figures(channel) == (0, 1, 0)
        message.finish()
        assert (figures(channel), channel.stats().message_count) == ((0, 0, 0), 1)


def test_what_is_rolled_back_is_not_the_next_consumers(
    conn: pynotify.Connection, topic: pynotify.Topic, channel: pynotify.Channel
) -> None:
    topic.publish("x")
    closed = channel.consumer()
    message = closed.get(PATIENCE)
    with conn.transaction() as tx:
        message.finish()
        tx.prepare()
        closed.close()
        heir = channel.consumer()
        assert figures(channel) == (0, 1, 0)
        raise pynotify.Rollback
    assert figures(channel) == (1, 0, 0)
    with heir, heir.get(PATIENCE) as message:
        assert (message.body, message.attempts) == (b"x", 2)
    assert (figures(channel), channel.stats().finished) == ((0, 0, 0), 1)


def test_no_transaction_overfills_an_ephemeral_channel(conn: pynotify.Connection) -> None:
    topic = conn.topic("bounded", max_depth=3)
    channel = topic.channel("tail#ephemeral")
    with conn.transaction():
        topic.publish_many(numbered(10))
    assert [message.body for message in channel.peek()] == numbered(3)
    assert channel.stats().dropped == 7
    topic.pause()
    channel.empty()
    with conn.transaction() as tx:
        topic.publish_many(numbered(3))
        tx.prepare()
    topic.unpause()
    assert (figures(channel), channel.stats().dropped) == ((3, 0, 0), 7)


def test_savepoints(
    conn: pynotify.Connection, topic: pynotify.Topic, channel: pynotify.Channel
) -> None:
    topic.publish_many(["a", "b"])
    with channel.consumer(max_in_flight=2) as consumer:
        first, second = take(consumer, 2)
        with conn.transaction():
            first.finish()
            topic.publish("kept")
            with conn.transaction():
                second.finish()
                topic.publish("not kept")
                raise pynotify.Rollback
            second.requeue(3600)
        assert figures(channel) == (1, 0, 1)
        assert work(consumer, 1) == [b"kept"]


@pytest.mark.parametrize("answer", ["finish", "requeue", "dead_letter"])
def test_answers_take_effect_at_commit(
    conn: pynotify.Connection, topic: pynotify.Topic, channel: pynotify.Channel, answer: str
) -> None:
    topic.publish("x")
    with channel.consumer() as consumer:
        message = consumer.get(PATIENCE)
        with conn.transaction():
            getattr(message, answer)()
            assert figures(channel) == (0, 1, 0)
        assert figures(channel) == ((1, 0, 0) if answer == "requeue" else (0, 0, 0))
        with pytest.raises(pynotify.MessageNotInFlight):
            message.finish()


def test_delays_and_ttl_count_from_the_commit(
    conn: pynotify.Connection, topic: pynotify.Topic, channel: pynotify.Channel, connect: Connect
) -> None:
    clock = connect().topic("clock")
    conn.begin()
    topic.publish("deferred", delay=0.5)
    topic.publish("short", ttl=0.5)
    clock.publish("tick", delay=0.6)
    with clock.channel("c").consumer() as ticking:
        ticking.get(PATIENCE)
    conn.commit()
    assert [(each.body, each.state) for each in channel.peek()] == [
        (b"short", "ready"), (b"deferred", "deferred")
    ]  # fmt: skip


def test_cancel_in_a_transaction(
    conn: pynotify.Connection, topic: pynotify.Topic, channel: pynotify.Channel
) -> None:
    later = topic.publish("later", delay=3600)
    with conn.transaction():
        assert topic.cancel(later)
        assert figures(channel) == (0, 0, 1)
        raise pynotify.Rollback
    assert figures(channel) == (0, 0, 1)
    with conn.transaction():
        assert topic.cancel(later)
    assert figures(channel) == (0, 0, 0)


def test_get_in_a_transaction(conn: pynotify.Connection, channel: pynotify.Channel) -> None:
    with channel.consumer() as consumer:
        with conn.transaction():
            for timeout in (0, None, 1):
                with pytest.raises(pynotify.ActiveTransaction):
                    consumer.get(timeout)
            with pytest.raises(pynotify.ActiveTransaction):
                next(iter(consumer))
        assert_nothing(consumer)


def test_what_acts_at_once(
    conn: pynotify.Connection, topic: pynotify.Topic, channel: pynotify.Channel
) -> None:
    topic.publish_many(["a", "b"])
    with channel.consumer() as consumer:
        message = consumer.get(PATIENCE)
        with conn.transaction():
            message.touch()
            channel.pause()
            made = conn.topic("made").channel("c")
            made.topic.pause()
            assert channel.stats().paused
            channel.empty()
            made.delete()
            raise pynotify.Rollback
        assert channel.stats().paused
        assert figures(channel) == (0, 0, 0)
        assert conn.topics() == ["made", "orders"]
        assert conn.topic("made").channels() == []


@pytest.mark.parametrize("how", ["timed out", "in flight again", "emptied", "deleted"])
def test_a_commit_whose_message_is_lost(
    conn: pynotify.Connection, topic: pynotify.Topic, channel: pynotify.Channel,
    connect: Connect, how: str,
) -> None:  # fmt: skip
    """Nothing of the transaction happens."""
    conn.listen("c")
    other = connect().topic("orders").channel("billing")
    topic.publish("x")
    out = conn.topic("out")
    expected: type[pynotify.Error] | tuple[type[pynotify.Error], ...] = pynotify.MessageNotInFlight
    with channel.consumer(msg_timeout=0.2) as consumer, other.consumer() as second:
        message = consumer.get(PATIENCE)
        conn.begin()
        message.finish()
        conn.notify("c", "never")
        out.publish("never")
        if how in ("timed out", "in flight again"):
            again = second.get(PATIENCE)
            if how == "timed out":
                again.requeue(3600)
            else:
                expected = pynotify.NotOwner
        elif how == "emptied":
            other.empty()
        else:
            other.delete()
            expected = (pynotify.MessageNotInFlight, pynotify.TopicDeleted)
        with pytest.raises(expected):
            conn.commit()
        assert not conn.in_transaction
        assert conn.poll() == []
        assert out.stats().message_count == 0


def test_prepare_holds_the_time_outs_off(
    conn: pynotify.Connection, topic: pynotify.Topic, channel: pynotify.Channel, connect: Connect
) -> None:
    topic.publish("x")
    other = connect().topic("orders").channel("billing")
    with channel.consumer(msg_timeout=SOON) as consumer, other.consumer() as second:
        message = consumer.get(PATIENCE)
        with conn.transaction() as tx:
            message.finish()
            topic.publish("published")
            tx.prepare()
            with pytest.raises(pynotify.Timeout):
                second.get(4 * SOON)
            with pytest.raises(pynotify.ProgrammingError, match="prepared"):
                topic.publish("after it")
        assert work(second, 1) == [b"published"]
        assert (figures(channel), channel.stats().timed_out) == ((0, 0, 0), 0)


def test_prepared_and_rolled_back(
    conn: pynotify.Connection, topic: pynotify.Topic, channel: pynotify.Channel
) -> None:
    topic.publish("x")
    with channel.consumer() as consumer:
        message = consumer.get(PATIENCE)
        with conn.transaction() as tx:
            message.finish()
            topic.publish_many(numbered(50))
            tx.prepare()
            raise pynotify.Rollback
        assert figures(channel) == (0, 1, 0)
        message.finish()
        assert topic.stats().unfinished == 0


def test_prepare_of_a_lost_message_fails(
    conn: pynotify.Connection, topic: pynotify.Topic, channel: pynotify.Channel
) -> None:
    topic.publish("x")
    with channel.consumer() as consumer:
        message = consumer.get(PATIENCE)
        with contextlib.suppress(pynotify.Rollback), conn.transaction() as tx:
            message.finish()
            channel.empty()
            with pytest.raises(pynotify.MessageNotInFlight):
                tx.prepare()
            raise pynotify.Rollback


def test_full_fails_the_commit(conn: pynotify.Connection) -> None:
    topic = conn.topic("t", max_depth=3, overflow="error")
    conn.listen("c")
    with pytest.raises(pynotify.TopicFull), conn.transaction():
        conn.notify("c", "never")
        for number in range(4):
            topic.publish(b"%d" % number)
    assert (conn.poll(), topic.stats().message_count) == ([], 0)


def test_errors_fail_the_transaction(conn: pynotify.Connection, topic: pynotify.Topic) -> None:
    for wrong in ({"delay": -1}, {"ttl": 0}):
        with pytest.raises(pynotify.InFailedTransaction), conn.transaction():
            with pytest.raises(ValueError):
                topic.publish("x", **wrong)
            with pytest.raises(pynotify.InFailedTransaction):
                topic.publish("y")
            with pytest.raises(pynotify.InFailedTransaction):
                topic.pause()
    with conn.transaction():
        with pytest.raises(TypeError):
            topic.publish(5)
        topic.publish("z")
    assert topic.stats().depth == 1


def test_a_message_block_around_a_transaction(
    conn: pynotify.Connection, topic: pynotify.Topic, channel: pynotify.Channel
) -> None:
    topic.publish("x")
    out = conn.topic("out")
    with channel.consumer() as consumer:
        message = consumer.get(PATIENCE)
        with contextlib.suppress(LookupError), message, conn.transaction():
            out.publish("never")
            message.finish()
            raise LookupError
        assert (figures(channel), out.stats().depth) == ((1, 0, 0), 0)
        with consumer.get(PATIENCE) as message, conn.transaction():
            out.publish("once")
            message.finish()
        assert (figures(channel), out.stats().depth) == ((0, 0, 0), 1)


def test_a_transaction_around_a_message_block(
    conn: pynotify.Connection, topic: pynotify.Topic, channel: pynotify.Channel
) -> None:
    """Both are committed together; an exception gives the message back at once."""
    topic.publish("x")
    out = conn.topic("out")
    with channel.consumer() as consumer:
        message = consumer.get(PATIENCE)
        with contextlib.suppress(LookupError), conn.transaction(), message:
            out.publish("never")
            raise LookupError
        assert (figures(channel), out.stats().depth) == ((1, 0, 0), 0)
        message = consumer.get(PATIENCE)
        with conn.transaction(), message:
            out.publish("once")
        assert (figures(channel), out.stats().depth) == ((0, 0, 0), 1)


def test_the_transaction_of_another_thread_is_another(
    conn: pynotify.Connection, topic: pynotify.Topic, channel: pynotify.Channel
) -> None:
    from waiting import Call

    conn.begin()
    topic.publish("mine")
    Call(topic.publish, "theirs").result()
    assert figures(channel) == (1, 0, 0)
    conn.commit()
    with channel.consumer() as consumer:
        assert work(consumer, 2) == [b"theirs", b"mine"]
