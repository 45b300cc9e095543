"""Jobs on archives: the figures of the logs, and damage that is told and costs what is damaged."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet
import pytest
from logwriter import LogWriter, receives, sends

from spark_jobs.archive import layout, row_group
from spark_jobs.cli import main
from spark_jobs.errors import NoLogsError
from spark_jobs.jobs import ingest
from spark_jobs.logs import stored
from spark_jobs.logs.events import Columns
from spark_jobs.logs.model import CHUNK_RECORDS, Survey
from spark_jobs.logs.reader import LogReader
from spark_jobs.logs.schema import FIELD_NAMES, USEFUL, Kind, Wake
from spark_jobs.survey import survey

BOOTS = ("00000000-1111-2222-3333-444444444444", "99999999-1111-2222-3333-444444444444")
JOBS = ("latency", "timeline", "audit", "wakeups", "lag", "e2e", "perfetto")


def archived(logs: Path, out: Path) -> Path:
    """Archives in this process what `ingest` has tasks archive."""
    for name in (stored.EVENTS, stored.CHANNELS, stored.SEGMENTS, stored.STAGING):
        (out / name).mkdir(parents=True, exist_ok=True)
    for segment in survey([logs]).segments:
        reader = LogReader(ingest._alone(segment))
        partials = ingest.Partials(reader, str(out))
        for chunk in reader.chunks():
            assert list(partials.add(chunk)) == []
        assert len(list(partials.finish())) == 1
    return out


def read(place: Path) -> tuple[dict[int, list[tuple[Any, ...]]], dict[int, Any], Survey]:
    """By pid: kind, ts, ref_ts, chan_seq and channel of the records, and the readers."""
    found, records, readers = survey([place]), {}, {}
    for log in found.logs:
        reader = LogReader(log, ("ts", "ref_ts", "chan_seq", "kind"))
        readers[log.pid], records[log.pid] = reader, []
        for chunk in reader.chunks():
            assert len(chunk.records) <= CHUNK_RECORDS
            names = [reader.channels[i] if i >= 0 else None for i in chunk.channel]
            columns = (chunk.records[name].tolist() for name in reader.fields)
            records[log.pid] += zip(*columns, names, strict=True)
    return records, readers, found


@pytest.fixture
def small_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """A row group for each chunk of a log."""
    monkeypatch.setattr(row_group, "ROWS", CHUNK_RECORDS)
    monkeypatch.setattr(row_group, "_idle", [])


GROUPS, DEFINITIONS = 4, 2
ROWS = GROUPS * CHUNK_RECORDS - DEFINITIONS


@pytest.fixture
def damaged(tmp_path: Path, small_groups: None) -> Path:
    """An archive whose files have four row groups each: of a sender and of two listeners."""
    logs = tmp_path / "logs"
    seq = np.arange(ROWS // 2)
    for pid in (1, 2, 3):
        log = LogWriter(logs, pid)
        for channel in ("a", "b"):
            if pid == 1:
                sends(log, channel, seq)
            else:
                receives(log, channel, seq, ts=10 + seq, ref_ts=1 + seq)
        log.write()
    return archived(logs, tmp_path / "archive")


def events_of(place: Path, pid: int) -> Path:
    (row,) = (row for row in layout.segment_rows(place)[0] if row["pid"] == pid)
    return Path(place / row["events"][0])


def flip(path: Path, column: str, group: int) -> None:
    """One bit in the middle of the data of a column."""
    metadata = pyarrow.parquet.ParquetFile(path).metadata.row_group(group)
    (chunk,) = (
        metadata.column(i)
        for i in range(metadata.num_columns)
        if metadata.column(i).path_in_schema == column
    )
    content = bytearray(path.read_bytes())
    content[chunk.data_page_offset + chunk.total_compressed_size // 2] ^= 4
    path.write_bytes(content)


@pytest.mark.parametrize("column", ["kind", "ts", "channel", "chan_seq"])
def test_a_flipped_bit_costs_its_row_group(damaged: Path, column: str) -> None:
    whole, _, _ = read(damaged)
    assert len(whole[2]) == ROWS
    flip(events_of(damaged, 2), column, 1)
    records, readers, _ = read(damaged)
    assert (records[1], records[3]) == (whole[1], whole[3])
    # the first row group is short: the definitions of channels are not archived
    begin = CHUNK_RECORDS - DEFINITIONS
    assert records[2] == whole[2][:begin] + whole[2][begin + CHUNK_RECORDS :]
    (report,) = readers[2].reports
    assert (report.records, report.damaged) == (ROWS + 2 - CHUNK_RECORDS, CHUNK_RECORDS)
    (problem,) = report.problems
    assert str(events_of(damaged, 2)) in problem
    assert f"{CHUNK_RECORDS} records cannot be read" in problem
    assert readers[2].incomplete
    assert not readers[3].incomplete


def cut_off(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def emptied(path: Path) -> None:
    path.write_bytes(b"")


def other(path: Path) -> None:
    path.write_bytes(b"GIF89a" * 1000)


def foreign(path: Path) -> None:
    """Parquet, but not ours."""
    pyarrow.parquet.write_table(pyarrow.table({"channel": ["c", "d"]}), path)


@pytest.mark.parametrize("harm", [cut_off, emptied, other, foreign, Path.unlink])
def test_a_file_that_cannot_be_read_costs_its_records(
    damaged: Path, harm: Callable[[Path], None]
) -> None:
    whole, _, _ = read(damaged)
    harm(events_of(damaged, 2))
    records, readers, _ = read(damaged)
    assert records == whole | {2: []}
    (report,) = readers[2].reports
    assert (report.records, report.damaged) == (0, ROWS + DEFINITIONS)
    (problem,) = report.problems
    assert str(events_of(damaged, 2)) in problem
    assert readers[2].incomplete


def test_a_day_of_two_that_cannot_be_read(tmp_path: Path) -> None:
    day = 86_400 * 10**9
    log = LogWriter(tmp_path / "logs", 1, clock=20_000 * day)
    log.add(Kind.WAKE, 10, ts=1)
    log.add(Kind.WAKE, 7, ts=day + 1)
    log.write()
    out = archived(tmp_path / "logs", tmp_path / "archive")
    days = sorted((out / stored.EVENTS).rglob("*.parquet"))
    assert len(days) == 2
    emptied(days[0])
    records, readers, _ = read(out)
    assert len(records[1]) == 7
    assert [(r.records, r.damaged) for r in readers[1].reports] == [(7, 10)]


@pytest.mark.parametrize("harm", [cut_off, emptied, other])
def test_a_segment_of_which_nothing_is_known(tmp_path: Path, harm: Callable[[Path], None]) -> None:
    logs = tmp_path / "logs"
    for pid in (1, 2):
        log = LogWriter(logs, pid)
        receives(log, "c", np.arange(100))
        log.write(files=2)
    out = archived(logs, tmp_path / "archive")
    rows, reports = layout.segment_rows(out)
    assert (len(rows), reports) == (4, [])
    (last,) = (row for row in rows if (row["pid"], row["part"]) == (2, 1))
    bad = out / stored.SEGMENTS / last[stored.ROW_FILE]
    harm(bad)
    records, readers, found = read(out)
    assert (len(records[1]), len(records[2])) == (100, 50)
    assert [(report.file, report.damaged) for report in found.unreadable] == [(str(bad), 1)]
    assert found.unreadable[0].problems[0].startswith("what it says of its segment is lost: ")
    assert not readers[1].incomplete
    assert readers[2].incomplete
    again = archived(logs, out)
    assert layout.segment_rows(again)[1] == []


def test_a_channel_of_each_database(tmp_path: Path) -> None:
    """A name alone does not tell which channel it is, nor that a record has none."""
    log = LogWriter(tmp_path / "logs")
    seq = np.arange(100)
    for database in (5, 7):
        receives(log, "c", seq, ts=9, ref_ts=3, database=database)
    receives(log, "d", seq, ts=9, ref_ts=0, database=7)
    log.add(Kind.WAKE, 3)
    log.write()
    out = archived(tmp_path / "logs", tmp_path / "archive")
    records = read(out)[0]
    assert records == read(tmp_path / "logs")[0]
    assert {name for *_, name in records[1]} == {(5, "c"), (7, "c"), (7, "d"), None}


@pytest.mark.usefixtures("small_groups")
def test_a_channel_that_is_named_later(tmp_path: Path) -> None:
    """So that the row groups have different dictionaries."""
    log, later = LogWriter(tmp_path / "logs"), LogWriter(tmp_path / "logs")
    later.channels = {(1, "z"): 2}
    # the first row group is put out when the second chunk has been read
    receives(log, "a", np.arange(2 * CHUNK_RECORDS), ts=9)
    known = log.records()
    log.batches += [later.definitions(), known.copy()]
    log.batches[-1]["channel"] = 2
    log.write()
    place = archived(tmp_path / "logs", tmp_path / "archive")
    records = read(place)[0]
    assert records == read(tmp_path / "logs")[0]
    assert [name for *_, name in records[1]] == [(1, "a")] * len(known) + [(1, "z")] * len(known)


def test_columns_answer_as_records_do() -> None:
    kind = np.arange(10, dtype=np.uint8)
    columns = Columns({"kind": kind, "ts": 2 * kind}, 10)
    for which in (slice(2, 5), kind > 3, np.array([7, 1]), np.empty(0, dtype=np.intp)):
        some = columns[which]
        assert len(some) == len(kind[which])
        assert some["kind"].tolist() == kind[which].tolist()
        assert some["ts"].tolist() == (2 * kind)[which].tolist()


def test_all_columns_have_the_type_of_the_record(tmp_path: Path) -> None:
    log = LogWriter(tmp_path / "logs")
    largest = {"bytes": 2**32 - 1, "peer": 2**32 - 2, "lag": 2**32 - 3, "batch": 2**32 - 4}
    log.add(Kind.RECV, 2, channel="c", ts=9, wake=250, flags=251, attempts=252, **largest)
    log.write()
    found = []
    for place in (tmp_path / "logs", archived(tmp_path / "logs", tmp_path / "archive")):
        (chunk,) = LogReader(survey([place]).logs[0]).chunks()
        names = [name for name in FIELD_NAMES if name not in ("channel", "aux")]
        columns = [chunk.records[name] for name in names]
        found.append([(name, c.dtype, c.tolist()) for name, c in zip(names, columns, strict=True)])
    assert found[0] == found[1]


def test_what_is_neither_logs_nor_an_archive(
    damaged: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.rmtree(damaged / stored.SEGMENTS)
    with pytest.raises(NoLogsError, match=r"no log files .*archive, nor is it an archive"):
        survey([damaged])
    status = main(["latency", str(damaged), "--out", str(damaged.parent / "out"), "--json"])
    assert status == 1
    report = json.loads(capsys.readouterr().out)
    assert report["status"] == "error"
    assert str(damaged) in report["error"]


def several_hosts_and_boots(logs: Path) -> dict[tuple[str, str, int], np.ndarray]:
    """Returns latencies by host, boot and pid; the engine's senders run everywhere, or nowhere."""
    random = np.random.default_rng(3)
    oracle = {}
    for at, (host, boot) in enumerate((h, b) for h in ("one", "two %2") for b in BOOTS):
        engine = f"engine{at}"
        common = {"engine": engine, "host": host, "clock": 10**18}
        sender = LogWriter(logs, 10 * at + 1, boot_id=boot, **common)
        sends(sender, "c", np.arange(3000), ts=np.arange(3000))
        sender.add(Kind.SIGNAL, 5, aux=2, ts=3000)
        sender.write(files=2)
        for pid in (10 * at + 2, 10 * at + 3):
            log = LogWriter(logs, pid, boot_id=boot, **common)
            log.add(Kind.LISTEN, channel="c", chan_seq=0)
            log.add(Kind.WAKE, ts=3000, batch=3000, flags=USEFUL, wake=Wake.SIGNAL)
            took = random.integers(1, 10**7, 3000)
            sent = np.arange(1, 3001)
            receives(log, "c", sent - 1, ts=sent + took, ref_ts=sent, peer=10 * at + 1, lag=sent)
            late = {"ts": 5000, "ref_ts": 4000, "attempts": 2}
            log.add(Kind.FIN, 20, channel="t:c", peer=10 * at + 1, **late)
            log.write(files=2)
            oracle[host, boot, pid] = took
    # a backend of the first engine that lives elsewhere: its time stamps are of another clock
    stranger = LogWriter(logs, 99, engine="engine0", clock=10**18, time_namespace=5)
    receives(stranger, "c", np.arange(50), ts=9, ref_ts=1, peer=1)
    stranger.write()
    return oracle


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, dict[Any, Any]]:
    logs = tmp_path_factory.mktemp("logs")
    oracle = several_hosts_and_boots(logs)
    return logs, archived(logs, tmp_path_factory.mktemp("archive")), oracle


class TestJobs:
    def test_latencies_are_those_of_numpy(
        self,
        hosts: tuple[Path, Path, dict[Any, Any]],
        tmp_path: Path,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        _, place, oracle = hosts
        status = main(["latency", place.as_uri(), "--out", str(tmp_path), "--json"])
        report = json.loads(capsys.readouterr().out)
        assert (status, report["totals"]["other_clock"]) == (0, 50)
        rows = {
            (row["host"], row["boot_id"], row["pid"]): row
            for row in report["rows"]
            if row["wake"] == "all"
        }
        assert set(rows) == set(oracle)
        for key, took in oracle.items():
            row, exact = rows[key], np.sort(took)
            assert (row["n"], row["min_ns"], row["max_ns"]) == (3000, exact[0], exact[-1])
            assert row["mean_ns"] == pytest.approx(took.mean(), rel=1e-12)
            for name, rank in (("p50_ns", 1500), ("p99_ns", 2970), ("p999_ns", 2997)):
                assert row[name] == pytest.approx(exact[rank - 1], rel=0.0039)

    @pytest.mark.parametrize("job", JOBS)
    def test_figures_are_those_of_the_logs(
        self, job: str, local: Any, hosts: tuple[Path, Path, dict[Any, Any]], tmp_path: Path
    ) -> None:
        from spark_jobs.jobs import runner

        logs, place, _ = hosts
        outs = [tmp_path / name for name in ("logs", "archive")]
        for out in outs:
            out.mkdir()
        places = zip((logs, place), outs, strict=True)
        found = [runner(job)(local, survey([where]), out) for where, out in places]
        assert found[0].rows
        assert found[0] == found[1]

    def test_a_damaged_archive_does_not_fail_the_run(
        self, damaged: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        flip(events_of(damaged, 2), "ts", 3)
        cut_off(events_of(damaged, 3))
        for job in JOBS:
            status = main([job, str(damaged), "--out", str(tmp_path / "out"), "--json"])
            report = json.loads(capsys.readouterr().out)
            assert (status, report["status"]) == (0, "clean")
            lost = {Path(s["file"]).name.split(".")[2]: s["damaged"] for s in report["segments"]}
            assert lost["3"] == ROWS + DEFINITIONS
            assert lost["1"] == 0
            # the last row group, or what is left of it; audit has no use for ref_ts
            assert lost["2"] == CHUNK_RECORDS

    def test_an_empty_archive(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        place = tmp_path / "archive"
        for name in (stored.EVENTS, stored.SEGMENTS):
            (place / name).mkdir(parents=True)
        for job in JOBS:
            status = main([job, str(place), "--out", str(tmp_path / "out"), "--json"])
            report = json.loads(capsys.readouterr().out)
            assert (status, report["records"], report["rows"]) == (0, 0, []), job
