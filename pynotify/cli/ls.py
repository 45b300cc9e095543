"""`pynotify ls`: every segment of this user."""

from __future__ import annotations

import dataclasses
import time
from typing import TYPE_CHECKING

from pynotify._segments import segments
from pynotify._table import duration, local_time, size, table, yes
from pynotify.cli import arguments

if TYPE_CHECKING:
    import argparse

    from pynotify._types import SegmentInfo

SUMMARY = "list the segments of this user"
_HEADINGS = ("NAME", ">SIZE", "CREATED", ">BACKENDS", ">LAST USED", "STALE")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the command."""
    arguments.add_json(parser, "a list of objects")


def run(options: argparse.Namespace) -> int:
    """List them."""
    found = segments()
    if options.json:
        arguments.print_json([dataclasses.asdict(info) for info in found])
        return 0
    rows = (
        (
            info.name,
            size(info.size),
            local_time(info.created),
            info.backends,
            "now" if info.backends else f"{duration(max(0.0, time.time() - info.last_used))} ago",
            _stale(info),
        )
        for info in found
    )
    print("\n".join(table(_HEADINGS, rows)))
    return 0


def _stale(info: SegmentInfo) -> str:
    return "other pid namespace" if info.other_pid_namespace else yes(info.stale)
