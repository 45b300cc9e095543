"""Adds up histograms of several logs in numpy, where those of a channel were brought together.

What a task holds follows the number of
channels and processes that it was given, not that of records.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet

from spark_jobs.engine.base import Work
from spark_jobs.figures.histogram import QUANTILES
from spark_jobs.figures.quantiles import (
    HISTOGRAM,
    Ints,
    added_up,
    by_nearest_rank,
    entries,
    lists,
)

Key = tuple[Any, ...]

CHANNEL_KEYS: Final = ("engine", "database", "channel")
KEYS: Final = (*CHANNEL_KEYS, "host", "boot_id", "pid", "wake")
FIGURES: Final = {
    "n": np.add,
    "sum_ns": np.add,
    "min_ns": np.minimum,
    "max_ns": np.maximum,
    "first_ns": np.minimum,
    "last_ns": np.maximum,
}
KEY, CHANNEL, WHOLE = "key", "channel", "whole"
"""What a row is about: a listener, a channel, or a part of everything (add those up)."""

COUNTS: Final = pa.schema(
    [
        *((name, pa.int64() if name in ("database", "pid") else pa.string()) for name in KEYS),
        ("bucket", pa.int32()),
        ("n", pa.int64()),
    ]
)
_BEYOND_WAKES: Final[dict[str, Callable[[Key], Key]]] = {
    CHANNEL: lambda key: (*key[:3], None, None, None, "all"),
    WHOLE: lambda _: (None,) * (len(KEYS) - 1) + ("all",),
}


def _grouped(
    scope: str, names: Sequence[Key], table: pa.Table, counted: tuple[Ints, Ints, Ints]
) -> dict[str, Any]:
    """Columns of a row per distinct name, in order, whatever the order of the rows; `names` are
    those of the table's rows.
    """
    numbers = {name: number for number, name in enumerate(sorted(set(names)))}
    group = np.array([numbers[name] for name in names])
    found: dict[str, Any] = {}
    for name, how in FIGURES.items():
        values = table[name].to_numpy()
        order = np.argsort(group, kind="stable")
        start = np.searchsorted(group[order], np.arange(len(numbers)))
        found[name] = how.reduceat(values[order], start)
    row, bucket, count = counted
    owner, bucket, count = added_up(group[row], bucket, count)
    found |= by_nearest_rank(owner, bucket, count, found["min_ns"], found["max_ns"])
    found |= lists(owner, bucket, count, len(numbers))
    found |= dict(zip(KEYS, map(list, zip(*numbers, strict=True)), strict=True))
    return found | {"scope": [scope] * len(numbers)}


def _merged(table: pa.Table, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    own = list(zip(*(table[name].to_pylist() for name in KEYS), strict=True))
    counted = entries(table)
    groups: list[tuple[str, list[Key]]] = [(KEY, own), (KEY, [(*key[:-1], "all") for key in own])]
    groups += [(scope, list(map(of, own))) for scope, of in _BEYOND_WAKES.items()]
    for scope, names in groups:
        columns = _grouped(scope, names, table, counted)
        rows = len(columns["scope"])
        arrays = [
            pa.array(columns[field.name], field.type)
            if field.name in columns
            else pa.nulls(rows, field.type)
            for field in schema
        ]
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)


class _Written:
    """The histograms of keys, put into a file of the task's own instead of being handed on.

    Of the channels' only those of the busiest are handed on: more than `most` of a task's cannot be
    among the `most` of all.
    """

    def __init__(self, directory: str, most: int) -> None:
        self._directory = Path(directory)
        self._most = most
        self._tables: list[pa.Table] = []

    def take(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The batch without what was taken or is not wanted."""
        if batch["scope"][0].as_py() == KEY:
            self._tables.append(exploded(pa.Table.from_batches([batch])))
            nulls = [pa.nulls(batch.num_rows, field.type) for field in HISTOGRAM]
            for field, column in zip(HISTOGRAM, nulls, strict=True):
                batch = batch.set_column(batch.schema.get_field_index(field.name), field, column)
        elif batch.num_rows > self._most:
            order = [("n", "descending"), *((name, "ascending") for name in CHANNEL_KEYS)]
            batch = batch.take(pc.select_k_unstable(batch, self._most, order))
        return batch

    def close(self, number: int) -> None:
        """Writes the file of that number; another attempt at the task writes the same one."""
        target = self._directory / f"part-{number:05}.parquet"
        partial = self._directory / f".{target.name}.{uuid4().hex}"
        pyarrow.parquet.write_table(pa.concat_tables(self._tables), partial, compression="zstd")
        partial.replace(target)


def exploded(table: pa.Table) -> pa.Table:
    """`COUNTS`: a row for each bucket of the histograms in `table`."""
    buckets, counts = (table[field.name].combine_chunks() for field in HISTOGRAM)
    row = pc.list_parent_indices(buckets)
    keys = [table[name].take(row) for name in KEYS]
    return pa.Table.from_arrays([*keys, buckets.flatten(), counts.flatten()], schema=COUNTS)


def merged_schema(columns: Sequence[pa.Field[Any]]) -> pa.Schema:
    added = [pa.field("scope", pa.string()), *(pa.field(name, pa.int64()) for name in QUANTILES)]
    return pa.schema([*added, *columns])


def adding_up(schema: pa.Schema, written: tuple[str, int] | None = None) -> Work:
    """What adds up rows: for each key, for each key with ``wake`` = all, for each channel, and for
    all of them. `schema` is a `merged_schema`.

    `written`: a local directory that all tasks share, and a number. The tasks then write the keys'
    histograms there, as `COUNTS`, and the rows have none of them; and of the channels' rows each
    task hands on only so many, those with most values.
    """

    def work(rows: pa.Table, number: int) -> Iterator[pa.RecordBatch]:
        found = _merged(rows, schema)
        if written is None:
            yield from found
        else:
            file = _Written(*written)
            yield from map(file.take, found)
            file.close(number)

    return work
