"""`pynotify ls`: every segment of this user."""

from __future__ import annotations

import time

from pynotify._segments import survey_segments
from pynotify._table import duration, local_time, size, table, yes
from pynotify.cli import arguments

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from typing import Any

_HEADINGS = ("NAME", ">SIZE", "CREATED", ">BACKENDS", ">LAST USED", "STALE")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the command."""
    arguments.add_json(parser, "a list of objects")


def run(options: argparse.Namespace) -> int:
    """List them."""
    found = survey_segments()
    if options.json:
        arguments.print_json(found)
        return 0
    rows = (
        (
            info["name"],
            size(info["size"]),
            local_time(info["created"]),
            info["backends"],
            "now" if info["backends"] else f"{_ago(info['last_used'])} ago",
            "other pid namespace" if info["other_pid_namespace"] else yes(info["stale"]),
        )
        for info in found
    )
    print("\n".join(table(_HEADINGS, rows)))
    return 0


def _ago(moment: Any) -> str:
    return duration(max(0.0, time.time() - moment))
