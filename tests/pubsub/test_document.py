"""The examples of docs/pubsub.md that need a PostgreSQL, or a library."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pynotify
from programs import require_module
from pubsub.server import Server
from receiving import PATIENCE

ROOT = Path(__file__).resolve().parents[2]


def test_the_example_over_postgres_prints_what_it_says(postgres: Server) -> None:
    text = (ROOT / "docs" / "pubsub.md").read_text()
    program, after = text.partition("```py\n")[2].split("```\n", 1)
    output = after.partition("```\n")[2].partition("```\n")[0]
    where = {"PGHOST": str(postgres.directory), "PGUSER": "postgres", "PGDATABASE": "postgres"}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        env={**os.environ, **where, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=3 * PATIENCE,
        check=False,
    )
    assert (done.stderr, done.stdout) == ("", output)


def test_the_example_with_a_model_prints_it(engine: pynotify.Engine) -> None:
    require_module("msgspec")
    text = (ROOT / "docs" / "pubsub.md").read_text()
    (program,) = re.findall(r"```py\n(import msgspec\n.*?)```\n", text, re.DOTALL)
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program.replace('"app"', repr(engine.name))],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=3 * PATIENCE,
        check=False,
    )
    assert (done.stderr, done.stdout) == ("", "Point(x=1.0, y=2.5)\n")
