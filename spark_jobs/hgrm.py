"""Percentile distributions as text, in the form of HdrHistogram (``.hgrm``), for its plotters.

Values are microseconds. Four columns: value, percentile, how many values up to there, and
1 / (1 - percentile); the last line is that of the maximum.
"""

from __future__ import annotations

import math
import re
import shutil
from collections.abc import Iterator, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from spark_jobs.histogram import midpoint

TICKS_PER_HALF_DISTANCE = 5
MOST_CHANNELS = 100
_SCALE = 1000.0


def steps(counts: Sequence[int] | NDArray[np.int64]) -> Iterator[tuple[int, float, int]]:
    """(index, percentile from 0 to 1, count up to there) at HdrHistogram's percentile levels:
    five to the half of what is left to 1.
    """
    cumulative = np.cumsum(np.asarray(counts, dtype=np.int64))
    total = int(cumulative[-1])
    level = 0.0
    for index, upto in enumerate(cumulative.tolist()):
        while upto < total and upto >= level * total:
            yield index, level, upto
            half = 2 ** (math.floor(math.log2(1 / (1 - level))) + 1)
            level += 1 / (TICKS_PER_HALF_DISTANCE * half)
    yield len(cumulative) - 1, 1.0, total


def text(buckets: NDArray[np.int64], counts: NDArray[np.int64], max_ns: int) -> str:
    """The file of one histogram (`counts` of `buckets`, in order), none of them empty."""
    values = np.minimum(midpoint(buckets), max_ns) / _SCALE
    values[-1] = max_ns / _SCALE
    total = int(counts.sum())
    mean = float((values * counts).sum() / total)
    deviation = math.sqrt(float((counts * (values - mean) ** 2).sum() / total))
    lines = [f"{'Value':>12} {'Percentile':>14} {'TotalCount':>10} {'1/(1-Percentile)':>14}\n"]
    for index, level, upto in steps(counts):
        line = f"{values[index]:12.3f} {level:2.12f} {upto:10d}"
        lines.append(line if level >= 1 else f"{line} {1 / (1 - level):14.2f}")
    return "\n".join(
        [
            *lines,
            f"#[Mean    = {mean:12.3f}, StdDeviation   = {deviation:12.3f}]",
            f"#[Max     = {values[-1]:12.3f}, Total count    = {total:12d}]",
            f"#[Buckets = {len(buckets):12d}, SubBuckets     = {128:12d}]\n",
        ]
    )


def file_name(channel: str, key: tuple[Any, ...]) -> str:
    """A name that is readable, safe, and different for every channel."""
    plain = re.sub(r"[^A-Za-z0-9_.-]+", "_", channel).lstrip(".")[:40]
    return f"{plain}-{sha256(repr(key).encode()).hexdigest()[:8]}.hgrm"


def busiest(summary: DataFrame, most: int) -> DataFrame:
    """engine, database, channel, n, max_ns of the channels with most messages."""
    whole = summary.where(sf.col("wake") == "all").groupBy("engine", "database", "channel")
    return (
        whole.agg(sf.sum("n").alias("total"), sf.max("max_ns").alias("max_ns"))
        .orderBy(sf.desc("total"), "engine", "database", "channel")
        .limit(most)
    )


def write_all(histogram: DataFrame, summary: DataFrame, directory: Path) -> None:
    """``all.hgrm``, and one file for each of the busiest channels."""
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    keys = ("engine", "database", "channel")
    rows = histogram.where(sf.col("wake") == "all")
    whole = rows.groupBy("bucket").agg(sf.sum("n").alias("n")).orderBy("bucket").collect()
    if not whole:
        return
    chosen = busiest(summary, MOST_CHANNELS)
    highest = summary.agg(sf.max("max_ns")).collect()[0][0]
    (directory / "all.hgrm").write_text(_text(whole, highest))
    counted = rows.join(chosen, list(keys)).groupBy(*keys, "max_ns", "bucket")
    by_channel: dict[tuple[Any, ...], list[Any]] = {}
    for row in counted.agg(sf.sum("n").alias("n")).orderBy(*keys, "bucket").toLocalIterator():
        by_channel.setdefault((row.engine, row.database, row.channel), []).append(row)
    for key, found in by_channel.items():
        (directory / file_name(key[2], key)).write_text(_text(found, found[0].max_ns))


def _text(rows: Sequence[Any], max_ns: int) -> str:
    buckets, counts = (np.array([row[name] for row in rows]) for name in ("bucket", "n"))
    return text(buckets, counts, max_ns)
