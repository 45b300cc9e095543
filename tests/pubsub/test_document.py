"""The example of docs/pubsub.md that needs a PostgreSQL."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

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
