"""The jobs: every figure against numpy, every injected fault found exactly."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from logwriter import BOOT, LogWriter, flip_bit, receives, sends

import pynotify
from spark_jobs.engine.tables import read_table
from spark_jobs.figures import hgrm
from spark_jobs.figures.histogram import bucket
from spark_jobs.jobs import audit, latency, wakeups
from spark_jobs.logs.schema import USEFUL, Kind, Wake
from spark_jobs.result import JobResult
from spark_jobs.survey import survey


def run_audit(local: Any, logs: Path) -> JobResult:
    return audit.run(local, survey([logs]), logs / "out")


def rows_by_pid(result: JobResult) -> dict[int, dict[str, Any]]:
    return {row["pid"]: row for row in result.rows}


def a_listener(logs: Path, pid: int, seq: np.ndarray, start: int = 0, **columns: Any) -> LogWriter:
    log = LogWriter(logs, pid)
    log.add(Kind.LISTEN, channel="c", chan_seq=start)
    receives(log, "c", seq, **columns)
    return log


def a_sender(logs: Path, count: int, pid: int = 99) -> LogWriter:
    log = LogWriter(logs, pid)
    sends(log, "c", np.arange(count))
    return log


# ---- latency


@pytest.fixture(scope="module")
def latency_logs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, np.ndarray]:
    """Two processes, one of them with two connections, many channels, two wake reasons."""
    logs = tmp_path_factory.mktemp("latency")
    random = np.random.default_rng(1)
    truth = []
    for pid, count in ((1, 20000), (1, 5000), (2, 30000)):
        log = LogWriter(logs, pid)
        for channel in range(4):
            values = (random.pareto(1.5, count) * 1000).astype(np.int64)
            ref = 10**15 + np.sort(random.integers(0, 10**9, count))
            wake = random.choice([Wake.SIGNAL, Wake.FD], count)
            receives(log, f"c{channel}", np.arange(count), ts=ref + values, ref_ts=ref, wake=wake)
            column = np.full(count, channel)
            truth.append(np.stack([np.full(count, pid), column, wake, values, ref + values]))
        log.write(files=2)
    return logs, np.concatenate(truth, axis=1)


def close(found: int, exact: int) -> bool:
    return abs(found - exact) <= max(1, 0.0040 * exact)


def test_latency_against_numpy(local: Any, latency_logs: tuple[Path, np.ndarray]) -> None:
    logs, truth = latency_logs
    result = latency.run(local, survey([logs]), logs / "out")
    pid, channel, wake, values, ts = truth
    assert len(result.rows) == 2 * 4 * 3
    for row in result.rows:
        which = (pid == row["pid"]) & (channel == int(row["channel"][1:]))
        if row["wake"] != "all":
            which &= wake == Wake[row["wake"].upper()]
        mine = np.sort(values[which])
        assert row["host"] == "testhost"
        assert row["n"] == len(mine)
        assert (row["min_ns"], row["max_ns"]) == (mine[0], mine[-1])
        assert row["mean_ns"] == pytest.approx(mine.mean(), rel=1e-12)
        for name, q in (("p50", 5000), ("p90", 9000), ("p99", 9900), ("p999", 9990)):
            exact = mine[-(-len(mine) * q // 10000) - 1]
            assert close(row[f"{name}_ns"], exact), (row["channel"], name)
        span = np.ptp(ts[which]) / 1e9
        assert row["rate_per_s"] == pytest.approx((len(mine) - 1) / span)


def test_the_histograms_that_are_written_are_those_of_numpy(
    local: Any, latency_logs: tuple[Path, np.ndarray]
) -> None:
    logs, truth = latency_logs
    latency.run(local, survey([logs]), logs / "written")
    written = read_table(logs / "written" / "latency_hist")
    assert (written.schema.field("bucket").type, written.schema.field("n").type) == (
        pa.int32(),
        pa.int64(),
    )
    names = ("pid", "channel", "wake", "bucket")
    found = {tuple(row[name] for name in names): row["n"] for row in written.to_pylist()}
    assert len(found) == written.num_rows
    pid, channel, wake, values, _ = truth
    expected: dict[tuple[Any, ...], int] = {}
    reasons = [Wake(number).name.lower() for number in wake.tolist()]
    for process, where, why, place in zip(
        pid.tolist(), channel.tolist(), reasons, bucket(values).tolist(), strict=True
    ):
        for name in (why, "all"):
            key = (process, f"c{where}", name, place)
            expected[key] = expected.get(key, 0) + 1
    assert found == expected


def test_no_message_at_all(local: Any, tmp_path: Path) -> None:
    """The tables are there, for `compare` and `report`, and have no rows."""
    a_sender(tmp_path, 10).write()
    result = latency.run(local, survey([tmp_path]), tmp_path / "out")
    assert (result.rows, len(result.reports)) == ([], 1)
    for name in ("latency_hist", "latency_summary"):
        assert read_table(tmp_path / "out" / name).num_rows == 0


def test_many_channels_take_the_sparse_way(local: Any, tmp_path: Path) -> None:
    log = LogWriter(tmp_path, 1)
    for i in range(700):
        receives(log, f"c{i:03}", np.arange(20), ref_ts=100, ts=100 + 50 * (i + 1))
    log.write()
    rows = latency.run(local, survey([tmp_path]), tmp_path / "out").rows
    per_channel = [row for row in rows if row["wake"] == "all"]
    assert [(row["n"], row["p50_ns"]) for row in per_channel] == [
        (20, 50 * (i + 1)) for i in range(700)
    ]
    # All are as busy: of equals the first ones have files, whichever task had them.
    chosen = hgrm.busiest(rows, hgrm.MOST_CHANNELS)
    files = {path.name for path in (tmp_path / "out" / "hgrm").iterdir()}
    assert files == {"all.hgrm", *map(hgrm.file_name, chosen)}
    assert [name for _, _, name in chosen] == [f"c{i:03}" for i in range(100)]


def test_listeners_that_others_records_stand_among(local: Any, tmp_path: Path) -> None:
    """What is no reception, of a channel or none, is in no figure, be it few or most of a log."""
    random = np.random.default_rng(4)
    for pid, share in ((1, 0.02), (2, 0.9)):
        log = LogWriter(tmp_path, pid)
        values = random.integers(0, 3000, 4000)
        others = random.random(4000) < share
        log.add(Kind.LISTEN, channel="c")
        kinds = np.where(others, random.choice([Kind.WAKE, Kind.UNLISTEN], 4000), Kind.RECV)
        ref = 10**9 + np.arange(4000) * 10_000
        wake = np.where(others, Wake.FD, Wake.TIMER)
        receives(log, "c", np.arange(4000), ts=ref + values, ref_ts=ref, wake=wake)
        log.batches[-1]["kind"] = kinds
        log.write()
        mine = np.sort(values[~others])
        rows = latency.run(local, survey([tmp_path]), tmp_path / "out").rows
        row, same = (row for row in rows if row["pid"] == pid)
        assert (same["wake"], same["n"]) == ("timer", row["n"])
        assert (row["pid"], row["wake"], row["n"]) == (pid, "all", len(mine))
        assert (row["min_ns"], row["max_ns"]) == (mine[0], mine[-1])
        assert row["mean_ns"] == pytest.approx(mine.mean(), rel=1e-12)


def test_negative_latencies_are_counted_and_left_out(local: Any, tmp_path: Path) -> None:
    log = LogWriter(tmp_path, 1)
    receives(log, "c", np.arange(3), ts=[100, 200, 300], ref_ts=[90, 210, 280])
    log.write()
    result = latency.run(local, survey([tmp_path]), tmp_path / "out")
    assert result.rows[0]["n"] == 2
    assert result.totals == {"negative_latencies": 1, "other_clock": 0}


def test_negative_latency_of_another_clock_counts_once(local: Any, tmp_path: Path) -> None:
    for boot, backend in (("boot a", 1), ("boot b", 2)):
        log = LogWriter(tmp_path, backend, boot_id=boot)
        receives(log, "c", np.arange(3), ts=[100, 200, 300], ref_ts=[90, 210, 280], peer=1)
        log.write()
    result = latency.run(local, survey([tmp_path]), tmp_path / "out")
    assert result.totals == {"negative_latencies": 1, "other_clock": 3}


def test_damage_costs_its_records_and_no_others(local: Any, tmp_path: Path) -> None:
    """Rotated, cut off, bit-flipped, of another version, empty: the rest is counted exactly."""
    random = np.random.default_rng(8)
    values = (random.pareto(1.5, 8000) * 1000).astype(np.int64)
    log = LogWriter(tmp_path, 1)
    receives(log, "c", np.arange(8000), ts=10**9 + values, ref_ts=10**9)
    paths = log.write(files=4)
    flipped = random.choice(2000, 20, replace=False)
    for record in flipped:
        flip_bit(paths[1], 1 + record)  # after the channel's definition
    os.truncate(paths[3], paths[3].stat().st_size - 64 * 150)
    (tmp_path / "other.pynlog").write_bytes(b"PYNLOG\0\2" + bytes(8000))
    (tmp_path / "empty.pynlog").touch()
    kept = np.sort(np.delete(values[:7850], 2000 + flipped))
    result = latency.run(local, survey([tmp_path]), tmp_path / "out")
    (row,) = (row for row in result.rows if row["wake"] == "all")
    assert (row["n"], row["min_ns"], row["max_ns"]) == (7830, kept[0], kept[-1])
    assert close(row["p50_ns"], kept[3914])
    assert close(row["p999_ns"], kept[7822])
    found = {Path(report.file).name: report.damaged for report in result.reports}
    assert [found[path.name] for path in paths] == [0, 20, 0, 150]
    assert found["other.pynlog"] > 0
    assert found["empty.pynlog"] > 0


# ---- audit


def test_faults_are_found_exactly(local: Any, tmp_path: Path) -> None:
    """k lost, dup, swapped, flipped, each in a listener of its own, and a clean one."""
    count = 200_000
    random = np.random.default_rng(2)
    a_sender(tmp_path, count).write(files=3)
    seq = np.arange(count)

    places = np.sort(random.choice(np.arange(10, count - 10, 4), 4 * 30, replace=False))
    lost, dup, swapped, flipped = places[:30], places[30:60], places[60:90], places[90:]
    a_listener(tmp_path, 1, seq).write(files=2)
    a_listener(tmp_path, 2, np.delete(seq, lost)).write(files=2)
    a_listener(tmp_path, 3, np.insert(seq, dup + 2, dup)).write()
    order = seq.copy()
    order[swapped], order[swapped + 1] = seq[swapped + 1], seq[swapped]
    a_listener(tmp_path, 4, order).write()
    bad = a_listener(tmp_path, 5, seq)
    bad.batches[-1]["aux"][flipped] ^= np.uint64(1 << 7)
    bad.write()

    result = run_audit(local, tmp_path)
    rows = rows_by_pid(result)
    names = ("lost", "dup", "out_of_order", "corrupted", "unproven")
    found = {pid: tuple(rows[pid][name] for name in names) for pid in rows}
    assert found == {
        1: (0, 0, 0, 0, 0),
        2: (30, 0, 0, 0, 0),
        3: (0, 30, 0, 0, 0),
        4: (0, 0, 30, 0, 0),
        5: (0, 0, 0, 30, 0),
    }
    assert {row["expected"] for row in result.rows} == {count}
    assert rows[2]["distinct"] == count - 30
    assert result.violation
    assert result.totals["lost"] == 30


def test_a_clean_run_with_many_senders_and_channels_is_clean(local: Any, tmp_path: Path) -> None:
    random = np.random.default_rng(3)
    senders = [LogWriter(tmp_path, 50 + i) for i in range(3)]
    listeners = [LogWriter(tmp_path, i) for i in (1, 2)]
    for channel in ("a", "b", "c"):
        seq = np.arange(70_000)
        owner = random.integers(0, 3, len(seq))
        for i, sender in enumerate(senders):
            sends(sender, channel, seq[owner == i])
        for listener in listeners:
            listener.add(Kind.LISTEN, channel=channel, chan_seq=1000)
            receives(listener, channel, seq[1000:])
    for log in senders + listeners:
        log.write()
    result = run_audit(local, tmp_path)
    assert len(result.rows) == 6
    assert not result.violation
    assert result.totals["expected"] == result.totals["distinct"] == 6 * 69_000
    assert result.totals["unproven"] == 0


def test_logs_are_read_again_only_where_bytes_may_differ(
    local: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not for what is clean, swapped within a block, or of a sender without a log."""
    readings = []
    load = local.load

    def counted(*arguments: Any, **settings: Any) -> Any:
        readings.append(settings)
        return load(*arguments, **settings)

    monkeypatch.setattr(local, "load", counted)
    count = 20_000
    a_sender(tmp_path, count).write()
    order = np.arange(count)
    order[[100, 101]] = [101, 100]
    a_listener(tmp_path, 1, order).write()
    unsent = LogWriter(tmp_path, 2)
    receives(unsent, "d", np.arange(50))
    unsent.write()
    rows = rows_by_pid(run_audit(local, tmp_path))
    assert (rows[1]["out_of_order"], rows[1]["unproven"], rows[2]["unproven"]) == (1, 0, 50)
    assert readings == [{}]
    readings.clear()
    a_listener(tmp_path, 3, np.delete(np.arange(count), 9000)).write()
    assert rows_by_pid(run_audit(local, tmp_path))[3]["lost"] == 1
    (blocks,) = readings[1]["suspects"].values()
    assert blocks.tolist() == [9000 // 4096]


def test_engines_databases_and_channels_are_kept_apart(local: Any, tmp_path: Path) -> None:
    """The same numbers with other bytes, elsewhere."""
    for engine, database, salt in (("e1", 1, 0), ("e2", 1, 1), ("e1", 2, 2)):
        sender = LogWriter(tmp_path, 50, engine=engine)
        listener = LogWriter(tmp_path, 1, engine=engine)
        seq = np.arange(10)
        sends(sender, "c", seq, database=database, aux=seq + salt)
        receives(listener, "c", seq, database=database, aux=seq + salt)
        sender.write()
        listener.write()
    result = run_audit(local, tmp_path)
    assert len(result.rows) == 3
    assert (result.totals["corrupted"], result.totals["unproven"]) == (0, 0)


def test_a_message_that_no_sender_logged_is_unproven(local: Any, tmp_path: Path) -> None:
    a_sender(tmp_path, 100).write(sealed=False)
    a_listener(tmp_path, 1, np.arange(103)).write()
    result = run_audit(local, tmp_path)
    assert (result.rows[0]["unproven"], result.rows[0]["lost"]) == (3, 0)
    assert not result.violation


def test_a_damaged_log_proves_no_loss(local: Any, tmp_path: Path) -> None:
    a_sender(tmp_path, 1000).write()
    (path,) = a_listener(tmp_path, 1, np.arange(1000)).write()
    for record in (100, 200, 300):
        flip_bit(path, record)
    result = run_audit(local, tmp_path)
    (row,) = result.rows
    assert (row["expected"], row["distinct"]) == (1000, 997)
    assert (row["lost"], row["unproven"]) == (None, 3)
    assert not result.violation
    (damaged,) = [report for report in result.reports if report.damaged]
    assert (damaged.file, damaged.damaged) == (str(path), 3)


def test_the_debt_of_the_dead_and_of_the_closed_ends_with_the_last_message(
    local: Any, tmp_path: Path
) -> None:
    a_sender(tmp_path, 100).write()
    a_listener(tmp_path, 1, np.arange(60)).write(sealed=False)
    a_listener(tmp_path, 2, np.arange(70)).write(sealed=True)
    proved = a_listener(tmp_path, 3, np.arange(70))
    proved.add(Kind.UNLISTEN, channel="c", chan_seq=90, lag=5)
    proved.write()
    result = run_audit(local, tmp_path)
    found = {pid: (row["expected"], row["lost"]) for pid, row in rows_by_pid(result).items()}
    assert found == {1: (60, 0), 2: (70, 0), 3: (85, 15)}


@pytest.mark.parametrize("evidence", ["idle wake", "later commit", "none"])
def test_the_living_owe_up_to_the_last_send_that_they_have_read_past(
    local: Any, tmp_path: Path, evidence: str
) -> None:
    stat = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    here: dict[str, Any] = {"boot_id": boot, "starttime": int(stat[19])}
    sender = LogWriter(tmp_path, 99, boot_id=boot)
    sends(sender, "c", np.arange(100))
    sender.write()
    log = LogWriter(tmp_path, os.getpid(), **here)
    log.add(Kind.LISTEN, channel="c", chan_seq=0)
    receives(log, "c", np.arange(98))
    if evidence == "idle wake":
        log.add(Kind.WAKE, ts=10**9, batch=0)
    if evidence == "later commit":
        receives(log, "another", np.array([7]), commit_seq=100)
    log.write(sealed=False)
    row = next(row for row in run_audit(local, tmp_path).rows if row["channel"] == "c")
    assert boot != BOOT
    assert (row["expected"], row["lost"]) == ((98, 0) if evidence == "none" else (100, 2))


# ---- wakeups and the demonstration


def test_wakeups_per_process(local: Any, tmp_path: Path) -> None:
    """Also across the border between two chunks, where a wake-up and its message part."""
    random = np.random.default_rng(4)
    log = LogWriter(tmp_path, 1)
    log.add(Kind.SIGNAL, 10, aux=np.arange(10))
    log.write()
    truth = []
    for useful, count in ((17_000, 17_002), (3, 3)):
        log = LogWriter(tmp_path, 2)
        sleep = random.integers(1000, 100_000, count)
        for i in range(count):
            found = i < useful
            log.add(Kind.WAKE, ts=10**9 + sleep[i], flags=USEFUL * found, batch=2 * found, wake=1)
            if found:
                receives(log, "c", np.array([2 * i, 2 * i + 1]), ts=10**10, ref_ts=10**9)
        log.add(Kind.WAKE, 5, ts=10**9, wake=Wake.TIMER)
        log.add(Kind.DROP, 2)
        log.write()
        truth.append(sleep[:useful])
    result = wakeups.run(local, survey([tmp_path]), tmp_path / "out")
    found_of = {row["pid"]: row for row in result.rows}
    assert (found_of[1]["signalling_commits"], found_of[1]["signals_sent"]) == (10, 45)
    assert found_of[1]["wake_p50_ns"] is None
    row = found_of[2]
    assert (row["wakes"], row["useful_wakes"], row["useless_wakes"]) == (17_015, 17_003, 12)
    assert (row["wakes_signal"], row["wakes_timer"], row["wakes_fd"]) == (17_005, 10, 0)
    assert (row["messages"], row["messages_per_useful_wake"], row["gaps"]) == (34_006, 2.0, 4)
    sleeps = np.sort(np.concatenate(truth))
    for name, q in (("wake_p50_ns", 5000), ("wake_p99_ns", 9900)):
        assert close(row[name], sleeps[-(-len(sleeps) * q // 10000) - 1])
    assert result.totals["signals_per_useful_wake"] == 45 / 17_003


def test_two_containers_of_a_boot_have_one_clock(local: Any, tmp_path: Path) -> None:
    """Each has another host's name."""
    sender = LogWriter(tmp_path, 9, host="web1", engine="e")
    sends(sender, "c", np.arange(100), ts=1000 + np.arange(100))
    listener = LogWriter(tmp_path, 1, host="web2", engine="e")
    listener.add(Kind.LISTEN, channel="c", chan_seq=0)
    sent = 1000 + np.arange(100)
    receives(listener, "c", np.arange(100), ts=sent + 5, ref_ts=sent, peer=9)
    sender.write()
    listener.write()
    found = survey([tmp_path])
    (row,) = audit.run(local, found, tmp_path / "audit").rows
    assert (row["distinct"], row["lost"], row["unproven"]) == (100, 0, 0)
    measured = latency.run(local, found, tmp_path / "latency")
    assert measured.totals["other_clock"] == 0


def test_a_time_namespace_of_its_own_is_another_clock(local: Any, tmp_path: Path) -> None:
    for pid, namespace in ((1, 0), (2, 7), (3, 0xEFFFFFFA)):
        log = LogWriter(tmp_path, pid, engine="e", time_namespace=namespace)
        receives(log, "c", np.arange(10), ts=1005, ref_ts=1000, peer=1)
        log.write()
    measured = latency.run(local, survey([tmp_path]), tmp_path / "latency")
    assert measured.totals["other_clock"] == 10  # of the second's; the third is the host's


def test_what_came_by_a_pattern_is_no_part_of_an_audit(local: Any, tmp_path: Path) -> None:
    """Logs of the engine: such messages have no number, or one that this listener does not owe."""
    name, logs = f"audit-{os.getpid()}", tmp_path / "logs"
    logs.mkdir()
    with pynotify.open(name) as engine:
        sender = engine.connect(latency_log=logs)
        plain = engine.connect(latency_log=logs)
        by_pattern = engine.connect(latency_log=logs)
        plain.listen("c")
        for _ in range(2):
            by_pattern.listen_pattern("*")
            for number in range(10):
                sender.notify("c", f"{number}")
                sender.notify("only a pattern", f"{number}")
            assert (len(plain.poll()), len(by_pattern.poll())) == (10, 20)
            by_pattern.unlisten_all()
            sender.notify("c", "not for the pattern")
            assert len(plain.poll()) == 1
        for conn in (sender, plain, by_pattern):
            conn.close()
    pynotify.unlink(name)
    result = run_audit(local, logs)
    (row,) = result.rows
    assert not result.violation
    assert (row["channel"], row["expected"], row["distinct"]) == ("c", 22, 22)
    assert (row["lost"], row["dup"], row["unproven"]) == (0, 0, 0)
    measured = latency.run(local, survey([logs]), tmp_path / "latency")
    counted = {row["channel"]: row["n"] for row in measured.rows if row["wake"] == "all"}
    assert counted["only a pattern"] == 20
