"""What is found in a log that is read in pieces is what is found in it read in order."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from logwriter import LogWriter, receives, sends

from spark_jobs.audit.debt import Account, Debt
from spark_jobs.engine import local as local_engine
from spark_jobs.engine.local import LocalEngine
from spark_jobs.engine.partials import deal, pieces
from spark_jobs.jobs import audit, e2e, ingest, report, runner, wakeups
from spark_jobs.logs import model, reader
from spark_jobs.logs.model import Log, Survey
from spark_jobs.logs.schema import USEFUL, Kind, Wake
from spark_jobs.survey import survey

CHANNELS = ("a", "b", "c", "d")


def in_order(found: Survey) -> Survey:
    return replace(found, logs=[replace(log, in_order=True) for log in found.logs])


def audited(found: Survey, out: Path, processes: int = 1) -> Any:
    result = audit.run(LocalEngine(processes), found, out)
    files = {path.name: path.read_bytes() for path in sorted(out.glob("*/*.parquet"))}
    return result, files


@pytest.fixture
def read_in_order(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The logs of which the audit found that they have to be."""
    found: list[str] = []
    load = LocalEngine.load

    def noted(engine: LocalEngine, job: str, survey: Survey, **settings: Any) -> Any:
        if settings.get("only_debt"):
            found.extend(log.log_id for log in survey.logs)
        return load(engine, job, survey, **settings)

    monkeypatch.setattr(LocalEngine, "load", noted)
    return found


def a_receiver(logs: Path, pid: int, random: np.random.Generator, faults: bool) -> LogWriter:
    """Channels come and go, some late; Gaps; with `faults` messages are lost, and come again."""
    log = LogWriter(logs, pid)
    begin = dict.fromkeys(CHANNELS, 0)
    for turn in range(40):
        for number, channel in enumerate(CHANNELS):
            if turn < 9 * number:
                continue
            what = random.random()
            seq = begin[channel] + np.arange(int(random.integers(1, 30)))
            begin[channel] = int(seq[-1]) + 1
            if what < 0.1:
                log.add(Kind.UNLISTEN, channel=channel, chan_seq=seq[0], lag=turn % 3)
                log.add(Kind.LISTEN, channel=channel, chan_seq=seq[-1])
            elif what < 0.15:
                log.add(Kind.DROP, bytes=len(seq))
            elif what < 0.2 and not faults:
                sends(log, channel, seq)
            elif faults and what < 0.3:
                kept = random.permutation(seq)[: max(1, len(seq) - 2)]
                receives(log, channel, np.append(kept, kept[:1]))
            else:
                receives(log, channel, seq)
        log.add(Kind.WAKE, batch=turn % 2, flags=USEFUL, wake=Wake.SIGNAL, ts=10**6 + turn)
    return log


@pytest.mark.parametrize("faults", [False, True])
@pytest.mark.parametrize("seed", range(12))
def test_as_read_in_order(
    seed: int,
    faults: bool,
    tmp_path: Path,
    read_in_order: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With chunks so small that each file has many."""
    for module in (model, reader):
        monkeypatch.setattr(module, "CHUNK_RECORDS", 64)
    random = np.random.default_rng(seed)
    logs = tmp_path / "logs"
    for pid in (1, 2, 3):
        paths = a_receiver(logs, pid, random, faults).write(files=int(random.integers(2, 9)))
        if faults and pid == 2:
            os.truncate(paths[0], paths[0].stat().st_size - 640)
    sender = LogWriter(logs, 9)
    for channel in CHANNELS:
        sends(sender, channel, np.arange(800))
    sender.write(files=3)
    found = survey([logs])
    whole = audited(in_order(found), tmp_path / "whole")
    assert read_in_order == []
    assert any(row["dropped"] or row["lost"] for row in whole[0].rows)
    for processes in (1, 3):
        assert audited(found, tmp_path / str(processes), processes) == whole
    assert faults or read_in_order == []


def a_pair(logs: Path, count: int, seq: Callable[[Any], Any] = lambda each: each) -> Survey:
    """One publisher and one consumer, each of eight files."""
    sender, receiver = LogWriter(logs, 1), LogWriter(logs, 2)
    receiver.add(Kind.LISTEN, channel="a", chan_seq=0)
    sends(sender, "a", np.arange(count))
    receives(receiver, "a", seq(np.arange(count)))
    sender.write(files=8)
    receiver.write(files=8)
    return survey([logs])


def test_one_publisher_and_one_consumer_are_read_by_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = a_pair(tmp_path / "logs", 80_000)
    (log, other) = found.logs
    dealt = [
        [Log.from_json(text) for text in part]
        for part in deal(pieces(("audit",), found.logs, 4), 4)
    ]
    assert [len(part) for part in dealt] == [4] * 4
    sizes = [sum(piece.size for piece in part) for part in dealt]
    assert max(sizes) - min(sizes) < log.size // 100
    here, there = os.pipe()
    aggregated = local_engine.aggregated

    def told(*arguments: Any) -> Any:
        os.write(there, os.getpid().to_bytes(4))
        return aggregated(*arguments)

    monkeypatch.setattr(local_engine, "aggregated", told)
    result, _ = audited(found, tmp_path / "out", 4)
    readers = [int.from_bytes(os.read(here, 4)) for _ in range(16)]
    for fd in (here, there):
        os.close(fd)
    assert len(set(readers)) == 4
    assert all(readers.count(pid) == 4 for pid in set(readers))
    assert result.totals["distinct"] == result.totals["expected"] == 80_000
    assert other.log_id != log.log_id


@pytest.mark.parametrize(
    ("what", "again"),
    [
        (lambda seq: np.delete(seq, [100, 9999, 10_000, 10_001, 79_999]), 0),
        (lambda seq: np.insert(seq, 5000, 4000), 0),
        (lambda seq: np.insert(np.delete(seq, 50), 60_000, 50), 1),
        (lambda seq: np.insert(seq, 60_000, 50), 1),
    ],
    ids=["lost at the ends", "again in its piece", "late, pieces later", "again, pieces later"],
)
def test_what_crosses_pieces_is_read_in_order(
    what: Callable[[Any], Any], again: int, tmp_path: Path, read_in_order: list[str]
) -> None:
    found = a_pair(tmp_path / "logs", 80_000, what)
    whole = audited(in_order(found), tmp_path / "whole")
    assert audited(found, tmp_path / "pieces", 2) == whole
    assert len(read_in_order) == again
    assert whole[0].totals["lost"] + whole[0].totals["dup"] + whole[0].totals["out_of_order"] > 0


@pytest.mark.parametrize("defined", [False, True])
def test_a_gap_before_a_channel_comes_up_again(
    defined: bool, tmp_path: Path, read_in_order: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In files that define it later than that, or not at all."""
    for module in (model, reader):
        monkeypatch.setattr(module, "CHUNK_RECORDS", 4)
    logs = tmp_path / "logs"
    logs.mkdir()
    for part in range(3):
        log = LogWriter(logs / str(part), 2, log_id=77, part=part)
        if part == 0:
            receives(log, "a", np.arange(10))
        if part == 1 or defined:
            receives(log, "b", np.arange(part * 10, part * 10 + 10))
        if part == (2 if defined else 1):
            log.add(Kind.DROP, bytes=5)
        if part == 2:
            log.add(Kind.WAKE, 12)
            receives(log, "a", np.arange(15, 20))
            path = log.write()[0]
            if defined:  # the definition of "a", the second record, moves to before its use
                raw = path.read_bytes()
                head, records = raw[:4096], [raw[at : at + 64] for at in range(4096, len(raw), 64)]
                moved = [records[0], *records[2:-5], records[1], *records[-5:]]
                path.write_bytes(head + b"".join(moved))
            continue
        log.write()
    found = survey([logs])
    assert [len(log.files) for log in found.logs] == [3]
    whole = audited(in_order(found), tmp_path / "whole")
    assert {row["channel"]: row["dropped"] for row in whole[0].rows}["a"] == 5
    assert not any(report.damaged for report in whole[0].reports)
    assert audited(found, tmp_path / "out") == whole
    assert read_in_order == []


def test_an_archive_of_it(tmp_path: Path) -> None:
    found = a_pair(tmp_path / "logs", 8000, lambda seq: np.delete(seq, [100, 1000]))
    archive = tmp_path / "archive"
    ingest.run(LocalEngine(1), found, archive, compact=True)
    whole = audited(in_order(found), tmp_path / "whole")
    assert audited(survey([archive]), tmp_path / "out", 2) == whole


def test_what_is_missing_is_told_once(tmp_path: Path) -> None:
    a_pair(tmp_path / "logs", 8000)
    sorted((tmp_path / "logs").glob("*.2.*"))[3].unlink()
    found = survey([tmp_path / "logs"])
    whole = audited(in_order(found), tmp_path / "whole")
    assert audited(found, tmp_path / "out") == whole
    (row,) = whole[0].rows
    assert (row["lost"], row["incomplete"]) == (None, True)


def test_a_listener_that_lives_owes_what_comes_after_its_last_piece(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    own = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    head: dict[str, Any] = {"boot_id": boot, "starttime": int(own[19])}
    sender, receiver = LogWriter(logs, 1, boot_id=boot), LogWriter(logs, os.getpid(), **head)
    receiver.add(Kind.LISTEN, channel="a", chan_seq=0)
    receives(receiver, "a", np.arange(500))
    receiver.add(Kind.WAKE, batch=0, ts=10**9)
    sends(sender, "a", np.arange(520))
    sender.write(files=2)
    receiver.write(files=4, sealed=False)
    found = survey([logs])
    whole = audited(in_order(found), tmp_path / "whole")
    assert [row["lost"] for row in whole[0].rows] == [20]
    assert audited(found, tmp_path / "out") == whole


def test_an_account_survives_its_list() -> None:
    full = Account(9, 1, 1, 7, 1, 2, True, ((2, 3), (5, 5)), (2, 10), ((8, 0, 0, -1), (9, 5, 1, 4)))
    for account in (Account(), full):
        assert Account.from_list(account.to_list()) == account
        assert Debt.of([Account(), account]).accounts() == [Account(), account]


@pytest.mark.spark
@pytest.mark.xdist_group("spark")
@pytest.mark.filterwarnings("default")  # Spark's own code, which we cannot mend
@pytest.mark.parametrize("late", [False, True])
def test_by_tasks_of_spark(late: bool, spark: Any, tmp_path: Path) -> None:
    from spark_jobs.spark.engine import SparkEngine

    found = a_pair(
        tmp_path / "logs", 8000, lambda seq: np.insert(np.delete(seq, 50), 6000 if late else 60, 50)
    )
    engine = SparkEngine(spark)
    tasks = spark.sparkContext.defaultParallelism
    assert tasks > 1
    assert engine.load("audit", found).partitions == tasks
    whole = audited(in_order(found), tmp_path / "whole")
    result = audit.run(engine, found, tmp_path / "out")
    files = {
        path.name: path.read_bytes() for path in sorted((tmp_path / "out").glob("*/*.parquet"))
    }
    assert (result, files) == whole


# ---- the jobs that follow something from record to record


def a_consumer(logs: Path, pid: int, random: np.random.Generator) -> LogWriter:
    """Jobs overlap, so that files end between a delivery and its answer; so they do between a
    wake-up and the message that it was for.
    """
    log = LogWriter(logs, pid, clock=10**18)
    at, under_way = 10**9, []
    for number in range(600):
        at += int(random.integers(1, 10**6))
        what = random.random()
        if what < 0.3:
            under_way.append((number, int(random.integers(1, 4)), at))
            message, attempts, since = under_way[-1]
            common = {"commit_seq": message, "attempts": attempts, "ref_ts": since - 500}
            log.add(Kind.DELIVER, channel=f"t:{'ab'[number % 2]}", ts=at, **common)
        elif what < 0.6 and under_way:
            message, attempts, since = under_way.pop(int(random.integers(len(under_way))))
            kind = Kind(random.choice([Kind.FIN, Kind.FIN, Kind.FIN, Kind.REQ, Kind.TIMEOUT]))
            common = {"commit_seq": message, "attempts": attempts, "ref_ts": since - 500}
            log.add(kind, channel=f"t:{'ab'[message % 2]}", ts=at, **common)
            if random.random() < 0.2:  # an answer too many
                log.add(Kind.FIN, channel=f"t:{'ab'[message % 2]}", ts=at + 1, **common)
        elif what < 0.7:
            log.add(Kind.DROP, ts=at, bytes=1)
        else:
            wake = random.choice([Wake.SIGNAL, Wake.FD])
            log.add(Kind.WAKE, ts=at, flags=USEFUL, batch=1, wake=wake)
            receives(log, "c", np.array([number]), ts=at + 9, ref_ts=at - 700 - number)
    return log


def files_of(out: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(out)): path.read_bytes()
        for path in sorted(out.rglob("*"))
        if path.is_file()
    }


@pytest.mark.parametrize("seed", range(6))
def test_wake_ups_and_jobs_that_go_on_in_the_next_file(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (model, reader):
        monkeypatch.setattr(module, "CHUNK_RECORDS", 64)
    random = np.random.default_rng(seed)
    for pid in (1, 2):
        paths = a_consumer(tmp_path / "logs", pid, random).write(files=int(random.integers(5, 40)))
        if pid == 2:  # a file of which nothing is left but its head
            os.truncate(paths[2], 4096)
    found = survey([tmp_path / "logs"])
    for job in (e2e, wakeups):
        name = job.__name__.rpartition(".")[2]
        whole = runner(name)(LocalEngine(1), in_order(found), tmp_path / f"{name}-whole")
        assert whole.rows
        for processes in (1, 3):
            out = tmp_path / f"{name}-{processes}"
            assert runner(name)(LocalEngine(processes), found, out) == whole
            assert files_of(out) == files_of(tmp_path / f"{name}-whole")


def without(page: str, *what: object) -> str:
    for each in what:
        page = page.replace(str(each), "")
    return page


@pytest.mark.parametrize("seed", range(3))
def test_a_report_of_a_log_in_pieces(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Byte for byte; one large log is dealt to all processes."""
    random = np.random.default_rng(seed)
    logs = tmp_path / "logs"
    a_consumer(logs, 1, random).write(files=9)
    a_receiver(logs, 2, random, False).write(files=5)
    found = survey([logs])
    read: list[list[str]] = []

    def dealt(*arguments: Any, **options: Any) -> Any:
        read.append([len(part) for part in deal(*arguments, **options)])
        return deal(*arguments, **options)

    monkeypatch.setattr(local_engine, "deal", dealt)
    outs = {name: tmp_path / name for name in ("whole", "1", "3")}
    report.run(LocalEngine(1), in_order(found), outs["whole"])
    report.run(LocalEngine(1), found, outs["1"])
    report.run(LocalEngine(3), found, outs["3"])
    assert (read[0], len(read[-1])) == ([2], 3)
    assert min(read[-1]) >= 2, "all three have parts of the large log"
    whole, *others = (files_of(out) for out in outs.values())
    assert len(whole) > 9
    assert others[0] == whole
    assert others[1] == whole


def test_no_more_pieces_than_are_of_use(tmp_path: Path) -> None:
    """Each has rows of its own. Of eight logs two processes have four each, whole; of one large log
    neighbouring files are one piece.
    """
    for pid in range(1, 9):
        log = LogWriter(tmp_path / "even", pid)
        sends(log, "a", np.arange(700))
        log.write(files=7)
    even = survey([tmp_path / "even"]).logs
    assert pieces(("latency",), even, 2) == even
    assert len(pieces(("latency",), even, 64)) == 56
    log = LogWriter(tmp_path / "one", 1)
    sends(log, "a", np.arange(3200))
    log.write(files=32)
    (one,) = survey([tmp_path / "one"]).logs
    found = pieces(("latency", "e2e"), [one], 2)
    assert 6 <= len(found) <= 8  # whole files
    assert tuple(file for piece in found for file in piece.files) == one.files
    assert all(piece.is_piece for piece in found)
    assert pieces(("latency", "lag"), [one], 2) == [one]
