"""Jobs of a durable topic, whose workers are killed all the time, beside a channel without any.

Memory is little, so most of it is on disk.  Some jobs are deferred, some poison, whose dead letters
are a topic of their own.  Whatever was told to be published was finished or is a dead letter, and
the other channel has all of it, before a reboot and after it.  By hand for as long as is wanted:

    JOBS=500000 python -m pytest -m full tests/topics/test_jobs_killed.py
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

import pynotify
from forking import ForkedChild
from receiving import PATIENCE, wait_until

JOBS = int(os.environ.get("JOBS", "3000"))
WORKERS = 4
EACH = 40  # entries of the journals between two kills

Connect = Callable[[], pynotify.Connection]


def is_poison(job: int) -> bool:
    return job % 50 == 7


def numbers(path: Path) -> list[int]:
    """Of a journal, without what a death has cut off."""
    return [int(line) for line in path.read_text().split("\n")[:-1]] if path.exists() else []


def publish(connect: Connect, journal: Path) -> None:
    """From where the one before was killed, on: what that was publishing may come twice."""
    first = max(numbers(journal), default=-1) + 1
    with connect() as conn, journal.open("a", buffering=1) as told:
        topic = conn.topic("jobs", durable=True)
        for job in range(first, JOBS):
            topic.publish(b"%d %s" % (job, b"x" * 300), delay=0.02 if job % 9 == 0 else 0.0)
            told.write(f"{job}\n")


def work(connect: Connect, journal: Path) -> None:
    with connect() as conn, journal.open("a", buffering=1) as told:
        channel = conn.topic("jobs", durable=True).channel("work")
        with channel.consumer(max_in_flight=4, max_attempts=2, dead_letter="dead") as consumer:
            for message in consumer:
                job = int(message.body.split()[0])
                if is_poison(job):
                    message.requeue()
                else:
                    told.write(f"{job}\n")
                    message.finish()
                    told.write(f"{-1 - job}\n")


def take_all(channel: pynotify.Channel) -> set[int]:
    jobs: set[int] = set()
    with channel.consumer(max_in_flight=100) as consumer, contextlib.suppress(pynotify.Timeout):
        while True:
            message = consumer.get(timeout=0 if jobs else PATIENCE)
            jobs.add(int(message.body.split()[0]))
            message.finish()
    return jobs


def wait_for_more(told: Path) -> None:
    entries = told.stat().st_size if told.exists() else 0
    most = entries + 5 * EACH

    def there() -> bool:
        return len(numbers(told)) == JOBS or (told.exists() and told.stat().st_size >= most)

    wait_until(there, "jobs are published")


def kill(child: ForkedChild) -> None:
    os.kill(child.pid, signal.SIGKILL)
    child.join()


@pytest.mark.full
@pytest.mark.timeout(300 + JOBS // 20)
def test_nothing_is_lost_beside_an_abandoned_channel(segment_name: str, tmp_path: Path) -> None:
    def connect() -> pynotify.Connection:
        return pynotify.connect(segment_name, data_dir=tmp_path, topic_memory=1 << 20)

    tmp_path.chmod(0o700)
    told, journals = tmp_path / "told", [tmp_path / f"done.{i}" for i in range(WORKERS)]
    with connect() as conn:
        topic = conn.topic("jobs", durable=True)
        channel = topic.channel("work")
        topic.channel("abandoned")
        conn.topic("dead", durable=True).channel("look")
        ways = [partial(publish, connect, told)]
        ways += [partial(work, connect, path) for path in journals]
        children = [ForkedChild(way) for way in ways]
        kills = 0
        while len(numbers(told)) < JOBS:
            wait_for_more(told)
            which = random.randrange(len(ways))
            kill(children[which])
            children[which] = ForkedChild(ways[which])
            kills += 1
        wait_until(
            lambda: (s := channel.stats()).depth + s.in_flight + s.deferred == 0,
            "all is finished",
            PATIENCE + JOBS / 100,
        )
        for child in children:
            kill(child)
        assert topic.stats().on_disk > JOBS / 2
        done = {entry for path in journals for entry in numbers(path)}
    pynotify.unlink(segment_name, force=True)  # the log is left
    with connect() as conn:
        topic = conn.topic("jobs", durable=True)
        assert take_all(topic.channel("abandoned")) == set(range(JOBS))
        dead = take_all(conn.topic("dead", durable=True).channel("look"))
        assert topic.stats().on_disk == 0
        assert topic.channel("work").stats().depth == 0
    assert {job for job in range(JOBS) if is_poison(job)} <= dead
    assert {job for job in range(JOBS) if job not in done} <= dead
    # A worker may have been killed between finish() and its line in the journal.
    assert len({job for job in range(JOBS) if -1 - job not in done} - dead) <= kills + WORKERS
