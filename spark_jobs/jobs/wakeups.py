"""Signals sent, against wake-ups that found something, per process."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

from spark_jobs.jobs import JobResult
from spark_jobs.logs import Chunk, LogReader, Survey
from spark_jobs.schema import USEFUL, Kind
from spark_jobs.source import file_reports, load

TITLE = "signals sent and useful wake-ups per process"
COUNTS = ("signalling_commits", "signals_sent", "wakes", "useful_wakes", "messages")


class Partials:
    """One row per log."""

    COLUMNS = (
        pa.field("host", pa.string()),
        pa.field("pid", pa.int64()),
        *(pa.field(name, pa.int64()) for name in COUNTS),
    )

    def __init__(self, reader: LogReader) -> None:
        self._reader = reader
        self._totals = dict.fromkeys(COUNTS, 0)

    def add(self, chunk: Chunk) -> Iterator[Mapping[str, Any]]:
        kind = chunk.records["kind"]
        signal = chunk.records["aux"][kind == Kind.SIGNAL] & np.uint64(0xFFFFFFFF)
        wake = chunk.records[kind == Kind.WAKE]
        found = (
            len(signal),
            int(signal.sum()),
            len(wake),
            int(np.count_nonzero(wake["flags"] & USEFUL)),
            int(wake["batch"].sum(dtype=np.int64)),
        )
        for name, value in zip(COUNTS, found, strict=True):
            self._totals[name] += value
        yield from ()

    def finish(self) -> Iterator[Mapping[str, Any]]:
        log = self._reader.log
        yield {"host": [log.host], "pid": [log.pid]} | {
            name: [value] for name, value in self._totals.items()
        }


def _ratio(numerator: int, denominator: int) -> float | None:
    return numerator / denominator if denominator else None


def _derived(row: dict[str, Any]) -> dict[str, Any]:
    row["useless_wakes"] = row["wakes"] - row["useful_wakes"]
    row["messages_per_useful_wake"] = _ratio(row["messages"], row["useful_wakes"])
    return row


def run(session: SparkSession, survey: Survey, out: Path) -> JobResult:
    """Rows: host, pid, the `COUNTS`, useless_wakes, messages_per_useful_wake.

    Signals are counted with the process that sent them, wake-ups with the one that was woken, so
    the ratio of the two is a figure of the whole: ``totals.signals_per_useful_wake``.
    """
    partials = load(session, "wakeups", survey).persist()
    try:
        summed = (
            partials.where(sf.col("host").isNotNull())
            .groupBy("host", "pid")
            .agg(*(sf.sum(name).alias(name) for name in COUNTS))
        )
        rows = [_derived(row.asDict()) for row in summed.orderBy("host", "pid").collect()]
        totals = _derived({name: sum(row[name] for row in rows) for name in COUNTS})
        totals["signals_per_useful_wake"] = _ratio(totals["signals_sent"], totals["useful_wakes"])
        summed.write.mode("overwrite").parquet(str(out / "wakeups"))
        return JobResult(rows, file_reports(partials, survey), totals=totals)
    finally:
        partials.unpersist()
