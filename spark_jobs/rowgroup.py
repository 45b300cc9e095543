"""One row group of an archive: records as columns, until they are written.

The memory is taken once and used again. Allocated chunk by chunk it would go back to the kernel in
between, and fresh pages cost as much as what is done with them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet
from numpy.typing import NDArray

from spark_jobs.archive import DICTIONARY, ENCODINGS, EVENT_SCHEMA, REPEATED, STATISTICS
from spark_jobs.histogram import bucket
from spark_jobs.logs import CHUNK_RECORDS, Chunk, Log

ROWS: Final = 1 << 17

_INDEX: Final = pa.dictionary(pa.int32(), pa.string())
_WRITTEN: Final = pa.schema(
    [field.with_type(_INDEX) if field.type == pa.string() else field for field in EVENT_SCHEMA]
)
"""What is handed to Arrow: strings as dictionaries, so that it need not find equal ones."""

_CONSTANT: Final = ("engine", "boot_id", "pid", "log_id")
_COPIED: Final = ("ts", "commit_seq", "chan_seq", "bytes", "peer", "lag", "batch")
_COPIED_UNITS: Final = ("kind", "wake", "attempts", "flags")
_AUX: Final = -2
"""The last word but one of a record: `aux` without the record's own CRC."""


def writer(sink: Any, first: pa.Table) -> Any:
    """Writes row groups to an open file, of which this will be the first."""
    ts = first["ts"].to_numpy()
    # A batch of messages has one time stamp, which ZSTD finds. Without any, differences are small.
    repeated = 2 * np.count_nonzero(ts[1:] == ts[:-1]) > len(ts)
    encodings = ENCODINGS | (dict.fromkeys(("ts", "event_time"), REPEATED) if repeated else {})
    return pyarrow.parquet.ParquetWriter(
        sink,
        _WRITTEN,
        store_schema=False,
        write_statistics=list(STATISTICS),
        write_batch_size=CHUNK_RECORDS,
        use_dictionary=[name for name, (how, _) in encodings.items() if how == DICTIONARY],
        column_encoding={name: how for name, (how, _) in encodings.items() if how != DICTIONARY},
        compression={name: codec for name, (_, codec) in encodings.items()},
        memory_pool=pa.system_memory_pool(),  # Arrow's own returns its pages
    )


def _constants(log: Log) -> dict[str, pa.Array[Any]]:
    nowhere = pa.array(np.zeros(ROWS, dtype=np.int32))
    columns = {}
    for name in _CONSTANT:
        value = getattr(log, name)
        if isinstance(value, str):
            columns[name] = pa.DictionaryArray.from_arrays(nowhere, pa.array([value]))
        else:
            columns[name] = pa.array(np.full(ROWS, value, dtype=np.int64))
    return columns


class RowGroup:
    """Takes chunks of one log as long as they fit."""

    def __init__(self, log: Log) -> None:
        self.rows = 0
        self._constants = _constants(log)
        self._columns = {
            field.name: np.empty(ROWS, dtype=field.type.to_pandas_dtype())
            for field in EVENT_SCHEMA
            if field.name not in (*_CONSTANT, "event_time", "channel", "database")
        }
        self._columns["event_time"] = np.empty(ROWS, dtype=np.int64)
        self._columns["channel"] = np.empty(ROWS, dtype=np.int32)
        self._one_database = np.zeros(ROWS, dtype=np.int64)
        self._sent = np.empty(CHUNK_RECORDS, dtype=np.int64)
        self._there = {name: np.empty(ROWS, dtype=bool) for name in ("lat_ns", "lat_b", "channel")}

    def fits(self, rows: int) -> bool:
        """Whether so many more do."""
        return self.rows + rows <= ROWS

    def add(self, chunk: Chunk) -> None:
        """A chunk that fits."""
        records, count = chunk.records, len(chunk.records)
        here = slice(self.rows, self.rows + count)
        self.rows += count
        into = {name: column[here] for name, column in self._columns.items()}
        there = {name: mask[here] for name, mask in self._there.items()}
        for name in (*_COPIED, *_COPIED_UNITS):
            into[name][:] = records[name]
        into["aux"][:] = records.view(np.uint32).reshape(count, -1)[:, _AUX]
        sent = self._sent[:count]
        sent[:] = records["ref_ts"]
        np.subtract(into["ts"], sent, out=into["lat_ns"])
        np.not_equal(sent, 0, out=there["lat_ns"])
        into["lat_b"][:] = bucket(into["lat_ns"])
        np.greater_equal(into["lat_ns"], 0, out=there["lat_b"])
        there["lat_b"] &= there["lat_ns"]
        np.add(into["ts"], chunk.clock_ns, out=into["event_time"])
        into["event_time"] //= 1000
        into["channel"][:] = chunk.channel
        np.greater_equal(chunk.channel, 0, out=there["channel"])

    def _array(self, name: str, column: NDArray[Any]) -> pa.Array[Any]:
        kind = pa.int32() if name == "channel" else EVENT_SCHEMA.field(name).type
        there = self._there.get("channel" if name == "database" else name)
        bits = None
        if there is not None and not there[: self.rows].all():
            bits = pa.py_buffer(np.packbits(there[: self.rows], bitorder="little"))
        return pa.Array.from_buffers(kind, self.rows, [bits, pa.py_buffer(column)])

    def _database(self, numbers: Sequence[int]) -> NDArray[np.int64]:
        """Of each record; of those without a channel any."""
        if len(set(numbers)) > 1:
            return np.array(numbers, dtype=np.int64)[self._columns["channel"][: self.rows]]
        if numbers and self._one_database[0] != numbers[0]:
            self._one_database = np.full(ROWS, numbers[0], dtype=np.int64)
        return self._one_database

    def table(self, channels: Sequence[tuple[int, str]]) -> pa.Table:
        """All rows, until the next chunk is added; `channels` are what `Chunk.channel` indexes."""
        columns = {name: array.slice(0, self.rows) for name, array in self._constants.items()}
        arrays = self._columns | {"database": self._database([number for number, _ in channels])}
        columns |= {name: self._array(name, column) for name, column in arrays.items()}
        names = pa.array([name for _, name in channels], pa.string())
        columns["channel"] = pa.DictionaryArray.from_arrays(columns["channel"], names)
        return pa.Table.from_arrays([columns[name] for name in _WRITTEN.names], schema=_WRITTEN)

    def clear(self) -> None:
        self.rows = 0
