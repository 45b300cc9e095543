"""The command line: ``python -m spark_jobs JOB LOGS... --out DIR [--json] [--overwrite]``.

Exit status: 0 clean, 2 a violation in undamaged logs, 1 could not run.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spark_jobs.errors import CannotRunError
from spark_jobs.jobs import NAMES, OPTIONS, preparer, runner
from spark_jobs.output import CLEAN, FAILED, VIOLATION, Parser, described, print_table, summary
from spark_jobs.places import is_local
from spark_jobs.spark.directory import Directory, RemoteDirectory, directory
from spark_jobs.spark.jvm_start import nothing_left_when_interrupted

if TYPE_CHECKING:
    from spark_jobs.logs.model import Survey

COMMANDS = {"live": "spark_jobs.live.stream"}
"""What is no job over finished logs, and has a command line of its own."""


def parser() -> argparse.ArgumentParser:
    result = Parser(
        prog="python -m spark_jobs", description="Analyses pynotify's latency logs on Spark."
    )
    result.add_argument("job", choices=NAMES, metavar="JOB", help=", ".join((*NAMES, *COMMANDS)))
    result.add_argument("logs", nargs="+", metavar="LOGS", help="log files or their directories")
    result.add_argument(
        "--out", required=True, type=directory, metavar="DIR", help="for the results"
    )
    result.add_argument("--json", action="store_true", help="print the summary as one JSON object")
    result.add_argument(
        "--overwrite", action="store_true", help="replace results of an earlier run"
    )
    result.add_argument("--window", type=float, metavar="SECONDS", help=_of("window") + "; 1.0")
    result.add_argument(
        "--threshold",
        type=float,
        metavar="RATIO",
        help=_of("threshold") + "; exit status 2 when a quantile has grown by more than that",
    )
    result.add_argument("--master", help="Spark master; by default as Spark is configured")
    return result


def _of(option: str) -> str:
    return "of " + ", ".join(job for job in NAMES if option in OPTIONS.get(job, ()))


def _settings(options: argparse.Namespace) -> dict[str, Any]:
    """The options given that are the job's own. Raises CannotRunError for those of other jobs."""
    settings = {}
    for name in sorted({name for names in OPTIONS.values() for name in names} - {"overwrite"}):
        value = getattr(options, name)
        if value is not None and name not in OPTIONS.get(options.job, ()):
            raise CannotRunError(f"--{name} is an option {_of(name)}")
        if value is not None:
            settings[name] = value
    return settings


def run_job(
    job: str,
    logs: Sequence[str],
    out: Directory,
    *,
    overwrite: bool = False,
    master: str | None = None,
    **settings: Any,
) -> dict[str, Any]:
    """Runs `job` over `logs`, leaves its results in `out` and returns the summary.

    `settings` are the job's own options. Raises NoLogsError, JavaNotFoundError, and CannotRunError
    when there are results already.
    """
    from spark_jobs.errors import NoLogsError
    from spark_jobs.fetched import fetched
    from spark_jobs.logs.model import Survey
    from spark_jobs.spark.session import create_session

    if isinstance(out, RemoteDirectory) or not all(map(is_local, logs)):
        create_session(f"pynotify {job}", master)  # it knows what the URIs mean
    target = out / f"{job}.json"
    if "overwrite" in OPTIONS.get(job, ()):
        settings["overwrite"] = overwrite
    elif target.exists() and not overwrite:
        raise CannotRunError(f"{target} exists; --overwrite replaces it")
    with fetched(logs) as paths:
        found = preparer(job)(paths)
        if isinstance(found, Survey) and found.unreadable and not found.logs:
            raise NoLogsError(_nothing_readable(found))
        out.mkdir(parents=True, exist_ok=True)
        session = create_session(f"pynotify {job}", master)
        begin = time.monotonic()
        result = runner(job)(session, found, out, **settings)
        report = summary(job, result, time.monotonic() - begin)
    target.write_text(json.dumps(report, indent=1) + "\n")
    return report


def _nothing_readable(found: Survey) -> str:
    """Why the survey has no log, of each of the first files."""
    shown = [f"{report.file}: {'; '.join(report.problems)}" for report in found.unreadable[:5]]
    more = len(found.unreadable) - len(shown)
    return "\n".join(["no log file can be read", *shown, *([f"and {more} more"] * (more > 0))])


def _kept(options: argparse.Namespace, error: Exception, text: str) -> str:
    """Leaves an error of which `text` is only a line beside the results, and says where."""
    if len(str(error)) <= len(text) or not isinstance(options.out, Path):
        return ""
    place = options.out / f"{options.job}.error.txt"
    try:
        place.write_text(f"{error}\n", errors="backslashreplace")
    except OSError:
        return ""
    return f"\nAll of it is in {place}"


def _interrupted(error: Exception) -> bool:
    """Whether that is what Spark makes of Ctrl-C: its own handler cancels the jobs first."""
    return "SPARK_JOB_CANCELLED" in str(error)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line and returns the exit status."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    if given and given[0] in COMMANDS:
        return int(import_module(COMMANDS[given[0]]).main(given[1:]))
    options = parser().parse_args(given)
    try:
        with nothing_left_when_interrupted():
            report = run_job(
                options.job,
                options.logs,
                options.out,
                overwrite=options.overwrite,
                master=options.master,
                **_settings(options),
            )
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return FAILED
    except Exception as error:  # whatever it is, the status must not be 2 and stdout be JSON
        if _interrupted(error):
            print("interrupted", file=sys.stderr)
            return FAILED
        text = str(error) if isinstance(error, CannotRunError | OSError) else described(error)
        text += _kept(options, error, text)
        print(f"spark_jobs {options.job}: {text}", file=sys.stderr)
        if options.json:
            print(json.dumps({"job": options.job, "status": "error", "error": text}))
        return FAILED
    if options.json:
        print(json.dumps(report))
    else:
        print_table(report)
    return VIOLATION if report["status"] == "violation" else CLEAN
