"""Archives: what is put in comes out again, once, and the figures are those of the logs."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute
import pyarrow.dataset
import pytest
from logwriter import LogWriter, flip_bit, receives, sends

from spark_jobs.archive import layout
from spark_jobs.errors import CannotRunError
from spark_jobs.jobs import audit, ingest, latency, timeline, wakeups
from spark_jobs.logs import stored
from spark_jobs.logs.reader import LogReader
from spark_jobs.logs.schema import RECORD, USEFUL, Kind, Wake
from spark_jobs.result import JobResult
from spark_jobs.survey import survey

DAY = 86_400 * 10**9


def run(local: Any, logs: Path, out: Path, **options: Any) -> JobResult:
    return ingest.run(local, survey([logs]), out, **options)


def all_kinds_of_logs(logs: Path) -> None:
    """Rotated, cut off, bit-flipped, unreadable, empty, still open, with a part missing."""
    random = np.random.default_rng(7)
    sender = LogWriter(logs, 9, clock=10**18)
    for channel in ("a", "b"):
        sends(sender, channel, np.arange(5000), bytes=random.integers(0, 2**32, 5000))
    sender.add(Kind.SIGNAL, 50, aux=3, ts=10**9)
    sender.write(files=3)
    for pid in (1, 2, 3, 4):
        # on this day and the next
        log = LogWriter(logs, pid, clock=20_000 * DAY - 40_000)
        log.add(Kind.LISTEN, channel="a", chan_seq=0)
        log.add(Kind.LISTEN, channel="b", chan_seq=7)
        receives(log, "b", np.arange(7, 5000), wake=Wake.FD)
        log.add(Kind.DROP, bytes=100, ts=60_000)
        seq, ref_ts = np.arange(10, 5000), random.integers(0, 90_000, 4990)
        receives(log, "a", seq, ts=60_000 + 10 * seq, ref_ts=ref_ts)
        log.add(Kind.WAKE, 20, batch=3, flags=USEFUL, wake=Wake.SIGNAL, ts=200_000)
        log.add(Kind.UNLISTEN, channel="b", chan_seq=5000, lag=0)  # a straggler
        paths = log.write(files=2, sealed=pid != 4, dropped=2 if pid == 3 else 0)
        if pid == 1:
            flip_bit(paths[0], 100)
            os.truncate(paths[1], paths[1].stat().st_size - 6400)
        if pid == 2:
            paths[0].unlink()
    (logs / "empty.pynlog").touch()
    (logs / "wrong.pynlog").write_bytes(b"GIF89a" * 2000)


@pytest.fixture(scope="module")
def both(local: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, JobResult]:
    logs = tmp_path_factory.mktemp("logs")
    all_kinds_of_logs(logs)
    out = tmp_path_factory.mktemp("archive")
    return logs, out, run(local, logs, out)


def test_records_come_back_as_they_were(both: tuple[Path, Path, JobResult]) -> None:
    logs, out, _ = both
    raw, kept = survey([logs]).logs, survey([out]).logs
    assert [log.log_id for log in raw] == [log.log_id for log in kept]
    for one, other in zip(raw, kept, strict=True):
        assert one.incomplete == other.incomplete
        readers = LogReader(one), LogReader(other)
        pairs = []
        for reader in readers:
            columns: dict[str, list[int]] = {name: [] for name in RECORD.names}
            del columns["channel"]  # its numbers are those of the file; names are compared
            names = []
            for chunk in reader.chunks():
                for name in columns:
                    columns[name] += chunk.records[name].tolist()
                names += [reader.channels[i] if i >= 0 else None for i in chunk.channel]
            columns["aux"] = [value & 0xFFFFFFFF for value in columns["aux"]]
            pairs.append((columns, names))
        assert pairs[0][0] == pairs[1][0]
        assert pairs[0][1] == pairs[1][1]
        assert [r.as_json() for r in readers[0].reports] == [
            r.as_json() for r in readers[1].reports
        ]


@pytest.mark.parametrize("job", [latency, audit, wakeups, timeline])
def test_figures_are_the_same(
    job: Any, local: Any, tmp_path: Path, both: tuple[Path, Path, JobResult]
) -> None:
    logs, out, _ = both
    found = [job.run(local, survey([place]), tmp_path / place.name) for place in (logs, out)]
    assert found[0].rows
    assert found[0] == found[1]
    assert {report.file for report in found[1].reports} == {str(p) for p in logs.iterdir()}


def test_what_is_damaged_is_quarantined_with_the_reason(both: tuple[Path, Path, JobResult]) -> None:
    logs, out, result = both
    rows = {row["file"]: row for row in layout.segment_rows(out)[0]}
    assert set(rows) == {str(path) for path in logs.iterdir()}
    bad = {Path(file).name: row for file, row in rows.items() if row["damaged"]}
    assert json.loads(bad["empty.pynlog"]["problems"]) == ["empty file"]
    assert "wrong magic" in bad["wrong.pynlog"]["problems"]
    assert len(bad) == 4
    copies = {path.stem: path.read_bytes() for path in (out / "quarantine").iterdir()}
    assert copies == {row["segment"]: (logs / name).read_bytes() for name, row in bad.items()}
    assert result.totals["quarantined"] == 2
    assert result.totals["archived"] == len(rows) - 2
    assert not any((out / stored.STAGING).iterdir())


def test_records_are_filed_by_day_and_host(both: tuple[Path, Path, JobResult]) -> None:
    _, out, result = both
    names = {path.relative_to(out / "events").parent for path in out.rglob("events/*/*/*")}
    days = ("2001-09-09", "2024-10-03", "2024-10-04")
    assert {str(name) for name in names} == {f"date={day}/host=testhost" for day in days}
    events = pyarrow.dataset.dataset(out / "events", partitioning="hive").to_table()
    assert set(events["channel"].to_pylist()) == {"a", "b", None}
    events = events.filter(pyarrow.compute.field("kind") != Kind.UNLISTEN)
    day = np.array([t.date().isoformat() for t in events["event_time"].to_pylist()])
    assert (day == np.array(events["date"].to_pylist())).all()
    assert result.totals["bytes"] == sum(p.stat().st_size for p in out.rglob("events/*/*/*"))


def test_again_changes_nothing(local: Any, both: tuple[Path, Path, JobResult]) -> None:
    logs, out, first = both
    before = {path: path.stat().st_mtime_ns for path in (out / "events").rglob("*.parquet")}
    again = run(local, logs, out)
    assert (again.totals["archived"], again.totals["unchanged"]) == (0, first.totals["archived"])
    assert {p: p.stat().st_mtime_ns for p in (out / "events").rglob("*.parquet")} == before
    whole = run(local, logs, out, overwrite=True)
    assert whole.totals == first.totals
    once, thrice = survey([out]), survey([out, logs, logs])
    assert [log.log_id for log in once.logs] == [log.log_id for log in thrice.logs]
    assert once.unreadable == thrice.unreadable


def test_a_segment_that_grew_replaces_what_was_there(local: Any, tmp_path: Path) -> None:
    logs, out = tmp_path / "logs", tmp_path / "out"
    log = LogWriter(logs)
    receives(log, "c", np.arange(10))
    (path,) = log.write(sealed=False)
    early = path.read_bytes()
    path.write_bytes(b"")
    assert run(local, logs, out).totals["quarantined"] == 1
    path.write_bytes(early)
    assert run(local, logs, out).totals["archived"] == 1
    receives(log, "c", np.arange(10, 30))
    log.write()
    result = run(local, logs, out)
    assert [row["records"] for row in result.rows] == [31]
    assert len(list(out.rglob("*.parquet"))) == 3, "what was there before is gone"
    path.write_bytes(early)
    assert run(local, logs, out).totals["unchanged"] == 1
    found = survey([out])
    assert found.unreadable == []
    assert [(log.closed, log.size // 64) for log in found.logs] == [(True, 31)]
    assert list((out / "quarantine").iterdir()) == []


def test_an_archive_of_nothing_but_damage(local: Any, tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "x.pynlog").touch()
    run(local, tmp_path / "logs", tmp_path / "out")
    found = survey([tmp_path / "out"])
    assert (found.logs, len(found.unreadable)) == ([], 1)
    assert latency.run(local, found, tmp_path / "l").rows == []


def test_an_archive_is_neither_archived_nor_mixed_with_the_logs(
    local: Any, both: tuple[Path, Path, JobResult], tmp_path: Path
) -> None:
    logs, out, _ = both
    with pytest.raises(CannotRunError, match="archive already"):
        run(local, out, tmp_path)
    with pytest.raises(CannotRunError, match="of its own"):
        run(local, logs, logs)
    assert not (logs / "events").exists()
