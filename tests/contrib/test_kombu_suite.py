"""kombu's own tests, with our transport in the place of RabbitMQ, MongoDB and the one in memory."""

from __future__ import annotations

from pathlib import Path

import pytest

from requirement import require

try:
    import kombu  # noqa: F401
except ImportError as missing:
    require("kombu", str(missing))

from suites import run_one

pytestmark = pytest.mark.full

#: Tests that are left out, and why.  t/unit/transport/virtual/test_base.py names kombu's own
#: classes, its transport in memory and mocks of them, so that nothing of ours would run.
LEFT_OUT = {
    "t/integration/test_py_amqp.py": {
        "test_PyAMQPPriority": "one drain_events() is to deliver several; MongoDB's are the same",
        "test_PyAMQPAutoRetry::test_initial_connection_retry_policy": "a port without a server",
        "test_PyAMQPConsumerRevive": "closes the connection's socket",
    },
    "t/unit/test_simple.py": {
        "test_SimpleQueue::test_queue_args": "declares a queue again, not as it is",
        "test_SimpleBuffer::test_queue_opts": "declares a queue again, not as it is",
    },
    "t/unit/test_pidbox.py": {
        "test_Mailbox::test_reply__collect": "uses a queue that went with its last consumer",
    },
    "t/unit/transport/test_memory.py": {
        "test_MemoryTransport::test_drain_events_unregistered_queue": "puts a mock in",
        "test_MemoryTransport::test_queue_for": "the dictionary of queues",
        "test_MemoryTransport::test_producer_on_return": "no mandatory=, as all virtual transports",
    },
}
FILES = {
    "t/integration/test_mongodb.py": 26,
    "t/integration/test_py_amqp.py": 44,
    "t/unit/test_simple.py": 26,
    "t/unit/test_pidbox.py": 31,
    "t/unit/test_common.py": 40,
    "t/unit/test_compat.py": 22,
    "t/unit/test_entity.py": 62,
    "t/unit/test_messaging.py": 101,
    "t/unit/test_mixins.py": 21,
    "t/unit/test_pools.py": 28,
    "t/unit/transport/test_memory.py": 5,
    "t/unit/transport/virtual/test_exchange.py": 26,
}


@pytest.mark.parametrize("file", FILES)
def test_kombu(file: str, segment_name: str, tmp_path: Path) -> None:
    left_out = LEFT_OUT.get(file, ())
    done = run_one(
        "kombu",
        "5.7.0",
        file,
        segment_name,
        tmp_path,
        "-o",
        "python_classes=test_*",
        left_out=left_out,
    )
    done.expect(passed=FILES[file])
