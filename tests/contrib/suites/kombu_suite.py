"""pytest plugin: kombu's tests get our transport for those of RabbitMQ, MongoDB and in memory.

Each test has a database of its own, where the others' servers are emptied or hold nothing.
"""

from __future__ import annotations

import itertools
import os
from typing import Any

import pytest
from kombu.transport import TRANSPORT_ALIASES

from pynotify.contrib import kombu as adapter

_numbers = itertools.count()
_database = "default"
NOBODY = (":12345", ":1222", ":56721")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Another one for each test; some of test_pidbox.py go on where others have ended."""
    global _database  # noqa: PLW0603
    _database = "pidbox" if "test_pidbox" in item.nodeid else f"test-{next(_numbers)}"


class Transport(adapter.Transport):
    """Without the host and the port; at some ports these tests have no server."""

    def __init__(self, client: Any, **options: Any) -> None:
        given = client.transport_options
        ours = {"segment": os.environ["SEGMENT"], "database": _database, "max_topics": 4096}
        client.transport_options = {**ours, **given}
        super().__init__(client, **options)
        client.transport_options = given

    def establish_connection(self) -> adapter.Transport:
        """Refuse it at these ports."""
        if any(port in f"{self.client.hostname}:{self.client.port}" for port in NOBODY):
            raise ConnectionRefusedError("of the test")
        return super().establish_connection()


class MongoTransport(Transport):
    """MongoDB's takes the URL as it is."""

    can_parse_url = True


TRANSPORT_ALIASES["mongodb"] = "kombu_suite:MongoTransport"
for alias in ("memory", "pyamqp", "amqp"):
    TRANSPORT_ALIASES[alias] = "kombu_suite:Transport"
