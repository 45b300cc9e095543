"""The Spark session of a job: never names a master unless told to."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession

from spark_jobs.spark.configured import JAVA_OPTIONS, java_is_configured, was_submitted
from spark_jobs.spark.java import ensure_java
from spark_jobs.spark.jvm_start import nothing_left_when_interrupted


def _defaults() -> dict[str, str]:
    """What is set unless the user's configuration of Spark sets it."""
    return {
        "spark.ui.enabled": "false",
        # A bar on stderr; only jobs that take longer than half a second show one.
        "spark.ui.showConsoleProgress": str(sys.stderr.isatty()).lower(),
        "spark.log.level": "ERROR",
        "spark.sql.session.timeZone": "UTC",
        # Snappy's library does not load where Debian's package musl is installed.
        "spark.sql.parquet.compression.codec": "zstd",
        # `live` keeps small states: the default of 200 partitions would be mostly empty tasks.
        "spark.sql.shuffle.partitions": str(max(2, os.cpu_count() or 2)),
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


@contextlib.contextmanager
def _told_on_a_terminal(what: str) -> Iterator[None]:
    """On stderr, for as long as it takes."""
    is_seen = sys.stderr is not None and sys.stderr.isatty()
    if is_seen:
        print(f"{what} ...", end="", file=sys.stderr, flush=True)
    try:
        yield
    finally:
        if is_seen:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


_BRIEF: Final = "-XX:TieredStopAtLevel=1"
"""Compiling well takes Java longer than a job over few logs, whose work is in Python."""


def create_session(
    application: str, master: str | None = None, *, brief: bool = False
) -> SparkSession:
    """The running session, or a new one; `brief`: it will not be for long.

    Without `master` Spark's own configuration decides, and where that says nothing it is
    ``local[*]``. Raises JavaNotFoundError.
    """
    running = SparkSession.getActiveSession()
    if running is not None:
        return running
    if not was_submitted():
        _prepare_local(master)
    with nothing_left_when_interrupted(), _told_on_a_terminal("starting Java"):
        asked = SparkConf().setAppName(application)
        if master is not None:
            asked.setMaster(master)
        if brief and not (was_submitted() or java_is_configured()):
            asked.set(JAVA_OPTIONS, _BRIEF)
        # Java reads the user's configuration, and prepares itself for that master.
        SparkContext._ensure_initialized(conf=asked)
        given = SparkConf()
        builder = SparkSession.builder.appName(application)
        for key, value in _defaults().items():
            if not given.contains(key):
                builder = builder.config(key, value)
        if master is not None:
            builder = builder.master(master)
        return builder.getOrCreate()
