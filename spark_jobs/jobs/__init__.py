"""The jobs, one module each.

A job module has ``TITLE``, ``run(session, survey, out, **options) -> JobResult`` and, when it
reads logs, the class ``Partials`` that `spark_jobs.spark.source` looks for. One whose arguments
are not just logs has ``prepare(paths)``, and what that returns takes the place of the survey.
Adding its name here makes it a command.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # the names of the jobs are wanted where Spark is not
    from spark_jobs.result import JobResult

NAMES = (
    "ingest",
    "latency",
    "timeline",
    "audit",
    "wakeups",
    "lag",
    "e2e",
    "compare",
    "report",
)

OPTIONS = {
    "ingest": ("overwrite",),
    "timeline": ("window",),
    "lag": ("window",),
    "e2e": ("window",),
    "compare": ("threshold",),
}
"""Options of the command line that a job's ``run`` takes as keywords, beyond those of all jobs."""


class CannotRunError(Exception):
    """A job could not be run; says why."""


def preparer(name: str) -> Callable[[Sequence[str]], Any]:
    """What makes the job's input of the paths given; it needs no Spark."""
    from spark_jobs.survey import survey

    prepare: Callable[[Sequence[str]], Any] = getattr(
        import_module(f"spark_jobs.jobs.{name}"), "prepare", survey
    )
    return prepare


def runner(name: str) -> Callable[..., JobResult]:
    """``run`` of the job of that name, one of `NAMES`: (session, survey, out, its options)."""
    run: Callable[..., JobResult] = import_module(f"spark_jobs.jobs.{name}").run
    return run
