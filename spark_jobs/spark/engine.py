"""Logs read by Spark's tasks, and their partial results brought together in a shuffle.

Rows that cross from Python to the JVM one by one cost ten times what aggregating them costs, so
tasks hand over partial results, and add those of a key up in Python as well: a job is two stages.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import cache
from typing import Any, Self

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import Accumulator, TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from spark_jobs.engine.base import Reduced, Work, split
from spark_jobs.engine.partials import (
    JOB,
    Jobs,
    aggregated,
    aggregated_all,
    columns_of,
    deal,
    pieces,
    schema_of,
    schema_of_all,
)
from spark_jobs.engine.progress import Count, Place, Progress, uncounted
from spark_jobs.logs.model import Log, Survey

_OTHERS = pa.field("_others", pa.binary())
"""Rows without a key, as Arrow's bytes, beside the columns of the work."""


@cache
def leave_modules_alone() -> None:
    """Once in a worker of Spark's: from now on the garbage collector passes over what is there.

    PySpark collects after each task, and all modules that were imported take it 20 ms.
    """
    gc.collect()
    gc.freeze()


def _with_others(
    others: bytes | None, columns: Sequence[pa.Array[Any]], schema: pa.Schema
) -> pa.RecordBatch:
    rows = len(columns[0]) if columns else 1
    left = pa.array([others] * rows, _OTHERS.type)
    rest = columns or [pa.nulls(rows, field.type) for field in list(schema)[1:]]
    return pa.RecordBatch.from_arrays([left, *rest], schema=schema)


def _bytes_of(table: pa.Table) -> bytes:
    (batch,) = table.combine_chunks().to_batches()
    return bytes(batch.serialize().to_pybytes())


def _typed(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Spark names the elements of lists, and what may be null, in its own way."""
    columns = [batch[field.name].cast(field.type) for field in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _task() -> int:
    context = TaskContext.get()
    assert context is not None
    return int(context.partitionId())


def _counter(place: Place | None, number: int, told: Accumulator[int] | None) -> Count:
    """What a task counts with: in the driver's memory, or for when it is done."""
    if place is None or told is None:
        return uncounted
    return place.counter(number) or told.add


class _Watch:
    """Shows how far reading is, as long as this process waits for it."""

    def __init__(self, progress: Progress, told: Accumulator[int] | None) -> None:
        self._progress, self._told = progress, told

    def shown(self) -> AbstractContextManager[None]:
        """A context."""
        return self._progress.watched(lambda: 0 if self._told is None else self._told.value)


class _SparkFound:
    """A DataFrame of them, in so many partitions as are worth it."""

    def __init__(self, frame: DataFrame, schema: pa.Schema, partitions: int, watch: _Watch) -> None:
        self.schema = schema
        self.watch = watch
        self.frame = frame
        self.partitions = partitions

    def reduced(self, by: Sequence[str], work: Work, schema: pa.Schema) -> Reduced:
        given, told = self.schema, pa.schema([_OTHERS, *schema])

        def reduce(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            leave_modules_alone()
            rows, others = split((_typed(batch, given) for batch in batches), by[0], given)
            if others.num_rows:
                yield _with_others(_bytes_of(others), [], told)
            if rows.num_rows:
                for batch in work(rows, _task()):
                    yield _with_others(None, batch.columns, told)

        rows = self.frame.repartition(self.partitions, *by)
        with self.watch.shown():
            found = rows.mapInArrow(reduce, from_arrow_schema(told)).toArrow()
        others = pc.is_valid(found[_OTHERS.name])
        kept = [
            pa.ipc.read_record_batch(each, given)
            for each in found[_OTHERS.name].filter(others).to_pylist()
        ]
        table = found.filter(pc.invert(others)).drop_columns(_OTHERS.name).cast(schema)
        return Reduced(table, pa.Table.from_batches(kept, given))

    def __enter__(self) -> Self:
        self.frame.persist()
        return self

    def __exit__(self, *error: object) -> None:
        self.frame.unpersist()


class _SparkFoundByAll:
    """Rows of several jobs, kept as long as this context."""

    def __init__(self, found: _SparkFound) -> None:
        self._found = found

    def of(self, job: str) -> _SparkFound:
        frame = self._found.frame
        own = frame.where((frame[JOB] == job) | frame[JOB].isNull())
        columns = [frame[name].alias(told) for name, told in columns_of(job).items()]
        found = self._found
        return _SparkFound(own.select(*columns), schema_of(job), found.partitions, found.watch)

    def __enter__(self) -> Self:
        self._found.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._found.__exit__(*error)


class SparkEngine:
    """Reads with the tasks of that session."""

    def __init__(self, session: SparkSession) -> None:
        self._session = session

    def load(self, job: str, survey: Survey, **settings: Any) -> _SparkFound:
        """As of `Engine`."""

        def read(text: str, count: Count) -> Iterator[pa.RecordBatch]:
            return aggregated(text, job, settings, count)

        return self._read(job, read, schema_of(job), (job,), survey.logs)

    def load_all(self, jobs: Jobs, survey: Survey) -> _SparkFoundByAll:
        """As of `Engine`."""

        def read(text: str, count: Count) -> Iterator[pa.RecordBatch]:
            return aggregated_all(text, jobs, count)

        schema = schema_of_all(jobs)
        return _SparkFoundByAll(self._read("report", read, schema, tuple(jobs), survey.logs))

    def _read(
        self,
        what: str,
        read: Callable[[str, Count], Iterator[pa.RecordBatch]],
        schema: pa.Schema,
        jobs: Sequence[str],
        logs: Sequence[Log],
    ) -> _SparkFound:
        parallelism = self._session.sparkContext.defaultParallelism
        partitions = deal(pieces(jobs, logs, parallelism), parallelism)
        records = sum(file.records for log in logs for file in log.files)
        progress = Progress(what, records, len(partitions))
        place = progress.place(len(partitions))
        told = self._session.sparkContext.accumulator(0) if place is not None else None

        def read_all(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            leave_modules_alone()
            for batch in batches:
                for number in batch["id"].to_pylist():
                    count = _counter(place, number, told)
                    for text in partitions[number]:
                        yield from read(text, count)

        # A Python data source would start three processes, only to ask it for schema and
        # partitions.
        numbers = self._session.range(0, len(partitions), 1, len(partitions))
        frame = numbers.mapInArrow(read_all, from_arrow_schema(schema))
        return _SparkFound(frame, schema, len(partitions), _Watch(progress, told))
