"""Live percentiles: logs grow while they are read, and a restart counts nothing twice."""

from __future__ import annotations

import itertools
import json
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from logwriter import LogWriter, flip_bit, receives
from prometheus_client.parser import text_string_to_metric_families

from receiving import TIME_FACTOR
from spark_jobs.cli import main
from spark_jobs.figures.histogram import QUANTILES
from spark_jobs.live import stream as live
from spark_jobs.live.prometheus import exporting
from spark_jobs.live.recent import Recent
from spark_jobs.live.tail import TailReader
from spark_jobs.logs.header import with_count
from spark_jobs.logs.schema import HEADER_BYTES, RECORD_BYTES
from spark_jobs.result import JobResult
from spark_jobs.survey import survey

pytestmark = [
    pytest.mark.spark,
    pytest.mark.xdist_group("spark"),
    # Spark's own code, which we cannot mend
    pytest.mark.filterwarnings("default"),
    pytest.mark.timeout(300),
]

HALF = 20_000


class GrowingLog:
    """A log with two channels of HALF messages each, of which more and more is committed."""

    def __init__(self, logs: Path, pid: int) -> None:
        random = np.random.default_rng(pid)
        self.values = (random.pareto(1.5, 2 * HALF) * 1000).astype(np.int64)
        ref = 10**15 + 1000 * np.arange(2 * HALF)
        log = LogWriter(logs, pid)
        for channel, part in (("a", slice(0, HALF)), ("b", slice(HALF, None))):
            latency = self.values[part]
            receives(log, channel, np.arange(HALF), ts=ref[part] + latency, ref_ts=ref[part])
        (self.path,) = log.write(sealed=False)
        self._whole = self.path.read_bytes()
        self.commit(0)

    def commit(self, messages: int) -> None:
        """The two definitions and so many messages; behind them there is no more than garbage."""
        committed = 2 + messages
        head = with_count(self._whole[:HEADER_BYTES], committed)
        records = self._whole[HEADER_BYTES : HEADER_BYTES + committed * RECORD_BYTES]
        with self.path.open("r+b") as file:
            file.seek(HEADER_BYTES)
            file.write(records + b"half a record")
            file.seek(0)
            file.write(head)


def check(result: JobResult, logs: dict[int, np.ndarray]) -> None:
    """Every figure of every process and channel against numpy."""
    rows = {(row["pid"], row["channel"]): row for row in result.rows if row["wake"] == "all"}
    parts = {
        (pid, channel): part
        for pid, values in logs.items()
        for channel, part in (("a", values[:HALF]), ("b", values[HALF:]))
        if len(part)
    }
    assert rows.keys() == parts.keys()
    for key, part in parts.items():
        row, values = rows[key], np.sort(part)
        assert (row["n"], row["min_ns"], row["max_ns"]) == (len(values), values[0], values[-1])
        assert row["mean_ns"] == pytest.approx(values.mean(), rel=1e-12)
        for name, q in (("p50_ns", 5000), ("p99_ns", 9900), ("p999_ns", 9990)):
            exact = values[-(-len(values) * q // 10000) - 1]
            assert abs(row[name] - exact) <= max(1, 0.0040 * exact)


def follow(
    spark: Any, logs: Path, out: Path, steps: Sequence[Callable[[], Any]] = ()
) -> list[JobResult]:
    """Runs live, makes a step after each refresh, and ends when that of the last is seen."""
    seen: list[JobResult] = []
    left = iter(steps)

    def refresh(result: JobResult) -> bool:
        seen.append(result)
        step = next(left, None)
        if step is not None:
            step()
        return step is not None

    duration = None if steps else 0.0
    live.run(spark, [str(logs)], out, trigger_s=0.05, duration_s=duration, refresh=refresh)
    return seen


@pytest.mark.full
def test_logs_that_grow_while_it_runs(spark: Any, tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    one, two = GrowingLog(logs, 1), GrowingLog(logs, 2)
    one.commit(100)
    seen = follow(
        spark,
        logs,
        tmp_path / "out",
        [
            lambda: one.commit(HALF + 5000),
            lambda: two.commit(30_000),
            lambda: (one.commit(2 * HALF), two.commit(2 * HALF)),
        ],
    )
    check(seen[0], {1: one.values[:100]})
    check(seen[1], {1: one.values[: HALF + 5000]})
    check(seen[-1], {1: one.values, 2: two.values})
    assert sum(report.records for report in seen[-1].reports) == 2 * (2 + 2 * HALF)
    assert not any(report.damaged for report in seen[-1].reports)


@pytest.mark.full
def test_a_restart_goes_on_from_the_checkpoint(spark: Any, tmp_path: Path) -> None:
    logs, out = tmp_path / "logs", tmp_path / "out"
    log = GrowingLog(logs, 1)
    log.commit(10_000)
    check(follow(spark, logs, out)[-1], {1: log.values[:10_000]})
    assert follow(spark, logs, out) == []
    log.commit(2 * HALF)
    check(follow(spark, logs, out)[-1], {1: log.values})


@pytest.mark.full
def test_the_command_line(spark: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Twice: the second time there is nothing new, and the summary is what it was."""
    log = GrowingLog(tmp_path / "logs", 1)
    log.commit(2 * HALF)
    flip_bit(log.path, 50)
    reports = []
    for _ in range(2):
        arguments = ["live", tmp_path / "logs", "--out", tmp_path / "out", "--duration", "0"]
        assert main([*map(str, arguments), "--json"]) == 0
        reports.append(json.loads(capsys.readouterr().out))
    assert reports[0] == reports[1]
    assert (reports[0]["job"], reports[0]["records"]) == ("live", 2 + 2 * HALF - 1)
    assert reports[0]["segments"][0]["damaged"] == 1
    assert spark.read.parquet(str(tmp_path / "out" / "latency_hist")).count() > 0


def test_of_late_is_what_came_since_then(spark: Any, tmp_path: Path) -> None:
    """A look that is older than the last seconds, and all before, do not count."""
    logs, now = tmp_path / "logs", itertools.count(100)
    log = GrowingLog(logs, 1)
    log.commit(100)
    recent = Recent(2.5, clock=lambda: next(now))  # at 101, 102, ...
    spans: list[tuple[float, list[dict[str, Any]]]] = []
    steps = iter([300, 600, 1000, 1500, 2100])

    def refresh(_result: JobResult) -> bool:
        spans.append((recent.span, recent.rows))
        step = next(steps, None)
        if step is not None:
            log.commit(step)
        return step is not None

    out = tmp_path / "out"
    live.run(
        spark, [str(logs)], out, trigger_s=0.05, duration_s=None, refresh=refresh, recent=recent
    )
    assert [span for span, _ in spans] == [0, 1, 2, 3, 3, 3]
    assert spans[0][1] == []
    for (first, last), (_, rows) in zip(
        [(100, 300), (100, 600), (100, 1000), (300, 1500), (600, 2100)], spans[1:], strict=True
    ):
        (row,) = (row for row in rows if row["wake"] == "all")
        values = np.sort(log.values[first:last])
        assert row["n"] == last - first
        assert row["mean_ns"] == pytest.approx(values.mean(), rel=1e-12)
        for name, exact in (
            ("min_ns", values[0]),
            ("p50_ns", values[-(-len(values) // 2) - 1]),
            ("max_ns", values[-1]),
        ):
            assert abs(row[name] - exact) <= max(1, 0.0040 * exact), name


def test_the_last_seconds_are_shown_and_served(
    spark: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    row = dict.fromkeys(("engine", "host", "channel"), "x") | {"database": 1, "pid": 7}
    row |= {"wake": "all", "n": 5, "rate_per_s": 2.5, "mean_ns": 1e6}
    row |= dict.fromkeys((*QUANTILES, "min_ns", "max_ns"), 2_000_000)
    serve = exporting(0)
    address = capsys.readouterr().err.split()[3]
    serve([row])
    with urllib.request.urlopen(f"http://{address}", timeout=60 * TIME_FACTOR) as answer:
        text = answer.read().decode()
    found = {
        (sample.name, sample.labels.get("quantile")): (sample.labels, sample.value)
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    labels, count = found["pynotify_latency_messages", None]
    assert (labels["channel"], labels["pid"], labels["wake"], count) == ("x", "7", "all", 5)
    assert found["pynotify_latency_seconds", "0.99"][1] == 0.002
    report = {"recent": {"seconds": 59.0, "rows": [row]}, "rows": [row], "totals": {}}
    live._show(report | {"segments": [], "status": "clean", "records": 5, "wall_s": 60.0})
    shown = capsys.readouterr().out
    assert shown.startswith("in the last 59.0 s:\nchannel") and "since the beginning:\n" in shown


def test_what_ends_it_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Before Spark begins, so this needs none."""

    def fail(_: object) -> object:
        raise PermissionError(13, "Permission denied", "logs")

    monkeypatch.setattr(live, "_live", fail)
    for options in ([], ["--json"]):
        assert main(["live", str(tmp_path), "--out", str(tmp_path / "out"), *options]) == 1
        out, err = capsys.readouterr()
        text = "[Errno 13] Permission denied: 'logs'"
        assert err == f"spark_jobs live: {text}\n"
        assert options or out == ""
    assert json.loads(out) == {"job": "live", "status": "error", "error": text}


def test_no_logs_yet(spark: Any, tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    assert not any(each.rows for each in follow(spark, tmp_path / "logs", tmp_path / "out"))


def test_parts_of_a_file_add_up_to_the_whole(tmp_path: Path) -> None:
    """In particular those that begin behind the definitions of their channels."""
    log = GrowingLog(tmp_path, 1)
    log.commit(2 * HALF)
    (found,) = survey([tmp_path]).logs
    cuts = [0, 1, 2, 3, 20_000, 2 * HALF + 2]
    names = []
    for first, last in itertools.pairwise(cuts):
        reader = TailReader(found, first, last)
        for chunk in reader.chunks():
            names += [reader.channels[i][1] for i in chunk.channel]
        assert (reader.records, reader.damaged) == (last - first, 0)
    assert names == ["a"] * HALF + ["b"] * HALF


def test_a_file_that_is_removed_after_the_survey(tmp_path: Path) -> None:
    log = GrowingLog(tmp_path, 1)
    log.commit(2 * HALF)
    (found,) = survey([tmp_path]).logs
    for path in tmp_path.glob("*.pynlog"):
        path.unlink()
    reader = TailReader(found, 10, 100)
    assert list(reader.chunks()) == []
    assert (reader.records, reader.damaged) == (0, 90)
