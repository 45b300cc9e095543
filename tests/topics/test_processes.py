"""Producers and consumers in several processes: forked, spawned, and killed."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
from collections.abc import Callable
from itertools import chain
from multiprocessing.connection import Connection as Pipe

import pytest
from consuming import SOON, assert_nothing, bodies, figures, numbered, take, work

import pynotify
from forking import ForkedChild, in_child
from receiving import PATIENCE, wait_until
from waiting import Call

MESSAGES = 2000


def consume_all(name: str, pipe: Pipe) -> None:
    """Until the test says that it is enough; what it got goes into the pipe."""
    got = []
    with pynotify.connect(name) as conn:
        consumer = conn.topic("work").channel("ch").consumer(max_in_flight=10)
        pipe.send("ready")
        for message in consumer:
            with message:
                if message.body == b"over":
                    break
                got.append(message.body)
    pipe.send(got)


def publish_all(name: str, first: int) -> None:
    with pynotify.connect(name) as conn:
        topic = conn.topic("work")
        for number in range(first, first + MESSAGES):
            topic.publish(b"%d" % number)


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_producers_and_consumers(new_name: Callable[[], str], method: str) -> None:
    """Two producers, three consumers, each message once, whatever the start method."""
    name = new_name()
    context = multiprocessing.get_context(method)
    pipes = [context.Pipe() for _ in range(3)]
    with pynotify.connect(name) as conn:
        topic = conn.topic("work")
        channel = topic.channel("ch")
        consumers = [
            context.Process(target=consume_all, args=(name, theirs)) for _, theirs in pipes
        ]
        producers = [
            context.Process(target=publish_all, args=(name, turn * MESSAGES)) for turn in range(2)
        ]
        for process in consumers:
            process.start()
        for ours, _ in pipes:
            assert ours.poll(2 * PATIENCE)
            assert ours.recv() == "ready"
        for process in producers:
            process.start()
        for process in producers:
            process.join(PATIENCE)
        wait_until(lambda: channel.stats().finished == 2 * MESSAGES, "all finished")
        topic.publish_many(["over"] * 3)
        got = [ours.recv() for ours, _ in pipes]
        for process in consumers:
            process.join(PATIENCE)
        assert sorted(chain(*got), key=int) == numbered(2 * MESSAGES)
        assert topic.stats().unfinished == 0
        assert channel.stats().consumers == []
        assert [process.exitcode for process in (*producers, *consumers)] == [0] * 5


def test_a_fork_has_no_part_in_it(
    conn: pynotify.Connection, topic: pynotify.Topic, channel: pynotify.Channel
) -> None:
    topic.publish_many(["a", "b"])
    consumer = channel.consumer(max_in_flight=2)
    message = consumer.get(PATIENCE)

    def use_everything() -> list[str]:
        uses: list[Callable[[], object]] = [
            lambda: topic.publish("x"), lambda: topic.publish("x", delay=1),
            lambda: topic.publish_many(["x"]), topic.stats, topic.channels, conn.topics,
            lambda: conn.topic("new"), lambda: topic.channel("new"), channel.stats, channel.pause,
            channel.peek, channel.consumer, lambda: consumer.get(0), lambda: consumer.get(1),
            consumer.stats, consumer.drain, consumer.fileno, message.finish, message.requeue,
            message.touch, message.dead_letter, lambda: next(consumer),
        ]  # fmt: skip
        said = []
        for use in uses:
            try:
                use()
                said.append("nothing")
            except pynotify.ForkedConnectionError as error:
                said.append(str(error).partition("\n")[0])
        consumer.close()
        conn.close()
        return said

    said = in_child(use_everything)
    assert {text for text in said if "process" not in text.lower()} == set()
    assert figures(channel) == (0, 2, 0), "the child's close() did nothing"
    message.finish()
    assert consumer.get(0).body == b"b"
    consumer.close()


def test_a_fork_while_a_thread_waits(channel: pynotify.Channel) -> None:
    """The child hangs neither on the lock of that thread nor in its place."""
    with channel.consumer() as consumer:
        call = Call(consumer.get)
        wait_until(lambda: consumer._asleep, "it waits")

        def look() -> str:
            with pytest.raises(pynotify.ForkedConnectionError) as refused:
                consumer.get(PATIENCE)
            return str(refused.value)

        assert str(os.getpid()) in in_child(look)
        consumer.close()
        call.error()


def test_a_fork_while_a_thread_takes_a_message(
    topic: pynotify.Topic, channel: pynotify.Channel
) -> None:
    """What the core has handed to that thread is in the child's memory as well."""
    topic.publish("a")
    with channel.consumer() as consumer:

        def look() -> None:
            for timeout in (0, PATIENCE):
                with pytest.raises(pynotify.ForkedConnectionError):
                    consumer.get(timeout)

        consumer._pending[0], consumer.in_core = 1, True  # as that thread has them
        try:
            in_child(look)
        finally:
            consumer._pending[0], consumer.in_core = 0, False
        assert consumer.get(PATIENCE).body == b"a"


def die_holding(name: str, count: int, channel: str = "ch") -> ForkedChild:
    """A child that has taken so many, and waits to be killed."""
    ready, told = multiprocessing.Pipe(duplex=False)

    def hold() -> None:
        conn = pynotify.connect(name)
        consumer = conn.topic("work").channel(channel).consumer(max_in_flight=count)
        take(consumer, count)
        told.send("ready")
        signal.pause()

    child = ForkedChild(hold)
    assert ready.poll(PATIENCE)
    assert ready.recv() == "ready"
    return child


def test_a_killed_consumer_releases_at_once(new_name: Callable[[], str]) -> None:
    """To a sleeper, which nothing wakes but that death."""
    name = new_name()
    with pynotify.connect(name) as conn:
        topic = conn.topic("work")
        channel = topic.channel("ch")
        topic.publish_many(numbered(3))
        child = die_holding(name, 3)
        with channel.consumer(max_in_flight=3) as consumer:
            call = Call(take, consumer, 3)
            wait_until(lambda: consumer._asleep, "it waits")
            os.kill(child.pid, signal.SIGKILL)
            messages = call.result()
            child.join()
            assert bodies(messages) == numbered(3)
            assert [message.attempts for message in messages] == [2, 2, 2]
        stats = channel.stats()
        assert (stats.timed_out, stats.requeued) == (0, 0)


@pytest.mark.parametrize("look", ["channel", "topic", "channels"])
@pytest.mark.parametrize("of_a_channel", ["ch", "ch#ephemeral"])
def test_statistics_notice_a_killed_consumer(
    new_name: Callable[[], str], look: str, of_a_channel: str
) -> None:
    """No process consumes, and none waits."""
    name = new_name()
    with pynotify.connect(name) as conn:
        topic = conn.topic("work")
        channel, ephemeral = topic.channel(of_a_channel), of_a_channel != "ch"
        topic.publish_many(numbered(3))
        child = die_holding(name, 3, of_a_channel)
        os.kill(child.pid, signal.SIGKILL)
        child.join()
        if look == "channel" and ephemeral:
            with pytest.raises(pynotify.TopicDeleted):
                channel.stats()
        elif look == "channel":
            stats = channel.stats()
            assert (stats.depth, stats.in_flight, stats.consumers) == (3, 0, [])
        elif look == "topic":
            counts = [each.in_flight for each in topic.stats().channels]
            assert counts == [0] * (not ephemeral)
        else:
            assert len(topic.channels()) == (not ephemeral)


def test_a_killed_consumer_and_a_descriptor(new_name: Callable[[], str]) -> None:
    import select

    name = new_name()
    with pynotify.connect(name) as conn:
        topic = conn.topic("work")
        topic.publish("x")
        child = die_holding(name, 1)
        with topic.channel("ch").consumer() as consumer:
            descriptor = consumer.fileno()
            assert_nothing(consumer)
            os.kill(child.pid, signal.SIGKILL)
            child.join()
            message = None
            while message is None:
                assert select.select([descriptor], [], [], PATIENCE)[0]
                with contextlib.suppress(pynotify.Timeout):
                    message = consumer.get(0)
            assert (message.body, message.attempts) == (b"x", 2)


def test_killed_producers_leave_whole_messages(new_name: Callable[[], str]) -> None:
    """Killed anywhere: what there is is a beginning of what was sent, without a gap."""
    name = new_name()
    size = 700
    with pynotify.connect(name) as conn:
        topic = conn.topic("work")
        channel = topic.channel("ch")
        for turn in range(10):

            def publish(turn: int = turn) -> None:
                mine = pynotify.connect(name).topic("work")
                number = 0
                while True:
                    if turn % 2:
                        mine.publish(b"%d " % number * size)
                        number += 1
                    else:
                        mine.publish_many([b"%d " % (number + i) * size for i in range(3)])
                        number += 3

            child = ForkedChild(publish)
            some = 30 + 7 * turn
            wait_until(lambda some=some: channel.stats().depth >= some, "some were published")
            os.kill(child.pid, signal.SIGKILL)
            child.join()
            count = channel.stats().depth
            with channel.consumer(max_in_flight=50) as consumer:
                for number, body in enumerate(work(consumer, count)):
                    assert body == b"%d " % number * size
                assert_nothing(consumer)
            assert turn % 2 or count % 3 == 0, "many are all or none"
            assert topic.stats().unfinished == 0
        with pynotify.open(name) as engine:
            assert engine.check().problems == []


def test_killed_in_a_transaction(new_name: Callable[[], str]) -> None:
    """A message moves from one topic to another and a notification with it, or none of it."""
    name = new_name()
    count = 3000
    with pynotify.connect(name) as conn:
        inbox, outbox = conn.topic("in"), conn.topic("out")
        done = outbox.channel("ch")
        source = inbox.channel("ch")
        inbox.publish_many(numbered(count))

        def move() -> None:
            mine = pynotify.connect(name)
            out = mine.topic("out")
            with mine.topic("in").channel("ch").consumer(max_in_flight=3) as consumer:
                for message in consumer:
                    with mine.transaction(), message:
                        out.publish(message.body)
                        mine.notify("moved", message.body)

        moved = 0
        while moved < count:
            child = ForkedChild(move)
            goal = min(moved + 400, count)
            wait_until(lambda goal=goal: done.stats().depth >= goal, "some were moved")
            os.kill(child.pid, signal.SIGKILL)
            child.join()
            moved = done.stats().depth
            left = source.stats()
            assert moved + left.depth + left.in_flight == count
        with done.consumer(max_in_flight=100) as consumer:
            assert sorted(work(consumer, count), key=int) == numbered(count)
        with pynotify.open(name) as engine:
            assert engine.check().problems == []


def test_a_process_that_ends_without_closing(new_name: Callable[[], str]) -> None:
    name = new_name()

    def leave() -> None:
        topic = pynotify.connect(name).topic("work")
        topic.publish("x")
        consumer = topic.channel("ch").consumer()
        consumer.get(PATIENCE)
        os._exit(0)

    child = ForkedChild(leave)
    child.join()
    with pynotify.connect(name) as conn:
        consumer = conn.topic("work").channel("ch").consumer()
        assert consumer.get(PATIENCE).attempts == 2


def test_closing_order(new_name: Callable[[], str]) -> None:
    """Whatever is dropped or closed first, messages go back and nothing crashes."""
    name = new_name()
    orders = ["mtc", "ctm", "cmt", "tcm"]
    with pynotify.connect(name) as watching:
        channel = watching.topic("work").channel("ch")
        watching.topic("work").publish("x")
        for order in orders:
            conn = pynotify.connect(name)
            consumer = conn.topic("work").channel("ch").consumer(msg_timeout=SOON + 60)
            message: pynotify.Message | None = consumer.get(PATIENCE)
            things = {"m": message, "t": consumer, "c": conn}
            del consumer, conn, message
            for letter in order:
                thing = things.pop(letter)
                if letter != "m":
                    thing.close()
                del thing
            assert figures(channel) == (1, 0, 0)
            assert channel.stats().consumers == []
        channel.empty()
        watching.topic("work").publish("x")
        consumer = pynotify.connect(name).topic("work").channel("ch").consumer()
        consumer.get(PATIENCE)
        del consumer
        import gc

        gc.collect()
        assert figures(channel) == (1, 0, 0), "forgotten is closed"


def test_a_consumer_lives_as_long_as_its_messages(
    topic: pynotify.Topic, channel: pynotify.Channel
) -> None:
    topic.publish("x")
    message = channel.consumer().get(PATIENCE)
    assert figures(channel) == (0, 1, 0)
    message.finish()
    assert channel.stats().finished == 1
