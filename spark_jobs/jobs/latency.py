"""Commit-to-receive latency per channel, process and wake reason.

Latency is a RECV record's ``ts`` (hand-over) less its ``ref_ts`` (the sender's commit): the message
carries it, so nothing is joined. Both are CLOCK_MONOTONIC of one host and boot. A negative one, and
one whose sender's log is of another host or boot, are counted and left out.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from spark_jobs.directory import Directory
from spark_jobs.engine.base import Engine, Reduced
from spark_jobs.engine.partials import reports_of
from spark_jobs.engine.tables import write_rows, write_table
from spark_jobs.figures.hgrm import EVERYTHING, MOST_CHANNELS, Channel, Counts, busiest, write_all
from spark_jobs.figures.histogram import BUCKETS, QUANTILES, bucket
from spark_jobs.figures.merge import (
    CHANNEL,
    CHANNEL_KEYS,
    COUNTS,
    KEY,
    KEYS,
    WHOLE,
    adding_up,
    exploded,
    merged_schema,
)
from spark_jobs.figures.quantiles import HISTOGRAM, grouped, lists, packed, summarised
from spark_jobs.jobs import e2e
from spark_jobs.logs.model import Chunk, Survey
from spark_jobs.logs.reader import LogReader
from spark_jobs.logs.schema import WAKE_NAMES, Kind
from spark_jobs.result import JobResult

SUMMARY = pa.schema(
    [
        *((name, pa.int64() if name in ("database", "pid") else pa.string()) for name in KEYS),
        *((name, pa.int64()) for name in ("n", "min_ns", *QUANTILES, "max_ns")),
        ("mean_ns", pa.float64()),
        ("rate_per_s", pa.float64()),
    ]
)
"""The schema of ``latency_summary/``."""

_FIGURES = {
    "sum_ns": "sum",
    "min_ns": "min",
    "max_ns": "max",
    "first_ns": "min",
    "last_ns": "max",
}
_RECV = int(Kind.RECV)  # comparing with an enum takes numpy longer than the comparison
_FIRST_OF_TOPICS = int(Kind.PUBLISH)
"""PUBLISH and DELIVER are the highest of all kinds."""
_WAKES = len(WAKE_NAMES)
_DENSE_SLOTS = 512
"""So many (channel, wake) pairs have an array of all buckets (64 KiB) each; more are sorted."""
_BUFFERED = 1 << 21


class _Histogram:
    """Counts per (slot, bucket) in bounded memory."""

    def __init__(self) -> None:
        self._dense = np.zeros(0, dtype=np.int64)
        self._pending: list[NDArray[np.int64]] = []
        self._buffered = 0
        self._keys = np.empty(0, dtype=np.int64)
        self._counts = np.empty(0, dtype=np.int64)

    def add(self, slot: NDArray[np.int64], values: NDArray[np.int64], slots: int) -> None:
        key = bucket(values)
        key += slot * BUCKETS
        if slots <= _DENSE_SLOTS:
            if len(self._dense) < slots * BUCKETS:
                wider = np.zeros(min(2 * slots, _DENSE_SLOTS) * BUCKETS, dtype=np.int64)
                wider[: len(self._dense)] = self._dense
                self._dense = wider
            np.add.at(self._dense, key, 1)
            return
        self._pending.append(key)
        self._buffered += len(key)
        if self._buffered >= _BUFFERED:
            self._merge()

    def _merge(self) -> None:
        key = np.concatenate(self._pending)
        self._pending, self._buffered = [], 0
        keys, counts = np.unique(key, return_counts=True)
        self._keys, inverse = np.unique(np.concatenate([self._keys, keys]), return_inverse=True)
        merged = np.zeros(len(self._keys), dtype=np.int64)
        np.add.at(merged, inverse, np.concatenate([self._counts, counts]))
        self._counts = merged

    def counts(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """(slot, bucket, count) without slot 0; a pair may appear twice."""
        if self._pending:
            self._merge()
        keys = np.concatenate([np.flatnonzero(self._dense), self._keys])
        counts = np.concatenate([self._dense[self._dense > 0], self._counts])
        kept = np.flatnonzero(keys >= BUCKETS)
        keys = keys[kept]
        return keys // BUCKETS, keys % BUCKETS, counts[kept]


class _Extremes:
    """Exact figures beside the histogram, per slot; those of slot 0 mean nothing."""

    NAMES = ("sum_ns", "min_ns", "max_ns", "first_ns", "last_ns")
    _MOST = np.iinfo(np.int64).max
    _START = (0, _MOST, 0, _MOST, 0)
    _OF_SLOT_0 = (0, -1, _MOST, -1, _MOST)
    """Beyond all others, so that limits over all slots are those of the others."""

    def __init__(self) -> None:
        self.columns = [np.array([start], dtype=np.int64) for start in self._OF_SLOT_0]
        self._latest = 0

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
        total, low, high, first, last = self.columns
        np.add.at(total, slot, values)
        # After the first chunks hardly any value is beyond what was seen.
        for kept, how, beyond in (
            (low, np.minimum, values < low.max()),
            (high, np.maximum, values > high.min()),
        ):
            at = np.flatnonzero(beyond)
            if len(at):
                how.at(kept, slot[at], values[at])
        if ts.min() < first.max():
            np.minimum.at(first, slot, ts)
        if ts[0] >= self._latest and (ts[1:] >= ts[:-1]).all():
            last[slot] = ts  # of equal slots the last one stays
            self._latest = int(ts[-1])
        else:
            np.maximum.at(last, slot, ts)
            self._latest = max(self._latest, int(ts.max()))


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
        pa.field("n", pa.int64()),
        *(pa.field(name, pa.int64()) for name in _Extremes.NAMES),
        pa.field("negative", pa.int64()),
        pa.field("other_clock", pa.int64()),
    )

    BY_FILE = True
    FIELDS = ("ts", "ref_ts", "kind", "wake", "peer")

    def __init__(self, reader: LogReader) -> None:
        self._reader = reader
        self._slot_of = np.zeros(1, dtype=np.int64)
        self._pairs = np.array([-1])
        """channel * _WAKES + wake of each slot; slot 0 takes what does not count."""
        self._histogram = _Histogram()
        self._extremes = _Extremes()
        self._negative = 0
        self._other_clock = 0

    def _slots(
        self, channel: NDArray[np.int64], wake: NDArray[np.uint8], others: NDArray[np.intp]
    ) -> NDArray[np.int64]:
        """A dense number for each (channel, wake) that occurs; 0 for the `others`."""
        place = (channel + 1) * _WAKES
        reason = np.minimum(wake, _WAKES - 1)
        place += int(reason[0]) if (reason == reason[0]).all() else reason
        place[others] = 0
        size = (len(self._reader.channels) + 1) * _WAKES
        if len(self._slot_of) < size:
            wider = np.full(2 * size, -1, dtype=np.int64)
            wider[: len(self._slot_of)] = self._slot_of
            self._slot_of = wider
        slot = self._slot_of.take(place)
        if slot.min() < 0:
            fresh = np.unique(place[slot < 0])
            self._slot_of[fresh] = len(self._pairs) + np.arange(len(fresh))
            self._pairs = np.concatenate([self._pairs, fresh - _WAKES])
            slot = self._slot_of.take(place)
        return slot

    def add(self, chunk: Chunk) -> Iterator[Mapping[str, Any]]:
        received = chunk.kind == _RECV
        received &= chunk.channel >= 0
        count = int(np.count_nonzero(received))
        if count == 0:
            return
        # A few others are cheaper to take along, as slot 0, than everything is to copy without.
        at = slice(None) if 8 * count >= 7 * len(received) else np.flatnonzero(received)
        ts, sent = (chunk.records[name][at].astype(np.int64) for name in ("ts", "ref_ts"))
        received, channel, wake = received[at], chunk.channel[at], chunk.wake[at]
        values = ts - sent
        good = received & (sent > 0)
        good &= values >= 0
        if self._reader.log.own_clock is not None or np.count_nonzero(good) < count:
            comparable = self._reader.comparable(chunk.records[at])
            timed = received & (sent > 0)
            self._other_clock += int(np.count_nonzero(timed & ~comparable))
            self._negative += int(np.count_nonzero(timed & comparable & (values < 0)))
            good &= comparable
        others = np.flatnonzero(~good)
        if len(others) < len(good):
            slot = self._slots(channel, wake, others)
            values[others] = 1
            self._histogram.add(slot, values, len(self._pairs))
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

    def _figures(self, n: NDArray[np.int64]) -> dict[str, Any]:
        figures = zip(_Extremes.NAMES, self._extremes.columns, strict=True)
        return self._keys(np.arange(1, len(self._pairs))) | {
            "n": n[1:],
            **{name: column[1:] for name, column in figures},
        }

    def _counts(self) -> tuple[NDArray[np.int64], ...]:
        """Slots, buckets and counts of the histogram, and how many values each slot has."""
        slot, index, count = self._histogram.counts()
        n = np.zeros(len(self._pairs), dtype=np.int64)
        np.add.at(n, slot, count)
        return slot, index, count, n

    def finish(self) -> Iterator[Mapping[str, Any]]:
        yield from self._left_out()
        if len(self._pairs) > 1:
            slot, index, count, n = self._counts()
            yield self._keys(slot) | {"bucket": index, "n": count}
            yield self._figures(n)


class Partials(Rows):
    """A row per key: `_Extremes`, and the whole histogram in two lists. And one with `of_topics` if
    the log has records of topics.
    """

    COLUMNS = (
        *(field for field in Rows.COLUMNS if field.name != "bucket"),
        *HISTOGRAM,
        pa.field("of_topics", pa.int64()),
    )

    def __init__(self, reader: LogReader) -> None:
        super().__init__(reader)
        self._of_topics = False

    def add(self, chunk: Chunk) -> Iterator[Mapping[str, Any]]:
        if not self._of_topics:  # what is finished was delivered before
            self._of_topics = int(chunk.kind.max(initial=0)) >= _FIRST_OF_TOPICS
        return super().add(chunk)

    def finish(self) -> Iterator[Mapping[str, Any]]:
        yield from self._left_out()
        if self._of_topics:
            yield {"of_topics": [1]}
        if len(self._pairs) > 1:
            slot, index, count, n = self._counts()
            order = np.argsort(slot, kind="stable")
            owner = slot[order] - 1
            columns = lists(owner, index[order], count[order], len(self._pairs) - 1)
            yield self._figures(n) | columns


def _over_all_wakes(rows: pa.Table) -> pa.Table:
    place = rows.schema.get_field_index("wake")
    over_all = pa.repeat(pa.scalar("all"), rows.num_rows)
    return pa.concat_tables([rows.set_column(place, "wake", over_all), rows])


def histogram(rows: pa.Table, keys: Sequence[str] = KEYS) -> pa.Table:
    """keys, bucket, n: the whole histogram of each key, from `Rows`."""
    of_buckets = rows.filter(pc.is_valid(rows["bucket"]))
    return grouped(_over_all_wakes(of_buckets), [*keys, "bucket"], {"n": "sum"})


def summarise(rows: pa.Table, keys: Sequence[str] = KEYS) -> list[dict[str, Any]]:
    """One row per key, which must contain ``wake``: n, min, quantiles, max, mean (ns), rate.

    `rows` are `Rows`, or what was `unpacked`.
    """
    named = _over_all_wakes(rows.filter(pc.is_valid(rows["wake"])))
    return [_row(row, keys) for row in summarised(packed(named), keys, _FIGURES).to_pylist()]


def _row(found: dict[str, Any], keys: Sequence[str]) -> dict[str, Any]:
    n, span = found["n"], found["last_ns"] - found["first_ns"]
    names = (*keys, "n", "min_ns", *QUANTILES, "max_ns")
    return {name: found[name] for name in names} | {
        "mean_ns": found["sum_ns"] / n,
        "rate_per_s": (n - 1) * 1e9 / span if span else None,
    }


def left_out(rows: pa.Table) -> dict[str, int]:
    """How many receptions have no latency, and why."""
    return {
        "negative_latencies": pc.sum(rows["negative"]).as_py() or 0,
        "other_clock": pc.sum(rows["other_clock"]).as_py() or 0,
    }


def unpacked(partials: pa.Table) -> pa.Table:
    """What `Partials` gave as `Rows` would have, for `summarise` by other keys."""
    figures = partials.drop_columns([field.name for field in HISTOGRAM])
    return pa.concat_tables([figures, exploded(partials)], promote_options="default")


def _distributions(table: pa.Table, chosen: Collection[Channel]) -> dict[Channel, Counts]:
    """As `hgrm.distributions`, of what is added up already."""
    whole = np.zeros(BUCKETS, dtype=np.int64)
    result: dict[Channel, Counts] = {}
    for row in table.select(["scope", *CHANNEL_KEYS, "buckets", "counts"]).to_pylist():
        key = tuple(row[name] for name in CHANNEL_KEYS)
        if row["scope"] == WHOLE:
            whole[row["buckets"]] += row["counts"]
        elif row["scope"] == CHANNEL and key in chosen:
            result[key] = np.array([row["buckets"], row["counts"]])
    if whole.any():
        result[EVERYTHING] = np.array([np.flatnonzero(whole), whole[whole > 0]])
    return result


def _merged(engine: Engine, survey: Survey, out: Directory) -> Reduced:
    """What `adding_up` finds but for the keys' histograms, which are in `out`, `latency_hist/`."""
    found, place = engine.load("latency", survey), out / "latency_hist"
    schema = merged_schema(found.schema)
    if isinstance(place, Path):
        write_rows(place, [], COUNTS)  # readers want a schema, even if there are no rows
        written = str(place.absolute()), MOST_CHANNELS
        return found.reduced(CHANNEL_KEYS, adding_up(schema, written), schema)
    reduced = found.reduced(CHANNEL_KEYS, adding_up(schema), schema)  # tasks cannot write there
    of_keys = reduced.table.filter(pc.equal(reduced.table["scope"], KEY))
    write_table(place, exploded(of_keys))
    return reduced


def _shown(table: pa.Table) -> list[dict[str, Any]]:
    """A line a channel, the slowest first; of very many, the busiest."""
    rows = table.filter(pc.equal(table["scope"], CHANNEL)).to_pylist()
    rows = [_row(row, CHANNEL_KEYS) for row in rows]
    several = len({(row["engine"], row["database"]) for row in rows}) > 1
    names = ("n", "rate_per_s", "min_ns", "p50_ns", "p90_ns", "p99_ns", "p999_ns", "max_ns")
    names = ("channel", *(("engine", "database") if several else ()), *names)
    worst = sorted(rows, key=lambda row: (-row["p99_ns"], row["channel"]))
    return [{name: row[name] for name in names} for row in worst]


def _topics(engine: Engine, survey: Survey) -> list[dict[str, Any]]:
    """A row per topic and channel, the longest wait first; that takes another pass."""
    rows = e2e.whole(engine, survey)
    rows.sort(key=lambda row: (-(row["wait_p99_ns"] or 0), row["topic"], row["channel"]))
    names = ("engine", "database", "topic", "channel", "delivered", "finished")
    parts = [name for name in rows[0] if name.startswith(e2e.MEASURES[1:])] if rows else []
    return [{name: row[name] for name in (*names, *parts)} for row in rows]


def run(
    engine: Engine,
    survey: Survey,
    out: Directory,
    *,
    limits: Mapping[str, int] | None = None,
    topics: bool = True,
) -> JobResult:
    """Rows as docs/spark.md has them, plus engine, database, boot_id and rate_per_s.

    In `out`: the same as `latency_summary/`, the histograms as `latency_hist/`, and for plotters
    `hgrm/`, one file for all channels and one for each of the busiest. `limits`: what a listener's
    figures (over all wake reasons) may be at most, in ns, by their names in the rows.

    `further` has `topics`, unless that is not wanted: per topic and channel how long messages
    waited for a consumer, and how long consumers took, as e2e has it.
    """
    chosen = limits or {}

    def is_over(row: Mapping[str, Any]) -> bool:
        return row.get("wake") == "all" and any(row[name] > most for name, most in chosen.items())

    table, others = _merged(engine, survey, out)
    plain = table.drop_columns([field.name for field in HISTOGRAM])
    listeners = plain.filter(pc.equal(plain["scope"], KEY)).to_pylist()
    listeners.sort(key=lambda row: [row[key] for key in KEYS])
    rows = [_row(row, KEYS) for row in listeners]
    write_rows(out / "latency_summary", rows, SUMMARY)
    write_all(_distributions(table, busiest(rows, MOST_CHANNELS)), rows, out / "hgrm")
    totals = left_out(others)
    if chosen:
        totals["over"] = sum(map(is_over, rows))
    reports = reports_of(others, survey)
    found = topics and pc.any(others["of_topics"].is_valid(), min_count=0).as_py()
    further = {"topics": _topics(engine, survey) if found else []} if topics else {}
    shown = _shown(plain)
    return JobResult(rows, reports, totals=totals, shown=shown, broken=is_over, further=further)
