"""The journals of the soak test; native/tests/support/soak_journal.h has the format."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

RECORD = np.dtype(
    [
        ("kind", "u1"),
        ("flag", "u1"),
        ("channel", "<u2"),
        ("connection", "<u4"),
        ("txn", "<u4"),
        ("index", "<u2"),
        ("count", "<u2"),
        ("seq", "<u8"),
        ("time", "<i8"),
    ]
)
assert RECORD.itemsize == 32

INTENT, EVENT, LISTEN, UNLISTEN, UNLISTEN_ALL, BUMP = b"BELUAG"
COMMITTED, FAILED, RECEIVED, DRAINED, GAP, CLOSED, ENDED, ERROR = b"CFRDYQZX"

FLAW_CONTENT, FLAW_CHANNEL, FLAW_COUNTER = 1, 2, 4
FLAWS = {FLAW_CONTENT: "content", FLAW_CHANNEL: "channel", FLAW_COUNTER: "counter"}

SHARED_CHANNELS = 8
CHANNEL_END = 100
CHANNEL_OWN = 200


def channel_name(channel: int, connection: int) -> str:
    if channel == CHANNEL_OWN:
        return f"me.{connection}"
    return "end" if channel == CHANNEL_END else f"c{channel}"


class Journal:
    """What one connection writes down.  Nothing is kept back: a write is there after SIGKILL."""

    def __init__(self, directory: Path, connection: int) -> None:
        self.connection = connection
        self._fd = os.open(
            directory / f"{connection}.journal",
            os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC,
            0o600,
        )

    def write(self, records: NDArray[Any]) -> None:
        data = records.tobytes()
        while data:
            data = data[os.write(self._fd, data) :]

    def record(self, kind: int, **fields: int) -> NDArray[Any]:
        records = np.zeros(1, RECORD)
        records["kind"] = kind
        records["connection"] = self.connection
        for name, value in fields.items():
            records[name] = value
        return records

    def note(self, kind: int, **fields: int) -> None:
        self.write(self.record(kind, **fields))

    def intent(self, txn: int, parts: list[dict[str, int]]) -> None:
        records = [self.record(INTENT, txn=txn, count=len(parts), time=time.monotonic_ns())]
        records += [self.record(txn=txn, **part) for part in parts]
        self.write(np.concatenate(records))

    def outcome(self, txn: int, error: int = 0) -> None:
        kind = FAILED if error else COMMITTED
        self.note(kind, txn=txn, seq=error, time=time.monotonic_ns())

    def close(self) -> None:
        os.close(self._fd)


def read(path: Path) -> NDArray[Any]:
    return np.fromfile(path, RECORD)
