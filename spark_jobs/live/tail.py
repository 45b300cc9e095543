"""The streaming data source ``pynlog_live``: what growing logs have gained since the last look.

1. An offset is {file: committed records}. What was committed never changes, so the records between
   two offsets are the same however often they are read: a batch that is run again after a crash
   yields what it yielded.
2. A part of a file is read with the channels that the file defined before it: its start is searched
   for definitions, nothing else. Files are 64 MiB at most.
3. A file that is gone before it was read counts as damaged by what it would have added.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from spark_jobs.engine.partials import batch as record_batch
from spark_jobs.errors import NoLogsError
from spark_jobs.jobs import latency
from spark_jobs.logs.checksum import record_ok
from spark_jobs.logs.model import CHUNK_RECORDS, Chunk, Log, LogFile, shown
from spark_jobs.logs.reader import LogReader
from spark_jobs.logs.schema import HEADER_BYTES, RECORD_BYTES, Kind
from spark_jobs.survey import survey

SCHEMA = pa.schema(
    [
        *latency.Rows.COLUMNS,
        pa.field("file", pa.string()),
        pa.field("file_records", pa.int64()),
        pa.field("file_damaged", pa.int64()),
    ]
)


class TailReader(LogReader):
    """Reads records [first, last) of the only file of a log."""

    def __init__(self, log: Log, first: int, last: int) -> None:
        super().__init__(log)
        self._first, self._last = first, last
        self._ids = np.full(64, -1, dtype=np.int64)
        self.records = self.damaged = 0

    def _blocks(self, file: LogFile, first: int, last: int) -> Iterator[NDArray[Any]]:
        with open(file.path, "rb", buffering=0) as stream:
            while first < last:
                stream.seek(HEADER_BYTES + first * RECORD_BYTES)
                room = self._buffer[: min(last - first, CHUNK_RECORDS)]
                count = stream.readinto(room.view(np.uint8).data) // RECORD_BYTES
                if count == 0:
                    return
                first += count
                yield room[:count]

    def chunks(self) -> Iterator[Chunk]:
        with contextlib.suppress(OSError):  # it was there when the survey was made
            yield from self._chunks()
        self.damaged = self._last - self._first - self.records

    def _chunks(self) -> Iterator[Chunk]:
        (file,) = self.log.files
        for block in self._blocks(file, 0, self._first):
            found = block[block["kind"] == Kind.CHANDEF]
            for record in found[record_ok(found, file.version)]:
                self._define(record)
        for block in self._blocks(file, self._first, self._last):
            whole = block[record_ok(block, file.version)]
            chunk, definitions = self._resolve(whole)
            self.records += len(chunk.records) + definitions
            yield chunk


@dataclass
class TailPartition(InputPartition):
    """Records [first, last) of a file; `log` (JSON) is "" when the file is gone."""

    path: str
    log: str
    first: int
    last: int


class TailStreamReader(DataSourceStreamReader):
    """Surveys the logs at every trigger."""

    def __init__(self, paths: Sequence[str]) -> None:
        self._paths = list(paths)

    def _files(self) -> dict[str, Log]:
        """Each file as a log of its own."""
        try:
            logs = survey(self._paths).logs
        except NoLogsError:  # not yet
            return {}
        return {file.path: replace(log, files=(file,)) for log in logs for file in log.files}

    def initialOffset(self) -> dict[str, int]:
        return {}

    def latestOffset(self) -> dict[str, int]:  # type: ignore[override]  # Spark 4.1's signature
        return {path: log.files[0].records for path, log in self._files().items()}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        files = self._files()
        return [
            TailPartition(
                path, files[path].to_json() if path in files else "", start.get(path, 0), last
            )
            for path, last in end.items()
            if last > start.get(path, 0)
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, TailPartition)
        records, damaged = 0, partition.last - partition.first
        if partition.log:
            reader = TailReader(Log.from_json(partition.log), partition.first, partition.last)
            partials = latency.Rows(reader)
            for chunk in reader.chunks():
                for columns in partials.add(chunk):
                    yield record_batch(SCHEMA, columns)
            for columns in partials.finish():
                yield record_batch(SCHEMA, columns)
            records, damaged = reader.records, reader.damaged
        yield record_batch(
            SCHEMA,
            {
                "file": [shown(partition.path)],
                "file_records": [records],
                "file_damaged": [damaged],
            },
        )


class TailSource(DataSource):
    """Option ``logs``: JSON list of files and directories."""

    @classmethod
    def name(cls) -> str:
        return "pynlog_live"

    def schema(self) -> StructType:
        return from_arrow_schema(SCHEMA)

    def streamReader(self, schema: StructType) -> TailStreamReader:
        return TailStreamReader(json.loads(self.options["logs"]))
