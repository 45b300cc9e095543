"""What a shared generation counter costs, beside a number in shared memory without transactions.

The peer is `multiprocessing.Value`, which other programs use for a shared counter: read without
its lock (`RawValue`), and incremented under it.  A bump is a transaction of its own here: it is
in commit order with the notifications and survives the death of its process.
"""

from __future__ import annotations

import multiprocessing
import multiprocessing.sharedctypes
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial

import pynotify
from bench.pairs import alternate
from bench.settings import Settings

TOPIC = "generation"
UNIT = "ns"

_CALLS = 200_000
_PAIRS = 11


def run(settings: Settings) -> None:
    """A read, and a bump."""
    name = f"bench-generation-{multiprocessing.current_process().pid}"
    calls = settings.messages(_CALLS)
    with ExitStack() as stack:
        stack.callback(pynotify.unlink, name, missing_ok=True)
        conn = stack.enter_context(pynotify.connect(name))
        generation = conn.generation("g")
        raw = multiprocessing.sharedctypes.RawValue("Q", 0)
        locked = multiprocessing.Value("Q", 0)

        def read_ours() -> int:
            return generation.value

        def read_raw() -> int:
            return int(raw.value)

        def bump_ours() -> None:
            generation.bump()

        def bump_locked() -> None:
            with locked.get_lock():
                locked.value += 1

        rows: list[tuple[str, Callable[[], object], Callable[[], object], str]] = [
            ("value, read", read_ours, read_raw, "multiprocessing.RawValue"),
            ("bump, a transaction of its own", bump_ours, bump_locked, "multiprocessing.Value"),
        ]
        for title, ours, theirs, against in rows:
            passes = [partial(_nanoseconds, call, calls) for call in (ours, theirs)]
            mine, peers = alternate(passes, settings.pairs(_PAIRS))
            settings.compare(TOPIC, title, UNIT, mine, peers, against=against)


def _nanoseconds(call: Callable[[], object], calls: int) -> float:
    """Time of one call, the loop and the function around it included, for both alike."""
    begin = time.perf_counter_ns()
    for _ in range(calls):
        call()
    return (time.perf_counter_ns() - begin) / calls
