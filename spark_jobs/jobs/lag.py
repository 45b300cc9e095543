"""Who holds the tail of the queue back, and who falls behind.

An engine's queue can only be cleared up to its slowest reader. Messages are handed over in commit
order, so the next RECV of a process tells what was its oldest unread message before: it was
committed at ``ref_ts`` and unread until ``ts``. At the end of each window the *holder* is the
process whose oldest unread message is the oldest; only processes of one host, boot and engine are
compared. A message that was never handed over is not seen here: that is the audit's affair.

``lag`` of a RECV is the number of entries that the process had still to read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from spark_jobs.figures.windows import (
    WINDOW_COLUMNS,
    Buffer,
    Ints,
    channel_columns,
    dense,
    nanoseconds,
    numbers,
    place,
    reduce_by,
    window_of,
    with_time,
)
from spark_jobs.logs.model import Chunk, Survey
from spark_jobs.logs.reader import LogReader
from spark_jobs.logs.schema import Kind
from spark_jobs.result import JobResult
from spark_jobs.spark.directory import Directory
from spark_jobs.spark.source import file_reports, load

TITLE = "how far each process is behind, and which one holds the tail of the queue back"
PLACE = ("host", "boot_id", "engine")
KEYS = (*PLACE, "database", "channel", "pid", "window")

_PIECE = 1 << 16


class Partials:
    """Rows with ``channel``: what was received in a window. Rows without: `tail_age_ns`, the age of
    the oldest unread message of that backend at the end of the window.
    """

    COLUMNS = (
        *WINDOW_COLUMNS,
        *numbers("pid", "backend_id", "sum_lag", "max_lag", "max_age_ns"),
        *numbers("tail_age_ns", "other_clock"),
    )
    FIELDS = ("ts", "ref_ts", "kind", "lag", "peer")

    def __init__(self, reader: LogReader, window_ns: int) -> None:
        self._reader = reader
        self._window_ns = window_ns
        self._buffer = Buffer()
        self._last_window: int | None = None
        self._other_clock = 0

    def add(self, chunk: Chunk) -> Iterator[Mapping[str, Any]]:
        received = (chunk.records["kind"] == Kind.RECV) & (chunk.records["ref_ts"] > 0)
        foreign = received & ~self._reader.comparable(chunk.records)
        self._other_clock += int(np.count_nonzero(foreign))
        which = np.flatnonzero(received & ~foreign & (chunk.channel >= 0))
        if len(which) == 0:
            return
        records = chunk.records[which]
        window = window_of(chunk, which, self._window_ns)
        sent = records["ref_ts"].astype(np.int64)
        age = np.maximum(records["ts"].astype(np.int64) - sent, 0)
        lag = records["lag"].astype(np.int64)
        yield from self._tail(window, sent + chunk.clock_ns)
        if self._buffer.add(window=window, channel=chunk.channel[which], lag=lag, age=age):
            yield from self._put_out()

    def _tail(self, window: Ints, sent: Ints) -> Iterator[Mapping[str, Any]]:
        """The ends of windows that passed while the next message was unread."""
        width = self._window_ns
        before = np.empty_like(window)
        before[1:] = window[:-1]
        before[0] = (
            self._last_window if self._last_window is not None else sent[0] - sent[0] % width
        )
        self._last_window = int(window[-1])
        # The first end after both the record before and the commit, to the last before the record.
        first = np.maximum(before, sent - sent % width) + width
        count = np.maximum((window - first) // width + 1, 0)
        for i in np.flatnonzero(count):
            for start in range(0, int(count[i]), _PIECE):
                number = np.arange(start, min(start + _PIECE, int(count[i])))
                ends = first[i] + number * width
                yield self._backend() | {"window": ends - width, "tail_age_ns": ends - sent[i]}

    def _backend(self) -> dict[str, Any]:
        log = self._reader.log
        return place(self._reader) | {"pid": log.pid, "backend_id": log.backend_id}

    def _put_out(self) -> Iterator[Mapping[str, Any]]:
        columns = self._buffer.take()
        if not columns:
            return
        windows, at = dense(columns["window"])
        count = len(self._reader.channels)
        key, figures = reduce_by(
            at * count + columns["channel"],
            sum_lag=(np.add, columns["lag"]),
            max_lag=(np.maximum, columns["lag"]),
            max_age_ns=(np.maximum, columns["age"]),
        )
        channel = channel_columns(self._reader, key % count)
        yield self._backend() | channel | {"window": windows[key // count]} | figures

    def finish(self) -> Iterator[Mapping[str, Any]]:
        yield from self._put_out()
        if self._other_clock:
            yield {"other_clock": [self._other_clock]}


def received(partials: DataFrame, *keys: str) -> DataFrame:
    """The keys, n, mean_lag, max_lag, max_age_ns."""
    return (
        partials.where(sf.col("channel").isNotNull())
        .groupBy(*keys)
        .agg(
            sf.sum("n").alias("n"),
            (sf.sum("sum_lag") / sf.sum("n")).alias("mean_lag"),
            sf.max("max_lag").alias("max_lag"),
            sf.max("max_age_ns").alias("max_age_ns"),
        )
    )


def holders(partials: DataFrame) -> DataFrame:
    """host, boot_id, engine, window, pid of the holder, tail_age_ns; where a backend is behind."""
    oldest = sf.max(sf.struct("tail_age_ns", "pid", "backend_id")).alias("oldest")
    behind = partials.where(sf.col("tail_age_ns").isNotNull())
    return behind.groupBy(*PLACE, "window").agg(oldest).select(*PLACE, "window", "oldest.*")


def _per_process(partials: DataFrame, held: DataFrame) -> DataFrame:
    keys = (*PLACE, "pid")
    holding = held.groupBy(*keys).agg(
        sf.count("*").alias("windows_as_holder"), sf.max("tail_age_ns").alias("max_tail_age_ns")
    )
    joined = received(partials, *keys).join(holding, list(keys), "left")
    return joined.fillna(0, ["windows_as_holder", "max_tail_age_ns"])


def run(session: SparkSession, survey: Survey, out: Directory, *, window: float = 1.0) -> JobResult:
    """Rows, who held the tail longest first: host, boot_id, engine, pid, n, mean_lag and max_lag
    (entries), max_age_ns (of a message when it was handed over), windows_as_holder and
    max_tail_age_ns. By window they are in `lag/`, and the holders in `lag_holders/` in `out`.
    """
    partials = load(session, "lag", survey, window_ns=nanoseconds(window)).persist()
    try:
        with_time(received(partials, *KEYS)).write.mode("overwrite").parquet(str(out / "lag"))
        held = holders(partials).persist()
        with_time(held).write.mode("overwrite").parquet(str(out / "lag_holders"))
        order = (sf.desc("windows_as_holder"), sf.desc("max_age_ns"), *PLACE, "pid")
        rows = [row.asDict() for row in _per_process(partials, held).orderBy(*order).collect()]
        held.unpersist()
        foreign = partials.agg(sf.sum("other_clock")).collect()[0][0] or 0
        totals = {"windows_held": sum(row["windows_as_holder"] for row in rows)}
        reports = file_reports(partials, survey)
        return JobResult(rows, reports, totals=totals | {"other_clock": foreign})
    finally:
        partials.unpersist()
