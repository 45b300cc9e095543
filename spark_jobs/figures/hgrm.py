"""Percentile distributions as text, in the form of HdrHistogram (``.hgrm``), for its plotters.

Values are microseconds. Four columns: value, percentile, how many values up to there, and
1 / (1 - percentile); the last line is that of the maximum.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from hashlib import sha256
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from spark_jobs.directory import Directory, remove_tree
from spark_jobs.engine.tables import groups
from spark_jobs.figures.histogram import midpoint
from spark_jobs.figures.quantiles import grouped

TICKS_PER_HALF_DISTANCE = 5
MOST_CHANNELS = 100
_SCALE = 1000.0

Channel = tuple[str, int, str]
"""engine, database, name."""
EVERYTHING: Channel = ("", -1, "")
_CHANNEL = ("engine", "database", "channel")
Counts = NDArray[np.int64]
"""Two rows: buckets in order, and the count of each."""


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


def file_name(key: Channel) -> str:
    """A name that is readable, safe, and different for every channel."""
    plain = re.sub(r"[^A-Za-z0-9_.-]+", "_", key[2]).lstrip(".")[:40]
    return f"{plain}-{sha256(repr(key).encode()).hexdigest()[:8]}.hgrm"


def busiest(rows: Sequence[Mapping[str, Any]], most: int) -> dict[Channel, int]:
    """The channels with most messages among rows of ``latency``, and the maximum of each in ns."""
    count: dict[Channel, int] = {}
    highest: dict[Channel, int] = {}
    for row in rows:
        if row["wake"] == "all":
            key = (row["engine"], row["database"], row["channel"])
            count[key] = count.get(key, 0) + row["n"]
            highest[key] = max(highest.get(key, 0), row["max_ns"])
    chosen = sorted(count, key=lambda key: (-count[key], key))[:most]
    return {key: highest[key] for key in chosen}


def distributions(counts: pa.Table, channels: Collection[Channel]) -> dict[Channel, Counts]:
    """Buckets and their counts of these channels, and as `EVERYTHING` of all there are.

    `counts` has engine, database, channel, bucket, n; any number of rows for each.
    """
    found: dict[Channel, Counts] = {}
    whole = grouped(counts, ["bucket"], {"n": "sum"})
    if whole.num_rows:
        found[EVERYTHING] = _pairs(whole)
    names = pa.array(sorted({name for _, _, name in channels}), pa.string())
    wanted = counts.filter(pc.is_in(counts["channel"], names))
    sums = grouped(wanted, [*_CHANNEL, "bucket"], {"n": "sum"})
    for name, rows in groups(sums, *_CHANNEL):
        key = name["engine"], name["database"], name["channel"]
        if key in channels:  # another engine may have one of that name
            found[key] = _pairs(rows)
    return found


def _pairs(rows: pa.Table) -> Counts:
    return np.stack([rows[name].to_numpy().astype(np.int64) for name in ("bucket", "n")])


def write_all(
    found: Mapping[Channel, Counts], rows: Sequence[Mapping[str, Any]], directory: Directory
) -> None:
    """``all.hgrm``, and one file for each of the other channels in `found`; `rows` are those of
    ``latency``.
    """
    remove_tree(directory)
    directory.mkdir(parents=True)
    highest = busiest(rows, MOST_CHANNELS)
    for key, (buckets, each) in found.items():
        whole = key == EVERYTHING
        name = "all.hgrm" if whole else file_name(key)
        limit = max(row["max_ns"] for row in rows) if whole else highest[key]
        (directory / name).write_text(text(buckets, each, limit))
