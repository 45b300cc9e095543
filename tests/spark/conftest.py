"""Fixtures of the jobs' tests: what reads logs here, one session of Spark, and a compiler."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from receiving import TIME_FACTOR
from spark_jobs.engine.local import LocalEngine

sys.path.insert(0, str(Path(__file__).parent))

NATIVE = Path(__file__).parents[2] / "native"


def _end_java() -> None:
    """Stopping a session leaves its JVM, a child of this process, until Python exits."""
    from pyspark import SparkContext

    gateway: Any = SparkContext._gateway
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait(timeout=60 * TIME_FACTOR)
    SparkContext._gateway = SparkContext._jvm = None


def _report_children(fd: int) -> None:
    """What this process's children do, and what they wait for."""
    from spark_jobs.spark.jvm_start import children

    for pid in children(os.getpid()):
        for file in ("cmdline", "status", "wchan", "stack"):
            with contextlib.suppress(OSError):
                text = Path(f"/proc/{pid}/{file}").read_bytes().replace(b"\0", b" ")
                os.write(
                    fd, b"Spark does not start: child %d, %s: %s\n" % (pid, file.encode(), text)
                )


@contextlib.contextmanager
def _reported_when_slow(fd: int) -> Iterator[None]:
    """A start that hangs is ended by the test's limit, which shows only this process's stacks."""
    timer = threading.Timer(120 * TIME_FACTOR, _report_children, (fd,))
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


@pytest.fixture(scope="session")
def spark(terminal_fd: int) -> Iterator[Any]:
    pytest.importorskip("pyspark")
    from spark_jobs.spark.java import JavaNotFoundError
    from spark_jobs.spark.session import create_session

    # Compiling well takes longer than these jobs do.
    with pytest.MonkeyPatch.context() as patch, _reported_when_slow(terminal_fd):
        patch.setenv("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1")
        try:
            session = create_session("tests", "local[2]")
        except JavaNotFoundError as error:
            pytest.skip(str(error))
    session.conf.set("spark.sql.codegen.wholeStage", "false")
    session.conf.set("spark.sql.codegen.factoryMode", "NO_CODEGEN")
    yield session
    session.stop()
    _end_java()


@pytest.fixture(scope="session")
def local() -> LocalEngine:
    return LocalEngine()


@pytest.fixture(scope="session")
def log_writer(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The compiler, and the log writer as it has compiled it."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("a C compiler")
    directory = tmp_path_factory.mktemp("log-writer")
    names = ("files/latency_log", "files/latency_names", "files/latency_room")
    sources = [f"{NATIVE}/src/{name}.c" for name in (*names, "base/crc32c", "base/os")]
    subprocess.run(
        [compiler, "-std=c11", f"-I{NATIVE}/src", "-c", *sources],
        cwd=directory,
        check=True,
    )
    return [compiler, *map(str, directory.glob("*.o"))]


@pytest.fixture
def run_native(tmp_path: Path, log_writer: list[str]) -> Callable[..., str]:
    """Compiles a C program, links it with the log writer, runs it and returns what it prints."""
    source, binary = tmp_path / "program.c", tmp_path / "program"

    def run(program: str, *arguments: str) -> str:
        compiler, *objects = log_writer
        source.write_text(program)
        subprocess.run(
            [compiler, "-std=c11", f"-I{NATIVE}/src", "-o", binary, source, *objects, "-lpthread"],
            check=True,
        )
        done = subprocess.run([binary, *arguments], check=True, capture_output=True, text=True)
        return done.stdout

    return run
