"""Percentiles of keys, from partial results of several logs.

A row has figures and a whole histogram in two lists: a row for each bucket would take ten times the
memory, and on Spark, which moves rows one by one, more than reading the logs does.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from spark_jobs.engine.tables import key_begins, ordered
from spark_jobs.figures.histogram import QUANTILES, SCALE, midpoint

Ints = NDArray[np.int64]

HISTOGRAM: Final = (
    pa.field("buckets", pa.list_(pa.int32())),
    pa.field("counts", pa.list_(pa.int64())),
)


def by_nearest_rank(
    owner: Ints, buckets: Ints, counts: Ints, low: Ints, high: Ints
) -> Iterator[tuple[str, Ints]]:
    """The name of each of `histogram.QUANTILES`, and its value in ns for each owner.

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


_DENSE = 4
"""Adding up in an array of all keys is quicker than sorting them while it has so many elements for
each that there is; a sort of 64-bit numbers costs ten times as much."""


def is_dense(keys: int, size: int) -> bool:
    """Whether so many keys are worth an array of `size` elements."""
    return size <= _DENSE * keys


def added_up(owner: Ints, buckets: Ints, counts: Ints | None) -> tuple[Ints, Ints, Ints]:
    """The same, in order, each bucket of an owner once. `counts`: None: 1 of each."""
    if len(owner) == 0:
        return owner, buckets, np.empty(0, dtype=np.int64)
    low = int(buckets.min())
    width = int(buckets.max()) - low + 1
    place = owner * width
    place += buckets
    place -= low
    size = (int(owner.max()) + 1) * width
    if is_dense(len(place), size):
        if counts is None:
            every = np.bincount(place, minlength=size)
        else:
            every = np.zeros(size, dtype=np.int64)
            np.add.at(every, place, counts)
        place = np.flatnonzero(every)
        counts = every[place]
    elif counts is None:
        place, counts = np.unique(place, return_counts=True)
    else:
        order = np.argsort(place, kind="stable")
        place = place[order]
        start = np.flatnonzero(np.diff(place, prepend=-1))
        place = place[start]
        counts = np.add.reduceat(counts[order], start)
    owner = place // width
    return owner, place - owner * width + low, counts


def lists(owner: Ints, buckets: Ints, counts: Ints, owners: int) -> dict[str, pa.Array[Any]]:
    """`HISTOGRAM` of each owner; `owner` is in order."""
    ends = np.searchsorted(owner, np.arange(owners + 1)).astype(np.int32)
    values = (pa.array(buckets.astype(np.int32)), pa.array(counts))
    return {
        field.name: pa.ListArray.from_arrays(pa.array(ends), each)
        for field, each in zip(HISTOGRAM, values, strict=True)
    }


def entries(rows: pa.Table) -> tuple[Ints, Ints, Ints]:
    """Row, bucket and count of the entries of all histograms."""
    buckets, counts = (rows[field.name].combine_chunks() for field in HISTOGRAM)
    length = pc.list_value_length(buckets).fill_null(0).to_numpy()
    return (
        np.repeat(np.arange(rows.num_rows), length),
        buckets.flatten().to_numpy().astype(np.int64),
        counts.flatten().to_numpy(),
    )


def packed(rows: pa.Table) -> pa.Table:
    """`HISTOGRAM` in place of ``bucket``: rows with one count ``n`` of it, the others nothing."""
    counted = rows["bucket"].is_valid()
    number = np.flatnonzero(counted.to_numpy())
    buckets, counts = (
        rows[name].filter(counted).to_numpy().astype(np.int64) for name in ("bucket", "n")
    )
    n = pc.if_else(counted, pa.scalar(None, pa.int64()), rows["n"])
    kept = rows.drop_columns(["bucket", "n"]).append_column("n", n)
    for name, column in lists(number, buckets, counts, rows.num_rows).items():
        kept = kept.append_column(name, column)
    return kept


def summarised(
    rows: pa.Table, keys: Sequence[str], figures: Mapping[str, str] | None = None
) -> pa.Table:
    """One row per key, in order: ``n``, `figures` (column -> sum, min or max), and for each of
    `histogram.QUANTILES` a column in ns, by nearest rank, from the `HISTOGRAM` of the rows.

    Quantiles are cut off at the exact ``min_ns`` and ``max_ns``, which `figures` must name, and
    null where no histogram is.
    """
    chosen = {"n": "sum", **(figures or {})}
    result = grouped(rows, keys, chosen)
    names = rows.select(list(keys))
    order = pc.sort_indices(names, [(key, "ascending") for key in keys])  # not of the histograms
    group = np.empty(rows.num_rows, dtype=np.int64)
    group[order.to_numpy()] = np.cumsum(key_begins(names.take(order), keys)) - 1  # as in `result`
    row, buckets, counts = entries(rows)
    owner, buckets, counts = added_up(group[row], buckets, counts)
    timed, owner = np.unique(owner, return_inverse=True)
    known = np.zeros(result.num_rows, dtype=bool)
    known[timed] = True
    values = {name: np.zeros(result.num_rows, dtype=np.int64) for name in QUANTILES}
    if len(owner):
        own = result.filter(pa.array(known))
        low, high = (own[name].to_numpy() for name in ("min_ns", "max_ns"))
        for name, found in by_nearest_rank(owner, buckets, counts, low, high):
            values[name][known] = found
    for name, column in values.items():
        result = result.append_column(name, _masked(pa.array(column), known))
    return result
