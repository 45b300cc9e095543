"""python -m bench: run the benchmarks, print each figure, then the table."""

from __future__ import annotations

import argparse
import json
import logging
import tempfile
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
    machine,
    native_programs,
    pubsub,
    startup,
    throughput,
    topics,
    websocket,
)
from bench.figures import Figure, line, markdown
from bench.settings import Settings

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
    figures: list[Figure] = []

    def report(figure: Figure) -> None:
        figures.append(figure)
        print(line(figure), flush=True)

    about = machine.describe()
    load_before = machine.load()
    print("machine:", ", ".join(f"{key} {value}" for key, value in about.items()), flush=True)
    with tempfile.TemporaryDirectory(prefix="bench-") as directory:
        settings = Settings(
            directory=Path(directory),
            report=report,
            quick=options.quick,
            postgres=options.postgres,
            nsqd=options.nsqd,
        )
        if options.what == "native":
            native_programs.run(settings, native_programs.find(options.native_dir))
        else:
            for topic in options.only or _TOPICS:
                _TOPICS[topic](settings)
    load_after = machine.load()
    print(f"\n{markdown(figures)}\n")
    print(f"load average before {load_before:.2f}, after {load_after:.2f}")
    if options.json:
        document = {
            "machine": about,
            "load": [load_before, load_after],
            "quick": options.quick,
            "figures": [figure.json() for figure in figures],
        }
        options.json.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


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
