"""The jobs, one module each.

A job module has ``TITLE``, ``run(session, survey, out) -> JobResult`` and, when it reads logs, the
class ``Partials`` that `spark_jobs.source` looks for. Adding its name here makes it a command.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # the names of the jobs are wanted where Spark is not
    from spark_jobs.quality import FileReport

NAMES = ("ingest", "latency", "timeline", "audit", "wakeups", "lag", "e2e")

OPTIONS = {
    "ingest": ("overwrite",),
    "timeline": ("window",),
    "lag": ("window",),
    "e2e": ("window",),
}
"""Options of the command line that a job's ``run`` takes as keywords, beyond those of all jobs."""


@dataclass
class JobResult:
    """What a job found: `rows` as in API.md, `violation` whether a guarantee was broken."""

    rows: list[dict[str, Any]]
    reports: list[FileReport]
    violation: bool = False
    totals: dict[str, Any] = field(default_factory=dict)


def runner(name: str) -> Callable[..., JobResult]:
    """``run`` of the job of that name, one of `NAMES`: (session, survey, out, its options)."""
    run: Callable[..., JobResult] = import_module(f"spark_jobs.jobs.{name}").run
    return run
