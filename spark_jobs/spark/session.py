"""The Spark session of a job: never names a master unless told to."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from pyspark.sql import SparkSession

from spark_jobs.spark.java import ensure_java
from spark_jobs.spark.jvm_start import nothing_left_when_interrupted

_QUIET = {
    "spark.ui.enabled": "false",
    "spark.log.level": "ERROR",
    "spark.sql.session.timeZone": "UTC",
    # Snappy's library does not load where Debian's package musl is installed.
    "spark.sql.parquet.compression.codec": "zstd",
}


def _prepare_local(master: str | None) -> None:
    """What the JVM and the Python workers inherit; it must be set before the JVM starts."""
    ensure_java()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if master is None or master.startswith("local"):
        # The workers would otherwise take the first python3 on PATH, and this package may have
        # been found through the current directory, which they do not search.
        os.environ["PYSPARK_PYTHON"] = sys.executable
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        package = str(Path(__file__).resolve().parents[2])
        searched = os.environ.get("PYTHONPATH", "").split(os.pathsep)
        if package not in searched:
            os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [package, *searched]))


def create_session(application: str, master: str | None = None) -> SparkSession:
    """The running session, or a new one.

    Without `master` Spark's own configuration decides, and where that says nothing it is
    ``local[*]``. Raises JavaNotFoundError.
    """
    running = SparkSession.getActiveSession()
    if running is not None:
        return running
    builder = SparkSession.builder.appName(application)
    # spark-submit has started the JVM already, and configured it.
    if "PYSPARK_GATEWAY_PORT" not in os.environ:
        _prepare_local(master)
    # A bar on stderr; only jobs that take longer than half a second show one.
    progress = str(sys.stderr.isatty()).lower()
    for key, value in {**_QUIET, "spark.ui.showConsoleProgress": progress}.items():
        builder = builder.config(key, value)
    # Partial results are small: the default of 200 partitions would be mostly empty tasks.
    builder = builder.config("spark.sql.shuffle.partitions", str(max(2, os.cpu_count() or 2)))
    if master is not None:
        builder = builder.master(master)
    with nothing_left_when_interrupted():
        return builder.getOrCreate()
