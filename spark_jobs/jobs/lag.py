"""Which process holds the tail of the queue back, and which processes fall behind.

An engine's queue can only be cleared up to its slowest reader. Messages are handed over in commit
order, so the next RECV of a process tells what was its oldest unread message before: it was
committed at ``ref_ts`` and unread until ``ts``. At the end of each window the *holder* is the
process whose oldest unread message is the oldest; only processes of one clock and engine are
compared, whatever their hosts are called. A message that was never handed over is not seen here:
that is the audit's affair.

``lag`` of a RECV is the number of entries that the process had still to read.
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
from spark_jobs.engine.tables import key_begins, ordered, write_table
from spark_jobs.figures.quantiles import Ints, grouped
from spark_jobs.figures.windows import (
    WINDOW_COLUMNS,
    Buffer,
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

PLACE = ("host", "boot_id", "engine")
QUEUE = ("clock", "engine")  # containers of one kernel have names of their own, and one clock
KEYS = (*PLACE, "database", "channel", "pid", "window")

_PIECE = 1 << 16


class Partials:
    """Rows with ``channel``: what was received in a window. Rows without: `tail_age_ns`, the age of
    the oldest unread message of that backend at the end of the window.
    """

    COLUMNS = (
        *WINDOW_COLUMNS,
        pa.field("clock", pa.string()),
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
        own = {"clock": log.clock, "pid": log.pid, "backend_id": log.backend_id}
        return place(self._reader) | own

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


def received(rows: pa.Table, *keys: str) -> pa.Table:
    """The keys, n, sum_lag, max_lag, max_age_ns."""
    named = rows.filter(pc.is_valid(rows["channel"]))
    figures = {"n": "sum", "sum_lag": "sum", "max_lag": "max", "max_age_ns": "max"}
    return grouped(named, keys, figures)


def _with_mean(table: pa.Table) -> pa.Table:
    """``mean_lag`` in place of ``sum_lag``."""
    mean = pc.divide(table["sum_lag"].cast(pa.float64()), table["n"].cast(pa.float64()))
    place = table.schema.get_field_index("sum_lag")
    return table.set_column(place, "mean_lag", mean)


def holders(rows: pa.Table) -> pa.Table:
    """clock, engine, window, tail_age_ns, and host, boot_id, pid, backend_id of the holder; where a
    backend is behind.
    """
    keys = (*QUEUE, "window")
    worst = ("tail_age_ns", "host", "boot_id", "pid", "backend_id")
    behind = rows.filter(pc.is_valid(rows["tail_age_ns"])).select([*keys, *worst])
    behind = ordered(behind, *keys, *worst)
    last = np.append(key_begins(behind, keys)[1:], True)[: behind.num_rows]
    return behind.filter(pa.array(last, pa.bool_()))


def _per_process(by_window: pa.Table, held: pa.Table) -> list[dict[str, Any]]:
    keys = (*PLACE, "pid")
    figures = {"n": "sum", "sum_lag": "sum", "max_lag": "max", "max_age_ns": "max"}
    holding: dict[tuple[Any, ...], list[int]] = {}
    for row in held.to_pylist():
        holding.setdefault(tuple(row[key] for key in keys), []).append(row["tail_age_ns"])
    rows = _with_mean(grouped(by_window, keys, figures)).to_pylist()
    for row in rows:
        ages = holding.get(tuple(row[key] for key in keys), [])
        row |= {"windows_as_holder": len(ages), "max_tail_age_ns": max(ages, default=0)}
    return sorted(rows, key=lambda row: (-row["windows_as_holder"], -row["max_age_ns"]))


def run(engine: Engine, survey: Survey, out: Directory, *, window: float = 1.0) -> JobResult:
    """Rows, the longest holder of the tail first: host, boot_id, engine, pid, n, mean_lag and
    max_lag (entries), max_age_ns (of a message when it was handed over), windows_as_holder and
    max_tail_age_ns. By window they are in `lag/`, and the holders in `lag_holders/` in `out`.
    """
    with engine.load("lag", survey, window_ns=nanoseconds(window)) as partials:
        by_window, _ = summed(partials, KEYS, lambda rows: received(rows, *KEYS))
        held, others = summed(partials, (*QUEUE, "window"), holders)
    write_table(out / "lag", with_time(_with_mean(by_window)))
    columns = (*PLACE, "window", "tail_age_ns", "pid", "backend_id")
    write_table(out / "lag_holders", with_time(held.select(columns)))
    rows = _per_process(by_window, held)
    totals = {"windows_held": sum(row["windows_as_holder"] for row in rows)}
    totals["other_clock"] = pc.sum(others["other_clock"]).as_py() or 0
    return JobResult(rows, reports_of(others, survey), totals=totals)
