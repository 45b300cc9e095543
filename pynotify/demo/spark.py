"""The Spark job over the latency logs, in a session of its own.

A session compiles what it runs, and then compiles it once more, better: for jobs of a few seconds
on two cores that takes longer than it saves, so it is told to do it once.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pynotify.demo import interrupts
from pynotify.demo.progress import Progress
from pynotify.demo.stage import DemoError

_JAVA_OPTIONS = "-XX:TieredStopAtLevel=1"
_CONFIGURATION = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
_LAST_LINES = 20


def require_spark() -> None:
    """Raise DemoError when there is no PySpark or Java, before the run and not after it."""
    if find_spec("pyspark") is None:
        raise DemoError('the audit needs PySpark: pip install "pynotify-ipc[spark]"')
    from spark_jobs.spark.java import JavaNotFoundError, ensure_java  # noqa: PLC0415

    try:
        ensure_java()
    except JavaNotFoundError as error:
        raise DemoError(str(error)) from error


def report(logs: Path, out: Path, progress: Progress) -> dict[str, Any]:
    """Run the job and leave no process behind.  Raises DemoError with Spark's last words."""
    chatter = out / "spark.log"
    megabytes = sum(path.stat().st_size for path in logs.iterdir()) >> 20
    try:
        with _stderr_to(chatter), progress.stage("starting Spark"):
            _start_spark()
        # A second to import, and the processes of the run must not inherit it.
        from pynotify.demo import spark_report  # noqa: PLC0415

        text = f"Spark reads and audits {megabytes} MiB of latency logs"
        with _stderr_to(chatter), progress.stage(text):
            return spark_report.run([logs], out)
    except Exception as error:
        last = "\n".join(chatter.read_text(errors="replace").splitlines()[-_LAST_LINES:])
        raise DemoError(f"Spark failed: {type(error).__name__}: {error}\n{last}") from error
    finally:
        _end_spark()


def _start_spark() -> None:
    from spark_jobs.spark.session import create_session  # noqa: PLC0415

    os.environ.setdefault("JDK_JAVA_OPTIONS", _JAVA_OPTIONS)
    # Interrupted while it starts Java, PySpark loses it, and Java never ends.
    with interrupts.held_back():
        session = create_session("pynotify demo")
    for key, value in _CONFIGURATION.items():
        session.conf.set(key, value)


@contextmanager
def _stderr_to(path: Path) -> Iterator[None]:
    """Java's standard error is ours; its greetings would tear the progress line apart."""
    sys.stderr.flush()
    kept = os.dup(2)
    try:
        with path.open("ab") as file:
            os.dup2(file.fileno(), 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def _end_spark() -> None:
    """stop() leaves the Java process running until Python exits, and a little longer."""
    from pyspark import SparkContext  # noqa: PLC0415
    from pyspark.sql import SparkSession  # noqa: PLC0415

    session = SparkSession.getActiveSession()
    if session is not None:
        session.stop()
    gateway = SparkContext._gateway
    if gateway is None:
        return
    gateway.shutdown()
    SparkContext._gateway = SparkContext._jvm = None
    java: subprocess.Popen[bytes] = gateway.proc
    if java.stdin is not None:
        java.stdin.close()  # it ends at the end of its input
    try:
        java.wait(timeout=60)
    except subprocess.TimeoutExpired:
        java.kill()
        java.wait()
