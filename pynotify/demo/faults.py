"""BREAK=drop|dup|swap|flip: one fault in what a surviving listener was handed, to be found.

The fault is put into that listener's latency log, after the run and before the audit.  The engine
writes the log in C, in the same call that hands the messages over, so there is no place between
the two where Python could stand; and an engine that can be told to lose messages is one more way
to lose them.  What the log says afterwards is what an engine with that fault would have written,
to the byte: the record's own CRC is computed again, so that the audit does not find a damaged
record (which proves nothing, and is no violation) but a sound record of something that must not be.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

FAULTS = {
    "drop": "all messages but one",
    "dup": "one message twice",
    "swap": "two messages of a channel in the wrong order",
    "flip": "one payload with a bit flipped",
}


class NothingToBreakError(Exception):
    """The listener's log holds no two messages of one channel."""


def _log_files(logs: Path, pid: int) -> list[Path]:
    """The log files of the process, the largest first."""
    files = [path for path in logs.glob("*.pynlog") if path.name.split(".")[-4] == str(pid)]
    return sorted(files, key=lambda path: -path.stat().st_size)


def _two_of_a_channel(records: NDArray[Any]) -> tuple[int, int]:
    """Indices of two successive receives on one channel, from the middle of the log."""
    import numpy as np  # noqa: PLC0415  # as the imports of spark_jobs below: only the parent

    from spark_jobs.logs.schema import Kind  # noqa: PLC0415

    received = np.flatnonzero(records["kind"] == Kind.RECV)
    for at in range(len(received) // 2, len(received) - 1):
        first = received[at]
        later = received[at + 1 :]
        same = later[records["channel"][later] == records["channel"][first]]
        if len(same):
            return int(first), int(same[0])
    raise NothingToBreakError("the listener's log is too short to break")


def _seal(records: NDArray[Any]) -> None:
    """The CRC that each record should carry."""
    import numpy as np  # noqa: PLC0415

    from spark_jobs.logs.checksum import record_crcs  # noqa: PLC0415

    low = records["aux"] & np.uint64(0xFFFFFFFF)
    records["aux"] = record_crcs(records).astype(np.uint64) << np.uint64(32) | low


def _broken(records: NDArray[Any], fault: str) -> NDArray[np.void]:
    import numpy as np  # noqa: PLC0415

    first, second = _two_of_a_channel(records)
    if fault == "drop":
        return np.delete(records, first)
    if fault == "dup":
        return np.insert(records, second, records[first])
    result = records.copy()
    if fault == "swap":
        result[[first, second]] = records[[second, first]]
        # The log's clock goes on: what is exchanged is what was handed over, not when.
        result["ts"] = records["ts"]
    elif fault == "flip":
        result["aux"][first] ^= np.uint64(1)
    else:
        raise ValueError(f"unknown fault {fault!r}")
    _seal(result)
    return result


def tamper(logs: Path, pid: int, fault: str) -> str:
    """Put the fault into the log of the listener `pid`; says what it was handed thereby."""
    import numpy as np  # noqa: PLC0415

    from spark_jobs.logs.header import counted, with_count  # noqa: PLC0415
    from spark_jobs.logs.schema import HEADER_BYTES, RECORD, RECORD_BYTES  # noqa: PLC0415

    files = _log_files(logs, pid)
    if not files:
        raise NothingToBreakError(f"process {pid} has no log in {logs}")
    raw = files[0].read_bytes()
    header = raw[:HEADER_BYTES]
    committed = min(counted(header), (len(raw) - HEADER_BYTES) // RECORD_BYTES)
    records = np.frombuffer(raw, dtype=RECORD, count=committed, offset=HEADER_BYTES).copy()
    broken = _broken(records, fault)
    files[0].write_bytes(with_count(header, len(broken)) + broken.tobytes())
    return FAULTS[fault]
