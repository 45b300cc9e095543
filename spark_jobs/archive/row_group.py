"""One row group of an archive: records as columns, until they are written.

The memory is taken once in a process and used again. Allocated chunk by chunk it would go back to
the kernel in between, and fresh pages cost as much as what is done with them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet
from numpy.typing import NDArray

from spark_jobs.archive.columns import (
    DICTIONARY,
    ENCODINGS,
    EVENT_SCHEMA,
    REPEATED,
    STATISTICS,
    ZSTD_LEVEL,
)
from spark_jobs.figures.histogram import bucket
from spark_jobs.logs.model import CHUNK_RECORDS, Chunk, Log

ROWS: Final = 1 << 18

_INDEX: Final = pa.dictionary(pa.int32(), pa.string())
WRITTEN: Final = pa.schema(
    [field.with_type(_INDEX) if field.type == pa.string() else field for field in EVENT_SCHEMA]
)
"""What is handed to Arrow: strings as dictionaries, so that it need not find equal ones."""

_CONSTANT: Final = ("engine", "boot_id", "log_id")
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
        WRITTEN,
        store_schema=False,
        write_statistics=list(STATISTICS),
        write_batch_size=ROWS,
        write_page_checksum=True,  # the CRCs of the records are not kept
        use_dictionary=[name for name, (how, _) in encodings.items() if how == DICTIONARY],
        column_encoding={name: how for name, (how, _) in encodings.items() if how != DICTIONARY},
        compression={name: codec for name, (_, codec) in encodings.items()},
        compression_level={n: ZSTD_LEVEL for n, (_, codec) in encodings.items() if codec == "ZSTD"},
        memory_pool=pa.system_memory_pool(),  # Arrow's own returns its pages
    )


class _Memory:
    """Memory for one row group: each column, and a chunk of what is not kept."""

    def __init__(self) -> None:
        self.rows = ROWS
        self.columns = {
            field.name: np.empty(ROWS, dtype=field.type.to_pandas_dtype())
            for field in EVENT_SCHEMA
            if field.type != pa.string() and field.name != "event_time"
        }
        self.columns["event_time"] = np.empty(ROWS, dtype=np.int64)
        self.columns["channel"] = np.empty(ROWS, dtype=np.int32)
        self.there = {name: np.empty(ROWS, dtype=bool) for name in ("lat_ns", "lat_b", "channel")}
        self.sent = np.empty(CHUNK_RECORDS, dtype=np.int64)
        self.nowhere = pa.array(np.zeros(ROWS, dtype=np.int32))
        """Indices of what is the same in all rows."""


_idle: Final[list[_Memory]] = []
"""What row groups have given back; as much as were open at once."""


class RowGroup:
    """Takes chunks of one log as long as they fit."""

    def __init__(self, log: Log) -> None:
        self.rows = 0
        self._memory = _idle.pop() if _idle else _Memory()
        self._columns, self._there = self._memory.columns, self._memory.there
        self._pid = log.pid
        nowhere = self._memory.nowhere
        self._texts = {
            name: pa.DictionaryArray.from_arrays(nowhere, pa.array([getattr(log, name)]))
            for name in _CONSTANT
        }

    def close(self) -> None:
        """Another one may have the memory: what `table` returned is no longer good."""
        _idle.append(self._memory)

    def fits(self, rows: int) -> bool:
        """Whether so many more do."""
        return self.rows + rows <= self._memory.rows

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
        sent = self._memory.sent[:count]
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
        there = self._there.get(name)
        bits = None
        if there is not None and not there[: self.rows].all():
            bits = pa.py_buffer(np.packbits(there[: self.rows], bitorder="little"))
        return pa.Array.from_buffers(kind, self.rows, [bits, pa.py_buffer(column)])

    def _fill(self, databases: Sequence[int]) -> None:
        """The columns that are nearly always the same; `databases`: of each channel."""
        into = {name: self._columns[name][: self.rows] for name in ("pid", "database", "channel")}
        into["pid"].fill(self._pid)
        if len(set(databases)) > 1:
            np.take(databases, into["channel"], out=into["database"])
        else:
            into["database"].fill(databases[0] if databases else 0)

    def table(self, channels: Sequence[tuple[int, str]]) -> pa.Table:
        """All rows, until the next chunk is added; `channels` are what `Chunk.channel` indexes."""
        self._fill([number for number, _ in channels])
        columns = {name: self._array(name, column) for name, column in self._columns.items()}
        columns |= {name: array.slice(0, self.rows) for name, array in self._texts.items()}
        names = pa.array([name for _, name in channels], pa.string())
        columns["channel"] = pa.DictionaryArray.from_arrays(columns["channel"], names)
        return pa.Table.from_arrays([columns[name] for name in WRITTEN.names], schema=WRITTEN)

    def clear(self) -> None:
        self.rows = 0
