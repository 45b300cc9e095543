"""dramatiq's own tests, with our broker in the place of that in memory and of Redis'."""

from __future__ import annotations

from pathlib import Path

import pytest

from requirement import require

try:
    import dramatiq  # noqa: F401
except ImportError as missing:
    require("dramatiq", str(missing))

from suites import run_one

pytestmark = pytest.mark.full

_IN_MEMORY = "looks into the broker in memory"
_CLIENT = "looks into Redis, or puts mocks there; tests/contrib/test_dramatiq.py has ours"
#: Tests that are left out, and why.
LEFT_OUT = {
    "tests/test_actors.py": {
        "test_actors_can_be_sent_messages": _IN_MEMORY,
        "test_worker_handles_non_numeric_eta_and_logs_warning": _IN_MEMORY,
        "test_worker_handles_none_eta": _IN_MEMORY,
    },
    "tests/test_stub_broker.py": {
        "test_stub_broker_can_be_flushed": _IN_MEMORY,
        "test_stub_broker_respects_prefetch": _IN_MEMORY,
    },
    "tests/test_worker.py": {
        "test_exception_from_actor_doesnt_leak": "this suite's messages keep their exceptions",
    },
    "tests/test_redis.py": {
        "test_redis_unacked_messages_can_be_requeued": _CLIENT,
        "test_redis_messages_can_be_dead_lettered": _CLIENT,
        "test_redis_dead_lettered_messages_are_cleaned_up": _CLIENT,
        "test_redis_messages_belonging_to_missing_actors_are_rejected": _CLIENT,
        "test_redis_requeues_unhandled": _CLIENT,
        "test_redis_broker_can_connect_via": _CLIENT,
        "test_redis_broker_raises_attribute_error": "options of Redis' client",
        "test_redis_consumer_": _CLIENT,
        "test_redis_join_race_condition": _CLIENT,
    },
}
FILES = {
    "tests/test_actors.py": 27,
    "tests/test_callbacks.py": 4,
    "tests/test_composition.py": 20,
    "tests/test_generic_actors.py": 9,
    "tests/test_worker.py": 3,
    "tests/test_stub_broker.py": 6,
    "tests/test_redis.py": 7,
}


@pytest.mark.parametrize("file", FILES)
def test_dramatiq(file: str, segment_name: str, tmp_path: Path) -> None:
    left_out = LEFT_OUT.get(file, ())
    done = run_one("dramatiq", "2.2.1", file, segment_name, tmp_path, left_out=left_out)
    done.expect(passed=FILES[file])
