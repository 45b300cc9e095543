"""`make soak MINUTES=n`: rounds of mischief, each judged before the next; see the modules."""

from __future__ import annotations

import argparse
import os
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import pynotify
from soak.judge import Verdict, judge
from soak.supervisor import Crowd, Settings, end_with

_ROOT = Path(__file__).resolve().parents[2]
_ROUNDS_PER_SEGMENT = 4
_PLACES = 64


def _native_worker() -> Path | None:
    """The one that was built last; a sanitizer's is as good."""
    built = list((_ROOT / "build").glob("*/native/tests/soak_worker"))
    return max(built, key=lambda path: path.stat().st_mtime, default=None)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--kills", type=int, default=0, help="end after so many, and one round")
    parser.add_argument("--round", type=float, default=15.0, help="seconds of a round")
    parser.add_argument("--seed", type=int, default=None, help="default: a new one, printed")
    parser.add_argument("--workers", type=int, default=16)
    parser.add_argument("--python-workers", type=int, default=4)
    parser.add_argument("--on-full", default="error,block,drop-slowest", help="drawn from these")
    parser.add_argument("--queue-pages", default="64,128,1024", help="likewise")
    parser.add_argument("--spill", default="0,0,256,4096", help="likewise; pages beyond those")
    parser.add_argument("--native", type=Path, default=_native_worker(), help="the C worker")
    parser.add_argument("--kill-rate", type=float, default=15.0, help="a second")
    parser.add_argument("--stop-rate", type=float, default=10.0, help="a second")
    parser.add_argument("--parent", type=int, default=0, help="end when that process does")
    parser.add_argument("--keep", type=Path, help="where to put the journals of bad rounds")
    return parser.parse_args()


class _Soak:
    def __init__(self, arguments: argparse.Namespace) -> None:
        self._arguments = arguments
        self._chance = random.Random(arguments.seed)
        self._name = f"soak-{os.getpid()}"
        self._settings = Settings(
            seed=arguments.seed,
            workers=arguments.workers,
            python_workers=arguments.python_workers,
            native=arguments.native,
            kills_per_second=arguments.kill_rate,
            stops_per_second=arguments.stop_rate,
        )
        self.figures: Counter[str] = Counter()
        self.violations: Counter[str] = Counter()
        self.rounds = 0

    def _options(self, data_dir: str) -> dict[str, object]:
        draw = self._chance.choice
        queue_pages = int(draw(self._arguments.queue_pages.split(",")))
        spill = int(draw(self._arguments.spill.split(",")))
        return {
            "on_full": draw(self._arguments.on_full.split(",")),
            "queue_pages": queue_pages,
            "max_queue_pages": queue_pages + spill,
            "data_dir": data_dir if spill else None,
            "signaling": draw(["targeted"] * 4 + ["broadcast"]),
            "full_timeout": 0.05,
            "max_backends": 2 * self._settings.workers + 8,
            "max_channels": 256,
            "max_subscriptions": 4096,
            "max_generations": 128,
            "max_payload": 20_000,
        }

    def segment(self, until: float) -> None:
        """Some rounds on one segment."""
        data_dir = tempfile.mkdtemp(prefix="soak-data-")
        options = self._options(data_dir)
        print(f"segment: {options}", flush=True)
        pynotify.unlink(self._name, missing_ok=True, force=True)
        try:
            with pynotify.open(self._name, **options) as engine:
                for _ in range(_ROUNDS_PER_SEGMENT):
                    self._round(engine, data_dir, gaps=options["on_full"] == "drop-slowest")
                    if time.monotonic() >= until:
                        return
        except pynotify.Error as error:  # poisoned, or a lock that is not given back
            self.violations[type(error).__name__] += 1
            print(f"  the supervisor: {error}", flush=True)
        finally:
            pynotify.unlink(self._name, missing_ok=True, force=True)
            shutil.rmtree(data_dir)

    def _round(self, engine: pynotify.Engine, data_dir: str, *, gaps: bool) -> None:
        self.rounds += 1
        directory = Path(tempfile.mkdtemp(prefix="soak-"))
        seed = self._chance.getrandbits(60)
        begun = time.monotonic()
        earlier = engine.stat()
        try:
            with engine.connect("soak") as conn:
                counters = [conn.generation(f"g{place}") for place in range(_PLACES)]
                before = [counter.value for counter in counters]
                crowd = Crowd(self._settings, engine, directory, seed)
                try:
                    crowd.run(seconds=self._arguments.round, kills=self._arguments.kills)
                    crowd.end(conn)
                finally:
                    crowd.kill_all()
                ran = time.monotonic() - begun
                verdict = judge(directory, gaps=gaps)
                for place, counter in enumerate(counters):
                    _check_counter(place, counter.value - before[place], verdict)
            stat = _check_nothing_left(engine, data_dir, verdict)
            verdict.figures["evictions"] += stat.evictions - earlier.evictions
            verdict.figures["spilled pages"] += stat.spilled_pages - earlier.spilled_pages
            self._report(crowd, verdict, directory, ran, time.monotonic() - begun - ran)
        finally:
            shutil.rmtree(directory)

    def _report(
        self, crowd: Crowd, verdict: Verdict, directory: Path, ran: float, judged: float
    ) -> None:
        self.figures += crowd.figures + verdict.figures
        bad = crowd.violations + verdict.violations
        self.violations += bad
        print(
            f"round {self.rounds}: {ran:.0f} s, judged in {judged:.0f} s:"
            f" {dict(crowd.figures + verdict.figures)}, violations {dict(bad)}",
            flush=True,
        )
        for example in (crowd.examples + verdict.examples)[:30]:
            print(f"  {example}", flush=True)
        if bad and self._arguments.keep:
            kept = shutil.copytree(directory, self._arguments.keep / f"round-{self.rounds}")
            print(f"  the journals are in {kept}", flush=True)


def _check_counter(place: int, moved: int, verdict: Verdict) -> None:
    """What was committed has been added, and what is in doubt perhaps."""
    least = verdict.bumps[place]
    if not least <= moved <= least + verdict.bumps_in_doubt[place]:
        verdict.violation(
            "counter", f"g{place} moved by {moved}, not by {least} and perhaps"
            f" {verdict.bumps_in_doubt[place]}",
        )  # fmt: skip


def _check_nothing_left(
    engine: pynotify.Engine, data_dir: str, verdict: Verdict
) -> pynotify.EngineStat:
    """All workers are gone: no slot, no subscription, no room, no reservation, no page may be."""
    stat = engine.stat()
    if stat.backends or stat.subscriptions or stat.head != stat.tail:
        verdict.violation(
            "leak",
            f"{len(stat.backends)} slots, {stat.subscriptions} subscriptions, "
            f"{stat.head - stat.tail} bytes",
        )
    for problem in engine.check().problems:
        verdict.violation("check", f"at the end: {problem}")
    if files := os.listdir(data_dir):
        verdict.violation("leak", f"files: {files}")
    return stat


def main() -> int:
    arguments = _arguments()
    end_with(arguments.parent)
    if arguments.seed is None:
        arguments.seed = random.SystemRandom().getrandbits(31)
    kinds = f"{arguments.workers} processes, {arguments.python_workers} of them Python"
    print(f"seed {arguments.seed}, {kinds if arguments.native else 'all Python'}", flush=True)
    soak = _Soak(arguments)
    begun = time.monotonic()
    until = begun if arguments.kills else begun + 60 * arguments.minutes
    while soak.rounds == 0 or time.monotonic() < until:
        soak.segment(until)
    print(f"\n{(time.monotonic() - begun) / 60:.1f} minutes, {soak.rounds} rounds, seed", end=" ")
    print(arguments.seed)
    for name, count in sorted(soak.figures.items()):
        print(f"  {name:26} {count:>14,}")
    print(f"violations: {sum(soak.violations.values())} {dict(soak.violations) or ''}")
    return 1 if soak.violations else 0


if __name__ == "__main__":
    sys.exit(main())
