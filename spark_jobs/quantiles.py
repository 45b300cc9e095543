"""Percentiles in Spark: from rows (keys, bucket, n) to one row of quantiles per key."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf
from pyspark.sql.window import Window

from spark_jobs.histogram import BUCKETS, QUANTILES, SCALE, SUB_BITS

_SUBS = 1 << SUB_BITS


def _lower(bucket: str) -> str:
    """`histogram.midpoint`'s lower bound in SQL, in whole numbers."""
    octave, mantissa = f"(({bucket}) DIV {_SUBS})", f"bigint({_SUBS} + ({bucket}) % {_SUBS})"
    return (
        f"CASE WHEN {octave} >= {SUB_BITS} THEN shiftleft({mantissa}, {octave} - {SUB_BITS}) "
        f"ELSE shiftright({mantissa} + shiftleft(1L, {SUB_BITS} - {octave}) - 1, "
        f"{SUB_BITS} - {octave}) END"
    )


def midpoint(bucket: str) -> str:
    """`histogram.midpoint` as an SQL expression of an int column."""
    low = _lower(bucket)
    high = f"greatest({_lower(f'least({bucket} + 1, {BUCKETS - 1})')} - 1, {low})"
    return f"{low} + ({high} - {low}) DIV 2"


def with_quantiles(figures: DataFrame, histogram: DataFrame, keys: Sequence[str]) -> DataFrame:
    """`figures` with a column in ns for each of `histogram.QUANTILES`, by nearest rank.

    `histogram` has one row (keys, bucket, n) per key and bucket, `figures` one row per key with the
    exact ``min_ns`` and ``max_ns``. Keys are not null. What has no histogram has no quantiles.
    """
    order = Window.partitionBy(*keys).orderBy("bucket")
    ranked = histogram.withColumn("cumulative", sf.sum("n").over(order)).withColumn(
        "total", sf.sum("n").over(Window.partitionBy(*keys))
    )
    found = ranked.groupBy(*keys).agg(
        *(
            sf.min(
                # whole numbers: 0.999 * n is not always where it should be in floating point
                sf.expr(
                    f"CASE WHEN cumulative >= (total * {q} + {SCALE - 1}) DIV {SCALE} "
                    "THEN bucket END"
                )
            ).alias(name)
            for name, q in QUANTILES.items()
        )
    )
    joined = figures.join(found, list(keys), "left")
    return joined.withColumns(
        {
            name: sf.when(
                sf.col(name).isNotNull(),
                sf.expr(f"greatest(least({midpoint(name)}, max_ns), min_ns)"),
            )
            for name in QUANTILES
        }
    )
