"""What ``ingest`` keeps: the layout of an archive, and what its rows say of the logs.

::

    events/date=YYYY-MM-DD/host=H/SEGMENT.parquet   the records, in the order of the log
    channels/SEGMENT.parquet                        the channels named in that segment
    segments/SEGMENT.parquet                        its header and state; written last
    quarantine/                                     copies of files that are damaged
    pruned.json                                     {"before": "YYYY-MM-DD"}, of ``prune``

A segment is in the archive when its row in ``segments/`` is: whoever reads an archive goes by these
rows. SEGMENT is `Segment.name`, so that the same segment lands in the same place every time.
"""

from __future__ import annotations

import json
import os
from typing import Any, Final

import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet
from pyarrow import fs as arrow_fs

from spark_jobs.logs.model import LogFile, Segment
from spark_jobs.logs.quality import FileReport
from spark_jobs.places import filesystem, inside

EVENTS, CHANNELS, SEGMENTS, QUARANTINE = "events", "channels", "segments", "quarantine"
PRUNED: Final = "pruned.json"
STAGING: Final = "_staging"
"""Spark and Arrow ignore what begins with an underscore."""

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
    ]
)


def is_archive(location: str | os.PathLike[str]) -> bool:
    """Whether ``ingest`` wrote that directory."""
    system, path = filesystem(location)
    found = system.get_file_info([f"{path}/{EVENTS}", f"{path}/{SEGMENTS}"])
    return all(entry.type == arrow_fs.FileType.Directory for entry in found)


def pruned_before(location: str | os.PathLike[str]) -> str:
    """The day (YYYY-MM-DD) of before which nothing is archived again; "" if there is none."""
    system, root = filesystem(location)
    if not system.get_file_info(f"{root}/{PRUNED}").is_file:
        return ""
    with system.open_input_stream(f"{root}/{PRUNED}") as stream:
        return str(json.loads(stream.read())["before"])


def day_of(events: str) -> str:
    """Of a file of ``events/``: the last day that it has records of."""
    return events.partition("date=")[2][:10]


def _rows(system: Any, source: str | list[str]) -> list[dict[str, Any]]:
    options = pyarrow.dataset.ParquetFragmentScanOptions(page_checksum_verification=True)
    form = pyarrow.dataset.ParquetFileFormat(default_fragment_scan_options=options)
    found = pyarrow.dataset.dataset(source, filesystem=system, format=form, schema=SEGMENT_SCHEMA)
    rows: list[dict[str, Any]] = found.to_table().to_pylist()
    return rows


def segment_rows(
    location: str | os.PathLike[str],
) -> tuple[list[dict[str, Any]], list[FileReport]]:
    """All rows of ``segments/``, and a report on each of its files that cannot be read."""
    system, root = filesystem(location)
    path = f"{root}/{SEGMENTS}"
    try:
        return _rows(system, path), []
    except (OSError, pa.ArrowException):  # find out which, one by one
        entries = system.get_file_info(arrow_fs.FileSelector(path))
    rows, reports = [], []
    for entry in sorted(entries, key=lambda entry: str(entry.path)):
        if not entry.is_file or not entry.base_name.endswith(".parquet"):
            continue
        try:
            rows += _rows(system, [entry.path])
        except (OSError, pa.ArrowException) as error:
            name = inside(os.fspath(location), f"{SEGMENTS}/{entry.base_name}")
            why = " ".join(str(error).split())
            reports.append(FileReport(name, 0, 1, [f"what it says of its segment is lost: {why}"]))
    return rows, reports


def read_segments(location: str | os.PathLike[str]) -> list[Segment | FileReport]:
    """What is in that archive, in the terms of the log files that it was made from."""
    root = os.fspath(location)
    rows, reports = segment_rows(root)
    found: list[Segment | FileReport] = [*reports]
    for row in rows:
        problems = json.loads(row["problems"])
        if row["status"] == QUARANTINED:
            found.append(FileReport(row["file"], 0, row["damaged"], problems))
            continue
        file = LogFile(
            path=row["file"],
            part=row["part"],
            committed=row["committed"],
            records=row["records"],
            clock_ns=row["clock_ns"],
            events=tuple(inside(root, name) for name in row["events"]),
            archived=True,
            damaged=row["damaged"],
            problems=tuple(problems),
        )
        names = ("engine", "host", "boot_id", "pid", "starttime", "backend_id", "sealed", "dropped")
        known = {name: row[name] for name in names}
        known |= {"rotated": bool(row["rotated"]), "time_namespace": row["time_namespace"] or 0}
        found.append(Segment(log_id=int(row["log_id"], 16), file=file, **known))
    return found
