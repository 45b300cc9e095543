"""The examples' task queues: four workers in processes of their own, of which one is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pynotify
from programs import ROOT, environment
from receiving import PATIENCE, wait_until

TASKS = 300
EXAMPLES = ROOT / "examples" / "adapters"


class TaskWorkers(NamedTuple):
    processes: list[subprocess.Popen[bytes]]
    journal: Path
    send: Callable[[], None]
    """TASKS tasks, by the example's own program."""

    def lines(self) -> list[list[str]]:
        """What was run: the worker's PID and the task's number."""
        if not self.journal.exists():
            return []
        return [line.split() for line in self.journal.read_text().splitlines()]

    def all_are_run(self) -> bool:
        return {number for _, number in self.lines()} == set(map(str, range(TASKS)))

    def kill_one_when_some_are_run(self) -> None:
        wait_until(lambda: len(self.lines()) > TASKS // 10, "some are run")
        os.killpg(self.processes[0].pid, signal.SIGKILL)


def consumers(segment_name: str) -> int:
    with pynotify.open(segment_name) as segment:
        return sum(
            len(channel.consumers) for topic in segment.topics() for channel in topic.channels
        )


@contextmanager
def four_workers(
    *command: str, sender: str, segment_name: str, tmp_path: Path
) -> Iterator[TaskWorkers]:
    """`python -m COMMAND` four times, until all of them consume."""
    journal = tmp_path / "journal"
    env = {
        **environment(),
        "SEGMENT": segment_name,
        "JOURNAL": str(journal),
        "PYTHONPATH": f"{EXAMPLES}:{ROOT}",
    }

    def send() -> None:
        subprocess.run([sys.executable, EXAMPLES / sender, str(TASKS)], env=env, check=True)

    processes = [
        subprocess.Popen(
            [sys.executable, "-m", *command],
            env=env,
            cwd=tmp_path,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        for _ in range(4)
    ]
    try:
        wait_until(lambda: consumers(segment_name) == 4, "four workers consume", 3 * PATIENCE)
        yield TaskWorkers(processes, journal, send)
    finally:
        for process in processes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        with pynotify.open(segment_name) as segment:
            wait_until(lambda: not segment.stat().backends, "their slots are free")
