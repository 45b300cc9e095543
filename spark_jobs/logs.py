"""Finding log files, and reading the logs that they belong to.

A *log* is all files of one writing connection, in order; they share ``log_id``. What may be read
is fixed when the survey is made, so that all passes over a growing log see the same records.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spark_jobs.checksum import crc32c, record_ok
from spark_jobs.quality import FileReport, header_problem
from spark_jobs.schema import HEADER, HEADER_BYTES, NAME_PIECE, RECORD, RECORD_BYTES, Kind
from spark_jobs.storage import local_path

CHUNK_RECORDS = 16384
"""1 MiB: stays in the second-level cache while its columns are taken out one by one."""
SEQUENCE_BITS = 40
"""A chan_seq beyond this is taken for damage."""


class NoLogsError(Exception):
    """There is nothing to read; says where was looked."""


@dataclass(frozen=True)
class LogFile:
    """One readable file: `records` are there of the `committed` that it claims."""

    path: str
    part: int
    committed: int
    records: int


@dataclass(frozen=True)
class Log:
    """All files of one writing connection.

    `closed`: its last file was sealed. `alive`: not closed, and its process runs on this host.
    `incomplete`: why records are known to be missing, before any was read; "" if none is.
    """

    log_id: str
    engine: str
    host: str
    boot_id: str
    pid: int
    starttime: int
    backend_id: int
    closed: bool
    alive: bool
    dropped: int
    incomplete: str
    files: tuple[LogFile, ...]

    @property
    def size(self) -> int:
        """Bytes of records."""
        return sum(file.records for file in self.files) * RECORD_BYTES

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str) -> Log:
        fields = json.loads(text)
        fields["files"] = tuple(LogFile(**file) for file in fields["files"])
        return Log(**fields)


@dataclass
class Survey:
    """What was found: readable logs, and a report on each file that is none."""

    logs: list[Log] = field(default_factory=list)
    unreadable: list[FileReport] = field(default_factory=list)


def find(paths: Iterable[str | os.PathLike[str]]) -> list[Path]:
    """Log files at `paths`: a directory stands for all ``*.pynlog`` below it.

    Raises NoLogsError when a path does not exist or nothing is found.
    """
    given = [local_path(path) for path in paths]
    found: set[Path] = set()
    for path in given:
        if path.is_dir():
            found.update(entry for entry in path.rglob("*.pynlog") if entry.is_file())
        elif path.exists():
            found.add(path)
        else:
            raise NoLogsError(f"no such file or directory: {path}")
    if not found:
        raise NoLogsError(f"no log files (*.pynlog) in {', '.join(map(str, given))}")
    return sorted(found)


def _writer(path: str) -> str:
    """Host, boot, pid and start time, as a file's name tells them."""
    return Path(path).name.removesuffix(".pynlog").rpartition(".")[0]


def _text(value: bytes) -> str:
    return value.decode("utf-8", "backslashreplace")


def _runs_here(boot_id: str, pid: int, starttime: int) -> bool:
    """Whether that very process runs on this host; a zombie does not."""
    try:
        here = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return False
    return here == boot_id and fields[0] not in (b"Z", b"X") and int(fields[19]) == starttime


def survey(paths: Iterable[str | os.PathLike[str]]) -> Survey:
    """Reads the headers of all log files at `paths`. Raises NoLogsError as `find` does."""
    result = Survey()
    by_log: dict[int, list[tuple[Any, LogFile]]] = {}
    for path in map(str, find(paths)):
        try:
            with open(path, "rb") as file:
                raw = file.read(HEADER_BYTES)
                size = os.fstat(file.fileno()).st_size
            problem = header_problem(raw)
        except OSError as error:
            raw, size, problem = b"", 0, f"cannot be read: {error.strerror}"
        if problem is not None:
            lost = max(1, (size - HEADER_BYTES) // RECORD_BYTES)
            result.unreadable.append(FileReport(path, 0, lost, [problem]))
            continue
        header = np.frombuffer(raw, dtype=HEADER, count=1)[0]
        committed = int(header["committed"])
        there = max(0, min(committed, (size - HEADER_BYTES) // RECORD_BYTES))
        entry = LogFile(path, int(header["part"]), committed, there)
        by_log.setdefault(int(header["log_id"]), []).append((header, entry))
    suspects = {_writer(report.file) for report in result.unreadable}
    result.logs = [_log(members, suspects) for _, members in sorted(by_log.items())]
    return result


def _log(members: list[tuple[Any, LogFile]], suspects: set[str]) -> Log:
    members.sort(key=lambda member: (member[1].part, member[1].path))
    # A file given twice, under two names, is one file.
    unique = {file.part: (header, file) for header, file in reversed(members)}
    parts = sorted(unique)
    header = unique[parts[-1]][0]
    files = tuple(unique[part][1] for part in parts)
    missing = sorted(set(range(parts[-1] + 1)) - set(parts))
    dropped = int(header["dropped"])
    why = []
    if missing:
        why.append(f"file {', '.join(map(str, missing))} of the log is missing")
    if any(_writer(file.path) in suspects for file in files):
        why.append("an unreadable file may belong to the log")
    if dropped:
        why.append(f"{dropped} records were dropped when there was no room")
    boot, pid, start = _text(header["boot_id"]), int(header["pid"]), int(header["starttime"])
    closed = bool(header["sealed"])
    return Log(
        log_id=f"{int(header['log_id']):016x}",
        engine=_text(header["segment"]),
        host=_text(header["host"]),
        boot_id=boot,
        pid=pid,
        starttime=start,
        backend_id=int(header["backend_id"]),
        closed=closed,
        alive=not closed and _runs_here(boot, pid, start),
        dropped=dropped,
        incomplete="; ".join(why),
        files=files,
    )


@dataclass(frozen=True)
class Chunk:
    """Whole records in the order in which they were written, without the CHANDEFs.

    `channel` indexes `LogReader.channels`; -1 where the record has none. `records` may lie in the
    reader's buffer: they are good until the next chunk is asked for.
    """

    records: NDArray[Any]
    channel: NDArray[np.int64]

    def signed(self, name: str) -> NDArray[np.int64]:
        """A column of 64-bit numbers."""
        return self.records[name].astype(np.int64)


class LogReader:
    """Reads one log in bounded memory and keeps account of its damage."""

    def __init__(self, log: Log) -> None:
        self.log = log
        self.channels: list[tuple[int, str]] = []
        """(database, name)."""
        self.reports: list[FileReport] = []
        self._index: dict[tuple[int, bytes], int] = {}
        self._ids = np.empty(0, dtype=np.int64)
        """Id in the file -> index in `channels`; -1 if not defined, as are the first and last."""
        self._buffer = np.empty(CHUNK_RECORDS, dtype=RECORD)
        self._pieces: dict[int, list[bytes]] = {}

    @property
    def incomplete(self) -> bool:
        """Whether records are missing; certain after the last chunk."""
        return bool(self.log.incomplete) or any(report.damaged for report in self.reports)

    def chunks(self) -> Iterator[Chunk]:
        for file in self.log.files:
            report = FileReport(file.path, 0, 0, [])
            self.reports.append(report)
            if self.log.incomplete and file is self.log.files[-1]:
                report.problems.append(self.log.incomplete)
            if file.records < file.committed:
                report.damaged += file.committed - file.records
                report.problems.append(f"cut off: {report.damaged} records are gone")
            self._ids = np.full(64, -1, dtype=np.int64)
            self._pieces = {}
            yield from self._file_chunks(file, report)

    def _file_chunks(self, file: LogFile, report: FileReport) -> Iterator[Chunk]:
        bad = unknown = 0
        with open(file.path, "rb", buffering=0) as stream:
            stream.seek(HEADER_BYTES)
            left = file.records
            while left > 0:
                room = self._buffer[: min(left, CHUNK_RECORDS)]
                count = stream.readinto(room.view(np.uint8).data) // RECORD_BYTES
                if count == 0:  # cut off since the survey
                    report.damaged += left
                    report.problems.append(f"cut off: {left} records are gone")
                    break
                left -= count
                stream.seek(HEADER_BYTES + (file.records - left) * RECORD_BYTES)
                records = room[:count]
                good = record_ok(records)
                whole = records if good.all() else records[good]
                chunk = self._resolve(whole)
                definitions = int(np.count_nonzero(whole["kind"] == Kind.CHANDEF))
                bad += count - len(whole)
                unknown += len(whole) - len(chunk.records) - definitions
                report.records += len(chunk.records) + definitions
                yield chunk
        report.damaged += bad + unknown
        if bad:
            report.problems.append(f"{bad} records do not match their CRC")
        if unknown:
            report.problems.append(f"{unknown} records of a channel or kind that is not defined")

    def _resolve(self, records: NDArray[Any]) -> Chunk:
        definition = records["kind"] == Kind.CHANDEF
        if definition.any():
            for record in records[definition]:
                self._define(record)
            records = records[~definition]
        ids = records["channel"].astype(np.int64)
        channel = self._ids.take(np.minimum(ids, len(self._ids) - 1))
        bad = (channel < 0) & (ids != 0)
        bad |= records["kind"] - np.uint8(1) >= len(Kind)  # 0 wraps round
        bad |= records["chan_seq"] >= 1 << SEQUENCE_BITS
        if bad.any():
            records, channel = records[~bad], channel[~bad]
        return Chunk(records, channel)

    def _define(self, record: Any) -> None:
        number, piece, count = int(record["channel"]), int(record["batch"]), int(record["lag"])
        pieces = self._pieces.setdefault(number, [])
        if piece == 0:
            pieces.clear()
        pieces.append(record.tobytes()[:NAME_PIECE])
        if piece + 1 < count:
            return
        name = b"".join(self._pieces.pop(number))[: int(record["bytes"])]
        if len(pieces) != count or crc32c(name) != int(record["aux"]) & 0xFFFFFFFF:
            return
        database = int(record["peer"])
        index = self._index.setdefault((database, name), len(self.channels))
        if index == len(self.channels):
            self.channels.append((database, _text(name)))
        if number >= len(self._ids) - 1:
            wider = np.full(2 * number + 2, -1, dtype=np.int64)
            wider[: len(self._ids)] = self._ids
            self._ids = wider
        self._ids[number] = index
