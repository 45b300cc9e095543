"""Signals sent, against wake-ups that found something, per process.

A WAKE record that found something is followed by the messages it found, the first of which is the
one that it was woken for: from that one's commit to the end of the sleep is the *wake latency*.

A log may be read in pieces. One may end with a wake-up, and the next begin with the message: each
tells its last wake-up and its first message, and they are put together afterwards.

A WAKE record with a channel is of a topic's consumer. These are counted by themselves: the signals
that wake consumers are not.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_jobs.directory import Directory
from spark_jobs.engine.base import Engine, summed
from spark_jobs.engine.partials import reports_of
from spark_jobs.engine.tables import write_table
from spark_jobs.figures.histogram import BUCKETS, bucket
from spark_jobs.figures.quantiles import HISTOGRAM, lists, summarised
from spark_jobs.logs.model import Chunk, Survey
from spark_jobs.logs.reader import LogReader
from spark_jobs.logs.schema import USEFUL, WAKE_NAMES, Kind, Wake
from spark_jobs.result import JobResult

KEYS = ("host", "boot_id", "pid")
REASONS = tuple(f"wakes_{wake.name.lower()}" for wake in Wake)
COUNTS = (
    "signalling_commits",
    "signals_sent",
    "wakes",
    "useful_wakes",
    "messages",
    "gaps",
    *REASONS,
    "consumer_wakes",
    "useful_consumer_wakes",
)
_TIMES = ("p50_ns", "p99_ns")


class Partials:
    """One row per log, or piece of it, with the histogram of its wake latencies.

    Of a piece also `woken_at`, the wake-up that it ends with (0: none; null: no records), and
    `sent`, the commit of the message that it begins with (0: none).
    """

    COLUMNS = (
        pa.field("host", pa.string()),
        pa.field("boot_id", pa.string()),
        pa.field("pid", pa.int64()),
        *(pa.field(name, pa.int64()) for name in COUNTS),
        pa.field("min_ns", pa.int64()),
        pa.field("max_ns", pa.int64()),
        pa.field("n", pa.int64()),
        *HISTOGRAM,
        pa.field("log_id", pa.string()),
        *(pa.field(name, pa.int64()) for name in ("part", "woken_at", "sent")),
    )
    BY_FILE = True
    FIELDS = ("ts", "ref_ts", "kind", "flags", "batch", "wake", "aux", "peer")

    def __init__(self, reader: LogReader) -> None:
        self._reader = reader
        self._totals = dict.fromkeys(COUNTS, 0)
        self._histogram = np.zeros(BUCKETS, dtype=np.int64)
        self._low, self._high = np.iinfo(np.int64).max, 0
        self._woken_at = 0
        """Set by a wake-up at the very end of the chunk before."""
        self._sent: int | None = None

    def add(self, chunk: Chunk) -> Iterator[Mapping[str, Any]]:
        kind = chunk.records["kind"]
        signal = chunk.records["aux"][kind == Kind.SIGNAL] & np.uint64(0xFFFFFFFF)
        slept = kind == Kind.WAKE
        consumers = chunk.records["flags"][slept & (chunk.channel >= 0)] & USEFUL
        wake = chunk.records[slept & (chunk.channel < 0)]
        reasons = np.bincount(np.minimum(wake["wake"], len(WAKE_NAMES) - 1), minlength=len(Wake))
        found = (
            len(signal),
            int(signal.sum()),
            len(wake),
            int(np.count_nonzero(wake["flags"] & USEFUL)),
            int(wake["batch"].sum(dtype=np.int64)),
            int(np.count_nonzero(kind == Kind.DROP)),
            *reasons[: len(Wake)].tolist(),
            len(consumers),
            int(np.count_nonzero(consumers)),
        )
        for name, value in zip(COUNTS, found, strict=True):
            self._totals[name] += value
        if len(kind):
            self._time(chunk)
        yield from ()

    def _time(self, chunk: Chunk) -> None:
        records, ts = chunk.records, chunk.signed("ts")
        useful = (records["kind"] == Kind.WAKE) & ((records["flags"] & USEFUL) != 0)
        useful &= chunk.channel < 0
        by_signal = useful & (records["wake"] == Wake.SIGNAL)
        woken = np.concatenate([[self._woken_at], np.where(by_signal, ts, 0)])
        self._woken_at = int(woken[-1])
        first = (records["kind"] == Kind.RECV) & (records["ref_ts"] > 0)
        first &= self._reader.comparable(records)
        if self._sent is None:
            self._sent = int(records["ref_ts"][0]) if first[0] else 0
        first &= woken[:-1] > 0
        latency = woken[:-1][first] - chunk.signed("ref_ts")[first]
        # What was committed after it woke is not what it was woken for.
        latency = latency[latency >= 0]
        if len(latency):
            self._histogram += np.bincount(bucket(latency), minlength=BUCKETS)
            self._low = min(self._low, int(latency.min()))
            self._high = max(self._high, int(latency.max()))

    def finish(self) -> Iterator[Mapping[str, Any]]:
        log = self._reader.log
        process = {"host": log.host, "boot_id": log.boot_id, "pid": log.pid}
        times = np.flatnonzero(self._histogram)
        extremes = {"min_ns": [self._low], "max_ns": [self._high]} if len(times) else {}
        counted = lists(np.zeros(len(times), dtype=np.int64), times, self._histogram[times], 1)
        told: dict[str, Any] = {}
        if log.is_piece:
            told = {"log_id": log.log_id, "part": [log.files[0].part]}
            if self._sent is not None:
                told |= {"woken_at": [self._woken_at], "sent": [self._sent]}
        figures = {name: [value] for name, value in self._totals.items()}
        yield process | figures | extremes | counted | told


def _between(rows: pa.Table) -> pa.Table:
    """A row for each wake latency from one piece to the next."""
    names = [*KEYS, "log_id", "part", "woken_at", "sent"]
    pieces = rows.filter(pc.is_valid(rows["woken_at"])).select(names).to_pylist()
    found = []
    before: dict[str, Any] = {"log_id": None}
    for row in sorted(pieces, key=lambda row: (row["log_id"], row["part"])):
        if row["log_id"] == before["log_id"] and row["sent"] and before["woken_at"] >= row["sent"]:
            took = before["woken_at"] - row["sent"]
            own = {name: row[name] for name in KEYS} | dict.fromkeys(COUNTS, 0)
            counted = {"buckets": bucket([took]).tolist(), "counts": [1]}
            found.append(own | {"min_ns": took, "max_ns": took} | counted)
        before = row
    return pa.Table.from_pylist(found, rows.schema)


def table(rows: pa.Table) -> pa.Table:
    """One row per process."""
    how = dict.fromkeys(COUNTS, "sum") | {"min_ns": "min", "max_ns": "max"}
    return summarised(pa.concat_tables([rows, _between(rows)]), KEYS, how)


def _ratio(numerator: int, denominator: int) -> float | None:
    return numerator / denominator if denominator else None


def _derived(row: dict[str, Any]) -> dict[str, Any]:
    result = {name: row[name] for name in (*KEYS, *COUNTS) if name in row}
    result["useless_wakes"] = row["wakes"] - row["useful_wakes"]
    result["messages_per_useful_wake"] = _ratio(row["messages"], row["useful_wakes"])
    return result | {f"wake_{name}": row[name] for name in _TIMES if name in row}


def run(engine: Engine, survey: Survey, out: Directory) -> JobResult:
    """Rows: host, boot_id, pid, the `COUNTS`, useless_wakes, messages_per_useful_wake, and
    wake_p50_ns and wake_p99_ns: from the commit to the end of the sleep that a signal ended.

    Signals are counted with the process that sent them, wake-ups with the one that was woken, so
    the ratio of the two is a figure of the whole: ``totals.signals_per_useful_wake``.
    """
    found, others = summed(engine.load("wakeups", survey), KEYS, table)
    write_table(out / "wakeups", found)
    rows = [_derived(row) for row in found.to_pylist()]
    totals = _derived({name: sum(row[name] for row in rows) for name in COUNTS})
    totals["signals_per_useful_wake"] = _ratio(totals["signals_sent"], totals["useful_wakes"])
    return JobResult(rows, reports_of(others, survey), totals=totals)
