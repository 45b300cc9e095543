"""The bar on a terminal, and that there is none elsewhere."""

from __future__ import annotations

import contextlib
import io
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from logwriter import LogWriter, sends

from spark_jobs.engine import progress
from spark_jobs.engine.local import LocalEngine
from spark_jobs.jobs import latency
from spark_jobs.logs.model import CHUNK_RECORDS
from spark_jobs.survey import survey

LOGS, COUNT = 4, 3 * CHUNK_RECORDS


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


@contextlib.contextmanager
def terminal() -> Iterator[int]:
    """stderr is one; its other end. (Between a fixture and its test pytest sets stderr.)"""
    other, own = os.openpty()
    with open(own, "w", encoding="utf-8") as stream, pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stderr", stream)
        yield other
    os.close(other)


def drawn(terminal: int) -> str:
    os.set_blocking(terminal, False)
    parts = []
    with contextlib.suppress(BlockingIOError):
        while part := os.read(terminal, 1 << 16):
            parts.append(part)
    return b"".join(parts).decode()


@pytest.mark.parametrize("processes", [1, 3])
def test_it_counts_what_was_read(
    processes: int, logs: Path, wide: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "_AFTER_S", 0.0)
    monkeypatch.setattr(progress, "SHOWN_EVERY_S", 0.0)
    with terminal() as other:
        latency.run(LocalEngine(processes), survey([logs]), tmp_path)
        text = drawn(other)
    found = re.findall(r"latency .*?([\d,]+) of ([\d,]+) records", text)
    assert {whole for _, whole in found} == {f"{LOGS * (COUNT + 1):,}"}
    counts = [int(count.replace(",", "")) for count, _ in found]
    assert counts == sorted(counts)
    assert 0 <= counts[0] < counts[-1] <= LOGS * (COUNT + 1)


def test_what_is_quick_has_none(logs: Path, wide: None, tmp_path: Path) -> None:
    (logs / "more").mkdir()
    log = LogWriter(logs / "more", 9)
    sends(log, "a", np.arange(10))
    log.write()
    with terminal() as other:
        latency.run(LocalEngine(1), survey([logs / "more"]), tmp_path)
        assert drawn(other) == ""


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
