"""Percentiles of keys, from partial results of several logs.

Rows with ``bucket`` are counts (``n``) of a histogram; rows without it hold other figures of the
key. Readers have aggregated them already, so there are few.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from spark_jobs.engine.tables import key_begins, ordered
from spark_jobs.figures.histogram import QUANTILES, SCALE, midpoint

Ints = NDArray[np.int64]
_NONE = -1
"""In place of no bucket: rows without come first."""


def by_nearest_rank(
    owner: Ints, buckets: Ints, counts: Ints, low: Ints, high: Ints
) -> Iterator[tuple[str, Ints]]:
    """Of `histogram.QUANTILES` the name, and the value in ns for each owner.

    `counts` of `buckets` come in order of the owners, each of which has some, and then of the
    buckets. Values are cut off at the owner's extremes, `low` and `high`.
    """
    reached = np.cumsum(counts)
    start = np.searchsorted(owner, np.arange(len(low)))
    before = reached[start] - counts[start]
    number = np.append(before[1:], reached[-1:]) - before
    for name, share in QUANTILES.items():
        # whole numbers: 0.999 * n is not always where it should be in floating point
        rank = np.maximum(1, -(-number * share // SCALE))
        at = np.searchsorted(reached, before + rank)
        yield name, np.clip(midpoint(buckets[at]), low, high)


def grouped(table: pa.Table, keys: Sequence[str], figures: Mapping[str, str]) -> pa.Table:
    """One row per key, in order: `figures` (column -> sum, min or max), null where all are."""
    chosen = list(figures.items())
    found = table.group_by(list(keys), use_threads=False).aggregate(chosen)
    columns = [found[name] for name in (*keys, *(f"{name}_{how}" for name, how in chosen))]
    return ordered(pa.Table.from_arrays(columns, names=[*keys, *figures]), *keys)


def _masked(column: pa.Array[Any], kept: NDArray[np.bool_]) -> pa.Array[Any]:
    return pc.if_else(pa.array(kept), column, pa.scalar(None, column.type))


def summarised(
    rows: pa.Table, keys: Sequence[str], figures: Mapping[str, str] | None = None
) -> pa.Table:
    """One row per key, in order: ``n`` of the rows without bucket, `figures` (column -> sum, min or
    max), and for each of `histogram.QUANTILES` a column in ns, by nearest rank.

    Quantiles are cut off at the exact ``min_ns`` and ``max_ns``, which `figures` must name, and
    null where no histogram is.
    """
    chosen = {"n": "sum", **(figures or {})}
    place = rows.schema.get_field_index("bucket")
    rows = rows.set_column(place, "bucket", rows["bucket"].fill_null(_NONE))
    merged = grouped(rows, [*keys, "bucket"], chosen)
    begins = key_begins(merged, keys)
    first = np.flatnonzero(begins)
    counted = merged["bucket"].to_numpy() != _NONE
    result = merged.select(list(keys)).take(first)
    for name in chosen:
        own = merged[name].take(pa.array(first)).combine_chunks()
        result = result.append_column(name, _masked(own, ~counted[first]))
    timed = np.flatnonzero(counted)
    owners, owner = np.unique(np.cumsum(begins)[timed] - 1, return_inverse=True)
    values = {name: np.zeros(len(first), dtype=np.int64) for name in QUANTILES}
    if len(timed):
        buckets, counts = (
            merged[name].take(pa.array(timed)).to_numpy().astype(np.int64)
            for name in ("bucket", "n")
        )
        low, high = (
            result[name].take(pa.array(owners)).to_numpy().astype(np.int64)
            for name in ("min_ns", "max_ns")
        )
        for name, found in by_nearest_rank(owner, buckets, counts, low, high):
            values[name][owners] = found
    known = np.zeros(len(first), dtype=bool)
    known[owners] = True
    for name, column in values.items():
        result = result.append_column(name, _masked(pa.array(column), known))
    return result
