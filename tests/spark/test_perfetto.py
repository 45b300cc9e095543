"""The trace for ui.perfetto.dev: slices, arrows, jobs of topics."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from logwriter import HOST, LogWriter, receives, sends

from spark_jobs.cli import main
from spark_jobs.engine.local import LocalEngine
from spark_jobs.errors import CannotRunError
from spark_jobs.jobs import perfetto
from spark_jobs.logs.schema import USEFUL, Kind, Wake
from spark_jobs.result import JobResult
from spark_jobs.survey import survey

CLOCK = 10**18
SECOND = 10**9


def run(local: LocalEngine, logs: Path, **options: Any) -> tuple[JobResult, list[dict[str, Any]]]:
    found = perfetto.run(local, survey([logs]), logs, **options)
    trace = json.loads(gzip.decompress((logs / "perfetto.json.gz").read_bytes()))
    return found, trace["traceEvents"]


def named(events: list[dict[str, Any]], what: str) -> dict[int, str]:
    return {
        event["tid"] or event["pid"]: event["args"]["name"]
        for event in events
        if event["name"] == what
    }


def test_commits_hand_overs_and_sleeps(local: LocalEngine, tmp_path: Path) -> None:
    sender = LogWriter(tmp_path, 9, clock=CLOCK)
    sends(sender, "c", np.arange(3), ts=SECOND + np.arange(3) * 1000)
    sender.write()
    listener = LogWriter(tmp_path, 1, clock=CLOCK)
    listener.add(Kind.LISTEN, channel="c", chan_seq=0, ts=SECOND - 5000)
    listener.add(Kind.WAKE, flags=USEFUL, batch=3, wake=Wake.SIGNAL, ts=SECOND + 20_000)
    sent = SECOND + np.arange(3) * 1000
    receives(listener, "c", np.arange(3), ts=SECOND + 21_000 + np.arange(3) * 100, ref_ts=sent)
    listener.write()
    found, events = run(local, tmp_path)

    assert [(row["pid"], row["send"], row["recv"], row["wake"]) for row in found.rows] == [
        (1, 0, 3, 1),
        (9, 3, 0, 0),
    ]
    assert found.totals == {"events": len(events), "of_unknown_commits": 0}
    assert sorted(named(events, "process_name").values()) == [
        f"pid {pid} on {HOST}" for pid in (1, 9)
    ]
    slices = [event for event in events if event["ph"] == "X"]
    (sleep,) = (event for event in slices if event["cat"] == "sleep")
    assert sleep["name"] == "asleep, until signal"
    # Times count from the first record, LISTEN's, 5 us before the first commit.
    assert (sleep["ts"], sleep["ts"] + sleep["dur"]) == (0.5, 25)
    taken = [event for event in slices if event["cat"] == "RECV"]
    assert [event["args"]["latency_us"] for event in taken] == [21, 20.1, 19.2]
    # A slice ends where the next one begins, or they would lie within each other.
    assert [event["dur"] for event in taken] == [0.1, 0.1, 0.5]

    arrows = [(event["id"], event["ph"], event["ts"]) for event in events if event["ph"] in "sf"]
    assert Counter(phase for _, phase, _ in arrows) == {"s": 3, "f": 3}
    for number in (1, 2, 3):
        begins, ends = (at for each, _, at in arrows if each == number)
        assert ends - begins == pytest.approx([21, 20.1, 19.2][number - 1])


def test_jobs_of_a_topic(local: LocalEngine, tmp_path: Path) -> None:
    publisher = LogWriter(tmp_path, 9, clock=CLOCK)
    publisher.add(Kind.PUBLISH, channel="t", commit_seq=5, ts=SECOND)
    publisher.write()
    for pid, kind, at in ((1, Kind.REQ, 2), (2, Kind.FIN, 4)):
        worker = LogWriter(tmp_path, pid, clock=CLOCK)
        for each, when in ((Kind.DELIVER, at - 1), (kind, at)):
            worker.add(
                each, channel="t:c", commit_seq=5, ts=SECOND + when, ref_ts=SECOND, attempts=at // 2
            )
        worker.write()
    found, events = run(local, tmp_path)
    jobs = [event for event in events if event.get("cat") == "job"]
    assert [event["ph"] for event in sorted(jobs, key=lambda each: each["ts"])] == list("bebe")
    assert len({event["id"] for event in jobs}) == 1
    assert [event["args"]["end"] for event in jobs if event["ph"] == "e"] == ["REQ", "FIN"]
    assert sum(event["ph"] == "f" for event in events) == 2
    assert found.totals["of_unknown_commits"] == 0


def test_a_commit_that_no_log_has(local: LocalEngine, tmp_path: Path) -> None:
    listener = LogWriter(tmp_path, 1, clock=CLOCK)
    receives(listener, "c", np.arange(2), ts=SECOND, ref_ts=SECOND - 10)
    listener.write()
    found, events = run(local, tmp_path)
    assert found.totals["of_unknown_commits"] == 2
    assert not [event for event in events if event["ph"] in "sf"]


def test_processes_of_several_hosts_have_the_same_pid(local: LocalEngine, tmp_path: Path) -> None:
    for host in ("a", "b"):
        log = LogWriter(tmp_path, 7, clock=CLOCK, host=host)
        sends(log, "c", np.arange(1), ts=SECOND)
        log.write()
    _, events = run(local, tmp_path)
    assert len({event["pid"] for event in events}) == 2


def test_too_many_records(local: LocalEngine, tmp_path: Path) -> None:
    log = LogWriter(tmp_path, 1, clock=CLOCK)
    sends(log, "c", np.arange(100), ts=SECOND + np.arange(100))
    log.write()
    with pytest.raises(CannotRunError, match=r"a trace of 100 records .* --since and --until"):
        run(local, tmp_path, most=99)
    _, events = run(local, tmp_path, most=100)
    assert sum(event["ph"] == "X" for event in events) == 100


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = LogWriter(tmp_path, 1, clock=CLOCK)
    sends(log, "c", np.arange(10), ts=SECOND + np.arange(10))
    log.write()
    out = tmp_path / "out"
    assert main(["perfetto", str(tmp_path), "--out", str(out), "--most", "9"]) == 1
    assert "10 records" in capsys.readouterr().err
    assert main(["perfetto", str(tmp_path), "--out", str(out)]) == 0
    assert (out / "perfetto.json.gz").exists()
