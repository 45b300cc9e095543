"""Finding log files, and putting those of each log together.

What may be read is fixed here, so that all passes over a growing log see the same records.
"""

from __future__ import annotations

import os
import stat
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

import numpy as np

from spark_jobs import procfs
from spark_jobs.errors import NoLogsError
from spark_jobs.logs.checksum import crc32c, record_ok
from spark_jobs.logs.model import SEQUENCE_BITS, Log, LogFile, Segment, Survey, shown, text
from spark_jobs.logs.quality import FileReport, header_problem
from spark_jobs.logs.schema import ANCHOR_CRC_BYTES, HEADER, HEADER_BYTES, RECORD, RECORD_BYTES
from spark_jobs.places import local_path


def find(paths: Iterable[str | os.PathLike[str]]) -> list[Path]:
    """Log files at `paths`: a directory stands for all ``*.pynlog`` below it.

    Raises NoLogsError when a path does not exist or nothing is found.
    """
    given = [local_path(path) for path in paths]
    found: set[Path] = set()
    for path in given:
        if path.is_dir():
            found.update(_below(path))
        elif path.exists():
            found.add(path)
        else:
            raise NoLogsError(f"no such file or directory: {shown(path)}")
    if not found:
        places = ", ".join(map(shown, given))
        raise NoLogsError(f"no log files (*.pynlog) in {places}, nor is it an archive of ingest")
    return sorted(found)


def _below(directory: Path) -> Iterator[Path]:
    """The log files below a directory, and the directories that cannot be read."""
    unreadable: list[Path] = []

    def note(error: OSError) -> None:
        if not isinstance(error, FileNotFoundError):
            unreadable.append(Path(error.filename))

    for place, _, names in os.walk(directory, onerror=note):
        paths = (Path(place, name) for name in names if name.endswith(".pynlog"))
        yield from (path for path in paths if path.is_file())
    yield from unreadable


def _writer(path: str) -> str:
    """Host, boot, pid and start time, as a file's name tells them; of an archive's the log."""
    name = Path(path).name
    if name.endswith(".parquet"):
        return name.partition("-")[0]
    return name.removesuffix(".pynlog").rpartition(".")[0]


def _runs_here(boot_id: str, pid: int, starttime: int) -> bool:
    """Whether that very process runs on this host; a zombie does not."""
    try:
        here = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return False
    found = procfs.stat(pid)
    if found is None or here != boot_id:
        return False
    return found.state not in ("Z", "X") and found.start == starttime


def _wall_clock_offset(header: Any) -> int:
    """Realtime less monotonic at the newest anchor that was not being written; 0 without any."""
    newest, offset = -1, 0
    for anchor in header["anchors"]:
        whole = crc32c(anchor.tobytes()[:ANCHOR_CRC_BYTES]) == anchor["crc"]
        if whole and int(anchor["number"]) > newest:
            newest = int(anchor["number"])
            offset = int(anchor["realtime_ns"]) - int(anchor["monotonic_ns"])
    return offset


def read_segment(path: str) -> Segment | FileReport:
    """The header of that file, or why it has none."""
    try:
        # A FIFO would wait for a writer.
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            regular = stat.S_ISREG(os.fstat(file.fileno()).st_mode)
            raw = file.read(HEADER_BYTES) if regular else b""
            size = os.fstat(file.fileno()).st_size  # not before: it may be sealed just now
            problem = header_problem(raw) if regular else "is no regular file"
            if problem is None:
                header = np.frombuffer(raw, dtype=HEADER, count=1)[0]
                fit = max(0, (size - HEADER_BYTES) // RECORD_BYTES)
                committed, there, doubt = _count(header, fit, file)
    except OSError as error:
        raw, size, problem = b"", 0, f"cannot be read: {error.strerror}"
    if problem is not None:
        return FileReport(shown(path), 0, max(1, (size - HEADER_BYTES) // RECORD_BYTES), [problem])
    return Segment(
        log_id=int(header["log_id"]),
        engine=text(header["segment"]),
        host=text(header["host"]),
        boot_id=text(header["boot_id"]),
        pid=int(header["pid"]),
        starttime=int(header["starttime"]),
        backend_id=int(header["backend_id"]),
        sealed=bool(header["sealed"]),
        dropped=int(header["dropped"]),
        file=LogFile(
            path,
            int(header["part"]),
            committed,
            there,
            _wall_clock_offset(header),
            problems=() if doubt is None else (doubt,),
        ),
    )


def _count(header: Any, fit: int, file: IO[bytes]) -> tuple[int, int, str | None]:
    """Records that the header claims, how many of them are there, and what is wrong with its count.

    The count is under no CRC. A sealed file ends with its records, or with zeros where it could not
    be cut, so a whole record behind the last one says that the count is damaged. No file has as
    many records as `SEQUENCE_BITS` can count.
    """
    committed = int(header["committed"])
    doubtful = committed >> SEQUENCE_BITS != 0
    if not doubtful and header["sealed"] and committed < fit:
        file.seek(HEADER_BYTES + committed * RECORD_BYTES)
        behind = np.frombuffer(file.read(RECORD_BYTES), dtype=RECORD)
        doubtful = bool(behind["kind"].any() and record_ok(behind).all())
    if doubtful:
        return fit, fit, f"the header's count of records, {committed}, is damaged: {fit} are there"
    return committed, min(committed, fit), None


def group(found: Iterable[Segment | FileReport]) -> Survey:
    """Puts the files of each log together."""
    result = Survey()
    by_log: dict[int, list[Segment]] = defaultdict(list)
    for segment in found:
        if isinstance(segment, FileReport):
            result.unreadable.append(segment)  # an archive may still have one that is whole by now
        else:
            by_log[segment.log_id].append(segment)
            result.segments.append(segment)
    readable = {segment.file.path for segment in result.segments}
    reports = {report.file: report for report in result.unreadable if report.file not in readable}
    result.unreadable = [reports[path] for path in sorted(reports)]
    suspects = {_writer(path) for path in reports}
    logs = [_log(members, suspects) for _, members in sorted(by_log.items())]
    result.logs = _with_clocks(logs)
    return result


def _log(members: Sequence[Segment], suspects: set[str]) -> Log:
    # A file given twice, under two names, is one file: the one with more in it.
    order = sorted(
        members, key=lambda s: (s.file.part, -s.file.records, -s.file.committed, s.file.path)
    )
    unique = {segment.file.part: segment for segment in reversed(order)}
    parts = sorted(unique)
    last = unique[parts[-1]]
    files = tuple(unique[part].file for part in parts)
    missing = sorted(set(range(parts[-1] + 1)) - set(parts))
    why = []
    if missing:
        why.append(f"file {', '.join(map(str, missing))} of the log is missing")
    names = {f"{last.log_id:016x}", *(_writer(file.path) for file in files)}
    if names & suspects:
        why.append("an unreadable file may belong to the log")
    if last.dropped:
        why.append(f"{last.dropped} records were dropped when there was no room")
    return Log(
        log_id=f"{last.log_id:016x}",
        engine=last.engine,
        host=last.host,
        boot_id=last.boot_id,
        pid=last.pid,
        starttime=last.starttime,
        backend_id=last.backend_id,
        closed=last.sealed,
        alive=not last.sealed and _runs_here(last.boot_id, last.pid, last.starttime),
        dropped=last.dropped,
        incomplete="; ".join(why),
        files=files,
    )


def _with_clocks(logs: list[Log]) -> list[Log]:
    """Fills in `own_clock` where an engine's logs come from more than one host or boot."""
    clocks: dict[str, dict[int, set[tuple[str, str]]]] = defaultdict(lambda: defaultdict(set))
    for log in logs:
        clocks[log.engine][log.backend_id].add(log.clock)
    result = []
    for log in logs:
        peers = clocks[log.engine]
        if any(each != {log.clock} for each in peers.values()):
            own = tuple(peer for peer, each in peers.items() if each == {log.clock})
            result.append(replace(log, own_clock=own))
        else:
            result.append(log)
    return result
