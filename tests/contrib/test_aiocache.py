"""Memory caches of aiocache whose entries all processes forget together."""

from __future__ import annotations

import asyncio
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
    import aiocache
except ImportError as missing:
    require("aiocache", str(missing))

from pynotify.contrib.aiocache import SharedInvalidationCache

NewCache = Callable[..., SharedInvalidationCache]


@pytest.fixture
def new_cache(segment_name: str) -> Iterator[NewCache]:
    def make(name: str = "r", **options: Any) -> SharedInvalidationCache:
        return SharedInvalidationCache(name, segment=segment_name, **options)

    yield make
    close_shared(segment_name)


def test_a_key_is_deleted_in_all_caches_of_a_name(new_cache: NewCache) -> None:
    async def play() -> None:
        one, same, other = new_cache(), new_cache(), new_cache("other")
        for cache in (one, same, other):
            await cache.set("k", 1)
        assert await one.delete("k") == 1
        assert [await cache.get("k") for cache in (one, same, other)] == [None, None, 1]
        assert not await same.exists("k") and await same.multi_get(["k"]) == [None]
        await same.set("k", 2)
        assert (await one.get("k"), await same.get("k")) == (None, 2)
        assert await same.add("l", 1) and await same.increment("n", 3) == 3
        await one.delete("n")
        assert await same.increment("n", 3) == 3, "what it was is forgotten"

    asyncio.run(play())


def test_what_a_process_has_not_is_deleted_in_others(new_cache: NewCache) -> None:
    async def play() -> None:
        one, same = new_cache(), new_cache()
        await same.set("k", 1)
        assert await one.delete("k") == 0
        assert await same.get("k") is None

    asyncio.run(play())


def test_other_keys_stay_but_those_of_the_same_counter(new_cache: NewCache) -> None:
    async def play() -> None:
        cache = new_cache()
        keys = [f"k{number}" for number in range(200)]
        for key in keys:
            await cache.set(key, 1)
        await cache.delete("k0")
        left = [key for key in keys if await cache.exists(key)]
        assert 150 < len(left) < 200

    asyncio.run(play())


@pytest.mark.parametrize("namespace", [None, "ours"])
def test_clear(new_cache: NewCache, namespace: str | None) -> None:
    """Other processes forget everything; this one keeps what has another namespace."""

    async def play() -> None:
        one, same = new_cache(), new_cache()
        for cache in (one, same):
            await cache.set("k", 1, namespace="ours", ttl=3600)
            await cache.set("k", 1, namespace="others")
        await one.clear(namespace=namespace)
        for cache in (one, same):
            assert not await cache.exists("k", namespace="ours")
            others = await cache.exists("k", namespace="others")
            assert others is (cache is one and namespace is not None)
            await cache.set("k", 2, namespace="ours", ttl=0.01)
            assert await cache.get("k", namespace="ours") == 2
            while await cache.exists("k", namespace="ours"):
                await asyncio.sleep(0.001)

    asyncio.run(play())


def test_what_was_computed_from_old_data_is_not_kept(new_cache: NewCache) -> None:
    """It was read before the key was deleted, and is set afterwards."""

    async def play() -> None:
        reader, writer = new_cache(), new_cache()
        data = "old"
        assert await reader.get("k") is None
        computed = data
        data = "new"
        await writer.delete("k")
        await reader.set("k", computed)
        assert await reader.get("k") is None
        await reader.set("k", data)
        assert await reader.get("k") == "new"

    asyncio.run(play())


def test_another_task_deletes_meanwhile(new_cache: NewCache) -> None:
    """Of the same process, and by the same cache."""

    async def play() -> None:
        cache = new_cache()
        assert await cache.get("k") is None
        computed = "old"
        await asyncio.create_task(cache.delete("k"))
        await cache.set("k", computed)
        assert await cache.get("k") is None
        await cache.set("k", "new")
        assert await cache.get("k") == "new"
        assert await cache.get("l") is None
        await asyncio.create_task(cache.clear())
        await cache.set("l", computed)
        assert await cache.get("l") is None

    asyncio.run(play())


def test_what_is_set_after_a_delete_is_kept(new_cache: NewCache) -> None:
    async def play() -> None:
        cache = new_cache()
        await cache.set("k", 1)
        await cache.delete("k")
        await cache.set("k", 2)
        assert await cache.get("k") == 2

    asyncio.run(play())


def test_misses_are_not_remembered_without_a_bound(new_cache: NewCache) -> None:
    async def play() -> None:
        cache = new_cache()
        for number in range(5000):
            await cache.get(f"k{number}")
        assert len(cache._kept._mine().misses) == 1024

    asyncio.run(play())


def test_it_takes_effect_when_its_transaction_commits(
    new_cache: NewCache, segment_name: str
) -> None:
    async def play() -> None:
        cache, same = new_cache(), new_cache()
        await same.set("k", 1)
        with pynotify.get(segment_name).transaction():
            await cache.delete("k")
            assert await same.get("k") == 1
        assert await same.get("k") is None

    asyncio.run(play())


def test_another_process_deletes(new_cache: NewCache) -> None:
    cache = new_cache()
    asyncio.run(cache.set("k", 1))
    in_child(lambda: asyncio.run(cache.delete("k")) and None)  # it was made before the fork
    assert asyncio.run(cache.get("k")) is None


def test_a_segment_that_was_made_again(new_cache: NewCache, segment_name: str) -> None:
    """Its counters begin again, and may come to what they were."""
    cache = new_cache()
    asyncio.run(cache.set("k", 1))
    close_shared(segment_name)
    pynotify.unlink(segment_name)
    assert asyncio.run(cache.get("k")) is None


def test_a_segment_with_too_few_counters(segment_name: str) -> None:
    with pynotify.open(segment_name, max_generations=4):
        cache = SharedInvalidationCache("r", segment=segment_name)
        with pytest.raises(pynotify.TooManyGenerations):
            asyncio.run(cache.set("k", 1))
        close_shared(segment_name)


def _work(segment: str, path: Path, orders: Any) -> None:
    """Reads the file through the cache all the time; asked, says what it has."""

    @aiocache.cached(cache=SharedInvalidationCache, name="r", segment=segment, key="number")
    async def read() -> int:
        return int(path.read_text())

    async def run() -> None:
        while asked(orders, await read()):
            pass

    asyncio.run(run())
    pynotify.get(segment).close()


def test_four_workers_of_which_one_is_killed(segment_name: str, tmp_path: Path) -> None:
    cache = SharedInvalidationCache("r", segment=segment_name)
    check_never_stale(segment_name, tmp_path, _work, lambda: asyncio.run(cache.delete("number")))


def test_the_example(segment_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRICES", str(tmp_path))
    output = output_of_example("adapters/aiocache_prices.py", segment_name)
    lists = [line for line in output if line.startswith("[")]
    assert lists == ["[3, 3] [3, 3]", "[3, 3]", "[4, 4]"]
    assert sum(line.endswith(" reads") for line in output) == 4
