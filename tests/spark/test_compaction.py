"""Small segments of an archive are put together: the same figures in fewer bytes, whatever is
killed, read or archived meanwhile.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet
import pytest
from logwriter import LogWriter, receives
from test_archive import flip
from test_engines import BOOTS, a_host, files_of, ran, tables_of

from forking import ForkedChild
from spark_jobs.archive import changes, compaction
from spark_jobs.cli import main
from spark_jobs.engine.local import LocalEngine
from spark_jobs.errors import CannotRunError
from spark_jobs.jobs import NAMES, audit, ingest, latency, timeline
from spark_jobs.logs import stored
from spark_jobs.logs.model import CHUNK_RECORDS
from spark_jobs.logs.reader import LogReader
from spark_jobs.logs.schema import Kind
from spark_jobs.prune import prune
from spark_jobs.survey import survey

DAY_NS = 86_400 * 10**9
CLOCK = 20_000 * DAY_NS
JOBS = [
    # a trace of 150,000 events, made twice, of records that the others read as well
    pytest.param(job, marks=pytest.mark.full) if job == "perfetto" else job
    for job in NAMES
    if job != "ingest"
]


def archived(logs: Path, archive: Path, **options: Any) -> dict[str, Any]:
    return ingest.run(LocalEngine(1), survey([logs]), archive, **options).totals


def small_logs(logs: Path) -> None:
    """Two across midnight, one of several databases, one that is damaged, two without records, one
    without channels, one that is open; and one that is too large to pack.
    """
    for pid in (21, 28):
        midnight = LogWriter(logs, pid, clock=CLOCK)
        receives(midnight, "a", np.arange(300), ts=DAY_NS - 150 + np.arange(300), ref_ts=5)
        midnight.write()
    databases = LogWriter(logs, 22, clock=CLOCK)
    for database in (1, 2):
        databases.add(Kind.RECV, 40, channel="same", database=database, ts=9, ref_ts=database)
    databases.write()
    damaged = LogWriter(logs, 23, clock=CLOCK)
    receives(damaged, "a", np.arange(500))
    (path,) = damaged.write()
    os.truncate(path, path.stat().st_size - 6400)
    for pid in (24, 29):
        LogWriter(logs, pid, clock=CLOCK).write()
    bare = LogWriter(logs, 25, clock=CLOCK)
    bare.add(Kind.WAKE, 10, ts=7)
    bare.write()
    alive = LogWriter(logs, 26, clock=CLOCK)
    receives(alive, "a", np.arange(50))
    alive.write(sealed=False)
    large = LogWriter(logs, 27, clock=CLOCK)
    receives(large, "a", np.arange(compaction.SMALL))
    large.write()
    (logs / "bad.pynlog").write_bytes(b"no log")


def many_logs(logs: Path, count: int, begin: int = 100, day: int = 0) -> None:
    for pid in range(begin, begin + count):
        log = LogWriter(logs, pid, clock=CLOCK + day * DAY_NS)
        log.add(Kind.LISTEN, channel=f"c{pid % 7}", chan_seq=0)
        receives(log, f"c{pid % 7}", np.arange(140), ts=2000 + pid + 10 * np.arange(140))
        log.write()


@pytest.fixture(scope="module")
def archives(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """One as ingest leaves it, and the same packed."""
    place = tmp_path_factory.mktemp("archives")
    random = np.random.default_rng(3)
    for host, boot in (("h1", BOOTS[0]), ("h1", BOOTS[1]), ("h2", BOOTS[0])):
        a_host(place / "logs", host, boot, random)
    small_logs(place / "logs")
    archived(place / "logs", place / "loose")
    shutil.copytree(place / "loose", place / "packed")
    found = compaction.compact(str(place / "packed"))
    assert found == {"packed": 3 * 5 + 8, "swept": 0}
    return place / "loose", place / "packed"


def check_the_same(
    job: str, engines: tuple[Any, Any], places: tuple[Path, Path], out: Path
) -> None:
    outs = [out / "one", out / "other"]
    one, other = (ran(engines[i], job, places[i], outs[i]) for i in range(2))
    assert one.rows
    if job != "report":  # whose rows are paths
        assert one.rows == other.rows
    for name in ("reports", "violation", "totals", "further"):
        assert getattr(one, name) == getattr(other, name), name
    assert tables_of(outs[0]) == tables_of(outs[1])
    assert files_of(outs[0]) == files_of(outs[1])


@pytest.mark.parametrize("job", JOBS)
def test_every_job_gives_the_same_tables(
    job: str, archives: tuple[Path, Path], tmp_path: Path
) -> None:
    check_the_same(job, (LocalEngine(1), LocalEngine(2)), archives, tmp_path)


@pytest.mark.spark
@pytest.mark.xdist_group("spark")
@pytest.mark.filterwarnings("default")  # Spark's own code, which we cannot mend
@pytest.mark.parametrize("job", ["latency", "audit", "timeline"])
def test_spark_gives_the_same_tables(
    job: str, spark: Any, archives: tuple[Path, Path], tmp_path: Path
) -> None:
    from spark_jobs.spark.engine import SparkEngine

    check_the_same(job, (LocalEngine(1), SparkEngine(spark)), archives, tmp_path)


def test_a_part_of_the_time(archives: tuple[Path, Path], tmp_path: Path) -> None:
    """Row groups are passed over, and counted, as they are in files of one segment."""
    since = datetime.fromtimestamp((CLOCK + DAY_NS) / 1e9, UTC).isoformat()
    reports = []
    for number, place in enumerate(archives):
        out = tmp_path / str(number)
        arguments = ["timeline", str(place), "--out", str(out), "--since", since]
        assert main([*arguments, "--until", "2030-01-01"]) == 0
        reports.append(json.loads((out / "timeline.json").read_text()))
    assert reports[0]["rows"] == reports[1]["rows"]
    assert reports[0]["segments"] == reports[1]["segments"]
    assert sum(row["n"] for row in reports[0]["rows"]) == 2 * 150


def size_of(place: Path) -> int:
    return sum(path.stat().st_size for path in place.rglob("*") if path.is_file())


def test_an_archive_of_small_logs_is_smaller_than_they_are(tmp_path: Path) -> None:
    logs, archive = tmp_path / "logs", tmp_path / "archive"
    many_logs(logs, 300)
    archived(logs, archive)
    assert len(list(archive.rglob("*.parquet"))) == 900
    assert main(["ingest", str(logs), "--out", str(archive), "--compact"]) == 0
    assert len(list(archive.rglob("*.parquet"))) == 3
    assert size_of(archive) < size_of(logs) / 5


def states(archive: Path) -> dict[str, int]:
    return {
        str(path.relative_to(archive)): path.stat().st_mtime_ns
        for path in archive.rglob("*")
        if path.is_file()
    }


def test_again_changes_nothing(tmp_path: Path) -> None:
    logs, archive = tmp_path / "logs", tmp_path / "archive"
    many_logs(logs, 30)
    assert archived(logs, archive, compact=True)["packed"] == 30
    before = states(archive)
    again = archived(logs, archive, compact=True)
    assert (again["archived"], again["unchanged"], again["packed"]) == (0, 30, 0)
    assert states(archive) == before


def test_packs_do_not_become_many(tmp_path: Path) -> None:
    """Nor is all written again each time."""
    logs, archive = tmp_path / "logs", tmp_path / "archive"
    packed = []
    for turn in range(12):
        many_logs(logs, 10, begin=100 + 10 * turn)
        packed.append(archived(logs, archive, compact=True)["packed"])
    assert len(list((archive / "segments").iterdir())) <= 4
    assert sum(packed) <= 12 * 10 * 4
    assert audit.run(LocalEngine(1), survey([archive]), tmp_path / "a").rows == (
        audit.run(LocalEngine(1), survey([logs]), tmp_path / "b").rows
    )


def test_a_packed_segment_that_grows(tmp_path: Path) -> None:
    logs, archive = tmp_path / "logs", tmp_path / "archive"
    many_logs(logs, 3)
    log = LogWriter(logs, 9, clock=CLOCK)
    receives(log, "c", np.arange(10))
    log.write(sealed=False)
    assert archived(logs, archive, compact=True)["packed"] == 4
    receives(log, "c", np.arange(10, 30))
    log.write()
    assert archived(logs, archive)["archived"] == 1
    assert archived(logs, archive)["unchanged"] == 4

    def received(place: Path) -> list[int]:
        rows = latency.run(LocalEngine(1), survey([place]), tmp_path / "out").rows
        return [row["n"] for row in rows if row["wake"] == "all"]

    assert received(archive) == received(logs)
    assert archived(logs, archive, compact=True)["packed"] == 4
    assert received(archive) == received(logs)
    (events,) = archive.rglob("events/*/*/*.parquet")
    assert pyarrow.parquet.ParquetFile(events).metadata.num_rows == 3 * 141 + 30


def test_overwrite_archives_packed_segments_again(tmp_path: Path) -> None:
    """As where a pack is damaged."""
    logs, archive = tmp_path / "logs", tmp_path / "archive"
    many_logs(logs, 5)
    archived(logs, archive, compact=True)
    (events,) = archive.rglob("events/*/*/*.parquet")
    events.write_bytes(b"damaged")
    assert sum(report.damaged for report in reports_of(archive, tmp_path)) == 5 * 142
    assert archived(logs, archive, overwrite=True)["archived"] == 5
    assert not any(report.damaged for report in reports_of(archive, tmp_path))
    assert archived(logs, archive, compact=True)["packed"] == 5
    assert not any(report.damaged for report in reports_of(archive, tmp_path))


def reports_of(place: Path, tmp_path: Path) -> Any:
    return timeline.run(LocalEngine(1), survey([place]), tmp_path / "out").reports


def test_what_is_damaged_stays_as_it_is(tmp_path: Path) -> None:
    logs, archive = tmp_path / "logs", tmp_path / "archive"
    many_logs(logs, 6)
    archived(logs, archive)
    first, second, third = sorted(archive.rglob("events/*/*/*.parquet"))[:3]
    first.write_bytes(first.read_bytes()[:-500])
    second.unlink()
    (archive / "channels" / third.name).unlink()
    before = reports_of(archive, tmp_path)
    assert compaction.compact(str(archive))["packed"] == 3
    assert reports_of(archive, tmp_path) == before
    assert first.exists() and third.exists()


def test_a_damaged_pack_costs_its_row_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs, archive = tmp_path / "logs", tmp_path / "archive"
    many_logs(logs, 6)
    monkeypatch.setattr(compaction, "GROUP_ROWS", 300)
    archived(logs, archive, compact=True)
    (events,) = archive.rglob("events/*/*/*.parquet")
    metadata = pyarrow.parquet.ParquetFile(events).metadata
    assert metadata.num_row_groups == 3
    flip(events, "kind", 1)
    damaged = [report.damaged for report in reports_of(archive, tmp_path)]
    assert damaged == [0, 0, 141, 141, 0, 0]
    assert compaction.compact(str(archive))["packed"] == 0


# ---- killed


STEPS = ((changes, "put"), (changes, "delete"), (changes, "sync"), (stored, "announce"))


def killed_before(step: int) -> None:
    """From now on this process dies before that change of an archive."""
    left = step

    def counted(real: Callable[..., Any]) -> Callable[..., Any]:
        def change(*arguments: Any) -> Any:
            nonlocal left
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            left -= 1
            return real(*arguments)

        return change

    for module, name in STEPS:
        setattr(module, name, counted(getattr(module, name)))


def died(step: int, work: Callable[[], Any]) -> bool:
    def child() -> None:
        killed_before(step)
        work()

    code = ForkedChild(child).join()
    assert code in (0, -signal.SIGKILL)
    return code != 0


def figures(place: Path, out: Path) -> Any:
    found = audit.run(LocalEngine(1), survey([place]), out), reports_of(place, out.parent)
    return found[0].rows, found[1]


def whole(archive: Path) -> tuple[int, int, list[str]]:
    """How many segments and files there are, and files that no row names."""
    rows, unreadable = stored.rows(archive)
    assert unreadable == []
    named = set(changes.named(str(archive), rows))
    files = {str(path) for path in archive.rglob("*") if path.is_file()}
    others = {path for path in files - named if "quarantine" not in path}
    return len(rows), len(files), sorted(Path(path).name for path in others)


@pytest.fixture
def prepared(tmp_path: Path) -> Path:
    """An archive with a pack that is worn and small, and segments of two days; as a process left
    it that is gone.
    """
    ForkedChild(lambda: prepare(tmp_path)).result()
    return tmp_path / "prepared"


def prepare(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    many_logs(logs, 3)
    grows = LogWriter(logs, 9, clock=CLOCK)
    receives(grows, "c0", np.arange(10))
    grows.write(sealed=False)
    archived(logs, tmp_path / "prepared", compact=True)
    receives(grows, "c0", np.arange(10, 30))
    grows.write()
    small = LogWriter(logs, 31, clock=CLOCK)
    receives(small, "a", np.arange(300), ts=DAY_NS - 150 + np.arange(300), ref_ts=5)
    small.write(files=3)
    archived(logs, tmp_path / "prepared")


@pytest.mark.full
def test_killed_before_each_step(prepared: Path, tmp_path: Path) -> None:
    """All is there, once; and the next compaction leaves what one that is not killed does."""
    expected = figures(prepared, tmp_path / "out")
    done = tmp_path / "done"
    shutil.copytree(prepared, done)
    compaction.compact(str(done))
    segments, files, others = whole(done)
    assert (segments, others) == (7, ["changes.json"])
    step, archive = 0, tmp_path / "archive"
    while True:
        shutil.copytree(prepared, archive)
        killed = died(step, lambda: compaction.compact(str(archive)))
        assert figures(archive, tmp_path / "out") == expected, step
        compaction.compact(str(archive))
        assert figures(archive, tmp_path / "out") == expected, step
        assert whole(archive) == (segments, files, others), step
        shutil.rmtree(archive)
        if not killed:
            break
        step += 1
    assert step >= 20


def test_killed_more_than_once(prepared: Path, tmp_path: Path) -> None:
    """Each time a step later than before, in what the last one left."""
    expected = figures(prepared, tmp_path / "out")
    step = 0
    while died(step, lambda: compaction.compact(str(prepared))):
        assert figures(prepared, tmp_path / "out") == expected, step
        step += 1
    assert figures(prepared, tmp_path / "out") == expected
    assert step > 5
    assert whole(prepared)[0] == 7


def test_an_ingest_that_is_killed(prepared: Path, tmp_path: Path) -> None:
    """Before each step of archiving what has grown; the next one, and a compaction, mend it."""
    logs = tmp_path / "logs"
    (path,) = logs.glob("*.9.*")
    raw = path.read_bytes()
    log = LogWriter(logs, 9, clock=CLOCK, log_id=int(path.name.split(".")[4]) // 100)
    receives(log, "c0", np.arange(60))
    log.write()
    assert len(list(logs.glob("*.9.*"))) == 1 and len(path.read_bytes()) > len(raw)
    expected = figures(logs, tmp_path / "out")
    step, archive = 0, tmp_path / "archive"
    while True:
        shutil.copytree(prepared, archive)
        killed = died(step, lambda: archived(logs, archive))
        figures(archive, tmp_path / "out")  # of one of both states
        assert [report.damaged for report in reports_of(archive, tmp_path)] == [0] * 7
        assert archived(logs, archive, compact=True)["unchanged"] >= 6
        assert figures(archive, tmp_path / "out") == expected, step
        events = sum(
            pyarrow.parquet.ParquetFile(file).metadata.num_rows
            for file in archive.rglob("events/*/*/*.parquet")
        )
        assert events == 3 * 141 + 60 + 300, step
        assert whole(archive)[2] == ["changes.json"]
        shutil.rmtree(archive)
        if not killed:
            break
        step += 1
    assert step >= 5


def test_a_pack_is_on_the_disk_before_anything_is_removed(
    prepared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[tuple[str, list[str]]] = []

    def noted(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def change(system: Any, what: Any, *more: Any) -> Any:
            paths = list(what) if name == "sync" else [more[0] if name == "put" else what]
            done.append((name, [str(Path(path).relative_to(prepared)) for path in paths]))
            return real(system, paths if name == "sync" else what, *more)

        return change

    for module, name in STEPS[:3]:
        monkeypatch.setattr(module, name, noted(name, getattr(module, name)))
    compaction.compact(str(prepared))
    put: set[str] = set()
    synced: set[str] = set()
    for name, paths in done:
        {"put": put, "sync": synced, "delete": set()}[name].update(paths)
        assert name != "delete" or put <= synced
    assert put == synced and len(put) > 4


# ---- at the same time


def once(real: Callable[..., Any], before: Callable[[], object]) -> Callable[..., Any]:
    """`real`, before whose first call something else happens."""
    waiting = [before]

    def call(*arguments: Any, **options: Any) -> Any:
        if waiting:
            waiting.pop()()
        return real(*arguments, **options)

    return call


def contents(found: Any) -> dict[str, Any]:
    """By log, what a reader makes of a survey."""
    read: dict[str, Any] = {}
    for log in found.logs:
        reader = LogReader(log)
        rows: list[Any] = []
        for chunk in reader.chunks():
            names = [reader.channels[i] if i >= 0 else None for i in chunk.channel]
            rows += zip(chunk.records["ts"].tolist(), names, strict=True)
        read[log.log_id] = rows, [report.as_json() for report in reader.reports]
    return read


def test_readers_that_began_before(tmp_path: Path) -> None:
    """They go on in the packs; also in those that a second compaction made of these."""
    logs, archive = tmp_path / "logs", tmp_path / "archive"
    many_logs(logs, 12)
    small_logs(logs)
    archived(logs, archive)
    found = survey([archive])
    expected = contents(found)
    compaction.compact(str(archive))
    assert contents(found) == expected
    packed = survey([archive])
    many_logs(logs, 20, begin=300)
    assert archived(logs, archive, compact=True)["packed"] > 20
    assert contents(found) == expected
    assert contents(packed) == expected


def test_a_reader_of_what_has_grown_reads_what_was_there(tmp_path: Path) -> None:
    logs, archive = tmp_path / "logs", tmp_path / "archive"
    log = LogWriter(logs, 9, clock=CLOCK)
    receives(log, "c", np.arange(10))
    log.write(sealed=False)
    archived(logs, archive)
    found = survey([archive])
    expected = contents(found)
    receives(log, "c", np.arange(10, 30))
    log.write()
    many_logs(logs, 1)
    for compact in (False, True):
        archived(logs, archive, compact=compact)
        assert contents(found) == expected


def test_a_file_that_goes_while_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As an object store has it: what was read is not read again."""
    logs, archive = tmp_path / "logs", tmp_path / "archive"
    log = LogWriter(logs, 9, clock=CLOCK)
    receives(log, "c", np.arange(CHUNK_RECORDS + 1000))
    log.write()
    many_logs(logs, 1)
    archived(logs, archive)
    found = survey([archive])
    expected = contents(found)
    real = pyarrow.parquet.ParquetFile.iter_batches

    def iter_batches(file: Any, *arguments: Any, **options: Any) -> Iterator[Any]:
        yield next(real(file, *arguments, **options))
        compaction.compact(str(archive))
        raise OSError("no such key")

    monkeypatch.setattr(pyarrow.parquet.ParquetFile, "iter_batches", iter_batches)
    assert contents(found) == expected


@pytest.mark.parametrize("moment", ["before it lists", "while it lists", "before it reads"])
def test_rows_that_are_listed_meanwhile(
    moment: str, prepared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The directory that is listed changes: a listing may miss what went and what came."""
    expected = set(stored.standing(stored.rows(prepared)[0]))

    def compact() -> None:
        with monkeypatch.context() as patch:
            for name, each in real.items():
                patch.setattr(stored, name, each)
            compaction.compact(str(prepared))

    real = {name: getattr(stored, name) for name in ("_listed", "_read", "_names")}
    name = {"before it lists": "_listed", "while it lists": "_names", "before it reads": "_read"}
    if moment == "while it lists":
        names = stored._names

        def missing(*arguments: Any) -> list[str]:
            before = names(*arguments)
            compact()
            monkeypatch.setattr(stored, "_names", names)
            return [name for name in before if name in names(*arguments)]

        monkeypatch.setattr(stored, "_names", missing)
    else:
        monkeypatch.setattr(stored, name[moment], once(real[name[moment]], compact))
    rows, unreadable = stored.rows(prepared)
    assert unreadable == []
    assert set(stored.standing(rows)) == expected


@pytest.mark.parametrize("step", range(8))
def test_an_ingest_meanwhile(
    step: int, prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of what has grown, and is being packed: before each of the first changes, and at the end."""
    logs = tmp_path / "logs"
    (path,) = logs.glob("*.9.*")
    log = LogWriter(logs, 9, clock=CLOCK, log_id=int(path.name.split(".")[4]) // 100)
    receives(log, "c0", np.arange(60))
    log.write()
    meanwhile(step, lambda: archived(logs, prepared), monkeypatch)
    compaction.compact(str(prepared))
    assert figures(prepared, tmp_path / "one") == figures(logs, tmp_path / "other")
    compaction.compact(str(prepared))
    assert figures(prepared, tmp_path / "one") == figures(logs, tmp_path / "other")
    assert whole(prepared)[2] == ["changes.json"]


@pytest.mark.parametrize(
    "step",
    [step if step % 3 == 0 else pytest.param(step, marks=pytest.mark.full) for step in range(18)],
)
def test_another_compaction_meanwhile(
    step: int, prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = figures(prepared, tmp_path / "out")
    meanwhile(step, lambda: compaction.compact(str(prepared)), monkeypatch)
    compaction.compact(str(prepared))
    assert figures(prepared, tmp_path / "out") == expected
    compaction.compact(str(prepared))
    assert figures(prepared, tmp_path / "out") == expected
    segments, _, others = whole(prepared)
    assert (segments, others) == (7, ["changes.json"])


def meanwhile(step: int, other: Callable[[], object], monkeypatch: pytest.MonkeyPatch) -> None:
    """Before that change of an archive something else happens, whole."""
    left = step
    reals = {(module, name): getattr(module, name) for module, name in STEPS}

    def counted(real: Callable[..., Any]) -> Callable[..., Any]:
        def change(*arguments: Any) -> Any:
            nonlocal left
            left -= 1
            if left == -1:
                with monkeypatch.context() as patch:
                    for (module, name), each in reals.items():
                        patch.setattr(module, name, each)
                    other()
            return real(*arguments)

        return change

    for (module, name), real in reals.items():
        monkeypatch.setattr(module, name, counted(real))


# ---- what is left behind


def draft_of(archive: Path, name: str) -> Path:
    path = archive / stored.STAGING / name
    path.write_bytes(b"half")
    return path


def test_drafts_of_killed_processes_are_swept(prepared: Path) -> None:
    """At once where it is known that the process is gone, else after a day."""
    writer = changes.writer()
    boot, namespace, pid, start = writer.split("-")
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        found = Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()
        living = draft_of(prepared, f"{boot}-{namespace}-{child.pid}-{found[19]}.a")
        own = draft_of(prepared, f"{writer}.b")
        reused = draft_of(prepared, f"{boot}-{namespace}-{pid}-{int(start) - 1}.c")
        container = draft_of(prepared, f"{boot}-1-{pid}-{int(start) - 1}.d")
        elsewhere = draft_of(prepared, f"00000000-{namespace}-{pid}-{start}.e")
        of_before = draft_of(prepared, "0123456789abcdef0123456789abcdef")
        assert prune(str(prepared), older="2000-01-01")["swept"] == 1
        assert not reused.exists()
        left = [living, own, container, elsewhere, of_before]
        assert all(path.exists() for path in left)
        old = elsewhere.stat().st_mtime - 86_500
        for path in left:
            os.utime(path, (old, old))
        assert prune(str(prepared), older="2000-01-01", dry_run=True)["swept"] == 0
        assert prune(str(prepared), older="2000-01-01")["swept"] == 3
        assert (living.exists(), own.exists()) == (True, True)
        child.communicate(b"\n")
    assert compaction.compact(str(prepared))["swept"] == 1
    assert not living.exists()


def test_a_pack_of_a_process_that_lives_is_not_swept(prepared: Path) -> None:
    """Its row is yet to come. That of one that is gone never comes."""
    boot, namespace, pid, start = changes.writer().split("-")
    folder = next(prepared.rglob("host=*"))
    own = folder / f"{boot}-{namespace}-{pid}-{start}.0123456789ab.parquet"
    gone = folder / f"{boot}-{namespace}-{pid}-{int(start) - 1}.0123456789ab.parquet"
    for path in (own, gone):
        path.write_bytes(b"pack")
    (row,) = [path for path in (prepared / "segments").iterdir() if path.name.startswith(boot)]
    raw = row.read_bytes()
    row.write_bytes(b"damaged")
    changes.sweep(str(prepared))
    assert gone.exists(), "what has lost its row may be all that there is of it"
    row.write_bytes(raw)
    changes.sweep(str(prepared))
    assert (own.exists(), gone.exists()) == (True, False)


def test_a_pack_that_is_swept_takes_the_place_of_nothing(
    prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before its row comes, as if the process that writes it was gone."""
    expected = figures(prepared, tmp_path / "out")
    real = changes.put_table

    def swept(place: str, name: str, table: Any) -> None:
        if name.startswith(stored.SEGMENTS):
            with monkeypatch.context() as patch:
                patch.setattr(changes, "_is_gone", lambda _: True)
                changes.sweep(place)
        real(place, name, table)

    monkeypatch.setattr(changes, "put_table", swept)
    with pytest.raises(CannotRunError, match="a pack was swept while it was being written"):
        compaction.compact(str(prepared))
    monkeypatch.setattr(changes, "put_table", real)
    assert figures(prepared, tmp_path / "out") == expected
    compaction.compact(str(prepared))
    assert figures(prepared, tmp_path / "out") == expected


def test_packs_are_pruned_whole(tmp_path: Path) -> None:
    logs, archive = tmp_path / "logs", tmp_path / "archive"
    for day in range(3):
        many_logs(logs, 4, begin=100 + 10 * day, day=day)
    small_logs(logs)
    archived(logs, archive, compact=True)
    said = prune(str(archive), older="2024-10-05", dry_run=True)
    assert said["removed"] == 4 + 5
    assert prune(str(archive), older="2024-10-05") == said | {"dry_run": False}
    left = {*range(110, 114), *range(120, 124), 21, 24, 28, 29}
    assert {log.pid for log in survey([archive]).logs} == left
    assert archived(logs, archive, compact=True)["pruned"] == 4 + 5
    assert {log.pid for log in survey([archive]).logs} == left
    assert whole(archive)[2] == ["changes.json", "pruned.json"]
    assert prune(str(archive), older="2024-10-07")["left"] == 3
    assert not list((archive / "events").iterdir())


# ---- the command line


def test_without_logs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    logs, archive = tmp_path / "logs", tmp_path / "archive"
    many_logs(logs, 3)
    archived(logs, archive)
    shutil.rmtree(logs)
    assert main(["ingest", "--compact", "--out", str(archive), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["totals"]["packed"] == 3
    for arguments in (["ingest"], ["latency"]):
        with pytest.raises(SystemExit):
            main([*arguments, "--out", str(archive)])
        assert "required: LOGS" in capsys.readouterr().err
    assert main(["latency", str(archive), "--compact", "--out", str(tmp_path / "out")]) == 1
    assert "--compact is an option of ingest" in capsys.readouterr().err
