"""pytest plugin: dogpile.cache's tests of a strategy of one's own get ours; each region another."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator

import pytest
from tests.cache import test_region

import pynotify
from pynotify.contrib.dogpile import SharedInvalidation

_numbers = itertools.count()


class OfItsOwn(SharedInvalidation):
    """A test's regions have nothing to do with one another."""

    def __init__(self) -> None:
        super().__init__(f"region{next(_numbers)}", segment=os.environ["SEGMENT"])


test_region.CustomInvalidationStrategyTest.CustomInvalidationStrategy = OfItsOwn


@pytest.fixture(scope="session", autouse=True)
def no_connection_is_left() -> Iterator[None]:
    """The tests do not know of any."""
    yield
    pynotify.get(os.environ["SEGMENT"]).close()
