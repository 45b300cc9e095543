"""Buckets, their inverse, and quantiles against an exact nearest rank."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_jobs.figures.histogram import (
    BUCKETS,
    QUANTILES,
    bucket,
    midpoint,
    nearest_rank,
    quantile,
)
from spark_jobs.logs.checksum import crc32c, record_crcs, record_ok
from spark_jobs.logs.schema import RECORD


@given(st.integers(1, 2**62))
def test_a_value_and_its_bucket_differ_by_less_than_half_a_percent(value: int) -> None:
    index = bucket([value])
    assert 0 <= index[0] < BUCKETS
    assert abs(int(midpoint(index)[0]) - value) <= value * 0.0040


@given(st.lists(st.integers(1, 2**62), min_size=2, max_size=20))
def test_buckets_keep_the_order(values: list[int]) -> None:
    values.sort()
    assert (np.diff(bucket(values)) >= 0).all()


def test_small_values_are_exact() -> None:
    values = np.arange(1, 257)
    assert np.array_equal(midpoint(bucket(values)), values)
    assert bucket([0, -5]).tolist() == [0, 0]


@given(st.lists(st.integers(1, 10**12), min_size=1, max_size=200))
def test_quantiles_are_nearest_rank(values: list[int]) -> None:
    counts = np.bincount(bucket(values), minlength=BUCKETS)
    for q in QUANTILES.values():
        exact = sorted(values)[math.ceil(len(values) * q / 10000 - 1e-12) - 1]
        assert abs(quantile(counts, q) - exact) <= exact * 0.0040


def test_ranks_are_whole_numbers() -> None:
    assert [nearest_rank(n, 9990) for n in (1, 999, 1000, 1001, 10**15)] == [
        1, 999, 999, 1000, 999 * 10**12
    ]  # fmt: skip
    with pytest.raises(ValueError, match="empty"):
        quantile(np.zeros(3, dtype=np.int64), 5000)


def test_crc_of_many_records_is_that_of_each() -> None:
    assert crc32c(b"123456789") == 0xE3069283
    assert crc32c(b"56789", crc32c(b"1234")) == 0xE3069283
    random = np.random.default_rng(4)
    raw = random.integers(0, 256, 40000 * 64, dtype=np.uint8)
    records = raw.view(RECORD).copy()
    records["aux"] &= np.uint64(0xFFFFFFFF)
    crcs = record_crcs(records)
    first = record_crcs(records, 1)
    for i in (0, 1, 16383, 16384, 39999):
        assert crcs[i] == crc32c(records[i].tobytes()[:60])
        assert first[i] == crc32c(records[i].tobytes())
    assert not record_ok(records).any()
    records["aux"] |= crcs.astype(np.uint64) << np.uint64(32)
    assert record_ok(records).all()
    assert not record_ok(np.zeros(1, dtype=RECORD)).any()
