"""What `latency` keeps of each slot while it reads, against numpy; no Spark."""

from __future__ import annotations

import numpy as np
import pytest

from spark_jobs.figures.histogram import BUCKETS, bucket
from spark_jobs.jobs import latency
from spark_jobs.jobs.latency import _Extremes, _Histogram

CHUNKS, SIZE, SLOTS = 30, 400, 9


@pytest.mark.parametrize("order", ["rising", "rising within chunks", "any"])
def test_figures_are_those_of_all_values(order: str) -> None:
    random = np.random.default_rng(5)
    slot = random.integers(0, SLOTS, (CHUNKS, SIZE))
    slot = np.minimum(slot, np.arange(CHUNKS)[:, None] // 2)  # new ones keep coming
    values = random.lognormal(8, 4, slot.shape).astype(np.int64)
    values[:, ::50] = 0
    ts = random.integers(1, 10**12, slot.shape)
    if order != "any":
        ts = np.sort(ts, axis=1)
    if order == "rising":
        ts = np.sort(ts, axis=None).reshape(ts.shape)
    extremes = _Extremes()
    for row in range(CHUNKS):
        extremes.add(slot[row], values[row], ts[row], int(slot[: row + 1].max()) + 1)
    for which in range(1, SLOTS):
        mine, when = values[slot == which], ts[slot == which]
        expected = (mine.sum(), mine.min(), mine.max(), when.min(), when.max())
        assert tuple(column[which] for column in extremes.columns) == expected


@pytest.mark.parametrize("dense", [latency._DENSE_SLOTS, 5, 1])
def test_counts_are_those_of_all_values(dense: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when there come to be more slots than have an array."""
    monkeypatch.setattr(latency, "_DENSE_SLOTS", dense)
    monkeypatch.setattr(latency, "_BUFFERED", 3 * SIZE)
    random = np.random.default_rng(6)
    histogram = _Histogram()
    keys = []
    for row in range(CHUNKS):
        slots = 2 + row // 4
        slot = random.integers(0, slots, SIZE)
        values = random.lognormal(8, 4, SIZE).astype(np.int64)
        histogram.add(slot, values, slots)
        keys.append((slot * BUCKETS + bucket(values))[slot > 0])
    slot, index, count = histogram.counts()
    found = np.bincount(np.repeat(slot * BUCKETS + index, count))
    assert np.array_equal(found, np.bincount(np.concatenate(keys)))
