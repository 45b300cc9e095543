"""The examples on bridges in docs/bridge.md and docs/usage.md, which need a PostgreSQL."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from bridge.conftest import NewBridgeProcess
from pubsub.server import Server
from receiving import PATIENCE

ROOT = Path(__file__).resolve().parents[2]
_EXAMPLE = re.compile(
    r"^```py\n((?:(?!```).*\n)*)```\n\n```\n((?:(?!```).*\n)*)```\n", re.MULTILINE
)


def examples() -> list[tuple[str, str]]:
    """Those that talk of a bridge, and what they print."""
    texts = [(ROOT / name).read_text() for name in ("docs/usage.md", "docs/bridge.md")]
    found = [example for text in texts for example in _EXAMPLE.findall(text)]
    assert len(found) == 3
    return found


@pytest.mark.parametrize("number", range(3))
def test_the_examples_print_what_they_say(
    number: int, new_bridge_process: NewBridgeProcess, engine_name: str, postgres: Server
) -> None:
    program, output = examples()[number]
    if "PostgresBridge" not in program:
        new_bridge_process(engine_name, postgres, "orders,cache", "--both")
    where = {"PGHOST": str(postgres.directory), "PGUSER": "postgres", "PGDATABASE": "postgres"}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program.replace('"app"', repr(engine_name))],
        env={**os.environ, **where, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=3 * PATIENCE,
        check=False,
    )
    assert (done.stderr, done.stdout) == ("", output)
