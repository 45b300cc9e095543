"""The fixtures of cashews' tests, which its source distribution leaves out, with our backend.

``BACKEND=mem`` takes cashews' own memory backend: what fails with that as well is not ours.
"""

from __future__ import annotations

import importlib
import os
import time
from asyncio import BaseEventLoop
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import UTC, datetime, tzinfo
from selectors import DefaultSelector
from typing import Any
from unittest.mock import Mock

import pytest
from cashews import Cache
from cashews.backends.interface import Backend
from cashews.backends.memory import Memory

import pynotify
from pynotify.contrib.cashews import SharedInvalidationMemory

Factory = Callable[..., Backend]


def _new(**options: Any) -> Memory:
    if os.environ.get("BACKEND") == "mem":
        return Memory(**options)
    return SharedInvalidationMemory(segment=os.environ["SEGMENT"], counters=1024, **options)


class Clock:
    """Time that passes as a loop waits for it, and a little as it is read and a loop goes round.

    These tests go by 10 ms: with the machine's time, one that gives a process no turn for so long
    fails them, with cashews' own backend as well.
    """

    READ, ROUND = 1e-6, 1e-4

    def __init__(self) -> None:
        self.begin = time.time()
        self.passed = 0.0

    def time(self) -> float:
        self.passed += self.READ
        return self.begin + self.passed

    def wait(self, select: Callable[..., list[Any]], timeout: float | None) -> list[Any]:
        ready = select(timeout if timeout is None else 0)
        if not ready and timeout is not None:
            self.passed += max(timeout, self.ROUND)
        return ready


@pytest.fixture(scope="session", autouse=True)
def clock() -> Iterator[Clock]:
    clock = Clock()
    select = DefaultSelector.select

    class Datetime(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> datetime:  # type: ignore[override]
            return datetime.fromtimestamp(clock.time(), tz)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(BaseEventLoop, "time", lambda _: clock.passed)
        patch.setattr(
            DefaultSelector,
            "select",
            lambda self, timeout=None: clock.wait(select.__get__(self), timeout),
        )
        for name in ("time", "monotonic", "perf_counter"):
            patch.setattr(time, name, clock.time)
        for name in (
            "contrib.fastapi",
            *(
                f"decorators.{name}"
                for name in ("cache.early", "cache.soft", "circuit_breaker", "rate_slide")
            ),
        ):
            module = importlib.import_module(f"cashews.{name}")
            assert module.datetime.now(UTC) is not None
            patch.setattr(module, "datetime", Datetime)
        yield clock


@pytest.fixture
async def backend_factory() -> AsyncIterator[Factory]:
    made = []

    def make(cls: type[Backend], *args: Any, **options: Any) -> Backend:
        made.append(_new(*args, **options) if cls is Memory else cls(*args, **options))
        return made[-1]

    yield make
    for backend in made:
        await backend.clear()
        await backend.close()


@pytest.fixture
async def raw_backend(backend_factory: Factory) -> tuple[Backend, None]:
    backend = backend_factory(Memory, check_interval=0.01)
    await backend.init()
    return backend, None


@pytest.fixture
async def backend(raw_backend: tuple[Backend, None]) -> Backend:
    return raw_backend[0]


@pytest.fixture
async def cache(backend: Backend) -> Cache:
    cache = Cache(name="test")
    cache._add_backend(backend)
    return cache


@pytest.fixture
def target(cache: Cache, backend: Backend) -> Mock:
    """What the cache's calls go to."""
    target = Mock(wraps=backend)
    cache._add_backend(target)
    return target


@pytest.fixture(scope="session", autouse=True)
def closed_in_the_end() -> Any:
    yield
    if "SEGMENT" in os.environ:
        pynotify.get(os.environ["SEGMENT"]).close()
