"""The fixtures of cashews' tests, which its source distribution leaves out, with our backend.

``BACKEND=mem`` takes cashews' own memory backend: what fails with that as well is not ours.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable
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
