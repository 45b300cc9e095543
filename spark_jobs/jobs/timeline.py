"""Window by window: how much was sent and received on each channel, and how late.

Windows are those of the wall clock, and rows of different hosts and boots are never added up.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from spark_jobs.directory import Directory
from spark_jobs.engine.base import Engine, summed
from spark_jobs.engine.partials import reports_of
from spark_jobs.engine.tables import write_table
from spark_jobs.figures.quantiles import HISTOGRAM, summarised
from spark_jobs.figures.windows import (
    WINDOW_COLUMNS,
    Buffer,
    channel_columns,
    dense,
    histograms,
    listed,
    nanoseconds,
    numbers,
    only_timed,
    place,
    reduce_by,
    windows_of,
    with_time,
)
from spark_jobs.logs.model import Chunk, Survey
from spark_jobs.logs.reader import LogReader
from spark_jobs.logs.schema import Kind
from spark_jobs.result import JobResult

KEYS = ("host", "boot_id", "engine", "database", "channel", "kind", "window")

_COUNTED = ("SEND", "RECV", "PUBLISH", "DELIVER", "FIN", "REQ", "TIMEOUT")
_IS_COUNTED = np.zeros(256, dtype=bool)
_IS_COUNTED[[int(kind) for kind in Kind if kind.name in _COUNTED]] = True
_RECV = int(Kind.RECV)


class Partials:
    """A row per window, channel and kind; of RECV with the histogram of the latencies."""

    COLUMNS = (
        *WINDOW_COLUMNS,
        pa.field("kind", pa.string()),
        *numbers("bytes", "timed", "min_ns", "max_ns", "untimed"),
        *HISTOGRAM,
    )
    BY_FILE = True
    FIELDS = ("ts", "ref_ts", "kind", "bytes", "peer")

    def __init__(self, reader: LogReader, window_ns: int) -> None:
        self._reader = reader
        self._window_ns = window_ns
        self._buffer = Buffer()
        self._untimed = 0

    def add(self, chunk: Chunk) -> Iterator[Mapping[str, Any]]:
        kind = chunk.kind
        counted = _IS_COUNTED[kind]
        counted &= chunk.channel >= 0
        count = int(np.count_nonzero(counted))
        if count == 0:
            return
        # Nearly always it is all of them, and a column is cheaper to take whole.
        at = slice(None) if count == len(kind) else np.flatnonzero(counted)
        records, kind = chunk.records, kind[at]
        ts, sent = (records[name][at].astype(np.int64) for name in ("ts", "ref_ts"))
        slot = chunk.channel[at] * len(Kind)
        slot += kind
        slot -= 1
        full = self._buffer.add(
            window=windows_of(ts + chunk.clock_ns, self._window_ns),
            slot=slot,
            bytes=records["bytes"][at].astype(np.int64),
            latency=self._latency(chunk, at, kind, ts, sent),
        )
        if full:
            yield from self._put_out()

    def _latency(
        self,
        chunk: Chunk,
        at: slice | NDArray[np.intp],
        kind: NDArray[np.uint8],
        ts: NDArray[np.int64],
        sent: NDArray[np.int64],
    ) -> NDArray[np.int64]:
        """The latency of what was received; -1 where there is none."""
        received = kind == _RECV
        received &= sent > 0
        latency = ts - sent
        known = received & (latency >= 0)
        if self._reader.log.own_clock is not None:
            known &= self._reader.comparable(chunk.records[at])
        self._untimed += int(np.count_nonzero(received)) - int(np.count_nonzero(known))
        np.copyto(latency, -1, where=~known)
        return latency

    def _put_out(self) -> Iterator[Mapping[str, Any]]:
        columns = self._buffer.take()
        if not columns:
            return
        windows, by_kind = dense(columns["window"])
        by_kind *= len(self._reader.channels) * len(Kind)
        by_kind += columns["slot"]
        latency = columns["latency"]
        at = np.flatnonzero(latency >= 0)
        key, figures = reduce_by(by_kind, bytes=(np.add, columns["bytes"]))
        owner, latency = by_kind[at], latency[at]
        timed = {
            "timed": np.zeros(len(key), dtype=np.int64),
            "min_ns": np.full(len(key), np.iinfo(np.int64).max),
            "max_ns": np.full(len(key), -1),
        }
        if len(at):
            own, found = reduce_by(
                owner, min_ns=(np.minimum, latency), max_ns=(np.maximum, latency)
            )
            which = np.searchsorted(key, own)
            for name, column in zip(timed, ("n", "min_ns", "max_ns"), strict=True):
                timed[name][which] = found[column]
        figures |= timed | histograms(key, owner, latency)
        yield self._keys(key // len(Kind), windows, key % len(Kind) + 1) | figures

    def _keys(self, slot: Any, windows: Any, kind: Any) -> dict[str, Any]:
        names = pa.array(["", *(each.name for each in Kind)])
        count = len(self._reader.channels)
        return {
            **place(self._reader),
            **channel_columns(self._reader, slot % count),
            "window": windows[slot // count],
            "kind": names.take(pa.array(kind)),
        }

    def finish(self) -> Iterator[Mapping[str, Any]]:
        yield from self._put_out()
        if self._untimed:
            yield {"untimed": [self._untimed]}


def table(rows: pa.Table, *keys: str) -> pa.Table:
    """One row per key with all figures; RECV must not be mixed with other kinds."""
    figures = {"bytes": "sum", "min_ns": "min", "max_ns": "max"}
    return summarised(only_timed(rows), keys, figures)


def run(engine: Engine, survey: Survey, out: Directory, *, window: float = 1.0) -> JobResult:
    """Rows: host, boot_id, engine, database, channel, kind, window (its start), n, bytes,
    rate_per_s, and of RECV the quantiles, min_ns and max_ns. All rows are in `timeline/` in `out`.
    """
    window_ns = nanoseconds(window)
    partials = engine.load("timeline", survey, window_ns=window_ns)
    found, others = summed(partials, KEYS, lambda rows: table(rows, *KEYS), ("window", *KEYS))
    rate = pc.multiply(found["n"].cast(pa.float64()), 1e9 / window_ns)
    found = found.append_column("rate_per_s", rate)
    write_table(out / "timeline", with_time(found))
    rows, totals = listed(found)
    untimed = pc.sum(others["untimed"]).as_py() or 0
    return JobResult(rows, reports_of(others, survey), totals=totals | {"untimed": untimed})
