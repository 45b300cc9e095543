"""What the command lines have in common: exit status, the summary, and how an error is told."""

from __future__ import annotations

import argparse
import json
import platform
import re
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any, NoReturn

from spark_jobs.errors import CannotRunError, NoLogsError
from spark_jobs.logs.schema import VERSIONS
from spark_jobs.report.svg import duration
from spark_jobs.result import JobResult
from spark_jobs.spark.java import JavaNotFoundError

CLEAN, FAILED, VIOLATION = 0, 1, 2
FURTHER = ("topics",)
"""Rows of another kind than ``rows``, which some jobs have."""

_LINES_SHOWN = 3
_ROWS_SHOWN = 20
_IDS = ("pid", "database", "backend_id")
"""Numbers that are no quantities."""
_CAUSE = re.compile(r"(Caused by: )?[\w.]*(Error|Exception)\b.*: ")
"""A line that names an exception, of Python or of Java."""


class Parser(argparse.ArgumentParser):
    """argparse would exit with 2, which here means a violation."""

    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        self.exit(FAILED, f"{self.prog}: error: {message}\n")


def versions() -> dict[str, str]:
    """The versions of everything that the figures depend on."""
    found = {
        "python": platform.python_version(),
        "format": f"pynlog {' and '.join(map(str, VERSIONS))}",
    }
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
        **result.further,
        "totals": result.totals,
    }


def _printable(name: str, value: object) -> str:
    if value is None or value == "":
        return "-"
    if name.endswith("_ns") and isinstance(value, int | float):
        return duration(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        text = str(value)
        return text.encode("unicode_escape").decode() if not text.isprintable() else text
    # ids are no quantities
    return (
        str(value)
        if name in _IDS
        else f"{value:,.2f}"
        if isinstance(value, float)
        else f"{value:,}"
    )


def print_rows(rows: Sequence[Mapping[str, Any]]) -> None:
    """A heading and a line for each, with units; the first of very many."""
    left_out = len(rows) - _ROWS_SHOWN
    _print_rows(rows[:_ROWS_SHOWN])
    if left_out > 0:
        print(f"... {left_out:,} more")


def _print_rows(rows: Sequence[Mapping[str, Any]]) -> None:
    names = list(rows[0])
    lines = [[_heading(name) for name in names]]
    lines += [[_printable(name, row[name]) for name in names] for row in rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    numbers = [
        all(isinstance(row[name], int | float | None) and name not in _IDS for row in rows)
        for name in names
    ]
    for line in lines:
        cells = (
            text.rjust(width) if number else text.ljust(width)
            for text, width, number in zip(line, widths, numbers, strict=True)
        )
        print("  ".join(cells).rstrip())


def _heading(name: str) -> str:
    return name.removesuffix("_ns").replace("rate_per_s", "per s").replace("_", " ")


def print_table(
    report: dict[str, Any],
    shown: Sequence[Mapping[str, Any]] | None = None,
    place: object = None,
    *,
    wide: bool = False,
) -> None:
    """For people: the first of the rows, or of those `shown` in their place, with units. All rows
    are in `place`, and with `wide` here.
    """
    tables = [report["rows"] if wide or shown is None else shown]
    tables += [report[name] for name in FURTHER if name in report]
    for rows in filter(None, tables):
        listed = rows if wide else rows[:_ROWS_SHOWN]
        _print_rows(listed)
        if len(listed) < len(rows):
            where = f", and {place} has them" if place is not None else ""
            print(f"... {len(rows) - len(listed):,} more: --wide shows all rows{where}")
    for name, value in report["totals"].items():
        print(f"{name.replace('_', ' ')}: {_printable(name, value)}")
    for segment in report["segments"]:
        for problem in segment["problems"]:
            print(f"{_printable('file', segment['file'])}: {problem}", file=sys.stderr)
    print(f"{report['status']}: {report['records']:,} records in {report['wall_s']} s")


def report_failure(job: str, text: str, *, as_json: bool) -> int:
    """Says that a job could not run: a line on stderr, and with `as_json` an object on stdout.

    Returns the status of the command.
    """
    print(f"spark_jobs {job}: {text}", file=sys.stderr)
    if as_json:
        print(json.dumps({"job": job, "status": "error", "error": text}))
    return FAILED


def described(error: Exception) -> str:

    if isinstance(error, NoLogsError | JavaNotFoundError | CannotRunError | OSError):
        return str(error)
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if len(lines) <= _LINES_SHOWN:
        return f"{type(error).__name__}: {error}"
    # A Java trace around a Python one: the innermost cause says what happened.
    causes = [line for line in lines if _CAUSE.match(line)] or lines[:1]
    return causes[-1].removeprefix("Caused by: ")
