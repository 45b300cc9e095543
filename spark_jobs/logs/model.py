"""What a survey finds and a reader yields: segments, logs, and chunks of their records.

A *segment* is one file of one writing connection, a *log* all of its files, in order; they share
``log_id``.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spark_jobs.logs.quality import FileReport
from spark_jobs.logs.schema import INITIAL_TIME_NAMESPACE, RECORD_BYTES, VERSION
from spark_jobs.logs.stored import Piece

CHUNK_RECORDS = 16384
"""1 MiB: stays in the second-level cache while its columns are taken out one by one."""


@dataclass(frozen=True)
class LogFile:
    """One readable file: `records` are there of the `committed` that it claims.

    `clock_ns`: what to add to a time stamp for the wall clock; 0 if the file does not tell. A file
    that was archived has its records in `events` (Parquet), as `segment` of the archive at `root`;
    what was found damaged when that was done is in `damaged` and `problems`, and `records` are the
    whole ones.
    """

    path: str
    part: int
    committed: int
    records: int
    clock_ns: int = 0
    events: tuple[Piece, ...] = ()
    archived: bool = False
    damaged: int = 0
    problems: tuple[str, ...] = ()
    root: str = ""
    segment: str = ""
    version: int = VERSION
    """The version of the format."""


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
    rotated: bool = False
    """Sealed because the log went on in another file."""
    time_namespace: int = 0
    """Inode; 0: that of the host, or not known."""

    @property
    def name(self) -> str:
        """The same for every copy of the segment, and for nothing else."""
        return f"{self.log_id:016x}-{self.file.part:05}"


@dataclass(frozen=True)
class Log:
    """All files of one writing connection.

    `closed`: its last file was sealed. `rotated`: though another was to follow. `alive`: neither,
    and its process runs on this host.
    `incomplete`: why records are known to be missing, before any was read; "" if none is.
    `own_clock`: backends of the engine whose time stamps come from the same `clock` as this log's;
    None: all do, because all of the engine's logs were written there.
    `within`: only records of that time are wanted, from and to ns of the wall clock.
    `in_order`: it is not to be read in pieces. `is_piece`: of this one other files are read
    elsewhere.
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
    within: tuple[int, int] | None = None
    rotated: bool = False
    time_namespace: int = 0
    in_order: bool = False
    is_piece: bool = False

    @property
    def clock(self) -> str:
        """Time stamps compare only where this is equal: a boot, and its namespace of clocks.

        Not the host's name, which each container has another one of. Where no boot is known it is
        the best there is.
        """
        if self.boot_id == "unknown":
            return f"{self.boot_id}@{self.host}"
        if self.time_namespace in (0, INITIAL_TIME_NAMESPACE):
            return self.boot_id
        return f"{self.boot_id}+{self.time_namespace}"

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
            events = tuple(Piece(**piece) for piece in file["events"])
            problems = tuple(file["problems"])
            files.append(LogFile(**file | {"events": events, "problems": problems}))
        for name in ("own_clock", "within"):
            if fields[name] is not None:
                fields[name] = tuple(fields[name])
        return Log(**fields | {"files": tuple(files)})


@dataclass
class Survey:
    """What was found: readable logs and the segments in them, and a report on each other file."""

    logs: list[Log] = field(default_factory=list)
    unreadable: list[FileReport] = field(default_factory=list)
    segments: list[Segment] = field(default_factory=list)


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
    """`kind` and `wake` of each record, if the reader took them out already."""

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

    def within(self, begin: int, end: int) -> Chunk:
        """The records of that time, in ns of the wall clock."""
        at = self.signed("ts") + self.clock_ns
        which = (at >= begin) & (at < end)
        if which.all():
            return self
        marks = None if self.marks is None else self.marks[which]
        return Chunk(self.records[which], self.channel[which], self.clock_ns, marks)

    def signed(self, name: str) -> NDArray[np.int64]:
        """A column of 64-bit numbers."""
        return self.records[name].astype(np.int64)


def text(value: bytes) -> str:
    return value.decode("utf-8", "backslashreplace")


def shown(path: str | os.PathLike[str]) -> str:
    """The path as text that can be written anywhere, whatever bytes it has."""
    return text(os.fsencode(path))
