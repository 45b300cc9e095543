"""The command line: ``python -m spark_jobs JOB LOGS... --out DIR [--json] [--overwrite]``.

Logs are read on this host (`spark_jobs.engine.local`) unless something speaks for Spark: a master,
``spark-submit``, a place that Hadoop alone knows, or more logs than one host should read.

Exit status: 0 clean, 2 a violation in undamaged logs, 1 could not run.
"""

from __future__ import annotations

import argparse
import json
import re
import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spark_jobs.directory import Directory, directory
from spark_jobs.errors import CannotRunError
from spark_jobs.jobs import NAMES, OPTIONS, TIMED, TITLES, preparer, runner
from spark_jobs.output import (
    CLEAN,
    FAILED,
    VIOLATION,
    Parser,
    described,
    print_table,
    report_failure,
    summary,
    versions,
)
from spark_jobs.places import needs_java
from spark_jobs.spark.configured import configured_master
from spark_jobs.spark.jvm_start import nothing_left_when_interrupted

if TYPE_CHECKING:
    from spark_jobs.engine.base import Engine

COMMANDS = {"live": "spark_jobs.live.stream", "prune": "spark_jobs.prune"}
"""What is no job over finished logs, and has a command line of its own."""
COMMAND_TITLES = {
    "live": "percentiles of growing logs, at every trigger",
    "prune": "removes old days from an archive, by age or size",
}

_COLUMNS = ("channel", "host", "pid")
_NEVER = (1 << 63) - 1
_FLAGS = {"limits": "max"}

_BRIEF_BYTES = 8 << 30
"""Up to so many bytes, Java compiles what it runs quickly, not well."""
_LOCAL_BYTES = 64 << 30
"""More logs than that are Spark's, if nothing else is said."""


def _help() -> str:
    width = max(map(len, (*TITLES, *COMMANDS)))
    lines = [f"  {name:{width}}  {title}" for name, title in {**TITLES, **COMMAND_TITLES}.items()]
    return "\n".join(["jobs:", *lines])


def _seconds(text: str) -> float:
    """The width of a window; whole nanoseconds."""
    value = float(text)
    if not (value < 1e9 and round(value * 1e9) > 0):
        raise argparse.ArgumentTypeError(f"a window cannot be {text} s wide")
    return value


def _whole(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is no number of records")
    return value


def parser() -> argparse.ArgumentParser:
    result = Parser(
        prog="python -m spark_jobs",
        description="Analyses pynotify's latency logs.",
        epilog=_help(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    jobs = (*NAMES, *COMMANDS)
    result.add_argument("job", choices=jobs, metavar="JOB", help="what to find out; see below")
    result.add_argument("logs", nargs="*", metavar="LOGS", help="log files or their directories")
    result.add_argument(
        "--out", required=True, type=directory, metavar="DIR", help="for the results"
    )
    result.add_argument("--json", action="store_true", help="print the summary as one JSON object")
    result.add_argument(
        "--overwrite", action="store_true", help="replace results of an earlier run"
    )
    result.add_argument("--window", type=_seconds, metavar="SECONDS", help=_of("window") + "; 1.0")
    result.add_argument(
        "--threshold",
        type=float,
        metavar="RATIO",
        help=_of("threshold") + "; exit status 2 when a quantile has grown by more than that",
    )
    result.add_argument(
        "--before",
        metavar="OLD",
        help=_of("before") + ": logs, an archive or results of an earlier run, set beside LOGS",
    )
    result.add_argument(
        "--max",
        dest="limits",
        type=_limit,
        action="append",
        metavar="NAME=TIME",
        help=_of("limits") + ": p99=5ms, for instance; exit status 2 when a listener's is more",
    )
    result.add_argument(
        "--most", type=_whole, metavar="N", help=_of("most") + ": records in the trace; 1,000,000"
    )
    result.add_argument(
        "--compact",
        action="store_true",
        default=None,
        help=_of("compact") + ": put small segments of the archive together; LOGS may be left out",
    )
    _add_selection(result)
    result.add_argument("--wide", action="store_true", help="print all rows, and all columns")
    result.add_argument(
        "--engine", choices=("local", "spark"), help="what reads the logs; by default this host"
    )
    result.add_argument("--master", help="Spark master; by default as Spark is configured")
    result.add_argument("--version", action=_Version, nargs=0, help="print versions and exit")
    return result


def _add_selection(result: argparse.ArgumentParser) -> None:
    """The options that say which records are read, and which rows are printed."""
    for name, text in (("since", "from"), ("until", "before")):
        result.add_argument(
            f"--{name}",
            type=_moment,
            metavar="TIME",
            help=f"records {text} then only: 2026-01-31T12:00 (UTC), or 10m ago as 10m; of "
            + ", ".join(TIMED),
        )
    for name in _COLUMNS:
        result.add_argument(
            f"--{name}", metavar="PATTERN", help=f"rows of such a {name} only, as in orders.*"
        )


def _parsed(given: Sequence[str]) -> argparse.Namespace:
    own = parser()
    options = own.parse_args(given)
    if not options.logs and not options.compact:
        own.error("the following arguments are required: LOGS")
    return options


_UNITS = {"ns": 1, "us": 10**3, "\N{MICRO SIGN}s": 10**3, "ms": 10**6, "s": 10**9}
_AGO = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_LIMITS = ("min", "p50", "p90", "p99", "p999", "p9999", "max", "mean")


def _limit(text: str) -> tuple[str, int]:
    """``p99=5ms`` as the name of a column and ns."""
    found = re.fullmatch(r"(\w+)=(\d+\.?\d*)(\D+)", text)
    if found is None or found[1] not in _LIMITS or found[3] not in _UNITS:
        what = f"{text} is no limit such as p99=5ms: one of {', '.join(_LIMITS)}, and ns, us, ms, s"
        raise argparse.ArgumentTypeError(what)
    return f"{found[1]}_ns", round(float(found[2]) * _UNITS[found[3]])


def _moment(text: str) -> int:
    """A time of the wall clock, or how long ago, in ns since 1970."""
    ago = re.fullmatch(r"(\d+\.?\d*)([smhd])", text)
    if ago is not None:
        return time.time_ns() - round(float(ago[1]) * _AGO[ago[2]] * 1e9)
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        what = f"{text} is no time such as 2026-01-31T12:00, or 10m for how long ago (s, m, h, d)"
        raise argparse.ArgumentTypeError(what) from None
    at = at if at.tzinfo is not None else at.replace(tzinfo=UTC)
    return round(at.timestamp() * 1e6) * 1000


class _Version(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        print(", ".join(f"{name} {version}" for name, version in versions().items()))
        parser.exit()


def _of(option: str) -> str:
    return "of " + ", ".join(job for job in NAMES if option in OPTIONS.get(job, ()))


def _settings(options: argparse.Namespace) -> dict[str, Any]:
    """The options given that are the job's own. Raises CannotRunError for those of other jobs."""
    settings = {}
    for name in sorted({name for names in OPTIONS.values() for name in names} - {"overwrite"}):
        value = getattr(options, name)
        if value is not None and name not in OPTIONS.get(options.job, ()):
            raise CannotRunError(f"--{_FLAGS.get(name, name)} is an option {_of(name)}")
        if value is not None:
            settings[name] = dict(value) if name == "limits" else value
    return settings


def _only(options: argparse.Namespace) -> dict[str, str]:
    """Patterns of columns that were given."""
    given = {name: getattr(options, name) for name in _COLUMNS}
    return {name: value for name, value in given.items() if value is not None}


def _within(options: argparse.Namespace) -> tuple[int, int] | None:
    """From when to when. Raises CannotRunError if there is no such time, or of no use."""
    if options.since is None and options.until is None:
        return None
    if options.job not in TIMED:
        raise CannotRunError(f"--since and --until are options of {', '.join(TIMED)}")
    begin = 0 if options.since is None else options.since
    end = _NEVER if options.until is None else options.until
    if begin >= end:
        raise CannotRunError("--until is not after --since: no record is between them")
    return begin, end


def _speaks_for_spark(places: Sequence[str], out: Directory, master: str | None) -> str:
    """Why Spark should read the logs; "" if nothing speaks for it."""
    remote = [place for place in (*places, str(out)) if needs_java(place)]
    if master is not None:
        return f"--master {master} is Spark's"
    if remote:
        return f"{remote[0]} is known to Hadoop alone"
    return configured_master()


def _engine(job: str, wanted: str | None, found: object, why: str, master: str | None) -> Engine:
    from spark_jobs.logs.model import Survey

    size = sum(log.size for log in found.logs) if isinstance(found, Survey) else 0
    if wanted == "spark" or (wanted is None and (why or size > _LOCAL_BYTES)):
        from spark_jobs.spark.engine import SparkEngine
        from spark_jobs.spark.session import create_session

        return SparkEngine(create_session(f"pynotify {job}", master, brief=size <= _BRIEF_BYTES))
    from spark_jobs.engine.local import LocalEngine

    return LocalEngine()


def run_job(
    job: str,
    logs: Sequence[str],
    out: Directory,
    *,
    overwrite: bool = False,
    engine: str | None = None,
    master: str | None = None,
    within: tuple[int, int] | None = None,
    only: Mapping[str, str] | None = None,
    **settings: Any,
) -> tuple[dict[str, Any], list[dict[str, Any]] | None]:
    """Runs `job` over `logs`, leaves its results in `out` and returns the summary, and the rows
    that people see.

    `engine`: "local" or "spark"; None: Spark where something speaks for it. `within`: from and to
    which ns of the wall clock. `only`: patterns of the rows' columns. `settings` are the job's own
    options. Raises NoLogsError, JavaNotFoundError, and CannotRunError when there are
    results already.
    """
    from spark_jobs.fetched import fetched
    from spark_jobs.logs.model import Survey
    from spark_jobs.survey import readable

    earlier = [settings.pop("before")] if "before" in settings else []
    given = (*logs, *earlier)
    why = _speaks_for_spark(given, out, master)
    if any(map(needs_java, (*given, str(out)))):
        if engine == "local":
            raise CannotRunError(f"{why}: that takes --engine spark")
        from spark_jobs.spark.session import create_session

        create_session(f"pynotify {job}", master)  # it knows what the URIs mean
    elif engine == "local" and master is not None:
        raise CannotRunError(f"{why}: leave it out, or --engine local")
    target = out / f"{job}.json"
    if "overwrite" in OPTIONS.get(job, ()):
        settings["overwrite"] = overwrite
    elif target.exists() and not overwrite:
        raise CannotRunError(f"{target} exists; --overwrite replaces it")
    with fetched([*logs, *earlier]) as places:
        paths = places[: len(logs)]
        found = preparer(job)(paths) if paths or not settings.get("compact") else Survey()
        if isinstance(found, Survey):
            readable(found)
        if earlier:
            from spark_jobs.jobs.compare import side

            settings["before"] = side(places[-1])
        out.mkdir(parents=True, exist_ok=True)
        chosen = _engine(job, engine, found, why, master)
        begin = time.monotonic()
        if within is not None:
            found.logs = [replace(log, within=within) for log in found.logs]
        result = runner(job)(chosen, found, out, **settings)
        result.only(only or {})
        report = summary(job, result, time.monotonic() - begin)
    target.write_text(json.dumps(report, indent=1) + "\n")
    return report, result.shown


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
    options = _parsed(given)
    made_by = {}
    if options.job == "report":
        made_by["command"] = shlex.join(["python", "-m", "spark_jobs", *given])
    try:
        with nothing_left_when_interrupted():
            report, shown = run_job(
                options.job,
                options.logs,
                options.out,
                overwrite=options.overwrite,
                engine=options.engine,
                master=options.master,
                within=_within(options),
                only=_only(options),
                **_settings(options),
                **made_by,
            )
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return FAILED
    except Exception as error:  # whatever it is, the status must not be 2 and stdout be JSON
        if _interrupted(error):
            print("interrupted", file=sys.stderr)
            return FAILED
        text = described(error)
        text += _kept(options, error, text)
        return report_failure(options.job, text, as_json=options.json)
    if options.json:
        print(json.dumps(report))
    else:
        place = f"{options.out}/{options.job}.json"
        print_table(report, shown, place, wide=options.wide)
    return VIOLATION if report["status"] == "violation" else CLEAN
