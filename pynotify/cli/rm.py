"""`pynotify rm`: unlink segments."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from pynotify._engine import open as open_segment
from pynotify._segments import segment_info, segments, unlink
from pynotify._table import escape
from pynotify.cli import arguments
from pynotify.cli.liveness_files import lock_files
from pynotify.cli.terminal import complain, say
from pynotify.errors import (
    Error,
    LayoutMismatch,
    OperationalError,
    SegmentCorrupt,
    SegmentNotFound,
)

if TYPE_CHECKING:
    import argparse

    from pynotify._types import SegmentInfo

_IN_USE = "End them or close their connections first, or use --force."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the command."""
    parser.add_argument("names", metavar="NAME", nargs="*", help="a segment")
    parser.add_argument(
        "-f",
        "--force",
        action="store_true",
        help="also while processes are connected to it: they get SegmentUnlinked",
    )
    parser.add_argument(
        "--unused",
        action="store_true",
        help="each segment without a connection and without messages in its topics",
    )
    parser.add_argument(
        "--older",
        type=arguments.age,
        metavar="AGE",
        help="with --unused: unused for so long (90s, 30m, 1h, 7d)",
    )


def check(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """Names, or --unused."""
    if options.unused and (options.names or options.force):
        parser.error("--unused takes no NAME and no --force")
    if not options.unused and not options.names:
        parser.error("name a segment, or say --unused")
    if options.older is not None and not options.unused:
        parser.error("--older needs --unused")


def run(options: argparse.Namespace) -> int:
    """Remove each of them that may be removed."""
    if options.unused:
        return _remove_unused(options.older or 0.0)
    return max(_remove(name, options.force) for name in options.names)


def _remove(name: str, force: bool) -> int:
    leftovers = name in lock_files()
    try:
        unlink(name, force=force)
    except SegmentNotFound as error:
        if leftovers and name not in lock_files():  # unlink() takes those along
            return 0
        complain("rm", error, "`pynotify ls` lists what there is.")
    except OperationalError as error:
        refused = type(error) is OperationalError
        complain("rm", error, _IN_USE if refused else None)
    except Error as error:
        complain("rm", error)
    else:
        return 0
    return 1


def _remove_unused(age: float) -> int:
    status = 0
    for name in [info.name for info in segments() if _is_unused(info, age)]:
        try:
            with open_segment(name, create=False) as engine:
                engine.stat()  # a connection of a process that was killed ends now
                waiting = sum(topic.unfinished for topic in engine.topics() if not topic.durable)
        except (LayoutMismatch, SegmentCorrupt):  # nothing that could be read is lost
            waiting = 0
        except SegmentNotFound:
            continue
        info = segment_info(name)
        if info is None or not _is_unused(info, age):
            continue
        if waiting:
            say(f"pynotify rm: {name} is kept: its topics hold {waiting:,} messages")
            continue
        if _remove(name, force=False) == 0:
            print(escape(name), flush=True)
        else:
            status = 1
    return status


def _is_unused(info: SegmentInfo, age: float) -> bool:
    unused = not info.backends and not info.other_pid_namespace
    return unused and time.time() - info.last_used >= age
