"""`pynotify gateway`: PostgreSQL's wire protocol on a segment, for drivers of every language."""

from __future__ import annotations

import argparse
import contextlib
import resource
import signal
from typing import TYPE_CHECKING, Any

from pynotify.cli import metrics, systemd
from pynotify.cli.terminal import say
from pynotify.gateway import DEFAULT_PORT, Gateway

if TYPE_CHECKING:
    from types import FrameType


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the command."""
    parser.add_argument("name", metavar="NAME", help="the segment, which is made if need be")
    parser.add_argument(
        "--directory",
        metavar="DIR",
        help="of the socket .s.PGSQL.PORT: what clients have as host, or PGHOST"
        " (default: one of this user's)",
    )
    parser.add_argument(
        "--port", type=int, default=DEFAULT_PORT, metavar="N", help=f"default: {DEFAULT_PORT}"
    )
    parser.add_argument("--tcp", action="store_true", help="also on 127.0.0.1, at this port")
    parser.add_argument(
        "--database",
        action="append",
        metavar="DB",
        help='that clients may ask for; more than once, or "*" for any (default: "default")',
    )
    parser.add_argument(
        "--map",
        type=_pair,
        action="append",
        default=[],
        metavar="NAME=DB",
        help="what clients call a database of the segment: postgres=default",
    )
    parser.add_argument(
        "--allow-uid", type=int, action="append", default=[], metavar="N", help="another user"
    )
    parser.add_argument(
        "--allow-gid", type=int, action="append", default=[], metavar="N", help="a group of users"
    )
    parser.add_argument("--latency-log", metavar="DIR", help="write latency logs")
    parser.add_argument(
        "--authentication-timeout",
        type=int,
        default=60,
        metavar="SECONDS",
        help="for a client to send its startup message (default: 60)",
    )
    parser.add_argument(
        "--busy-poll",
        type=int,
        default=50,
        metavar="MICROSECONDS",
        help="that it looks for statements before it sleeps (default: 50; 0: none)",
    )
    parser.add_argument(
        "--prometheus",
        type=metrics.place,
        metavar="[ADDRESS:]PORT",
        help="serve its figures to Prometheus (default address: 127.0.0.1)",
    )
    parser.epilog = "It runs until SIGTERM or Ctrl-C; clients are told."


def _pair(text: str) -> tuple[str, str]:
    name, equals, database = text.partition("=")
    if not (name and equals and database):
        raise argparse.ArgumentTypeError("write NAME=DATABASE")
    return name, database


def _raise_descriptor_limit() -> None:
    """A client takes a socket, and its slot some more."""
    _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def run(options: argparse.Namespace) -> int:
    """Serve until a signal ends it."""
    _raise_descriptor_limit()
    databases = options.database or ([] if options.map else ["default"])
    gateway = Gateway(
        options.name,
        directory=options.directory,
        port=options.port,
        tcp=options.tcp,
        databases=databases,
        maps=dict(options.map),
        allow_uids=options.allow_uid,
        allow_gids=options.allow_gid,
        latency_log=options.latency_log,
        authentication_timeout=options.authentication_timeout,
        busy_poll=options.busy_poll,
    )

    def stop(_signo: int, _frame: FrameType | None) -> Any:
        gateway.stop()

    with gateway:
        signal.signal(signal.SIGTERM, stop)
        signal.signal(signal.SIGINT, stop)
        where = f"listening at {gateway.path}: PGHOST={gateway.path.parent} PGPORT={options.port}"
        lines = [where]
        if options.prometheus is not None:
            address, port = options.prometheus
            served = metrics.serve(
                "gateway",
                address,
                port,
                lambda prometheus: prometheus.GatewayCollector(gateway),
            )
            if served is None:
                return 1
            lines.append(served)
        say("\n".join(lines))
        systemd.ready(where)
        gateway.run()
        systemd.stopping()
    return 0
