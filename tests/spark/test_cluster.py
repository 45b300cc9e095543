"""The same command on other masters: a standalone cluster on this host, and local-cluster."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
from logwriter import LogWriter, receives

from spark_jobs.spark import jvm_start

pytestmark = [
    pytest.mark.spark,
    pytest.mark.full,
    pytest.mark.xdist_group("spark"),
    pytest.mark.timeout(600),
]

ROOT = Path(__file__).parents[2]
ENVIRONMENT = os.environ | {
    "PYSPARK_PYTHON": sys.executable,
    "SPARK_LOCAL_IP": "127.0.0.1",
    "JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1",
}


def spark_home() -> Path:
    pyspark = pytest.importorskip("pyspark")
    return Path(pyspark.__file__).parent


class Daemon:
    """A process of Spark's that says something when it is ready.

    `before`: a command that runs it.
    """

    def __init__(
        self,
        ready: str,
        *arguments: object,
        before: Sequence[str] = (),
        environment: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        from spark_jobs.spark.java import JavaNotFoundError, ensure_java

        try:
            java = str(ensure_java())
        except JavaNotFoundError as error:
            pytest.skip(str(error))
        self.process = subprocess.Popen(
            [*before, spark_home() / "bin" / "spark-class", *map(str, arguments)],
            env=ENVIRONMENT | {"JAVA_HOME": java, **environment},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.said = ""
        assert self.process.stderr is not None
        for line in self.process.stderr:
            match = re.search(ready, line)
            if match:
                self.said = match[0]
                break
        assert self.said, f"{arguments[0]} ended with {self.process.wait()}"
        # A full pipe would stop it.
        self._drain = threading.Thread(target=self.process.stderr.read)
        self._drain.start()

    def end(self) -> None:
        jvm_start.end_tree(self.process.pid)
        self.process.wait()
        self._drain.join()
        assert self.process.stderr is not None
        self.process.stderr.close()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """URL of a master with two workers of one core each."""
    work = str(tmp_path_factory.mktemp("work"))
    place = ("--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
    daemons = []
    try:
        daemons.append(
            Daemon(r"spark://127\.0\.0\.1:\d+", "org.apache.spark.deploy.master.Master", *place)
        )
        url = daemons[0].said
        size = ("--cores", "1", "--memory", "1g", "--work-dir", work)
        for _ in range(2):
            daemons.append(
                Daemon(
                    "Successfully registered with master",
                    "org.apache.spark.deploy.worker.Worker",
                    *place,
                    *size,
                    url,
                )
            )
        yield url
    finally:
        for daemon in reversed(daemons):
            daemon.end()


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("logs")
    random = np.random.default_rng(1)
    for pid in (1, 2, 3, 4):
        log = LogWriter(directory, pid)
        for channel in ("a", "b"):
            values = (random.pareto(1.5, 20_000) * 1000).astype(np.int64)
            receives(log, channel, np.arange(20_000), ref_ts=10**12, ts=10**12 + values)
        log.write(files=2)
    return directory


def report_of(*command: object, **environment: str) -> dict[str, Any]:
    done = subprocess.run(
        [str(word) for word in command],
        env=ENVIRONMENT | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    return report


@pytest.fixture(scope="module")
def locally(logs: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    out = tmp_path_factory.mktemp("out")
    command = [sys.executable, "-m", "spark_jobs", "latency", logs, "--out", out, "--json"]
    return report_of(*command, "--master", "local[2]", PYTHONPATH=str(ROOT))


@pytest.fixture(scope="module")
def package() -> Path:
    """What ``make spark-zip`` makes."""
    subprocess.run(["make", "spark-zip"], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    return ROOT / "dist" / "spark_jobs.zip"


def test_a_standalone_cluster(
    cluster: str, logs: Path, locally: dict[str, Any], package: Path, tmp_path: Path
) -> None:
    """Submitted with --py-files only; both executors take part; in and out are URIs."""
    events = tmp_path / "events"
    events.mkdir()
    names = {"enabled": "true", "compress": "false", "dir": events.as_uri()}
    settings = [f"spark.eventLog.{name}={value}" for name, value in names.items()]
    report = report_of(
        spark_home() / "bin" / "spark-submit",
        *("--master", cluster),
        *(word for setting in settings for word in ("--conf", setting)),
        *("--py-files", package, ROOT / "spark_jobs" / "__main__.py"),
        *("latency", logs.as_uri(), "--out", (tmp_path / "out").as_uri(), "--json"),
    )
    assert report["rows"] == locally["rows"]
    assert report["records"] == locally["records"]
    assert list((tmp_path / "out" / "latency_hist").glob("*.parquet"))
    texts = [path.read_text() for path in events.rglob("*") if path.is_file()]
    finished = re.findall(r'"Event":"SparkListenerTaskEnd".*?"Executor ID":"(\d+)"', "".join(texts))
    assert set(finished) == {"0", "1"}


def test_local_cluster(logs: Path, locally: dict[str, Any], tmp_path: Path) -> None:
    """Executors that are processes of their own, by the plain command."""
    command = [sys.executable, "-m", "spark_jobs", "latency", logs, "--out", tmp_path / "out"]
    master = ("--master", "local-cluster[2,1,1024]")
    report = report_of(*command, "--json", *master, PYTHONPATH=str(ROOT))
    assert report["rows"] == locally["rows"]


def test_other_file_systems_of_hadoop(logs: Path, locally: dict[str, Any], tmp_path: Path) -> None:
    """viewfs, which Spark's own jars have: a mount table that leads to local directories."""
    out = tmp_path / "out"
    out.mkdir()
    links = {"logs": logs, "out": out}
    settings = [
        f"spark.hadoop.fs.viewfs.mounttable.here.link./{name}={path.as_uri()}"
        for name, path in links.items()
    ]
    report = report_of(
        spark_home() / "bin" / "spark-submit",
        *("--master", "local[2]"),
        *(word for setting in settings for word in ("--conf", setting)),
        ROOT / "spark_jobs" / "__main__.py",
        *("latency", "viewfs://here/logs", "--out", "viewfs://here/out/one", "--json"),
        PYTHONPATH=str(ROOT),
    )
    assert report["rows"] == locally["rows"]
    written = out / "one"
    assert json.loads((written / "latency.json").read_text()) == report
    for name in ("latency_hist", "latency_summary"):
        assert list((written / name).glob("*.parquet"))
    assert (written / "hgrm" / "all.hgrm").read_text()
