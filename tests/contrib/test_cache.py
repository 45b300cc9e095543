"""Results that a process keeps until any process says that they are old."""

from __future__ import annotations

import asyncio
import inspect
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

import pynotify
from forking import ForkedChild, in_child
from pynotify._connect import close_shared
from pynotify.contrib.cache import Cached, cached
from receiving import wait_until


@pytest.fixture
def segment(segment_name: str) -> Iterator[str]:
    yield segment_name
    close_shared(segment_name)


class Table:
    """Counts what is read of it."""

    def __init__(self) -> None:
        self.reads = 0
        self.value = "old"

    def read(self, key: int) -> str:
        self.reads += 1
        return f"{self.value} {key}"


def test_a_result_is_kept_until_it_is_invalidated(segment: str) -> None:
    table = Table()
    read = cached("t", segment=segment)(table.read)
    assert [read(1), read(1), read(key=1), read(2)] == ["old 1", "old 1", "old 1", "old 2"]
    assert table.reads == 3  # by position and by name are apart, as in functools.lru_cache
    table.value = "new"
    assert read(1) == "old 1"
    read.invalidate()
    assert [read(1), read(2)] == ["new 1", "new 2"]
    assert table.reads == 5


def test_it_looks_like_the_function(segment: str) -> None:
    @cached("t", segment=segment)
    def price(product: str) -> int:
        """What it costs."""
        return len(product)

    assert (price.__name__, price.__doc__) == ("price", "What it costs.")
    assert price("tea") == 3


def test_another_process_invalidates(segment: str) -> None:
    table = Table()
    read = cached("t", segment=segment)(table.read)
    assert read(1) == "old 1"
    table.value = "new"
    in_child(read.invalidate)
    assert read(1) == "new 1"
    with pynotify.connect(segment) as other:
        table.value = "newer"
        with other.transaction():
            other.generation("t").bump()
            assert read(1) == "new 1"
        assert read(1) == "newer 1"


def test_a_forked_child_keeps_its_own(segment: str) -> None:
    table = Table()
    read = cached("t", segment=segment)(table.read)
    read(1)

    def child() -> tuple[str, int]:
        got = read(1), read(1)
        read.invalidate()
        close_shared(segment)
        return got[0], table.reads

    assert in_child(child) == ("old 1", 2)


def test_what_was_computed_from_old_data_is_not_kept(segment: str) -> None:
    table = Table()
    entered, go_on = threading.Event(), threading.Event()

    @cached("t", segment=segment)
    def read(key: int) -> str:
        found = table.read(key)
        entered.set()
        go_on.wait()
        return found

    got: list[str] = []
    thread = threading.Thread(target=lambda: got.append(read(1)))
    thread.start()
    entered.wait()
    table.value = "new"
    read.invalidate()
    go_on.set()
    assert read(1) == "new 1"
    thread.join()
    assert got == ["old 1"]  # its call began before
    assert read(1) == "new 1"


class Counted:
    """A lock that counts how many threads have come to it."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self.came = 0

    def __enter__(self) -> None:
        self.came += 1
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


def test_threads_that_ask_at_once_compute_once(segment: str) -> None:
    table = Table()
    lock = Counted()

    @cached("t", segment=segment)
    def read(key: int) -> str:
        wait_until(lambda: lock.came == 4, "all have come to the entry")
        return table.read(key)

    read._kept.get().entries()(1).lock = lock
    threads = [threading.Thread(target=read, args=(1,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert table.reads == 1


def test_exceptions_are_not_kept(segment: str) -> None:
    calls = []

    @cached("t", segment=segment)
    def read(key: int) -> int:
        calls.append(key)
        if len(calls) == 1:
            raise KeyError(key)
        return key

    with pytest.raises(KeyError):
        read(1)
    assert read(1) == read(1) == 1
    assert calls == [1, 1]


def test_none_is_a_result_and_the_function_may_call_itself(segment: str) -> None:
    calls = []

    @cached("t", segment=segment)
    def factorial(n: int) -> int | None:
        calls.append(n)
        return None if n == 0 else n * (factorial(n - 1) or 1)

    assert factorial(0) is factorial(0) is None
    assert factorial(5) == 120
    assert calls == [0, 5, 4, 3, 2, 1]


def test_no_more_than_maxsize(segment: str) -> None:
    table = Table()
    read = cached("t", segment=segment, maxsize=2)(table.read)
    for key in (1, 2, 1, 3, 1, 2):
        read(key)
    assert table.reads == 4


def test_a_result_has_a_time_to_live(segment: str, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    table = Table()
    read = cached("t", segment=segment, ttl=10)(table.read)
    for now[0] in (100.0, 109.0, 110.0, 119.0, 120.0):
        read(1)
    monkeypatch.undo()
    assert table.reads == 3


def test_methods(segment: str) -> None:
    class Shop:
        def __init__(self) -> None:
            self.calls = 0

        @cached("t", segment=segment)
        def price(self, product: str) -> int:
            self.calls += 1
            return len(product)

    one, other = Shop(), Shop()
    assert [one.price("tea"), one.price("tea"), other.price("tea")] == [3, 3, 3]
    assert (one.calls, other.calls) == (1, 1)
    assert isinstance(Shop.price, Cached)


class TestTasks:
    def test_frameworks_see_what_it_is(self, segment: str) -> None:
        @cached("t", segment=segment)
        async def read() -> None: ...

        @cached("t", segment=segment)
        def look() -> None: ...

        assert inspect.iscoroutinefunction(read.__call__)
        assert not inspect.iscoroutinefunction(look.__call__)

    def test_a_result_is_computed_once(self, segment: str) -> None:
        calls = []

        @cached("t", segment=segment)
        async def read(key: int) -> int:
            calls.append(key)
            await asyncio.sleep(0)
            return key

        async def run() -> list[int]:
            return await asyncio.gather(*(read(1) for _ in range(5)), read(2))

        assert asyncio.run(run()) == [1] * 5 + [2]
        assert calls == [1, 2]
        assert asyncio.run(run()) == [1] * 5 + [2]  # in another loop
        assert calls == [1, 2]
        read.invalidate()
        asyncio.run(run())
        assert calls == [1, 2, 1, 2]

    def test_the_first_is_cancelled_and_the_others_get_it(self, segment: str) -> None:
        calls = []

        async def run() -> int:
            go_on = asyncio.Event()

            @cached("t", segment=segment)
            async def read(key: int) -> int:
                calls.append(key)
                await go_on.wait()
                return key

            first = asyncio.create_task(read(1))
            await asyncio.sleep(0)
            second = asyncio.create_task(read(1))
            await asyncio.sleep(0)
            first.cancel()
            go_on.set()
            with pytest.raises(asyncio.CancelledError):
                await first
            return await second

        assert asyncio.run(run()) == 1
        assert calls == [1]

    def test_exceptions_are_not_kept(self, segment: str) -> None:
        calls = []

        @cached("t", segment=segment)
        async def read() -> int:
            calls.append(1)
            if len(calls) == 1:
                raise KeyError
            return 1

        async def run() -> int:
            with pytest.raises(KeyError):
                await read()
            return await read() + await read()

        assert asyncio.run(run()) == 2
        assert len(calls) == 2


#: Words of a shared array: what the writer has stored, what it has said is stored, and the end.
STORED, SAID, END = range(3)


def work(segment: str, words: Any, writes: bool) -> int:
    """A writer raises a number, and then says so; a reader never gets less than was said."""

    @cached("number", segment=segment)
    def number() -> int:
        return int(words[STORED])

    looked = 0
    while not words[END]:
        if writes:
            words[STORED] = number() + 1
            number.invalidate()
            words[SAID] = words[STORED]
        else:
            said = words[SAID]
            assert number() >= said
            looked += 1
    close_shared(segment)
    return looked


def test_four_processes_of_which_one_is_killed(segment: str) -> None:
    words = multiprocessing.get_context("fork").RawArray("q", 3)  # one store each, unlike struct's
    children = [
        ForkedChild(lambda writes=writes: work(segment, words, writes))  # type: ignore[misc]
        for writes in (True, False, False, False)
    ]
    wait_until(lambda: words[SAID] > 200, "it has written some")
    os.kill(children[3].pid, signal.SIGKILL)
    children[3].join()
    wait_until(lambda: words[SAID] > 400, "it goes on")
    words[END] = 1
    assert all(child.result() >= 0 for child in children[:3])
