"""Commit-to-receive latency per channel, process and wake reason.

Latency is a RECV record's ``ts`` (hand-over) less its ``ref_ts`` (the sender's commit): the message
carries it, so nothing is joined. Both are CLOCK_MONOTONIC of one host and boot. A negative one, and
one whose sender's log is of another host or boot, are counted and left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from spark_jobs.hgrm import write_all
from spark_jobs.histogram import BUCKETS, QUANTILES, bucket
from spark_jobs.jobs import JobResult
from spark_jobs.logs import Chunk, LogReader, Survey
from spark_jobs.quantiles import summarised
from spark_jobs.schema import WAKE_NAMES, Kind
from spark_jobs.source import file_reports, load
from spark_jobs.storage import Directory
from spark_jobs.tables import write_rows

TITLE = "commit-to-receive latency per channel, process and wake reason"
KEYS = ("engine", "database", "channel", "host", "boot_id", "pid", "wake")

SUMMARY = pa.schema(
    [
        *((name, pa.int64() if name in ("database", "pid") else pa.string()) for name in KEYS),
        *((name, pa.int64()) for name in ("n", "min_ns", *QUANTILES, "max_ns")),
        ("mean_ns", pa.float64()),
        ("rate_per_s", pa.float64()),
    ]
)
"""Of ``latency_summary/``."""

_FIGURES = {
    "sum_ns": "sum",
    "min_ns": "min",
    "max_ns": "max",
    "first_ns": "min",
    "last_ns": "max",
}
_WAKES = len(WAKE_NAMES)
_DENSE_SLOTS = 512
"""So many (channel, wake) pairs have an array of all buckets (64 KiB) each; more are sorted."""
_BUFFERED = 1 << 20


class _Histogram:
    """Counts per (slot, bucket) in bounded memory."""

    def __init__(self) -> None:
        self._dense = np.zeros(0, dtype=np.int64)
        self._pending: list[NDArray[np.int64]] = []
        self._buffered = 0
        self._keys = np.empty(0, dtype=np.int64)
        self._counts = np.empty(0, dtype=np.int64)

    def add(self, slot: NDArray[np.int64], values: NDArray[np.int64]) -> None:
        self._pending.append(slot * BUCKETS + bucket(values))
        self._buffered += len(slot)
        if self._buffered >= _BUFFERED:
            self._merge()

    def _merge(self) -> None:
        key = np.concatenate(self._pending)
        self._pending, self._buffered = [], 0
        if key.max(initial=0) < _DENSE_SLOTS * BUCKETS:
            counts = np.bincount(key, minlength=len(self._dense))
            counts[: len(self._dense)] += self._dense
            self._dense = counts
            return
        keys, counts = np.unique(key, return_counts=True)
        self._keys, inverse = np.unique(np.concatenate([self._keys, keys]), return_inverse=True)
        merged = np.zeros(len(self._keys), dtype=np.int64)
        np.add.at(merged, inverse, np.concatenate([self._counts, counts]))
        self._counts = merged

    def counts(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """(slot, bucket, count); a pair may appear twice."""
        if self._pending:
            self._merge()
        dense = np.flatnonzero(self._dense)
        keys = np.concatenate([dense, self._keys])
        return keys // BUCKETS, keys % BUCKETS, np.concatenate([self._dense[dense], self._counts])


class _Extremes:
    """Exact figures beside the histogram, per slot."""

    NAMES = ("n", "sum_ns", "min_ns", "max_ns", "first_ns", "last_ns")
    _START = (0, 0, np.iinfo(np.int64).max, 0, np.iinfo(np.int64).max, 0)

    def __init__(self) -> None:
        self.columns = [np.empty(0, dtype=np.int64) for _ in self.NAMES]

    def add(
        self,
        slot: NDArray[np.int64],
        values: NDArray[np.int64],
        ts: NDArray[np.int64],
        slots: int,
    ) -> None:
        short = slots - len(self.columns[0])
        if short > 0:
            self.columns = [
                np.concatenate([column, np.full(short, start, dtype=np.int64)])
                for column, start in zip(self.columns, self._START, strict=True)
            ]
        # A stable sort of 16-bit numbers is a radix sort.
        narrow = slot.astype(np.uint16) if slots <= 1 << 16 else slot
        order = np.argsort(narrow, kind="stable")
        slot, values, ts = slot[order], values[order], ts[order]
        start = np.flatnonzero(np.concatenate([[True], slot[1:] != slot[:-1]]))
        at = slot[start]
        n, total, low, high, first, last = self.columns
        n[at] += np.diff(np.append(start, len(slot)))
        total[at] += np.add.reduceat(values, start)
        low[at] = np.minimum(low[at], np.minimum.reduceat(values, start))
        high[at] = np.maximum(high[at], np.maximum.reduceat(values, start))
        first[at] = np.minimum(first[at], np.minimum.reduceat(ts, start))
        last[at] = np.maximum(last[at], np.maximum.reduceat(ts, start))


class Partials:
    """Rows with ``bucket``: n in that bucket. Rows without: `_Extremes` of that key."""

    COLUMNS = (
        pa.field("engine", pa.string()),
        pa.field("database", pa.int64()),
        pa.field("channel", pa.string()),
        pa.field("host", pa.string()),
        pa.field("boot_id", pa.string()),
        pa.field("pid", pa.int64()),
        pa.field("wake", pa.string()),
        pa.field("bucket", pa.int32()),
        *(pa.field(name, pa.int64()) for name in _Extremes.NAMES),
        pa.field("negative", pa.int64()),
        pa.field("other_clock", pa.int64()),
    )

    FIELDS = ("ts", "ref_ts", "kind", "wake", "peer")

    def __init__(self, reader: LogReader) -> None:
        self._reader = reader
        self._slot_of = np.empty(0, dtype=np.int64)
        self._pairs = np.empty(0, dtype=np.int64)
        self._histogram = _Histogram()
        self._extremes = _Extremes()
        self._negative = 0
        self._other_clock = 0

    def _slots(self, chunk: Chunk, which: NDArray[np.intp]) -> NDArray[np.int64]:
        """A dense number for each (channel, wake) that occurs."""
        wake = np.minimum(chunk.records["wake"][which], _WAKES - 1)
        pair = chunk.channel[which] * _WAKES + wake
        size = len(self._reader.channels) * _WAKES
        if len(self._slot_of) < size:
            self._slot_of = np.concatenate(
                [self._slot_of, np.full(2 * size - len(self._slot_of), -1, dtype=np.int64)]
            )
        slot: NDArray[np.int64] = self._slot_of[pair]
        if (slot < 0).any():
            fresh = np.unique(pair[slot < 0])
            self._slot_of[fresh] = len(self._pairs) + np.arange(len(fresh))
            self._pairs = np.concatenate([self._pairs, fresh])
            slot = self._slot_of[pair]
        return slot

    def add(self, chunk: Chunk) -> Iterator[Mapping[str, Any]]:
        records = chunk.records
        which = (records["kind"] == Kind.RECV) & (chunk.channel >= 0)
        if not which.any():
            return
        ts, sent = chunk.signed("ts"), chunk.signed("ref_ts")
        values = ts - sent
        which &= sent > 0
        comparable = self._reader.comparable(records)
        self._other_clock += int(np.count_nonzero(which & ~comparable))
        which &= comparable
        positive = values >= 0
        self._negative += int(np.count_nonzero(which & ~positive))
        which &= positive
        if which.any():
            at = np.flatnonzero(which)
            slot, values = self._slots(chunk, at), values[at]
            self._histogram.add(slot, values)
            self._extremes.add(slot, values, ts[at], len(self._pairs))
        yield from ()

    def _keys(self, slot: NDArray[np.int64]) -> dict[str, Any]:
        log, channels = self._reader.log, self._reader.channels
        pair = self._pairs[slot]
        names = pa.array([name for _, name in channels], type=pa.string())
        database = np.array([number for number, _ in channels], dtype=np.int64)
        return {
            "engine": log.engine,
            "host": log.host,
            "boot_id": log.boot_id,
            "pid": log.pid,
            "database": database[pair // _WAKES],
            "channel": names.take(pa.array(pair // _WAKES)),
            "wake": pa.array(WAKE_NAMES).take(pa.array(pair % _WAKES)),
        }

    def finish(self) -> Iterator[Mapping[str, Any]]:
        if self._negative or self._other_clock:
            yield {"negative": [self._negative], "other_clock": [self._other_clock]}
        if len(self._pairs) == 0:
            return
        slot, index, count = self._histogram.counts()
        yield self._keys(slot) | {"bucket": index, "n": count}
        figures = dict(zip(_Extremes.NAMES, self._extremes.columns, strict=True))
        yield self._keys(np.arange(len(self._pairs))) | figures


def _over_all_wakes(frame: DataFrame) -> DataFrame:
    return frame.withColumn("wake", sf.explode(sf.array(sf.lit("all"), sf.col("wake"))))


def histogram(partials: DataFrame, keys: Sequence[str] = KEYS) -> DataFrame:
    """keys, bucket, n: the whole histogram of each key."""
    rows = _over_all_wakes(partials.where(sf.col("bucket").isNotNull()))
    return rows.groupBy(*keys, "bucket").agg(sf.sum("n").alias("n"))


def summarise(partials: DataFrame, keys: Sequence[str] = KEYS) -> list[dict[str, Any]]:
    """One row per key, which must contain ``wake``: n, min, quantiles, max, mean (ns), rate."""
    named = _over_all_wakes(partials.where(sf.col("wake").isNotNull()))
    rows = [row.asDict() for row in summarised(named, keys, _FIGURES).collect()]
    return [_row(row, keys) for row in sorted(rows, key=lambda row: [row[key] for key in keys])]


def _row(found: dict[str, Any], keys: Sequence[str]) -> dict[str, Any]:
    n, span = found["n"], found["last_ns"] - found["first_ns"]
    names = (*keys, "n", "min_ns", *QUANTILES, "max_ns")
    return {name: found[name] for name in names} | {
        "mean_ns": found["sum_ns"] / n,
        "rate_per_s": (n - 1) * 1e9 / span if span else None,
    }


def left_out(partials: DataFrame) -> dict[str, int]:
    """How many receptions have no latency, and why."""
    sums = partials.agg(sf.sum("negative"), sf.sum("other_clock")).collect()[0]
    return {"negative_latencies": sums[0] or 0, "other_clock": sums[1] or 0}


def run(session: SparkSession, survey: Survey, out: Directory) -> JobResult:
    """Rows as API.md has them, plus engine, database, boot_id and rate_per_s.

    In `out`: the same as `latency_summary/`, the histograms as `latency_hist/`, and for plotters
    `hgrm/`, one file for all channels and one for each of the busiest.
    """
    partials = load(session, "latency", survey).persist()
    try:
        rows = summarise(partials)
        histogram(partials).write.mode("overwrite").parquet(str(out / "latency_hist"))
        write_rows(out / "latency_summary", rows, SUMMARY)
        write_all(partials.where(sf.col("bucket").isNotNull()), rows, out / "hgrm")
        return JobResult(rows, file_reports(partials, survey), totals=left_out(partials))
    finally:
        partials.unpersist()
