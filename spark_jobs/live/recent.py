"""What came of late: what is there now, less what was there then.

Counts and sums are added up from the beginning, so two of them tell what came in between. Extremes
are not: those of a while are as exact as the buckets of its histogram, 0.4 %.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from spark_jobs.figures.histogram import midpoint
from spark_jobs.figures.merge import KEYS
from spark_jobs.figures.quantiles import grouped
from spark_jobs.jobs.latency import summarise

_COUNTED = (*KEYS, "bucket", "n")
_SUMMED = {"n": "sum", "sum_ns": "sum", "first_ns": "min", "last_ns": "max"}


class Look(NamedTuple):
    """A state, and when it was taken, by CLOCK_MONOTONIC in seconds."""

    at: float
    state: pa.Table


class Recent:
    """The states of the last `seconds`, and the one before them, to compare with.

    `span` is how long ago that is: less than `seconds` until so many have passed.
    """

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds = seconds
        self._clock = clock
        self._looks: deque[Look] = deque()
        self._began = clock()
        self.span = 0.0
        self.rows: list[dict[str, Any]] = []

    def add(self, state: pa.Table) -> None:
        """Fills in `span`, and `rows` as those of ``latency``."""
        now = Look(self._clock(), state)
        self._looks.append(now)
        while len(self._looks) > 1 and self._looks[1].at <= now.at - self._seconds:
            self._looks.popleft()
        # What was there at the first look came before: it may be of any age.
        before = self._looks[0]
        self.span = now.at - before.at
        self.rows = summarise(_difference(now.state, before.state)) if before is not now else []


def _difference(now: pa.Table, before: pa.Table) -> pa.Table:
    """Rows as those of `latency.Rows`."""
    buckets = _less(_buckets(now), _buckets(before), (*KEYS, "bucket"), {"n": "sum"})
    figures = _less(_figures(now), _figures(before), KEYS, _SUMMED)
    if buckets.num_rows == 0 or figures.num_rows == 0:
        return pa.concat_tables([buckets, figures], promote_options="default").slice(0, 0)
    ends = grouped(
        buckets.append_column("low", buckets["bucket"]).append_column("high", buckets["bucket"]),
        KEYS,
        {"low": "min", "high": "max"},
    )
    # both are in order of the keys, and have the same ones: what was counted has a bucket
    for name, bound in (("min_ns", "low"), ("max_ns", "high")):
        figures = figures.append_column(name, pa.array(midpoint(ends[bound].to_numpy())))
    return pa.concat_tables([buckets, figures], promote_options="default")


def _buckets(state: pa.Table) -> pa.Table:
    rows = state.filter(pc.is_valid(state["bucket"])).select(_COUNTED)
    return grouped(rows, (*KEYS, "bucket"), {"n": "sum"})


def _figures(state: pa.Table) -> pa.Table:
    named = pc.and_(pc.is_valid(state["wake"]), pc.is_null(state["bucket"]))
    return grouped(state.filter(named), KEYS, _SUMMED)


def _less(
    now: pa.Table, before: pa.Table, keys: Sequence[str], figures: dict[str, str]
) -> pa.Table:
    """The rows of `now` that count more than before. ``first_ns`` is when the others ended."""
    columns = {
        name: pc.negate(before[name]) if how == "sum" else before["last_ns"]
        for name, how in figures.items()
    }
    # The later of the two is now's last_ns; of first_ns it is wanted too, where there was one.
    taken = pa.table({**{key: before[key] for key in keys}, **columns}, schema=now.schema)
    later = {name: "max" if name == "first_ns" else how for name, how in figures.items()}
    found = grouped(pa.concat_tables([now, taken]), keys, later)
    return found.filter(pc.greater(found["n"], 0))
