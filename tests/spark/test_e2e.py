"""Waiting and service of topics' messages, in logs whose every record is known."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from logwriter import LogWriter, receives

from spark_jobs.jobs import e2e, latency
from spark_jobs.logs.model import CHUNK_RECORDS
from spark_jobs.logs.schema import Kind
from spark_jobs.survey import survey

PUBLISHED = 1000
Record = tuple[Kind, int, int, int]
"""Kind, message, attempts and time."""


def a_log(place: Path, records: list[Record], pid: int = 1, files: int = 2) -> None:
    log = LogWriter(place, pid)
    kind, message, attempts, ts = (np.array(column) for column in zip(*records, strict=True))
    log.add(Kind.FIN, len(records), channel="t:c", ref_ts=PUBLISHED, commit_seq=message, ts=ts)
    log.batches[-1]["kind"], log.batches[-1]["attempts"] = kind, attempts
    log.write(files=files)


def the_row(engine: Any, place: Path) -> dict[str, Any]:
    (row,) = e2e.run(engine, survey([place]), place / "out").rows
    return row


def test_service_is_from_the_delivery_to_its_own_finish(local: Any, tmp_path: Path) -> None:
    a_log(
        tmp_path,
        [
            (Kind.DELIVER, 1, 1, 2000),
            (Kind.DELIVER, 2, 1, 2100),
            (Kind.REQ, 1, 1, 3000),
            (Kind.DELIVER, 1, 2, 5000),
            (Kind.FIN, 1, 2, 5200),  # 200 after its second delivery
            (Kind.FIN, 2, 2, 9000),  # of a delivery that this log does not have
            (Kind.DELIVER, 3, 1, 9100),
        ],
    )
    a_log(tmp_path, [(Kind.FIN, 3, 1, 9900)], 2)  # another process delivered it, says its log
    row = the_row(local, tmp_path)
    assert (row["delivered"], row["finished"], row["requeued"]) == (4, 3, 1)
    assert (row["service_max_ns"], row["service_mean_ns"]) == (200, 200)
    assert (row["wait_max_ns"], row["wait_mean_ns"]) == (8100, (1000 + 1100 + 8100) / 3)
    assert row["max_ns"] == 8900


def test_latency_tells_how_long_they_waited_and_were_served(local: Any, tmp_path: Path) -> None:
    records = [(Kind.DELIVER, 1, 1, 2000), (Kind.FIN, 1, 1, 2300), (Kind.DELIVER, 2, 1, 9000)]
    a_log(tmp_path, records)
    (told,) = latency.run(local, survey([tmp_path]), tmp_path / "latency").further["topics"]
    row = the_row(local, tmp_path)
    assert (told["wait_max_ns"], told["service_max_ns"]) == (8000, 300)
    assert told == {name: row[name] for name in told}
    limits = {"p99_ns": 1}
    limited = latency.run(local, survey([tmp_path]), tmp_path / "gate", limits=limits)
    assert not limited.violation, "a limit is of listeners"


def test_logs_without_topics_are_not_read_again(
    local: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = LogWriter(tmp_path)
    receives(log, "c", np.arange(10))
    log.write()

    def again(*_: object) -> None:
        raise AssertionError("a second pass")

    monkeypatch.setattr(e2e, "whole", again)
    assert latency.run(local, survey([tmp_path]), tmp_path / "out").further == {"topics": []}


def test_a_delivery_in_one_chunk_and_its_finish_in_another(local: Any, tmp_path: Path) -> None:
    count = 3 * CHUNK_RECORDS
    random = np.random.default_rng(5)
    begin = PUBLISHED + np.arange(count) * 100
    took = random.integers(1, CHUNK_RECORDS * 100, count)
    records = [(Kind.DELIVER, i, 1, int(at)) for i, at in enumerate(begin)]
    records += [(Kind.FIN, i, 1, int(at)) for i, at in enumerate(begin + took)]
    a_log(tmp_path, sorted(records, key=lambda record: record[3]))
    row = the_row(local, tmp_path)
    assert row["service_max_ns"] == took.max()
    assert row["service_mean_ns"] == took.mean()
    exact = np.sort(took)[(count + 1) // 2 - 1]
    assert abs(row["service_p50_ns"] - exact) <= 0.004 * exact


@pytest.mark.parametrize("files", [1, 4])
def test_deliveries_without_end_are_forgotten(files: int, local: Any, tmp_path: Path) -> None:
    """The oldest of very many: what is kept does not grow with the log."""
    count = e2e._UNDER_WAY + 2 * CHUNK_RECORDS
    records: list[Record] = [(Kind.DELIVER, i, 1, 2000 + i) for i in range(count)]
    records += [(Kind.FIN, 0, 1, 10**9), (Kind.FIN, count - 1, 1, 2000 + count)]
    a_log(tmp_path, records, files=files)
    row = the_row(local, tmp_path)
    assert (row["service_max_ns"], row["service_mean_ns"]) == (1, 1)
