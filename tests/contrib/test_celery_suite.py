"""Celery's own integration tests, with a segment in the place of RabbitMQ."""

from __future__ import annotations

from pathlib import Path

import pytest

import pynotify
from receiving import wait_until
from requirement import require

try:
    import celery  # noqa: F401
except ImportError as missing:
    require("celery", str(missing))

from suites import fetch, run

pytestmark = pytest.mark.full

_WITH_REDIS = "fails beside a Redis, too, where the suite is run by its source distribution"
#: Tests that are left out, and why.  Those of test_canvas.py take a second each to no purpose: the
#: manager asks after each of them whether the worker is idle, and waits so long for answers.  The
#: other files are about the store of results (test_*backend*), or use Redis by name
#: (test_connection_recovery, test_group_chains, test_request_backend_down), or about no broker in
#: particular: beat, the loader, logs, security, serialization, leaks, a worker's command line.
LEFT_OUT = {
    "test_tasks::test_revoked_by_headers_complex_canvas": _WITH_REDIS,
    "test_trace_log_arguments": _WITH_REDIS,
}
#: How many pass, and how many the suite itself skips, as they need a Redis for results.
FILES = {
    "t/integration/test_tasks.py": (50, 10),
    "t/integration/test_inspect.py": (13, 0),
}


@pytest.mark.parametrize("file", FILES)
def test_celery(file: str, segment_name: str, tmp_path: Path) -> None:
    folder = fetch("celery", "5.7.0")
    results = tmp_path / "results"
    results.mkdir()
    without = [f"--deselect={file}::{name}" for name in LEFT_OUT]
    options = [*without, "-p", "no:warnings", "-p", "celery.contrib.pytest"]
    options += ["-o", "python_classes=test_*"]
    where = {"TEST_BROKER": f"pynotify://{segment_name}", "TEST_BACKEND": f"file://{results}"}
    done = run(folder, "celery_suite", [file], tmp_path, *options, **where)
    with pynotify.open(segment_name) as segment:
        wait_until(lambda: not segment.stat().backends, "their slots are free")
    passed, skipped = FILES[file]
    done.expect(passed=passed, **({"skipped": skipped} if skipped else {}))
