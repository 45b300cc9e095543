"""`pynotify doctor`: what is wrong with the host, the segments and their processes."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from pynotify._table import escape
from pynotify.cli import arguments
from pynotify.cli.doctor import host, segments
from pynotify.cli.doctor.finding import Finding, Level
from pynotify.cli.doctor.sizing import Load
from pynotify.cli.doctor.stack import ask_for_stack
from pynotify.cli.terminal import coloured

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

_COLOURS = {Level.OK: "32", Level.WARNING: "33", Level.PROBLEM: "1;31"}
_WIDTH = max(map(len, Level))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the command."""
    parser.add_argument("names", metavar="NAME", nargs="*", help="a segment (default: all)")
    arguments.add_interval(parser, "live segments are looked at twice, S seconds apart")
    parser.add_argument(
        "--stack",
        type=int,
        metavar="PID",
        help="do nothing but ask that process to print its Python stacks to its standard error",
    )
    sizing = parser.add_argument_group("is the queue large enough for this load?")
    sizing.add_argument("--rate", type=arguments.positive_seconds, metavar="MSGS_PER_S")
    sizing.add_argument("--payload", type=arguments.size, metavar="BYTES", help="of payload")
    sizing.add_argument(
        "--absence",
        type=arguments.positive_seconds,
        metavar="SECONDS",
        help="the longest time for which a listener does not read",
    )
    arguments.add_json(parser, "an object with all findings")


def check(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """What the parser cannot see by itself."""
    given = [value is not None for value in (options.rate, options.payload, options.absence)]
    if any(given) and not all(given):
        parser.error("--rate, --payload and --absence go together")
    if options.stack is not None and options.names:
        parser.error("--stack looks in all segments")


def run(options: argparse.Namespace) -> int:
    """Look, print, and return 1 if there is a problem."""
    if options.stack is not None:
        return ask_for_stack(options.stack)
    load = None
    if options.rate is not None:
        load = Load(options.rate, options.payload, options.absence)
    found = [*host.check(), *segments.check(options.names, options.interval, load)]
    problems = sum(finding.level is Level.PROBLEM for finding in found)
    if options.json:
        rows = [dataclasses.asdict(finding) for finding in found]
        arguments.print_json({"ok": not problems, "findings": rows})
    else:
        _print(found, problems)
    return 1 if problems else 0


def _print(found: Sequence[Finding], problems: int) -> None:
    for finding in found:
        level = coloured(f"{finding.level:<{_WIDTH}}", _COLOURS[finding.level])
        where = f"{finding.check} of {finding.segment}" if finding.segment else finding.check
        print(f"{level}  {escape(f'{where}: {finding.text}')}")
        if finding.advice:
            print(f"{'':{_WIDTH}}    {escape(finding.advice)}")
    warnings = sum(finding.level is Level.WARNING for finding in found)
    print(f"{problems or 'no'} problem{'s' * (problems != 1)}, "
          f"{warnings or 'no'} warning{'s' * (warnings != 1)}")  # fmt: skip
