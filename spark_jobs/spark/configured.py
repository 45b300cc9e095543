"""Whether Spark was configured to run somewhere, without starting it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

_STARTED = "PYSPARK_GATEWAY_PORT"
"""``spark-submit`` sets it: it has started the JVM already, and configured it."""


def was_submitted() -> bool:
    """Whether ``spark-submit`` started this process."""
    return _STARTED in os.environ


def _files() -> Iterator[Path]:
    if "SPARK_CONF_DIR" in os.environ:
        yield Path(os.environ["SPARK_CONF_DIR"])
    elif "SPARK_HOME" in os.environ:
        yield Path(os.environ["SPARK_HOME"]) / "conf"


def configured_master() -> str:
    """What names a master, or "" if nothing does."""
    if was_submitted():
        return "spark-submit has started Spark"
    if "SPARK_REMOTE" in os.environ:
        return "SPARK_REMOTE names a server of Spark's"
    if "--master" in os.environ.get("PYSPARK_SUBMIT_ARGS", ""):
        return "PYSPARK_SUBMIT_ARGS names a master"
    for directory in _files():
        place = directory / "spark-defaults.conf"
        try:
            lines = place.read_text(errors="replace").splitlines()
        except OSError:
            continue
        if any(line.replace("=", " ").split()[:1] == ["spark.master"] for line in lines):
            return f"{place} names a master"
    return ""
