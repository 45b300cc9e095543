"""Percentiles of growing logs, refreshed at every trigger; a summary as ``latency``'s at the end.

Structured Streaming keeps the histograms and how far each file was read together, in the
checkpoint: stopped or killed, it goes on from there and counts nothing twice. Each refresh
replaces ``live.json`` and ``latency_hist/``; after a kill they may be one refresh behind.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from math import inf
from pathlib import Path
from threading import Event
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from spark_jobs.engine.tables import write_table
from spark_jobs.errors import NoLogsError
from spark_jobs.figures.merge import KEYS
from spark_jobs.jobs.latency import histogram, left_out, summarise
from spark_jobs.live.prometheus import exporting
from spark_jobs.live.recent import Recent
from spark_jobs.logs.quality import FileReport
from spark_jobs.output import (
    CLEAN,
    FAILED,
    Parser,
    described,
    print_rows,
    print_table,
    report_failure,
    summary,
)
from spark_jobs.places import local_path
from spark_jobs.result import JobResult
from spark_jobs.spark.jvm_start import nothing_left_when_interrupted
from spark_jobs.survey import survey

TITLE = "live percentiles of growing logs"

_SUMS = ("n", "sum_ns", "negative", "other_clock", "file_records", "file_damaged")
_LEAST, _MOST = ("min_ns", "first_ns"), ("max_ns", "last_ns")

_LOOK_S = 0.5
"""How often it is looked whether the query has failed."""

Refresh = Callable[[JobResult], bool]
"""Called after each batch; False ends the run."""


def accumulated(stream: DataFrame) -> DataFrame:
    """All partial results so far, added up: bounded by channels, processes and files."""
    return stream.groupBy(*KEYS, "bucket", "file").agg(
        *(sf.sum(name).alias(name) for name in _SUMS),
        *(sf.min(name).alias(name) for name in _LEAST),
        *(sf.max(name).alias(name) for name in _MOST),
    )


def _reports(state: pa.Table) -> list[FileReport]:
    rows = state.filter(pc.is_valid(state["file"])).to_pylist()
    reports = []
    for row in rows:
        damaged = row["file_damaged"]
        problems = [f"{damaged} records are damaged"] if damaged else []
        reports.append(FileReport(row["file"], row["file_records"], damaged, problems))
    return sorted(reports, key=lambda report: report.file)


def result_of(state: pa.Table) -> JobResult:
    """Rows as those of ``latency``."""
    return JobResult(summarise(state), _reports(state), totals=left_out(state))


def run(
    session: SparkSession,
    logs: Sequence[str],
    out: Path,
    *,
    trigger_s: float,
    duration_s: float | None,
    refresh: Refresh,
    recent: Recent | None = None,
) -> None:
    """Until `duration_s` have passed (None: forever), then once more what is there by then.

    `recent` is told of each state before `refresh` is called.

    Raises what made the query fail.
    """
    from spark_jobs.live.tail import TailSource

    session.dataSource.register(TailSource)
    ended = Event()

    def put(frame: DataFrame, _batch: int) -> None:
        state = frame.toArrow()
        write_table(out / "latency_hist", histogram(state))
        if recent is not None:
            recent.add(state)
        if not refresh(result_of(state)):
            ended.set()

    stream = session.readStream.format("pynlog_live").option("logs", json.dumps(list(logs))).load()
    query = (
        accumulated(stream)
        .writeStream.outputMode("complete")
        .option("checkpointLocation", str(out / "checkpoint"))
        .trigger(processingTime=f"{max(1, round(trigger_s * 1000))} milliseconds")
        .foreachBatch(put)
        .start()
    )
    deadline = inf if duration_s is None else time.monotonic() + duration_s
    try:
        while query.isActive and time.monotonic() < deadline:
            if ended.wait(min(_LOOK_S, deadline - time.monotonic())):
                break
        query.processAllAvailable()  # raises when the query has failed
    finally:
        query.stop()


def _show(report: dict[str, Any]) -> None:
    if sys.stdout.isatty():
        print("\x1b[H\x1b[2J", end="")
    recent = report["recent"]
    if recent["rows"]:
        print(f"in the last {recent['seconds']} s:")
        print_rows(_worst_first(recent["rows"]))
        print("\nsince the beginning:")
    print_table(report, _worst_first(report["rows"]))
    print(flush=True)


def _worst_first(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """A line for each listener and channel, over all wake reasons."""
    several = len({(row["engine"], row["database"]) for row in rows}) > 1
    names = ("n", "rate_per_s", "p50_ns", "p90_ns", "p99_ns", "p999_ns", "max_ns")
    names = ("channel", *(("engine", "database") if several else ()), "host", "pid", *names)
    all_wakes = [row for row in rows if row["wake"] == "all"]
    worst = sorted(all_wakes, key=lambda row: (-row["p99_ns"], row["channel"], row["pid"]))
    return [{name: row[name] for name in names} for row in worst]


def _not_read(paths: Sequence[str], reports: Sequence[FileReport]) -> list[FileReport]:
    """Files whose header cannot be read, and directories."""
    known = {report.file for report in reports}
    try:
        return [report for report in survey(paths).unreadable if report.file not in known]
    except NoLogsError:  # not yet
        return []


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 <= value < inf:
        raise argparse.ArgumentTypeError(f"{text} is not a number of seconds")
    return value


def _parser() -> argparse.ArgumentParser:

    parser = Parser(prog="python -m spark_jobs live", description=TITLE)
    parser.add_argument("logs", nargs="+", metavar="LOGS", help="log files or their directories")
    parser.add_argument(
        "--out", required=True, type=local_path, metavar="DIR", help="for the results"
    )
    parser.add_argument("--trigger", type=_seconds, default=2.0, metavar="S", help="seconds, 2")
    parser.add_argument("--duration", type=float, metavar="S", help="seconds; else until Ctrl-C")
    parser.add_argument(
        "--last",
        type=_seconds,
        default=60.0,
        metavar="S",
        help="also what came in the last S seconds, 60",
    )
    parser.add_argument(
        "--prometheus",
        type=int,
        metavar="PORT",
        help="serve the last S seconds on 127.0.0.1, for Prometheus; 0: any free port",
    )
    parser.add_argument("--json", action="store_true", help="print the last summary as JSON only")
    parser.add_argument("--master", help="Spark master; by default as Spark is configured")
    return parser


def _live(options: argparse.Namespace) -> dict[str, Any]:
    from spark_jobs.spark.session import create_session

    for path in options.logs:
        if not local_path(path).exists():
            raise NoLogsError(f"no such file or directory: {path}")
    target: Path = options.out / "live.json"
    begin = time.monotonic()
    recent = Recent(options.last)
    serve = exporting(options.prometheus)

    def refresh(result: JobResult) -> bool:
        result.reports += _not_read(options.logs, result.reports)
        report = summary("live", result, time.monotonic() - begin)
        report["recent"] = {"seconds": round(recent.span, 3), "rows": recent.rows}
        serve(recent.rows)
        draft = target.with_suffix(f".{os.getpid()}")
        draft.write_text(json.dumps(report, indent=1) + "\n")
        draft.replace(target)
        if not options.json:
            _show(report)
        return True

    options.out.mkdir(parents=True, exist_ok=True)
    session = create_session("pynotify live", options.master)
    try:
        run(
            session,
            options.logs,
            options.out,
            trigger_s=options.trigger,
            duration_s=options.duration,
            refresh=refresh,
            recent=recent,
        )
    except KeyboardInterrupt:
        print("stopped; the same command goes on from here", file=sys.stderr)
    if not target.exists():
        refresh(JobResult([], []))
    report: dict[str, Any] = json.loads(target.read_text())
    return report


def main(arguments: Sequence[str]) -> int:
    """Runs the command line; 0, or 1 when it could not run."""
    options = _parser().parse_args(arguments)
    try:
        with nothing_left_when_interrupted():
            report = _live(options)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return FAILED
    except Exception as error:
        return report_failure("live", described(error), as_json=options.json)
    if options.json:
        print(json.dumps(report))
    return CLEAN
