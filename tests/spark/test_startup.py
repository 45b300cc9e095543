"""Ctrl-C while the JVM starts."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from logwriter import LogWriter, receives

from spark_jobs.spark import jvm_start

ROOT = Path(__file__).parents[2]


def session_members(session: int) -> dict[int, str]:
    """Living processes of that session, with their command lines."""
    found = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            fields = (entry / "stat").read_bytes().rpartition(b")")[2].split()
            if int(fields[3]) == session and fields[0] not in (b"Z", b"X"):
                found[int(entry.name)] = (entry / "cmdline").read_text()
        except OSError:
            continue
    return found


def wait_until(condition: Callable[[], bool], pause_s: float = 0.005) -> None:
    while not condition():  # the test's own time-out ends it
        time.sleep(pause_s)


@pytest.mark.spark
@pytest.mark.xdist_group("spark")
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("job", "stage"),
    [("wakeups", "launcher"), ("wakeups", "jvm"), ("wakeups", "context"), ("live", "launcher")],
)
def test_an_interrupted_start_leaves_no_jvm(tmp_path: Path, job: str, stage: str) -> None:
    """And a line and the exit status say that there are no results."""
    pytest.importorskip("pyspark")
    log = LogWriter(tmp_path / "logs", 1)
    receives(log, "c", np.arange(10))
    log.write()
    command = [sys.executable, "-m", "spark_jobs", job, tmp_path / "logs"]
    command += [] if job == "live" else ["--engine", "spark"]
    program = subprocess.Popen(
        [*command, "--out", tmp_path / "out"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT), "SPARK_LOCAL_DIRS": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )

    def reached() -> bool:
        commands = session_members(program.pid).values()
        if program.poll() is not None:
            return True
        if stage == "launcher":
            return any("org.apache.spark.launcher.Main" in text for text in commands)
        started = any("org.apache.spark.deploy.SparkSubmit" in text for text in commands)
        return started and (stage == "jvm" or any(tmp_path.glob("blockmgr-*")))

    try:
        wait_until(reached)
        if program.poll() is not None and "needs Java" in (program.stderr or sys.stderr).read():
            pytest.skip("Java")
        os.killpg(program.pid, signal.SIGINT)
        _, errors = program.communicate()
        assert session_members(program.pid) == {}
        assert (program.returncode, "interrupted" in errors) == (1, True), errors
        assert stage == "context" or "Traceback" not in errors  # then Py4J logs one
    finally:
        for pid in session_members(program.pid):
            os.kill(pid, signal.SIGKILL)
        program.communicate()


def test_a_tree_that_goes_on_forking_is_ended() -> None:
    """Parent, child and a stream of grandchildren: none is left."""
    program = subprocess.Popen(
        ["/bin/sh", "-c", "(while :; do sleep 300 & sleep 0.001; done) & wait"],
        start_new_session=True,
    )
    wait_until(lambda: len(session_members(program.pid)) > 10)
    jvm_start.end_tree(program.pid)
    assert session_members(program.pid) == {}
    program.wait()


_SHOW_BAR = """
from spark_jobs.spark.session import create_session

print(create_session("bar", "local[1]").sparkContext.getConf().get("spark.ui.showConsoleProgress"))
"""


@pytest.mark.spark
@pytest.mark.xdist_group("spark")
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("given", "shown"),
    [(None, "false"), ("--conf spark.ui.showConsoleProgress=true pyspark-shell", "true")],
    ids=["by itself", "the user's"],
)
def test_no_bar_of_sparks_goes_into_a_pipe(tmp_path: Path, given: str | None, shown: str) -> None:
    """Unless the user wants it: Spark would set it for every program that starts it."""
    pytest.importorskip("pyspark")
    environment = os.environ | {"PYTHONPATH": str(ROOT), "SPARK_LOCAL_DIRS": str(tmp_path)}
    environment |= {} if given is None else {"PYSPARK_SUBMIT_ARGS": given}
    program = [sys.executable, "-c", _SHOW_BAR]
    done = subprocess.run(
        program, env=environment, cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == [shown]
