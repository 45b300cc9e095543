"""Regions of dogpile.cache that all processes invalidate together."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import pynotify
from forking import in_child
from programs import output_of_example
from pynotify._connect import close_shared
from requirement import require
from staleness import asked, check_never_stale

try:
    from dogpile.cache import CacheRegion, make_region
    from dogpile.cache.api import NO_VALUE
except ImportError as missing:
    require("dogpile", str(missing))

from pynotify.contrib import _own
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


def test_a_segment_that_is_removed(
    new_region: NewRegion, segment_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it said of invalidations is lost: so all values of before count as invalidated."""
    monkeypatch.setattr(_own, "_LOOK_S", 0.0)
    region = new_region()
    region.set("k", 1)
    assert region.get("k") == 1
    pynotify.unlink(segment_name, force=True)
    assert region.get("k") is NO_VALUE
    region.set("k", 2)
    assert region.get("k") == 2
    in_child(region.invalidate)
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

    while asked(orders, read()):
        pass
    pynotify.get(segment).close()


def test_four_workers_of_which_one_is_killed(segment_name: str, tmp_path: Path) -> None:
    region = make_region().configure(
        "dogpile.cache.memory", region_invalidator=SharedInvalidation("r", segment=segment_name)
    )
    check_never_stale(segment_name, tmp_path, _work, region.invalidate, settled=True)


def test_the_example(segment_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRICES", str(tmp_path))
    output = output_of_example("adapters/dogpile_prices.py", segment_name)
    lists = [line for line in output if line.startswith("[")]
    assert lists == ["[3, 3] [3, 3]", "[3, 3]", "[4, 4]"]
    assert sum(bool(re.fullmatch(r"\d+ reads", line)) for line in output) == 4
