"""Histograms of several logs added up in numpy, against sorting the values; no Spark."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from spark_jobs.figures import merge
from spark_jobs.figures.histogram import QUANTILES, bucket, midpoint, nearest_rank

FIELDS = (
    *(pa.field(n, pa.int64() if n in ("database", "pid") else pa.string()) for n in merge.KEYS),
    *(pa.field(name, pa.int64()) for name in merge.FIGURES),
    *merge.HISTOGRAM,
)


def a_row(key: tuple[Any, ...], values: np.ndarray[Any, Any]) -> dict[str, Any]:
    buckets, counts = np.unique(bucket(values), return_counts=True)
    figures = (len(values), values.sum(), values.min(), values.max(), values.min(), values.max())
    return {
        **dict(zip(merge.KEYS, key, strict=True)),
        **{name: int(n) for name, n in zip(merge.FIGURES, figures, strict=True)},
        "buckets": buckets.tolist(),
        "counts": counts.tolist(),
    }


def check(row: dict[str, Any], parts: list[np.ndarray[Any, Any]]) -> None:
    values = np.sort(np.concatenate(parts))
    figures = [row[name] for name in merge.FIGURES]
    assert figures == [len(values), values.sum(), *([values[0], values[-1]] * 2)]
    for name, share in QUANTILES.items():
        exact = values[nearest_rank(len(values), share) - 1]
        expected = np.clip(midpoint(bucket(exact)), values[0], values[-1])
        assert row[name] == expected
    assert row["counts"] == np.unique(bucket(values), return_counts=True)[1].tolist()
    assert row["buckets"] == np.unique(bucket(values)).tolist()


def test_each_key_each_channel_and_the_whole_are_what_sorting_says() -> None:
    random = np.random.default_rng(7)
    keys = [
        ("e", 1, channel, "h", "b", pid, wake)
        for channel in ("a", "b", "c")
        for pid in (1, 2)
        for wake in ("signal", "none")
    ]
    keys += keys[:3]  # two connections of one process
    sizes = [1, *random.integers(1, 3000, len(keys) - 1)]
    parts = [random.lognormal(9, 3, size).astype(np.int64) for size in sizes]
    rows = [a_row(key, part) for key, part in zip(keys, parts, strict=True)]
    schema = merge.merged_schema(FIELDS)
    table = pa.Table.from_pylist(rows, schema=pa.schema(FIELDS))
    found = [row for batch in merge._merged(table, schema) for row in batch.to_pylist()]

    scopes: dict[tuple[Any, ...], list[np.ndarray[Any, Any]]] = {}
    for key, part in zip(keys, parts, strict=True):
        none = (None, None, None)
        for scope, name in (
            ("key", key),
            ("key", (*key[:-1], "all")),
            ("channel", (*key[:3], *none, "all")),
            ("whole", (*none, *none, "all")),
        ):
            scopes.setdefault((scope, *name), []).append(part)
    assert len(found) == len(scopes)
    for row in found:
        check(row, scopes[(row["scope"], *(row[name] for name in merge.KEYS))])
