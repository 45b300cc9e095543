"""Consumer.run() and its back-off, by a clock of the test's own."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from threading import Event

import pytest
from consuming import figures, numbered

import pynotify
from crowd import run_threads
from pynotify.topics._backoff import Backoff, Outcome
from receiving import PATIENCE, wait_until
from waiting import Call

SUCCESS, FAILURE, NEUTRAL = Outcome.SUCCESS, Outcome.FAILURE, Outcome.NEUTRAL


# ---- the state machine ---------------------------------------------------------------------------


def test_pauses_double_up_to_the_longest_and_shrink_with_success() -> None:
    backoff, now = Backoff(1.0, 120.0), 1000.0
    pauses = []
    for _ in range(9):
        backoff.record(FAILURE, now)
        pauses.append(backoff.pause(now))
        now += pauses[-1]
        assert (backoff.pause(now), backoff.in_flight) == (0, 1), "a probe"
    assert pauses == [1, 2, 4, 8, 16, 32, 64, 64, 64], "the next would be longer than the longest"
    pauses.clear()
    while backoff.level:
        backoff.record(SUCCESS, now)
        pauses.append(backoff.pause(now))
        now += pauses[-1]
    assert pauses == [32, 16, 8, 4, 2, 1, 0]
    assert backoff.in_flight == -1


def test_one_result_for_each_pause() -> None:
    """Messages that were taken before it come back during it, and count nothing."""
    backoff = Backoff(1.0, 120.0)
    for result in (FAILURE, FAILURE, SUCCESS, FAILURE):
        backoff.record(result, 0.0)
    assert (backoff.level, backoff.pause(0.0)) == (1, 1.0)
    backoff.record(FAILURE, 0.999)
    assert backoff.level == 1
    backoff.record(FAILURE, 1.0)
    assert (backoff.level, backoff.pause(1.0)) == (2, 2.0)


def test_what_says_nothing_changes_nothing() -> None:
    backoff = Backoff(1.0, 120.0)
    backoff.record(NEUTRAL, 0.0)
    assert backoff.pause(0.0) == 0
    backoff.record(FAILURE, 0.0)
    backoff.record(NEUTRAL, 1.0)
    assert (backoff.level, backoff.pause(1.0)) == (1, 1.0), "another probe, after another pause"


def test_without_any_backoff() -> None:
    backoff = Backoff(0, 0)
    for _ in range(300):
        backoff.record(FAILURE, 0.0)
    assert (backoff.pause(0.0), backoff.delay(5)) == (0, 0)


def test_a_message_is_put_off_longer_each_time() -> None:
    backoff = Backoff(1.0, 10.0)
    assert [backoff.delay(attempts) for attempts in (1, 2, 3, 4, 5, 60_000)] == [1, 2, 4, 8, 10, 10]


@pytest.mark.parametrize("wrong", [(2, 1), (-1, 1), (1, float("inf")), (float("nan"), 1)])
def test_what_is_no_backoff(channel: pynotify.Channel, wrong: tuple[float, float]) -> None:
    with channel.consumer() as consumer, pytest.raises(ValueError, match="backoff"):
        consumer.run(print, backoff=wrong)


# ---- the loop ------------------------------------------------------------------------------------


class TestClock:
    """Time passes only in pauses, and then at once."""

    __test__ = False

    def __init__(self) -> None:
        self.time = 0.0
        self.pauses: list[float] = []

    def now(self) -> float:
        return self.time

    def pause(self, over: Event, seconds: float) -> None:
        self.pauses.append(round(seconds, 9))
        self.time += seconds


def test_it_works_until_it_is_closed(topic: pynotify.Topic, channel: pynotify.Channel) -> None:
    got: list[bytes] = []
    consumer = channel.consumer(max_in_flight=5)
    call = Call(consumer.run, lambda message: got.append(message.body))
    topic.publish_many(numbered(50))
    wait_until(lambda: channel.stats().finished == 50, "all finished")
    consumer.close()
    assert call.result() is None
    assert got == numbered(50)
    consumer.run(print)  # ends at once


def test_it_ends_when_it_is_drained(topic: pynotify.Topic, channel: pynotify.Channel) -> None:
    topic.publish_many(numbered(10))
    with channel.consumer(max_in_flight=10) as consumer:

        def handler(message: pynotify.Message) -> None:
            if message.body == b"2":
                consumer.drain()

        consumer.run(handler)
        assert figures(channel) == (7, 0, 0)


def test_it_does_not_end_by_itself(topic: pynotify.Topic, channel: pynotify.Channel) -> None:
    """A deleted channel is an error; so is a fork, and a closed connection is an end."""
    with channel.consumer() as consumer:
        call = Call(consumer.run, print)
        topic.delete()
        assert isinstance(call.error(), pynotify.TopicDeleted)


def test_a_failing_handler_backs_off(
    topic: pynotify.Topic, channel: pynotify.Channel, caplog: pytest.LogCaptureFixture
) -> None:
    """The levels of the consumer, as statistics show them, and what is logged."""
    topic.publish("x")
    clock, levels = TestClock(), []
    caplog.set_level(logging.ERROR, "pynotify")
    with channel.consumer(max_in_flight=5, max_attempts=0) as consumer:
        consumer._clock = clock

        def handler(message: pynotify.Message) -> None:
            levels.append(consumer.stats().level)
            if len(levels) <= 3:
                raise LookupError("of the test")
            if len(levels) == 7:
                consumer.drain()
            topic.publish("y")

        consumer.run(handler, backoff=(0.001, 0.004))
    assert levels == [5, 1, 1, 1, 1, 1, 5]
    assert clock.pauses == [0.001, 0.002, 0.004, 0.002, 0.001]
    assert len(caplog.records) == 3
    assert "raised LookupError at attempt 1" in caplog.text
    assert "of the test" in caplog.text
    assert channel.stats().requeued == 3


def test_it_takes_no_more_than_the_program_allows(
    topic: pynotify.Topic, channel: pynotify.Channel
) -> None:
    topic.publish_many(["x"] * 4)
    levels = []
    with channel.consumer(max_in_flight=5) as consumer:
        consumer._clock = TestClock()
        consumer.set_max_in_flight(3)

        def handler(message: pynotify.Message) -> bool:
            levels.append(consumer.stats().level)
            if len(levels) == 5:
                consumer.drain()
            return len(levels) != 2

        consumer.run(handler, backoff=(0.001, 0.001))
    assert levels == [3, 3, 1, 3, 3]


def test_a_failed_message_waits_with_it(topic: pynotify.Topic, channel: pynotify.Channel) -> None:
    topic.publish("x")
    with channel.consumer() as consumer:
        consumer._clock = TestClock()

        def handler(_message: pynotify.Message) -> bool:
            consumer.drain()
            return False

        consumer.run(handler, backoff=(100.0, 120.0))
        (peeked,) = channel.peek()
        assert peeked.state == "deferred"
        assert 90 < peeked.due_in <= 100


@pytest.mark.parametrize("answer", ["finish", "requeue", "dead_letter"])
def test_a_handler_may_answer_by_itself(
    topic: pynotify.Topic, channel: pynotify.Channel, answer: str
) -> None:
    topic.publish_many(["x", "last"])
    clock = TestClock()
    with channel.consumer() as consumer:
        consumer._clock = clock

        def handler(message: pynotify.Message) -> None:
            if message.body == b"last":
                consumer.drain()
            elif message.attempts == 1:
                getattr(message, answer)()

        consumer.run(handler)
    assert clock.pauses == []
    assert figures(channel) == ((1, 0, 0) if answer == "requeue" else (0, 0, 0))


def test_a_dead_letter_without_room_does_not_end_it(
    conn: pynotify.Connection,
    topic: pynotify.Topic,
    channel: pynotify.Channel,
    caplog: pytest.LogCaptureFixture,
) -> None:
    conn.topic("dead", max_depth=1, overflow="error").publish("it is full")
    topic.publish_many(numbered(5))
    caplog.set_level(logging.CRITICAL, "pynotify")
    got = []
    with channel.consumer(max_attempts=1, dead_letter="dead", max_in_flight=10) as consumer:
        consumer._clock = TestClock()

        def handler(message: pynotify.Message) -> bool:
            got.append(message.body)
            if len(got) == 5:
                consumer.drain()
            return message.body != b"0"

        consumer.run(handler, backoff=(60, 120))
        assert got == numbered(5)
        assert figures(channel) == (0, 0, 1)  # to be tried again


def test_a_lock_that_is_not_had_in_time_does_not_end_it(
    topic: pynotify.Topic,
    channel: pynotify.Channel,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    topic.publish_many(numbered(2))
    caplog.set_level(logging.CRITICAL, "pynotify")
    with channel.consumer() as consumer:
        clock = consumer._clock = TestClock()
        get, failures = consumer.get, [pynotify.LockTimeout("held"), pynotify.LockTimeout("held")]

        def get_at_last() -> pynotify.Message:
            if failures:
                raise failures.pop()
            return get()

        monkeypatch.setattr(consumer, "get", get_at_last)
        got = []

        def handler(message: pynotify.Message) -> None:
            got.append(message.body)
            if len(got) == 2:
                consumer.drain()

        consumer.run(handler)
        assert got == numbered(2)
        assert clock.pauses == [1, 2, 1]


def test_a_handler_that_takes_too_long(
    topic: pynotify.Topic, channel: pynotify.Channel, caplog: pytest.LogCaptureFixture
) -> None:
    topic.publish("x")
    caplog.set_level(logging.WARNING, "pynotify")
    with channel.consumer(msg_timeout=0.05) as consumer, channel.consumer() as other:

        def handler(_message: pynotify.Message) -> None:
            other.get(PATIENCE).finish()
            consumer.drain()

        consumer.run(handler)
    (record,) = caplog.records
    text = record.getMessage()
    assert "took too long" in text
    assert text.endswith("is not in flight")  # one line, and not the advice


def test_a_handler_that_closes_the_consumer(
    topic: pynotify.Topic, channel: pynotify.Channel, caplog: pytest.LogCaptureFixture
) -> None:
    """Its message went back; what is said is not that it was slow."""
    message_id = topic.publish("x")
    caplog.set_level(logging.WARNING, "pynotify")
    consumer = channel.consumer()
    consumer.run(lambda _message: consumer.close())
    (said,) = caplog.messages
    assert f"closed during the handler of message {message_id}" in said and "drain()" in said
    assert figures(channel) == (1, 0, 0)


def test_ctrl_c_in_a_handler(topic: pynotify.Topic, channel: pynotify.Channel) -> None:
    """Ends it, and the message goes back."""
    topic.publish("x")

    def handler(_message: pynotify.Message) -> None:
        raise KeyboardInterrupt

    with channel.consumer() as consumer:
        with pytest.raises(KeyboardInterrupt):
            consumer.run(handler)
        assert figures(channel) == (1, 0, 0)


def test_threads_may_run_one_consumer(topic: pynotify.Topic, channel: pynotify.Channel) -> None:
    got: list[bytes] = []
    drains: list[Call] = []
    lock = threading.Lock()
    topic.publish_many(numbered(400))
    with channel.consumer(max_in_flight=8) as consumer:

        def handler(message: pynotify.Message) -> None:
            with lock:
                got.append(message.body)
                if len(got) == 400:
                    drains.append(Call(consumer.drain))

        body: Callable[[], None] = lambda: consumer.run(handler)  # noqa: E731
        run_threads(body, body, body)
        drains[0].result()
    assert sorted(got, key=int) == numbered(400)


def test_closing_ends_a_pause(topic: pynotify.Topic, channel: pynotify.Channel) -> None:
    topic.publish("x")
    failed = Event()

    def handler(_message: pynotify.Message) -> bool:
        failed.set()
        return False

    with channel.consumer() as consumer:
        call = Call(consumer.run, handler, (1000.0, 1000.0))
        assert failed.wait(PATIENCE)
        wait_until(lambda: consumer._level == 0, "it pauses")
        assert consumer.stats().level == 0
        topic.publish("not for it")
        consumer.close()
        call.result()
    assert figures(channel) == (1, 0, 1)
