"""pytest plugin: aiocache's tests get our cache where they ask for one in memory."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from typing import Any

import aiocache
import pytest
from aiocache import factory

import pynotify
from pynotify.contrib.aiocache import SharedInvalidationCache

_numbers = itertools.count()


class OfItsOwn(SharedInvalidationCache):
    """A test's caches have nothing to do with one another."""

    def __init__(self, **options: Any) -> None:
        name = f"cache{next(_numbers)}"
        super().__init__(name, segment=os.environ["SEGMENT"], counters=2, **options)


aiocache.AIOCACHE_CACHES["memory"] = OfItsOwn
factory.Cache.MEMORY = OfItsOwn
aiocache.SimpleMemoryCache = OfItsOwn


@pytest.fixture(scope="session", autouse=True)
def no_connection_is_left() -> Iterator[None]:
    """The tests do not know of any."""
    yield
    pynotify.get(os.environ["SEGMENT"]).close()
