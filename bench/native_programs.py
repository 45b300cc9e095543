"""The C programs of bench/native: their JSON lines become figures."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.figures import Figure, Spread
from bench.settings import Settings

TOPIC = "native"
COMMAND = "make bench-native"

_ROOT = Path(__file__).resolve().parent.parent


def find(directory: Path | None = None) -> list[Path]:
    """The programs that have been built, in `directory` or in the newest build/*/bench."""
    names = sorted(source.stem for source in (_ROOT / "bench" / "native").glob("*.c"))
    if directory is None:
        newest = find_one(names[0])
        if newest is None:
            raise SystemExit(f"no native benchmarks under build/: `{COMMAND}` builds them")
        directory = newest.parent
    return [directory / name for name in names if (directory / name).exists()]


def find_one(name: str) -> Path | None:
    """The newest program of that name in build/*/bench.

    A sanitizer build is of no use here, and `make bench-native` has just built the newest.
    """
    built = (_ROOT / "build").glob(f"**/bench/{name}")
    return max(built, key=lambda path: path.stat().st_mtime, default=None)


def run(settings: Settings, programs: Sequence[Path]) -> None:
    """Each program, to its end, one after the other."""
    for program in programs:
        command = [str(program), "--json", *(["--quick"] if settings.quick else [])]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        for text in done.stdout.splitlines():
            settings.report(_figure(json.loads(text)))


def _figure(line: dict[str, Any]) -> Figure:
    peer, ratio = line.get("peer"), line.get("ratio")
    return Figure(
        topic=line["program"],
        name=line["figure"],
        unit=line["unit"],
        ours=Spread(**line["ours"]),
        peer=Spread(**peer) if peer else None,
        ratio=Spread(**ratio) if ratio else None,
        against=line.get("against", ""),
        command=COMMAND,
        bar=line.get("bar"),
        at_most=line.get("at_most", False),
        note=line.get("note", ""),
        repetitions=line["repetitions"],
    )
