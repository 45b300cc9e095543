"""A run: the machine, each figure as soon as there is one, their table, and all of it as JSON."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench import machine
from bench.figures import Figure, line, markdown
from bench.settings import Settings


@contextmanager
def running(json_file: Path | None, *, quick: bool = False, **more: Any) -> Iterator[Settings]:
    """What is measured within is printed, and written to `json_file`; `more` are of `Settings`."""
    figures: list[Figure] = []

    def report(figure: Figure) -> None:
        figures.append(figure)
        print(line(figure), flush=True)

    about = machine.describe()
    load_before = machine.load()
    print("machine:", ", ".join(f"{key} {value}" for key, value in about.items()), flush=True)
    with tempfile.TemporaryDirectory(prefix="bench-") as directory:
        yield Settings(directory=Path(directory), report=report, quick=quick, **more)
    load_after = machine.load()
    print(f"\n{markdown(figures)}\n")
    print(f"load average before {load_before:.2f}, after {load_after:.2f}")
    if json_file:
        document = {
            "machine": about,
            "load": [load_before, load_after],
            "quick": quick,
            "figures": [figure.json() for figure in figures],
        }
        json_file.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
