"""redis-py's own tests of pub/sub, on a segment."""

from __future__ import annotations

from pathlib import Path

import pytest

from suites import fetch, run

pytestmark = pytest.mark.full

#: Classes that are left out, and why.
LEFT_OUT = {
    "TestPubSubAutoReconnect": "puts a mock in the place of the socket",
    "TestPubSubReconnect": "puts a mock in the place of the socket",
    "TestPubSubMetricsRecording": "OpenTelemetry of a server's address",
    "TestPubSubHandleMessageMetrics": "OpenTelemetry of a server's address",
    "TestPubSubAcloseWithMocks": "mocks of connections to a server",
    "TestClusterPubSubTimeoutPropagation": "a cluster",
    "TestClusterPubSubResubscribe": "a cluster",
    "TestClusterPubSubSlotMigration": "a cluster",
    "TestPubSubRESP3Handler": "push messages of the protocol RESP3",
    "TestPubSubRedisDown": "a port at which no server is",
    "TestPubSubDeadlock": "connects to a server by its address",
    "TestPubSubConnectionKilled": "CLIENT LIST and CLIENT KILL",
    "TestBaseException": "looks at the socket",
}
FILES = {"tests/test_pubsub.py": 76, "tests/test_asyncio/test_pubsub.py": 141}


@pytest.mark.parametrize("file", FILES)
def test_redis_py(file: str, segment_name: str, tmp_path: Path) -> None:
    folder = fetch("redis", "8.1.0")
    without = [f"--deselect={file}::{name}" for name in LEFT_OUT]
    options = [*without, "-m", "not onlycluster", "-p", "no:warnings"]
    run(folder, "redis_suite", [file], tmp_path, *options, SEGMENT=segment_name).expect(
        passed=FILES[file]
    )
