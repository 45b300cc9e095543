"""Waiting for a message: threads, descriptors, signals; fairness; and what ends the waiting."""

from __future__ import annotations

import contextlib
import select
import signal
import threading
import time
from collections.abc import Callable
from itertools import chain

import pytest
from consuming import SOON, assert_nothing, figures, numbered, take, work

import pynotify
from crowd import run_threads
from receiving import PATIENCE, readable, wait_until
from sessions import Connect
from waiting import Call


def waiting(consumer: pynotify.Consumer) -> bool:
    return consumer._asleep


def waiter(consumer: pynotify.Consumer, *arguments: float) -> Call:
    """A thread that waits in get()."""
    call = Call(consumer.get, *arguments)
    wait_until(lambda: waiting(consumer) or call.ended, "it waits")
    return call


def test_a_waiting_thread_is_woken(topic: pynotify.Topic, channel: pynotify.Channel) -> None:
    with channel.consumer() as consumer:
        call = waiter(consumer)
        topic.publish("x")
        assert call.result().body == b"x"


def test_it_is_woken_in_time_for_what_is_deferred(
    topic: pynotify.Topic, channel: pynotify.Channel
) -> None:
    """Also when something earlier comes while it waits."""
    topic.publish("third", delay=0.3)
    with channel.consumer(max_in_flight=3) as consumer:
        call = waiter(consumer)
        topic.publish("second", delay=0.2)
        topic.publish("first", delay=0.1)
        assert call.result().body == b"first"
        assert [message.body for message in take(consumer, 2)] == [b"second", b"third"]


def test_timers_are_exact(topic: pynotify.Topic, channel: pynotify.Channel) -> None:
    """A deferred message is not early, and mostly not later than 5 ms; the best of ten counts."""
    late = []
    with channel.consumer() as consumer:
        for _ in range(10):
            began = time.monotonic_ns()
            topic.publish("x", delay=0.03)
            consumer.get(PATIENCE).finish()
            late.append(time.monotonic_ns() - began - 30_000_000)
    assert 0 <= min(late) < 5_000_000


def test_time_outs_are_exact(topic: pynotify.Topic, channel: pynotify.Channel) -> None:
    late = []
    with channel.consumer(max_in_flight=2, msg_timeout=0.03, max_attempts=0) as consumer:
        topic.publish("x")
        for _ in range(10):
            began = time.monotonic_ns()
            consumer.get(PATIENCE)
            again = consumer.get(PATIENCE)
            late.append(time.monotonic_ns() - began - 30_000_000)
            again.requeue()
    assert -2_000_000 <= min(late) < 5_000_000


def test_timeout_of_get(channel: pynotify.Channel) -> None:
    with channel.consumer() as consumer:
        for timeout in (0, -1, 0.01):
            with pytest.raises(pynotify.Timeout, match="orders/billing"):
                consumer.get(timeout)
        with pytest.raises(TimeoutError):
            consumer.get(0.001)
        with pytest.raises(ValueError, match="NaN"):
            consumer.get(float("nan"))


@pytest.mark.parametrize("how", ["consumer", "connection", "drain"])
def test_closing_wakes_waiting_consumers(
    conn: pynotify.Connection, channel: pynotify.Channel, how: str
) -> None:
    consumer = channel.consumer()
    calls = [waiter(consumer), Call(consumer.get, PATIENCE), Call(list, consumer)]
    {"consumer": consumer.close, "connection": conn.close, "drain": consumer.drain}[how]()
    for call in calls[:2]:
        assert isinstance(call.error(), pynotify.InterfaceError)
    assert calls[2].result() == []
    with pytest.raises(pynotify.InterfaceError):
        consumer.get(0)
    consumer.close()
    consumer.close()
    assert consumer.closed


@pytest.mark.parametrize("what", ["channel", "topic"])
def test_deleting_wakes_waiting_consumers(
    topic: pynotify.Topic, channel: pynotify.Channel, connect: Connect, what: str
) -> None:
    consumer = connect().topic("orders").channel("billing").consumer()
    call = waiter(consumer)
    (channel if what == "channel" else topic).delete()
    assert isinstance(call.error(), pynotify.TopicDeleted)
    with pytest.raises(pynotify.TopicDeleted):
        consumer.get(0)
    consumer.close()


def test_unpausing_and_room_wake_waiting_consumers(
    topic: pynotify.Topic, channel: pynotify.Channel
) -> None:
    channel.pause()
    topic.publish_many(["a", "b"])
    with channel.consumer() as consumer:
        call = waiter(consumer)
        channel.unpause()
        first = call.result()
        call = waiter(consumer)
        first.finish()
        assert call.result().body == b"b", "its own thread's answer made room"


def test_threads_share_a_consumer(topic: pynotify.Topic, channel: pynotify.Channel) -> None:
    """Each message once, to consumers that wait, look, or find nothing."""
    got: list[list[bytes]] = [[] for _ in range(5)]
    with channel.consumer(max_in_flight=10) as consumer:

        def consume(mine: list[bytes], timeout: float) -> Callable[[], None]:
            def body() -> None:
                while sum(map(len, got)) < 2000:
                    with contextlib.suppress(pynotify.Timeout), consumer.get(timeout) as message:
                        mine.append(message.body)

            return body

        def publish() -> None:
            for number in range(2000):
                topic.publish(b"%d" % number)

        timeouts = (0.05, 0.05, 0, 0.001, 0)
        run_threads(publish, *map(consume, got, timeouts))
    assert sorted(chain(*got), key=int) == numbered(2000)


def test_looking_does_not_wait_for_a_sleeper(channel: pynotify.Channel) -> None:
    with channel.consumer() as consumer:
        call = waiter(consumer)
        assert_nothing(consumer)
        with pytest.raises(pynotify.Timeout):
            consumer.get(0.01)
        consumer.close()
        assert isinstance(call.error(), pynotify.InterfaceError)


def test_a_handler_of_python_may_get(topic: pynotify.Topic, channel: pynotify.Channel) -> None:
    """It runs in the middle of a get() of its own thread."""
    got = []
    with channel.consumer(max_in_flight=2) as consumer:

        def handler(_number: int, _frame: object) -> None:
            topic.unpause()
            got.append(consumer.get(0).body)
            topic.publish("second")

        before = signal.signal(signal.SIGALRM, handler)
        try:

            def alarm() -> None:
                wait_until(lambda: waiting(consumer), "it waits")
                topic.pause()
                topic.publish("first")
                signal.pthread_kill(threading.main_thread().ident, signal.SIGALRM)

            call = Call(alarm)
            assert consumer.get(PATIENCE).body == b"second"
            call.result()
            assert got == [b"first"]
        finally:
            signal.signal(signal.SIGALRM, before)


def test_ctrl_c_ends_waiting_and_loses_nothing(
    topic: pynotify.Topic, channel: pynotify.Channel
) -> None:
    with channel.consumer() as consumer:

        def interrupt() -> None:
            wait_until(lambda: waiting(consumer), "it waits")
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

        call = Call(interrupt)
        with pytest.raises(KeyboardInterrupt):
            consumer.get(PATIENCE)
        call.result()
        topic.publish("x")
        assert consumer.get(PATIENCE).attempts == 1


def test_an_exception_between_taking_and_returning_releases(
    topic: pynotify.Topic, channel: pynotify.Channel
) -> None:
    """Ctrl-C may come anywhere; here it comes while the message is made."""
    topic.publish_many(["a", "b"])
    with channel.consumer() as consumer:
        made = consumer._message

        def interrupted(*_arguments: object) -> None:
            raise KeyboardInterrupt

        consumer._message = interrupted
        with pytest.raises(KeyboardInterrupt):
            consumer.get(0)
        consumer._message = made
        assert figures(channel) == (2, 0, 0)
        message = consumer.get(0)
        assert (message.body, message.attempts) == (b"a", 1), "as if it had not been delivered"
        assert (channel.stats().requeued, channel.stats().timed_out) == (0, 0)


# ---- descriptors ---------------------------------------------------------------------------------


def test_the_descriptor_is_level_triggered(
    topic: pynotify.Topic, channel: pynotify.Channel
) -> None:
    with channel.consumer(max_in_flight=10) as consumer:
        descriptor = consumer.fileno()
        assert consumer.fileno() == descriptor
        assert_nothing(consumer)
        assert not readable(descriptor)
        topic.publish_many(["a", "b"])
        assert readable(descriptor, PATIENCE)
        assert readable(descriptor)
        consumer.get(0).finish()
        assert readable(descriptor, PATIENCE), "there is another"
        consumer.get(0).finish()
        assert_nothing(consumer)
        assert not readable(descriptor)


@pytest.mark.parametrize("by", ["delay", "time-out", "closing", "unpausing", "room", "deleting"])
def test_what_makes_it_readable(
    topic: pynotify.Topic, channel: pynotify.Channel, connect: Connect, by: str
) -> None:
    other = connect().topic("orders").channel("billing").consumer(msg_timeout=SOON)
    with channel.consumer() as consumer, other:
        descriptor = consumer.fileno()
        own = None
        if by in ("time-out", "closing"):
            topic.publish("x")
            other.get(PATIENCE)
        elif by == "room":
            topic.publish_many(["mine", "x"])
            own = consumer.get(PATIENCE)
        elif by == "unpausing":
            channel.pause()
            topic.publish("x")
        elif by == "delay":
            topic.publish("x", delay=SOON)
        assert_nothing(consumer)
        {"closing": other.close, "unpausing": channel.unpause, "room": own and own.finish,
         "deleting": channel.delete}.get(by, lambda: None)()  # fmt: skip
        assert readable(descriptor, PATIENCE)
        if by == "deleting":
            with pytest.raises(pynotify.TopicDeleted):
                consumer.get(0)
        else:
            # A timer may be a hair early; the descriptor stays readable, or becomes it again.
            message = None
            while message is None:
                with contextlib.suppress(pynotify.Timeout):
                    message = consumer.get(0)
                if message is None:
                    assert readable(descriptor, PATIENCE)
            assert message.body == b"x"


def test_many_consumers_in_one_epoll(conn: pynotify.Connection) -> None:
    """Each has a descriptor of its own, and hears only what is for it."""
    topics = [conn.topic(f"t{number}") for number in range(5)]
    with contextlib.ExitStack() as stack, select.epoll() as epoll:
        consumers = {}
        for topic in topics:
            consumer = stack.enter_context(topic.channel("c").consumer())
            consumers[consumer.fileno()] = consumer
            epoll.register(consumer.fileno(), select.EPOLLIN)
            assert_nothing(consumer)
        topics[3].publish("x")
        ((ready, _),) = epoll.poll(PATIENCE)
        assert consumers[ready].channel.topic is topics[3]
        assert consumers[ready].get(0).body == b"x"


# ---- fairness ------------------------------------------------------------------------------------


def test_work_is_shared_out(topic: pynotify.Topic, connect: Connect) -> None:
    """Consumers that are equally busy get about as much."""
    got = [0, 0, 0, 0]
    channels = [connect().topic("orders").channel("ch") for _ in got]
    with contextlib.ExitStack() as stack:
        consumers = [
            stack.enter_context(channel.consumer(max_in_flight=100)) for channel in channels
        ]
        topic.publish_many(numbered(4000))
        while sum(got) < 4000:
            for index, consumer in enumerate(consumers):
                with contextlib.suppress(pynotify.Timeout):
                    consumer.get(0).finish()
                    got[index] += 1
    assert min(got) > 600, got


def test_a_full_consumer_leaves_it_to_the_others(topic: pynotify.Topic, connect: Connect) -> None:
    busy = connect().topic("orders").channel("ch").consumer(max_in_flight=2)
    free = connect().topic("orders").channel("ch").consumer(max_in_flight=50)
    with busy, free:
        topic.publish_many(numbered(2))
        take(busy, 2)
        topic.publish_many(numbered(50))
        assert len(take(free, 50)) == 50
        assert_nothing(busy)


def test_what_was_fetched_ahead_does_not_time_out_unseen(
    topic: pynotify.Topic, connect: Connect
) -> None:
    """A slow consumer that holds more than it has got loses that at its time-out, and skips it."""
    slow = connect().topic("orders").channel("ch").consumer(max_in_flight=10, msg_timeout=SOON)
    topic.publish_many(numbered(10))
    with slow:
        slow.get(PATIENCE)
        with connect().topic("orders").channel("ch").consumer(max_in_flight=10) as other:
            assert sorted(work(other, 10), key=int) == numbered(10)
        assert_nothing(slow)
        assert slow.stats().in_flight == 0


def test_drain_hears_of_the_last_answer(
    topic: pynotify.Topic, channel: pynotify.Channel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It looks now and then as well, for time-outs, which is not waited for here."""
    monkeypatch.setattr("pynotify.topics._consumer._DRAIN_S", threading.TIMEOUT_MAX)
    with channel.consumer() as consumer:
        topic.publish("x")
        message = consumer.get(0)
        call = Call(consumer.drain, None)
        wait_until(lambda: consumer.draining or call.ended, "it drains")
        message.finish()
        assert call.result() is True
