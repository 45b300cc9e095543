"""Regions of dogpile.cache that all processes invalidate together."""

from __future__ import annotations

import multiprocessing
import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import pynotify
from forking import in_child
from programs import output_of_example
from pynotify._connect import close_shared
from receiving import wait_until
from requirement import require

try:
    from dogpile.cache import CacheRegion, make_region
    from dogpile.cache.api import NO_VALUE
except ImportError as missing:
    require("dogpile", str(missing))

from pynotify.contrib.dogpile import SharedInvalidation

NewRegion = Callable[..., "CacheRegion"]


@pytest.fixture
def new_region(segment_name: str) -> Iterator[NewRegion]:
    def make(name: str = "r", **options: Any) -> CacheRegion:
        shared = SharedInvalidation(name, segment=segment_name)
        return make_region().configure("dogpile.cache.memory", region_invalidator=shared, **options)

    yield make
    close_shared(segment_name)


def test_regions_of_a_name_are_invalidated_together(new_region: NewRegion) -> None:
    one, same, other = new_region(), new_region(), new_region("other")
    for region in (one, same, other):
        region.set("k", 1)
    one.invalidate()
    assert [region.get("k") for region in (one, same, other)] == [NO_VALUE, NO_VALUE, 1]
    same.set("k", 2)
    assert (one.get("k"), same.get("k")) == (NO_VALUE, 2)


def test_another_process_invalidates(new_region: NewRegion) -> None:
    region = new_region()
    region.set("k", 1)
    in_child(region.invalidate)  # the strategy was made before the fork
    assert region.get("k") is NO_VALUE


def test_soft(new_region: NewRegion) -> None:
    """The old value is served while another thread makes the new one; hard wins."""
    region = new_region(expiration_time=3600)
    shared = region.region_invalidator
    assert not shared.was_hard_invalidated() and not shared.was_soft_invalidated()
    region.set("k", 1)
    before = time.time()
    in_child(lambda: region.invalidate(hard=False))
    assert shared.was_soft_invalidated() and not shared.was_hard_invalidated()
    assert shared.is_soft_invalidated(before) and shared.is_invalidated(before)
    assert not shared.is_hard_invalidated(before)
    assert region.get_or_create("k", lambda: 2) == 2
    in_child(region.invalidate)
    in_child(lambda: region.invalidate(hard=False))
    assert shared.was_soft_invalidated() and shared.is_hard_invalidated(before)
    assert not shared.is_soft_invalidated(before) and shared.is_invalidated(before)
    assert not shared.is_invalidated(time.time())


def test_it_takes_effect_when_its_transaction_commits(
    new_region: NewRegion, segment_name: str
) -> None:
    region = new_region()
    region.set("k", 1)
    conn = pynotify.get(segment_name)
    with conn.transaction():
        region.invalidate()
        assert region.get("k") == 1
    assert region.get("k") is NO_VALUE
    region.set("k", 2)
    with conn.transaction():
        region.invalidate()
        raise pynotify.Rollback
    assert region.get("k") == 2


def _work(segment: str, path: Path, orders: Any) -> None:
    """Reads the file through the region all the time; asked, says what it has."""
    region = make_region().configure(
        "dogpile.cache.memory", region_invalidator=SharedInvalidation("r", segment=segment)
    )

    def read() -> int:
        found: int = region.get_or_create("k", lambda: int(path.read_text()))
        return found

    while True:
        found = read()
        if orders.poll():
            if orders.recv() == "end":
                break
            orders.send(found)
    pynotify.get(segment).close()


def test_four_workers_of_which_one_is_killed(segment_name: str, tmp_path: Path) -> None:
    """After an invalidation no worker has what was read before; also not the one in the middle."""
    path = tmp_path / "number"
    path.write_text("0")
    region = make_region().configure(
        "dogpile.cache.memory", region_invalidator=SharedInvalidation("r", segment=segment_name)
    )
    fresh = multiprocessing.get_context("spawn")
    workers, pipes = [], []
    for _ in range(4):
        ours, theirs = fresh.Pipe()
        workers.append(fresh.Process(target=_work, args=(segment_name, path, theirs)))
        workers[-1].start()
        pipes.append(ours)

    def ask() -> list[int]:
        for pipe in pipes:
            pipe.send("what do you have?")
        return [pipe.recv() for pipe in pipes]

    for number in range(1, 101):
        (tmp_path / "draft").write_text(str(number))
        (tmp_path / "draft").replace(path)
        ask()  # nothing that was begun before is still being read
        region.invalidate()
        ask()  # each has looked since
        assert ask() == [number] * len(pipes)
        if number == 30:
            os.kill(workers[0].pid or 0, signal.SIGKILL)
            pipes.pop(0).close()
    for pipe in pipes:
        pipe.send("end")
    for worker in workers:
        worker.join()
    close_shared(segment_name)
    with pynotify.open(segment_name) as segment:
        wait_until(lambda: not segment.stat().backends, "their slots are free")


def test_the_example(segment_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRICES", str(tmp_path))
    output = output_of_example("adapters/dogpile_prices.py", segment_name)
    lists = [line for line in output if line.startswith("[")]
    assert lists == ["[3, 3] [3, 3]", "[3, 3]", "[4, 4]"]
    assert sum(bool(re.fullmatch(r"\d+ reads", line)) for line in output) == 4
