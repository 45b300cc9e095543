"""Percentiles in Spark: one row per key from partial results, in a single shuffle.

Rows with ``bucket`` are counts (``n``) of a histogram; rows without it hold other figures of the
key. All are sent to the key's task as they are: the readers have aggregated them already, and with
few keys what Spark spends is spent per stage, not per row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from spark_jobs.figures.histogram import BUCKETS, QUANTILES, SCALE, SUB_BITS

_SUBS = 1 << SUB_BITS
_HOW = {"sum": sf.sum, "min": sf.min, "max": sf.max}


def _lower(bucket: str) -> str:
    """The smallest whole number of a bucket in SQL, as `histogram` has it."""
    octave, mantissa = f"(({bucket}) DIV {_SUBS})", f"bigint({_SUBS} + ({bucket}) % {_SUBS})"
    up, down = f"int({octave} - {SUB_BITS})", f"int({SUB_BITS} - {octave})"
    return (
        f"IF({octave} >= {SUB_BITS}, shiftleft({mantissa}, {up}), "
        f"shiftright({mantissa} + shiftleft(1L, {down}) - 1, {down}))"
    )


def midpoint(bucket: str) -> str:
    """`histogram.midpoint` as an SQL expression."""
    low = _lower(bucket)
    high = f"greatest({_lower(f'least({bucket} + 1, {BUCKETS - 1})')} - 1, {low})"
    return f"{low} + ({high} - {low}) DIV 2"


def _buckets_of_quantiles() -> str:
    """SQL: from ``buckets`` (bucket, n) in order and their sum ``counted``."""
    start = ", ".join(f"CAST(NULL AS INT) AS {name}" for name in QUANTILES)
    step = ", ".join(
        # whole numbers: 0.999 * n is not always where it should be in floating point
        f"coalesce(a.{name}, IF(a.seen + b.n >= (counted * {q} + {SCALE - 1}) DIV {SCALE}, "
        f"b.bucket, NULL)) AS {name}"
        for name, q in QUANTILES.items()
    )
    return (
        f"aggregate(buckets, struct(0L AS seen, {start}), "
        f"(a, b) -> struct(a.seen + b.n AS seen, {step}))"
    )


def summarised(
    rows: DataFrame, keys: Sequence[str], figures: Mapping[str, str] | None = None
) -> DataFrame:
    """One row per key: ``n`` of the rows without bucket, `figures` (column -> sum, min or max), and
    for each of `histogram.QUANTILES` a column in ns, by nearest rank.

    Quantiles are cut off at the exact ``min_ns`` and ``max_ns``, which `figures` must name, and
    null where no histogram is.
    """
    chosen = figures or {}
    of_bucket = sf.col("bucket").isNotNull()
    again = {name: _HOW[how](name).alias(name) for name, how in chosen.items()}
    merged = (
        rows.repartition(*keys)
        .groupBy(*keys, "bucket")
        .agg(sf.sum("n").alias("n"), *again.values())
    )
    found = merged.groupBy(*keys).agg(
        sf.sort_array(sf.collect_list(sf.when(of_bucket, sf.struct("bucket", "n")))).alias(
            "buckets"
        ),
        sf.sum(sf.when(of_bucket, sf.col("n"))).alias("counted"),
        sf.sum(sf.when(~of_bucket, sf.col("n"))).alias("n"),
        *again.values(),
    )
    placed = found.withColumn("quantiles", sf.expr(_buckets_of_quantiles()))
    exact = [
        sf.expr(
            f"IF(quantiles.{name} IS NULL, NULL, "
            f"greatest(least({midpoint(f'quantiles.{name}')}, max_ns), min_ns))"
        ).alias(name)
        for name in QUANTILES
    ]
    return placed.select(*keys, "n", *chosen, *exact)
