"""The PySpark data source ``pynlog``: reads logs and aggregates them in numpy, inside the reader.

Rows that cross from Python to the JVM one by one cost ten times what the aggregation costs, so a
reader emits partial results: the job named by option ``job`` has the class `Partials` that makes
them. A partition is a few whole logs, because order within a log matters and files are small.
Beside the job's rows come rows about the files themselves: those with ``file`` set.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Protocol

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from spark_jobs.logs import Chunk, Log, LogReader, Survey
from spark_jobs.quality import FileReport

PARTITION_BYTES = 192 << 20

FILE_COLUMNS = (
    pa.field("file", pa.string()),
    pa.field("file_records", pa.int64()),
    pa.field("file_damaged", pa.int64()),
    pa.field("file_problems", pa.string()),
)


class Partials(Protocol):
    """What a job computes of one log.

    `COLUMNS` are those of the batches it yields, `FIELDS` those that it needs of a record. Further
    arguments of the constructor are the settings of `load`.
    """

    COLUMNS: Sequence[pa.Field[Any]]
    FIELDS: Sequence[str]

    def __init__(self, reader: LogReader) -> None: ...

    def add(self, chunk: Chunk) -> Iterator[Mapping[str, Any]]: ...

    def finish(self) -> Iterator[Mapping[str, Any]]: ...


def _partials(job: str) -> type[Partials]:
    cls: type[Partials] = import_module(f"spark_jobs.jobs.{job}").Partials
    return cls


def _schema(job: str) -> pa.Schema:
    return pa.schema([*_partials(job).COLUMNS, *FILE_COLUMNS])


def _batch(schema: pa.Schema, columns: Mapping[str, Any]) -> pa.RecordBatch:
    """Columns as a batch; what is not named is null, a single string or number is repeated."""
    rows = max(len(c) for c in columns.values() if not isinstance(c, str | int))
    arrays = []
    for field in schema:
        value = columns.get(field.name)
        if value is None:
            arrays.append(pa.nulls(rows, field.type))
        elif isinstance(value, str | int):
            arrays.append(pa.repeat(pa.scalar(value, field.type), rows))
        elif isinstance(value, pa.Array):
            arrays.append(value.cast(field.type))
        else:
            arrays.append(pa.array(value, type=field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


@dataclass
class LogsPartition(InputPartition):
    """Some whole logs, as JSON."""

    logs: tuple[str, ...]


class PynlogReader(DataSourceReader):
    """Deals the logs out and aggregates those of a partition."""

    def __init__(
        self, job: str, logs: list[str], parallelism: int, settings: Mapping[str, Any]
    ) -> None:
        self.job = job
        self.logs = logs
        self.parallelism = parallelism
        self.settings = settings

    def partitions(self) -> Sequence[InputPartition]:
        """Largest log first to the least loaded partition."""
        logs = sorted(map(Log.from_json, self.logs), key=lambda log: -log.size)
        total = sum(log.size for log in logs)
        count = max(1, min(len(logs), max(self.parallelism, total // PARTITION_BYTES)))
        bins: list[list[str]] = [[] for _ in range(count)]
        load = [0] * count
        for log in logs:
            least = load.index(min(load))
            bins[least].append(log.to_json())
            load[least] += log.size + 1
        return [LogsPartition(tuple(members)) for members in bins]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, LogsPartition)
        schema = _schema(self.job)
        cls = _partials(self.job)
        for text in partition.logs:
            reader = LogReader(Log.from_json(text), cls.FIELDS)
            partials = cls(reader, **self.settings)
            for chunk in reader.chunks():
                for columns in partials.add(chunk):
                    yield _batch(schema, columns)
            for columns in partials.finish():
                yield _batch(schema, columns)
            yield _batch(
                schema,
                {
                    "file": [report.file for report in reader.reports],
                    "file_records": [report.records for report in reader.reports],
                    "file_damaged": [report.damaged for report in reader.reports],
                    "file_problems": [json.dumps(report.problems) for report in reader.reports],
                },
            )


class PynlogSource(DataSource):
    """Options: ``job``, ``logs`` (JSON list of `Log.to_json`), ``parallelism``, ``settings``."""

    @classmethod
    def name(cls) -> str:
        return "pynlog"

    def schema(self) -> StructType:
        return from_arrow_schema(_schema(self.options["job"]))

    def reader(self, schema: StructType) -> PynlogReader:
        return PynlogReader(
            self.options["job"],
            json.loads(self.options["logs"]),
            int(self.options["parallelism"]),
            json.loads(self.options["settings"]),
        )


def load(session: SparkSession, job: str, survey: Survey, **settings: Any) -> DataFrame:
    """The partial results of `job` over the surveyed logs; `settings` go to its `Partials`."""
    session.dataSource.register(PynlogSource)
    return (
        session.read.format("pynlog")
        .option("job", job)
        .option("logs", json.dumps([log.to_json() for log in survey.logs]))
        .option("parallelism", str(session.sparkContext.defaultParallelism))
        .option("settings", json.dumps(settings))
        .load()
    )


def reports_of(rows: Iterable[Mapping[str, Any]], survey: Survey) -> list[FileReport]:
    """One report on each file, readable or not, by name; `rows` are those with ``file``."""
    reports = [
        FileReport(
            row["file"], row["file_records"], row["file_damaged"], json.loads(row["file_problems"])
        )
        for row in rows
    ]
    return sorted([*reports, *survey.unreadable], key=lambda report: report.file)


def file_reports(partials: DataFrame, survey: Survey) -> list[FileReport]:
    """`reports_of` the rows in `partials`."""
    names = [field.name for field in FILE_COLUMNS]
    rows = partials.where(sf.col("file").isNotNull()).select(*names)
    return reports_of((row.asDict() for row in rows.collect()), survey)
