"""The audit's account of one listener, against one kept message by message."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from logwriter import LogWriter, receives

import pynotify
from sessions import EngineFactory
from spark_jobs.audit.debt import Debt, Holes, Settled
from spark_jobs.logs.reader import LogReader
from spark_jobs.logs.schema import Kind
from spark_jobs.survey import survey


def settle(log: LogWriter) -> dict[str, dict[str, int]]:
    log.write()
    return settle_log(LogReader(survey([log.directory]).logs[0]))


def settle_log(reader: LogReader) -> dict[str, dict[str, int]]:
    debt = Debt()
    for chunk in reader.chunks():
        debt.add(chunk, len(reader.channels))
    settled: Settled = debt.settle()
    return {
        reader.channels[channel][1]: {
            name: int(getattr(settled, name)[i])
            for name in Settled.__dataclass_fields__
            if name != "channel"
        }
        for i, channel in enumerate(settled.channel)
    }


def account(seq: list[int], start: int) -> dict[str, int]:
    """By the definitions, one by one."""
    seen: set[int] = set()
    top = -1
    result = {"dup": 0, "out_of_order": 0}
    for number in seq:
        if number in seen:
            result["dup"] += 1
        elif number < top:
            result["out_of_order"] += 1
        seen.add(number)
        top = max(top, number)
    owed = set(range(start, top + 1))
    return result | {
        "expected": len(owed),
        "missing": len(owed - seen),
        "distinct": len(owed & seen),
        "unowed": len(seen - owed),
    }


@pytest.mark.parametrize("seed", range(8))
def test_against_a_message_by_message_account(tmp_path: Path, seed: int) -> None:
    random = np.random.default_rng(seed)
    log = LogWriter(tmp_path)
    truth = {}
    arrays = []
    for i in range(5):
        start, count = int(random.integers(0, 50)), int(random.integers(1, 40000))
        seq = start + np.arange(count)
        seq = seq[random.random(count) > random.choice([0, 0.001, 0.3])]
        again = random.choice(seq, size=int(random.integers(0, 20)))
        seq = np.insert(seq, random.integers(0, len(seq), len(again)), again)
        for at in random.integers(0, len(seq) - 1, int(random.integers(0, 50))):
            seq[[at, at + 1]] = seq[[at + 1, at]]
        log.add(Kind.LISTEN, channel=f"c{i}", chan_seq=start)
        arrays.append(seq)
        truth[f"c{i}"] = account(seq.tolist(), start)
    # the channels' records interleaved, each in its order
    owner = np.repeat(np.arange(5), [len(seq) for seq in arrays])
    random.shuffle(owner)
    mixed = np.empty(len(owner), dtype=np.int64)
    for i, seq in enumerate(arrays):
        mixed[owner == i] = seq
    log.add(Kind.RECV, len(owner), channel="c0", chan_seq=mixed)
    log.batches[-1]["channel"] = owner + 1
    found = settle(log)
    for name, expected in truth.items():
        assert {key: found[name][key] for key in expected} == expected


def test_holes_subtract_and_sum() -> None:
    holes = Holes()
    holes.add(np.array([10, 30]), np.array([20, 30]))
    holes.remove(np.array([10, 11, 15, 30]))
    assert holes.low.tolist() == [12, 16]
    assert holes.high.tolist() == [14, 20]
    assert holes.which(np.array([11, 12, 14, 15, 20, 21])).tolist() == [-1, 0, 0, -1, 1, -1]
    limits = np.array([0, 12, 13, 15, 16, 18, 99])
    assert holes.below(limits).tolist() == [0, 0, 1, 3, 3, 5, 8]


def test_an_unlisten_proves_what_was_owed(tmp_path: Path) -> None:
    log = LogWriter(tmp_path)
    log.add(Kind.LISTEN, channel="c", chan_seq=5)
    receives(log, "c", np.arange(5, 10))
    log.add(Kind.UNLISTEN, channel="c", chan_seq=20, lag=7)  # owed 5 to 12
    found = settle(log)["c"]
    assert (found["expected"], found["missing"], found["open_end"]) == (8, 3, -1)


def test_what_is_committed_between_two_listens_is_not_owed(tmp_path: Path) -> None:
    log = LogWriter(tmp_path)
    log.add(Kind.LISTEN, channel="c", chan_seq=0)
    receives(log, "c", np.arange(10))
    log.add(Kind.UNLISTEN, channel="c", chan_seq=10, lag=0)
    log.add(Kind.LISTEN, channel="c", chan_seq=100)
    receives(log, "c", np.array([100, 101, 103]))
    found = settle(log)["c"]
    assert (found["expected"], found["missing"], found["dup"]) == (14, 1, 0)
    assert found["open_end"] == 104


def test_a_second_listen_changes_nothing(tmp_path: Path) -> None:
    log = LogWriter(tmp_path)
    log.add(Kind.LISTEN, channel="c", chan_seq=0)
    receives(log, "c", np.arange(3))
    log.add(Kind.LISTEN, channel="c", chan_seq=6)
    receives(log, "c", np.arange(6, 9))
    found = settle(log)["c"]
    assert (found["expected"], found["missing"]) == (9, 3)


def test_without_a_message_nothing_is_owed(tmp_path: Path) -> None:
    log = LogWriter(tmp_path)
    log.add(Kind.LISTEN, channel="c", chan_seq=7)
    assert settle(log)["c"]["expected"] == 0
    log.add(Kind.UNLISTEN, channel="c", chan_seq=9, lag=0)
    found = settle(log)["c"]
    assert (found["expected"], found["missing"]) == (2, 2)


def test_what_a_gap_announced_is_dropped_and_not_lost(tmp_path: Path) -> None:
    log = LogWriter(tmp_path)
    log.add(Kind.LISTEN, channel="a", chan_seq=0)
    log.add(Kind.LISTEN, channel="b", chan_seq=0)
    receives(log, "a", np.array([0, 1, 3]))
    log.add(Kind.DROP, bytes=999)
    receives(log, "a", np.array([10, 12]))
    receives(log, "b", np.array([4]))
    found = settle(log)
    assert (found["a"]["missing"], found["a"]["dropped"], found["a"]["expected"]) == (2, 6, 7)
    assert (found["b"]["missing"], found["b"]["dropped"], found["b"]["expected"]) == (0, 4, 1)


def test_an_evicted_listener_has_lost_nothing_unannounced(
    make_engine: EngineFactory, tmp_path: Path
) -> None:
    """What the engine itself logs of the Gaps that it hands out."""
    engine = make_engine(queue_pages=64, on_full="drop-slowest")
    with engine.connect() as conn, engine.connect(latency_log=tmp_path) as slow:
        slow.listen("c")
        taken = 0
        for burst in (3, 200, 10, 150):
            for _ in range(burst):
                conn.notify("c", "x" * 7999)
            taken += sum(isinstance(message, pynotify.Notify) for message in slow.poll())
    (log,) = survey([tmp_path]).logs
    found = settle_log(LogReader(log))["c"]
    assert found["dropped"] == 363 - taken > 0
    assert (found["missing"], found["distinct"], found["expected"]) == (0, taken, taken)


def test_what_is_unread_when_it_is_unlistened_is_not_owed(
    make_engine: EngineFactory, tmp_path: Path
) -> None:
    """The engine logs how much that was."""
    engine = make_engine()
    with engine.connect() as conn, engine.connect(latency_log=tmp_path) as listener:
        listener.listen("c")
        conn.notify_many("c", ["1", "2"])
        assert len(listener.poll()) == 2
        conn.notify_many("c", ["3", "4", "5"])
        listener.unlisten("c")
        assert listener.poll() == []
    (log,) = survey([tmp_path]).logs
    found = settle_log(LogReader(log))["c"]
    assert (found["missing"], found["distinct"], found["expected"]) == (0, 2, 2)


def test_a_directory_that_is_full_of_logs_keeps_the_newest(
    make_engine: EngineFactory, tmp_path: Path
) -> None:
    """What the engine itself recycles: the reader tells it from a loss."""
    engine = make_engine()
    with engine.connect(latency_log=tmp_path, latency_log_limit=1 << 20) as conn:
        conn.listen("c")
        for _ in range(300):
            conn.notify_many("c", [str(number) for number in range(100)])
            conn.poll()
    stat = engine.stat()
    assert stat.log_files_recycled > 5 and stat.log_records_dropped == 0
    assert sum(path.stat().st_size for path in tmp_path.glob("*.pynlog")) <= 1 << 20
    (log,) = survey([tmp_path]).logs
    assert log.closed and log.files[-1].part == stat.log_files_recycled + len(log.files) - 1
    assert f"file 0 to {log.files[0].part - 1} of the log" in log.incomplete
    assert log.incomplete.endswith("made room for others")
    found = settle_log(LogReader(log))["c"]
    assert (found["missing"], found["dropped"]) == (0, 0)


@pytest.mark.parametrize("limit", [0, (1 << 20) - 1, 1 << 63, 2.0**21])
def test_a_limit_that_is_none(make_engine: EngineFactory, tmp_path: Path, limit: int) -> None:
    with pytest.raises(ValueError, match="latency_log_limit is at least 1048576 bytes, not"):
        make_engine().connect(latency_log=tmp_path, latency_log_limit=limit)
    with pytest.raises(ValueError, match="latency_log_limit needs latency_log"):
        make_engine().connect(latency_log_limit=1 << 20)


def test_messages_outside_the_debt_are_counted_apart(tmp_path: Path) -> None:
    log = LogWriter(tmp_path)
    log.add(Kind.LISTEN, channel="c", chan_seq=5)
    receives(log, "c", np.array([3, 5, 6]))
    found = settle(log)["c"]
    assert (found["expected"], found["missing"], found["unowed"]) == (2, 0, 1)
