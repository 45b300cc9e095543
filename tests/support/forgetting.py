"""Whether what is done with one name after the other keeps anything of each.

Counted in bytes, of what Python keeps and of what the core has allocated, and never timed.
"""

from __future__ import annotations

import ctypes
import gc
import sys
import tracemalloc
from collections.abc import Awaitable, Callable, Iterator
from types import FrameType

from pynotify._encoding import channel_cache

ROUNDS = 2500
#: What a round may keep on average: less than a short string, and a third of what the core has of
#: a name.  What is kept once, and what is cached up to a bound, is less than that in all.
OF_PYTHON, OF_C = 20 * ROUNDS, 60 * ROUNDS


class _Mallinfo(ctypes.Structure):
    _fields_ = [
        (field, ctypes.c_size_t)
        for field in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    ]


def _allocated() -> int:
    """Bytes that C has from malloc() and not given back; Python's small objects are elsewhere."""
    mallinfo2 = ctypes.CDLL(None).mallinfo2
    mallinfo2.restype = _Mallinfo
    info = mallinfo2()
    return int(info.uordblks + info.hblkhd)


def _used() -> tuple[int, int]:
    channel_cache.clear()  # it has a bound, and is anywhere below it
    gc.collect()
    return tracemalloc.get_traced_memory()[0], _allocated()


def _compare(before: tuple[int, int], after: tuple[int, int]) -> None:
    python, native = (new - old for new, old in zip(after, before, strict=True))
    assert python < OF_PYTHON, f"Python kept {python} bytes of {ROUNDS} names"
    # tracemalloc writes down what it sees, in memory of malloc().
    assert native < OF_C, f"C kept {native} bytes of {ROUNDS} names"


def assert_forgotten(one: Callable[[str], None]) -> None:
    """Calls it with many names, and compares what is kept."""
    tracemalloc.start()
    try:
        for number in range(ROUNDS // 4):
            one(f"reply-before-{number}")
        before = _used()
        for number in range(ROUNDS):
            one(f"reply-after-{number}")
        _compare(before, _used())
    finally:
        tracemalloc.stop()


async def assert_forgotten_in_loop(one: Callable[[str], Awaitable[None]]) -> None:
    tracemalloc.start()
    try:
        for number in range(ROUNDS // 4):
            await one(f"reply-before-{number}")
        before = _used()
        for number in range(ROUNDS):
            await one(f"reply-after-{number}")
        _compare(before, _used())
    finally:
        tracemalloc.stop()


# ---- as many as a service makes in a day -------------------------------------------------------

MANY = 100_000
#: Of both together, whatever the number of names.
BYTES_OF_MANY = 1 << 20


def steps(call: Callable[[], object]) -> int:
    """How many bytecodes and calls of C functions a call takes: its work, whatever the time."""
    count = 0

    def local(frame: FrameType, event: str, _: object) -> object:
        nonlocal count
        frame.f_trace_opcodes = True
        count += event == "opcode"
        return local

    def profile(_: FrameType, event: str, __: object) -> None:
        nonlocal count
        count += event == "c_call"

    before = sys.gettrace(), sys.getprofile()
    gc.disable()  # what it would call back is no work of the call
    sys.settrace(local)
    sys.setprofile(profile)
    try:
        call()
    finally:
        sys.settrace(before[0])
        sys.setprofile(before[1])
        gc.enable()
    return count


class Many:
    """Compares what is kept, and the work of a call, before MANY names and after them.

    By what the process has of its own, since tracemalloc would be most of the time.  So the names
    that come before the first reading are as many as fill what is cached, and grow the heap.
    """

    def __init__(self, work: Callable[[], int]) -> None:
        self._work = work
        self._before = self._steps = 0

    def __enter__(self) -> Iterator[str]:
        return self._names()

    def _names(self) -> Iterator[str]:
        for number in range(MANY // 20):
            yield from self._name("before", number)
        self._work()  # what is made once is made
        self._before, self._steps = self._kept(), self._work()
        for number in range(MANY):
            yield from self._name("after", number)

    @staticmethod
    def _name(when: str, number: int) -> Iterator[str]:
        """Garbage in cycles may be a quarter of all that the process has until Python collects it;
        and the pages that it was in stay the process's own.
        """
        if number % 1000 == 0:
            gc.collect()
        yield f"reply-{when}-{number}"

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is not None:
            return
        kept = self._kept() - self._before
        assert kept < BYTES_OF_MANY, f"{kept} bytes are kept of {MANY} names"
        self._work()
        assert self._work() == self._steps

    @staticmethod
    def _kept() -> int:
        channel_cache.clear()
        gc.collect()
        with open("/proc/self/status") as status:
            (line,) = (line for line in status if line.startswith("RssAnon:"))
        return int(line.split()[1]) * 1024
