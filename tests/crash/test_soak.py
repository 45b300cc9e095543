"""`make soak` for as long as some dozens are killed; and that its judge finds what is wrong."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from programs import ROOT
from receiving import PATIENCE, TIME_FACTOR, readable, wait_until
from soak import journal as j
from soak.judge import Verdict, judge


def environment() -> dict[str, str]:
    paths = os.pathsep.join([str(ROOT / part) for part in ("", "tests", "tests/support")])
    return {**os.environ, "PYTHONPATH": paths}


def soak(*arguments: str, patience: float = 240.0) -> dict[str, int]:
    """The figures of a run in which nothing was wrong.

    A supervisor that hangs is killed, and with it all its workers, before pytest's time-out ends
    this process; that would end it, too.
    """
    done = subprocess.run(
        [sys.executable, "-m", "soak", "--parent", str(os.getpid()), *arguments],
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=patience * TIME_FACTOR,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "violations: 0" in done.stdout
    figures = re.findall(r"^  (\D+?) +([\d,]+)$", done.stdout, re.MULTILINE)
    return {name: int(count.replace(",", "")) for name, count in figures}


@pytest.mark.parametrize("on_full", ["error", "block", "drop-slowest"])
def test_some_dozens_are_killed(on_full: str) -> None:
    figures = soak("--kills", "40", "--kill-rate", "40", "--on-full", on_full)
    assert figures["kills"] + figures.get("killed at a label", 0) >= 40
    assert figures["commits"] > 0
    assert figures["deliveries"] > 0


@pytest.mark.full
@pytest.mark.timeout(600)
def test_hundreds_are_killed() -> None:
    kills = 0
    while kills < 500:  # a busy machine takes longer
        kills += soak("--minutes", "0.75", "--round", "10", patience=540.0)["kills"]


STARTER = """
import os, subprocess, sys
options = ["--parent", str(os.getpid()), "--minutes", "60", "--round", "3600", "--spill", "256"]
command = [sys.executable, "-m", "soak", *options]
print(subprocess.Popen(command, stdout=sys.stderr).pid, flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("told", ["its starter is killed", "it is terminated"])
def test_it_clears_up_when_it_is_to_end(told: str, tmp_path: Path) -> None:
    """A test that is ended by its limit must not leave a supervisor that goes on for an hour."""
    starter = subprocess.Popen(
        [sys.executable, "-c", STARTER],
        env=environment() | {"TMPDIR": str(tmp_path)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert starter.stdout is not None
    pid = int(starter.stdout.readline())
    supervisor = os.pidfd_open(pid)
    try:
        wait_until(lambda: any(tmp_path.glob("soak-*/*.journal")), "its workers are at work")
        if told == "it is terminated":
            os.kill(pid, signal.SIGTERM)
        else:
            starter.kill()
        assert readable(supervisor, PATIENCE)
        starter.kill()
        starter.communicate(timeout=PATIENCE)  # each worker has its standard error, too
    finally:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(supervisor, signal.SIGKILL)
        os.close(supervisor)
        starter.kill()
        starter.communicate()
    assert list(tmp_path.iterdir()) == []
    assert not list(Path("/dev/shm").glob(f"*soak-{pid}*"))


# ---- the judge ---------------------------------------------------------------------------


class History:
    """Journals of two connections: 10 sends, 20 listens; a transaction each microsecond."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._records: dict[int, list[NDArray[np.void]]] = {10: [], 20: []}
        self._clock = 0
        self._seq = 0

    def add(self, connection: int, kind: int, **fields: int) -> None:
        record = np.zeros(1, j.RECORD)
        record["kind"] = kind
        record["connection"] = connection
        for name, value in fields.items():
            record[name] = value
        self._records[connection].append(record)

    def commit(self, connection: int, txn: int, *parts: dict[str, int], known: bool = True) -> None:
        self._clock += 1000
        self.add(connection, j.INTENT, txn=txn, count=len(parts), time=self._clock - 400)
        for part in parts:
            self.add(connection, txn=txn, **part)
        if known:
            self.add(connection, j.COMMITTED, txn=txn, time=self._clock + 400)

    def receive(self, sender: int, txn: int, *, seq: int, at: int, **message: int) -> None:
        self.add(20, j.RECEIVED, txn=txn, seq=seq, time=at * 1000, **message)
        self._records[20][-1]["connection"] = sender

    def judge(self) -> Verdict:
        for connection, records in self._records.items():
            with (self._directory / f"{connection}.journal").open("wb") as file:
                file.write(np.concatenate(records).tobytes())
        return judge(self._directory)


def event(index: int, channel: int = 3) -> dict[str, int]:
    return {"kind": j.EVENT, "channel": channel, "index": index}


@pytest.fixture
def history(tmp_path: Path) -> History:
    """20 listens to channel 3 (its first commit); 10 sends four transactions of two events."""
    made = History(tmp_path)
    listen = {"kind": j.LISTEN, "channel": 3}
    own = {"kind": j.LISTEN, "channel": j.CHANNEL_OWN}
    made.commit(20, 1, own, listen, event(0, j.CHANNEL_OWN))
    for txn in range(1, 5):
        made.commit(10, txn, event(0), event(1))
    return made


Story = Callable[[History], None]


def all_of(history: History, *but: tuple[int, int]) -> None:
    history.receive(20, 1, seq=1, at=1, channel=j.CHANNEL_OWN, index=0)
    for txn in range(1, 5):
        for index in (0, 1):
            if (txn, index) not in but:
                history.receive(10, txn, seq=txn + 1, at=txn + 1, channel=3, index=index)


def test_nothing_is_wrong(history: History) -> None:
    all_of(history)
    history.add(20, j.DRAINED, time=10**9)
    verdict = history.judge()
    assert not verdict.violations, verdict.examples
    assert verdict.figures["commits"] == 5
    assert verdict.figures["deliveries"] == 9


def test_killed_before_it_had_read_the_rest(history: History) -> None:
    history.receive(20, 1, seq=1, at=1, channel=j.CHANNEL_OWN, index=0)
    history.receive(10, 1, seq=2, at=2, channel=3, index=0)
    assert not history.judge().violations


def test_a_gap_excuses_a_hole(history: History) -> None:
    history.receive(20, 1, seq=1, at=1, channel=j.CHANNEL_OWN, index=0)
    history.receive(10, 1, seq=2, at=2, channel=3, index=0)
    history.add(20, j.GAP, seq=400)
    history.receive(10, 4, seq=5, at=5, channel=3, index=1)
    verdict = history.judge()
    assert not verdict.violations, verdict.examples
    assert verdict.figures["gaps"] == 1


def drop(history: History) -> None:
    all_of(history, (2, 0))


def half_a_transaction(history: History) -> None:
    all_of(history, (2, 1))


def a_whole_transaction(history: History) -> None:
    all_of(history, (2, 0), (2, 1))
    history.add(20, j.DRAINED, time=10**9)


def not_in_time(history: History) -> None:
    all_of(history, (4, 0), (4, 1))
    history.add(20, j.DRAINED, time=10**9)


def the_first_one(history: History) -> None:
    all_of(history, (1, 0))


def dup(history: History) -> None:
    all_of(history)
    history.receive(10, 4, seq=5, at=5, channel=3, index=1)


def swap(history: History) -> None:
    all_of(history, (3, 1))
    history.receive(10, 3, seq=4, at=4, channel=3, index=1)


def flip(history: History) -> None:
    all_of(history)
    history._records[20][-1]["flag"] = j.FLAW_CONTENT


def rolled_back(history: History) -> None:
    all_of(history)
    history._records[10][-1]["kind"] = j.FAILED


def never_begun(history: History) -> None:
    all_of(history)
    history.receive(10, 9, seq=9, at=9, channel=3, index=0)


def another_channel(history: History) -> None:
    all_of(history)
    history.receive(10, 4, seq=5, at=5, channel=4, index=2)


def two_with_one_seq(history: History) -> None:
    all_of(history, (4, 0), (4, 1))
    history.receive(10, 4, seq=4, at=5, channel=3, index=2)


def one_with_two_seqs(history: History) -> None:
    all_of(history, (4, 1))
    history.receive(10, 4, seq=6, at=5, channel=3, index=1)


def before_it_was_sent(history: History) -> None:
    all_of(history, (4, 0), (4, 1))
    history.receive(10, 4, seq=5, at=4, channel=3, index=0)


def a_hole_is_only_where_the_gap_is(history: History) -> None:
    history.add(20, j.GAP, seq=400)
    all_of(history, (2, 0))


def unlistened(history: History) -> None:
    history.receive(20, 1, seq=1, at=1, channel=j.CHANNEL_OWN, index=0)
    history.commit(20, 2, {"kind": j.UNLISTEN, "channel": 3}, event(0, j.CHANNEL_OWN))
    history.receive(10, 1, seq=2, at=2, channel=3, index=0)


@pytest.mark.parametrize(
    ("story", "kind"),
    [
        (drop, "lost"),
        (half_a_transaction, "lost"),
        (a_whole_transaction, "lost"),
        (not_in_time, "lost"),
        (the_first_one, "lost"),
        (dup, "twice"),
        (swap, "order"),
        (flip, "content"),
        (rolled_back, "uncommitted"),
        (never_begun, "uncommitted"),
        (another_channel, "not listening"),
        (two_with_one_seq, "one seq"),
        (one_with_two_seqs, "two seqs"),
        (before_it_was_sent, "clock"),
        (a_hole_is_only_where_the_gap_is, "lost"),
        (unlistened, "not listening"),
    ],
)
def test_the_judge_finds(history: History, story: Story, kind: str) -> None:
    story(history)
    verdict = history.judge()
    assert verdict.violations[kind] > 0, verdict.violations


def test_the_judge_finds_half_of_what_was_in_doubt(history: History) -> None:
    """Killed in its commit: all of it or nothing."""
    history.commit(10, 5, event(0), event(1), event(2, 4), known=False)
    all_of(history)
    history.receive(10, 5, seq=6, at=6, channel=3, index=1)
    assert history.judge().violations["lost"] == 1
