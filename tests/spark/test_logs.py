"""Finding, reading and judging log files; no Spark."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import fuzz_logs
import numpy as np
import pytest
from logwriter import LogWriter, flip_bit, receives, sends

from spark_jobs import survey as survey_module
from spark_jobs.cli import run_job
from spark_jobs.errors import NoLogsError
from spark_jobs.jobs import audit
from spark_jobs.logs import schema
from spark_jobs.logs.checksum import crc32c
from spark_jobs.logs.find import read_segment
from spark_jobs.logs.header import header_problem, version_of
from spark_jobs.logs.model import CHUNK_RECORDS, Log, Segment
from spark_jobs.logs.quality import FileReport
from spark_jobs.logs.reader import LogReader
from spark_jobs.logs.schema import Kind
from spark_jobs.survey import survey


def read(log: Log) -> tuple[LogReader, np.ndarray]:
    reader = LogReader(log)
    chunks = [chunk.records.copy() for chunk in reader.chunks()]
    return reader, np.concatenate([np.empty(0, dtype=schema.RECORD), *chunks])


def a_log(directory: Path, count: int = 1000, **head: Any) -> LogWriter:
    log = LogWriter(directory, **head)
    receives(log, "c", np.arange(count))
    return log


def test_records_come_back_in_order_over_chunks_and_files(tmp_path: Path) -> None:
    count = 3 * CHUNK_RECORDS + 7
    a_log(tmp_path, count).write(files=3)
    (log,) = survey([tmp_path]).logs
    assert Log.from_json(log.to_json()) == log
    reader, records = read(log)
    assert np.array_equal(records["chan_seq"], np.arange(count))
    assert [report.damaged for report in reader.reports] == [0, 0, 0]
    assert sum(report.records for report in reader.reports) == count + 3
    assert not reader.incomplete


def test_a_file_that_was_cut_off_costs_what_is_gone(tmp_path: Path) -> None:
    (path,) = a_log(tmp_path).write()
    os.truncate(path, schema.HEADER_BYTES + 501 * schema.RECORD_BYTES + 30)
    (log,) = survey([tmp_path]).logs
    reader, records = read(log)
    assert np.array_equal(records["chan_seq"], np.arange(500))
    assert [(r.records, r.damaged) for r in reader.reports] == [(501, 500)]
    assert reader.incomplete


def test_flipped_bits_cost_their_records(tmp_path: Path) -> None:
    (path,) = a_log(tmp_path).write()
    for record in (1, 2, 500, 1000):
        flip_bit(path, record)
    (log,) = survey([tmp_path]).logs
    reader, records = read(log)
    assert len(records) == 996
    assert reader.reports[0].damaged == 4
    assert "4 records do not match their CRC" in reader.reports[0].problems


def test_a_file_without_any_whole_record(tmp_path: Path) -> None:
    (path,) = a_log(tmp_path, 2 * CHUNK_RECORDS).write()
    raw = bytearray(path.read_bytes())
    raw[schema.HEADER_BYTES + 7 :: schema.RECORD_BYTES] = bytes(
        byte ^ 1 for byte in raw[schema.HEADER_BYTES + 7 :: schema.RECORD_BYTES]
    )
    path.write_bytes(raw)
    reader, records = read(survey([tmp_path]).logs[0])
    assert len(records) == 0
    assert reader.reports[0].damaged == 2 * CHUNK_RECORDS + 1


def test_definitions_may_stand_anywhere(tmp_path: Path) -> None:
    """Before, between and after the records of a chunk; what is left keeps its order."""
    log = LogWriter(tmp_path)
    names = [f"c{i}" for i in range(5)]
    for name in names:
        receives(log, name, np.arange(40))
    rest = log.records()
    definitions, places = log.definitions(), np.array([0, 3, 10, 11, 204])
    body = np.zeros(len(rest) + 5, dtype=schema.RECORD)
    body[places] = definitions
    # a channel is used after its definition: here by those of the first channel, until it is there
    others = np.delete(np.arange(205), places)
    rest["channel"] = rest["channel"][0]
    rest["chan_seq"] = np.arange(200)
    body[others] = rest
    log.batches, log.definitions = [body], lambda: definitions[:0]
    log.write()
    reader, records = read(survey([tmp_path]).logs[0])
    assert records["chan_seq"].tolist() == list(range(200))
    assert [name for _, name in reader.channels] == names
    assert reader.reports[0].damaged == 0


def test_records_of_a_channel_whose_definition_is_damaged_are_not_guessed(tmp_path: Path) -> None:
    log = a_log(tmp_path, 10)
    receives(log, "d", np.arange(5))
    (path,) = log.write()
    flip_bit(path, 0)
    reader, records = read(survey([tmp_path]).logs[0])
    assert reader.channels == [(1, "d")]
    assert len(records) == 5
    assert reader.reports[0].damaged == 11


def test_a_file_of_an_unclosed_log_may_be_longer_than_committed(tmp_path: Path) -> None:
    (path,) = a_log(tmp_path).write(sealed=False)
    with open(path, "ab") as file:
        file.write(bytes(10 * schema.RECORD_BYTES))
    (log,) = survey([tmp_path]).logs
    reader, records = read(log)
    assert len(records) == 1000
    assert (log.closed, log.alive, reader.incomplete) == (False, False, False)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "empty"),
        (b"GIF89a" + bytes(9000), "wrong magic"),
        (schema.MAGIC + bytes(100), "cut off"),
        (schema.MAGIC[:-1], "cut off"),
        (schema.MAGIC[:-1] + b"\x03" + bytes(5000), "version 3 of the format"),
        (schema.MAGIC + bytes(5000), "CRC does not match"),
    ],
)
def test_what_is_no_log_is_reported(tmp_path: Path, content: bytes, problem: str) -> None:
    (tmp_path / "bad.pynlog").write_bytes(content)
    found = survey([tmp_path])
    assert found.logs == []
    assert problem in found.unreadable[0].problems[0]
    assert found.unreadable[0].damaged >= 1


def test_a_damaged_header_makes_the_writers_other_logs_incomplete(tmp_path: Path) -> None:
    first, _ = a_log(tmp_path).write(files=2)
    other = LogWriter(tmp_path, pid=2)
    receives(other, "c", np.arange(3))
    other.write()
    raw = bytearray(first.read_bytes())
    raw[60] ^= 1
    first.write_bytes(raw)
    found = survey([tmp_path])
    assert found.unreadable[0].problems == ["header CRC does not match"]
    why = {log.pid: log.incomplete for log in found.logs}
    assert "file 0 of the log is missing" in why[1]
    assert why[2] == ""


def test_missing_files_and_drops_make_a_log_incomplete(tmp_path: Path) -> None:
    paths = a_log(tmp_path / "a").write(files=3)
    paths[1].unlink()
    a_log(tmp_path / "b").write(dropped=5)
    found = survey([tmp_path / "a", tmp_path / "b"])
    assert [log.incomplete for log in found.logs] == [
        "file 1 of the log is missing",
        "5 records were dropped when there was no room",
    ]
    assert all(LogReader(log).incomplete for log in found.logs)


def _ledger(directory: Path, log_id: int, *parts: int) -> None:
    lines = [
        f'\n{{"log_id":"{log_id:016x}","part":{part},"records":10,"dropped":0}}\n' for part in parts
    ]
    (directory / "recycled.jsonl").write_text("".join(lines))


def test_files_that_made_room_are_told_apart_from_those_that_are_missing(tmp_path: Path) -> None:
    log = a_log(tmp_path)
    paths = log.write(files=8)
    _ledger(tmp_path, log.head["log_id"], 0, 1, 2, 4, 5)
    for part in (0, 1, 2, 4, 6):  # 5 is still there: the process died before it removed it
        paths[part].unlink()
    (found,) = survey([tmp_path]).logs
    assert found.incomplete == (
        "file 0 to 2, 4 of the log, 40 records, made room for others; file 6 of the log is missing"
    )


def test_a_ledger_that_is_cut_or_nonsense_says_nothing(tmp_path: Path) -> None:
    log = a_log(tmp_path)
    paths = log.write(files=3)
    paths[0].unlink()
    _ledger(tmp_path, log.head["log_id"], 0)
    ledger = tmp_path / "recycled.jsonl"
    ledger.write_bytes(ledger.read_bytes()[:-9] + b'\n[]\n{"log_id":7}\n\xff\n{"log_id":"x"}\n')
    (found,) = survey([tmp_path]).logs
    assert found.incomplete == "file 0 of the log is missing"


def test_a_file_that_goes_while_the_headers_are_read_made_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = a_log(tmp_path)
    paths = log.write(files=3)
    read = survey_module.read_segment

    def recycle_first(path: str) -> object:
        if path == str(paths[0]):
            _ledger(tmp_path, log.head["log_id"], 0)
            paths[0].unlink()
        return read(path)

    monkeypatch.setattr(survey_module, "read_segment", recycle_first)
    result = survey([tmp_path])
    assert result.unreadable == []
    assert result.logs[0].incomplete == "file 0 of the log, 10 records, made room for others"


def test_a_channel_name_may_take_many_records(tmp_path: Path) -> None:
    log = LogWriter(tmp_path)
    names = ["x" * 255, "ä" * 31 + "b", "y" * 32, "z"]
    for name in names:
        sends(log, name, np.arange(3), database=9)
    log.write()
    reader, records = read(survey([tmp_path]).logs[0])
    assert reader.channels == [(9, name) for name in names]
    assert len(records) == 12


def test_this_process_is_alive(tmp_path: Path) -> None:
    stat = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    log = LogWriter(tmp_path, os.getpid(), boot_id=boot, starttime=int(stat[19]))
    log.add(Kind.WAKE)
    log.write(sealed=False)
    assert survey([tmp_path]).logs[0].alive
    log.write(sealed=True)
    assert not survey([tmp_path]).logs[0].alive


def test_nothing_to_read_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(NoLogsError, match="no log files"):
        survey([tmp_path])
    with pytest.raises(NoLogsError, match="no such file"):
        survey([tmp_path / "absent"])


def test_what_becomes_of_damaged_files(tmp_path: Path) -> None:
    """Some runs of `make fuzz`: read or reported, and nothing made up."""
    originals = fuzz_logs.originals(tmp_path)
    for seed in range(20):
        fuzz_logs.run(tmp_path, originals, seed)


# ---- what a header's count may say, and what happens between survey and reading


def _set_head(path: Path, **words: int) -> None:
    raw = bytearray(path.read_bytes())
    # In place: a copy of a structured array leaves the bytes between its fields as it finds them.
    dtype = schema.HEADER_1 if version_of(raw) == 1 else schema.HEADER
    head = np.frombuffer(raw, dtype=dtype, count=1)
    for name, value in words.items():
        head[name] = value
    path.write_bytes(raw)


@pytest.mark.parametrize("committed", [3, 0, 1 << 63, (1 << 64) - 1])
def test_a_sealed_file_has_as_many_records_as_its_size_says(tmp_path: Path, committed: int) -> None:
    """Of the first revision of version 1, in which nothing else guards the count."""
    (path,) = a_log(tmp_path, version=1, revision=0).write()
    _set_head(path, committed=committed)
    reader, records = read(survey([tmp_path]).logs[0])
    assert np.array_equal(records["chan_seq"], np.arange(1000))
    (report,) = reader.reports
    assert (report.records, report.damaged) == (1001, 0)
    assert report.problems == [
        f"the header's count of records, {committed}, is damaged: 1001 are there"
    ]


@pytest.mark.parametrize("sealed", [True, False])
@pytest.mark.parametrize("bit", [*range(12), 39, 63])
@pytest.mark.parametrize("name", ["committed", "committed_not"])
def test_a_flipped_bit_of_a_count_is_told_and_costs_nothing(
    tmp_path: Path, name: str, bit: int, sealed: bool
) -> None:
    """Of version 1. Behind the records of an open file there are zeros, as for those to come."""
    (path,) = a_log(tmp_path, version=1).write(sealed=sealed)
    count = 1001 if name == "committed" else ~1001 & (1 << 64) - 1
    _set_head(path, **{name: count ^ 1 << bit})
    if not sealed:
        with path.open("ab") as file:
            file.write(bytes(3000 * schema.RECORD_BYTES))
    reader, records = read(survey([tmp_path]).logs[0])
    assert np.array_equal(records["chan_seq"], np.arange(1000))
    (report,) = reader.reports
    assert (report.records, report.damaged) == (1001, 0)
    problems = [each.partition(":")[0] for each in report.problems]
    # One append less in an open file is what a death in between, or a look in between, leaves, too.
    between = not sealed and 0 < 1001 - (1001 ^ 1 << bit) <= 129
    assert problems == ([] if between else ["the header's count of records is damaged"])


@pytest.mark.parametrize("behind", [1, 3])
def test_a_writer_that_was_killed_between_the_count_and_its_complement(
    tmp_path: Path, behind: int
) -> None:
    """Of version 1. An append of a channel's name and a record counts both at once."""
    (path,) = a_log(tmp_path, version=1).write(sealed=False)
    _set_head(path, committed_not=~(1001 - behind) & (1 << 64) - 1)
    reader, records = read(survey([tmp_path]).logs[0])
    assert len(records) == 1000
    assert (reader.reports[0].damaged, reader.reports[0].problems) == (0, [])


@pytest.mark.parametrize("bit", [0, 5, 40, 63])
@pytest.mark.parametrize("name", ["dropped", "dropped_not"])
def test_a_flipped_bit_of_what_was_dropped_makes_no_record_lost(
    tmp_path: Path, name: str, bit: int
) -> None:
    """Of version 1."""
    (path,) = a_log(tmp_path, version=1).write(dropped=1)
    count = 1 if name == "dropped" else ~1 & (1 << 64) - 1
    _set_head(path, **{name: count ^ 1 << bit})
    (log,) = survey([tmp_path]).logs
    assert "dropped when there was no room" in log.incomplete
    problems = log.files[0].problems
    # 0 dropped, the complement of 1: killed between the two, or flipped; it is incomplete anyhow.
    assert problems == ("the header's count of dropped records is damaged",) or bit == 0


@pytest.mark.parametrize("bit", range(32))
@pytest.mark.parametrize("files", [1, 2])
def test_a_flipped_bit_of_the_end_changes_nothing_and_is_told(
    tmp_path: Path, files: int, bit: int
) -> None:
    """Of version 1."""
    paths = a_log(tmp_path, version=1).write(files=files)
    word = schema.ENDS_1[schema.CLOSED if files == 1 else schema.ROTATED]
    _set_head(paths[0], sealed=word ^ 1 << bit)
    (log,) = survey([tmp_path]).logs
    assert (log.closed, log.incomplete) == (True, "")
    assert log.files[0].problems == ("the header's word about the end of the file is damaged",)


# ---- version 2: all of a header is under CRCs


def _flip(path: Path, *bits: int) -> None:
    raw = bytearray(path.read_bytes())
    for bit in bits:
        raw[bit // 8] ^= 1 << bit % 8
    path.write_bytes(raw)


def _offset(name: str) -> int:
    fields = schema.HEADER.fields
    assert fields is not None
    return 8 * fields[name][1]


def test_no_bit_of_a_header_can_be_flipped_without_being_told(tmp_path: Path) -> None:
    """Each of the 32,768: the file is refused, or says the same as before and what is damaged."""
    log = a_log(tmp_path, 3, clock=10**18)
    (path,) = log.write(dropped=5)
    before = read_segment(str(path))
    assert isinstance(before, Segment)
    assert before.file.problems == ()
    assert (before.file.records, before.dropped, before.sealed) == (4, 5, True)
    whole = path.read_bytes()
    told = set()
    for bit in range(8 * schema.HEADER_BYTES):
        with path.open("r+b", buffering=0) as file:  # in place: a truncated file costs the disk
            os.pwrite(file.fileno(), bytes([whole[bit // 8] ^ 1 << bit % 8]), bit // 8)
            found = read_segment(str(path))
            os.pwrite(file.fileno(), whole[bit // 8 : bit // 8 + 1], bit // 8)
        if isinstance(found, FileReport):
            told.update(problem.partition(":")[0] for problem in found.problems)
            continue
        assert found.file.problems, f"bit {bit} of byte {bit // 8}"
        told.update(found.file.problems)
        clock_ns = found.file.clock_ns  # of the only anchor, unless that is what is damaged
        assert clock_ns in (0, before.file.clock_ns)
        file = replace(found.file, problems=(), clock_ns=before.file.clock_ns)
        assert replace(found, file=file) == before, f"bit {bit} of byte {bit // 8}"
    assert told == {
        "wrong magic",
        "header CRC does not match",
        "schema text does not match its CRC",
        "the header's count of records is damaged",
        "the header's count of dropped records is damaged",
        "an anchor of the clocks in the header is damaged",
        "unused bytes of the header are damaged",
    }


@pytest.mark.parametrize("which", range(4))
def test_no_bit_of_a_header_makes_the_audit_accuse(tmp_path: Path, which: int, local: Any) -> None:
    """One of each field, in one file of two of a sender, or of two of a listener that got all."""
    sender, listener = LogWriter(tmp_path, 1, clock=1), LogWriter(tmp_path, 2, clock=1)
    sends(sender, "c", np.arange(2000))
    listener.add(Kind.LISTEN, channel="c")
    receives(listener, "c", np.arange(2000))
    path = [*sender.write(files=2), *listener.write(files=2)][which]
    for name in schema.HEADER.names or ():
        bit = _offset(name) + (30 if name == "state" else 3)
        _flip(path, bit)
        result = audit.run(local, survey([tmp_path]), tmp_path / "out")
        assert not result.violation, name
        assert any(report.problems for report in result.reports), name
        assert not any(row["lost"] or row["corrupted"] for row in result.rows), name
        _flip(path, bit)


@pytest.mark.parametrize("word", ["state", "dropped"])
@pytest.mark.parametrize("bits", [(0, 1), (3, 40), (29, 30, 31), (62, 63), tuple(range(64))])
def test_of_a_count_with_several_flipped_bits_nothing_is_believed(
    tmp_path: Path, word: str, bits: tuple[int, ...]
) -> None:
    (path,) = a_log(tmp_path).write()
    _flip(path, *(_offset(word) + bit for bit in bits))
    (log,) = survey([tmp_path]).logs
    reader, records = read(log)
    assert np.array_equal(records["chan_seq"], np.arange(1000)), "all that are whole"
    assert reader.incomplete
    what = "records" if word == "state" else "dropped records"
    assert f"the header's count of {what} is damaged" in reader.reports[0].problems


def test_behind_a_damaged_count_records_are_looked_for_over_zeros_and_damage(
    tmp_path: Path,
) -> None:
    (path,) = a_log(tmp_path, 2 * CHUNK_RECORDS).write(sealed=False)
    flip_bit(path, 5)
    _flip(path, _offset("state") + 1, _offset("state") + 7)
    with path.open("ab") as file:
        file.write(bytes(3 * CHUNK_RECORDS * schema.RECORD_BYTES))
    reader, records = read(survey([tmp_path]).logs[0])
    assert len(records) == 2 * CHUNK_RECORDS - 1
    assert reader.reports[0].damaged == 2, "the flipped one, and one that may have been there"


def test_a_word_of_another_file_or_place_is_not_believed(tmp_path: Path) -> None:
    first, second = a_log(tmp_path).write(files=2)
    raw, other = bytearray(first.read_bytes()), second.read_bytes()
    at = _offset("state") // 8
    for part in (other[at : at + 8], raw[at + 8 : at + 16]):
        raw[at : at + 8] = part
        first.write_bytes(raw)
        found = read_segment(str(first))
        assert isinstance(found, Segment)
        assert found.file.problems == ("the header's count of records is damaged",)


def test_an_anchor_that_was_being_written_when_its_process_died(tmp_path: Path) -> None:
    """The mark stands where the CRC is; that is no damage, and the others tell the time."""
    (path,) = a_log(tmp_path, clock=77).write(sealed=False)
    raw = bytearray(path.read_bytes())
    anchors = np.frombuffer(raw, dtype=schema.HEADER, count=1)["anchors"][0]
    anchors[1]["tsc"], anchors[1]["crc"] = 9, schema.WRITING
    path.write_bytes(raw)
    (log,) = survey([tmp_path]).logs
    assert (log.files[0].clock_ns, log.files[0].problems) == (77, ())
    anchors[1]["crc"] ^= 1 << 9
    path.write_bytes(raw)
    (log,) = survey([tmp_path]).logs
    assert log.files[0].problems == ("an anchor of the clocks in the header is damaged",)


def test_the_newest_anchor_tells_the_time(tmp_path: Path) -> None:
    (path,) = a_log(tmp_path, clock=77).write()
    raw = bytearray(path.read_bytes())
    anchors = np.frombuffer(raw, dtype=schema.HEADER, count=1)["anchors"][0]
    for at, number in ((1, 16), (2, 2)):
        anchors[at]["realtime_ns"], anchors[at]["number"] = 1000 * number, number
        anchors[at]["crc"] = crc32c(anchors[at].tobytes()[:28])
    path.write_bytes(raw)
    assert survey([tmp_path]).logs[0].files[0].clock_ns == 16000


def test_a_version_that_is_not_known_says_which_and_what_to_do(tmp_path: Path) -> None:
    (path,) = a_log(tmp_path).write()
    raw = bytearray(path.read_bytes())
    raw[7] = 3
    problem = header_problem(bytes(raw))
    assert problem == "header CRC does not match: it is of another version than 3"
    raw[508:512] = crc32c(bytes(raw[:508])).to_bytes(4, "little")
    problem = header_problem(bytes(raw))
    assert problem is not None
    assert problem.startswith("version 3 of the format, and these jobs know 1 and 2")
    assert "upgrade pynotify where the jobs run" in problem


def test_a_machine_of_another_byte_order(tmp_path: Path) -> None:
    (path,) = a_log(tmp_path).write()
    raw = bytearray(path.read_bytes())
    raw[8:12] = raw[8:12][::-1]
    raw[508:512] = crc32c(bytes(raw[:508])).to_bytes(4, "little")
    assert header_problem(bytes(raw)) == "written on a machine of another byte order"


def test_logs_of_both_versions_are_one_table(tmp_path: Path) -> None:
    """A log that the older version wrote, and the listener of it that the newer one did."""
    for version, place in ((1, "old"), (2, "new")):
        sender = LogWriter(tmp_path / place, 1, log_id=1, version=version)
        sends(sender, "c", np.arange(2000))
        sender.write(files=2)
        listener = LogWriter(tmp_path / place, 2, log_id=2)
        listener.add(Kind.LISTEN, channel="c")
        receives(listener, "c", np.arange(2000))
        listener.write()
    results = {
        (place, job): run_job(job, [str(tmp_path / place)], tmp_path / f"{place}-{job}")[0]
        for place in ("old", "new")
        for job in ("audit", "latency")
    }
    for job in ("audit", "latency"):
        old, new = results["old", job], results["new", job]
        assert old["rows"] == new["rows"]
        assert old["totals"] == new["totals"]
        assert len(old["segments"]) == 3
        assert not any(segment["problems"] for segment in old["segments"])
    (row,) = results["old", "audit"]["rows"]
    assert (row["distinct"], row["lost"], row["corrupted"], row["unproven"]) == (2000, 0, 0, 0)


def test_a_log_of_the_writer_of_version_1(tmp_path: Path) -> None:
    """Two files that its last program wrote: closed, and killed in the middle."""
    found = survey([Path(__file__).parent / "pynlog1"])
    assert [log.files[0].version for log in found.logs] == [1, 1]
    for log in found.logs:
        reader, records = read(log)
        assert (reader.reports[0].damaged, reader.reports[0].problems) == (0, [])
        assert np.array_equal(records["chan_seq"], np.arange(40))
        assert log.files[0].clock_ns > 0
    assert sorted(log.closed for log in found.logs) == [False, True]


def test_a_last_part_that_is_missing(tmp_path: Path) -> None:
    paths = a_log(tmp_path).write(files=3)
    paths[2].unlink()
    (log,) = survey([tmp_path]).logs
    assert (log.closed, log.incomplete) == (False, "what followed file 1 of the log is missing")


def test_a_sealed_file_that_could_not_be_cut(tmp_path: Path) -> None:
    (path,) = a_log(tmp_path).write()
    with open(path, "ab") as file:
        file.write(bytes(10 * schema.RECORD_BYTES))
    reader, records = read(survey([tmp_path]).logs[0])
    assert len(records) == 1000
    assert (reader.reports[0].damaged, reader.reports[0].problems) == (0, [])


def test_a_log_that_is_removed_after_the_survey_costs_its_records(tmp_path: Path) -> None:
    paths = a_log(tmp_path).write(files=2)
    (log,) = survey([tmp_path]).logs
    paths[0].unlink()
    reader, records = read(log)
    assert len(records) == 500
    assert reader.reports[0].damaged == log.files[0].records
    assert "cannot be read: No such file" in reader.reports[0].problems[0]
    assert reader.incomplete


def test_the_copy_with_more_records_in_it_is_read(tmp_path: Path) -> None:
    (path,) = a_log(tmp_path).write()
    cut = tmp_path / "0-copy.pynlog"
    cut.write_bytes(path.read_bytes()[: schema.HEADER_BYTES + 10 * schema.RECORD_BYTES])
    reader, records = read(survey([tmp_path]).logs[0])
    assert len(records) == 1000
    assert not reader.incomplete


def test_a_name_that_is_not_utf8(tmp_path: Path) -> None:
    (path,) = a_log(tmp_path).write()
    strange = Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9.pynlog"))
    path.rename(strange)
    (tmp_path / os.fsdecode(b"\xff.pynlog")).touch()
    found = survey([tmp_path])
    reader, records = read(Log.from_json(found.logs[0].to_json()))
    assert len(records) == 1000
    for report in (*reader.reports, *found.unreadable):
        report.file.encode()
    assert reader.reports[0].file.endswith("/caf\\xe9.pynlog")


def test_a_fifo_is_named_and_not_waited_for(tmp_path: Path) -> None:
    a_log(tmp_path).write()
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    found = survey([tmp_path, fifo])
    assert len(found.logs) == 1
    assert [(report.file, report.problems) for report in found.unreadable] == [
        (str(fifo), ["is no regular file"])
    ]


def test_an_absurd_channel_number_is_damage(tmp_path: Path) -> None:
    log = a_log(tmp_path, 10)
    definitions = log.definitions()
    definitions["channel"] = (1 << 31) + 5
    log.definitions = lambda: definitions
    log.write()
    reader, records = read(survey([tmp_path]).logs[0])
    assert len(records) == 0, "their channel is not defined"
    assert reader.reports[0].damaged == 10


class TestTail:
    """What `live` reads is what the other jobs read."""

    def test_channels_and_records_are_counted_alike(self, tmp_path: Path) -> None:
        pytest.importorskip("pyspark")
        from spark_jobs.live.tail import TailReader

        log = a_log(tmp_path, 100)
        receives(log, "d", np.arange(100))
        rest, definitions = log.records(), log.definitions()
        body = np.concatenate([definitions[:1], rest[:100], definitions[1:], rest[100:]])
        log.batches, log.definitions = [body], lambda: definitions[:0]
        log.write()
        (found,) = survey([tmp_path]).logs
        tail = TailReader(found, 0, found.files[0].records)
        for _ in tail.chunks():
            pass
        assert (tail.records, tail.damaged) == (202, 0)
