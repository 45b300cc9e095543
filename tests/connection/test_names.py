"""A name for each request: what was listened to, subscribed to or made once is forgotten."""

from __future__ import annotations

import contextlib
import itertools

import pytest

import pynotify
from forgetting import Many, assert_forgotten, steps
from sessions import Connect, EngineFactory


@pytest.fixture
def other(connect: Connect) -> pynotify.Connection:
    return connect()


class TestConnection:
    def test_listen_and_poll(self, conn: pynotify.Connection, other: pynotify.Connection) -> None:
        conn.listen("always")

        def one(name: str) -> None:
            conn.listen(name)
            other.notify(name, "answer")
            (message,) = conn.poll()
            assert (message.channel, message.payload) == (name, "answer")
            conn.unlisten(name)

        assert_forgotten(one)
        assert conn.listening_channels() == {"always"}
        assert len(conn.link.receiver.reader.batch.channels) <= 3

    def test_listen_and_poll_batch(
        self, conn: pynotify.Connection, other: pynotify.Connection
    ) -> None:
        def one(name: str) -> None:
            conn.listen(name)
            other.notify(name, "answer")
            batch = conn.poll_batch()
            assert [batch.channels[index] for index in batch.channel_index.tolist()] == [name]
            assert len(batch.channels) <= 2
            conn.unlisten(name)

        assert_forgotten(one)

    def test_listen_without_reading(
        self, conn: pynotify.Connection, other: pynotify.Connection
    ) -> None:
        conn.listen("always")
        other.notify("always", "1")
        assert len(conn.poll()) == 1

        def one(name: str) -> None:
            conn.listen(name)
            conn.unlisten(name)

        assert_forgotten(one)

    def test_notify_only(self, conn: pynotify.Connection) -> None:
        def one(name: str) -> None:
            conn.notify(name, "not heard")
            conn.notify_many(name, [b"1", b"2"])

        assert_forgotten(one)

    def test_subscribe(self, conn: pynotify.Connection, other: pynotify.Connection) -> None:
        def one(name: str) -> None:
            with conn.subscribe(name) as sub:
                other.notify(name, "answer")
                assert sub.next(60).payload == "answer"

        assert_forgotten(one)

    def test_subscriptions_that_are_not_closed(
        self, make_engine: EngineFactory, connect: Connect
    ) -> None:
        """Each is given up before the next is opened: the table has room for eight."""
        engine = make_engine(max_channels=8)
        conn = connect(to=engine)

        def one(name: str) -> None:
            assert conn.subscribe(name, patterns=[f"{name}-?"]).pending == 0

        assert_forgotten(one)
        conn.subscribe("last").close()
        assert engine.stat().subscriptions == 0

    @pytest.mark.parametrize("answered", [False, True], ids=["unanswered", "answered"])
    @pytest.mark.parametrize("kind", ["channels", "patterns"])
    def test_add_and_discard(
        self, conn: pynotify.Connection, other: pynotify.Connection, kind: str, answered: bool
    ) -> None:
        sub = conn.subscribe("always", patterns=["always-?"])

        def one(name: str) -> None:
            names = {kind: [name]}
            sub.add(*names.get("channels", ()), patterns=names.get("patterns", ()))
            if answered:
                other.notify(name, "answer")
                assert sub.next(60).channel == name
            sub.discard(*names.get("channels", ()), patterns=names.get("patterns", ()))

        assert_forgotten(one)
        assert sub.channels == ("always",)

    def test_prepared(self, conn: pynotify.Connection) -> None:
        turn = itertools.cycle((True, False))

        def one(name: str) -> None:
            commits = next(turn)
            with contextlib.suppress(pynotify.Rollback), conn.transaction() as transaction:
                conn.listen(name)
                transaction.prepare()
                if not commits:
                    raise pynotify.Rollback
            if commits:
                conn.unlisten(name)

        assert_forgotten(one)

    def test_pubsub(self, conn: pynotify.Connection, other: pynotify.Connection) -> None:
        listener, sender = pynotify.PubSub(conn), pynotify.PubSub(other)
        got: list[object] = []

        def one(name: str) -> None:
            listener.subscribe(name)
            listener.on(name, got.append)
            sender.publish(name, {"answer": 42})
            listener.run(0)
            assert got.pop() == {"answer": 42}
            assert not got
            listener.off(name, got.append)
            listener.unsubscribe(name)

        assert_forgotten(one)


def work_of_a_poll(conn: pynotify.Connection, other: pynotify.Connection) -> int:
    """One message on a channel that is listened to all the time."""
    other.notify("always", "x")
    count = steps(conn.poll_batch)
    assert conn.poll() == []
    return count


@pytest.mark.full
class TestManyNames:
    """A hundred thousand of them: less than 1 MiB is kept, and the work of a poll is the same."""

    def test_listen(self, conn: pynotify.Connection, other: pynotify.Connection) -> None:
        conn.listen("always")
        with Many(lambda: work_of_a_poll(conn, other)) as names:
            for name in names:
                conn.listen(name)
                other.notify(name, "answer")
                (message,) = conn.poll()
                assert message.channel == name
                conn.unlisten(name)
        assert conn.listening_channels() == {"always"}
        assert len(conn.link.receiver.reader.batch.channels) <= 3

    def test_subscribe(self, conn: pynotify.Connection, other: pynotify.Connection) -> None:
        conn.listen("always")
        with Many(lambda: work_of_a_poll(conn, other)) as names:
            for name in names:
                with conn.subscribe(name) as sub:
                    other.notify(name, "answer")
                    assert sub.next(60).channel == name
        assert len(conn.link.receiver.reader.batch.channels) <= 3


class TestTopics:
    def test_topics(self, conn: pynotify.Connection) -> None:
        def one(name: str) -> None:
            topic = conn.topic(name)
            channel = topic.channel("c#ephemeral")
            with channel.consumer() as consumer:
                topic.publish("answer")
                with consumer.get(60) as message:
                    assert message.body == b"answer"
            topic.delete()

        assert_forgotten(one)
        assert conn.topics() == []

    def test_ephemeral_channels(self, conn: pynotify.Connection) -> None:
        topic = conn.topic("t")

        def one(name: str) -> None:
            with topic.channel(f"{name}#ephemeral").consumer() as consumer:
                topic.publish("answer")
                with consumer.get(60) as message:
                    assert message.body == b"answer"

        assert_forgotten(one)
        assert topic.channels() == []


class TestSegment:
    def test_the_table_of_channels_is_bounded_and_reused(
        self, make_engine: EngineFactory, connect: Connect
    ) -> None:
        """An entry of a channel without a listener goes when its room is needed."""
        engine = make_engine(max_channels=64)
        conn = connect(to=engine)
        conn.listen("always")
        for number in range(1000):
            conn.listen(f"reply-{number}")
            conn.unlisten(f"reply-{number}")
        assert engine.stat().channels <= 64
        assert engine.stat().subscriptions == 1
        conn.notify("always", "x")
        assert [message.payload for message in conn.poll()] == ["x"]
