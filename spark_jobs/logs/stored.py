"""What an archive says of its segments: the rows of ``segments/``, and which of them stands.

1. A file of ``segments/`` has the row of one segment, or those of a *pack*, which is a few small
   segments kept in common files. A row is immutable, and so are the files that it names: another
   state of a segment has files of other names.
2. A segment may have several rows: one that has grown, or that was packed just now. The one that
   is the best by `rank` stands. That is a total order, so that programs which remove what does not
   stand, at the same time and in any order, never remove all rows of a segment.
3. What takes the place of others is there, with its row, before anything of these is removed; and
   in between `announce` replaces the token in ``changes.json``. If the token is the same before and
   after the rows were listed, what was removed meanwhile had its successor in the list: a listing
   of a directory that changes may miss both, one that is gone and one that just came.
4. A reader whose file is gone looks once more where the segment is (`where_now`). So compaction
   waits for no reader.
"""

from __future__ import annotations

import json
import os
import re
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final
from uuid import uuid4

import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet
from pyarrow import fs as arrow_fs

from spark_jobs.logs.quality import FileReport
from spark_jobs.places import filesystem, inside

EVENTS, CHANNELS, SEGMENTS, QUARANTINE = "events", "channels", "segments", "quarantine"
STAGING: Final = "_staging"
"""Spark and Arrow ignore what begins with an underscore."""
CHANGES: Final = "changes.json"
ARCHIVED, QUARANTINED = "archived", "quarantined"

SEGMENT_SCHEMA: Final = pa.schema(
    [
        pa.field("segment", pa.string()),
        pa.field("status", pa.string()),
        pa.field("file", pa.string()),
        pa.field("log_id", pa.string()),
        pa.field("part", pa.int32()),
        pa.field("engine", pa.string()),
        pa.field("host", pa.string()),
        pa.field("boot_id", pa.string()),
        pa.field("pid", pa.int64()),
        pa.field("starttime", pa.int64()),
        pa.field("backend_id", pa.int64()),
        pa.field("sealed", pa.bool_()),
        pa.field("dropped", pa.int64()),
        pa.field("committed", pa.int64()),
        pa.field("readable", pa.int64()),
        pa.field("records", pa.int64()),
        pa.field("damaged", pa.int64()),
        pa.field("problems", pa.string()),
        pa.field("clock_ns", pa.int64()),
        pa.field("events", pa.list_(pa.string())),
        pa.field("bytes", pa.int64()),
        # Null in archives of before.
        pa.field("rotated", pa.bool_()),
        pa.field("time_namespace", pa.int64()),
        pa.field("edition", pa.int64()),
        # How many rows the segment has in each of `events`.
        pa.field("counts", pa.list_(pa.int64())),
        # Of a pack only: the first of these rows, the channels (JSON), and, of a segment that has
        # no records, the day on which it was archived.
        pa.field("firsts", pa.list_(pa.int64())),
        pa.field("channels", pa.string()),
        pa.field("day", pa.string()),
    ]
)
ROW_FILE: Final = "row_file"
"""Beside these, in what `rows` returns: the name of the file of ``segments/``."""

Row = dict[str, Any]


@dataclass(frozen=True)
class Piece:
    """Records of a segment in a file of ``events/``: its rows from `first` on.

    `count`: None: to its end. `channels`: names, as JSON; None: the file says.
    """

    place: str
    first: int = 0
    count: int | None = None
    channels: str | None = None

    @property
    def is_shared(self) -> bool:
        """Whether other segments are in the file too."""
        return self.channels is not None


def extent(row: Mapping[str, Any]) -> Extent:
    """How much of its segment that row is about."""
    return row["committed"], row["readable"], row["sealed"], row["dropped"]


Extent = tuple[int, int, bool, int]
_STATE: Final = re.compile(r"(.+)\.(\d+)-(\d+)-([01])-(\d+)-(\d+)\.parquet")


def state_name(segment: str, of_segment: Extent, edition: int) -> str:
    """What the names of the files of that state of a segment begin with."""
    return ".".join((segment, "-".join(str(int(each)) for each in (*of_segment, edition))))


def state_of(name: str) -> tuple[str, Extent, int] | None:
    """The segment, extent and edition of a file of that name; None if it does not tell."""
    told = _STATE.fullmatch(name)
    if told is None:
        return None
    committed, readable, sealed, dropped, edition = map(int, told.groups()[1:])
    return told[1], (committed, readable, bool(sealed), dropped), edition


def rank(row: Mapping[str, Any]) -> tuple[Any, ...]:
    """The highest of one segment's rows stands: that of the most of it, then of the latest
    ``ingest --overwrite``, then a pack's.
    """
    return *version(row), row["firsts"] is not None, row[ROW_FILE]


def version(row: Mapping[str, Any]) -> tuple[Extent | tuple[()], int]:
    """`extent` and edition."""
    return extent(row) if row["status"] == ARCHIVED else (), row["edition"] or 0


def standing(found: Iterable[Row]) -> dict[str, Row]:
    """The row of each segment that stands."""
    best: dict[str, Row] = {}
    for row in found:
        other = best.get(row["segment"])
        if other is None or rank(row) > rank(other):
            best[row["segment"]] = row
    return best


def _token(system: Any, root: str) -> bytes:
    try:
        with system.open_input_stream(f"{root}/{CHANGES}") as stream:
            return bytes(stream.read())
    except FileNotFoundError:
        return b""


def announce(system: Any, root: str, draft: str) -> None:
    """What takes the place of others is there; from now on these may be removed. `draft`: a path
    to write the token at.
    """
    with system.open_output_stream(draft) as sink:
        sink.write(json.dumps({"change": uuid4().hex}).encode())
    system.move(draft, f"{root}/{CHANGES}")


def _read(system: Any, paths: list[str]) -> list[Row]:
    options = pyarrow.dataset.ParquetFragmentScanOptions(page_checksum_verification=True)
    form = pyarrow.dataset.ParquetFileFormat(default_fragment_scan_options=options)
    found = pyarrow.dataset.dataset(paths, filesystem=system, format=form, schema=SEGMENT_SCHEMA)
    columns = [*SEGMENT_SCHEMA.names, "__filename"]
    rows: list[Row] = found.to_table(columns=columns).to_pylist()
    for row in rows:
        row[ROW_FILE] = row.pop("__filename").rpartition("/")[2]
    return rows


def _names(system: Any, root: str) -> list[str]:
    entries = system.get_file_info(arrow_fs.FileSelector(f"{root}/{SEGMENTS}"))
    names = sorted(entry.base_name for entry in entries if entry.is_file)
    return [name for name in names if name.endswith(".parquet") and name[0] not in "._"]


def _listed(system: Any, root: str, location: str) -> tuple[list[Row], list[FileReport]]:
    names = _names(system, root)
    paths = [f"{root}/{SEGMENTS}/{name}" for name in names]
    try:
        return (_read(system, paths) if paths else []), []
    except (OSError, pa.ArrowException):  # find out which, one by one
        pass
    rows, reports = [], []
    for name, path in zip(names, paths, strict=True):
        try:
            rows += _read(system, [path])
        except FileNotFoundError:  # removed since, by compaction or a prune
            continue
        except (OSError, pa.ArrowException) as error:
            why = " ".join(str(error).split())
            place = inside(location, f"{SEGMENTS}/{name}")
            reports.append(FileReport(place, 0, 1, [f"what it says of its segment is lost: {why}"]))
    return rows, reports


def rows(location: str | os.PathLike[str]) -> tuple[list[Row], list[FileReport]]:
    """All rows of ``segments/``, and a report on each of its files that cannot be read."""
    system, root = filesystem(location)
    while True:  # goes round once more for each compaction that ends its work meanwhile
        token = _token(system, root)
        found = _listed(system, root, os.fspath(location))
        if _token(system, root) == token:
            return found


def events_name(day: str, host: str, name: str) -> str:
    """The name of a file of ``events/``; `host` is quoted."""
    return f"{EVENTS}/date={day}/host={host}/{name}.parquet"


def day_of(events: str) -> str:
    """The day of a file of ``events/``."""
    return events.rpartition("date=")[2][:10]


def pieces(root: str, row: Mapping[str, Any]) -> tuple[Piece, ...]:
    """Where the records of that row are."""
    count = len(row["events"])
    firsts, counts = row["firsts"] or [0] * count, row["counts"] or [None] * count
    return tuple(
        Piece(inside(root, name), first, number, row["channels"])
        for name, first, number in zip(row["events"], firsts, counts, strict=True)
    )


class _Known:
    """The rows that stand in an archive, as of a token of it."""

    def __init__(self, location: str, token: bytes) -> None:
        self.location, self.token = location, token
        self.rows = standing(rows(location)[0])


class _Last(threading.local):
    """What this thread has looked at last."""

    known: _Known | None = None


_last = _Last()


def where_now(location: str, segment: str, gone: Piece) -> Piece | None:
    """Where the records of a piece are whose file is gone; None if nothing took its place.

    A file is removed after the token was replaced, so what was read at this token tells.
    """
    system, root = filesystem(location)
    token = _token(system, root)
    known = _last.known
    if known is None or (known.location, known.token) != (location, token):
        known = _last.known = _Known(location, token)
    row = known.rows.get(segment)
    if row is None:
        return None
    day = day_of(gone.place)
    found = [piece for piece in pieces(location, row) if day_of(piece.place) == day]
    if not found or found[0].place == gone.place:
        return None
    if gone.count is None or found[0].count is None or found[0].count < gone.count:
        return found[0]
    return Piece(found[0].place, found[0].first, gone.count, found[0].channels)
