"""All that the demonstration prints, from one Spark session."""

from __future__ import annotations

import json
from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import Any

from spark_jobs.engine.base import summed
from spark_jobs.jobs import audit, latency, wakeups
from spark_jobs.spark.engine import SparkEngine
from spark_jobs.spark.session import create_session
from spark_jobs.survey import survey

_CHANNEL = ("engine", "database", "channel", "wake")
_PROCESS = ("host", "pid", "wake")


def _whole(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows over all wake reasons, without that column."""
    return [
        {key: value for key, value in row.items() if key != "wake"}
        for row in rows
        if row["wake"] == "all"
    ]


def run(logs: Sequence[str | PathLike[str]], out_dir: str | PathLike[str]) -> dict[str, Any]:
    """Latency per channel and per process, signals against useful wake-ups, and the audit.

    Returns a JSON-able object, also written to ``demo_report.json`` in `out_dir`: status ("clean"
    or "violation"), records, channels[] and processes[] (n, rate_per_s, min_ns, p50_ns, p90_ns,
    p99_ns, p999_ns, p9999_ns, max_ns, mean_ns), wakeups (rows, totals), audit (rows, totals),
    segments[]. Raises NoLogsError and JavaNotFoundError.
    """
    found = survey(logs)
    out = Path(out_dir)
    out.mkdir(parents=True, exist_ok=True)
    engine = SparkEngine(create_session("pynotify demo report"))
    listeners = summed(engine.load("latency", found), ("engine",), lambda rows: rows).table
    rows = latency.unpacked(listeners)
    channels = _whole(latency.summarise(rows, _CHANNEL))
    processes = _whole(latency.summarise(rows, _PROCESS))
    woken = wakeups.run(engine, found, out)
    audited = audit.run(engine, found, out)
    report = {
        "status": "violation" if audited.violation else "clean",
        "records": sum(file.records for file in audited.reports),
        "channels": channels,
        "processes": processes,
        "wakeups": {"rows": woken.rows, "totals": woken.totals},
        "audit": {"rows": audited.rows, "totals": audited.totals},
        "segments": [file.as_json() for file in audited.reports],
    }
    (out / "demo_report.json").write_text(json.dumps(report, indent=1) + "\n")
    return report
