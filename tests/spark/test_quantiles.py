"""Percentiles in Spark against those in numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from pyspark.sql import functions as sf

from spark_jobs.figures import quantiles
from spark_jobs.figures.histogram import BUCKETS, QUANTILES, bucket, midpoint, nearest_rank

pytestmark = [
    pytest.mark.spark,
    pytest.mark.xdist_group("spark"),
    pytest.mark.filterwarnings("default"),  # Spark's own code, which we cannot mend
]


def test_the_middle_of_every_bucket(spark: Any) -> None:
    below = BUCKETS - 2  # the last ones end at the limit of 64 bits
    rows = spark.range(below).select(sf.expr(quantiles.midpoint("int(id)")).alias("middle"))
    assert np.array_equal([row.middle for row in rows.collect()], midpoint(np.arange(below)))


def test_every_quantile_of_every_size(spark: Any) -> None:
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
    schema = "key int, bucket int, n long, min_ns long, max_ns long"
    frame = spark.createDataFrame(pieces, schema)
    how = {"min_ns": "min", "max_ns": "max"}
    rows = {row.key: row for row in quantiles.summarised(frame, ["key"], how).collect()}
    assert rows.pop(-1).asDict() == {"key": -1, "n": 5, **dict.fromkeys((*how, *QUANTILES))}
    for n, values in truth.items():
        row = rows.pop(n)
        assert (row.n, row.min_ns, row.max_ns) == (n, values[0], values[-1])
        for name, q in QUANTILES.items():
            exact = values[nearest_rank(n, q) - 1]
            assert abs(row[name] - exact) <= 0.0039 * exact, (n, name)
    assert rows == {}
