"""Row groups of an archive: each has its own rows, though they share memory; no Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from logwriter import LogWriter, receives

from spark_jobs.archive import row_group
from spark_jobs.archive.columns import EVENT_SCHEMA
from spark_jobs.archive.row_group import RowGroup, writer
from spark_jobs.logs.reader import LogReader
from spark_jobs.logs.schema import Kind
from spark_jobs.survey import survey


def rows_of(logs: Path, pid: int, databases: tuple[int, ...], count: int) -> list[dict[str, Any]]:
    """What is written of a log with a channel in each database, and a record without a channel."""
    log = LogWriter(logs, pid=pid, clock=10**18)
    seq = np.arange(count)
    for database in databases:
        receives(log, "c", seq, ts=10**9 + seq, ref_ts=10**9 - seq, database=database, lag=seq)
    log.add(Kind.WAKE, ts=10**9 + count, batch=pid)
    log.write()
    (found,) = survey([logs]).logs
    reader, group = LogReader(found), RowGroup(found)
    for chunk in reader.chunks():
        group.add(chunk)
    table = group.table(reader.channels)
    sink = pa.BufferOutputStream()
    file = writer(sink, table)
    file.write_table(table)
    file.close()
    group.close()
    rows: list[dict[str, Any]] = pyarrow.parquet.read_table(sink.getvalue()).to_pylist()
    return rows


@pytest.fixture
def one_memory(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    idle: list[Any] = []
    monkeypatch.setattr(row_group, "_idle", idle)
    return idle


def test_nothing_is_left_of_the_group_before(tmp_path: Path, one_memory: list[Any]) -> None:
    for pid, databases, count in ((11, (5,), 900), (22, (6, 7), 300), (33, (8,), 500)):
        rows = rows_of(tmp_path / str(pid), pid, databases, count)
        assert len(one_memory) == 1
        assert {row["pid"] for row in rows} == {pid}
        told = [row for row in rows if row["channel"] is not None]
        assert [row["database"] for row in told] == [d for d in databases for _ in range(count)]
        assert [row["lag"] for row in told] == [*range(count)] * len(databases)
        assert [row["lat_ns"] for row in told] == [2 * i for i in range(count)] * len(databases)
        (alone,) = (row for row in rows if row["channel"] is None)
        assert (alone["database"], alone["batch"]) == (databases[-1], pid)
        assert (alone["lat_ns"], alone["lat_b"]) == (None, None)


def test_what_is_written_has_the_schema_of_an_archive(tmp_path: Path) -> None:
    (row,) = rows_of(tmp_path, 1, (), 0)
    assert list(row) == EVENT_SCHEMA.names
    assert (row["database"], row["channel"], row["kind"]) == (0, None, Kind.WAKE)
