"""Writes latency logs as the engine does, in numpy; so that tests can say what is in them."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np

from spark_jobs.logs import schema
from spark_jobs.logs.checksum import crc32c, record_crcs
from spark_jobs.logs.header import guarded
from spark_jobs.logs.schema import Kind

_logs = itertools.count(1)
HOST = "testhost"
BOOT = "00000000-1111-2222-3333-444444444444"


_ALL = (1 << 64) - 1
_LOW = (1 << 32) - 1


class LogWriter:
    """One log of one connection; nothing is on disk before `write`."""

    def __init__(
        self,
        directory: Path,
        pid: int = 1,
        *,
        engine: str = "engine",
        host: str = HOST,
        clock: int | None = None,
        version: int = schema.VERSION,
        **head: Any,
    ) -> None:
        """`clock`: realtime less monotonic; None leaves no anchor behind. `version`: 1 for the
        format as it was, `revision` then 0 for the one that it was first.
        """
        self.directory = directory
        self.version = version
        self.clock = clock
        self.head = {
            "log_id": next(_logs),
            "pid": pid,
            "host": host,
            "boot_id": BOOT,
            "starttime": 1000 + pid,
            "segment": engine,
            "backend_id": pid,
        } | head
        self.channels: dict[tuple[int, str], int] = {}
        self.batches: list[np.ndarray] = []

    def channel(self, name: str, database: int = 1) -> int:
        return self.channels.setdefault((database, name), len(self.channels) + 1)

    def add(
        self, kind: Kind, count: int = 1, *, channel: str | None = None, **columns: Any
    ) -> None:
        """`count` records; a column is one value for all or one for each."""
        records = np.zeros(count, dtype=schema.RECORD)
        records["kind"] = kind
        records["ts"] = 1
        if channel is not None:
            records["channel"] = self.channel(channel, columns.pop("database", 1))
        for name, values in columns.items():
            records[name] = values
        self.batches.append(records)

    def records(self) -> np.ndarray:
        if not self.batches:
            return np.empty(0, dtype=schema.RECORD)
        return np.concatenate(self.batches)

    def definitions(self) -> np.ndarray:
        result = []
        for (database, name), number in self.channels.items():
            raw = name.encode()
            pieces = [raw[i : i + 32] for i in range(0, len(raw), 32)]
            for i, piece in enumerate(pieces):
                record = np.frombuffer(bytearray(piece.ljust(64, b"\0")), dtype=schema.RECORD)
                record["kind"] = Kind.CHANDEF
                record["channel"], record["bytes"] = number, len(raw)
                record["peer"], record["lag"], record["batch"] = database, len(pieces), i
                record["aux"] = crc32c(raw)
                result.append(record)
        return np.concatenate(result) if result else np.empty(0, dtype=schema.RECORD)

    def write(self, *, files: int = 1, sealed: bool = True, dropped: int = 0) -> list[Path]:
        """Writes the log in `files` files and returns their paths."""
        self.directory.mkdir(exist_ok=True)
        paths = []
        for part, piece in enumerate(np.array_split(self.records(), files)):
            body = np.concatenate([self.definitions(), piece])
            body["aux"] &= np.uint64(0xFFFFFFFF)
            body["aux"] |= record_crcs(body, self.version).astype(np.uint64) << np.uint64(32)
            end = schema.ROTATED if part < files - 1 else schema.CLOSED if sealed else schema.OPEN
            head = self.header(len(body), part, end, dropped)
            boot, pid, start = self.head["boot_id"][:8], self.head["pid"], self.head["starttime"]
            segno = self.head["log_id"] * 100 + part
            path = self.directory / f"{self.head['host']}.{boot}.{pid}.{start}.{segno}.pynlog"
            path.write_bytes(head + body.tobytes())
            paths.append(path)
        return paths

    def header(self, committed: int, part: int, end: int, dropped: int) -> bytes:
        first = self.version == 1
        head = np.zeros(1, dtype=schema.HEADER_1 if first else schema.HEADER)
        text = json.dumps({"record": schema.RECORD.descr}).encode()
        constants = {
            "magic": schema.MAGIC[:-1] + bytes([self.version]),
            "endian": schema.ENDIAN,
            "header_len": schema.HEADER_BYTES,
            "record_len": schema.RECORD_BYTES,
            "schema_id": crc32c(text if first else text.ljust(2944, b"\0")),
            "schema_off": 1152,
            "schema_len": len(text),
            "schema": text,
            "capacity": committed,
            "segno": part,
            "part": part,
            "revision": schema.REVISION_1 if first else schema.REVISION,
        }
        for name, value in (constants | self.head).items():
            head[name] = value
        if self.clock is not None:
            anchor = head["anchors"][0][:1]
            anchor["monotonic_ns"], anchor["realtime_ns"] = 5, 5 + self.clock
            anchor["crc"] = crc32c(anchor.tobytes()[: 24 if first else 28])
        crc = crc32c(head.tobytes()[: schema.HEADER_CRC_BYTES])
        head["header_crc"] = crc
        if not first:
            head["state"] = guarded(committed | end << schema.END_SHIFT, crc)
            head["dropped"] = guarded(min(dropped, _LOW), crc ^ _LOW)
        elif head["revision"] == 0:
            head["committed"], head["dropped"], head["sealed"] = committed, dropped, end != 0
        else:
            head["committed"], head["committed_not"] = committed, committed ^ _ALL
            head["dropped"], head["dropped_not"] = dropped, dropped ^ _ALL
            head["sealed"] = schema.ENDS_1[end]
        return head.tobytes()


def payload_crc(channel: str, seq: np.ndarray) -> np.ndarray:
    """A checksum that stands for message `seq` of `channel`."""
    mixed = (seq.astype(np.uint64) * np.uint64(2654435761)) ^ np.uint64(crc32c(channel.encode()))
    return mixed & np.uint64(0xFFFFFFFF)


def sends(log: LogWriter, channel: str, seq: np.ndarray, **columns: Any) -> None:
    log.add(
        Kind.SEND,
        len(seq),
        channel=channel,
        chan_seq=seq,
        **{"aux": payload_crc(channel, seq), "ts": 1000 + seq * 10, "commit_seq": seq} | columns,
    )


def receives(log: LogWriter, channel: str, seq: np.ndarray, **columns: Any) -> None:
    log.add(
        Kind.RECV,
        len(seq),
        channel=channel,
        chan_seq=seq,
        **{
            "aux": payload_crc(channel, seq),
            "ts": 1500 + seq * 10,
            "ref_ts": 1000 + seq * 10,
            "commit_seq": seq,
        }
        | columns,
    )


def flip_bit(path: Path, record: int, bit: int = 3) -> None:
    """Flips one bit of that record (CHANDEFs count) of a file."""
    raw = bytearray(path.read_bytes())
    raw[schema.HEADER_BYTES + record * schema.RECORD_BYTES + 24] ^= 1 << bit
    path.write_bytes(raw)
