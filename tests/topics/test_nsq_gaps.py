"""What NSQ's own tests leave out: races of answers, wrong owners, ends of consumers, the clock."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest
from consuming import SOON, assert_nothing, bodies, figures, numbered, take, work

import pynotify
from crowd import run_threads
from forking import ForkedChild, in_child
from programs import environment
from receiving import PATIENCE
from requirement import require
from sessions import Connect

LATE = (pynotify.MessageNotInFlight, pynotify.NotOwner)
GONE = (*LATE, pynotify.TopicDeleted, pynotify.InterfaceError)


def test_two_fins_racing(topic: pynotify.Topic, channel: pynotify.Channel) -> None:
    """Of two threads that finish one message, one succeeds."""
    topic.publish_many(numbered(200))
    with channel.consumer(max_in_flight=200) as consumer:
        messages = take(consumer, 200)
        refused: list[str] = []

        def finish() -> None:
            for message in messages:
                try:
                    message.finish()
                except pynotify.MessageNotInFlight:
                    refused.append(message.id)

        run_threads(finish, finish)
        assert sorted(refused) == [message.id for message in messages]
        assert channel.stats().finished == consumer.stats().finished == 200


def test_fin_by_the_wrong_client(topic: pynotify.Topic, connect: Connect) -> None:
    """A consumer that lost it to another cannot answer it, in any way, and disturbs nothing."""
    topic.publish("x")
    mine = topic.channel("ch").consumer(msg_timeout=SOON)
    other = connect().topic("orders").channel("ch").consumer()
    with mine, other:
        late = mine.get(PATIENCE)
        mine.drain()
        again = other.get(PATIENCE)
        for answer in (late.finish, late.requeue, late.touch, late.dead_letter):
            with pytest.raises(pynotify.NotOwner):
                answer()
        assert figures(topic.channel("ch")) == (0, 1, 0)
        again.finish()
        for answer in (late.finish, late.requeue, late.touch, late.dead_letter):
            with pytest.raises(pynotify.MessageNotInFlight):
                answer()


def test_touch_beyond_max_msg_timeout(topic: pynotify.Topic, channel: pynotify.Channel) -> None:
    """However often it is touched, it times out at last."""
    topic.publish("x")
    with channel.consumer(max_in_flight=2, msg_timeout=0.1, max_msg_timeout=0.2) as consumer:
        message = consumer.get(PATIENCE)
        again = None
        while again is None:
            with contextlib.suppress(*LATE):
                message.touch()
            with contextlib.suppress(pynotify.Timeout):
                again = consumer.get(0.005)
        assert (again.attempts, consumer.stats().timed_out) == (2, 1)
        again.finish()


def test_cls_then_fin(topic: pynotify.Topic, channel: pynotify.Channel) -> None:
    """Drained, it gets nothing more, and what it has can be answered in every way."""
    topic.publish_many(numbered(10))
    with channel.consumer(max_in_flight=4) as consumer:
        first, second, third = take(consumer, 3)
        assert not consumer.drain()
        assert figures(channel) == (7, 3, 0), "what was fetched ahead is back"
        with pytest.raises(pynotify.InterfaceError, match="drained"):
            consumer.get(0)
        assert list(consumer) == []
        first.touch()
        first.finish()
        second.requeue(3600)
        assert not consumer.drain(0.01)
        third.requeue()
        assert consumer.drain(None)
        assert figures(channel) == (8, 0, 1)
        assert bodies(channel.peek(8)) == [*numbered(10)[3:], b"2"]


def test_disconnect_with_in_flight(topic: pynotify.Topic, channel: pynotify.Channel) -> None:
    """At the head, in the old order, as if nothing had been; the attempt counts."""
    topic.publish_many(numbered(6))
    with channel.consumer(max_in_flight=5) as consumer:
        messages = take(consumer, 5)
        messages[1].finish()
        messages[3].requeue()
    assert figures(channel) == (5, 0, 0)
    assert bodies(channel.peek()) == [b"0", b"2", b"4", b"5", b"3"]
    stats = channel.stats()
    assert (stats.requeued, stats.timed_out) == (1, 0)
    with channel.consumer() as other:
        assert other.get(PATIENCE).attempts == 2


def test_exit_and_restart(new_name: Callable[[], str]) -> None:
    """In flight and deferred when all processes end: it is there, with attempts and delays."""
    name = new_name()

    def leave() -> None:
        conn = pynotify.connect(name)
        topic = conn.topic("test")
        channel = topic.channel("ch")
        topic.publish_many(numbered(4))
        topic.publish("deferred", delay=3600)
        consumer = channel.consumer(max_in_flight=2)
        first, second = take(consumer, 2)
        first.requeue()
        again = take(consumer, 1)
        assert (second.body, again[0].body) == (b"1", b"2")
        os._exit(0)

    with contextlib.suppress(Exception):
        in_child(leave)
    with pynotify.connect(name) as conn:
        channel = conn.topic("test").channel("ch")
        with channel.consumer(max_in_flight=4) as consumer:
            taken = take(consumer, 4)
            assert [(each.body, each.attempts) for each in taken] == [
                (b"1", 2), (b"2", 2), (b"3", 1), (b"0", 2)
            ]  # fmt: skip
            (deferred,) = (each for each in channel.peek() if each.state == "deferred")
            assert 3500 < deferred.due_in <= 3600
            for message in taken:
                message.finish()


@pytest.mark.parametrize("end", ["empty", "delete", "close"])
def test_answers_racing(conn: pynotify.Connection, end: str) -> None:
    """REQ and FIN while the channel is emptied or deleted, or the consumer closed: none is lost
    between, none does harm."""
    topic = conn.topic("race")
    for turn in range(10):
        channel = topic.channel(f"ch{turn}")
        topic.publish_many(numbered(100))
        consumer = channel.consumer(max_in_flight=100)
        messages = take(consumer, 100)
        finished: list[bytes] = []

        def answer(
            messages: list[pynotify.Message] = messages, finished: list[bytes] = finished
        ) -> None:
            for message in messages:
                with contextlib.suppress(*GONE):
                    if int(message.body) % 2:
                        message.requeue(0 if int(message.body) % 4 == 1 else 3600)
                    else:
                        message.finish()
                        finished.append(message.body)

        run_threads(answer, getattr(consumer if end == "close" else channel, end))
        if end == "close":
            ready, in_flight, deferred = figures(channel)
            assert (ready + deferred, in_flight) == (100 - len(finished), 0)
        elif end == "empty":
            assert figures(channel)[1] == 0
        consumer.close()
        if end != "delete":
            channel.delete()
        assert topic.stats().unfinished == 0


def consume_and_note(name: str, path: Path) -> None:
    """Until killed; what it knows to be finished stands in the file."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    consumer = pynotify.connect(name).topic("test").channel("ch").consumer(max_in_flight=5)
    for message in consumer:
        os.write(descriptor, b"got %s\n" % message.body)
        message.finish()
        os.write(descriptor, b"done %s\n" % message.body)


def test_sigkill_at_random_points(new_name: Callable[[], str], tmp_path: Path) -> None:
    """Consumers are killed again and again: nothing is lost, what was finished comes no more."""
    name, rng, count = new_name(), random.Random(5), 3000
    path = tmp_path / "log"
    with pynotify.connect(name) as conn:
        topic = conn.topic("test")
        channel = topic.channel("ch")
        topic.publish_many(numbered(count))
        while channel.stats().finished < count:
            child = ForkedChild(lambda: consume_and_note(name, path))
            goal = min(channel.stats().finished + rng.randrange(50, 400), count)
            while channel.stats().finished < goal:
                pass
            os.kill(child.pid, signal.SIGKILL)
            child.join()
        stats = channel.stats()
        assert (figures(channel), stats.timed_out, stats.requeued) == ((0, 0, 0), 0, 0)
        assert pynotify.open(name).check().problems == []
    lines = path.read_text().splitlines()
    assert {line for line in lines if line.startswith("got")} == {f"got {n}" for n in range(count)}
    done: set[str] = set()
    for line in lines:
        word, number = line.split()
        assert number not in done or word != "got", f"{number} came after it was finished"
        if word == "done":
            done.add(number)


def test_ephemeral_overflow(make_engine: Callable[..., pynotify.Engine], connect: Connect) -> None:
    """What an ephemeral channel has no room for is dropped there, counted, and nowhere else."""
    topic = connect(to=make_engine(topic_memory=256 * 1024)).topic("t", overflow="error")
    slow = topic.channel("slow#ephemeral")
    with slow.consumer():
        published = 0
        for number in range(5000):
            try:
                topic.publish(b"%d" % number + bytes(200))
            except pynotify.TopicFull:
                break
            published += 1
        stats = slow.stats()
        assert stats.depth + stats.dropped == published
        assert stats.depth > 0
        with topic.channel("kept").consumer() as consumer:
            assert_nothing(consumer)


STEP = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <time.h>
static int (*real)(clockid_t, struct timespec *);
int clock_gettime(clockid_t clock, struct timespec *out)
{
    static int calls;
    if (!real)
        real = (int (*)(clockid_t, struct timespec *)) dlsym(RTLD_NEXT, "clock_gettime");
    int result = real(clock, out);
    if (clock == CLOCK_REALTIME)
        out->tv_sec += (calls++ % 3 - 1) * 86400;
    return result;
}
"""


def test_clock_step(new_name: Callable[[], str], tmp_path: Path) -> None:
    """The wall clock jumps by a day at every look: ids are unique, and times are kept."""
    if not shutil.which("cc"):
        require("compiler")
    (tmp_path / "step.c").write_text(STEP)
    library = tmp_path / "step.so"
    subprocess.run(
        ["cc", "-shared", "-fPIC", "-o", library, tmp_path / "step.c", "-ldl"], check=True
    )
    program = f"""
        import pynotify
        with pynotify.connect({new_name()!r}) as conn:
            topic = conn.topic("t")
            channel = topic.channel("c")
            ids = [topic.publish(str(n), delay={SOON}, ttl=3600) for n in range(50)]
            assert ids == sorted(set(ids))
            with channel.consumer(max_in_flight=100, msg_timeout={SOON}) as consumer:
                first = [consumer.get({PATIENCE}).body for _ in range(50)]
                again = [consumer.get({PATIENCE}) for _ in range(50)]
                assert sorted(first) == sorted(m.body for m in again)
                assert {{m.attempts for m in again}} == {{2}}
            print("kept")
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        env={**environment(), "LD_PRELOAD": str(library)},
        capture_output=True,
        text=True,
        timeout=3 * PATIENCE,
        check=False,
    )
    assert (done.stdout, done.stderr) == ("kept\n", "")


def test_work_goes_on_after_all_this(topic: pynotify.Topic, channel: pynotify.Channel) -> None:
    topic.publish("x")
    with channel.consumer() as consumer:
        assert work(consumer, 1) == [b"x"]
