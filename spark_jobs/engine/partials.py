"""Partial results: a task reads whole logs, and aggregates in numpy as it goes.

Each job has the class `Partials` that makes them. A partition is a few whole logs, because order
within a log matters to some jobs, and files are small. To others it does not, or they put it
together afterwards: theirs are a few files, so that one process that logged more than all others
together does not hold the others up, and two use all processors. Beside the job's rows come rows
about the files themselves: those with ``file`` set.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from spark_jobs.engine.progress import Count, uncounted
from spark_jobs.logs.model import Chunk, Log, LogFile, Survey
from spark_jobs.logs.quality import FileReport
from spark_jobs.logs.reader import LogReader
from spark_jobs.logs.schema import RECORD_BYTES

PARTITION_BYTES = 192 << 20

FILE_COLUMNS = (
    pa.field("file", pa.string()),
    pa.field("file_records", pa.int64()),
    pa.field("file_damaged", pa.int64()),
    pa.field("file_problems", pa.string()),
)


class Partials(Protocol):
    """What a job computes of one log.

    `COLUMNS` are those of the batches it yields, `FIELDS` those that it needs of a record; with
    `PEERS`, which may be left out, ``peer`` among them for itself, not only to compare clocks. With
    `BY_FILE`, which may be left out, files of a log may be given to one of their own.
    Further arguments of the constructor are the settings of `load`.
    """

    COLUMNS: Sequence[pa.Field[Any]]
    FIELDS: Sequence[str]

    def __init__(self, reader: LogReader) -> None: ...

    def add(self, chunk: Chunk) -> Iterator[Mapping[str, Any]]: ...

    def finish(self) -> Iterator[Mapping[str, Any]]: ...


def _partials(job: str) -> type[Partials]:
    cls: type[Partials] = import_module(f"spark_jobs.jobs.{job}").Partials
    return cls


def schema_of(job: str) -> pa.Schema:
    """The schema of the job's batches."""
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


_PIECES = 3
"""For each process that reads: then a large one that comes last keeps none waiting for long. Each
has rows of its own, and Spark spends on a row what reading a few hundred records takes."""


def _by_files(log: Log, most: int) -> Iterator[Log]:
    """Neighbouring files of it, of `most` bytes if there are several, as logs; what is missing is
    told with the last ones.
    """
    runs: list[list[LogFile]] = []
    room = 0
    for file in log.files:
        size = file.records * RECORD_BYTES
        if not runs or size > room:
            runs.append([])
            room = most
        runs[-1].append(file)
        room -= size
    if log.in_order or len(runs) == 1:
        yield log
        return
    for run in runs[:-1]:
        yield replace(log, files=tuple(run), incomplete="", is_piece=True)
    yield replace(log, files=tuple(runs[-1]), is_piece=True)


def pieces(jobs: Iterable[str], logs: Sequence[Log], parallelism: int) -> list[Log]:
    """What may be read by itself: logs, or, if all of these jobs can, files of those that are large
    for so many processes.
    """
    if not all(getattr(_partials(job), "BY_FILE", False) for job in jobs):
        return list(logs)
    most = sum(log.size for log in logs) // (_PIECES * parallelism)
    return [piece for log in logs for piece in _by_files(log, most)]


_NEIGHBOURS = 1 << 16


def _together(log: Log) -> tuple[str, int]:
    """Logs that are neighbours in a file of an archive, which is read once for all of them."""
    if len(log.files) == 1 and log.files[0].events and log.files[0].events[0].is_shared:
        piece = log.files[0].events[0]
        return piece.place, piece.first // _NEIGHBOURS
    return log.log_id, log.files[0].part


def _first(log: Log) -> int:
    return log.files[0].events[0].first if log.files[0].events else 0


def deal(logs: Sequence[Log], parallelism: int, most: int = sys.maxsize) -> list[list[str]]:
    """Partitions of what may be read by itself, as JSON: the largest first, to the least loaded."""
    total = sum(log.size for log in logs)
    count = max(1, min(len(logs), most, max(parallelism, total // PARTITION_BYTES)))
    groups: dict[tuple[str, int], list[Log]] = {}
    for log in logs:
        groups.setdefault(_together(log), []).append(log)
    bins: list[list[str]] = [[] for _ in range(count)]
    load = [0] * count
    sizes = {key: sum(log.size for log in group) for key, group in groups.items()}
    for key in sorted(groups, key=lambda key: -sizes[key]):
        least = load.index(min(load))
        bins[least] += [log.to_json() for log in sorted(groups[key], key=_first)]
        load[least] += sizes[key] + len(groups[key])
    return list(filter(None, bins)) or [[]]


def _of_files(reports: Sequence[FileReport]) -> dict[str, Any]:
    return {
        "file": [report.file for report in reports],
        "file_records": [report.records for report in reports],
        "file_damaged": [report.damaged for report in reports],
        "file_problems": [json.dumps(report.problems) for report in reports],
    }


def aggregated(
    text: str, job: str, settings: Mapping[str, Any], count: Count = uncounted
) -> Iterator[pa.RecordBatch]:
    """The job's batches of one log (as JSON), and the one about its files. `count` is told of the
    records that were read, or passed over.
    """
    schema, cls = schema_of(job), _partials(job)
    reader = LogReader(Log.from_json(text), cls.FIELDS, peers=getattr(cls, "PEERS", False))
    partials = cls(reader, **settings)
    for chunk in reader.counted(count):
        for columns in partials.add(chunk):
            yield batch(schema, columns)
    for columns in partials.finish():
        yield batch(schema, columns)
    yield batch(schema, _of_files(reader.reports))


Jobs = Mapping[str, Mapping[str, Any]]
"""Jobs and their settings, for several in one pass."""
JOB = "job"


def _name(job: str, column: str) -> str:
    return f"{job}__{column}"


def schema_of_all(jobs: Jobs) -> pa.Schema:
    """The schema of batches of several jobs: each row is of one of them, or about a file."""
    own = [
        field.with_name(_name(job, field.name)) for job in jobs for field in _partials(job).COLUMNS
    ]
    return pa.schema([pa.field(JOB, pa.string()), *own, *FILE_COLUMNS])


def columns_of(job: str) -> dict[str, str]:
    """The columns of one of them in a schema of several, and what it calls them."""
    return {_name(job, field.name): field.name for field in _partials(job).COLUMNS} | {
        field.name: field.name for field in FILE_COLUMNS
    }


def aggregated_all(text: str, jobs: Jobs, count: Count = uncounted) -> Iterator[pa.RecordBatch]:
    """As `aggregated`, for all of these jobs, which see each chunk one after the other."""
    schema, classes = schema_of_all(jobs), {job: _partials(job) for job in jobs}
    fields = sorted({field for cls in classes.values() for field in cls.FIELDS})
    peers = any(getattr(cls, "PEERS", False) for cls in classes.values())
    reader = LogReader(Log.from_json(text), fields, peers=peers)
    partials = {job: classes[job](reader, **settings) for job, settings in jobs.items()}

    def rows(job: str, columns: Mapping[str, Any]) -> pa.RecordBatch:
        own = {_name(job, name): value for name, value in columns.items()}
        return batch(schema, {JOB: job, **own})

    for chunk in reader.counted(count):
        for job, each in partials.items():
            for columns in each.add(chunk):
                yield rows(job, columns)
    for job, each in partials.items():
        for columns in each.finish():
            yield rows(job, columns)
    yield batch(schema, _of_files(reader.reports))


def reports_of(others: pa.Table, survey: Survey) -> list[FileReport]:
    """One report on each file, readable or not, by name; of `others` those with ``file``."""
    files = others.filter(pc.is_valid(others["file"]))
    rows = files.select([field.name for field in FILE_COLUMNS]).to_pylist()
    reports = [
        FileReport(
            row["file"], row["file_records"], row["file_damaged"], json.loads(row["file_problems"])
        )
        for row in rows
    ]
    return sorted([*reports, *survey.unreadable], key=lambda report: report.file)
