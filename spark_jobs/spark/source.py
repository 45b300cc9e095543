"""Logs as a DataFrame: tasks in Python read them and aggregate in numpy as they go.

Rows that cross from Python to the JVM one by one cost ten times what the aggregation costs, so a
task emits partial results: each job has the class `Partials` that makes them. A partition is a few
whole logs, because order within a log matters and files are small. Beside the job's rows come rows
about the files themselves: those with ``file`` set.
"""

from __future__ import annotations

import gc
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from importlib import import_module
from typing import Any, Protocol

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.pandas.types import from_arrow_schema

from spark_jobs.logs.model import Chunk, Log, Survey
from spark_jobs.logs.quality import FileReport
from spark_jobs.logs.reader import LogReader

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


def batch(schema: pa.Schema, columns: Mapping[str, Any]) -> pa.RecordBatch:
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


def deal(logs: Sequence[Log], parallelism: int) -> list[list[str]]:
    """Partitions of whole logs, each log as JSON: the largest first, to the least loaded."""
    total = sum(log.size for log in logs)
    count = max(1, min(len(logs), max(parallelism, total // PARTITION_BYTES)))
    bins: list[list[str]] = [[] for _ in range(count)]
    load = [0] * count
    for log in sorted(logs, key=lambda log: -log.size):
        least = load.index(min(load))
        bins[least].append(log.to_json())
        load[least] += log.size + 1
    return bins


def _aggregated(text: str, job: str, settings: Mapping[str, Any]) -> Iterator[pa.RecordBatch]:
    """The job's batches of one log, and the one about its files."""
    schema, cls = _schema(job), _partials(job)
    reader = LogReader(Log.from_json(text), cls.FIELDS)
    partials = cls(reader, **settings)
    for chunk in reader.chunks():
        for columns in partials.add(chunk):
            yield batch(schema, columns)
    for columns in partials.finish():
        yield batch(schema, columns)
    yield batch(
        schema,
        {
            "file": [report.file for report in reader.reports],
            "file_records": [report.records for report in reader.reports],
            "file_damaged": [report.damaged for report in reader.reports],
            "file_problems": [json.dumps(report.problems) for report in reader.reports],
        },
    )


@cache
def leave_modules_alone() -> None:
    """Once in a worker of Spark's: from now on the garbage collector passes over what is there.

    PySpark collects after each task, and all modules that were imported take it 20 ms.
    """
    gc.collect()
    gc.freeze()


def load(session: SparkSession, job: str, survey: Survey, **settings: Any) -> DataFrame:
    """The partial results of `job` over the surveyed logs; `settings` go to its `Partials`."""
    partitions = deal(survey.logs, session.sparkContext.defaultParallelism)

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        leave_modules_alone()
        for batch in batches:
            for number in batch["id"].to_pylist():
                for text in partitions[number]:
                    yield from _aggregated(text, job, settings)

    # A Python data source would start three processes, only to ask it for schema and partitions.
    numbers = session.range(0, len(partitions), 1, len(partitions))
    return numbers.mapInArrow(read, from_arrow_schema(_schema(job)))


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
