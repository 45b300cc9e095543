"""The few ways in which an archive changes, each of them one step that a kill cannot divide.

1. A file is written in ``_staging``, and moved where it belongs when it is whole.
2. What takes the place of others is there, with its row, before these are removed (`remove`); on a
   local disk also if the power fails in between. Rows go before what they name.
3. A draft's name tells the process that writes it (`writer`), and so does that of a pack. What a
   process has left that is gone, `sweep` removes; so it does a day later where it cannot tell, as
   of a process of another host.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet
from pyarrow import fs as arrow_fs

from spark_jobs import procfs
from spark_jobs.logs import stored
from spark_jobs.logs.stored import CHANNELS, EVENTS, ROW_FILE, SEGMENTS, STAGING, Row
from spark_jobs.places import filesystem

_KEPT: Final = timedelta(days=1)
_WRITER: Final = re.compile(r"([0-9a-f]{8})-(\d+)-(\d+)-(\d+)\.")
"""Boot, namespace of pids, pid, start time."""


def _here() -> tuple[str, str]:
    """Boot and namespace of pids of this process."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text()[:8]
    return boot, str(os.stat("/proc/self/ns/pid").st_ino)


def writer() -> str:
    """What begins the name of a file that this process writes."""
    found = procfs.stat(os.getpid())
    assert found is not None
    return "-".join((*_here(), str(found.pid), str(found.start)))


def _is_gone(name: str) -> bool | None:
    """Whether the process that wrote a file of that name is gone; None: it cannot be known here."""
    told = _WRITER.match(name)
    if told is None or told.groups()[:2] != _here():
        return None
    pid, start = int(told[3]), int(told[4])
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        pass
    found = procfs.stat(pid)  # None: /proc does not show processes of others
    return found is not None and (found.start != start or found.state in ("Z", "X"))


def _is_left(entry: Any) -> bool:
    """Whether no process will come back to that file."""
    gone = _is_gone(entry.base_name)
    return datetime.now(UTC) - entry.mtime > _KEPT if gone is None else gone


def draft(root: str) -> str:
    """A path for a file that is being written."""
    return f"{root}/{STAGING}/{writer()}.{uuid4().hex}"


def put(system: Any, path: str, target: str) -> None:
    """Moves a draft that is whole to its place."""
    system.create_dir(target.rpartition("/")[0], recursive=True)
    system.move(path, target)


def put_table(place: str, name: str, table: pa.Table) -> None:
    """Writes a small table in one step."""
    system, root = filesystem(place)
    path = draft(root)
    with system.open_output_stream(path) as sink:
        pyarrow.parquet.write_table(
            table, sink, compression="lz4", write_statistics=False, write_page_checksum=True
        )
    put(system, path, f"{root}/{name}")


def delete(system: Any, path: str) -> None:
    """Removes a file, if it is there."""
    try:
        system.delete_file(path)
    except FileNotFoundError:
        return


def sync(system: Any, paths: Iterable[str]) -> None:
    """On a local disk: these files are there after a power failure too."""
    if not isinstance(system, arrow_fs.LocalFileSystem):
        return
    files = [Path(path) for path in paths]
    folders = {folder for file in files for folder in list(file.parents)[:3]}
    for path in [*files, *sorted(folders, reverse=True)]:
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:  # another program has put something else in its place
            continue
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def named(root: str, rows: Iterable[Row]) -> Iterator[str]:
    """The files of these rows, those of ``segments/`` first; each once."""
    rows = list(rows)
    yield from dict.fromkeys(f"{root}/{SEGMENTS}/{row[ROW_FILE]}" for row in rows)
    yield from dict.fromkeys(f"{root}/{events}" for row in rows for events in row["events"])
    yield from dict.fromkeys(f"{root}/{CHANNELS}/{row[ROW_FILE]}" for row in rows)


def remove(place: str, rows: Iterable[Row]) -> None:
    """Removes the files of rows that no longer stand: all the rows of these files."""
    rows = list(rows)
    system, root = filesystem(place)
    if not rows:
        return
    stored.announce(system, root, draft(root))
    for path in named(root, rows):
        delete(system, path)


def _files(system: Any, folder: str) -> list[Any]:
    selector = arrow_fs.FileSelector(folder, allow_not_found=True, recursive=True)
    return [entry for entry in system.get_file_info(selector) if entry.is_file]


def _is_superseded(name: str, best: Mapping[str, Row]) -> bool:
    """Whether a row stands that is about as much of the segment, at least. Then it does not matter
    if the row of that file is yet to come.
    """
    told = stored.state_of(name)
    row = None if told is None else best.get(told[0])
    return told is not None and row is not None and told[1:] <= stored.version(row)


def sweep(place: str) -> int:
    """Removes what processes have left that were killed: drafts, and files of ``events/`` and
    ``channels/`` without a row. Returns how many.

    Of what a segment has there before its row comes, only earlier states are removed: ``ingest``
    puts the same file there again.
    """
    system, root = filesystem(place)
    left = [entry for entry in _files(system, f"{root}/{STAGING}") if _is_left(entry)]
    placed = [*_files(system, f"{root}/{EVENTS}"), *_files(system, f"{root}/{CHANNELS}")]
    rows, unreadable = stored.rows(place)  # after the files: a row comes after what it names
    if not unreadable:  # what has lost its row may be all that there is
        best, wanted = stored.standing(rows), set(named(root, rows))
        for entry in placed:
            is_pack = _WRITER.match(entry.base_name) is not None
            if entry.path not in wanted and (
                _is_left(entry) if is_pack else _is_superseded(entry.base_name, best)
            ):
                left.append(entry)
    for entry in left:
        delete(system, entry.path)
    return len(left)
