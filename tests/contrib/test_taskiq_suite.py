"""taskiq's own tests, with our broker in the place of that in memory and of that of a queue.

They have no cases of any broker: what they test is taskiq, on brokers that have a task's sender and
its worker in one process.  So here are those whose tasks are sent; the other files have no broker,
or one that no task goes through: tests/abc, cli, formatters, scheduler, serializers, and the rest
of tests/.  tests/opentelemetry and middlewares/admin_middleware need further packages for tests.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from requirement import require
from suites import run_one

try:
    import taskiq  # noqa: F401
except ImportError as missing:
    require("taskiq", str(missing))

pytestmark = pytest.mark.full

_IN_MEMORY = "of the broker in memory alone; no task is sent"
_DELAY = "waits a second for a retry after five: the broker in memory passes over the delay"
#: Tests that are left out, and why.
LEFT_OUT = {
    "tests/brokers/test_inmemory.py": {
        "test_cannot_listen": _IN_MEMORY,
        "test_startup": _IN_MEMORY,
        "test_shutdown": _IN_MEMORY,
        "test_middleware_startup_and_shutdown_fire": _IN_MEMORY,
    },
    "tests/middlewares/test_task_retry.py": {
        "test_per_task_exc_types_matching[SmartRetryMiddleware]": _DELAY,
        "test_per_task_exc_types_override_global[SmartRetryMiddleware]": _DELAY,
        "test_retry_of_custom_exc_types_of_smart_middleware": _DELAY,
    },
}
FILES = {
    "tests/api/test_receiver_task.py": 3,
    "tests/api/test_scheduler.py": 2,
    "tests/brokers/test_inmemory.py": 4,
    "tests/depends/test_progress_tracker.py": 5,
    "tests/middlewares/test_task_retry.py": 12,
    "tests/receiver/test_receiver.py": 33,
    "tests/test_exceptions_flow.py": 4,
    "tests/test_requeue.py": 2,
    "tests/test_retry_task.py": 5,
}


@pytest.mark.parametrize("file", FILES)
def test_taskiq(file: str, segment_name: str, tmp_path: Path) -> None:
    left_out = LEFT_OUT.get(file, ())
    done = run_one("taskiq", "0.13.0", file, segment_name, tmp_path, left_out=left_out)
    done.expect(passed=FILES[file])
