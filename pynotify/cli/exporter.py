"""`pynotify exporter`: the figures of all segments over HTTP, for Prometheus."""

from __future__ import annotations

import argparse
import signal

from pynotify.cli import arguments, metrics, systemd
from pynotify.cli.terminal import say


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the command."""
    parser.add_argument(
        "--port", type=metrics.port, required=True, metavar="P", help="0: any free one"
    )
    parser.add_argument(
        "--address", default=metrics.LOCAL, metavar="A", help="to bind to (default: 127.0.0.1)"
    )
    parser.add_argument(
        "--max-channels",
        type=arguments.size,
        default=200,
        metavar="N",
        help="of a segment with more no figures of single channels (default: 200)",
    )
    parser.add_argument(
        "names",
        metavar="NAME",
        nargs="*",
        help="a segment (default: all of this user, also those that come later)",
    )


def run(options: argparse.Namespace) -> int:
    """Serve until a signal ends it."""
    where = metrics.serve(
        "exporter",
        options.address,
        options.port,
        lambda prometheus: prometheus.PynotifyCollector(
            *options.names, max_channels=options.max_channels
        ),
    )
    if where is None:
        return 1
    say(where)
    systemd.ready(where)
    while True:
        signal.pause()
