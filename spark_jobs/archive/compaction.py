"""``ingest --compact``: small segments of an archive are put together, in packs.

A Parquet file costs some kilobytes and a millisecond however little is in it, and a segment has
three. A *pack* has the records of many segments in one file for each day, their channels in
another, and their rows in a third.

1. Segments are packed that are small, whole (their files can be read), and will not grow: sealed,
   or of a day before today. Those of a pack are of one host and have the same last day, so that
   ``prune`` removes packs whole.
2. Each segment's records are next to each other, in the order of the log and in one row group.
3. A pack is there, with its rows, and on the disk, before what it was made of is removed
   (`spark_jobs.archive.changes`, `spark_jobs.logs.stored`). Killed at any point, all segments are
   there; the next compaction removes what was left behind.
4. Packs that are small beside what there is to add are made into a larger one, so each record is
   written again a few times only. One with rows that no longer stand is made again at once, since
   SQL over ``events/`` sees these records.
5. Compactions may run at the same time, on several hosts. Then a segment may be in two packs, of
   which one stands, until the next compaction.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import quote
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet
from pyarrow import fs as arrow_fs

from spark_jobs.archive import changes
from spark_jobs.archive.row_group import WRITTEN, writer
from spark_jobs.errors import CannotRunError
from spark_jobs.logs import stored
from spark_jobs.logs.stored import ARCHIVED, CHANNELS, ROW_FILE, SEGMENT_SCHEMA, SEGMENTS, Row
from spark_jobs.places import filesystem

SMALL: Final = 1 << 15
"""Segments with fewer rows than that are packed."""
GROUP_ROWS: Final = 1 << 16
PACK_ROWS: Final = 1 << 20
"""A pack that has so many is not added to."""
_TEXTS: Final = ["channel", "engine", "boot_id", "log_id"]


class _UnreadableError(Exception):
    """A segment that is left as it is."""


def _today() -> str:
    return datetime.now(UTC).date().isoformat()


@dataclass
class _File:
    """A file of ``segments/``: one row, or those of a pack; `standing` are those that stand."""

    name: str
    rows: list[Row]
    standing: list[Row]

    @property
    def is_pack(self) -> bool:
        return self.rows[0]["firsts"] is not None

    @property
    def is_worn(self) -> bool:
        """Whether some of its rows do not stand any more."""
        return len(self.standing) < len(self.rows)

    @property
    def size(self) -> int:
        """Rows of events of those that stand."""
        return sum(sum(row["counts"] or ()) for row in self.standing)


def last_day(row: Mapping[str, Any], written: Mapping[str, str]) -> str:
    """The last day that the segment has records of; without any, that of its archiving."""
    days = [stored.day_of(events) for events in row["events"]]
    return max(days, default=row["day"] or written.get(row[ROW_FILE], ""))


def days_written(place: str) -> dict[str, str]:
    """The day on which each file of rows was written."""
    system, root = filesystem(place)
    entries = system.get_file_info(
        arrow_fs.FileSelector(f"{root}/{SEGMENTS}", allow_not_found=True)
    )
    return {
        entry.base_name: entry.mtime.astimezone(UTC).date().isoformat()
        for entry in entries
        if entry.mtime is not None
    }


def _files(place: str) -> list[_File]:
    rows, _ = stored.rows(place)
    best = stored.standing(rows)
    found: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        if row["status"] == ARCHIVED:
            found[row[ROW_FILE]].append(row)
    return [
        _File(name, own, [row for row in own if row is best[row["segment"]]])
        for name, own in sorted(found.items())
    ]


class _Source:
    """Reads segments of an archive; of packs, which come one after the other, a row group once."""

    def __init__(self, place: str) -> None:
        self._place = place
        self._system, self._root = filesystem(place)
        self._open: tuple[str, Any] = ("", None)
        self._group: tuple[int, Any] = (-1, None)

    def _opened(self, name: str) -> Any:
        if self._open[0] != name:
            self._open = ("", None)
            file = pyarrow.parquet.ParquetFile(
                self._system.open_input_file(f"{self._root}/{name}"),
                read_dictionary=_TEXTS,
                page_checksum_verification=True,
            )
            self._open, self._group = (name, file), (-1, None)
        return self._open[1]

    def _packed(self, name: str, first: int, count: int) -> pa.Table:
        file = self._opened(name)
        begin = 0
        for group in range(file.num_row_groups):
            end = begin + file.metadata.row_group(group).num_rows
            if first < end:
                if self._group[0] != group:
                    self._group = (group, file.read_row_group(group, use_threads=False))
                return self._group[1].slice(first - begin, count)
            begin = end
        raise _UnreadableError

    def tables(self, row: Row) -> tuple[str, list[pa.Table]]:
        """The channels as JSON, and the records in each of the row's files."""
        try:
            return self._tables(row)
        except Exception as error:  # Arrow raises nearly anything at what is damaged
            raise _UnreadableError from error

    def _tables(self, row: Row) -> tuple[str, list[pa.Table]]:
        if row["firsts"] is None:
            files = [self._opened(name) for name in row["events"]]
            said = [file.metadata.metadata[b"channels"].decode() for file in files]
            counts = row["counts"] or [file.metadata.num_rows for file in files]
            if max(counts, default=0) >= SMALL:
                raise _UnreadableError
            tables = [file.read(use_threads=False) for file in files]
        else:
            said, counts = [row["channels"]], row["counts"]
            tables = [
                self._packed(*part)
                for part in zip(row["events"], row["firsts"], counts, strict=True)
            ]
        if [table.num_rows for table in tables] != counts:
            raise _UnreadableError
        channels = said[0] if said else "[]"
        json.loads(channels)
        return channels, [table.select(WRITTEN.names) for table in tables]

    def named(self, row_file: str) -> pa.Table:
        """The channels that are named in the files of these rows."""
        try:
            return pyarrow.parquet.read_table(
                f"{self._root}/{CHANNELS}/{row_file}",
                filesystem=self._system,
                page_checksum_verification=True,
            )
        except Exception as error:
            raise _UnreadableError from error


class _Day:
    """A file of ``events/`` that is being written."""

    def __init__(self, system: Any, root: str) -> None:
        self._system = system
        self.path = changes.draft(root)
        self._sink = system.open_output_stream(self.path)
        self._writer: Any = None
        self._waiting: list[pa.Table] = []
        self._waits = 0
        self.rows = 0
        self.size = 0

    def add(self, table: pa.Table) -> int:
        """Returns the first of its rows."""
        if self._waits + table.num_rows > GROUP_ROWS:
            self._write()
        first = self.rows
        self._waiting.append(table)
        self._waits += table.num_rows
        self.rows += table.num_rows
        return first

    def _write(self) -> None:
        if not self._waiting:
            return
        table = pa.concat_tables(self._waiting).unify_dictionaries().combine_chunks().cast(WRITTEN)
        if self._writer is None:
            self._writer = writer(self._sink, table)
        self._writer.write_table(table, row_group_size=table.num_rows)
        self._waiting, self._waits = [], 0

    def discard(self) -> None:
        self._sink.close()
        changes.delete(self._system, self.path)

    def close(self) -> None:
        self._write()
        if self._writer is not None:
            self._writer.close()
        self._sink.close()
        self.size = self._system.get_file_info(self.path).size


@dataclass
class _Pack:
    """Segments that are being put together."""

    place: str
    host: str
    """As it is in the names of folders."""
    rows: list[Row] = field(default_factory=list)
    days: dict[str, _Day] = field(default_factory=dict)
    channels: list[pa.Table] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.name = f"{changes.writer()}.{uuid4().hex[:12]}"
        self._system, self._root = filesystem(self.place)

    @property
    def size(self) -> int:
        return sum(day.rows for day in self.days.values())

    def add(self, row: Row, channels: str, tables: Sequence[pa.Table], day: str) -> None:
        firsts, counts = [], []
        names = []
        for events, table in zip(row["events"], tables, strict=True):
            date = stored.day_of(events)
            if date not in self.days:
                self.days[date] = _Day(self._system, self._root)
            firsts.append(self.days[date].add(table))
            counts.append(table.num_rows)
            names.append(stored.events_name(date, self.host, self.name))
        own = {"events": names, "firsts": firsts, "counts": counts, "channels": channels}
        own["day"] = None if names else day
        self.rows.append({**row, **own})

    def discard(self) -> None:
        for day in self.days.values():
            day.discard()

    def close(self) -> bool:
        """Puts all of it in place, the rows last. False: another compaction has put it into a pack
        of its own already.
        """
        events = []
        for date, day in self.days.items():
            day.close()
            events.append(f"{self._root}/{stored.events_name(date, self.host, self.name)}")
            changes.put(self._system, day.path, events[-1])
        for row in self.rows:
            dates = map(stored.day_of, row["events"])
            shares = zip(dates, row["counts"], strict=True)
            row["bytes"] = sum(
                self.days[date].size * count // max(1, self.days[date].rows)
                for date, count in shares
            )
        names = [f"{folder}/{self.name}.parquet" for folder in (CHANNELS, SEGMENTS)]
        channels = pa.concat_tables(self.channels, promote_options="permissive")
        changes.put_table(self.place, names[0], channels)
        rows = pa.Table.from_pylist(self.rows, schema=SEGMENT_SCHEMA)
        changes.sync(self._system, [*events, f"{self._root}/{names[0]}"])
        changes.put_table(self.place, names[1], rows)
        changes.sync(self._system, [f"{self._root}/{names[1]}"])
        there = all(self._system.get_file_info(path).is_file for path in events)
        own = f"{self._root}/{names[1]}"
        if not self._system.get_file_info(own).is_file:
            return False
        if not there:  # swept before it had rows: as if this process was gone
            changes.delete(self._system, own)
            raise CannotRunError(
                f"{self.place}: a pack was swept while it was being written\n"
                "This process was stopped for a day, perhaps. Nothing is lost; run it again."
            )
        return True


def _is_final(row: Row, day: str) -> bool:
    return bool(row["sealed"]) or day < _today()


def _chosen(files: Sequence[_File]) -> list[_File]:
    """Which of the small segments and packs that may go together are to be packed."""
    singles = [file for file in files if not file.is_pack]
    packs = sorted((file for file in files if file.is_pack), key=lambda file: file.size)
    worn = [file for file in packs if file.is_worn]
    chosen = [*singles, *worn]
    size = sum(file.size for file in chosen)
    for pack in packs:
        if pack not in worn and chosen and pack.size < PACK_ROWS and pack.size <= 2 * size:
            chosen.append(pack)
            size += pack.size
    return chosen if worn or len(chosen) > 1 else []


def _host(row: Row) -> str:
    return quote(row["host"], safe=" ")


def _channels_of(source: _Source, file: _File, rows: Sequence[Row]) -> pa.Table:
    """The part of ``channels/`` that is about these rows of a file."""
    table = source.named(file.name)
    if len(rows) == len(file.rows):
        return table
    kept = pa.array([row["log_id"] for row in rows], pa.string())
    return table.filter(pc.is_in(table["log_id"], kept))


def _packed(
    place: str, host: str, day: str, files: Sequence[_File]
) -> Iterator[tuple[_Pack, list[_File]]]:
    """Packs, not yet in place, and the files that each takes the place of."""
    source = _Source(place)
    pack = _Pack(place, host)
    replaced: list[_File] = []
    for file in files:
        try:
            parts = [(row, *source.tables(row)) for row in file.standing]
            channels = _channels_of(source, file, file.standing)
        except _UnreadableError:
            continue
        for row, names, tables in parts:
            pack.add(row, names, tables, day)
        pack.channels.append(channels)
        replaced.append(file)
        if pack.size >= PACK_ROWS:
            yield pack, replaced
            pack, replaced = _Pack(place, host), []
    yield pack, replaced


def compact(place: str) -> dict[str, int]:
    """Packs the small segments of an archive: how many were ``packed``, and how many files that
    killed processes had left were ``swept``.
    """
    swept = changes.sweep(place)
    files = _files(place)
    dead = [file for file in files if not file.standing]
    changes.remove(place, [row for file in dead for row in file.rows])
    written = days_written(place)
    by_day: dict[tuple[str, str], list[_File]] = defaultdict(list)
    for file in files:
        if not file.standing:
            continue
        row = file.standing[0]
        day = last_day(row, written)
        if file.is_pack or (_is_final(row, day) and file.size < SMALL):
            by_day[_host(row), day].append(file)
    packed = 0
    for (host, day), own in sorted(by_day.items()):
        for pack, replaced in _packed(place, host, day, _chosen(own)):
            if len(replaced) < 2 and not any(file.is_worn for file in replaced):
                pack.discard()
                continue
            if pack.close():
                changes.remove(place, [row for file in replaced for row in file.rows])
            packed += sum(len(file.standing) for file in replaced)
    return {"packed": packed, "swept": swept}
