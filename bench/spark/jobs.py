"""``python -m bench.spark``: how fast the jobs are, against numpy on one core.

Logs of the asked size are written by the project's own log writer, then everything runs on them
in one process, warm: the floor in numpy, the jobs, Parquet, other engines, the floor again. Where
both floors differ by more than a tenth, others used the machine and the figures are rejected.
Processor time is that of the whole process tree. A missed bar is a result, not a failure.

Before that the commands are run as they are on the command line, each in a process of its own:
what a first result costs, with all that starts for it. What is printed is as of `python -m bench`.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.native_programs import find_one
from bench.report import running
from bench.settings import Settings
from bench.spark import floor
from bench.spark.cold import cost
from bench.spark.processes import Clock, Peaks, forget_peaks, peaks
from spark_jobs.jobs import NAMES, runner
from spark_jobs.output import Parser
from spark_jobs.spark.jvm_start import nothing_left_when_interrupted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TOPIC = "spark"
COMMAND = "python -m bench.spark"
_CPU, _WALL = "records/CPU-s", "records/s"
RUNS = 3
WARM_UPS = 5
"""Runs of each job on small logs first: a JVM compiles for that long."""
SMALL = 1_000_000
TOLERANCE = 0.10
DEFAULT_RECORDS = 100_000_000
_WITHOUT = ", without Spark"


class CannotMeasureError(Exception):
    """Something that the benchmark needs is not there; says what."""


@dataclass(frozen=True)
class Passes:
    """What the warm runs of one thing took, and the most memory in any of them."""

    name: str
    records: int
    cpu_s: list[float]
    wall_s: list[float]
    peaks: Peaks

    @property
    def per_cpu_second(self) -> list[float]:
        return [self.records / each for each in self.cpu_s]

    @property
    def per_second(self) -> list[float]:
        return [self.records / each for each in self.wall_s]


def measure(name: str, records: int, work: Callable[[], object], *, warm_up: bool = True) -> Passes:
    """Runs `work` once unmeasured and then `RUNS` times."""
    print(f"bench: {name}", file=sys.stderr, flush=True)
    if warm_up:
        work()
    cpu, wall, clock = [], [], Clock()
    forget_peaks()
    for _ in range(RUNS):
        begin, used = time.monotonic(), clock.seconds()
        work()
        wall.append(time.monotonic() - begin)
        cpu.append(max(clock.seconds() - used, 0.001))
    return Passes(name, records, cpu, wall, peaks())


# ---- the logs


def find_writer() -> Path:
    """The native program that writes logs; raises CannotMeasureError when it was not built."""
    found = find_one("bench_latlog")
    if found is None:
        raise CannotMeasureError("no build/*/bench/bench_latlog: `make build` makes it")
    return found


@contextmanager
def logs_of(records: int, directory: Path | None) -> Iterator[tuple[Path, dict[str, int]]]:
    """A directory with that many records and what is in it.

    One that was given is kept, and not written again when it is there already.
    """
    root = Path(tempfile.mkdtemp(prefix="pynotify-bench-")) if directory is None else directory
    manifest = root / "bench.json"
    logs = root / f"logs-{records}"
    try:
        if not (manifest.exists() and logs.exists()):
            root.mkdir(parents=True, exist_ok=True)
            if shutil.disk_usage(root).free < records * 80:
                raise CannotMeasureError(f"not enough room in {root} for {records} records")
            print(f"bench: writing {records} records to {logs}", file=sys.stderr, flush=True)
            done = subprocess.run(
                [find_writer(), "--write", logs, str(records)], stdout=subprocess.PIPE, check=True
            )
            manifest.write_bytes(done.stdout)
        yield logs, json.loads(manifest.read_text())
    finally:
        if directory is None:
            shutil.rmtree(root, ignore_errors=True)


# ---- what is measured


@dataclass
class Bench:
    """The logs, the session, and where results go."""

    session: SparkSession
    logs: Path
    out: Path
    records: int
    received: int

    def job(
        self, name: str, logs: Path | None = None, *, again: bool = False, local: bool = False
    ) -> Callable[[], Any]:
        """Runs that job as the command line does; `again`: each time into another directory;
        `local`: without Spark.
        """
        from spark_jobs.engine.local import LocalEngine
        from spark_jobs.spark.engine import SparkEngine
        from spark_jobs.survey import survey

        count = 0
        # However many threads this process has, the command line has one.
        processes = os.cpu_count() or 1
        engine = LocalEngine(processes) if local else SparkEngine(self.session)

        def work() -> Any:
            nonlocal count
            count += again
            out = self.out / f"{name}-{count}"
            if again:
                shutil.rmtree(self.out / f"{name}-{count - 1}", ignore_errors=True)
            out.mkdir(parents=True, exist_ok=True)
            self.last_out = out
            return runner(name)(engine, survey([str(logs or self.logs)]), out)

        return work

    def latency(self, *, local: bool = False) -> Passes:
        work = self.job("latency", local=local)
        found = sum(row["n"] for row in work().rows if row["wake"] == "all")
        if found != self.received:
            raise CannotMeasureError(f"latency counted {found} of {self.received} messages")
        return measure("latency from binary" + _WITHOUT * local, self.records, work)

    def audit(self, *, local: bool = False) -> Passes:
        work = self.job("audit", local=local)
        totals = work().totals
        if totals["distinct"] != self.received or any(
            totals[name] for name in ("lost", "dup", "out_of_order", "corrupted", "unproven")
        ):
            raise CannotMeasureError(f"the audit of a clean log found {totals}")
        return measure("audit from binary" + _WITHOUT * local, self.records, work)

    def ingest(self) -> Passes:
        passes = measure("ingest", self.records, self.job("ingest", again=True))
        self.last_archive = self.last_out
        return passes

    def bytes_per_record(self) -> float:
        """How large the archive is."""
        size = sum(path.stat().st_size for path in self.last_archive.rglob("*.parquet"))
        return size / self.records

    def _grouped(self) -> DataFrame:
        """What ``latency`` counts, as plain Spark SQL on the archive."""
        frame = self.session.read.parquet(str(self.last_archive / "events"))
        return frame.where("lat_b IS NOT NULL").groupBy("channel", "pid", "lat_b").count()

    def parquet(self) -> Passes:
        """``latency`` from the archive: by channel, process and bucket, and its tables written."""
        work = self.job("latency", self.last_archive)
        work()
        counted = self.session.read.parquet(str(self.last_out / "latency_hist"))
        ours = counted.where("wake = 'all'").groupBy("channel", "pid", "bucket").agg({"n": "sum"})
        theirs = self._grouped()
        differing = ours.exceptAll(theirs).count() + theirs.exceptAll(ours).count()
        if differing:
            raise CannotMeasureError(f"latency from the archive and SQL differ in {differing} rows")
        return measure("Parquet aggregate: latency from the archive", self.records, work)

    def sql(self) -> Passes:
        def work() -> None:
            self._grouped().write.format("noop").mode("overwrite").save()

        return measure("the same counts in Spark SQL", self.records, work)

    def duckdb(self) -> Passes:
        import duckdb

        connection = duckdb.connect()
        connection.execute(f"SET threads TO {os.cpu_count() or 1}")
        query = (
            "SELECT channel, pid, lat_b, count(*) FROM read_parquet(?) "
            "WHERE lat_b IS NOT NULL GROUP BY ALL"
        )
        events = str(self.last_archive / "events" / "**" / "*.parquet")
        return measure(
            "the same counts in DuckDB",
            self.records,
            lambda: connection.execute(query, [events]).fetchall(),
        )

    def polars(self) -> Passes:
        import polars

        def work() -> None:
            frame = polars.scan_parquet(self.last_archive / "events" / "**" / "*.parquet")
            kept = frame.filter(polars.col("lat_b").is_not_null())
            kept.group_by("channel", "pid", "lat_b").len().collect(engine="streaming")

        return measure("the same counts in polars", self.records, work)


def tell(
    settings: Settings,
    passes: Passes,
    base: Passes | None = None,
    bar_cpu: float | None = None,
    bar_wall: float | None = None,
) -> None:
    """Records per second of processor time and, where there is a floor, by the clock against it on
    all processors. Ratios are to the median of the floor, which is not measured in turns.
    """
    memory = passes.peaks
    more: dict[str, Any] = {
        "command": COMMAND,
        "note": f"at most {memory.driver} MiB in Python, {memory.jvm} in Java, "
        f"{memory.worker} in a worker",
    }
    if base is None:
        settings.alone(TOPIC, passes.name, _CPU, passes.per_cpu_second, bar=bar_cpu, **more)
        return
    least = statistics.median(base.per_cpu_second)
    everywhere = least * (os.cpu_count() or 1)
    for name, unit, ours, theirs, bar in (
        (passes.name, _CPU, passes.per_cpu_second, least, bar_cpu),
        (f"{passes.name}, on all processors", _WALL, passes.per_second, everywhere, bar_wall),
    ):
        peer = [theirs] * len(ours)
        settings.compare(TOPIC, name, unit, ours, peer, against=base.name, bar=bar, **more)


def _warm_up(session: SparkSession, records: int, out: Path) -> None:
    with logs_of(min(records, SMALL), None) as (logs, contents):
        small = Bench(session, logs, out, contents["records"], contents["received"])
        names = [name for name in ("latency", "audit", "ingest") if name in NAMES]
        for name in names:
            print(f"bench: warming up {name}", file=sys.stderr, flush=True)
            work = small.job(name, again=True)
            for _ in range(WARM_UPS):
                work()
    shutil.rmtree(out)


_COLD_BARS = {("spark", "1 MB"): 12.0, ("local", "1 MB"): 1.5, ("local", "all"): 3.5}
"""Processor seconds of a first result; that of all is for 20 M records."""
_COLD_RECORDS = 16_000
_BAR_RECORDS = 20_000_000


_COLD_JOBS = {"spark": ("latency", "audit"), "local": ("latency", "audit", "timeline", "report")}


def _cold(settings: Settings, logs: Path, size: str, records: int) -> None:
    for engine, jobs in _COLD_JOBS.items():
        bar = _COLD_BARS.get((engine, size))
        if size == "all" and records > 1.05 * _BAR_RECORDS:
            bar = None
        for job in jobs:
            name = f"{job}, {size}, {engine}"
            print(f"bench: cold, {name}", file=sys.stderr, flush=True)
            command = [sys.executable, "-m", "spark_jobs", job, str(logs), "--engine", engine]
            command += ["--out", str(settings.directory / "cold"), "--overwrite"]
            costs = [cost(command) for _ in range(RUNS)]
            cpu, wall = zip(*costs, strict=True)
            settings.alone(
                TOPIC,
                f"a first result: {name}",
                "CPU-s",
                cpu,
                bar=bar,
                at_most=True,
                command=COMMAND,
                note=f"{statistics.median(wall):.2f} s by the clock",
            )


def _first_results(settings: Settings, logs: Path, records: int) -> None:
    with logs_of(_COLD_RECORDS, None) as (small, contents):
        _cold(settings, small, "1 MB", contents["records"])
    _cold(settings, logs, "all", records)


def _floors(files: Sequence[Path], records: int) -> tuple[Passes, Passes]:
    return (
        measure("numpy histogram", records, lambda: floor.latency_histograms(files)),
        measure("numpy audit", records, lambda: floor.audit(files)),
    )


def _from_archive(settings: Settings, bench: Bench, base: Passes) -> None:
    if "ingest" not in NAMES:
        print("bench: no job ingest here, so nothing from Parquet is measured", file=sys.stderr)
        return
    tell(settings, bench.ingest(), bar_cpu=4e6)
    size = [bench.bytes_per_record()]
    settings.alone(TOPIC, "ingest", "bytes", size, bar=12.0, at_most=True, command=COMMAND)
    tell(settings, bench.parquet(), base, 0.15)
    tell(settings, bench.sql(), base)
    for name, work in (("duckdb", bench.duckdb), ("polars", bench.polars)):
        if find_spec(name) is None:
            print(f"bench: {name} is not installed (the extra bench has it)", file=sys.stderr)
        else:
            tell(settings, work())


def run(
    settings: Settings, records: int, directory: Path | None = None, master: str | None = None
) -> float:
    """Measures everything; by how much the floor has moved meanwhile.

    Raises CannotMeasureError and JavaNotFoundError.
    """
    from spark_jobs.spark.session import create_session

    with logs_of(records, directory) as (logs, contents):
        files = sorted(logs.glob("*.pynlog"))
        total, received = contents["records"], contents["received"]
        _first_results(settings, logs, total)
        session = create_session("pynotify bench", master)
        bench = Bench(session, logs, settings.directory, total, received)
        if floor.latency_histograms(files) != received or any(floor.audit(files)):
            raise CannotMeasureError(f"{logs} does not hold what bench.json says")
        _warm_up(session, records, settings.directory / "small")
        before, before_audit = _floors(files, total)
        tell(settings, before)
        tell(settings, before_audit)
        tell(settings, bench.latency(), before, 0.25, 0.18)
        tell(settings, bench.audit(), before_audit, 0.15)
        tell(settings, bench.latency(local=True), before)
        tell(settings, bench.audit(local=True), before_audit)
        _from_archive(settings, bench, before)
        after, _ = _floors(files, total)
        tell(settings, replace(after, name=f"{after.name}, afterwards"))
    costs = [statistics.median(each.cpu_s) for each in (before, after)]
    return max(costs) / min(costs) - 1


def main(arguments: Sequence[str]) -> int:
    """Runs the command line; 0, or 1 when it could not measure or the figures are rejected."""
    from spark_jobs.spark.java import JavaNotFoundError

    parser = Parser(prog=COMMAND, description=TITLE)
    parser.add_argument("--records", type=int, default=DEFAULT_RECORDS, metavar="N")
    parser.add_argument("--dir", type=Path, help="where the logs go and stay; else they go again")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there")
    parser.add_argument("--master", help="Spark master; by default as Spark is configured")
    options = parser.parse_args(arguments)
    try:
        with nothing_left_when_interrupted(), running(options.json) as settings:
            moved = run(settings, options.records, options.dir, options.master)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 1
    except (CannotMeasureError, JavaNotFoundError, OSError, subprocess.SubprocessError) as error:
        print(f"bench.spark: {error}", file=sys.stderr)
        return 1
    accepted = moved <= TOLERANCE
    verdict = "accepted" if accepted else f"rejected, since that is more than {TOLERANCE:.0%}"
    print(f"the floor moved by {moved:.1%}: {verdict}")
    return 0 if accepted else 1


TITLE = "how fast the jobs are, against numpy on one core, and against DuckDB and polars"
