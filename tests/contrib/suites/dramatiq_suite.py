"""pytest plugin: dramatiq's tests get our broker for the one in memory and for Redis'.

Their conftest.py and common.py are not in the source distribution; what is used of them is here.
"""

from __future__ import annotations

import os
import sys
import types
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import dramatiq
import pytest
from dramatiq.brokers.stub import _StubMessageProxy
from dramatiq.middleware import Middleware
from dramatiq.rate_limits.backends.stub import StubBackend as RateLimiterBackend
from dramatiq.results.backends.stub import StubBackend

import pynotify
from pynotify.contrib import dramatiq as adapter


@contextmanager
def worker(*arguments: Any, **options: Any) -> Iterator[dramatiq.Worker]:
    """A worker that runs."""
    made = dramatiq.Worker(*arguments, **options)
    made.start()
    try:
        yield made
    finally:
        made.stop()


common = types.ModuleType("tests.common")
common.worker = worker  # type: ignore[attr-defined]
common.skip_on_pypy = lambda function: function  # type: ignore[attr-defined]
sys.modules["tests.common"] = common


class Proxy(adapter._Proxy):
    """Keeps its exception, as the broker in memory has it."""

    clear_exception = _StubMessageProxy.clear_exception


adapter._Proxy = Proxy  # type: ignore[misc]


class DeadLetters(Middleware):
    """What failed for good, by queue; the broker in memory has it."""

    def __init__(self) -> None:
        self.by_queue: defaultdict[str, list[Any]] = defaultdict(list)

    def before_nack(self, broker: Any, message: Any) -> None:
        """Before it is out of the queue, on which `join` waits."""
        self.by_queue[message.queue_name].append(message)


class Broker(adapter.PynotifyBroker):
    """The broker, with what that in memory has for tests."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(os.environ["SEGMENT"], *arguments, **options)
        self._dead = DeadLetters()
        self.add_middleware(self._dead)

    @property
    def dead_letters_by_queue(self) -> dict[str, list[Any]]:
        return self._dead.by_queue

    @property
    def dead_letters(self) -> list[Any]:
        return [each for letters in self._dead.by_queue.values() for each in letters]

    def join(
        self, queue_name: str, *, timeout: int | None = None, fail_fast: bool = True, **_: Any
    ) -> None:
        super().join(queue_name, timeout=timeout)
        for message in self._dead.by_queue[queue_name] if fail_fast else ():
            raise (message._exception or Exception("Message failed with unknown error")) from None

    def flush_all(self) -> None:
        super().flush_all()
        self._dead.by_queue.clear()


def _broker() -> Iterator[Broker]:
    broker = Broker()
    broker.emit_after("process_boot")
    dramatiq.set_broker(broker)
    yield broker
    broker.flush_all()
    broker.close()
    pynotify.unlink(os.environ["SEGMENT"], force=True, missing_ok=True)


stub_broker = pytest.fixture(_broker, name="stub_broker")
redis_broker = pytest.fixture(_broker, name="redis_broker")


@pytest.fixture
def stub_worker(stub_broker: Broker) -> Iterator[dramatiq.Worker]:
    with worker(stub_broker, worker_timeout=100, worker_threads=32) as made:
        yield made


@pytest.fixture
def redis_worker(redis_broker: Broker) -> Iterator[dramatiq.Worker]:
    with worker(redis_broker, worker_timeout=100, worker_threads=32) as made:
        yield made


@pytest.fixture
def result_backend() -> StubBackend:
    return StubBackend()


@pytest.fixture
def rate_limiter_backend() -> RateLimiterBackend:
    return RateLimiterBackend()
