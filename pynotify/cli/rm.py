"""`pynotify rm`: unlink segments."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pynotify._segments import unlink
from pynotify.cli.lockfiles import lock_files
from pynotify.cli.terminal import complain
from pynotify.errors import Error, OperationalError, SegmentNotFound

if TYPE_CHECKING:
    import argparse

SUMMARY = "remove a segment"
_IN_USE = "End them or close their connections first, or use --force."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the command."""
    parser.add_argument("names", metavar="NAME", nargs="+", help="a segment")
    parser.add_argument(
        "-f",
        "--force",
        action="store_true",
        help="also while processes are connected to it: they get SegmentUnlinked",
    )


def run(options: argparse.Namespace) -> int:
    """Remove each of them that may be removed."""
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
