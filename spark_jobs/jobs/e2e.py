"""From publishing a message on a topic to finishing it, per topic and channel.

What the log of a consumer holds: FIN (finished), REQ (requeued), TIMEOUT (taken away). Each has
``ts``; ``ref_ts``, when the message was published by the same clock, or 0 when that is not known
(published before the last boot); ``commit_seq``, the message; ``attempts``, which delivery it was;
and a channel named TOPIC:CHANNEL, where neither part can contain a colon.
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
from spark_jobs.figures.histogram import QUANTILES
from spark_jobs.figures.quantiles import HISTOGRAM, summarised
from spark_jobs.figures.windows import (
    WINDOW_COLUMNS,
    Buffer,
    channel_columns,
    dense,
    histograms,
    nanoseconds,
    numbers,
    only_timed,
    place,
    reduce_by,
    window_of,
    with_time,
)
from spark_jobs.logs.model import Chunk, Survey
from spark_jobs.logs.reader import LogReader
from spark_jobs.logs.schema import Kind
from spark_jobs.result import JobResult

KEYS = ("engine", "database", "topic", "channel")
COUNTS = ("finished", "requeued", "timed_out", "timed", "sum_ns", "sum_attempts")
LEFT_OUT = ("negative", "unknown", "other_clock")

_WINDOW = ("host", "boot_id", *KEYS, "window")
_LOGGED = ("engine", "database", "channel")
"""What a log has of `KEYS`: topic and channel in one name."""
_KINDS = (Kind.FIN, Kind.REQ, Kind.TIMEOUT)
_NEVER = np.iinfo(np.int64).max


class Partials:
    """A row per window and channel, with the histogram of the latencies."""

    COLUMNS = (
        *WINDOW_COLUMNS,
        *numbers(*COUNTS, "min_ns", "max_ns", "max_attempts", *LEFT_OUT),
        *HISTOGRAM,
    )
    FIELDS = ("ts", "ref_ts", "kind", "attempts", "peer")

    def __init__(self, reader: LogReader, window_ns: int) -> None:
        self._reader = reader
        self._window_ns = window_ns
        self._buffer = Buffer()
        self._left_out = dict.fromkeys(LEFT_OUT, 0)

    def _latency(self, records: Any) -> Any:
        """In ns; -1 where there is none."""
        finished = records["kind"] == Kind.FIN
        sent = records["ref_ts"].astype(np.int64)
        latency = records["ts"].astype(np.int64) - sent
        unknown = finished & (sent == 0)
        foreign = finished & ~unknown & ~self._reader.comparable(records)
        negative = finished & ~unknown & ~foreign & (latency < 0)
        for name, which in zip(LEFT_OUT, (negative, unknown, foreign), strict=True):
            self._left_out[name] += int(np.count_nonzero(which))
        return np.where(finished & ~(unknown | foreign | negative), latency, -1)

    def add(self, chunk: Chunk) -> Iterator[Mapping[str, Any]]:
        which = np.flatnonzero((chunk.channel >= 0) & np.isin(chunk.records["kind"], _KINDS))
        if len(which) == 0:
            return
        records = chunk.records[which]
        full = self._buffer.add(
            window=window_of(chunk, which, self._window_ns),
            channel=chunk.channel[which],
            kind=records["kind"].astype(np.int64),
            attempts=records["attempts"].astype(np.int64),
            latency=self._latency(records),
        )
        if full:
            yield from self._put_out()

    def _put_out(self) -> Iterator[Mapping[str, Any]]:
        columns = self._buffer.take()
        if not columns:
            return
        windows, at = dense(columns["window"])
        slot = at * len(self._reader.channels) + columns["channel"]
        latency, kind = columns["latency"], columns["kind"]
        timed = latency >= 0
        attempts = np.where(kind == Kind.FIN, columns["attempts"], 0)
        key, figures = reduce_by(
            slot,
            finished=(np.add, (kind == Kind.FIN).astype(np.int64)),
            requeued=(np.add, (kind == Kind.REQ).astype(np.int64)),
            timed_out=(np.add, (kind == Kind.TIMEOUT).astype(np.int64)),
            timed=(np.add, timed.astype(np.int64)),
            sum_ns=(np.add, np.where(timed, latency, 0)),
            sum_attempts=(np.add, attempts),
            min_ns=(np.minimum, np.where(timed, latency, _NEVER)),
            max_ns=(np.maximum, latency),
            max_attempts=(np.maximum, attempts),
        )
        figures |= histograms(key, slot[timed], latency[timed])
        yield self._keys(key, windows) | figures

    def _keys(self, slot: Any, windows: Any) -> dict[str, Any]:
        count = len(self._reader.channels)
        return {
            **place(self._reader),
            **channel_columns(self._reader, slot % count),
            "window": windows[slot // count],
        }

    def finish(self) -> Iterator[Mapping[str, Any]]:
        yield from self._put_out()
        if any(self._left_out.values()):
            yield {name: [count] for name, count in self._left_out.items()}


def _with_topics(rows: pa.Table) -> pa.Table:
    """Two columns of TOPIC:CHANNEL."""
    names = rows["channel"].combine_chunks().dictionary_encode()
    parts = [name.partition(":") for name in names.dictionary.to_pylist()]
    topics, channels = (
        pa.array([part[at] for part in parts], pa.string()).take(names.indices) for at in (0, 2)
    )
    place = rows.schema.get_field_index("channel")
    return rows.set_column(place, "channel", channels).append_column("topic", topics)


def table(rows: pa.Table, *keys: str) -> pa.Table:
    """One row per key with all figures; the quantiles are null where nothing was timed."""
    how = dict.fromkeys(COUNTS, "sum") | {"min_ns": "min", "max_ns": "max", "max_attempts": "max"}
    return summarised(only_timed(_with_topics(rows)), keys, how)


def _row(found: Mapping[str, Any]) -> dict[str, Any]:
    names = (*KEYS, "finished", "min_ns", *QUANTILES, "max_ns")
    finished, timed = found["finished"], found["timed"]
    return {name: found[name] for name in names} | {
        "mean_ns": found["sum_ns"] / timed if timed else None,
        "mean_attempts": found["sum_attempts"] / finished if finished else None,
        "max_attempts": found["max_attempts"],
        "requeued": found["requeued"],
        "timed_out": found["timed_out"],
    }


def run(engine: Engine, survey: Survey, out: Directory, *, window: float = 1.0) -> JobResult:
    """Rows: engine, database, topic, channel, finished, min_ns, the quantiles, max_ns, mean_ns,
    mean_attempts and max_attempts (of what was finished), requeued, timed_out. By host, boot and
    window they are in `e2e/` in `out`.
    """
    with engine.load("e2e", survey, window_ns=nanoseconds(window)) as partials:
        by = ("host", "boot_id", *_LOGGED, "window")
        found, _ = summed(partials, by, lambda rows: table(rows, *_WINDOW), _WINDOW)
        whole, others = summed(partials, _LOGGED, lambda rows: table(rows, *KEYS), KEYS)
    write_table(out / "e2e", with_time(found))
    rows = [_row(row) for row in whole.to_pylist()]
    totals = {name: pc.sum(others[name]).as_py() or 0 for name in LEFT_OUT}
    return JobResult(rows, reports_of(others, survey), totals=totals)
