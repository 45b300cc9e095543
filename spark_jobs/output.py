"""What the command lines have in common: exit status, the summary, and how an error is told."""

from __future__ import annotations

import argparse
import platform
import re
import sys
from importlib.metadata import PackageNotFoundError, version
from typing import Any, NoReturn

from spark_jobs.errors import NoLogsError
from spark_jobs.result import JobResult
from spark_jobs.spark.java import JavaNotFoundError

CLEAN, FAILED, VIOLATION = 0, 1, 2

_LINES_SHOWN = 3
_CAUSE = re.compile(r"(Caused by: )?[\w.]*(Error|Exception)\b.*: ")
"""A line that names an exception, of Python or of Java."""


class Parser(argparse.ArgumentParser):
    """argparse would exit with 2, which here means a violation."""

    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        self.exit(FAILED, f"{self.prog}: error: {message}\n")


def versions() -> dict[str, str]:
    """Of everything that the figures depend on."""
    found = {"python": platform.python_version(), "format": "pynlog 1"}
    for package in ("pyspark", "numpy", "pyarrow", "pynotify-ipc"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def summary(job: str, result: JobResult, wall_s: float) -> dict[str, Any]:
    """What ``--json`` prints."""
    return {
        "job": job,
        "status": "violation" if result.violation else "clean",
        "versions": versions(),
        "records": sum(report.records for report in result.reports),
        "wall_s": round(wall_s, 3),
        "segments": [report.as_json() for report in result.reports],
        "rows": result.rows,
        "totals": result.totals,
    }


def _printable(value: object) -> str:
    if value is None:
        return "-"
    text = f"{value:.1f}" if isinstance(value, float) else str(value)
    return text.encode("unicode_escape").decode() if not text.isprintable() else text


def print_table(report: dict[str, Any]) -> None:
    rows: list[dict[str, Any]] = report["rows"]
    if rows:
        lines = [list(rows[0]), *([_printable(v) for v in row.values()] for row in rows)]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        for line in lines:
            print("  ".join(t.ljust(w) for t, w in zip(line, widths, strict=True)).rstrip())
    for name, value in report["totals"].items():
        print(f"{name}: {_printable(value)}")
    for segment in report["segments"]:
        for problem in segment["problems"]:
            print(f"{_printable(segment['file'])}: {problem}", file=sys.stderr)
    print(f"{report['status']}: {report['records']} records in {report['wall_s']} s")


def described(error: Exception) -> str:

    if isinstance(error, NoLogsError | JavaNotFoundError):
        return str(error)
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if len(lines) <= _LINES_SHOWN:
        return f"{type(error).__name__}: {error}"
    # A Java trace around a Python one: the innermost cause says what happened.
    causes = [line for line in lines if _CAUSE.match(line)] or lines[:1]
    return causes[-1].removeprefix("Caused by: ")
