"""What reads the logs makes no difference: this process, a few, or Spark."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from logwriter import LogWriter, receives, sends

from forking import ForkedChild
from programs import ROOT, environment
from receiving import wait_until
from spark_jobs.cli import main
from spark_jobs.directory import Directory
from spark_jobs.engine import local as local_engine
from spark_jobs.engine.base import Engine
from spark_jobs.engine.local import LocalEngine
from spark_jobs.engine.partials import deal, pieces
from spark_jobs.errors import CannotRunError
from spark_jobs.jobs import NAMES, OPTIONS, latency, preparer, runner
from spark_jobs.logs.model import Log
from spark_jobs.logs.schema import USEFUL, Kind, Wake
from spark_jobs.procfs import stat
from spark_jobs.spark.configured import configured_master, java_is_configured
from spark_jobs.survey import survey

BOOTS = ("00000000-1111-2222-3333-444444444444", "99999999-1111-2222-3333-444444444444")
SECOND = 10**9


def a_host(logs: Path, host: str, boot: str, random: np.random.Generator) -> None:
    head: dict[str, Any] = {"host": host, "boot_id": boot, "clock": 10**18, "engine": f"e.{host}"}
    seq = np.arange(6000)
    ts = SECOND + np.sort(random.integers(0, 5 * SECOND, len(seq)))
    sender = LogWriter(logs, 9, **head)
    for channel in ("a", "b"):
        sends(sender, channel, seq, ts=ts)
    sender.add(Kind.SIGNAL, 30, aux=2, ts=SECOND)
    for pid in (1, 2):
        log = LogWriter(logs, pid, **head)
        for channel in ("a", "b"):
            log.add(Kind.LISTEN, channel=channel, chan_seq=0, ts=SECOND)
            kept = seq if (pid, channel) != (2, "a") else np.delete(seq, [100, 5000])
            late = (random.pareto(1.2, len(kept)) * 1000).astype(np.int64)
            wake = random.choice([Wake.SIGNAL, Wake.FD], len(kept))
            at = ts[kept]
            receives(log, channel, kept, ts=at + late, ref_ts=at, lag=kept % 7, wake=wake)
        log.add(Kind.WAKE, 60, flags=USEFUL, batch=50, wake=Wake.SIGNAL, ts=SECOND)
        jobs = np.arange(500)
        log.add(Kind.PUBLISH, 500, channel="t", ts=SECOND, commit_seq=jobs + 9000 * pid)
        for kind, some in (
            (Kind.DELIVER, jobs),
            (Kind.FIN, jobs[pid:]),
            (Kind.REQ, jobs[:7]),
            (Kind.TIMEOUT, jobs[:3]),
        ):
            at = {"ts": (8 + (kind == Kind.FIN)) * SECOND, "ref_ts": SECOND}
            number = some + 9000 * pid
            log.add(kind, len(some), channel="t:c", commit_seq=number, attempts=1, **at)
        log.add(Kind.WAKE, 5, channel="t:c", flags=USEFUL, wake=Wake.FD, ts=SECOND)
        log.write(files=2)
    sender.write()


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two hosts, one of them booted twice; messages that were lost, and a file that is damaged."""
    place = tmp_path_factory.mktemp("logs")
    random = np.random.default_rng(3)
    for host, boot in (("h1", BOOTS[0]), ("h1", BOOTS[1]), ("h2", BOOTS[0])):
        a_host(place, host, boot, random)
    (place / "bad.pynlog").write_bytes(b"no log")
    damaged = min(place.glob("*.2.*"))
    os.truncate(damaged, damaged.stat().st_size - 6400)
    return place


def ran(engine: Engine, job: str, logs: Path, out: Directory) -> Any:
    given = [str(logs), str(logs)] if job == "compare" else [str(logs)]
    out.mkdir()
    settings = {"window": 0.5} if "window" in OPTIONS.get(job, ()) else {}
    return runner(job)(engine, preparer(job)(given), out, **settings)


def tables_of(out: Path) -> dict[str, pa.Table]:
    """Folder -> its table; those that tasks have written in parts, in order."""
    found = {}
    for folder in sorted({path.parent for path in out.rglob("*.parquet")}):
        table = pa.concat_tables(pq.read_table(path) for path in sorted(folder.glob("*.parquet")))
        if folder.name == "latency_hist":
            table = table.sort_by([(name, "ascending") for name in table.column_names])
        found[str(folder.relative_to(out))] = table
    return found


def files_of(out: Path) -> dict[str, bytes]:
    """All but what tasks write in parts, or with the time and their names in it."""
    return {
        str(path.relative_to(out)): path.read_bytes().replace(str(out).encode(), b"OUT")
        for path in sorted(out.rglob("*"))
        if path.is_file() and not {"latency_hist", "events", "segments"} & set(path.parts)
    }


def check_the_same(job: str, engines: tuple[Engine, Engine], logs: Path, place: Path) -> None:
    outs = [place / "one", place / "other"]
    one, other = (ran(engine, job, logs, out) for engine, out in zip(engines, outs, strict=True))
    assert one.rows
    if job != "report":  # whose rows are paths
        assert one.rows == other.rows
    names = ("reports", "violation", "totals", "further")
    for name in names:
        assert getattr(one, name) == getattr(other, name), name
    tables = [tables_of(out) for out in outs]
    assert tables[0] or job == "perfetto"  # whose only file is a trace
    assert tables[0] == tables[1]
    assert files_of(outs[0]) == files_of(outs[1])


@pytest.mark.parametrize("job", NAMES)
def test_a_few_processes_give_what_one_gives(job: str, logs: Path, tmp_path: Path) -> None:
    check_the_same(job, (LocalEngine(1), LocalEngine(3)), logs, tmp_path)
    assert multiprocessing.active_children() == []


def test_a_log_that_is_larger_than_all_others_is_read_by_several(tmp_path: Path) -> None:
    """By its files, where a job does not ask for the order of its records."""
    log, small = LogWriter(tmp_path, 1, clock=10**18), LogWriter(tmp_path, 2, clock=10**18)
    seq = np.arange(4000)
    receives(log, "a", seq, ts=SECOND + seq + 5, ref_ts=SECOND + seq)
    receives(small, "a", seq[:1], ts=SECOND + 5, ref_ts=SECOND)
    paths = log.write(files=4)
    small.write()
    paths[1].unlink()  # what is missing is told once
    found = survey([tmp_path])
    for job, parts in (("latency", 3), ("audit", 3), ("lag", 2)):
        dealt = deal(pieces((job,), found.logs, 3), 3)
        assert len(dealt) == parts
        assert sum(len(Log.from_json(text).files) for part in dealt for text in part) == 4
    one, three = (latency.run(LocalEngine(n), found, tmp_path / str(n)) for n in (1, 3))
    assert one == three
    assert [row["n"] for row in one.rows if row["wake"] == "all"] == [3000, 1]
    assert [report.problems for report in one.reports if report.problems] == [
        ["file 1 of the log is missing"]
    ]


@pytest.mark.spark
@pytest.mark.xdist_group("spark")
@pytest.mark.filterwarnings("default")  # Spark's own code, which we cannot mend
class TestSpark:
    @pytest.mark.parametrize("job", NAMES)
    def test_gives_what_this_process_gives(
        self, job: str, spark: Any, logs: Path, tmp_path: Path
    ) -> None:
        from spark_jobs.spark.engine import SparkEngine

        check_the_same(job, (LocalEngine(1), SparkEngine(spark)), logs, tmp_path)

    def test_a_master_is_a_reason_for_it(
        self, spark: Any, logs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(LocalEngine, "load", None)
        arguments = ["wakeups", str(logs), "--overwrite", "--out"]
        for number, more in enumerate((["--master", "local[2]"], ["--engine", "spark"])):
            assert main([*arguments, str(tmp_path / str(number)), *more]) == 0
        assert len(list(tmp_path.glob("*/wakeups.json"))) == 2

    def test_parquet_is_written_without_snappy(self, spark: Any, tmp_path: Path) -> None:
        """Its library does not load where Debian's package musl is installed."""
        spark.range(1).coalesce(1).write.parquet(str(tmp_path / "one"))
        (part,) = (tmp_path / "one").glob("*.parquet")
        assert pq.ParquetFile(part).metadata.row_group(0).column(0).compression == "ZSTD"

    def test_the_demonstration_report(self, spark: Any, logs: Path, tmp_path: Path) -> None:
        from pynotify.demo import spark_report

        report = spark_report.run([str(logs)], tmp_path)
        assert report["status"] == "violation"
        rows = ran(LocalEngine(1), "latency", logs, tmp_path / "own").rows
        whole = [row for row in rows if row["wake"] == "all"]
        for key, found in (("channel", report["channels"]), ("pid", report["processes"])):
            for name, how in (("n", sum), ("max_ns", max)):
                figures: dict[Any, list[int]] = {}
                for row in whole:
                    place = row["host"] if key == "pid" else row["engine"]
                    figures.setdefault((place, row[key]), []).append(row[name])
                places = "host" if key == "pid" else "engine"
                assert {(row[places], row[key]): row[name] for row in found} == {
                    each: how(values) for each, values in figures.items()
                }
        assert len(report["audit"]["rows"]) == 3 * 2 * 2
        assert (tmp_path / "demo_report.json").exists()


CONFIGURED = """
from spark_jobs.spark.session import create_session
session = create_session("test", "local[1]", brief=True)
for key in ("spark.sql.shuffle.partitions", "spark.ui.enabled", "spark.sql.session.timeZone"):
    print(session.sparkContext.getConf().get(key), session.conf.get(key))
print(session.sparkContext.getConf().get("spark.driver.extraJavaOptions"))
"""


@pytest.mark.spark
@pytest.mark.full
@pytest.mark.timeout(300)
@pytest.mark.parametrize("java", ["", "-Dof.mine=1"])
def test_the_users_settings_of_spark_stand(java: str, spark: Any, tmp_path: Path) -> None:
    lines = ["spark.sql.shuffle.partitions 7", "spark.ui.enabled true", "spark.ui.port 0"]
    lines += [f"spark.driver.extraJavaOptions {java}"] if java else []
    (tmp_path / "spark-defaults.conf").write_text("\n".join(lines) + "\n")
    own = {name: value for name, value in environment().items() if name != "JDK_JAVA_OPTIONS"}
    done = subprocess.run(
        [sys.executable, "-c", CONFIGURED],
        env={**own, "SPARK_CONF_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    quick = "-XX:TieredStopAtLevel=1"  # of a short run, where nothing else is said
    *others, options = done.stdout.splitlines()
    assert others == ["7 7", "true true", "UTC UTC"]
    assert options.split()[-1] == (java or quick)  # behind Spark's own
    assert (quick in options) == (not java)


NO_SNAPPY = """
import sys
from spark_jobs.cli import main
from spark_jobs.spark.session import create_session
logs, out = sys.argv[1:]
one = create_session("test", "local[1]", brief=True).range(1).coalesce(1)
one.write.parquet(f"{out}/ours")
try:
    one.write.option("compression", "snappy").parquet(f"{out}/snappy")
except Exception as error:
    print("UnsatisfiedLinkError" in str(error) or "Snappy" in str(error))
print(main(["latency", logs, "--engine", "spark", "--out", f"{out}/latency"]))
"""


@pytest.mark.spark
@pytest.mark.full
@pytest.mark.timeout(300)
def test_nothing_needs_snappys_library(spark: Any, logs: Path, tmp_path: Path) -> None:
    """As where Debian's package musl is installed: it does not load."""
    java = "-Dorg.xerial.snappy.use.systemlib=true -Djava.library.path=/nowhere"
    done = subprocess.run(
        [sys.executable, "-c", NO_SNAPPY, str(logs), str(tmp_path)],
        env=environment() | {"JDK_JAVA_OPTIONS": java},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert [line for line in done.stdout.splitlines() if line in ("True", "0")] == ["True", "0"]


def test_what_says_how_java_is_to_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("JDK_JAVA_OPTIONS", "SPARK_SUBMIT_OPTS", "PYSPARK_SUBMIT_ARGS", "SPARK_HOME")
    for name in names:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    assert not java_is_configured()
    for name, value in (
        ("JDK_JAVA_OPTIONS", "-Xmx1g"),
        ("SPARK_SUBMIT_OPTS", "-Da=1"),
        ("PYSPARK_SUBMIT_ARGS", "--driver-java-options -Da=1 pyspark-shell"),
        ("PYSPARK_SUBMIT_ARGS", "--conf spark.driver.extraJavaOptions=-Da=1 pyspark-shell"),
    ):
        with monkeypatch.context() as patch:
            patch.setenv(name, value)
            assert java_is_configured(), name
    place = tmp_path / "spark-defaults.conf"
    place.write_text("spark.driver.extraJavaOptionsX -Da=1\n")
    assert not java_is_configured()
    place.write_text("spark.driver.extraJavaOptions=-Da=1\n")
    assert java_is_configured()


def test_without_spark(logs: Path, tmp_path: Path) -> None:
    """Nothing of it is imported, and there need be no Java."""
    code = (
        "import sys; from spark_jobs.cli import main;"
        "status = main(['report', *sys.argv[1:]]);"
        "assert 'pyspark' not in sys.modules; sys.exit(status)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, logs, "--out", tmp_path / "out"],
        env={**environment(), "PATH": str(tmp_path), "JAVA_HOME": str(tmp_path)},
        cwd=ROOT,
        check=False,
    )
    assert done.returncode == 2  # the audit's
    assert (tmp_path / "out" / "report.html").exists()


@pytest.fixture
def one_fails(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Exception | int]]:
    """The process that reads the logs of pid 9 raises that, or dies of that signal."""
    how: list[Exception | int] = []
    aggregated = local_engine.aggregated

    def failing(text: str, *arguments: Any) -> Any:
        if '"pid": 9' in text:
            if isinstance(how[0], Exception):
                raise how[0]
            os.kill(os.getpid(), how[0])
        return aggregated(text, *arguments)

    monkeypatch.setattr(local_engine, "aggregated", failing)
    yield how
    assert multiprocessing.active_children() == []


def test_a_process_that_is_killed_is_told(
    one_fails: list[Any], logs: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    one_fails.append(signal.SIGKILL)
    with pytest.raises(CannotRunError, match=r"process \d+, which read a part .* signal 9$"):
        LocalEngine(3).load("audit", survey([logs]))
    assert capfd.readouterr().err == ""


def test_what_a_process_raises_is_raised(
    one_fails: list[Any], logs: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    one_fails.append(PermissionError(13, "Permission denied", "a.pynlog"))
    with pytest.raises(PermissionError, match=r"a\.pynlog"):
        LocalEngine(3).load("audit", survey([logs]))
    assert capfd.readouterr().err == ""


def test_ctrl_c_ends_them(
    one_fails: list[Any], logs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While one is stopped, which so never ends by itself."""
    one_fails.append(signal.SIGSTOP)

    def interrupted(*_: object) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(pa.ipc, "read_record_batch", interrupted)
    with pytest.raises(KeyboardInterrupt):
        LocalEngine(3).load("lag", survey([logs]), window_ns=SECOND)  # which reads logs whole


def ended(pid: int) -> bool:
    found = stat(pid)
    return found is None or found.state in "ZX"


def test_the_end_of_the_process_ends_them(
    logs: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    reading, begun = os.pipe()
    aggregated = local_engine.aggregated

    def endless(*arguments: Any) -> Any:
        os.write(begun, os.getpid().to_bytes(4))
        batches = list(aggregated(*arguments))
        while True:
            yield from batches

    def stopped(*_: object) -> Any:
        os.kill(os.getpid(), signal.SIGSTOP)

    monkeypatch.setattr(local_engine, "aggregated", endless)
    monkeypatch.setattr(pa.ipc, "read_record_batch", stopped)
    child = ForkedChild(lambda: LocalEngine(3).load("audit", survey([logs])))
    pids = [int.from_bytes(os.read(reading, 4)) for _ in range(3)]
    os.kill(child.pid, signal.SIGKILL)
    assert child.join() == -signal.SIGKILL
    wait_until(lambda: all(ended(pid) for pid in pids), "they are gone")
    assert capfd.readouterr().err == ""
    for fd in (reading, begun):
        os.close(fd)


def test_a_program_with_threads_reads_by_itself(
    logs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_engine, "PROCESS_BYTES", 1)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2})
    found = survey([logs])
    running = threading.active_count() > 1  # the test's own watchdog, for one
    done = threading.Event()
    thread = threading.Thread(target=done.wait)
    assert local_engine._processes(found, {}) == (1 if running else 3)
    thread.start()
    assert local_engine._processes(found, {}) == 1
    done.set()
    thread.join()


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--engine", "local", "--master", "local[2]"], "--master local[2] is Spark's: leave it"),
        (
            ["hdfs://here/logs", "--engine", "local"],
            "hdfs://here/logs is known to Hadoop alone: that",
        ),
    ],
)
def test_what_this_host_cannot_do(
    arguments: list[str], problem: str, logs: Path, tmp_path: Path, capsys: Any
) -> None:
    assert main(["audit", str(logs), *arguments, "--out", str(tmp_path / "out")]) == 1
    assert problem in capsys.readouterr().err


def test_what_names_a_master(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PYSPARK_GATEWAY_PORT", "SPARK_REMOTE", "PYSPARK_SUBMIT_ARGS", "SPARK_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    assert configured_master() == ""
    place = tmp_path / "spark-defaults.conf"
    place.write_text("# spark.master no\nspark.eventLog.dir /spark.master\n")
    assert configured_master() == ""
    for line in ("spark.master spark://host:7077", "spark.master=local[2]"):
        place.write_text(f"spark.ui.enabled true\n{line}\n")
        assert configured_master() == f"{place} names a master"
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", "--master yarn pyspark-shell")
    assert configured_master() == "PYSPARK_SUBMIT_ARGS names a master"
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    assert configured_master() == "spark-submit has started Spark"


def test_a_window_without_a_width_is_refused_at_once(tmp_path: Path, capsys: Any) -> None:
    for width in ("0", "-1", "nan", "inf", "1e-10"):
        with pytest.raises(SystemExit) as ended:
            main(["lag", "nowhere", "--window", width, "--out", str(tmp_path / "out")])
        assert ended.value.code == 1
        assert f"a window cannot be {width} s wide" in capsys.readouterr().err


def test_help_says_what_each_job_is_for(capsys: Any) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    text = capsys.readouterr().out
    assert "\n  live      percentiles of growing logs" in text
    assert "\n  latency   commit-to-receive latency" in text
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert "pynlog 1" in capsys.readouterr().out


FREED_AGAIN_AND_AGAIN = """
import resource, sys
import numpy as np
from spark_jobs.engine.memory import keep_what_is_freed
if sys.argv[1:]:
    keep_what_is_freed()
np.ones(1 << 20)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(50):
    np.ones(3 << 20)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="it is glibc's")
def test_memory_that_is_freed_is_used_again() -> None:
    """Of arrays of 24 MiB, which glibc by itself takes from the kernel each time."""
    pages = (3 << 20) * 8 // resource.getpagesize()
    counts = [
        int(
            subprocess.run(
                [sys.executable, "-c", FREED_AGAIN_AND_AGAIN, *given],
                cwd=ROOT,
                env=environment() | {"GLIBC_TUNABLES": ""},
                stdout=subprocess.PIPE,
                text=True,
                check=True,
            ).stdout
        )
        for given in ([], ["kept"])
    ]
    assert counts[1] < 2 * pages
    assert counts[0] > counts[1]
