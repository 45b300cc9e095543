"""An exception of a signal handler at every place of what publishes, gets and answers.

What was published once is delivered once; a message that was got is in the caller's hands, back in
the channel, or finished; none is in flight for good.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

import pytest
from consuming import bodies, figures

import pynotify
from interrupting import WHOLE, Anywhere, At, at_places
from receiving import PATIENCE
from sessions import EngineFactory
from waiting import Call

Publish = Callable[[pynotify.Connection, pynotify.Topic], object]


class Round:
    """A channel, and what is asked of it after each exception."""

    def __init__(
        self, conn: pynotify.Connection, other: pynotify.Connection, *, durable: bool
    ) -> None:
        self.conn = conn
        self.topic = conn.topic("t", durable=durable)
        self.channel = self.topic.channel("c")
        self.consumer = self.channel.consumer(max_in_flight=8, max_attempts=0)
        self.others = other.topic("t").channel("c").consumer(max_in_flight=8, max_attempts=0)

    def left(self) -> list[bytes]:
        """Take and finish what is there."""
        found = []
        with contextlib.suppress(pynotify.Timeout):
            while True:
                message = self.others.get(0)
                found.append(message)
                message.finish()
        assert figures(self.channel) == (0, 0, 0)
        return bodies(found)


@pytest.fixture(params=["memory", "durable"])
def ground(
    make_engine: EngineFactory, tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[Round]:
    engine = make_engine(data_dir=tmp_path)
    with engine.connect() as conn, engine.connect() as other:
        yield Round(conn, other, durable=request.param == "durable")
    assert engine.check().ok


def _in_block(conn: pynotify.Connection, topic: pynotify.Topic) -> None:
    with conn.transaction():
        topic.publish("1")
        topic.publish("2")


PUBLISHING: dict[str, tuple[Publish, list[bytes]]] = {
    "publish": (lambda _, topic: topic.publish("1"), [b"1"]),
    "with headers": (lambda _, topic: topic.publish("1", headers={"a": "b"}), [b"1"]),
    "publish_many": (lambda _, topic: topic.publish_many(["1", "2"]), [b"1", b"2"]),
    "in a block": (_in_block, [b"1", b"2"]),
}


@pytest.mark.parametrize("whole", WHOLE)
@pytest.mark.parametrize("how", PUBLISHING)
def test_publishing(ground: Round, how: str, whole: bool) -> None:
    """All or nothing, and once."""
    publish, expected = PUBLISHING[how]

    def attempt(at: At) -> None:
        at.attempt(lambda: publish(ground.conn, ground.topic))
        assert not ground.conn.in_transaction
        left = ground.left()
        assert left in ([], expected) if at.reached else left == expected

    at_places(attempt, whole=whole)


@pytest.mark.parametrize("whole", WHOLE)
@pytest.mark.parametrize("how", ["get", "get(0)", "next"])
def test_getting(ground: Round, how: str, whole: bool) -> None:
    """What the caller does not have, the next call gets, as if it had not been delivered."""
    getting: dict[str, Callable[[], pynotify.Message]] = {
        "get": lambda: ground.consumer.get(PATIENCE),
        "get(0)": lambda: ground.consumer.get(0),
        "next": lambda: next(ground.consumer),
    }

    def attempt(at: At) -> None:
        ground.topic.publish("1")
        message = at.attempt(getting[how])
        if message is None:
            thread_got: list[pynotify.Message] = []  # no lock is held
            thread = threading.Thread(target=lambda: thread_got.append(ground.consumer.get(5)))
            thread.start()
            thread.join()
            (message,) = thread_got
        assert (message.body, message.attempts) == (b"1", 1)
        message.finish()
        assert ground.left() == []

    at_places(attempt, whole=whole)


@pytest.mark.parametrize("name", ["take_at_once", "get_in_core"])
def test_a_handler_that_gets_when_a_message_is_taken(ground: Round, name: str) -> None:
    """It gets the next one, or is told to wait for the interrupted call."""
    consumer = ground.consumer
    inner: list[pynotify.Message] = []

    def look(_frame: FrameType, event: str, argument: object) -> None:
        if event == "c_return" and getattr(argument, "__name__", "") == name:
            sys.setprofile(None)
            with contextlib.suppress(pynotify.ProgrammingError):
                inner.append(consumer.get(0))

    for number in range(20):
        ground.topic.publish_many([f"{number} first", f"{number} second"])
        inner.clear()
        sys.setprofile(look)
        try:
            outer = consumer.get(0) if name == "take_at_once" else consumer._get_otherwise(0)
        finally:
            sys.setprofile(None)
        assert bodies([outer]) == [f"{number} first".encode()]
        rest = inner or [consumer.get(0)]
        assert bodies(rest) == [f"{number} second".encode()]
        assert len(inner) == (name == "take_at_once")
        for message in (outer, *rest):
            message.finish()


def _wait_for_one(ground: Round) -> pynotify.Message:
    timer = threading.Timer(0.01, lambda: ground.others.link and ground.topic.publish("1"))
    timer.start()
    try:
        return ground.consumer.get(PATIENCE)
    finally:
        timer.join()


@pytest.mark.parametrize("whole", WHOLE)
def test_waiting(ground: Round, whole: bool) -> None:
    """The same where it has to wait."""

    def attempt(at: At) -> None:
        message = at.attempt(lambda: _wait_for_one(ground))
        if message is None:
            message = ground.others.get(5)
        assert (message.body, message.attempts) == (b"1", 1)
        message.finish()
        assert ground.left() == []

    at_places(attempt, whole=whole)


ANSWERS: dict[str, Callable[[pynotify.Message], object]] = {
    "finish": lambda message: message.finish(),
    "requeue": lambda message: message.requeue(),
    "touch": lambda message: message.touch(),
    "dead_letter": lambda message: message.dead_letter(),
    "with": lambda message: message.__exit__(None, None, None),
}


@pytest.mark.parametrize("whole", WHOLE)
@pytest.mark.parametrize("how", ANSWERS)
def test_answering(ground: Round, how: str, whole: bool) -> None:
    """It was answered, or is in flight still and can be."""

    def attempt(at: At) -> None:
        ground.topic.publish("1")
        message = ground.consumer.get(PATIENCE)
        at.attempt(lambda: ANSWERS[how](message))
        with contextlib.suppress(pynotify.MessageNotInFlight):
            message.requeue()
        left = ground.left()
        if how in ("requeue", "touch"):
            assert left == [b"1"]
        else:
            assert left in ([], [b"1"]) if at.reached else left == []

    at_places(attempt, whole=whole)


@pytest.mark.parametrize("whole", WHOLE)
@pytest.mark.parametrize("good", [True, False], ids=["finishing", "failing"])
def test_run(ground: Round, good: bool, whole: bool) -> None:
    """The message of the handler that was interrupted is finished, or goes back at once."""

    def attempt(at: At) -> None:
        ground.topic.publish("1")
        consumer = ground.channel.consumer(max_in_flight=8, max_attempts=0)
        handled = []

        def handler(message: pynotify.Message) -> bool:
            handled.append(message.body)
            consumer.draining = True
            return good

        at.attempt(lambda: consumer.run(handler, (0.0, 0.0)))
        assert consumer.stats().in_flight == 0
        left = ground.left()
        assert left in ([], [b"1"]) if at.reached else left == ([] if good else [b"1"])
        assert left or handled
        consumer.close()

    at_places(attempt, whole=whole)


@pytest.mark.parametrize("whole", WHOLE)
@pytest.mark.parametrize("how", ["drain", "close", "consumer"])
def test_a_consumer(ground: Round, how: str, whole: bool) -> None:
    """What it had goes back when it is closed, and no seat is left."""

    def attempt(at: At) -> None:
        ground.topic.publish_many(["1", "2"])
        if how == "consumer":
            consumer = at.attempt(lambda: ground.channel.consumer(max_attempts=0))
        else:
            consumer = ground.channel.consumer(max_attempts=0)
            assert consumer.get(PATIENCE).body == b"1"
            at.attempt(consumer.drain if how == "drain" else consumer.close)
        if consumer is not None:
            consumer.close()
            assert consumer._ended.is_set(), "it wakes a thread in the pause of run()"
        del consumer
        assert len(ground.channel.stats().consumers) == 2
        assert ground.left() == [b"1", b"2"]

    at_places(attempt, whole=whole)


def test_answering_while_it_drains(ground: Round) -> None:
    """Interrupted anywhere, also in the standard library, it keeps no other thread waiting."""
    place, at = 0, Anywhere(0)
    while place == 0 or at.reached:
        place += 1
        ground.topic.publish_many(["1", "2"])
        consumer = ground.channel.consumer(max_in_flight=2, max_attempts=0)
        first, second = consumer.get(PATIENCE), consumer.get(PATIENCE)
        assert not consumer.drain(0)
        at = Anywhere(place)
        at.attempt(first.finish)
        if not first.answered:
            with contextlib.suppress(pynotify.MessageNotInFlight):  # it was finished
                first.finish()
        draining = Call(consumer.drain, PATIENCE)
        Call(second.finish).result()
        assert draining.result()
        consumer.close()


def _moved(conn: pynotify.Connection, message: pynotify.Message) -> None:
    with conn.transaction():
        message.finish()
        conn.topic("t").publish("moved")


def _moved_explicitly(conn: pynotify.Connection, message: pynotify.Message) -> None:
    conn.begin()
    conn.topic("t").publish_many(["moved"])
    message.finish()
    conn.commit()


def _moved_after_a_savepoint(conn: pynotify.Connection, message: pynotify.Message) -> None:
    with conn.transaction():
        with contextlib.suppress(pynotify.Rollback), conn.transaction():
            conn.topic("t").publish("never")
            message.requeue()
            raise pynotify.Rollback
        message.finish()
        conn.topic("t").publish("moved")


MOVING = {
    "block": _moved,
    "begin": _moved_explicitly,
    "savepoint": _moved_after_a_savepoint,
}


@pytest.mark.parametrize("whole", WHOLE)
@pytest.mark.parametrize("how", MOVING)
def test_a_transaction(ground: Round, how: str, whole: bool) -> None:
    """Answered and published, or neither; the message can be answered afterwards."""

    def attempt(at: At) -> None:
        ground.topic.publish("1")
        message = ground.consumer.get(PATIENCE)
        at.attempt(lambda: MOVING[how](ground.conn, message))
        if ground.conn.in_transaction:
            assert how == "begin"
            ground.conn.rollback()
        with contextlib.suppress(pynotify.MessageNotInFlight):
            message.requeue()
        left = ground.left()
        assert left in ([b"1"], [b"moved"]) if at.reached else left == [b"moved"]

    at_places(attempt, whole=whole)


Manage = Callable[[pynotify.Topic, pynotify.Channel], object]

MANAGING: dict[str, Manage] = {
    "pause": lambda topic, channel: channel.pause(),
    "unpause": lambda topic, channel: channel.unpause(),
    "empty": lambda topic, channel: channel.empty(),
    "stats": lambda topic, channel: channel.stats(),
    "peek": lambda topic, channel: channel.peek(),
    "topic": lambda topic, channel: topic.pause(),
    "topic's stats": lambda topic, channel: topic.stats(),
    "topic's channels": lambda topic, channel: topic.channels(),
    "topic's empty": lambda topic, channel: topic.empty(),
    "unpause topic": lambda topic, channel: topic.unpause(),
    "of another name": lambda topic, channel: topic.channel("c"),
}


@pytest.mark.parametrize("whole", WHOLE)
@pytest.mark.parametrize("inside", [False, True], ids=["", "in a transaction"])
@pytest.mark.parametrize("how", MANAGING)
def test_managing(ground: Round, how: str, inside: bool, whole: bool) -> None:
    """It has happened or not, and the transaction around it has not ended."""

    def attempt(at: At) -> None:
        ground.topic.publish("1")
        if inside:
            ground.conn.begin()
        at.attempt(lambda: MANAGING[how](ground.topic, ground.channel))
        assert ground.conn.in_transaction == inside
        if inside:
            ground.topic.publish("2")
            ground.conn.commit()
        stats = ground.channel.stats()
        assert stats.paused == (how == "pause") or at.reached
        ground.channel.unpause()
        ground.topic.unpause()
        left = ground.left()
        expected = [b"1", b"2"] if inside else [b"1"]
        if how == "empty":
            assert left in (expected, expected[1:]) if at.reached else left == expected[1:]
        else:
            assert left == expected

    at_places(attempt, whole=whole)


@pytest.mark.parametrize("whole", WHOLE)
@pytest.mark.parametrize("what", ["channel", "topic"])
def test_deleting(ground: Round, what: str, whole: bool) -> None:
    """It is there with its messages, or gone without a trace."""

    def attempt(at: At) -> None:
        topic = ground.conn.topic("short-lived")
        channel = topic.channel("d")
        topic.publish("1")
        consumer = channel.consumer()
        message = consumer.get(PATIENCE)
        at.attempt((channel if what == "channel" else topic).delete)
        try:
            assert channel.stats().in_flight == 1
        except pynotify.TopicDeleted:
            with pytest.raises((pynotify.TopicDeleted, pynotify.MessageNotInFlight)):
                message.finish()
        else:
            assert at.reached
            message.finish()
        consumer.close()
        if "short-lived" in ground.conn.topics():
            ground.conn.topic("short-lived").delete()
        assert ground.conn.topics() == ["t"]

    at_places(attempt, whole=whole)


@pytest.mark.parametrize("whole", WHOLE)
@pytest.mark.parametrize("inside", [False, True], ids=["", "in a transaction"])
def test_cancelling(ground: Round, inside: bool, whole: bool) -> None:
    """The message is deferred still, or gone; the other one is deferred in any case."""

    def attempt(at: At) -> None:
        first, second = ground.topic.publish_many(["1", "2"], delay=1000)

        def cancel() -> None:
            if inside:
                with ground.conn.transaction():
                    assert ground.topic.cancel(first)
            else:
                assert ground.topic.cancel(first)

        at.attempt(cancel)
        assert not ground.conn.in_transaction
        cancelled = ground.topic.cancel(first)
        assert at.reached or not cancelled
        assert figures(ground.channel) == (0, 0, 1)
        assert ground.topic.cancel(second)
        assert ground.left() == []

    at_places(attempt, whole=whole)


@pytest.mark.parametrize("whole", WHOLE)
def test_no_thread_is_kept_waiting(ground: Round, whole: bool) -> None:
    """While one waits for the interrupted thread's turn it gets what comes, in order."""

    def attempt(at: At) -> None:
        got: list[pynotify.Message] = []
        ground.topic.publish("1")
        mine = at.attempt(lambda: ground.consumer.get(PATIENCE))
        threads = [
            threading.Thread(target=lambda: got.append(ground.consumer.get(PATIENCE)))
            for _ in range(2)
        ]
        for thread in threads:
            thread.start()
        ground.topic.publish_many(["2"] if mine is None else ["2", "3"])
        for thread in threads:
            thread.join()
        assert sorted(bodies(got)) == ([b"1", b"2"] if mine is None else [b"2", b"3"])
        for message in [*got, *([] if mine is None else [mine])]:
            message.finish()
        assert ground.left() == []

    at_places(attempt, whole=whole)
