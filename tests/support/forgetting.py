"""Whether what is done with one name after the other keeps anything of each.

Counted in bytes, of what Python keeps and of what the core has allocated, and never timed.
"""

from __future__ import annotations

import ctypes
import gc
import tracemalloc
from collections.abc import Awaitable, Callable

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
