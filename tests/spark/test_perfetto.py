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
    assert set(trace) == {"displayTimeUnit", "otherData", "traceEvents"}
    assert trace["displayTimeUnit"] in ("ns", "ms")
    imported(trace["traceEvents"])
    return found, trace["traceEvents"]


KEYS = {
    "M": {"name", "pid", "args"},
    "X": {"cat", "name", "ts", "dur", "pid", "tid", "args"},
    "b": {"cat", "name", "id", "ts", "pid", "tid"},
    "e": {"cat", "name", "id", "ts", "pid", "tid", "args"},
    "s": {"cat", "name", "id", "ts", "pid", "tid"},
    "f": {"cat", "name", "id", "ts", "pid", "tid", "bp"},
}
Event = dict[str, Any]


def ns(event: Event, name: str = "ts") -> int:
    """A time; it must be one of whole nanoseconds."""
    value = round(event[name] * 1000)
    assert value >= 0
    assert value / 1000 == event[name]
    return value


def imported(events: list[Event]) -> list[tuple[Event, Event]]:
    """The arrows that Perfetto's importer of JSON makes of it, from slice to slice. It takes one
    event after the other, by time, and drops what does not fit: here that is an error.
    """
    names: dict[tuple[str, int], str] = {}
    process_of: dict[int, int] = {}
    open_slices: dict[int, list[Event]] = {}
    jobs: dict[tuple[str, str, str], int] = {}
    begun: dict[tuple[int, str, str], Event] = {}
    arrows, last = [], 0
    for event in events:
        phase, tid = event["ph"], event.get("tid")
        assert set(event) - {"ph", "tid"} == KEYS[phase] - {"tid"}, event
        assert isinstance(event["name"], str)
        assert event["name"]
        if phase == "M":
            assert event["name"] == ("process_name" if tid is None else "thread_name")
            told = ("process", event["pid"]) if tid is None else ("thread", tid)
            assert names.setdefault(told, event["args"]["name"]) is event["args"]["name"], "once"
        else:
            assert ("process", event["pid"]) in names, "a process has its name first"
            assert ("thread", tid) in names
            at = ns(event)
            assert at >= last, "in order"
            last = at
        assert 0 < event["pid"] < 1 << 32
        if tid is None:
            continue
        assert 0 < tid < 1 << 32, "0 is the idle thread"
        assert process_of.setdefault(tid, event["pid"]) == event["pid"], "of one process only"
        stack = open_slices.setdefault(tid, [])
        while phase != "M" and stack and ns(stack[-1]) + ns(stack[-1], "dur") <= at:
            stack.pop()
        if phase == "X":
            assert ns(event, "dur") > 0
            assert not stack, "it overlaps the one before"
            stack.append(event)
        elif phase in "be":
            job = (event["cat"], event["name"], event["id"])
            jobs[job] = jobs.get(job, 0) + (1 if phase == "b" else -1)
        elif phase in "sf":
            assert isinstance(event["id"], int)
            assert stack, "an arrow needs a slice"
            arrow = (event["id"], event["cat"], event["name"])
            if phase == "s":
                assert arrow not in begun, "an id is of one arrow"
                begun[arrow] = stack[-1]
            else:
                assert event["bp"] == "e"
                arrows.append((begun.pop(arrow), stack[-1]))
    assert not begun, "each arrow has an end"
    return arrows


def named(events: list[dict[str, Any]], what: str) -> dict[int, str]:
    return {
        event.get("tid", event["pid"]): event["args"]["name"]
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
    assert found.totals == {
        "events": len(events),
        "of_unknown_commits": 0,
        "of_later_commits": 0,
    }
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


def test_a_batch_has_one_time_for_all_of_it(local: LocalEngine, tmp_path: Path) -> None:
    """Slices do not overlap, and each arrow leads to the message that was sent."""
    sender, count = LogWriter(tmp_path, 9, clock=CLOCK), 1000
    sends(sender, "c", np.arange(count), ts=SECOND)
    sender.write()
    taken = {1: SECOND + 300, 2: SECOND + 5000}  # sooner than the slices of the commit end, later
    for pid, at in taken.items():
        listener = LogWriter(tmp_path, pid, clock=CLOCK, backend_id=pid)
        listener.add(Kind.LISTEN, channel="c", chan_seq=0, ts=SECOND - 5000)
        listener.add(Kind.WAKE, flags=USEFUL, batch=count, wake=Wake.SIGNAL, ts=at)
        receives(listener, "c", np.arange(count), ts=at, ref_ts=SECOND)
        listener.write()
    found, events = run(local, tmp_path)
    assert sum(event["ph"] == "X" for event in events) == 3 * count + 2 * 3
    sleeps = [ns(event) + ns(event, "dur") for event in events if event.get("cat") == "sleep"]
    since = SECOND - 5000
    assert sleeps == [at - since for at in taken.values()], "then comes what it woke for"
    assert found.totals["of_later_commits"] == 0
    arrows = imported(events)
    assert len(arrows) == 2 * count
    exact = 0
    for begin, end in arrows:
        assert (begin["cat"], end["cat"]) == ("SEND", "RECV")
        sent, received = (each["args"].get("chan_seq", 0) for each in (begin, end))
        assert sent in (received, 0), "the message itself, or the first one of its commit"
        exact += sent == received
    assert exact > 1000
    assert {end["args"].get("chan_seq", 0) for _, end in arrows} == set(range(count))


def test_a_hand_over_before_its_commit(local: LocalEngine, tmp_path: Path) -> None:
    """Clocks of two hosts differ; an arrow does not lead back."""
    sender = LogWriter(tmp_path, 9, clock=CLOCK)
    sends(sender, "c", np.arange(2), ts=np.array([SECOND, SECOND + 9000]))
    sender.write()
    listener = LogWriter(tmp_path, 1, clock=CLOCK, backend_id=3)
    receives(listener, "c", np.arange(2), ts=SECOND + 5000, ref_ts=SECOND)
    listener.write()
    found, events = run(local, tmp_path)
    assert found.totals["of_later_commits"] == 1
    assert len(imported(events)) == 1


@pytest.mark.parametrize("seed", range(5))
def test_any_logs_make_a_trace_that_is_taken_whole(
    seed: int, local: LocalEngine, tmp_path: Path
) -> None:
    random = np.random.default_rng(seed)
    for pid, host in ((1, "a"), (2, "a"), (1, "b")):
        log = LogWriter(tmp_path, pid, clock=CLOCK, host=host, backend_id=pid % 2)
        at = SECOND + np.sort(random.integers(0, 3000, 400))
        for number, when in enumerate(at.tolist()):
            kind = Kind(int(random.choice([kind for kind in Kind if kind != Kind.CHANDEF])))
            topic = kind in (Kind.DELIVER, Kind.FIN, Kind.REQ, Kind.TIMEOUT)
            name = "t:c" if topic else "t"
            figures = {"commit_seq": number % 50, "chan_seq": number % 50, "attempts": 1}
            log.add(kind, channel=name, ts=when, ref_ts=max(when - 700, 1), **figures)
        log.write(files=2)
    found, events = run(local, tmp_path)
    assert sum(event["ph"] == "X" and event["cat"] != "sleep" for event in events) == 1200
    assert found.totals["events"] == len(events)
