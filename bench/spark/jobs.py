"""``python -m bench.spark``: how fast the jobs are, against numpy on one core.

Logs of the asked size are written by the project's own log writer, then everything runs on them
in one process, warm: the floor in numpy, the jobs, Parquet, other engines, the floor again. Where
both floors differ by more than a tenth, others used the machine and the figures are rejected.
Processor time is that of the whole process tree. A missed bar is a result, not a failure.

Before that the commands are run as they are on the command line, each in a process of its own:
what a first result costs, with all that starts for it.
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
from dataclasses import asdict, dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.spark import floor
from bench.spark.cold import cost
from bench.spark.processes import Clock, Peaks, forget_peaks, peaks
from spark_jobs.jobs import NAMES, runner
from spark_jobs.output import Parser
from spark_jobs.spark.jvm_start import nothing_left_when_interrupted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROOT = Path(__file__).resolve().parents[2]
RUNS = 3
WARM_UPS = 5
"""Runs of each job on small logs first: a JVM compiles for that long."""
SMALL = 1_000_000
TOLERANCE = 0.10
DEFAULT_RECORDS = 100_000_000
_WITHOUT = ", without Spark"


class CannotMeasureError(Exception):
    """Something that the benchmark needs is not there; says what."""


@dataclass
class Figure:
    """Medians over the warm runs; ratios are to the floor `against`, per core."""

    name: str
    records: int
    cpu_s: float
    wall_s: float
    against: str = ""
    ratio_cpu: float | None = None
    bar_cpu: float | None = None
    ratio_wall: float | None = None
    bar_wall: float | None = None
    bytes_per_record: float | None = None
    bar_bytes: float | None = None
    bar_rate: float | None = None
    walls_s: list[float] = field(default_factory=list)
    cpus_s: list[float] = field(default_factory=list)
    peak_mib: Peaks | None = None

    @property
    def rate_cpu(self) -> float:
        """Records per second of processor time."""
        return self.records / self.cpu_s

    @property
    def rate_wall(self) -> float:
        return self.records / self.wall_s

    def verdict(self) -> str:
        """ "PASS", "below", or nothing without a bar."""
        pairs = (
            (self.ratio_cpu, self.bar_cpu),
            (self.ratio_wall, self.bar_wall),
            (self.rate_cpu, self.bar_rate),
            # fewer bytes are better
            (self.bar_bytes, self.bytes_per_record if self.bar_bytes else None),
        )
        met = [a >= b for a, b in pairs if a is not None and b is not None]
        return "" if not met else "PASS" if all(met) else "below"


def measure(name: str, records: int, work: Callable[[], object], *, warm_up: bool = True) -> Figure:
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
    figure = Figure(name, records, statistics.median(cpu), statistics.median(wall))
    figure.walls_s, figure.cpus_s = ([round(each, 3) for each in times] for times in (wall, cpu))
    figure.peak_mib = peaks()
    return figure


# ---- the logs


def find_writer() -> Path:
    """The native program that writes logs; raises CannotMeasureError when it was not built."""
    found = list((ROOT / "build").glob("*/bench/bench_latlog"))
    if not found:
        raise CannotMeasureError(f"no build/*/bench/bench_latlog in {ROOT}: `make build` makes it")
    return max(found, key=lambda path: path.stat().st_mtime)


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

    def latency(self, *, local: bool = False) -> Figure:
        work = self.job("latency", local=local)
        found = sum(row["n"] for row in work().rows if row["wake"] == "all")
        if found != self.received:
            raise CannotMeasureError(f"latency counted {found} of {self.received} messages")
        return measure("latency from binary" + _WITHOUT * local, self.records, work)

    def audit(self, *, local: bool = False) -> Figure:
        work = self.job("audit", local=local)
        totals = work().totals
        if totals["distinct"] != self.received or any(
            totals[name] for name in ("lost", "dup", "out_of_order", "corrupted", "unproven")
        ):
            raise CannotMeasureError(f"the audit of a clean log found {totals}")
        return measure("audit from binary" + _WITHOUT * local, self.records, work)

    def ingest(self) -> Figure:
        figure = measure("ingest", self.records, self.job("ingest", again=True))
        self.last_archive = self.last_out
        size = sum(path.stat().st_size for path in self.last_archive.rglob("*.parquet"))
        figure.bytes_per_record = size / self.records
        return figure

    def _grouped(self) -> DataFrame:
        """What ``latency`` counts, as plain Spark SQL on the archive."""
        frame = self.session.read.parquet(str(self.last_archive / "events"))
        return frame.where("lat_b IS NOT NULL").groupBy("channel", "pid", "lat_b").count()

    def parquet(self) -> Figure:
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

    def sql(self) -> Figure:
        def work() -> None:
            self._grouped().write.format("noop").mode("overwrite").save()

        return measure("the same counts in Spark SQL", self.records, work)

    def duckdb(self) -> Figure:
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

    def polars(self) -> Figure:
        import polars

        def work() -> None:
            frame = polars.scan_parquet(self.last_archive / "events" / "**" / "*.parquet")
            kept = frame.filter(polars.col("lat_b").is_not_null())
            kept.group_by("channel", "pid", "lat_b").len().collect(engine="streaming")

        return measure("the same counts in polars", self.records, work)


def _compare(
    figure: Figure, base: Figure, bar_cpu: float | None = None, bar_wall: float | None = None
) -> Figure:
    figure.against = base.name
    figure.ratio_cpu = figure.rate_cpu / base.rate_cpu
    figure.ratio_wall = figure.rate_wall / (base.rate_cpu * (os.cpu_count() or 1))
    figure.bar_cpu, figure.bar_wall = bar_cpu, bar_wall
    return figure


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


def _cold(logs: Path, size: str, records: int, out: Path) -> Iterator[dict[str, Any]]:
    for engine, jobs in _COLD_JOBS.items():
        for job in jobs:
            name = f"{job}, {size}, {engine}"
            print(f"bench: cold, {name}", file=sys.stderr, flush=True)
            command = [sys.executable, "-m", "spark_jobs", job, str(logs), "--engine", engine]
            command += ["--out", str(out / "cold"), "--overwrite"]
            costs = [cost(command) for _ in range(RUNS)]
            cpu, wall = (statistics.median(each) for each in zip(*costs, strict=True))
            bar = _COLD_BARS.get((engine, size))
            if size == "all" and records > 1.05 * _BAR_RECORDS:
                bar = None
            verdict = "" if bar is None else "PASS" if cpu <= bar else "above"
            found = {"name": name, "records": records, "cpu_s": cpu, "wall_s": wall}
            yield found | {"bar_cpu_s": bar, "verdict": verdict}


def _first_results(logs: Path, records: int, out: Path) -> list[dict[str, Any]]:
    with logs_of(_COLD_RECORDS, None) as (small, contents):
        found = list(_cold(small, "1 MB", contents["records"], out))
    return found + list(_cold(logs, "all", records, out))


def _floors(files: Sequence[Path], records: int) -> tuple[Figure, Figure]:
    return (
        measure("numpy histogram", records, lambda: floor.latency_histograms(files)),
        measure("numpy audit", records, lambda: floor.audit(files)),
    )


def _from_archive(bench: Bench, base: Figure) -> Iterator[Figure]:
    if "ingest" not in NAMES:
        print("bench: no job ingest here, so nothing from Parquet is measured", file=sys.stderr)
        return
    ingest = bench.ingest()
    ingest.bar_rate, ingest.bar_bytes = 4e6, 12.0
    yield ingest
    yield _compare(bench.parquet(), base, 0.15)
    yield _compare(bench.sql(), base)
    for name, work in (("duckdb", bench.duckdb), ("polars", bench.polars)):
        if find_spec(name) is None:
            print(f"bench: {name} is not installed (the extra bench has it)", file=sys.stderr)
        else:
            yield work()


def run(records: int, directory: Path | None = None, master: str | None = None) -> dict[str, Any]:
    """Measures everything and returns the report that ``--json`` prints.

    Raises CannotMeasureError and JavaNotFoundError.
    """
    from spark_jobs.output import versions
    from spark_jobs.spark.session import create_session

    load = os.getloadavg()[0]
    with logs_of(records, directory) as (logs, contents), tempfile.TemporaryDirectory() as out:
        files = sorted(logs.glob("*.pynlog"))
        total, received = contents["records"], contents["received"]
        first_results = _first_results(logs, total, Path(out))
        session = create_session("pynotify bench", master)
        bench = Bench(session, logs, Path(out), total, received)
        if floor.latency_histograms(files) != received or any(floor.audit(files)):
            raise CannotMeasureError(f"{logs} does not hold what bench.json says")
        _warm_up(session, records, Path(out) / "small")
        before, before_audit = _floors(files, total)
        figures = [
            _compare(bench.latency(), before, 0.25, 0.18),
            _compare(bench.audit(), before_audit, 0.15),
            _compare(bench.latency(local=True), before),
            _compare(bench.audit(local=True), before_audit),
            *_from_archive(bench, before),
        ]
        after, _ = _floors(files, total)
    drift = max(before.cpu_s, after.cpu_s) / min(before.cpu_s, after.cpu_s) - 1
    after.name += ", afterwards"
    return {
        "job": "bench",
        "status": "measured" if drift <= TOLERANCE else "rejected",
        "versions": versions(),
        "cpus": os.cpu_count(),
        "load_before": load,
        "load_after": os.getloadavg()[0],
        "records": total,
        "floor_drift": drift,
        "first_results": first_results,
        "figures": [
            asdict(each) | {"verdict": each.verdict()}
            for each in (before, before_audit, *figures, after)
        ],
    }


def _number(value: float | None, form: str = ".3f") -> str:
    return "" if value is None else format(value, form)


def _print_report(report: dict[str, Any]) -> None:
    print(f"{report['records']} records, {report['cpus']} CPUs, load {report['load_before']:.2f}")
    print("| figure | M records/CPU-s | M records/s | ratio per CPU-s | of wall x cores | |")
    print("|---|---:|---:|---:|---:|---|")
    for row in report["figures"]:
        ratios = []
        for ratio, bar in (("ratio_cpu", "bar_cpu"), ("ratio_wall", "bar_wall")):
            text = _number(row[ratio])
            ratios.append(text + (f" (>= {row[bar]:g})" if row[bar] is not None else ""))
        note = [row["verdict"]] if row["verdict"] else []
        if row["bar_rate"] is not None:
            note.append(f">= {row['bar_rate'] / 1e6:g} M/CPU-s")
        if row["bytes_per_record"] is not None:
            note.append(f"{row['bytes_per_record']:.2f} bytes a record (<= {row['bar_bytes']:g})")
        speed = [f"{row['records'] / row[name] / 1e6:.2f}" for name in ("cpu_s", "wall_s")]
        print("|", " | ".join([row["name"], *speed, *ratios, ", ".join(note)]), "|")
    print("\n| a first result, by a command of its own | CPU-s | s | |\n|---|---:|---:|---|")
    for row in report["first_results"]:
        bar = (
            "" if row["bar_cpu_s"] is None else f"{row['verdict']} (<= {row['bar_cpu_s']:g} CPU-s)"
        )
        print(f"| {row['name']} | {row['cpu_s']:.2f} | {row['wall_s']:.2f} | {bar} |")
    print("\n| most memory of one process, MiB | driver | JVM | worker |\n|---|---:|---:|---:|")
    for row in report["figures"]:
        print("|", " | ".join([row["name"], *map(str, row["peak_mib"].values())]), "|")
    text = f"{report['status']}: the floor moved by {report['floor_drift']:.1%}"
    print(text + (f", more than {TOLERANCE:.0%}" if report["status"] == "rejected" else ""))


def main(arguments: Sequence[str]) -> int:
    """Runs the command line; 0, or 1 when it could not measure or the figures are rejected."""
    from spark_jobs.spark.java import JavaNotFoundError

    parser = Parser(prog="python -m bench.spark", description=TITLE)
    parser.add_argument("--records", type=int, default=DEFAULT_RECORDS, metavar="N")
    parser.add_argument("--dir", type=Path, help="where the logs go and stay; else they go again")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--master", help="Spark master; by default as Spark is configured")
    options = parser.parse_args(arguments)
    try:
        with nothing_left_when_interrupted():
            report = run(options.records, options.dir, options.master)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 1
    except (CannotMeasureError, JavaNotFoundError, OSError, subprocess.SubprocessError) as error:
        print(f"bench.spark: {error}", file=sys.stderr)
        if options.json:
            print(json.dumps({"job": "bench", "status": "error", "error": str(error)}))
        return 1
    if options.json:
        print(json.dumps(report))
    else:
        _print_report(report)
    return 0 if report["status"] == "measured" else 1


TITLE = "how fast the jobs are, against numpy on one core, and against DuckDB and polars"
