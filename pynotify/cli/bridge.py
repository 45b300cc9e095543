"""`pynotify bridge`: one PostgreSQL connection for all listeners of this host."""

from __future__ import annotations

import argparse
import importlib
import logging
import signal
from typing import TYPE_CHECKING, Any

from pynotify.cli import systemd
from pynotify.cli.terminal import say

if TYPE_CHECKING:
    from types import FrameType


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the command."""
    parser.add_argument("name", metavar="NAME", help="the segment")
    parser.add_argument(
        "--channels",
        type=_names,
        required=True,
        action="extend",
        metavar="A,B,...",
        help="those that are bridged, literally; may be given more than once",
    )
    parser.add_argument(
        "--both",
        action="store_true",
        help="send on upstream what is sent here; else only the other way",
    )
    parser.add_argument(
        "--database", default="default", help='the name space in it (default: "default")'
    )
    parser.epilog = (
        "The server is the one of PGHOST, PGSERVICE, PGUSER, PGPASSFILE and their like, as for"
        " psql. It runs until SIGTERM or Ctrl-C."
    )


def _names(text: str) -> list[str]:
    names = [name for name in text.split(",") if name]
    if not names:
        raise argparse.ArgumentTypeError("there is no channel in it")
    return names


class _Lines(logging.Handler):
    """What the library logs, on standard error."""

    def emit(self, record: logging.LogRecord) -> None:
        say(record.getMessage())


def run(options: argparse.Namespace) -> int:
    """Run the bridge until a signal ends it."""
    bridge_type = importlib.import_module("pynotify.bridge").PostgresBridge
    logger = logging.getLogger("pynotify")
    logger.addHandler(_Lines())
    logger.setLevel(logging.INFO)
    try:
        bridge = bridge_type(
            options.name,
            channels=options.channels,
            both=options.both,
            database=options.database,
        )
    except ImportError as error:
        say(f"pynotify bridge: {error}")
        return 1

    def stop(_signo: int, _frame: FrameType | None) -> Any:
        bridge.stop()

    signal.signal(signal.SIGTERM, stop)
    with bridge:
        say(f"bridge of {', '.join(options.channels)} runs")
        systemd.ready(f"bridge of {', '.join(options.channels)}")
        bridge.run()
        systemd.stopping()
    return 0
