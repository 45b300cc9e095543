"""The Spark session of a job: never names a master unless told to."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Final

from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession

from spark_jobs.engine.progress import is_wanted, waiting
from spark_jobs.spark.configured import (
    JAVA_OPTIONS,
    is_configured,
    java_is_configured,
    was_submitted,
)
from spark_jobs.spark.java import ensure_java
from spark_jobs.spark.jvm_start import nothing_left_when_interrupted


def _defaults() -> dict[str, str]:
    """What is set unless the user's configuration of Spark sets it."""
    return {
        "spark.ui.enabled": "false",
        "spark.log.level": "ERROR",
        "spark.sql.session.timeZone": "UTC",
        # Snappy's library does not load where Debian's package musl is installed.
        "spark.sql.parquet.compression.codec": "zstd",
        # `live` keeps small states: the default of 200 partitions would be mostly empty tasks.
        "spark.sql.shuffle.partitions": str(max(2, os.cpu_count() or 2)),
    }


_SPARKS_BAR: Final = "spark.ui.showConsoleProgress"
"""A bar on stderr of Spark's own, where there is none of ours (`engine.progress`).  It has to be
said before Java starts: for a program that is no application of spark-submit Spark sets it."""


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
    with nothing_left_when_interrupted(), waiting("starting Java"):
        asked = SparkConf().setAppName(application)
        if master is not None:
            asked.setMaster(master)
        if brief and not (was_submitted() or java_is_configured()):
            asked.set(JAVA_OPTIONS, _BRIEF)
        if not (was_submitted() or is_configured(_SPARKS_BAR)):
            asked.set(_SPARKS_BAR, str(sys.stderr.isatty() and not is_wanted()).lower())
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
