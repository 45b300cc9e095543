"""What ``ingest`` keeps: the layout of an archive, and what its rows say of the logs.

::

    events/date=YYYY-MM-DD/host=H/STATE.parquet     the records, in the order of the log
    channels/STATE.parquet                          the channels named in that segment
    segments/STATE.parquet                          its header and state; written last
    quarantine/SEGMENT.pynlog                       copies of files that are damaged
    pruned.json                                     {"before": "YYYY-MM-DD"}, of ``prune``
    changes.json                                    {"change": TOKEN}; see `spark_jobs.logs.stored`

A segment is in the archive when its row in ``segments/`` is: readers of an archive go by these
rows. STATE is `Segment.name` and how much of it that is, so that the same lands in the same place
every time; or the name of a pack, the small segments that `compaction` put together.
"""

from __future__ import annotations

import json
import os
from typing import Any, Final

from pyarrow import fs as arrow_fs

from spark_jobs.logs import stored
from spark_jobs.logs.model import LogFile, Segment
from spark_jobs.logs.quality import FileReport
from spark_jobs.logs.stored import EVENTS, QUARANTINED, SEGMENTS, Row
from spark_jobs.places import filesystem

PRUNED: Final = "pruned.json"


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


def segment_rows(
    location: str | os.PathLike[str],
) -> tuple[list[Row], list[FileReport]]:
    """The row of each segment, and a report on each file of rows that cannot be read."""
    rows, reports = stored.rows(location)
    return list(stored.standing(rows).values()), reports


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
            events=stored.pieces(root, row),
            archived=True,
            damaged=row["damaged"],
            problems=tuple(problems),
            root=root,
            segment=row["segment"],
        )
        names = ("engine", "host", "boot_id", "pid", "starttime", "backend_id", "sealed", "dropped")
        known: dict[str, Any] = {name: row[name] for name in names}
        known |= {"rotated": bool(row["rotated"]), "time_namespace": row["time_namespace"] or 0}
        found.append(Segment(log_id=int(row["log_id"], 16), file=file, **known))
    return found
