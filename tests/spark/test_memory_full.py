"""Memory of the driver, the JVM and the workers at ten and at forty million records."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from bench.spark import jobs as bench
from bench.spark.processes import Peaks, forget_peaks, peaks
from receiving import wait_until

pytestmark = [
    pytest.mark.spark,
    pytest.mark.full,
    pytest.mark.xdist_group("spark"),
    pytest.mark.filterwarnings("default"),  # Spark's own code, which we cannot mend
    pytest.mark.timeout(900),
]

SMALL, LARGE = 10_000_000, 40_000_000
"""Already the small logs are longer than what a worker buffers of each (a million records)."""
GROWTH_MIB = 80
"""What the C library's heap may grow by; a byte for each record that a worker reads beyond the
small logs is 15, and all of them are 900.
"""
HEAP_MIB = 24


def _live_heap_mib(spark: Any) -> int:
    """What the JVM cannot let go."""
    runtime = spark._jvm.java.lang.Runtime.getRuntime()
    spark._jvm.java.lang.System.gc()
    return int(runtime.totalMemory() - runtime.freeMemory()) >> 20


def _measured(spark: Any, place: Path, job: str, records: int) -> Peaks:
    logs_there, out = bench.logs_of(records, place / str(records)), TemporaryDirectory(dir=place)
    with logs_there as (logs, contents), out as results:
        assert contents["records"] >= records
        work = bench.Bench(spark, logs, Path(results), records, contents["received"]).job(job)
        forget_peaks()
        work()
        return peaks()


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    try:
        bench.find_writer()
    except bench.CannotMeasureError as error:
        pytest.skip(str(error))
    return tmp_path_factory.mktemp("memory")


@pytest.mark.parametrize("job", ["latency", "audit", "timeline", "ingest"])
def test_four_times_the_records_take_the_same_memory(spark: Any, place: Path, job: str) -> None:
    _measured(spark, place, job, SMALL)  # modules, tables, compiled code
    small = _measured(spark, place, job, SMALL)
    heap = _live_heap_mib(spark)
    large = _measured(spark, place, job, LARGE)
    assert large.worker < small.worker + GROWTH_MIB, (small, large)
    assert large.driver < small.driver + GROWTH_MIB, (small, large)
    # Spark's own cleaner lets go of some of it only when a collection has told it to.
    wait_until(lambda: _live_heap_mib(spark) < heap + HEAP_MIB, "the JVM lets go of it")
