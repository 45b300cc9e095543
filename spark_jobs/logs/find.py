"""Finding log files, and putting those of each log together.

What may be read is fixed here, so that all passes over a growing log see the same records.
"""

from __future__ import annotations

import json
import os
import stat
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Final, TypeAlias

import numpy as np

from spark_jobs import procfs
from spark_jobs.errors import NoLogsError
from spark_jobs.logs.checksum import record_ok
from spark_jobs.logs.header import fixed_words, header_problem, read_state, version_of
from spark_jobs.logs.model import Log, LogFile, Segment, Survey, shown, text
from spark_jobs.logs.quality import FileReport
from spark_jobs.logs.schema import (
    APPENDED_MOST,
    HEADER_BYTES,
    OPEN,
    RECORD,
    RECORD_BYTES,
    ROTATED,
    Kind,
)
from spark_jobs.places import local_path

LEDGER: Final = "recycled.jsonl"
Recycled: TypeAlias = Mapping[tuple[int, int], int]
_NONE_GONE: Final[Recycled] = MappingProxyType({})


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


def span(log: Log) -> tuple[int, int] | None:
    """About from when to when it goes, in ns of the wall clock, by the first and last records of
    its files; None: of an archive, or they do not tell.
    """
    times: list[int] = []
    for file in (log.files[0], log.files[-1]):
        if file.archived:
            return None
        try:
            with open(file.path, "rb", buffering=0) as stream:
                for begin in (0, max(0, file.records - APPENDED_MOST)):
                    stream.seek(HEADER_BYTES + begin * RECORD_BYTES)
                    raw = stream.read(min(APPENDED_MOST, file.records) * RECORD_BYTES)
                    records = np.frombuffer(raw[: len(raw) & -RECORD_BYTES], dtype=RECORD)
                    known = record_ok(records, file.version) & (records["kind"] != Kind.CHANDEF)
                    at = records["ts"][known].astype(np.int64) + file.clock_ns
                    times += at.tolist()
        except OSError:
            return None
    return (min(times), max(times)) if times else None


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
                state = read_state(file, raw, max(0, (size - HEADER_BYTES) // RECORD_BYTES))
    except OSError as error:
        raw, size, problem = b"", 0, f"cannot be read: {error.strerror}"
    if problem is not None:
        return FileReport(shown(path), 0, max(1, (size - HEADER_BYTES) // RECORD_BYTES), [problem])
    header = fixed_words(raw)
    return Segment(
        log_id=int(header["log_id"]),
        engine=text(header["segment"]),
        host=text(header["host"]),
        boot_id=text(header["boot_id"]),
        pid=int(header["pid"]),
        starttime=int(header["starttime"]),
        backend_id=int(header["backend_id"]),
        sealed=state.end != OPEN,
        dropped=state.dropped,
        file=LogFile(
            path,
            int(header["part"]),
            state.committed,
            min(state.committed, state.fit),
            state.clock_ns,
            problems=tuple(state.doubts),
            version=version_of(raw),
        ),
        rotated=state.end == ROTATED,
        time_namespace=int(header["time_namespace"]),
    )


def recycled(paths: Iterable[str]) -> Recycled:
    """What the ledgers beside these files say was removed to make room: records by log and part.

    A line that a full disk cut off says nothing, and then the part is missing.
    """
    found: dict[tuple[int, int], int] = {}
    for directory in sorted({os.path.dirname(path) for path in paths}):
        try:
            lines = Path(directory, LEDGER).read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue
        for line in lines.splitlines():
            try:
                entry = json.loads(line)
                key = int(entry["log_id"], 16), int(entry["part"])
                found[key] = int(entry["records"])
            except (ValueError, TypeError, KeyError):
                continue
    return found


def group(found: Iterable[Segment | FileReport], gone: Recycled = _NONE_GONE) -> Survey:
    """Puts the files of each log together; `gone` are those that were recycled."""
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
    logs = [_log(members, suspects, gone) for _, members in sorted(by_log.items())]
    result.logs = _with_clocks(logs)
    return result


def _log(members: Sequence[Segment], suspects: set[str], gone: Recycled) -> Log:
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
    by_room = [part for part in missing if (last.log_id, part) in gone]
    if by_room:
        records = sum(gone[last.log_id, part] for part in by_room)
        why.append(f"file {_numbers(by_room)} of the log, {records} records, made room for others")
    missing = sorted(set(missing) - set(by_room))
    if missing:
        why.append(f"file {_numbers(missing)} of the log is missing")
    names = {f"{last.log_id:016x}", *(_writer(file.path) for file in files)}
    if names & suspects:
        why.append("an unreadable file may belong to the log")
    alive = _runs_here(last.boot_id, last.pid, last.starttime)
    closed = last.sealed and not last.rotated
    if last.rotated and not alive:  # one that lives may have gone on since the files were listed
        why.append(f"what followed file {last.file.part} of the log is missing")
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
        closed=closed,
        alive=not closed and alive,
        dropped=last.dropped,
        incomplete="; ".join(why),
        files=files,
        rotated=last.rotated,
        time_namespace=last.time_namespace,
    )


def _numbers(parts: Sequence[int]) -> str:
    """In rising order, runs of three and more by their ends: 0 to 25, 27."""
    runs: list[list[int]] = []
    for part in parts:
        if runs and part == runs[-1][-1] + 1:
            runs[-1].append(part)
        else:
            runs.append([part])
    return ", ".join(
        f"{run[0]} to {run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs
    )


def _with_clocks(logs: list[Log]) -> list[Log]:
    """Fills in `own_clock` where an engine's logs come from more than one clock."""
    clocks: dict[str, dict[int, set[str]]] = defaultdict(lambda: defaultdict(set))
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
