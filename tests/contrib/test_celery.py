"""Celery on the kombu transport: workers of which one is killed, replies, remote control."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import pynotify
from programs import ROOT, environment
from receiving import PATIENCE, wait_until
from requirement import require

try:
    import celery  # noqa: F401
except ImportError as missing:
    require("celery", str(missing))

from kombu_peer import Peer, topics

pytestmark = pytest.mark.full  # a worker needs seconds to start and to stop

EXAMPLES = ROOT / "examples" / "adapters"
TASKS = 400


class Cluster:
    """Workers of the example, each with two processes for tasks."""

    def __init__(self, segment: str, tmp_path: Path) -> None:
        self.segment, self.journal = segment, tmp_path / "journal"
        self.env = {
            **environment(),
            "SEGMENT": segment,
            "JOURNAL": str(self.journal),
            "PYTHONPATH": f"{EXAMPLES}:{ROOT}",
        }
        self.workers: list[subprocess.Popen[str]] = []

    def start(self, count: int) -> None:
        command = [sys.executable, "-m", "celery", "-A", "celery_tasks", "worker"]
        for number in range(count):
            options = ["--concurrency", "2", "--hostname", f"w{number}@h"]
            self.workers.append(
                subprocess.Popen(
                    [*command, *options],
                    env=self.env,
                    cwd=EXAMPLES,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    text=True,
                    start_new_session=True,
                )
            )
        wait_until(lambda: self.consumers("kombu.celery") == count, "all consume", 3 * PATIENCE)

    def topics(self) -> dict[str, pynotify.TopicStats]:
        with pynotify.open(self.segment) as segment:
            return {topic.name: topic for topic in segment.topics()}

    def consumers(self, topic: str) -> int:
        found = self.topics().get(topic)
        return 0 if found is None else sum(len(each.consumers) for each in found.channels)

    def lines(self) -> list[list[str]]:
        if not self.journal.exists():
            return []
        return [line.split() for line in self.journal.read_text().splitlines()]

    def run(self, *command: str | Path) -> str:
        done = subprocess.run(
            [sys.executable, *command],
            env=self.env,
            cwd=EXAMPLES,
            capture_output=True,
            text=True,
            timeout=6 * PATIENCE,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def close(self) -> None:
        for worker in self.workers:
            if worker.poll() is None:
                os.killpg(worker.pid, signal.SIGKILL)
            worker.communicate()
        with pynotify.open(self.segment) as segment:
            wait_until(lambda: not segment.stat().backends, "their slots are free")


@pytest.fixture
def cluster(segment_name: str, tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(segment_name, tmp_path)
    yield made
    made.close()


def test_four_workers_of_which_one_is_killed(cluster: Cluster) -> None:
    """Under load; all results come back, those of what the killed one had from others."""
    cluster.start(4)
    caller = subprocess.Popen(
        [sys.executable, EXAMPLES / "celery_tasks.py", str(TASKS)],
        env=cluster.env,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        wait_until(lambda: len(cluster.lines()) > TASKS // 10, "some are run", 3 * PATIENCE)
        os.killpg(cluster.workers[0].pid, signal.SIGKILL)
        said, _ = caller.communicate(timeout=6 * PATIENCE)
    finally:
        caller.kill()
        caller.communicate()
    assert said.split() == [str(sum(number * number for number in range(TASKS)))]
    assert {line[1] for line in cluster.lines()} == set(map(str, range(TASKS)))
    assert len({line[0] for line in cluster.lines()}) == 4, "each worker has run some"
    wait_until(lambda: cluster.topics()["kombu.celery"].unfinished == 0, "all are acknowledged")
    # The killed one's control queue is removed by the next process that connects.
    status = cluster.run("-m", "celery", "-A", "celery_tasks", "inspect", "ping", "--json")
    assert all(f'"w{number}@h": {{"ok": "pong"}}' in status for number in (1, 2, 3))
    assert "w0@h" not in status
    assert sum("pidbox" in name for name in cluster.topics()) == 3


def test_a_worker_stops_gracefully(cluster: Cluster) -> None:
    """Nothing of it is left, nor, as the next process connects, of the one that had the reply."""
    cluster.start(1)
    (worker,) = cluster.workers
    assert cluster.run("celery_tasks.py", "3").split() == ["5"]
    worker.send_signal(signal.SIGTERM)
    said, _ = worker.communicate(timeout=3 * PATIENCE)
    assert worker.returncode == 0, said
    Peer(cluster.segment).close()
    assert topics(cluster.segment).keys() == {"kombu.celery"}
