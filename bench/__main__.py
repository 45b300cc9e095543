"""python -m bench: run the benchmarks, print each figure, then the table."""

from __future__ import annotations

import argparse
import logging
from pathlib import Path

from bench import (
    abandoned,
    arrays,
    bridge,
    calls,
    celery,
    fanout,
    gateway,
    generation,
    guest,
    idle,
    latency,
    native_programs,
    pubsub,
    startup,
    throughput,
    topics,
    websocket,
)
from bench.report import running

_TOPICS = {
    module.TOPIC: module.run
    for module in (
        calls,
        throughput,
        fanout,
        idle,
        latency,
        generation,
        guest,
        pubsub,
        arrays,
        bridge,
        gateway,
        celery,
        websocket,
        topics,
        abandoned,
        startup,
    )
}


def main() -> None:
    """Exits with 0 whatever the figures are."""
    options = _parser().parse_args()
    # With on_full="block" the fill warning is what a sender that is ahead must expect.
    logging.getLogger("pynotify").setLevel(logging.ERROR)
    with running(
        options.json, quick=options.quick, postgres=options.postgres, nsqd=options.nsqd
    ) as settings:
        if options.what == "native":
            native_programs.run(settings, native_programs.find(options.native_dir))
        else:
            for topic in options.only or _TOPICS:
                _TOPICS[topic](settings)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench", description="Benchmarks of pynotify against named peers."
    )
    parser.add_argument(
        "what",
        nargs="?",
        choices=["python", "native"],
        default="python",
        help="native: the C programs of bench/native, built before by `make bench-native`",
    )
    parser.add_argument(
        "--only", action="append", choices=sorted(_TOPICS), help="may be repeated; default: all"
    )
    parser.add_argument("--quick", action="store_true", help="a look, not a figure")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there")
    parser.add_argument("--postgres", metavar="DSN", help="measure a PostgreSQL too, for scale")
    parser.add_argument("--nsqd", type=Path, metavar="PATH", help="the binary: measure it too")
    parser.add_argument("--native-dir", type=Path, help="where the native programs are")
    return parser


if __name__ == "__main__":
    main()
