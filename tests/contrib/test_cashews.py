"""Memory backends of cashews whose entries all processes forget together."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
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
    from cashews import Cache
except ImportError as missing:
    require("cashews", str(missing))

from pynotify.contrib.cashews import SharedInvalidationMemory


@asynccontextmanager
async def caches(segment: str, *names: str) -> AsyncIterator[list[Cache]]:
    made = [Cache() for _ in names]
    for cache, name in zip(made, names, strict=True):
        cache.setup(f"pynotify://{segment}?name={name}&counters=256")
    try:
        yield made
    finally:
        for cache in made:
            await cache.close()
        close_shared(segment)


def test_a_key_is_deleted_in_all_caches_of_a_name(segment_name: str) -> None:
    async def play() -> None:
        async with caches(segment_name, "r", "r", "other") as (one, same, other):
            for cache in (one, same, other):
                await cache.set("k", 1)
                await cache.set("l", 1)
            assert await one.delete("k")
            assert [await cache.get("k") for cache in (one, same, other)] == [None, None, 1]
            assert await same.get_many("k", "l") == (None, 1)
            await same.set("k", 2)
            assert (await one.get("k"), await same.get("k")) == (None, 2)
            await one.delete_many("k", "l")
            assert await same.get_many("k", "l") == (None, None)

    asyncio.run(play())


@pytest.mark.parametrize("known", [False, True])
def test_tags(known: bool, segment_name: str) -> None:
    """Also of keys that only another process knows to have that tag; others stay."""

    async def play() -> None:
        async with caches(segment_name, "r", "r") as (one, same):
            for number in range(300):  # cashews deletes a hundred at a time
                if known:
                    tag = "even" if number % 2 == 0 else "odd"
                    await one.set(f"k{number}", 1, tags=[tag])
                await same.set(f"k{number}", 1, tags=["even" if number % 2 == 0 else "odd"])
            await one.delete_tags("even")
            left = {number for number in range(300) if await same.exists(f"k{number}")}
            odd = set(range(1, 300, 2))
            assert left <= odd
            assert len(odd - left) < 10, "those that share a counter with what was deleted"
            await same.set("k0", 1)
            await one.delete_many("k0")
            assert not await same.exists("k0"), "it is no key of a tag by now"
            await same.set("k0", 2, tags=["even"])
            await same.set("k2", 2, tags=["even", "odd"])
            await one.delete_tags("odd")
            assert (await same.get("k0"), await same.get("k2"), await same.get("k1")) == (
                2,
                None,
                None,
            )

    asyncio.run(play())


def test_what_was_computed_before_its_tag_was_deleted_is_not_kept(segment_name: str) -> None:
    async def play() -> None:
        async with caches(segment_name, "r", "r") as (reader, writer):
            data = "old"
            assert await reader.get("k") is None
            computed = data
            data = "new"
            await writer.delete_tags("t")
            await reader.set("k", computed, tags=["t"])
            assert await reader.get("k") is None
            await reader.set("k", data, tags=["t"])
            assert await reader.get("k") == "new"
            assert await reader.get("l") is None
            await asyncio.create_task(reader.delete_tags("t"))  # of this process, too
            await reader.set("l", computed, tags=["t"])
            assert await reader.get("l") is None

    asyncio.run(play())


def test_one_that_has_expired_is_a_miss(segment_name: str) -> None:
    async def play() -> None:
        async with caches(segment_name, "r&check_interval=0", "r") as (reader, writer):
            await reader.set("k", "old", expire=0.01)
            await asyncio.sleep(0.02)  # nothing looks at it meanwhile
            assert await reader.get("k") is None
            await writer.delete("k")
            await reader.set("k", "old")
            assert await reader.get("k") is None

    asyncio.run(play())


def test_a_pattern(segment_name: str) -> None:
    """Other processes do not know which of their keys it meant; this one does."""

    async def play() -> None:
        async with caches(segment_name, "r", "r") as (one, same):
            for cache in (one, same):
                await cache.set("a:1", 1)
                await cache.set("b:1", 1)
            await one.delete_match("a:*")
            assert await one.get_many("a:1", "b:1") == (None, 1)
            assert await same.get_many("a:1", "b:1") == (None, None)
            await one.clear()
            assert await one.get("b:1") is None

    asyncio.run(play())


def test_what_another_process_deletes_meanwhile_does_not_stay(
    segment_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the look at what is there, and the deletion by a pattern."""

    async def play() -> None:
        async with caches(segment_name, "r", "r") as (one, same):
            await one.set("k", 1)
            await one.set("l", 1)
            await same.set("k", 1)
            backend = one._get_backend("k")
            assert isinstance(backend, SharedInvalidationMemory)
            kept, values = backend._kept, dict(backend._kept._mine().values)
            # Both were looked at, and then another process has deleted one of them.
            await same.delete("k")
            with monkeypatch.context() as patch:
                patch.setattr(type(kept), "__iter__", lambda _: iter(values))
                kept.invalidate_others()
            assert set(kept._mine().values) == {"l"}

    asyncio.run(play())


def test_what_another_process_deletes_between_two_looks(segment_name: str) -> None:
    """cashews asks whether a key is there, and then for its value."""

    async def play() -> None:
        async with caches(segment_name, "r", "r") as (one, same):
            await one.set("k", 1)
            backend = one._get_backend("k")
            assert isinstance(backend, SharedInvalidationMemory)
            kept = backend._kept
            assert "k" in kept
            await same.delete("k")
            assert kept["k"][1] == 1
            assert "k" not in kept
            with pytest.raises(KeyError):
                kept["k"]

    asyncio.run(play())


def test_expiry_is_no_deletion(segment_name: str) -> None:
    async def play() -> None:
        async with caches(segment_name, "r", "r") as (one, same):
            await one.set("k", 1, expire=0.01)
            await same.set("k", 1)
            while await one.exists("k"):
                await asyncio.sleep(0.001)
            assert await same.get("k") == 1

    asyncio.run(play())


def test_it_takes_effect_when_its_transaction_commits(segment_name: str) -> None:
    async def play() -> None:
        async with caches(segment_name, "r", "r") as (one, same):
            await same.set("k", 1)
            await same.set("l", 1, tags=["t"])
            with pynotify.get(segment_name).transaction():
                await one.delete("k")
                await one.delete_tags("t")
                await one.delete_match("z*")
                assert await same.get_many("k", "l") == (1, 1)
            assert await same.get_many("k", "l") == (None, None)

    asyncio.run(play())


def test_another_process_deletes(segment_name: str) -> None:
    cache = Cache()
    cache.setup(f"pynotify://{segment_name}?name=r&check_interval=0")
    asyncio.run(cache.set("k", 1))
    in_child(lambda: asyncio.run(cache.delete("k")) and None)  # it was set up before the fork
    assert asyncio.run(cache.get("k")) is None
    close_shared(segment_name)


def _work(segment: str, path: Path, orders: Any) -> None:
    """Reads the file through the cache all the time; asked, says what it has."""
    cache = Cache()
    cache.setup(f"pynotify://{segment}?name=r")

    @cache(ttl=60, key="number", tags=["numbers"])
    async def read() -> int:
        return int(path.read_text())

    async def run() -> None:
        while asked(orders, await read()):
            pass
        await cache.close()

    asyncio.run(run())
    pynotify.get(segment).close()


@pytest.mark.parametrize("what", ["key", "tag"])
def test_four_workers_of_which_one_is_killed(what: str, segment_name: str, tmp_path: Path) -> None:
    cache = Cache()
    cache.setup(f"pynotify://{segment_name}?name=r&check_interval=0")
    delete: Callable[[], Any] = {
        "key": lambda: cache.delete("number"),
        "tag": lambda: cache.delete_tags("numbers"),
    }[what]
    check_never_stale(segment_name, tmp_path, _work, lambda: asyncio.run(delete()), rounds=30)


def test_the_example(segment_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRICES", str(tmp_path))
    output = output_of_example("adapters/cashews_prices.py", segment_name)
    lists = [line for line in output if line.startswith("[")]
    assert lists == ["[3, 3] [3, 3]", "[3, 3]", "[4, 4]"]
    assert sum(line.endswith(" reads") for line in output) == 4
