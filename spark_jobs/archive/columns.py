"""The columns of ``events/``: types, encodings, and what a query may prune by."""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa


def _field(name: str, kind: pa.DataType, *, nullable: bool = False) -> pa.Field[Any]:
    return pa.field(name, kind, nullable=nullable)


EVENT_SCHEMA: Final = pa.schema(
    [
        _field("event_time", pa.timestamp("us", tz="UTC")),
        _field("ts", pa.int64()),
        _field("lat_ns", pa.int64(), nullable=True),
        _field("lat_b", pa.int16(), nullable=True),
        _field("commit_seq", pa.int64()),
        _field("chan_seq", pa.int64()),
        _field("channel", pa.string(), nullable=True),
        _field("database", pa.int64()),
        *(_field(name, pa.uint32()) for name in ("bytes", "peer")),
        *(_field(name, pa.int32()) for name in ("lag", "batch")),
        _field("aux", pa.uint32()),
        *(_field(name, pa.int16()) for name in ("kind", "wake", "attempts", "flags")),
        _field("engine", pa.string()),
        _field("boot_id", pa.string()),
        _field("pid", pa.int64()),
        _field("log_id", pa.string()),
    ]
)
"""What else is known of the writer is the same in a whole segment, and in ``segments/``. A record
without channel has the `database` of the log's last one: a connection has one. `lag` and `batch`
are signed, because Spark 4.3 cannot read unsigned numbers that are split by bytes.
"""
DICTIONARY: Final = "DICTIONARY"
ENCODINGS: Final = {
    "event_time": ("DELTA_BINARY_PACKED", "LZ4"),
    "ts": ("DELTA_BINARY_PACKED", "LZ4"),
    "lat_ns": ("BYTE_STREAM_SPLIT", "LZ4"),
    "lat_b": (DICTIONARY, "LZ4"),
    "commit_seq": ("BYTE_STREAM_SPLIT", "LZ4"),
    "chan_seq": ("BYTE_STREAM_SPLIT", "ZSTD"),
    "channel": (DICTIONARY, "LZ4"),
    "database": ("PLAIN", "LZ4"),
    "bytes": ("PLAIN", "LZ4"),
    "peer": ("DELTA_BINARY_PACKED", "NONE"),
    "lag": ("BYTE_STREAM_SPLIT", "LZ4"),
    "batch": ("BYTE_STREAM_SPLIT", "LZ4"),
    "aux": ("PLAIN", "NONE"),
    "kind": ("PLAIN", "LZ4"),
    "wake": ("PLAIN", "LZ4"),
    "attempts": ("PLAIN", "LZ4"),
    "flags": ("PLAIN", "LZ4"),
    "engine": (DICTIONARY, "NONE"),
    "boot_id": (DICTIONARY, "NONE"),
    "pid": ("PLAIN", "LZ4"),
    "log_id": (DICTIONARY, "NONE"),
}
"""Encoding and codec of each column: of those that keep an archive at 12 bytes a record the least
work. What is the same for long is not worth a dictionary: LZ4 leaves next to nothing of it. Nothing
makes checksums smaller.
"""
ZSTD_LEVEL: Final = 1
"""At -1 it is no quicker on a hundred million records, and 2 % larger, which is above 12 bytes."""
REPEATED: Final = ("PLAIN", "ZSTD")
"""For time stamps most of which are those of the record before."""
STATISTICS: Final = ("event_time", "commit_seq", "pid", "kind")
"""Columns by which a query may leave out row groups; of channels their dictionary tells."""
