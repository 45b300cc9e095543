"""What the readers keep does not grow with the number of records; no Spark."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from logwriter import LogWriter, receives

from spark_jobs.archive import row_group
from spark_jobs.audit import partials as of_one_log
from spark_jobs.figures import windows
from spark_jobs.jobs import audit, e2e, ingest, lag, latency, timeline, wakeups
from spark_jobs.logs import stored
from spark_jobs.logs.model import Log
from spark_jobs.logs.reader import LogReader
from spark_jobs.logs.schema import Kind
from spark_jobs.survey import survey

JOBS: dict[Any, dict[str, Any]] = {
    latency: {},
    audit: {},
    wakeups: {},
    timeline: {"window_ns": 10**9},
    lag: {"window_ns": 10**9},
    e2e: {"window_ns": 10**9},
}


def a_log(logs: Path, count: int) -> Log:
    log = LogWriter(logs, clock=10**18)
    seq = np.arange(count)
    for channel in ("a", "b"):
        log.add(Kind.LISTEN, channel=channel)
        receives(log, channel, seq, ts=10**9 + seq * 1000, ref_ts=10**9)
    log.write(files=2)
    (found,) = survey([logs]).logs
    return found


def drive(job: Any, log: Log, **settings: Any) -> int:
    """Runs the job over the log as a Spark task would, and returns the peak of what it had."""
    reader = LogReader(log, job.Partials.FIELDS)
    tracemalloc.start()
    try:
        partials = job.Partials(reader, **settings)
        for chunk in reader.chunks():
            for _ in partials.add(chunk):
                pass
        for _ in partials.finish():
            pass
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.fixture
def small_buffers(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """So that a log need not be large to be larger than they are."""
    for module in (windows, latency, of_one_log):
        name = "BUFFERED" if module is windows else "_BUFFERED"
        monkeypatch.setattr(module, name, 1 << 15)
    monkeypatch.setattr(row_group, "ROWS", 1 << 15)
    return


@pytest.mark.usefixtures("small_buffers")
def test_four_times_the_log_takes_the_same_memory(tmp_path: Path) -> None:
    logs = [a_log(tmp_path / str(count), count) for count in (60_000, 240_000)]
    for job, settings in JOBS.items():
        drive(job, logs[0], **settings)  # tables that are made once
        small, large = (drive(job, log, **settings) for log in logs)
        assert large < 1.2 * small, job.__name__


@pytest.mark.usefixtures("small_buffers")
def test_archiving_and_reading_an_archive_take_the_same_memory(tmp_path: Path) -> None:
    peaks = []
    for step, count in enumerate((60_000, 60_000, 240_000)):  # the first makes tables
        logs, out = tmp_path / f"logs{step}", tmp_path / f"out{step}"
        log = a_log(logs, count)
        for name in (stored.EVENTS, stored.CHANNELS, stored.SEGMENTS, stored.STAGING):
            (out / name).mkdir(parents=True, exist_ok=True)
        before = pa.total_allocated_bytes()
        for segment in survey([logs]).segments:
            peak = drive(ingest, ingest._alone(segment), root=str(out))
        (kept,) = survey([out]).logs
        assert kept.size == log.size
        peaks.append((peak, drive(latency, kept)))
        assert pa.total_allocated_bytes() <= before
    _, small, large = peaks
    assert large[0] < 1.2 * small[0]
    assert large[1] < 1.2 * small[1]
