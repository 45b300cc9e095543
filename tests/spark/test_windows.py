"""Timeline, lag and e2e against numpy, in windows that cross files, chunks and processes."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from logwriter import LogWriter, receives, sends

from spark_jobs.engine.partials import JOB, aggregated, aggregated_all, columns_of
from spark_jobs.engine.tables import read_table
from spark_jobs.errors import CannotRunError
from spark_jobs.figures import quantiles, windows
from spark_jobs.figures.histogram import bucket
from spark_jobs.jobs import e2e, lag, latency, timeline, wakeups
from spark_jobs.logs.model import CHUNK_RECORDS
from spark_jobs.logs.reader import LogReader
from spark_jobs.logs.schema import USEFUL, Kind, Wake
from spark_jobs.survey import survey

SECOND = 10**9
CLOCK = 1_800_000_000 * SECOND
OTHER_BOOT = "99999999-1111-2222-3333-444444444444"


def start_of(row: dict[str, Any]) -> int:
    """Its window, in ns."""
    return round(datetime.fromisoformat(row["window"]).timestamp()) * SECOND


def nearest_rank(values: np.ndarray, ten_thousandths: int) -> int:
    ordered = np.sort(values)
    return int(ordered[-(-len(ordered) * ten_thousandths // 10000) - 1])


def close(found: int, exact: int) -> bool:
    return abs(found - exact) <= max(1, 0.0039 * exact)


def test_timeline_against_numpy(local: Any, tmp_path: Path) -> None:
    random = np.random.default_rng(11)
    truth = []
    for pid, host, boot in ((1, "h1", OTHER_BOOT), (2, "h1", OTHER_BOOT), (1, "h2", OTHER_BOOT)):
        log = LogWriter(tmp_path, pid, host=host, boot_id=boot, clock=CLOCK, engine=f"e.{host}")
        for channel in ("a", "b"):
            count = 20_000
            ts = np.sort(random.integers(10 * SECOND, 14 * SECOND, count))
            values = (random.pareto(1.5, count) * 1000).astype(np.int64)
            size = random.integers(0, 8000, count)
            receives(log, channel, np.arange(count), ts=ts, ref_ts=ts - values, bytes=size)
            truth += [(host, channel, ts, values, size)]
        sends(log, "a", np.arange(30), ts=12 * SECOND, bytes=7)
        log.add(Kind.WAKE, 5, ts=12 * SECOND)
        log.write(files=2)
    result = timeline.run(local, survey([tmp_path]), tmp_path / "out", window=2.0)

    rows = [row for row in result.rows if row["kind"] == "RECV"]
    assert len(rows) == 2 * 2 * 2
    for row in rows:
        mine = [t for t in truth if t[:2] == (row["host"], row["channel"])]
        ts, values, size = (np.concatenate([t[i] for t in mine]) for i in (2, 3, 4))
        begin = start_of(row) - CLOCK
        which = (ts >= begin) & (ts < begin + 2 * SECOND)
        assert (row["n"], row["bytes"]) == (np.count_nonzero(which), size[which].sum())
        assert row["rate_per_s"] == row["n"] / 2
        assert row["max_ns"] == values[which].max()
        for name, q in (("p50_ns", 5000), ("p99_ns", 9900), ("p9999_ns", 9999)):
            assert close(row[name], nearest_rank(values[which], q))
    sent = [row for row in result.rows if row["kind"] == "SEND"]
    assert [(row["host"], row["n"], row["bytes"], row["p50_ns"]) for row in sent] == [
        ("h1", 60, 420, None),
        ("h2", 30, 210, None),
    ]
    assert result.totals == {"rows": 10, "rows_listed": 10, "untimed": 0}


def test_only_the_first_rows_are_listed(
    local: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(windows, "MAX_ROWS", 3)
    log = LogWriter(tmp_path, clock=CLOCK)
    receives(log, "c", np.arange(10), ts=SECOND * np.arange(1, 11), ref_ts=1)
    log.write()
    result = timeline.run(local, survey([tmp_path]), tmp_path / "out")
    assert [start_of(row) - CLOCK for row in result.rows] == [SECOND, 2 * SECOND, 3 * SECOND]
    assert result.totals["rows"] == 10
    assert read_table(tmp_path / "out" / "timeline").num_rows == 10


def test_the_holder_of_the_tail(local: Any, tmp_path: Path) -> None:
    """One process reads at once, one stalls from 3 s to 8 s, one of another boot for longer."""
    commits = np.arange(100, 1000) * (SECOND // 100)  # from 1 s to 10 s
    prompt = LogWriter(tmp_path, 1, clock=CLOCK)
    receives(prompt, "c", np.arange(900), ts=commits + 1000, ref_ts=commits, lag=1)
    prompt.write()
    stalled = LogWriter(tmp_path, 2, clock=CLOCK)
    during = (commits >= 3 * SECOND) & (commits < 8 * SECOND)
    backlog = np.where(during, (8 * SECOND - commits) // (SECOND // 100), 1)
    ts = np.where(during, 8 * SECOND + 5, commits + 1000)
    receives(stalled, "c", np.arange(900), ts=ts, ref_ts=commits, lag=backlog)
    stalled.write(files=3)
    elsewhere = LogWriter(tmp_path, 3, clock=CLOCK, boot_id=OTHER_BOOT, engine="other")
    receives(elsewhere, "c", np.arange(2), ts=[SECOND, 9 * SECOND], ref_ts=[SECOND, SECOND])
    elsewhere.write()

    result = lag.run(local, survey([tmp_path]), tmp_path / "out")
    found = {row["pid"]: row for row in result.rows}
    assert [row["pid"] for row in result.rows][:2] == [3, 2]
    assert (found[2]["n"], found[2]["max_lag"]) == (900, 500)
    assert found[2]["mean_lag"] == pytest.approx(backlog.mean())
    assert found[2]["max_age_ns"] == 5 * SECOND + 5
    assert (found[2]["windows_as_holder"], found[2]["max_tail_age_ns"]) == (5, 5 * SECOND)
    assert (found[1]["windows_as_holder"], found[1]["max_age_ns"]) == (0, 1000)
    assert found[3]["windows_as_holder"] == 8
    holders = read_table(tmp_path / "out" / "lag_holders").to_pylist()  # in order of windows
    ages = [row["tail_age_ns"] for row in holders if row["engine"] == "engine"]
    assert ages == [i * SECOND for i in (1, 2, 3, 4, 5)]
    per_window = read_table(tmp_path / "out" / "lag").to_pylist()
    assert sum(row["n"] for row in per_window if row["pid"] == 2) == 900


def test_containers_of_one_kernel_share_a_queue(local: Any, tmp_path: Path) -> None:
    """Each has a host's name of its own; of both only the slower holds the tail."""
    commits = SECOND + np.arange(900, dtype=np.int64) * (SECOND // 100)
    for pid, host, late in ((1, "web1", 2 * SECOND), (2, "web2", 5 * SECOND)):
        log = LogWriter(tmp_path, pid, host=host)
        receives(log, "c", np.arange(900), ts=commits + late, ref_ts=commits, lag=1)
        log.write()
    result = lag.run(local, survey([tmp_path]), tmp_path / "out")
    holding = {row["host"]: row["windows_as_holder"] for row in result.rows}
    assert holding["web1"] == 0 and holding["web2"] > 10
    holders = read_table(tmp_path / "out" / "lag_holders").to_pylist()
    assert {row["host"] for row in holders} == {"web2"}
    assert len({row["window"] for row in holders}) == len(holders)


def test_publish_to_finish_against_numpy(local: Any, tmp_path: Path) -> None:
    random = np.random.default_rng(12)
    truth: dict[tuple[str, str], list[np.ndarray]] = {}
    for pid in (1, 2):
        log = LogWriter(tmp_path, pid, clock=CLOCK)
        for topic, channel in (("orders", "billing"), ("orders", "mail#ephemeral"), ("x.y", "z")):
            count = 5000
            values = (random.pareto(1.2, count) * 10**6).astype(np.int64)
            published = np.sort(random.integers(SECOND, 3 * SECOND, count))
            attempts = random.integers(1, 5, count)
            log.add(
                Kind.FIN,
                count,
                channel=f"{topic}:{channel}",
                ts=published + values,
                ref_ts=published,
                attempts=attempts,
            )
            log.add(Kind.REQ, 7, channel=f"{topic}:{channel}", ts=SECOND, ref_ts=1, attempts=9)
            log.add(Kind.TIMEOUT, 3, channel=f"{topic}:{channel}", ts=SECOND, attempts=1)
            truth.setdefault((topic, channel), []).append(np.stack([values, attempts]))
        log.add(Kind.FIN, 2, channel="x.y:z", ts=5, ref_ts=9, attempts=1)
        log.add(Kind.FIN, 4, channel="x.y:z", ts=5, ref_ts=0, attempts=1)
        log.write()
    result = e2e.run(local, survey([tmp_path]), tmp_path / "out")
    assert {(row["topic"], row["channel"]) for row in result.rows} == set(truth)
    for row in result.rows:
        values, attempts = np.concatenate(truth[row["topic"], row["channel"]], axis=1)
        extra = 12 if row["topic"] == "x.y" else 0
        assert row["finished"] == len(values) + extra
        assert (row["requeued"], row["timed_out"]) == (14, 6)
        assert (row["min_ns"], row["max_ns"]) == (values.min(), values.max())
        assert row["mean_ns"] == pytest.approx(values.mean())
        assert row["mean_attempts"] == pytest.approx((attempts.sum() + extra) / row["finished"])
        assert row["max_attempts"] == 4
        for name, q in (("p50_ns", 5000), ("p90_ns", 9000), ("p999_ns", 9990)):
            assert close(row[name], nearest_rank(values, q))
    assert result.totals == {"negative": 4, "unknown": 8, "other_clock": 0}
    assert pc.sum(read_table(tmp_path / "out" / "e2e")["finished"]).as_py() == 30_012


def test_what_is_buffered_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = LogWriter(tmp_path, clock=CLOCK)
    receives(log, "c", np.arange(100_000), ts=SECOND, ref_ts=1, lag=2)
    log.add(Kind.FIN, 100_000, channel="t:c", ts=SECOND, ref_ts=1)
    log.write()
    reader = LogReader(survey([tmp_path]).logs[0])
    monkeypatch.setattr(windows, "BUFFERED", 30_000)
    for job, name in ((timeline, "timed"), (lag, "n"), (e2e, "timed")):
        partials = job.Partials(reader, SECOND)
        batches = [batch for chunk in reader.chunks() for batch in partials.add(chunk)]
        batches += partials.finish()
        counts = [sum(batch[name]) for batch in batches if name in batch and "bucket" not in batch]
        assert sum(counts) == 100_000
        assert max(counts) < 30_000 + CHUNK_RECORDS


def test_one_pass_for_several_jobs_gives_what_each_gives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also what they put out before the log is over."""
    log = LogWriter(tmp_path, clock=CLOCK)
    receives(log, "c", np.arange(100_000), ts=SECOND, ref_ts=1, lag=2)
    log.add(Kind.FIN, 100_000, channel="t:c", ts=SECOND, ref_ts=1)
    log.write()
    monkeypatch.setattr(windows, "BUFFERED", 30_000)
    text = survey([tmp_path]).logs[0].to_json()
    jobs = {job: {"window_ns": SECOND} for job in ("timeline", "lag", "e2e")}
    together = pa.Table.from_batches(aggregated_all(text, jobs))
    for job, settings in jobs.items():
        alone = pa.Table.from_batches(aggregated(text, job, settings))
        alone = alone.filter(pc.is_null(alone["file"]))
        rows = together.filter(pc.equal(together[JOB], job))
        names = columns_of(job)
        mine = rows.select(list(names)).rename_columns(list(names.values()))
        assert mine.num_rows > 3
        assert mine.select(alone.column_names).to_pylist() == alone.to_pylist()


def test_a_window_must_have_a_width() -> None:
    for seconds in (0.0, -1.0, 1e-10, float("nan"), float("inf")):
        with pytest.raises(CannotRunError, match="wide"):
            windows.nanoseconds(seconds)


def test_clocks_of_other_hosts_and_boots_are_not_compared(local: Any, tmp_path: Path) -> None:
    """An engine whose logs come from two boots: only pairs of one boot have a latency."""
    for boot, backend in (("boot a", 1), ("boot b", 2)):
        log = LogWriter(tmp_path, backend, boot_id=boot, clock=CLOCK)
        for peer, count in ((1, 30), (2, 40), (3, 50)):  # of 3 there is no log
            seq = np.arange(count)
            receives(log, "c", seq, ts=9 * SECOND, ref_ts=SECOND, peer=peer)
            log.add(Kind.FIN, count, channel="t:c", ts=9 * SECOND, ref_ts=SECOND, peer=peer)
        log.add(Kind.WAKE, 1, wake=Wake.SIGNAL, flags=USEFUL, ts=2 * SECOND)
        receives(log, "c", np.array([99]), ts=9 * SECOND, ref_ts=SECOND, peer=3 - backend)
        log.write()
    found = survey([tmp_path])
    assert [log.own_clock for log in found.logs] == [(1,), (2,)]
    out = tmp_path / "out"

    result = latency.run(local, found, out)
    rows = {row["boot_id"]: row["n"] for row in result.rows if row["wake"] == "all"}
    assert rows == {"boot a": 30, "boot b": 40}
    assert result.totals["other_clock"] == 2 * 121 - 70
    result = timeline.run(local, found, out, window=10.0)
    rows = {row["boot_id"]: row["n"] for row in result.rows if row["kind"] == "RECV"}
    assert rows == {"boot a": 121, "boot b": 121}
    assert result.totals["untimed"] == 2 * 121 - 70
    result = lag.run(local, found, out)
    assert {row["boot_id"]: row["n"] for row in result.rows} == {"boot a": 30, "boot b": 40}
    assert {row["windows_as_holder"] for row in result.rows} == {8}
    result = e2e.run(local, found, out)
    assert result.totals["other_clock"] == 2 * 120 - 70
    result = wakeups.run(local, found, out)
    assert [row["wake_p50_ns"] for row in result.rows] == [None, None]
    assert [row["boot_id"] for row in result.rows] == ["boot a", "boot b"]


@pytest.mark.parametrize("dense", [0, 1 << 40])
@pytest.mark.parametrize("seed", range(4))
def test_counting_in_an_array_and_sorting_give_the_same(
    dense: int, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quantiles, "_DENSE", dense)
    random = np.random.default_rng(seed)
    owners = np.unique(random.integers(0, 90, 12))
    owner = random.choice(owners, 3000)
    values = (random.pareto(1.2, 3000) * 500).astype(np.int64)
    key, found = windows.reduce_by(
        owner, sum=(np.add, values), low=(np.minimum, values), high=(np.maximum, values)
    )
    assert key.tolist() == sorted(set(owner.tolist()))
    for name, how in (("n", len), ("sum", sum), ("low", min), ("high", max)):
        assert found[name].tolist() == [how(values[owner == each].tolist()) for each in key], name
    lists = windows.histograms(owners, owner, values)
    for number, each in enumerate(owners):
        buckets, counts = np.unique(bucket(values[owner == each]), return_counts=True)
        assert lists["buckets"][number].as_py() == buckets.tolist()
        assert lists["counts"][number].as_py() == counts.tolist()
    counts = random.integers(1, 9, 3000)
    added = quantiles.added_up(owner, bucket(values), counts)
    assert int(added[2].sum()) == int(counts.sum())
    pairs = list(zip(added[0].tolist(), added[1].tolist(), strict=True))
    assert pairs == sorted(set(zip(owner.tolist(), bucket(values).tolist(), strict=True)))


@pytest.mark.parametrize("in_order", [False, True])
@pytest.mark.parametrize("width", [1, 7, 1000, 10**6])
def test_windows_of_times(width: int, in_order: bool) -> None:
    at = np.random.default_rng(width).integers(10**9, 10**9 + 5000, 800)
    at = np.sort(at) if in_order else at
    assert windows.windows_of(at, width).tolist() == (at - at % width).tolist()
    assert len(windows.windows_of(at[:0], width)) == 0
