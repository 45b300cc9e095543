"""Options and exit status: 0 clean, 2 a guarantee was broken, 1 could not run."""

from __future__ import annotations

import argparse
import json
import logging
import os
import shutil
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NoReturn

from pynotify.demo import faults, interrupts, spark, tables, verdict
from pynotify.demo.ledger import GarbledEntryError
from pynotify.demo.progress import Progress
from pynotify.demo.source import Library, NoSourceError, find_library
from pynotify.demo.stage import IDLE, LISTENERS, NOTIFIERS, DemoError, Outcome, Stage
from pynotify.errors import Error

CLEAN, COULD_NOT_RUN, VIOLATION = 0, 1, 2
_FEWEST = 2000
_DEFAULT = 1_000_000


class _Parser(argparse.ArgumentParser):
    """argparse would exit with 2, which here means a violation."""

    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        self.exit(COULD_NOT_RUN, f"{self.prog}: error: {message}\n")


def parser() -> argparse.ArgumentParser:
    """The parser of the demo's arguments."""
    result = _Parser(
        prog="python -m pynotify.demo",
        description="A million notifications between processes, two of them killed, and an audit "
        "of every listener that survived.",
        epilog="Exit status: 0 clean, 2 a guarantee was broken, 1 could not run.",
    )
    result.add_argument("--notifications", type=_count, default=_DEFAULT, metavar="N")
    result.add_argument(
        "--break",
        dest="fault",
        choices=tuple(faults.FAULTS),
        default=os.environ.get("BREAK") or None,
        help="put one fault into a listener's log, which the audit must find (default: $BREAK)",
    )
    result.add_argument(
        "--out", type=Path, default=Path("build"), metavar="DIR", help="for demo.json and the logs"
    )
    result.add_argument("--keep-logs", action="store_true", help="leave them in DIR/demo-logs")
    return result


def _count(text: str) -> int:
    value = int(text.replace("_", "").replace(",", ""))
    if value < _FEWEST:
        raise argparse.ArgumentTypeError(f"at least {_FEWEST:,}")
    return value


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it and return the exit status."""
    options = parser().parse_args(arguments)
    # A default does not go through `choices`.
    if options.fault is not None and options.fault not in faults.FAULTS:
        parser().error(f"BREAK={options.fault}: choose from {', '.join(faults.FAULTS)}")
    # The queue is kept full on purpose; its fill warnings would only tear the progress line apart.
    logging.getLogger("pynotify").setLevel(logging.ERROR)
    interrupts.unwind_on_interrupt()
    progress = Progress()
    try:
        return _run(options, progress)
    except KeyboardInterrupt:
        progress.say("interrupted")
    except GarbledEntryError as error:
        print(f"VIOLATION\n  {error}")
        return VIOLATION
    except (DemoError, NoSourceError, faults.NothingToBreakError, Error, OSError) as error:
        progress.say(f"pynotify demo: {type(error).__name__}: {error}")
    finally:
        progress.close()
    return COULD_NOT_RUN


def _run(options: argparse.Namespace, progress: Progress) -> int:
    begun = time.monotonic()
    spark.require_spark()
    library = find_library()
    logs, results = options.out / "demo-logs", options.out / "demo-spark"
    with ExitStack() as stack:
        _make_directories(logs, results)
        if not options.keep_logs:
            stack.callback(shutil.rmtree, logs, ignore_errors=True)
            stack.callback(shutil.rmtree, results, ignore_errors=True)
        outcome = _stream(library, options.notifications, logs, progress)
        if options.fault is not None:
            _break(outcome, logs, options.fault, progress)
        report = spark.report(logs, results, progress)
        found = verdict.judge(outcome, report)
    print(tables.printed(outcome, found))
    target = options.out / "demo.json"
    record = tables.as_json(outcome, found, options.fault)
    record["wall_s"] = round(time.monotonic() - begun, 1)
    target.write_text(json.dumps(record, indent=1) + "\n")
    print(tables.conclusion(outcome, found))
    print(f"{record['wall_s']} s in all; all figures are in {target}")
    if options.fault is not None and found.clean:
        raise DemoError(f"the audit did not find the fault of BREAK={options.fault}")
    return CLEAN if found.clean else VIOLATION


def _make_directories(logs: Path, results: Path) -> None:
    for directory in (logs, results):
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True)


def _stream(library: Library, notifications: int, logs: Path, progress: Progress) -> Outcome:
    progress.say(
        f"{notifications:,} notifications: the lines of {len(library.files):,} source files on "
        f"{len(library.channels)} channels,\n"
        f"one per top-level module; {NOTIFIERS} notifiers, {LISTENERS} listeners and {IDLE} idle "
        "listeners share one segment"
    )
    with Stage(library, notifications, logs, progress) as stage:
        return stage.run()


def _break(outcome: Outcome, logs: Path, fault: str, progress: Progress) -> None:
    victim = next(
        worker
        for worker in outcome.workers
        if worker.role == "listener" and worker.survived and not worker.replacement
    )
    done = faults.tamper(logs, victim.pid, fault)
    progress.say(f"BREAK={fault}: by its log {victim.name} was handed {done}")
