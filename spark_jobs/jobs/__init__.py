"""The jobs, one module each.

A job module has ``run(engine, survey, out, **options) -> JobResult`` and, when it reads logs, the
class ``Partials`` that `spark_jobs.engine.partials` looks for. One whose arguments
are not just logs has ``prepare(paths)``, and what that returns takes the place of the survey.
Adding its name here makes it a command.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # the names of the jobs are wanted where numpy is not
    from spark_jobs.result import JobResult

TITLES = {
    "ingest": "archives raw logs as Parquet, which the other jobs read as well",
    "latency": "commit-to-receive latency per channel, process and wake reason",
    "timeline": "messages, bytes and latency per channel, window by window",
    "audit": "lost, duplicate, reordered and corrupted messages; exit status 2 if there are any",
    "wakeups": "signals sent and useful wake-ups per process",
    "lag": "how far each process is behind, and which one holds the tail of the queue back",
    "e2e": "publish-to-finish percentiles per topic and channel, attempts, requeues and time-outs",
    "compare": "ratios of two runs, per channel and quantile; exit status 2 beyond --threshold",
    "perfetto": "a trace that ui.perfetto.dev opens: commits, hand-overs and sleeps, with arrows",
    "report": "one self-contained HTML page with plots, and .hgrm files",
}
NAMES = tuple(TITLES)

OPTIONS = {
    "ingest": ("overwrite", "compact"),
    "latency": ("limits",),
    "timeline": ("window",),
    "lag": ("window",),
    "e2e": ("window",),
    "compare": ("threshold",),
    "perfetto": ("most",),
    "report": ("before", "threshold"),
}
"""Options of the command line that a job's ``run`` takes as keywords, beyond those of all jobs."""

TIMED = ("latency", "timeline", "wakeups", "lag", "e2e", "perfetto")
"""Jobs that a part of the time is enough for; what was owed in it the audit could not tell."""


def preparer(name: str) -> Callable[[Sequence[str]], Any]:
    """What makes the job's input of the paths given; it needs no Spark."""
    from spark_jobs.survey import survey

    prepare: Callable[[Sequence[str]], Any] = getattr(
        import_module(f"spark_jobs.jobs.{name}"), "prepare", survey
    )
    return prepare


def runner(name: str) -> Callable[..., JobResult]:
    """``run`` of the job of that name, one of `NAMES`: (engine, survey, out, its options)."""
    run: Callable[..., JobResult] = import_module(f"spark_jobs.jobs.{name}").run
    return run
