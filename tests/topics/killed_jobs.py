"""A job queue whose processes are killed all the time, beside a channel without consumers.

Two durable topics of two segments run at once, and are treated alike: one has a second channel that
is not consumed, the other has not.  Memory is little, so that most waits on disk.  Jobs are
published one by one, in batches and in transactions, some deferred, some poison, whose dead letters
are a topic of their own.  In the end all processes are killed, the segments are unlinked, and what
the logs bring back is compared with the journals of what returned.

    python tests/topics/killed_jobs.py [SECONDS]        600 if not given; some 400 MB in TMPDIR
"""

from __future__ import annotations

import collections
import contextlib
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pynotify

WORKERS = 4
BACKLOG = 5000  # jobs that wait; memory has room for a fifth of them
MEMORY = 1 << 20
WORK = 0.002  # seconds for a job
PAUSE = 0.05  # seconds between two kills


def is_poison(job: int) -> bool:
    return job % 50 == 7


def lines(path: Path) -> Iterator[tuple[str, int, int]]:
    """Of a journal (what, job, which process published it), without what a death has cut off."""
    if path.exists():
        for line in path.read_text().split("\n")[:-1]:
            what, job, generation = line.split()
            yield what, int(job), int(generation)


def _last_job(path: Path) -> int:
    """Of a journal in ascending order; -1: it has none."""
    with contextlib.suppress(FileNotFoundError), path.open("rb") as journal:
        journal.seek(max(0, path.stat().st_size - 4096))
        whole = journal.read().split(b"\n")[:-1]
        return int(whole[-1].split()[1]) if whole else -1
    return -1


@dataclass
class Outcome:
    """Of one of the two; nothing may be `lost` or `doubled`."""

    kills: int = 0
    jobs: int = 0
    seconds: float = 0.0
    finished: int = 0  # in these seconds
    dead: int = 0
    most_on_disk: int = 0
    lost: set[int] = field(default_factory=set)
    doubled: set[tuple[int, int]] = field(default_factory=set)
    republished: int = 0  # by the successor of a publisher that was killed before it noted them

    @property
    def rate(self) -> float:
        return self.finished / self.seconds


class Queue:
    """A segment, its log and its processes."""

    def __init__(self, name: str, directory: Path, *, abandoned: bool) -> None:
        directory.mkdir(mode=0o700, parents=True)
        self.name, self.abandoned = name, abandoned
        self._data, self._told = directory / "data", directory / "told"
        self._data.mkdir(mode=0o700)
        self._journals = [directory / f"done.{i}" for i in range(WORKERS)]
        self._generation = 0
        self._children: list[int] = []
        self.outcome = Outcome()
        with self._connect() as conn:
            topic = self._topic(conn)
            topic.channel("work")
            if abandoned:
                topic.channel("abandoned")
            conn.topic("dead", durable=True).channel("look")
        self._ways: list[Callable[[], None]] = [self._publish]
        self._ways += [partial(self._work, path) for path in self._journals]
        self._children = [self._start(way) for way in self._ways]

    def _connect(self) -> pynotify.Connection:
        return pynotify.connect(self.name, data_dir=self._data, topic_memory=MEMORY)

    def _topic(self, conn: pynotify.Connection) -> pynotify.Topic:
        return conn.topic("jobs", durable=True)

    def _start(self, way: Callable[[], None]) -> int:
        self._generation += 1
        pid = os.fork()
        if pid == 0:
            try:
                way()
            except BaseException as error:
                os.write(2, f"{self.name}: {type(error).__name__}: {error}\n".encode())
            finally:
                os._exit(1)
        return pid

    # ---- the processes ---------------------------------------------------------------------------

    def _publish(self) -> None:
        """From where the one before was killed, on."""
        job = _last_job(self._told) + 1
        generation = self._generation
        with self._connect() as conn, self._told.open("a", buffering=1) as told:
            topic = self._topic(conn)
            work = topic.channel("work")
            while True:
                n = random.choice((1, 1, 1, 3, 5))
                jobs = range(job, job + n)
                bodies = [b"%d %d %s" % (each, generation, b"x" * 200) for each in jobs]
                if n == 1:
                    topic.publish(bodies[0], delay=0.05 if job % 9 == 0 else 0.0)
                elif n == 3:
                    with conn.transaction():
                        for body in bodies:
                            topic.publish(body)
                else:
                    topic.publish_many(bodies)
                told.write("".join(f"p {each} {generation}\n" for each in jobs))
                job += n
                if job % 20 < n:
                    while work.stats().depth + topic.stats().depth > BACKLOG:
                        time.sleep(0.005)

    def _work(self, journal: Path) -> None:
        with self._connect() as conn, journal.open("a", buffering=1) as told:
            channel = self._topic(conn).channel("work")
            with channel.consumer(max_in_flight=4, max_attempts=2, dead_letter="dead") as consumer:
                for message in consumer:
                    job, generation = (int(word) for word in message.body.split()[:2])
                    time.sleep(WORK)
                    if is_poison(job):
                        message.requeue()
                    else:
                        told.write(f"s {job} {generation}\n")
                        message.finish()
                        told.write(f"f {job} {generation}\n")

    # ---- what is done to them --------------------------------------------------------------------

    def kill_one(self) -> None:
        which = random.randrange(len(self._ways))
        self._kill(which)
        self._children[which] = self._start(self._ways[which])
        self.outcome.kills += 1

    def _kill(self, which: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._children[which], signal.SIGKILL)
            os.waitpid(self._children[which], 0)

    def look(self) -> None:
        with self._connect() as conn:
            on_disk = self._topic(conn).stats().on_disk
        self.outcome.most_on_disk = max(on_disk, self.outcome.most_on_disk)

    def measure(self, seconds: float) -> None:
        """What was finished until now."""
        self.outcome.seconds = seconds
        self.outcome.finished = sum(what == "f" for p in self._journals for what, _, _ in lines(p))

    def drain(self, patience: float) -> bool:
        """The publisher ends; the workers go on until nothing waits any more."""
        self._kill(0)
        end = time.monotonic() + patience
        with self._connect() as conn:
            topic = self._topic(conn)
            work = topic.channel("work")
            while time.monotonic() < end:
                stats = work.stats()
                if stats.depth + stats.in_flight + stats.deferred == 0:
                    return True
                time.sleep(0.1)
        return False

    def close(self) -> None:
        for which in range(len(self._children)):
            self._kill(which)
        self._children.clear()
        pynotify.unlink(self.name, force=True, missing_ok=True)

    # ---- what became of the jobs -----------------------------------------------------------------

    def verify(self) -> None:
        """After close(), from the log."""
        told = [(job, generation) for _, job, generation in lines(self._told)]
        ends = collections.Counter(
            (job, generation)
            for path in self._journals
            for what, job, generation in lines(path)
            if what == "f"
        )
        begun = {job for path in self._journals for what, job, _ in lines(path) if what == "s"}
        outcome = self.outcome
        outcome.jobs = len(told)
        outcome.doubled = {each for each, times in ends.items() if times > 1}
        outcome.republished = len(ends) - len({job for job, _ in ends})
        with self._connect() as conn:
            topic = self._topic(conn)
            dead = _take_all(conn.topic("dead", durable=True).channel("look"))
            left = _take_all(topic.channel("work"))
            abandoned = _take_all(topic.channel("abandoned")) if self.abandoned else None
        outcome.dead = sum(dead.values())
        # A worker may have been killed between finish() and the line that says so.
        over = begun | {job for job, _ in dead}
        outcome.lost = {job for job, _ in told} - over
        if left:
            outcome.lost |= {job for job, _ in left}
        if abandoned is not None:
            outcome.lost |= {job for job, _ in set(told) - set(abandoned)}
            outcome.doubled |= {each for each, times in abandoned.items() if times > 1}
        pynotify.unlink(self.name, force=True)


def _take_all(channel: pynotify.Channel) -> collections.Counter[tuple[int, int]]:
    jobs: collections.Counter[tuple[int, int]] = collections.Counter()
    with channel.consumer(max_in_flight=1000, max_attempts=0) as consumer:
        while True:
            stats = channel.stats()
            if stats.depth + stats.in_flight + stats.deferred == 0:
                return jobs
            with contextlib.suppress(pynotify.Timeout):
                while True:
                    message = consumer.get(timeout=0.2)
                    job, generation = (int(word) for word in message.body.split()[:2])
                    jobs[job, generation] += 1
                    message.finish()


def run(seconds: float, name: str, directory: Path) -> tuple[Outcome, Outcome]:
    """With the channel that is not consumed, and without."""
    queues = [
        Queue(f"{name}-{word}", directory / word, abandoned=word == "beside")
        for word in ("beside", "alone")
    ]
    try:
        begin = time.monotonic()
        rounds = 0
        while time.monotonic() - begin < seconds:
            time.sleep(PAUSE)
            rounds += 1
            for queue in queues:
                queue.kill_one()
                if rounds % 20 == 0:
                    queue.look()
        spent = time.monotonic() - begin
        for queue in queues:
            queue.look()
            queue.measure(spent)
        drained = [queue.drain(30 + seconds) for queue in queues]
    finally:
        for queue in queues:
            queue.close()
    for queue, empty in zip(queues, drained, strict=True):
        queue.verify()
        assert empty, f"{queue.name} was not drained"
    return queues[0].outcome, queues[1].outcome


def _main(seconds: float) -> int:
    directory = Path(tempfile.mkdtemp(prefix="pynotify-killed-jobs-"))
    try:
        outcomes = run(seconds, f"killed-jobs-{os.getpid()}", directory)
    finally:
        shutil.rmtree(directory)
    for word, each in zip(("beside an abandoned channel", "alone"), outcomes, strict=True):
        print(
            f"{word}: {each.kills:,} kills in {each.seconds:.0f} s, {each.jobs:,} jobs, "
            f"{len(each.lost)} lost, {len(each.doubled)} doubled, {each.dead:,} dead letters, "
            f"at most {each.most_on_disk:,} on disk, {each.rate:,.0f} finished a second"
        )
    beside, alone = outcomes
    print(f"rate beside an abandoned channel: {beside.rate / alone.rate:.3f} of that alone")
    return int(any(each.lost or each.doubled for each in outcomes))


if __name__ == "__main__":
    sys.exit(_main(float(sys.argv[1]) if len(sys.argv) > 1 else 600.0))
