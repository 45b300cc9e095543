"""`python -m pynotify.demo`, from end to end: clean, broken, interrupted."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pynotify.demo import faults

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

NOTIFICATIONS = 20_000
FOUND_AS = {"drop": "lost", "dup": "dup", "swap": "out_of_order", "flip": "corrupted"}


class Demo:
    """One run, in a process group of its own, as a shell would start it."""

    def __init__(self, out: Path, *options: str, fault: str = "") -> None:
        self.out = out
        self._process = subprocess.Popen(
            [sys.executable, "-m", "pynotify.demo", "--out", str(out), *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"BREAK": fault},
            start_new_session=True,
        )
        self.pid = self._process.pid
        self.before = ""

    def read_until(self, text: str) -> None:
        """Its stderr, up to a line that contains the text."""
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self.before += line
            if text in line:
                return
        pytest.fail(f"{text!r} never came:\n{self.before}")

    def finish(self) -> tuple[int, str, str]:
        """Exit status, stdout, stderr."""
        out, err = self._process.communicate()
        return self._process.returncode, out, self.before + err

    def members(self) -> list[int]:
        """The live processes of its group."""
        found = []
        for stat in Path("/proc").glob("[0-9]*/stat"):
            try:
                fields = stat.read_bytes().rpartition(b")")[2].split()
            except OSError:
                continue
            if int(fields[2]) == self.pid and fields[0] not in (b"Z", b"X"):
                found.append(int(stat.parent.name))
        return found

    def assert_nothing_left(self) -> None:
        assert self.members() == []
        left = [path.name for path in Path("/dev/shm").iterdir() if f"demo-{self.pid}" in path.name]
        assert left == []
        assert not (self.out / "demo-logs").exists()
        assert not (self.out / "demo-spark").exists()

    def kill(self) -> None:
        for pid in self.members():
            os.kill(pid, signal.SIGKILL)
        self._process.wait()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Demo]]:
    runs: list[Demo] = []

    def begin(*options: str, fault: str = "") -> Demo:
        runs.append(Demo(tmp_path / "out", *options, fault=fault))
        return runs[-1]

    yield begin
    for run in runs:
        run.kill()


@pytest.fixture
def session() -> Iterator[Any]:
    """Spark, in this process; that of other tests if there is one."""
    pytest.importorskip("pyspark")
    from pyspark.sql import SparkSession

    from pynotify.demo import spark
    from spark_jobs.spark.session import create_session

    running = SparkSession.getActiveSession()
    yield running or create_session("demo tests", "local[2]")
    if running is None:
        spark._end_spark()


def of_survivors(figures: dict[str, Any], name: str) -> list[int]:
    return [row[name] for row in figures["listeners"] if not row["killed"]]


@pytest.mark.full
def test_a_run_is_clean_and_each_fault_in_its_logs_is_found(
    start: Callable[..., Demo], session: Any, tmp_path: Path
) -> None:
    demo = start("--notifications", str(NOTIFICATIONS), "--keep-logs")
    status, printed, progress = demo.finish()
    assert status == 0, printed + progress
    assert "100%" in progress
    lines = (printed + progress).replace(str(demo.out), "build").splitlines()
    assert max(map(len, lines)) <= 100

    figures = json.loads((demo.out / "demo.json").read_text())
    assert figures["status"] == "clean"
    assert sum(figures["committed"].values()) == figures["notifications"] == NOTIFICATIONS
    assert figures["collapsed"] > 0
    assert figures["rolled_back"] > 0
    assert figures["open_when_killed"] > 0
    assert figures["engine"]["after"]["collapsed"] == figures["collapsed"]
    killed = sorted(w["name"] for w in figures["workers"] if w["killed"])
    again = sorted(w["name"] for w in figures["workers"] if w["replacement"])
    assert killed == ["listener-0", "notifier-0"]
    assert again == ["listener-0-again", "notifier-0-again"]
    workers = [w for w in figures["workers"] if w["role"] != "idle" and not w["replacement"]]
    assert len(workers) >= 8
    assert figures["idle"] == {"wakes": 0, "messages": 0}
    idle = {w["pid"] for w in figures["workers"] if w["role"] == "idle"}
    woken = {row["pid"]: row["wakes"] for row in figures["report"]["wakeups"]["rows"]}
    assert len(idle) == 50
    assert {woken[pid] for pid in idle} == {0}

    for name in (*FOUND_AS.values(), "unproven"):
        assert set(of_survivors(figures, name)) == {0}
    assert all(
        row["handed"] == row["committed"] for row in figures["listeners"] if not row["killed"]
    )
    # A killed worker may have read nothing yet; the next one may come when all has gone.
    others = [row for row in figures["listeners"] if row["name"] not in (*killed, *again)]
    assert len(others) >= 3
    assert all(row["expected"] > 0 for row in others)

    from spark_jobs.engine.local import LocalEngine
    from spark_jobs.jobs import audit
    from spark_jobs.survey import survey

    victim = next(w for w in figures["workers"] if w["name"] == "listener-1")
    for fault, figure in FOUND_AS.items():
        broken = tmp_path / fault
        shutil.copytree(demo.out / "demo-logs", broken)
        faults.tamper(broken, victim["pid"], fault)
        result = audit.run(LocalEngine(), survey([broken]), tmp_path / f"{fault}.audit")
        assert result.violation, fault
        assert not any(report.problems for report in result.reports), fault
        found = {name: result.totals[name] for name in FOUND_AS.values()}
        assert found == dict.fromkeys(FOUND_AS.values(), 0) | {figure: 1}

    shutil.rmtree(demo.out / "demo-logs")
    shutil.rmtree(demo.out / "demo-spark")
    demo.assert_nothing_left()


@pytest.mark.full
def test_break_ends_with_exit_status_2_and_leaves_nothing(start: Callable[..., Demo]) -> None:
    demo = start("--notifications", "5000", fault="swap")
    status, printed, progress = demo.finish()
    assert status == 2, printed + progress
    assert "BREAK=swap" in progress
    assert "VIOLATION" in printed
    figures = json.loads((demo.out / "demo.json").read_text())
    assert figures["status"] == "violation"
    assert sum(of_survivors(figures, "out_of_order")) == 1
    demo.assert_nothing_left()


@pytest.mark.parametrize(
    "signo", [pytest.param(signal.SIGINT, marks=pytest.mark.full), signal.SIGTERM]
)
def test_interrupted_in_mid_stream_it_leaves_nothing(
    start: Callable[..., Demo], signo: signal.Signals
) -> None:
    demo = start("--notifications", "20_000_000")
    demo.read_until("%")
    # The whole group, as a terminal does.
    os.killpg(demo.pid, signo)
    status, _, progress = demo.finish()
    assert status == 1
    assert "interrupted" in progress
    assert "Traceback" not in progress
    demo.assert_nothing_left()


@pytest.mark.full
def test_the_death_of_a_worker_ends_the_run_and_leaves_nothing(start: Callable[..., Demo]) -> None:
    demo = start("--notifications", "20_000_000")
    demo.read_until("%")
    # The first child is an idle listener: nothing but its sentinel tells.
    os.kill(min(pid for pid in demo.members() if pid != demo.pid), signal.SIGKILL)
    status, _, progress = demo.finish()
    assert status == 1
    assert "idle-0 ended with exit status -9" in progress
    demo.assert_nothing_left()


@pytest.mark.parametrize(("options", "fault"), [(["--notifications", "3"], ""), ([], "nonsense")])
def test_bad_options_are_not_taken_for_a_violation(
    start: Callable[..., Demo], options: list[str], fault: str
) -> None:
    status, _, text = start(*options, fault=fault).finish()
    assert status == 1
    assert "error" in text
