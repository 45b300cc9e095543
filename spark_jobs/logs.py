"""Finding log files, and reading the logs that they belong to.

A *log* is all files of one writing connection, in order; they share ``log_id``. What may be read
is fixed when the survey is made, so that all passes over a growing log see the same records.
"""

from __future__ import annotations

import json
import os
import stat
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from spark_jobs.checksum import crc32c, record_ok
from spark_jobs.quality import FileReport, header_problem
from spark_jobs.schema import (
    ANCHOR_CRC_BYTES,
    FIELD_NAMES,
    HEADER,
    HEADER_BYTES,
    NAME_PIECE,
    RECORD,
    RECORD_BYTES,
    Kind,
)
from spark_jobs.storage import local_path

CHUNK_RECORDS = 16384
"""1 MiB: stays in the second-level cache while its columns are taken out one by one."""
_MARKS = 24
"""Which 16-bit word of a record is `kind` and `wake`."""
SEQUENCE_BITS = 40
"""A chan_seq beyond this is taken for damage, as is such a count of records in a header."""
_CHANNELS_MAX = 1 << 22
"""A channel's number in a file beyond this is taken for damage."""


class NoLogsError(Exception):
    """There is nothing to read; says where was looked."""


@dataclass(frozen=True)
class LogFile:
    """One readable file: `records` are there of the `committed` that it claims.

    `clock_ns`: what to add to a time stamp for the wall clock; 0 if the file does not tell. A file
    that was archived has its records in `events` (Parquet); what was found damaged when that was
    done is in `damaged` and `problems`, and `records` are the whole ones.
    """

    path: str
    part: int
    committed: int
    records: int
    clock_ns: int = 0
    events: tuple[str, ...] = ()
    archived: bool = False
    damaged: int = 0
    problems: tuple[str, ...] = ()


@dataclass(frozen=True)
class Segment:
    """A log file and what its header says of the writer."""

    log_id: int
    engine: str
    host: str
    boot_id: str
    pid: int
    starttime: int
    backend_id: int
    sealed: bool
    dropped: int
    file: LogFile

    @property
    def name(self) -> str:
        """The same for every copy of the segment, and for nothing else."""
        return f"{self.log_id:016x}-{self.file.part:05}"


@dataclass(frozen=True)
class Log:
    """All files of one writing connection.

    `closed`: its last file was sealed. `alive`: not closed, and its process runs on this host.
    `incomplete`: why records are known to be missing, before any was read; "" if none is.
    `own_clock`: backends of the engine whose time stamps come from the same clock, that is host and
    boot, as this log's; None: all do, because all of the engine's logs were written there.
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
    own_clock: tuple[int, ...] | None = None

    @property
    def clock(self) -> tuple[str, str]:
        """Time stamps compare only where this is equal."""
        return self.host, self.boot_id

    @property
    def size(self) -> int:
        """Bytes of records."""
        return sum(file.records for file in self.files) * RECORD_BYTES

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str) -> Log:
        fields = json.loads(text)
        files = []
        for file in fields["files"]:
            lists = {name: tuple(file[name]) for name in ("events", "problems")}
            files.append(LogFile(**file | lists))
        peers = fields["own_clock"]
        own_clock = None if peers is None else tuple(peers)
        return Log(**fields | {"files": tuple(files), "own_clock": own_clock})


@dataclass
class Survey:
    """What was found: readable logs and the segments in them, and a report on each other file."""

    logs: list[Log] = field(default_factory=list)
    unreadable: list[FileReport] = field(default_factory=list)
    segments: list[Segment] = field(default_factory=list)


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


def _text(value: bytes) -> str:
    return value.decode("utf-8", "backslashreplace")


def shown(path: str | os.PathLike[str]) -> str:
    """The path as text that can be written anywhere, whatever bytes it has."""
    return _text(os.fsencode(path))


def _runs_here(boot_id: str, pid: int, starttime: int) -> bool:
    """Whether that very process runs on this host; a zombie does not."""
    try:
        here = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return False
    return here == boot_id and fields[0] not in (b"Z", b"X") and int(fields[19]) == starttime


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
        engine=_text(header["segment"]),
        host=_text(header["host"]),
        boot_id=_text(header["boot_id"]),
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


def survey(paths: Iterable[str | os.PathLike[str]]) -> Survey:
    """Reads the headers of all log files at `paths`; a directory that ``ingest`` wrote counts too.

    A segment that is found more than once is read once. Raises NoLogsError as `find` does.
    """
    from spark_jobs.archive import is_archive, read_segments

    given = list(paths)
    archives = [path for path in given if is_archive(path)]
    others = [path for path in given if path not in archives]
    found: list[Segment | FileReport] = []
    if others or not archives:
        found += [read_segment(str(path)) for path in find(others)]
    for archive in archives:
        found += read_segments(archive)
    return group(found)


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


@dataclass(frozen=True)
class Chunk:
    """Whole records in the order in which they were written, without the CHANDEFs.

    `records` are an array of `schema.RECORD`, or what answers like one (`events.Columns`).
    They may lie in the reader's buffer, and are good until the next chunk is asked for. `channel`
    indexes `LogReader.channels`; -1 where the record has none. `clock_ns` is that of the file.
    """

    records: NDArray[Any]
    channel: NDArray[np.int64]
    clock_ns: int = 0
    marks: NDArray[np.uint16] | None = field(default=None, repr=False)
    """`kind` and `wake` of each record, if somebody took them out already."""

    @property
    def kind(self) -> NDArray[np.uint8]:
        """A column without gaps: each pass over those of the records costs like all of them."""
        if self.marks is None:
            return np.ascontiguousarray(self.records["kind"])
        return self.marks.astype(np.uint8)

    @property
    def wake(self) -> NDArray[np.uint8]:
        """As `kind`."""
        if self.marks is None:
            return np.ascontiguousarray(self.records["wake"])
        return (self.marks >> np.uint16(8)).astype(np.uint8)

    def signed(self, name: str) -> NDArray[np.int64]:
        """A column of 64-bit numbers."""
        return self.records[name].astype(np.int64)


def _aligned(count: int) -> NDArray[Any]:
    """Room for so many records, each in a cache line of its own."""
    raw = np.empty((count + 1) * RECORD_BYTES, dtype=np.uint8)
    start = -raw.ctypes.data % RECORD_BYTES
    return raw[start : start + count * RECORD_BYTES].view(RECORD)


def _marks(records: NDArray[Any]) -> NDArray[np.uint16]:
    """The 16 bits of each record that are `kind` and, above it, `wake`."""
    words = records.view("<u2").reshape(len(records), RECORD_BYTES // 2)
    return np.asarray(words[:, _MARKS].copy())


def _without(records: NDArray[Any], at: NDArray[np.intp]) -> NDArray[Any]:
    """The records but for those `at`, which mostly are among the first: what is before the last of
    them is moved up to it.
    """
    end = at[-1] + 1
    records[len(at) : end] = np.delete(records[:end], at)
    return records[len(at) :]


class LogReader:
    """Reads one log in bounded memory and keeps account of its damage.

    `fields` are the columns wanted of records from an archive; all without.
    """

    def __init__(self, log: Log, fields: Sequence[str] = FIELD_NAMES) -> None:
        self.log = log
        self.fields = fields
        self.channels: list[tuple[int, str]] = []
        """(database, name)."""
        self.reports: list[FileReport] = []
        self._index: dict[tuple[int, bytes], int] = {}
        self._ids = np.empty(0, dtype=np.int64)
        """Id in the file -> index in `channels`; -1 if not defined, as are the first and last."""
        self._buffer = _aligned(CHUNK_RECORDS)
        self._pieces: dict[int, list[bytes]] = {}

    @property
    def incomplete(self) -> bool:
        """Whether records are missing; certain after the last chunk."""
        return bool(self.log.incomplete) or any(report.damaged for report in self.reports)

    def chunks(self) -> Iterator[Chunk]:
        from spark_jobs.events import read_file

        for file in self.log.files:
            report = FileReport(shown(file.path), 0, 0, [])
            self.reports.append(report)
            if self.log.incomplete and file is self.log.files[-1]:
                report.problems.append(self.log.incomplete)
            if file.archived:
                yield from read_file(self, file, report)
                continue
            if file.records < file.committed:
                report.damaged += file.committed - file.records
                report.problems.append(f"cut off: {report.damaged} records are gone")
            report.problems += file.problems
            self._ids = np.full(64, -1, dtype=np.int64)
            self._pieces = {}
            before = report.records
            try:
                yield from self._file_chunks(file, report)
            except OSError as error:  # it was there when the survey was made
                report.damaged += file.records - (report.records - before)
                report.problems.append(f"cannot be read: {error.strerror}")

    def comparable(self, records: NDArray[Any]) -> NDArray[np.bool_]:
        """Which records have a `ref_ts` of the same clock as their `ts`: by their `peer`."""
        if self.log.own_clock is None:
            return np.ones(len(records), dtype=bool)
        return np.isin(records["peer"], np.array(self.log.own_clock, dtype=np.int64))

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
                chunk, definitions = self._resolve(whole, file.clock_ns)
                bad += count - len(whole)
                unknown += len(whole) - len(chunk.records) - definitions
                report.records += len(chunk.records) + definitions
                yield chunk
        report.damaged += bad + unknown
        if bad:
            report.problems.append(f"{bad} records do not match their CRC")
        if unknown:
            report.problems.append(f"{unknown} records of a channel or kind that is not defined")

    def _resolve(self, records: NDArray[Any], clock_ns: int = 0) -> tuple[Chunk, int]:
        """Also how many definitions were among them."""
        marks = _marks(records)
        kind = marks.astype(np.uint8)
        at = np.flatnonzero(kind == int(Kind.CHANDEF))  # an enum costs as much as comparing
        definitions = len(at)
        if definitions:
            for record in records[at]:
                self._define(record)
            records = _without(records, at)
            marks = _marks(records)
            kind = marks.astype(np.uint8)
        ids = records["channel"].astype(np.int64)
        channel = self._ids.take(ids, mode="clip")
        bad = (channel < 0) & (ids != 0)
        bad |= kind - np.uint8(1) >= len(Kind)  # 0 wraps round
        if int(records["chan_seq"].max(initial=0)) >> SEQUENCE_BITS:
            bad |= records["chan_seq"] >= 1 << SEQUENCE_BITS
        if bad.any():
            records, marks, channel = (each[~bad] for each in (records, marks, channel))
        return Chunk(records, channel, clock_ns, marks), definitions

    def register(self, database: int, name: bytes) -> int:
        """The index of that channel in `channels`, where it is entered when it is new."""
        index = self._index.setdefault((database, name), len(self.channels))
        if index == len(self.channels):
            self.channels.append((database, _text(name)))
        return index

    def _define(self, record: Any) -> None:
        number, piece, count = int(record["channel"]), int(record["batch"]), int(record["lag"])
        if number >= _CHANNELS_MAX:
            return
        pieces = self._pieces.setdefault(number, [])
        if piece == 0:
            pieces.clear()
        pieces.append(record.tobytes()[:NAME_PIECE])
        if piece + 1 < count:
            return
        name = b"".join(self._pieces.pop(number))[: int(record["bytes"])]
        if len(pieces) != count or crc32c(name) != int(record["aux"]) & 0xFFFFFFFF:
            return
        index = self.register(int(record["peer"]), name)
        if number >= len(self._ids) - 1:
            wider = np.full(2 * number + 2, -1, dtype=np.int64)
            wider[: len(self._ids)] = self._ids
            self._ids = wider
        self._ids[number] = index
