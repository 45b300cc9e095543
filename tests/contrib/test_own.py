"""What adapters have of each process or event loop, and what a process keeps."""

from __future__ import annotations

import asyncio
import itertools
import sys
from collections.abc import Iterator

import pytest

import pynotify
from pynotify._connect import close_shared
from pynotify.contrib import _own
from pynotify.contrib._kept import Kept, counters_of
from pynotify.contrib._own import PerLoop
from pynotify.contrib.cache import cached
from waiting import Call


@pytest.fixture
def segment(segment_name: str) -> Iterator[str]:
    yield segment_name
    close_shared(segment_name)


def test_threads_that_miss_more_than_is_remembered(segment: str) -> None:
    kept = Kept(counters_of("k", segment, 4))
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        calls = [Call(_miss, kept, f"{number}-") for number in range(4)]
        for call in calls:
            call.result()
    finally:
        sys.setswitchinterval(before)
    assert len(kept._mine().misses) <= 1024 + len(calls)


def _miss(kept: Kept, prefix: str) -> None:
    for number in range(6000):
        assert kept.get(f"{prefix}{number}") is None


def test_each_loop_has_its_own() -> None:
    """Also when they run at the same time, in threads: none takes the other's away."""
    numbers = itertools.count()

    async def make() -> int:
        return next(numbers)

    per_loop = PerLoop(make)
    first, second = asyncio.new_event_loop(), asyncio.new_event_loop()
    try:
        found = [loop.run_until_complete(per_loop.get()) for loop in (first, second, first)]
        assert found == [0, 1, 0]
        second.close()
        third = asyncio.new_event_loop()
        assert third.run_until_complete(per_loop.get()) == 2
        assert set(per_loop._making) == {first, third}
        third.close()
    finally:
        first.close()
        second.close()


# ---- a segment that is removed, and made again ---------------------------------------------------


@pytest.fixture
def looks_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_own, "_LOOK_S", 0.0)


def test_results_of_a_segment_that_is_gone(segment: str, looks_at_once: None) -> None:
    """Other processes invalidate in the new one: what is kept here would be served for ever."""
    answers = iter(["old", "new", "newest"])
    read = cached("t", segment=segment)(lambda: next(answers))
    assert [read(), read()] == ["old", "old"]
    pynotify.unlink(segment, force=True)
    assert [read(), read()] == ["new", "new"]
    with pynotify.connect(segment) as another:
        another.generation("t").bump()
    assert read() == "newest"


def test_values_of_a_segment_that_is_gone(segment: str, looks_at_once: None) -> None:
    kept = Kept(counters_of("k", segment, 1))
    kept["a"] = 1
    assert kept.get("a") == 1
    pynotify.unlink(segment, force=True)
    assert kept.get("a") is None
    kept["a"] = 2
    assert kept.get("a") == 2
    with pynotify.connect(segment) as another:
        another.generation("k:0").bump()
    assert kept.get("a") is None
