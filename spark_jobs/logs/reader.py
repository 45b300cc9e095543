"""Reading one log, as chunks of whole records, with an account of what is damaged."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spark_jobs.logs.checksum import crc32c, record_ok
from spark_jobs.logs.events import read_file
from spark_jobs.logs.model import CHUNK_RECORDS, Chunk, Log, LogFile, shown, text
from spark_jobs.logs.quality import FileReport
from spark_jobs.logs.schema import (
    FIELD_NAMES,
    HEADER_BYTES,
    NAME_PIECE,
    RECORD,
    RECORD_BYTES,
    SEQUENCE_BITS,
    Kind,
)

_MARKS = 24
"""Which 16-bit word of a record is `kind` and `wake`."""
_CHANNELS_MAX = 1 << 22
"""A channel's number in a file beyond this is taken for damage."""


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

    `fields` are the columns wanted of records from an archive; all without. ``peer`` is among them
    for `comparable`, unless `peers`: it is wanted for itself.
    """

    def __init__(
        self, log: Log, fields: Sequence[str] = FIELD_NAMES, *, peers: bool = False
    ) -> None:
        self.log = log
        self.fields = fields
        self._peers = peers or len(fields) == len(FIELD_NAMES)
        self.channels: list[tuple[int, str]] = []
        """(database, name)."""
        self.reports: list[FileReport] = []
        self._index: dict[tuple[int, bytes], int] = {}
        self._ids = np.empty(0, dtype=np.int64)
        """Id in the file -> index in `channels`; -1 if not defined, as are the first and last."""
        self._buffer = _aligned(CHUNK_RECORDS)
        self._pieces: dict[int, list[bytes]] = {}
        self._passed = 0

    @property
    def incomplete(self) -> bool:
        """Whether records are missing; certain after the last chunk."""
        return bool(self.log.incomplete) or any(report.damaged for report in self.reports)

    def chunks(self) -> Iterator[Chunk]:
        if self.log.within is None:
            return self._all_chunks()
        begin, end = self.log.within
        return (chunk.within(begin, end) for chunk in self._all_chunks())

    def counted(self, count: Callable[[int], None]) -> Iterator[Chunk]:
        """The chunks. After each, and at the end, `count` is told how many records more are done
        with: read, damaged, or of another time.
        """
        told = 0
        for chunk in self.chunks():
            yield chunk
            count(self._passed - told)
            told = self._passed
        count(self._passed - told)

    def _all_chunks(self) -> Iterator[Chunk]:
        passed = 0
        for file in self.log.files:
            self._passed = passed
            passed += file.records
            yield from self._chunks_of(file)
        self._passed = passed

    def _chunks_of(self, file: LogFile) -> Iterator[Chunk]:
        report = FileReport(shown(file.path), 0, 0, [])
        self.reports.append(report)
        if self.log.incomplete and file is self.log.files[-1]:
            report.problems.append(self.log.incomplete)
        if file.archived:
            fields = self._stored_fields()
            for chunk in read_file(file, report, fields, self.register, self.log.within):
                self._passed += len(chunk.channel)
                yield chunk
            return
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

    def _stored_fields(self) -> list[str]:
        """The fields wanted; ``peer`` only where `comparable` needs it, or for itself."""
        unused = self.log.own_clock is None and not self._peers
        return [name for name in self.fields if not (unused and name == "peer")]

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
                self._passed += count
                good = record_ok(records, file.version)
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
            self.channels.append((database, text(name)))
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
