"""The jobs, one module each.

A job module has ``TITLE``, ``run(session, survey, out) -> JobResult`` and, when it reads logs, the
class ``Partials`` that `spark_jobs.source` looks for. Adding its name here makes it a command.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # the names of the jobs are wanted where Spark is not
    from pyspark.sql import SparkSession

    from spark_jobs.logs import Survey
    from spark_jobs.quality import FileReport

NAMES = ("latency", "audit", "wakeups")


@dataclass
class JobResult:
    """What a job found: `rows` as in API.md, `violation` whether a guarantee was broken."""

    rows: list[dict[str, Any]]
    reports: list[FileReport]
    violation: bool = False
    totals: dict[str, Any] = field(default_factory=dict)


def runner(name: str) -> Callable[[SparkSession, Survey, Path], JobResult]:
    """``run`` of the job of that name, one of `NAMES`."""
    run: Callable[[SparkSession, Survey, Path], JobResult] = import_module(
        f"spark_jobs.jobs.{name}"
    ).run
    return run
