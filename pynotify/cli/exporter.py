"""`pynotify exporter`: the figures of all segments over HTTP, for Prometheus."""

from __future__ import annotations

import argparse
import importlib
import signal

from pynotify.cli import arguments, systemd
from pynotify.cli.terminal import say

SUMMARY = "serve the figures to Prometheus"
_HIGHEST_PORT = 65535


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the command."""
    parser.add_argument("--port", type=_port, required=True, metavar="P", help="0: any free one")
    parser.add_argument(
        "--address", default="127.0.0.1", metavar="A", help="to bind to (default: 127.0.0.1)"
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


def _port(text: str) -> int:
    value = int(text)
    if not 0 <= value <= _HIGHEST_PORT:
        raise argparse.ArgumentTypeError(f"a port is at most {_HIGHEST_PORT}")
    return value


def run(options: argparse.Namespace) -> int:
    """Serve until a signal ends it."""
    try:
        client = importlib.import_module("prometheus_client")
    except ImportError:
        say(
            "pynotify exporter: the package prometheus-client is not installed\n"
            'Install it with the extra: pip install "pynotify-ipc[prometheus]".'
        )
        return 1
    prometheus = importlib.import_module("pynotify.contrib.prometheus")
    # Of its own, so that nothing of this process is among the figures.
    registry = client.CollectorRegistry(auto_describe=False)
    registry.register(
        prometheus.PynotifyCollector(*options.names, max_channels=options.max_channels)
    )
    server, _thread = client.start_http_server(
        options.port, addr=options.address, registry=registry
    )
    address, port = server.server_address[:2]
    host = f"[{address}]" if ":" in address else address
    say(f"metrics are at {host}:{port}/metrics")
    systemd.ready(f"metrics are at {host}:{port}/metrics")
    while True:
        signal.pause()
