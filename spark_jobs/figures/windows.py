"""Aggregation by time: windows of the wall clock, in numpy and in bounded memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from spark_jobs.errors import CannotRunError
from spark_jobs.figures.histogram import bucket
from spark_jobs.figures.quantiles import Ints, added_up, is_dense, lists
from spark_jobs.logs.model import Chunk
from spark_jobs.logs.reader import LogReader

BUFFERED = 1 << 20
"""So many records are grouped at once: a few tens of MiB, and few rows come out of it."""
MAX_ROWS = 10_000
"""Rows of a job in its summary; time goes on, so the whole table is in Parquet only."""


def numbers(*names: str) -> tuple[pa.Field[Any], ...]:
    """Columns of whole numbers."""
    return tuple(pa.field(name, pa.int64()) for name in names)


WINDOW_COLUMNS = (
    *(pa.field(name, pa.string()) for name in ("host", "boot_id", "engine")),
    *numbers("database"),
    pa.field("channel", pa.string()),
    *numbers("window", "n"),
)
"""What `place` and `channel_columns` fill in, the window, and how many records."""


class Buffer:
    """Columns of numbers, collected until there are enough of them for one sort."""

    def __init__(self) -> None:
        self._parts: dict[str, list[Ints]] = {}
        self._rows = 0

    def add(self, **columns: Ints) -> bool:
        """True when it is time to `take`."""
        for name, column in columns.items():
            self._parts.setdefault(name, []).append(column)
            self._rows += len(column) if name == "window" else 0
        return self._rows >= BUFFERED

    def take(self) -> dict[str, Ints]:
        """All columns; afterwards it is empty. Without rows there are no columns."""
        taken = {name: np.concatenate(parts) for name, parts in self._parts.items()}
        rows, self._parts, self._rows = self._rows, {}, 0
        return taken if rows else {}


_FEW_WINDOWS = 256


def window_of(chunk: Chunk, which: NDArray[Any] | slice, window_ns: int) -> Ints:
    """Start of each record's window, in ns of the wall clock."""
    return windows_of(chunk.records["ts"][which].astype(np.int64) + chunk.clock_ns, window_ns)


def windows_of(at: Ints, window_ns: int) -> Ints:
    """Start of the window of each of these times. Where they rise through a few windows nothing
    is divided: the ends of the windows are looked up.
    """
    if len(at):
        first, last = int(at[0]) // window_ns, int(at[-1]) // window_ns
        if last - first < _FEW_WINDOWS and (at[1:] >= at[:-1]).all():
            starts = np.arange(first, last + 1) * window_ns
            ends = np.append(np.searchsorted(at, starts[1:]), len(at))
            return np.repeat(starts, np.diff(ends, prepend=0))
    return np.asarray(at - at % window_ns)


def dense(column: Ints) -> tuple[Ints, Ints]:
    """Distinct values, and the index of each value among them; quick where it rarely changes."""
    start = np.flatnonzero(np.concatenate([[True], column[1:] != column[:-1]]))
    distinct, index = np.unique(column[start], return_inverse=True)
    return distinct, np.repeat(index, np.diff(np.append(start, len(column))))


def _numbers(owners: Ints, owner: Ints) -> Ints:
    """The index of each `owner` among the `owners`, which are in order."""
    size = int(owners.max(initial=0)) + 1
    if not is_dense(len(owner), size):
        return np.searchsorted(owners, owner)
    number = np.zeros(size, dtype=np.int64)
    number[owners] = np.arange(len(owners))
    return np.asarray(number[owner])


_BEGIN: Mapping[Any, int] = {
    np.add: 0,
    np.minimum: np.iinfo(np.int64).max,
    np.maximum: np.iinfo(np.int64).min,
}


def reduce_by(key: Ints, **columns: tuple[np.ufunc, Ints]) -> tuple[Ints, dict[str, Ints]]:
    """Distinct keys, in order, ``n`` of each, and each column reduced by its function: np.add,
    np.minimum or np.maximum.
    """
    size = int(key.max(initial=0)) + 1
    if is_dense(len(key), size):
        every = np.bincount(key, minlength=size)
        found = np.flatnonzero(every)
        result = {"n": every[found]}
        for name, (function, column) in columns.items():
            sums = np.full(size, _BEGIN[function], dtype=np.int64)
            function.at(sums, key, column)
            result[name] = sums[found]
        return found, result
    order = np.argsort(key, kind="stable")
    key = key[order]
    start = np.flatnonzero(np.concatenate([[True], key[1:] != key[:-1]])[: len(key)])
    result = {"n": np.diff(np.append(start, len(key)))}
    for name, (function, column) in columns.items():
        result[name] = function.reduceat(column[order], start)
    return key[start], result


def histograms(owners: Ints, owner: Ints, values: Ints) -> dict[str, Any]:
    """`HISTOGRAM` of the `values` in ns of each of the `owners`, which are in order."""
    counted = added_up(_numbers(owners, owner), bucket(values), None)
    return lists(*counted, len(owners))


def channel_columns(reader: LogReader, channel: Ints) -> dict[str, Any]:
    """database and channel of those indices of `LogReader.channels`."""
    names = pa.array([name for _, name in reader.channels], type=pa.string())
    database = np.array([number for number, _ in reader.channels], dtype=np.int64)
    return {"database": database[channel], "channel": names.take(pa.array(channel))}


def place(reader: LogReader) -> dict[str, Any]:
    """What is constant in a log and keeps clocks apart."""
    log = reader.log
    return {"engine": log.engine, "host": log.host, "boot_id": log.boot_id}


def nanoseconds(seconds: float) -> int:
    """Width of a window. Raises CannotRunError when it is not positive."""
    width = round(seconds * 1e9) if seconds < 1e9 else 0
    if width <= 0:
        raise CannotRunError(f"a window cannot be {seconds} s wide")
    return width


def only_timed(rows: pa.Table) -> pa.Table:
    """With ``min_ns`` and ``max_ns`` null where nothing was timed."""
    timed = pc.greater(rows["timed"], 0)
    for name in ("min_ns", "max_ns"):
        known = pc.if_else(timed, rows[name], pa.scalar(None, pa.int64()))
        rows = rows.set_column(rows.schema.get_field_index(name), name, known)
    return rows


def with_time(table: pa.Table) -> pa.Table:
    """``window`` as a time stamp, for Parquet."""
    micros = pc.divide(table["window"], 1000)
    time = micros.cast(pa.timestamp("us", tz="UTC"))
    return table.set_column(table.schema.get_field_index("window"), "window", time)


def listed(table: pa.Table) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The first `MAX_ROWS` rows for the summary, and how many there are."""
    rows = table.slice(0, MAX_ROWS).to_pylist()
    for row in rows:
        seconds, rest = divmod(row["window"] // 1000, 1_000_000)
        row["window"] = f"{np.datetime64(seconds, 's')}.{rest:06}Z"
    return rows, {"rows": table.num_rows, "rows_listed": len(rows)}
