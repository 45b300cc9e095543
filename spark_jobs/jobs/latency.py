"""Commit-to-receive latency per channel, process and wake reason.

Latency is a RECV record's ``ts`` (hand-over) less its ``ref_ts`` (the sender's commit): the message
carries it, so nothing is joined. Both are CLOCK_MONOTONIC of one host and boot. A negative one, and
one whose sender's log is of another host or boot, are counted and left out.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from spark_jobs.hgrm import EVERYTHING, MOST_CHANNELS, Channel, Counts, busiest, write_all
from spark_jobs.histogram import BUCKETS, QUANTILES, bucket
from spark_jobs.jobs import JobResult
from spark_jobs.logs import Chunk, LogReader, Survey
from spark_jobs.merge import CHANNEL, CHANNEL_KEYS, HISTOGRAM, KEY, KEYS, WHOLE, lists, merged
from spark_jobs.quantiles import summarised
from spark_jobs.schema import WAKE_NAMES, Kind
from spark_jobs.source import FILE_COLUMNS, load, reports_of
from spark_jobs.storage import Directory
from spark_jobs.tables import write_rows

TITLE = "commit-to-receive latency per channel, process and wake reason"

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
_BUFFERED = 1 << 21
_EXACT = 1 << 53
"""Sums below are exact in floating point."""


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
        if short:
            self.columns = [
                np.concatenate([column, np.full(short, start, dtype=np.int64)])
                for column, start in zip(self.columns, self._START, strict=True)
            ]
        n, total, low, high, first, last = self.columns
        n += np.bincount(slot, minlength=slots)
        if int(values.max()) < _EXACT // len(values):
            total += np.bincount(slot, values, slots).astype(np.int64)
        else:
            np.add.at(total, slot, values)
        # After the first chunks hardly any value is beyond what was seen.
        for column, kept, how in (
            (values, low, np.minimum),
            (values, high, np.maximum),
            (ts, first, np.minimum),
        ):
            seen = kept[slot]
            beyond = np.flatnonzero(how(column, seen) != seen)
            how.at(kept, slot[beyond], column[beyond])
        if (ts[1:] >= ts[:-1]).all():
            latest = last.copy()
            latest[slot] = ts  # of equal slots the last one stays
            np.maximum(last, latest, out=last)
        else:
            np.maximum.at(last, slot, ts)


class Rows:
    """Rows with ``bucket``: n in that bucket. Rows without: `_Extremes` of that key."""

    COLUMNS: tuple[pa.Field[Any], ...] = (
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

    def _slots(self, channel: NDArray[np.int64], wake: NDArray[np.uint8]) -> NDArray[np.int64]:
        """A dense number for each (channel, wake) that occurs."""
        pair = channel * _WAKES + np.minimum(wake, _WAKES - 1)
        size = len(self._reader.channels) * _WAKES
        if len(self._slot_of) < size:
            self._slot_of = np.concatenate(
                [self._slot_of, np.full(2 * size - len(self._slot_of), -1, dtype=np.int64)]
            )
        slot: NDArray[np.int64] = self._slot_of[pair]
        if slot.min() < 0:
            fresh = np.unique(pair[slot < 0])
            self._slot_of[fresh] = len(self._pairs) + np.arange(len(fresh))
            self._pairs = np.concatenate([self._pairs, fresh])
            slot = self._slot_of[pair]
        return slot

    def add(self, chunk: Chunk) -> Iterator[Mapping[str, Any]]:
        records = chunk.records
        at = np.flatnonzero((records["kind"] == Kind.RECV) & (chunk.channel >= 0))
        if len(at) == 0:
            return
        ts, sent = (records[name][at].view(np.int64) for name in ("ts", "ref_ts"))
        values = ts - sent
        good = (sent > 0) & (values >= 0)
        if self._reader.log.own_clock is not None or not good.all():
            comparable = self._reader.comparable(records)[at]
            self._other_clock += int(np.count_nonzero((sent > 0) & ~comparable))
            self._negative += int(np.count_nonzero((sent > 0) & comparable & (values < 0)))
            good &= comparable
            at, ts, values = at[good], ts[good], values[good]
        if len(at):
            slot = self._slots(chunk.channel[at], records["wake"][at])
            self._histogram.add(slot, values)
            self._extremes.add(slot, values, ts, len(self._pairs))
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

    def _left_out(self) -> Iterator[Mapping[str, Any]]:
        if self._negative or self._other_clock:
            yield {"negative": [self._negative], "other_clock": [self._other_clock]}

    def _figures(self) -> dict[str, Any]:
        figures = dict(zip(_Extremes.NAMES, self._extremes.columns, strict=True))
        return self._keys(np.arange(len(self._pairs))) | figures

    def finish(self) -> Iterator[Mapping[str, Any]]:
        yield from self._left_out()
        if len(self._pairs):
            slot, index, count = self._histogram.counts()
            yield self._keys(slot) | {"bucket": index, "n": count}
            yield self._figures()


class Partials(Rows):
    """A row per key: `_Extremes`, and the whole histogram in two lists."""

    COLUMNS = (*(field for field in Rows.COLUMNS if field.name != "bucket"), *HISTOGRAM)

    def finish(self) -> Iterator[Mapping[str, Any]]:
        yield from self._left_out()
        if len(self._pairs):
            slot, index, count = self._histogram.counts()
            order = np.argsort(slot, kind="stable")
            columns = lists(slot[order], index[order], count[order], len(self._pairs))
            yield self._figures() | columns


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


def _per_bucket(rows: DataFrame) -> DataFrame:
    pairs = sf.inline(sf.arrays_zip("buckets", "counts")).alias("bucket", "n")
    return rows.select(*KEYS, pairs)


def unpacked(partials: DataFrame) -> DataFrame:
    """What `Partials` gave as `Rows` would have, for `summarise` by other keys."""
    figures = partials.drop("buckets", "counts")
    return figures.unionByName(_per_bucket(partials), allowMissingColumns=True)


def _write_histograms(found: DataFrame, directory: str) -> None:
    _per_bucket(found.where(sf.col("scope") == KEY)).write.mode("overwrite").parquet(directory)


def _distributions(found: DataFrame, chosen: Collection[Channel]) -> dict[Channel, Counts]:
    """As `hgrm.distributions`, of what is added up already."""
    wanted = (sf.col("scope") == CHANNEL) & sf.col("channel").isin([name for _, _, name in chosen])
    rows = found.where(wanted | (sf.col("scope") == WHOLE)).select(
        "scope", *CHANNEL_KEYS, "buckets", "counts"
    )
    whole = np.zeros(BUCKETS, dtype=np.int64)
    result: dict[Channel, Counts] = {}
    for row in rows.toLocalIterator():
        key = (row.engine, row.database, row.channel)
        if row.scope == WHOLE:
            whole[row.buckets] += row.counts
        elif key in chosen:  # another engine may have one of that name
            result[key] = np.array([row.buckets, row.counts])
    if whole.any():
        result[EVERYTHING] = np.array([np.flatnonzero(whole), whole[whole > 0]])
    return result


def run(session: SparkSession, survey: Survey, out: Directory) -> JobResult:
    """Rows as API.md has them, plus engine, database, boot_id and rate_per_s.

    In `out`: the same as `latency_summary/`, the histograms as `latency_hist/`, and for plotters
    `hgrm/`, one file for all channels and one for each of the busiest.
    """
    columns = (*Partials.COLUMNS, *FILE_COLUMNS)
    found = merged(load(session, "latency", survey), columns).persist()
    try:
        plain = [name for name in found.columns if name not in ("buckets", "counts")]
        small = found.where(sf.coalesce(sf.col("scope"), sf.lit(KEY)) == KEY).select(*plain)
        collected = [row.asDict() for row in small.collect()]
        listeners = [row for row in collected if row["scope"] == KEY]
        listeners.sort(key=lambda row: [row[key] for key in KEYS])
        rows = [_row(row, KEYS) for row in listeners]
        _write_histograms(found, str(out / "latency_hist"))
        write_rows(out / "latency_summary", rows, SUMMARY)
        chosen = busiest(rows, MOST_CHANNELS)
        write_all(_distributions(found, chosen), rows, out / "hgrm")
    finally:
        found.unpersist()
    totals = {
        "negative_latencies": sum(row["negative"] or 0 for row in collected),
        "other_clock": sum(row["other_clock"] or 0 for row in collected),
    }
    reports = reports_of((row for row in collected if row["file"] is not None), survey)
    return JobResult(rows, reports, totals=totals)
