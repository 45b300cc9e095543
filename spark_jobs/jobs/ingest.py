"""Archives raw logs as Parquet, so that they can be removed where they were written.

1. A segment is archived under a name of its own and of how much of it there is, which every copy
   shares: whatever is run twice, retried or given twice is there once.
2. A segment that has grown since is archived again, and what was there before is removed; one that
   has shrunk is not.
3. A file that cannot be read as a log is quarantined: copied whole, its reason in ``segments/``.
   Of a file that is damaged in part the whole records are archived, and it is copied as well.
4. Records keep the order of the log, because order is part of what they tell.
5. What ``prune`` has removed does not come back: a segment all of whose records are of before its
   day is read, and left out.

The readers write the files, in numpy and Arrow: a record that crossed into the JVM and back would
cost more than all the rest.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from types import MappingProxyType
from typing import Any
from urllib.parse import quote

import numpy as np
import pyarrow as pa
import pyarrow.parquet

from spark_jobs.archive import changes, compaction, layout
from spark_jobs.archive.row_group import RowGroup, writer
from spark_jobs.directory import Directory
from spark_jobs.engine.base import Engine, summed
from spark_jobs.engine.partials import reports_of
from spark_jobs.errors import CannotRunError
from spark_jobs.logs import stored
from spark_jobs.logs.find import group
from spark_jobs.logs.model import Chunk, Log, Segment, Survey
from spark_jobs.logs.quality import FileReport
from spark_jobs.logs.reader import LogReader
from spark_jobs.logs.schema import FIELD_NAMES, Kind
from spark_jobs.logs.stored import ARCHIVED, QUARANTINED, SEGMENT_SCHEMA, Row
from spark_jobs.places import filesystem, is_local, local_path
from spark_jobs.result import JobResult

PRUNED = "pruned"
_KINDS = len(Kind) + 1
_DAY_NS = 86_400 * 10**9
_NO_EDITIONS: Mapping[str, int] = MappingProxyType({})


class _EventFiles:
    """The event files of one segment: one per day, which is nearly always one."""

    def __init__(self, reader: LogReader, root: str, name: str) -> None:
        self._reader = reader
        self._system, self._root = filesystem(root)
        self._groups: dict[int, RowGroup] = {}
        self._writers: dict[int, tuple[str, Any, Any]] = {}
        self._counts: dict[int, int] = {}
        self._today = np.iinfo(np.int64).min
        self._name = name

    def add(self, chunk: Chunk) -> None:
        if len(chunk.records) == 0:
            return
        ts = chunk.signed("ts")
        first, last = ((int(end) + chunk.clock_ns) // _DAY_NS for end in (ts.min(), ts.max()))
        if first == last >= self._today:
            self._today = last
            self._put(last, chunk)
            return
        days = (ts + chunk.clock_ns) // _DAY_NS
        # A straggler stays with the day of those before it: the order of the log matters more.
        days = np.maximum.accumulate(np.maximum(days, self._today))
        self._today = int(days[-1])
        for day in np.unique(days):
            which = days == day
            self._put(int(day), Chunk(chunk.records[which], chunk.channel[which], chunk.clock_ns))

    def _put(self, day: int, chunk: Chunk) -> None:
        if day not in self._groups:
            self._groups[day] = RowGroup(self._reader.log)
        group = self._groups[day]
        if not group.fits(len(chunk.records)):
            self._write(day)
        group.add(chunk)

    def _write(self, day: int) -> None:
        group = self._groups[day]
        table = group.table(self._reader.channels)
        if day not in self._writers:
            path = changes.draft(self._root)
            sink = self._system.open_output_stream(path)
            self._writers[day] = path, sink, writer(sink, table)
        self._writers[day][2].write_table(table, row_group_size=group.rows)
        self._counts[day] = self._counts.get(day, 0) + group.rows
        group.clear()

    def close(self, pruned_before: str) -> tuple[list[str], list[int], int] | None:
        """Puts the files in place; returns their names in the archive, how many rows each has, and
        their size. None, and nothing is put there: all is of before that day.
        """
        for day, rows in self._groups.items():
            self._write(day)
            rows.close()
        if self._writers and str(np.datetime64(max(self._writers), "D")) < pruned_before:
            self._discard()
            return None
        names, size = [], 0
        host = quote(self._reader.log.host, safe=" ")
        channels = json.dumps(self._reader.channels)
        for day, (path, sink, file) in sorted(self._writers.items()):
            file.add_key_value_metadata({"channels": channels})
            file.close()
            sink.close()
            names.append(stored.events_name(str(np.datetime64(day, "D")), host, self._name))
            size += self._system.get_file_info(path).size
            changes.put(self._system, path, f"{self._root}/{names[-1]}")
        return names, [self._counts[day] for day in sorted(self._writers)], size

    def _discard(self) -> None:
        for path, sink, file in self._writers.values():
            file.close()
            sink.close()
            self._system.delete_file(path)


def _put_segment(root: str, row: Mapping[str, Any], name: str) -> None:
    table = pa.Table.from_pylist([row], schema=SEGMENT_SCHEMA)
    changes.put_table(root, f"{stored.SEGMENTS}/{name}.parquet", table)


class Partials:
    """Archives one segment, and yields one row about it."""

    COLUMNS = (
        pa.field("segment", pa.string()),
        pa.field("status", pa.string()),
        pa.field("bytes", pa.int64()),
    )
    FIELDS = FIELD_NAMES
    _COUNTS = ("records", "sends", "receives")

    def __init__(
        self,
        reader: LogReader,
        root: str,
        pruned_before: str = "",
        editions: Mapping[str, int] = _NO_EDITIONS,
    ) -> None:
        """`editions`: of segments that ``--overwrite`` archives again."""
        log = reader.log
        file = log.files[0]
        self._reader = reader
        self._root = root
        self._pruned_before = pruned_before
        self._segment = f"{log.log_id}-{file.part:05}"
        self._edition = editions.get(self._segment, 0)
        extent = file.committed, file.records, log.closed or log.rotated, log.dropped
        self._name = stored.state_name(self._segment, extent, self._edition)
        self._files = _EventFiles(reader, root, self._name)
        self._counts = np.zeros((len(self._COUNTS), 0), dtype=np.int64)

    def add(self, chunk: Chunk) -> Iterator[Mapping[str, Any]]:
        self._files.add(chunk)
        short = len(self._reader.channels) - self._counts.shape[1]
        if short:
            self._counts = np.pad(self._counts, ((0, 0), (0, short)))
        code = (chunk.channel + 1) * _KINDS
        code += chunk.records["kind"]
        counts = np.bincount(code, minlength=_KINDS * (self._counts.shape[1] + 1))
        by_kind = counts.reshape(-1, _KINDS)[1:]
        self._counts += [by_kind.sum(axis=1), by_kind[:, Kind.SEND], by_kind[:, Kind.RECV]]
        yield from ()

    def _put_channels(self) -> None:
        log = self._reader.log
        count = len(self._reader.channels)
        constants = {"engine": log.engine, "host": log.host, "boot_id": log.boot_id}
        table = pa.table(
            {name: pa.repeat(pa.scalar(value), count) for name, value in constants.items()}
            | {
                "log_id": pa.repeat(pa.scalar(log.log_id), count),
                "pid": pa.repeat(pa.scalar(log.pid, pa.int64()), count),
                "database": pa.array([number for number, _ in self._reader.channels], pa.int64()),
                "channel": pa.array([name for _, name in self._reader.channels], pa.string()),
            }
            | dict(zip(self._COUNTS, map(pa.array, self._counts), strict=True))
        )
        changes.put_table(self._root, f"{stored.CHANNELS}/{self._name}.parquet", table)

    def finish(self) -> Iterator[Mapping[str, Any]]:
        found = self._files.close(self._pruned_before)
        if found is None:
            yield {"segment": [self._segment], "status": PRUNED}
            return
        events, counts, size = found
        self._put_channels()
        log = self._reader.log
        file, report = log.files[0], self._reader.reports[0]
        if report.damaged:
            _copy(self._root, report.file, self._segment)
        names = ("log_id", "engine", "host", "boot_id", "pid", "starttime", "backend_id")
        row = {name: getattr(log, name) for name in names}
        row |= {
            "sealed": log.closed or log.rotated,
            "rotated": log.rotated,
            "time_namespace": log.time_namespace,
            "dropped": log.dropped,
            "segment": self._segment,
            "status": ARCHIVED,
            "file": file.path,
            "part": file.part,
            "committed": file.committed,
            "readable": file.records,
            "records": report.records,
            "damaged": report.damaged,
            "problems": json.dumps(report.problems),
            "clock_ns": file.clock_ns,
            "events": events,
            "counts": counts,
            "bytes": size,
            "edition": self._edition,
        }
        _put_segment(self._root, row, self._name)
        yield {"segment": [self._segment], "status": ARCHIVED, "bytes": size}


def _copy(root: str, path: str, name: str) -> None:
    system, base = filesystem(root)
    system.create_dir(f"{base}/{stored.QUARANTINE}", recursive=True)
    target = f"{base}/{stored.QUARANTINE}/{name}.pynlog"
    with open(path, "rb") as source, system.open_output_stream(target) as sink:
        shutil.copyfileobj(source, sink, 1 << 20)


def _nickname(path: str) -> str:
    """Names a file that cannot say which segment it is."""
    return f"unreadable-{sha256(str(Path(path).absolute()).encode()).hexdigest()[:16]}"


def _quarantine(root: str, report: FileReport) -> dict[str, Any]:
    name = _nickname(report.file)
    if Path(report.file).exists():
        try:
            _copy(root, report.file, name)
        except OSError as error:
            report.problems.append(f"not copied: {error.strerror}")
    row = {
        "segment": name,
        "status": QUARANTINED,
        "file": report.file,
        "records": 0,
        "damaged": report.damaged,
        "problems": json.dumps(report.problems),
        "events": [],
        "bytes": 0,
    }
    _put_segment(root, row, name)
    return {"segment": name, "status": QUARANTINED, "file": report.file, "records": 0, "bytes": 0}


def _release(root: str, path: str) -> None:
    """A file that could not be read earlier can be now: an empty one may have been just made."""
    system, base = filesystem(root)
    name = _nickname(path)
    for old in (f"{stored.SEGMENTS}/{name}.parquet", f"{stored.QUARANTINE}/{name}.pynlog"):
        changes.delete(system, f"{base}/{old}")


def _extent(segment: Segment) -> tuple[int, int, bool, int]:
    return segment.file.committed, segment.file.records, segment.sealed, segment.dropped


def _distinct(segments: list[Segment]) -> dict[str, Segment]:
    """Each once, by name: the copy with the most in it."""
    found: dict[str, Segment] = {}
    for segment in segments:
        other = found.get(segment.name)
        if other is None or _extent(segment) > _extent(other):
            found[segment.name] = segment
    return found


def _fresh(
    segments: Mapping[str, Segment], known: Mapping[str, Row], overwrite: bool
) -> list[Segment]:
    """Segments that the archive does not have, or not all of; to `overwrite` also what it has."""

    def wanted(segment: Segment) -> bool:
        there, here = stored.extent(known[segment.name]), _extent(segment)
        return here > there or (overwrite and here == there)

    return [each for name, each in segments.items() if name not in known or wanted(each)]


def _alone(segment: Segment) -> Log:
    """That segment as a log of its own; what the log lacks is found when the archive is read."""
    return replace(group([segment]).logs[0], incomplete="")


def _totals(rows: list[dict[str, Any]], unchanged: int) -> dict[str, Any]:
    new = [row for row in rows if row["status"] == ARCHIVED]
    records, size = (sum(row[name] for row in new) for name in ("records", "bytes"))
    return {
        "archived": len(new),
        "unchanged": unchanged,
        "quarantined": len(rows) - len(new),
        "bytes": size,
        "bytes_per_record": size / records if records else None,
    }


def _is_below(path: str, directory: Path) -> bool:
    return Path(path).absolute().is_relative_to(directory.absolute())


def _editions(segments: list[Segment], known: Mapping[str, Row]) -> dict[str, int]:
    """Editions of segments that are in the archive: one more than there for the same state."""
    editions = {}
    for segment in segments:
        if segment.name in known:
            row = known[segment.name]
            editions[segment.name] = (row["edition"] or 0) + (
                _extent(segment) <= stored.extent(row)
            )
    return {name: edition for name, edition in editions.items() if edition}


def _remove_earlier(root: str, segments: list[Segment]) -> None:
    """Earlier states of segments that were archived just now."""
    names = {segment.name for segment in segments}
    rows, _ = stored.rows(root)
    best = stored.standing(rows)
    earlier = [row for row in rows if row["segment"] in names and row is not best[row["segment"]]]
    changes.remove(root, [row for row in earlier if row["firsts"] is None])


def run(
    engine: Engine,
    survey: Survey,
    out: Directory,
    *,
    overwrite: bool = False,
    compact: bool = False,
) -> JobResult:
    """Rows: segment, status, file, records, bytes; for what this run has put into `out`.

    `compact`: then puts small segments of the archive together. Raises CannotRunError when `out`
    holds the logs, or what is given is an archive.
    """
    root = str(out)
    for segment in survey.segments:
        if segment.file.archived:
            raise CannotRunError(f"{segment.file.path} was given as part of an archive already")
        if is_local(root) and _is_below(segment.file.path, local_path(root)):
            raise CannotRunError(f"{out} holds the logs; an archive needs a directory of its own")
    system, base = filesystem(root)
    names = (stored.EVENTS, stored.CHANNELS, stored.SEGMENTS, stored.STAGING)
    for name in names:
        system.create_dir(f"{base}/{name}", recursive=True)
    known = {row["segment"]: row for row in layout.segment_rows(root)[0]}
    known = {name: row for name, row in known.items() if row["status"] == ARCHIVED}
    segments = _distinct(survey.segments)
    fresh = _fresh(segments, known, overwrite)
    before = layout.pruned_before(root)
    found = Survey([*map(_alone, fresh)])
    settings = {"root": root, "pruned_before": before, "editions": _editions(fresh, known)}
    partials = engine.load("ingest", found, **settings)
    done, others = summed(partials, ("segment",), lambda rows: rows)
    put = {row["segment"]: row for row in done.to_pylist()}
    reports = reports_of(others, survey)
    by_file = {report.file: report for report in reports}
    rows = []
    for segment in fresh:
        _release(root, segment.file.path)
        file, own = segment.file.path, put[segment.name]
        if own["status"] == PRUNED:
            continue
        records = by_file[file].records
        rows.append(
            {
                "segment": segment.name,
                "status": own["status"],
                "file": file,
                "records": records,
                "bytes": own["bytes"],
            }
        )
    again = [segment for segment in fresh if segment.name in known]
    if again:
        _remove_earlier(root, again)
    pruned = len(fresh) - len(rows)
    rows += [_quarantine(root, report) for report in survey.unreadable]
    totals = _totals(rows, len(segments) - len(fresh)) | {"pruned": pruned}
    if compact:
        totals |= compaction.compact(root)
    return JobResult(rows, reports, totals=totals)
