"""The benchmark runs, and measures what it says; its figures are not judged here."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from logwriter import LogWriter, receives, sends

from bench.figures import Figure, Spread
from bench.settings import Settings
from bench.spark import crc, floor
from bench.spark import jobs as bench
from bench.spark.cold import cost
from bench.spark.processes import Clock, Peaks, forget_peaks, peaks
from spark_jobs.logs.schema import Kind


def python(work: str, **options: Any) -> subprocess.Popen[bytes]:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    return subprocess.Popen([sys.executable, "-c", work], **pipes, **options)


# A clock tick is 0.01 s, and the two looks lose one each.
LEAST = 0.48
BUSY = "import time\nwhile time.process_time() < 0.5: pass"


def test_processor_time_counts_the_dead_and_their_children() -> None:
    """Half a second of work in a grandchild that is gone by the time it is looked for."""
    nested = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {BUSY!r}])"
    clock = Clock()
    before = clock.seconds()
    with python(nested):
        pass
    assert clock.seconds() - before >= LEAST


def test_processor_time_of_children_that_are_not_waited_for_stays() -> None:
    """As the workers of Spark's daemon end, which ignores SIGCHLD."""
    worker = f"{BUSY}\nprint(flush=True); input()"
    daemon = (
        "import signal, subprocess, sys; signal.signal(signal.SIGCHLD, signal.SIG_IGN)\n"
        f"worker = subprocess.Popen([sys.executable, '-c', {worker!r}])\n"
        "try: worker.wait()\nexcept ChildProcessError: pass\nprint(flush=True); sys.stdin.read()"
    )
    clock = Clock()
    before = clock.seconds()
    with python(daemon) as process:
        assert process.stdin and process.stdout
        process.stdout.readline()
        busy = clock.seconds()
        assert busy - before >= LEAST
        process.stdin.write(b"\n")
        process.stdin.flush()
        process.stdout.readline()  # the worker has ended
        assert clock.seconds() >= busy
        process.stdin.close()


def test_peaks_of_memory_are_those_since_they_were_forgotten() -> None:
    work = (
        "import sys; x = bytearray(900 << 20); del x; print(flush=True); input(); "
        "x = bytearray(600 << 20); print(flush=True); sys.stdin.read()"
    )  # more than a worker of Spark has, which another test may have left here
    with python(work) as process:
        assert process.stdin and process.stdout
        process.stdout.readline()
        assert peaks().worker >= 900
        forget_peaks()
        process.stdin.write(b"\n")
        process.stdin.flush()
        process.stdout.readline()
        assert 600 <= peaks().worker < 900
        process.stdin.close()
    assert peaks().driver > 0


def test_the_numpy_audit_finds_faults(tmp_path: Path) -> None:
    """Or the floor would not be one."""
    seq = np.arange(1000)
    sender = LogWriter(tmp_path, 1)
    sends(sender, "c", seq)
    sender.write()
    order = seq.copy()
    order[[10, 11]] = order[[11, 10]]
    for pid, heard in ((2, seq), (3, np.delete(seq, [5, 6])), (4, np.append(seq, 999)), (5, order)):
        log = LogWriter(tmp_path, pid)
        log.add(Kind.LISTEN, channel="c")
        receives(log, "c", heard)
        if pid == 2:
            log.batches[-1]["aux"][7] ^= np.uint64(1)
        log.write(files=2)
    files = sorted(tmp_path.glob("*.pynlog"))
    assert floor.audit(files) == (2, 1, 1, 1)
    assert floor.latency_histograms(files) == 4 * 1000 - 2 + 1


def test_ratios_are_to_the_floor_and_on_all_processors(tmp_path: Path) -> None:
    figures: list[Figure] = []
    none = Peaks(0, 0, 0)
    base = bench.Passes("floor", 1000, [0.5, 1.0, 2.0], [1.0, 1.0, 1.0], none)
    job = bench.Passes("job", 1000, [4.0, 5.0, 2.0], [2.0, 2.0, 2.0], none)
    settings = Settings(tmp_path, figures.append)
    bench.tell(settings, base)
    bench.tell(settings, job, base, 0.25, 0.6)
    alone, cpu, wall = figures
    assert (alone.ours, alone.ratio, alone.passed) == (Spread(1000, 500, 2000), None, None)
    assert cpu.ratio == Spread(0.25, 0.2, 0.5)
    assert (cpu.against, cpu.passed) == ("floor", True)
    assert wall.ratio is not None
    assert wall.ratio.median == pytest.approx(0.5 / (os.cpu_count() or 1))
    assert wall.passed is False


@pytest.mark.spark
@pytest.mark.xdist_group("spark")
@pytest.mark.filterwarnings("default")  # Spark's own code, which we cannot mend
@pytest.mark.full
def test_the_aggregate_of_an_archive_is_compared_with_sql(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench, "RUNS", 1)
    seq = np.arange(1000)
    for pid in (1, 2):
        log = LogWriter(tmp_path / "logs", pid)
        for channel in ("c", "d"):
            receives(log, channel, seq, ts=9 + seq * pid, ref_ts=2, wake=seq % 3)
        log.write(files=2)
    measured = bench.Bench(spark, tmp_path / "logs", tmp_path / "out", 4000, 4000)
    measured.ingest()
    assert measured.parquet().records == measured.sql().records == 4000
    grouped = bench.Bench._grouped
    monkeypatch.setattr(bench.Bench, "_grouped", lambda self: grouped(self).where("lat_b > 400"))
    with pytest.raises(bench.CannotMeasureError, match="differ in"):
        measured.parquet()


LEFT = """
import os, sys, time
if os.fork() == 0:
    os.setsid()
    while time.process_time() < 0.3:
        pass
sys.exit(int(sys.argv[1]))
"""


def test_what_a_command_leaves_behind_counts_too() -> None:
    """As a JVM does, which outlives the Python that started it."""
    cpu, _ = cost([sys.executable, "-c", LEFT, "0"])
    assert cpu >= 0.3
    with pytest.raises(subprocess.CalledProcessError):
        cost([sys.executable, "-c", LEFT, "3"])


@pytest.mark.spark
@pytest.mark.full
@pytest.mark.xdist_group("spark")
@pytest.mark.filterwarnings("default")  # Spark's own code, which we cannot mend
@pytest.mark.timeout(600)
@pytest.mark.usefixtures("spark")
def test_a_small_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    try:
        bench.find_writer()
    except bench.CannotMeasureError as error:
        pytest.skip(str(error))
    monkeypatch.setattr(bench, "RUNS", 1)
    monkeypatch.setattr(bench, "WARM_UPS", 1)
    monkeypatch.setattr(bench, "TOLERANCE", 1e9)
    result = tmp_path / "bench.json"
    words = ["--records", "200000", "--dir", str(tmp_path / "dir"), "--json", str(result)]
    assert bench.main(words) == 0
    figures = {row["name"]: row for row in json.loads(result.read_text())["figures"]}
    assert {
        "numpy histogram",
        "latency from binary",
        "audit from binary, on all processors",
        "Parquet aggregate: latency from the archive",
        "the same counts in Spark SQL",
        "numpy histogram, afterwards",
    } <= set(figures)
    assert all(row["ours"]["median"] > 0 for row in figures.values())
    assert (tmp_path / "dir" / "logs-200000").is_dir()
    first = [row for name, row in figures.items() if name.startswith("a first result: ")]
    assert len(first) == 12
    assert figures["a first result: latency, 1 MB, spark"]["bar"] == 12
    printed = capsys.readouterr().out
    assert "| spark: latency from binary | records/CPU-s |" in printed
    assert "the floor moved by" in printed


def test_ways_to_check_crcs_are_compared(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(crc, "_PASSES", 1)
    monkeypatch.setattr(crc, "_PASS_S", 0.001)
    crc.main()
    figures = re.findall(
        r"^crc: (.*)\n    pynotify: (\S+) \[.*\] ns$", capsys.readouterr().out, re.M
    )
    assert [name for name, _ in figures[:4]] == [
        "a run of version 2, by one call",
        "a run of version 1, by one call",
        "each record, by a call",
        "each record, by numpy's tables",
    ]
    assert all(float(ns.replace(",", "")) > 0 for _, ns in figures)
