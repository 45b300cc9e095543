"""Whether Spark was configured to run somewhere, without starting it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

_STARTED = "PYSPARK_GATEWAY_PORT"
"""``spark-submit`` sets it: it has started the JVM already, and configured it."""


JAVA_OPTIONS = "spark.driver.extraJavaOptions"


def was_submitted() -> bool:
    """Whether ``spark-submit`` started this process."""
    return _STARTED in os.environ


def _files() -> Iterator[Path]:
    if "SPARK_CONF_DIR" in os.environ:
        yield Path(os.environ["SPARK_CONF_DIR"])
    elif "SPARK_HOME" in os.environ:
        yield Path(os.environ["SPARK_HOME"]) / "conf"


def _defaults_with(key: str) -> Path | None:
    """The file of defaults that sets it."""
    for directory in _files():
        place = directory / "spark-defaults.conf"
        try:
            lines = place.read_text(errors="replace").splitlines()
        except OSError:
            continue
        if any(line.replace("=", " ").split()[:1] == [key] for line in lines):
            return place
    return None


def configured_master() -> str:
    """What names a master, or "" if nothing does."""
    if was_submitted():
        return "spark-submit has started Spark"
    if "SPARK_REMOTE" in os.environ:
        return "SPARK_REMOTE names a server of Spark's"
    if "--master" in os.environ.get("PYSPARK_SUBMIT_ARGS", ""):
        return "PYSPARK_SUBMIT_ARGS names a master"
    place = _defaults_with("spark.master")
    return "" if place is None else f"{place} names a master"


def is_configured(key: str) -> bool:
    """Whether the user has set it for programs that start Spark themselves."""
    return key in os.environ.get("PYSPARK_SUBMIT_ARGS", "") or _defaults_with(key) is not None


def java_is_configured() -> bool:
    """Whether the user has said how the driver's Java is to run."""
    return (
        any(name in os.environ for name in ("JDK_JAVA_OPTIONS", "SPARK_SUBMIT_OPTS"))
        or "--driver-java-options" in os.environ.get("PYSPARK_SUBMIT_ARGS", "")
        or is_configured(JAVA_OPTIONS)
    )
