"""``spark.read.format("pynlog")``: the rows of logs, and which files and records are read."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from logwriter import BOOT, LogWriter, flip_bit, receives, sends

from spark_jobs.cli import main
from spark_jobs.logs.reader import LogReader
from spark_jobs.logs.schema import USEFUL, Kind, Wake

pytestmark = [
    pytest.mark.spark,
    pytest.mark.xdist_group("spark"),
    pytest.mark.filterwarnings("default"),  # Spark's own code, which we cannot mend
]

COUNT = 1000
BEGIN = datetime(2026, 1, 31, 23, 59, 58, tzinfo=UTC)
"""Two seconds later it is another day, which an archive has in another file."""
CLOCK = int(BEGIN.timestamp()) * 10**9
STEP_NS = 4 * 10**6


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The same as logs and as an archive."""
    logs = tmp_path_factory.mktemp("logs")
    seq = np.arange(COUNT)
    ts = 1 + seq * STEP_NS
    for host in ("h1", "h2"):
        head: dict[str, Any] = {"host": host, "engine": f"e.{host}", "clock": CLOCK}
        sender, listener = LogWriter(logs, 9, **head), LogWriter(logs, 1, **head)
        for channel in ("orders", "orders.paid", "mails"):
            sends(sender, channel, seq, ts=ts)
            receives(listener, channel, seq, ts=ts + 2500, ref_ts=ts, wake=Wake.SIGNAL)
        sender.add(Kind.SIGNAL, 3, aux=2, ts=5)
        listener.add(Kind.WAKE, 2, flags=USEFUL, wake=Wake.FD, ts=7)
        for log in (sender, listener):
            records = log.records()
            log.batches = [records[np.argsort(records["ts"], kind="stable")]]
        sender.write(files=3)
        listener.write()
    archive = tmp_path_factory.mktemp("archive")
    assert main(["ingest", str(logs), "--out", str(archive)]) == 0
    return {"logs": logs, "archive": archive}


@pytest.fixture(scope="module")
def session(spark: Any) -> Any:
    from spark_jobs.source import register

    register(spark)
    return spark


@pytest.fixture(params=["logs", "archive"])
def frame(request: pytest.FixtureRequest, session: Any, places: dict[str, Path]) -> Any:
    return session.read.format("pynlog").load(str(places[request.param]))


def test_a_row_has_what_the_record_has(frame: Any) -> None:
    assert frame.count() == 2 * (2 * 3 * COUNT + 3 + 2)
    (row,) = frame.where(
        "host = 'h2' and channel = 'orders.paid' and kind = 'RECV' and chan_seq = 7"
    ).collect()
    assert row.asDict() == {
        "event_time": (BEGIN + timedelta(microseconds=7 * STEP_NS // 1000 + 2))
        .astimezone()
        .replace(tzinfo=None),
        "kind": "RECV",
        "channel": "orders.paid",
        "database": 1,
        "host": "h2",
        "boot_id": BOOT,
        "engine": "e.h2",
        "pid": 1,
        "backend_id": 1,
        "log_id": row.log_id,
        "ts": 1 + 7 * STEP_NS + 2500,
        "lat_ns": 2500,
        "commit_seq": 7,
        "chan_seq": 7,
        "bytes": 0,
        "peer": 0,
        "lag": 0,
        "batch": 0,
        "attempts": 0,
        "wake": "signal",
        "useful": False,
        "crc": row.crc,
    }


CONDITIONS = [
    "channel = 'orders'",
    "channel in ('orders', 'mails') and kind = 'SEND'",
    "channel like 'orders.%'",
    "channel is null",
    "channel is not null and kind = 'WAKE'",
    "channel = 'orders' and channel like 'mail%'",
    "kind = 'NOTHING'",
    "kind <> 'SEND'",
    "host = 'h1' and pid in (1, 5)",
    "host = 'nowhere'",
    "engine = 'e.h2' and kind = 'WAKE' and useful",
    "event_time < timestamp '2026-01-31 23:59:59.5Z'",
    "event_time >= timestamp '2026-02-01 00:00:00Z' and channel = 'mails'",
    "event_time > timestamp '2026-02-01 00:00:00.000002Z' and kind = 'RECV'",
    "event_time <= timestamp '2026-02-01 00:00:00.000002Z' and kind = 'RECV'",
    "event_time = timestamp '2026-02-01 00:00:00.000002Z'",
    "lat_ns is not null",
    "lat_ns > 1000 and chan_seq % 100 = 3",
    "lat_ns is null or wake = 'fd'",
    "not (channel = 'orders')",
    "channel = 'orders' or host = 'h2'",
]


def digest(rows: Iterable[Any]) -> Counter[tuple[Any, ...]]:
    return Counter((row.host, row.kind, row.channel, row.ts, row.pid) for row in rows)


@pytest.mark.parametrize("condition", CONDITIONS)
def test_conditions_mean_what_they_mean_to_spark(
    condition: str, session: Any, places: dict[str, Path], frame: Any
) -> None:
    """A table in memory gets no conditions pushed down."""
    if not session.catalog.tableExists("everything"):
        everything = session.read.format("pynlog").load(str(places["logs"])).collect()
        schema = frame.schema
        session.createDataFrame(everything, schema).createOrReplaceTempView("everything")
    expected = session.sql(f"select * from everything where {condition}").collect()
    assert digest(frame.where(condition).collect()) == digest(expected)


def test_only_what_is_asked_for_is_read(places: dict[str, Path]) -> None:
    """Of Spark's filters those that are seen to are not given back; files are left out by them."""
    from pyspark.sql.datasource import EqualTo, GreaterThan, In, StringEndsWith

    from spark_jobs.logs.model import Log
    from spark_jobs.source import Reader

    reader = Reader([str(places["archive"])], ["channel", "lat_ns"], "DROPMALFORMED")
    other = StringEndsWith(("channel",), "s")
    wishes = [
        EqualTo(("host",), "h1"),
        In(("kind",), ("RECV", "SEND")),
        GreaterThan(("event_time",), BEGIN + timedelta(seconds=2)),
        other,
    ]
    assert list(reader.pushFilters(list(wishes))) == [other]
    (part,) = reader.partitions()
    logs = [Log.from_json(text) for text in part.texts]
    assert {log.host for log in logs} == {"h1"}
    assert reader._fields() == ("kind", "peer", "ref_ts", "ts")
    rows = [row for batch in reader.read(part) for row in batch.to_pylist()]
    assert {row["channel"] for row in rows} == {"orders", "orders.paid", "mails"}
    # The last half of 3 channels, sent and received, but for the first microseconds of it.
    assert len(rows) == 2 * 3 * (COUNT // 2) - 3
    read = sum(len(chunk.channel) for log in logs for chunk in LogReader(log)._all_chunks())
    assert read == 2 * 3 * (COUNT // 2), "row groups of the day before were passed over"


def test_columns_and_paths(session: Any, places: dict[str, Path]) -> None:
    reading = session.read.format("pynlog").option("columns", "kind, host")
    files = sorted(map(str, places["logs"].iterdir()))
    found = reading.load(files)
    assert found.columns == ["kind", "host"]
    assert found.count() == 2 * (2 * 3 * COUNT + 3 + 2)
    one = session.read.format("pynlog").option("path", json.dumps(files[:1]))
    assert 0 < one.load().count() < found.count()
    kinds = {row["kind"]: row["count"] for row in found.groupBy("kind").count().collect()}
    assert kinds == {"SEND": 6 * COUNT, "RECV": 6 * COUNT, "SIGNAL": 6, "WAKE": 4}
    names = (
        session.read.format("pynlog")
        .option("columns", "channel")
        .load(str(places["archive"]))
        .distinct()
    )
    assert {row.channel for row in names.collect()} == {"orders", "orders.paid", "mails", None}


def test_damage(session: Any, tmp_path: Path) -> None:
    log = LogWriter(tmp_path, 1)
    sends(log, "a", np.arange(10))
    (path,) = log.write()
    flip_bit(path, 5)
    reading = session.read.format("pynlog")
    assert reading.load(str(tmp_path)).count() == 9
    with pytest.raises(Exception, match="1 records do not match their CRC"):
        reading.option("mode", "FAILFAST").load(str(tmp_path)).count()


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({}, "which logs"),
        ({"path": "/nowhere/logs"}, "no such file"),
        ({"path": "LOGS", "columns": "chanel"}, "pynlog has no column chanel"),
        ({"path": "LOGS", "mode": "x"}, "mode X is none of DROPMALFORMED, FAILFAST"),
        ({"path": "LOGS", "schema": "ts string"}, "the schema says ts StringType"),
    ],
)
def test_what_does_not_fit_is_said(
    options: dict[str, str], problem: str, session: Any, places: dict[str, Path]
) -> None:
    reading = session.read.format("pynlog")
    if "schema" in options:
        reading = reading.schema(options.pop("schema"))
    for name, value in options.items():
        reading = reading.option(name, value.replace("LOGS", str(places["logs"])))
    with pytest.raises(Exception, match=problem):
        reading.load().count()
