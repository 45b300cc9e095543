"""The bar on a terminal, and that there is none elsewhere."""

from __future__ import annotations

import contextlib
import io
import os
import re
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from logwriter import LogWriter, flip_bit, sends

from spark_jobs.cli import run_job
from spark_jobs.engine import progress
from spark_jobs.engine.local import LocalEngine
from spark_jobs.jobs import latency
from spark_jobs.logs.model import CHUNK_RECORDS
from spark_jobs.logs.reader import LogReader
from spark_jobs.logs.schema import RECORD_BYTES
from spark_jobs.survey import survey

LOGS, COUNT = 4, 3 * CHUNK_RECORDS
SIZE = LOGS * (COUNT + 1) * RECORD_BYTES


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    place = tmp_path / "logs"
    for pid in range(LOGS):
        log = LogWriter(place, 1 + pid)
        sends(log, "a", np.arange(COUNT))
        log.write()
    return place


@pytest.fixture
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")


class Screen:
    """What was written on a terminal; all of it once the terminal is closed."""

    def __init__(self, terminal: int) -> None:
        self._terminal = terminal
        self._parts: list[bytes] = []
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        with contextlib.suppress(OSError):  # its other end is gone
            while part := os.read(self._terminal, 1 << 16):
                self._parts.append(part)

    def close(self) -> None:
        self._thread.join()
        os.close(self._terminal)

    @property
    def text(self) -> str:
        return b"".join(self._parts).decode()


@contextlib.contextmanager
def terminal() -> Iterator[Screen]:
    """stderr is one. (Between a fixture and its test pytest sets stderr.)"""
    other, own = os.openpty()
    screen = None
    with open(own, "w", encoding="utf-8") as stream, pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stderr", stream)
        yield (screen := Screen(other))
    screen.close()


def frames(text: str, what: str = "latency") -> list[tuple[float, float]]:
    """Bytes read, and of all, as they were shown one after the other."""
    sizes = {"bytes": 1, "byte": 1, "kB": 1e3, "MB": 1e6}
    found = re.findall(what + r" .*?([\d.]+) (\w+) of ([\d.]+) (\w+)", text)
    return [(float(a) * sizes[b], float(c) * sizes[d]) for a, b, c, d in found]


@pytest.mark.parametrize("processes", [1, 3])
def test_it_counts_what_was_read(
    processes: int, logs: Path, wide: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "_AFTER_S", 0.0)
    monkeypatch.setattr(progress, "SHOWN_EVERY_S", 0.0)
    with terminal() as screen:
        latency.run(LocalEngine(processes), survey([logs]), tmp_path)
    figures = frames(screen.text)
    assert {whole for _, whole in figures} == {12.6e6}
    counts = [count for count, _ in figures]
    assert counts == sorted(counts)
    assert 0 <= counts[0] < counts[-1] <= SIZE * 1.01
    assert "records/s" in screen.text


def test_what_is_damaged_or_of_another_time_is_counted_as_read(logs: Path) -> None:
    """So that the bar ends where all is."""
    paths = sorted(logs.glob("*.pynlog"))
    flip_bit(paths[0], 5)
    paths[1].write_bytes(paths[1].read_bytes()[:-1000])
    for log in survey([logs]).logs:
        told: list[int] = []
        for _ in LogReader(replace(log, within=(0, 1))).counted(told.append):
            pass
        assert max(told) <= CHUNK_RECORDS, "it moves as they are read"
        assert sum(told) == sum(file.records for file in log.files)


def test_an_archive_is_counted_as_its_logs_are(logs: Path, tmp_path: Path) -> None:
    run_job("ingest", [str(logs)], tmp_path / "archive", engine="local")
    for log in survey([tmp_path / "archive"]).logs:
        told: list[int] = []
        for _ in LogReader(log).counted(told.append):
            pass
        assert sum(told) == sum(file.records for file in log.files)


@pytest.mark.spark
@pytest.mark.xdist_group("spark")
def test_tasks_of_spark_count_in_the_memory_of_the_driver(
    logs: Path, wide: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spark: Any
) -> None:
    from spark_jobs.spark import engine

    made = []

    class Kept(progress.Progress):
        def __init__(self, what: str, records: int, processes: int) -> None:
            super().__init__(what, records, processes)
            made.append(self)

    monkeypatch.setattr(progress, "_AFTER_S", 0.0)
    monkeypatch.setattr(progress, "SHOWN_EVERY_S", 0.01)
    monkeypatch.setattr(engine, "Progress", Kept)
    with terminal() as screen:
        latency.run(engine.SparkEngine(spark), survey([logs]), tmp_path)
    assert {whole for _, whole in frames(screen.text)} == {12.6e6}
    assert [int(each._read.sum()) for each in made] == [SIZE]


def test_memory_that_is_not_the_drivers_is_left_alone(wide: None, tmp_path: Path) -> None:
    """Another host's process of that number has something else there."""
    with terminal():
        shown = progress.Progress("latency", 100, 2)
    place = shown.place(2)
    assert place is not None
    count = place.counter(1)
    assert count is not None
    count(7)
    assert shown._read.tolist() == [0, 7 * RECORD_BYTES]
    assert place.counter(1) is not None, "a task that is tried again"
    assert shown._read.tolist() == [0, 0]
    other = tmp_path / "file"
    other.write_bytes(b"another's" * 4)
    with other.open("r+b") as file:
        for path in (f"/proc/self/fd/{file.fileno()}", str(other), "/proc/self/fd/12345"):
            assert replace(place, path=path).counter(0) is None
    assert replace(place, name="pynotify-progress-0").counter(0) is None
    assert other.read_bytes() == b"another's" * 4


def test_what_tasks_elsewhere_tell_is_shown_too(
    wide: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "_AFTER_S", 0.0)
    monkeypatch.setattr(progress, "SHOWN_EVERY_S", 0.0)
    with terminal() as screen, progress.Progress("audit", 1_000_000, 1) as shown:
        shown.tell(500_000)
        shown.show()
    assert frames(screen.text, "audit")[-1] == (32e6, 64e6)


def test_it_says_that_java_starts(wide: None) -> None:
    with terminal() as screen, progress.waiting("starting Java"):
        pass
    assert re.search(r"starting Java .*0:00:0", screen.text)
    stream = io.StringIO()
    with contextlib.redirect_stderr(stream), progress.waiting("starting Java"):
        pass
    assert stream.getvalue() == ""


def test_what_is_quick_has_none(logs: Path, wide: None, tmp_path: Path) -> None:
    (logs / "more").mkdir()
    log = LogWriter(logs / "more", 9)
    sends(log, "a", np.arange(10))
    log.write()
    with terminal() as screen:
        latency.run(LocalEngine(1), survey([logs / "more"]), tmp_path)
    assert screen.text == ""


def test_elsewhere_there_is_none(
    logs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "_AFTER_S", 0.0)
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    for where in (stream, None):  # a daemon's may be closed
        monkeypatch.setattr(sys, "stderr", where)
        latency.run(LocalEngine(1), survey([logs]), tmp_path)
    assert stream.getvalue() == ""
