"""Percentiles of keys, against sorting the values."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from spark_jobs.figures import quantiles
from spark_jobs.figures.histogram import QUANTILES, bucket, nearest_rank

SCHEMA = pa.schema(
    [("key", pa.int64()), ("bucket", pa.int32())]
    + [(name, pa.int64()) for name in ("n", "min_ns", "max_ns")]
)
HOW = {"min_ns": "min", "max_ns": "max"}


def test_every_quantile_of_every_size() -> None:
    """Counts of 1 to 40 and some more, each a key of its own, in pieces as readers send them."""
    random = np.random.default_rng(9)
    truth, pieces = {}, []
    for n in (*range(1, 41), 9_999, 10_000, 10_001):
        values = (random.pareto(0.7, n) * 100).astype(np.int64)
        truth[n] = np.sort(values)
        for part in np.array_split(values, 3):
            if len(part):
                low, high = int(part.min()), int(part.max())
                pieces.append((n, None, len(part), low, high))
                pieces += [
                    (n, int(b), int(c), None, None)
                    for b, c in zip(*np.unique(bucket(part), return_counts=True), strict=True)
                ]
    pieces.append((-1, None, 5, None, None))  # without a histogram
    random.shuffle(pieces)
    names = SCHEMA.names
    table = pa.Table.from_pylist([dict(zip(names, p, strict=True)) for p in pieces], schema=SCHEMA)
    found = quantiles.summarised(quantiles.packed(table), ["key"], HOW).to_pylist()
    assert [row["key"] for row in found] == [-1, *truth]
    assert found.pop(0) == {"key": -1, "n": 5, **dict.fromkeys((*HOW, *QUANTILES))}
    for row, (n, values) in zip(found, truth.items(), strict=True):
        assert (row["n"], row["min_ns"], row["max_ns"]) == (n, values[0], values[-1])
        for name, q in QUANTILES.items():
            exact = values[nearest_rank(n, q) - 1]
            assert abs(row[name] - exact) <= 0.0039 * exact, (n, name)


def test_no_rows_have_the_same_columns() -> None:
    none = quantiles.summarised(quantiles.packed(SCHEMA.empty_table()), ["key"], HOW)
    assert none.num_rows == 0
    one = pa.Table.from_pylist([{"key": 1, "n": 1, "min_ns": 2, "max_ns": 2}], schema=SCHEMA)
    assert none.schema == quantiles.summarised(quantiles.packed(one), ["key"], HOW).schema
