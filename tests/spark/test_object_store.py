"""Logs, archives and results in an object store: moto's S3, which Arrow's client talks to.

That client does not outlive a fork, so each job runs in a process of its own: a child of one that
has imported what jobs need, and has no client.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from logwriter import LogWriter, receives, sends

from programs import ROOT, environment
from spark_jobs.jobs import NAMES
from spark_jobs.logs.schema import Kind

SERVER = """
import logging
import sys
import boto3
from moto.server import ThreadedMotoServer

logging.getLogger("werkzeug").setLevel(logging.ERROR)
server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
server.start()
url = "http://{}:{}".format(*server.get_host_and_port())
boto3.client("s3", endpoint_url=url).create_bucket(Bucket="bucket")
print(url, flush=True)
sys.stdin.read()
server.stop()
"""
RUNNER = """
import importlib
import json
import os
import sys
from spark_jobs.cli import main

for job in sys.argv[1:]:
    importlib.import_module(f"spark_jobs.jobs.{job}")
for line in sys.stdin:
    arguments, place = json.loads(line)
    child = os.fork()
    if child == 0:
        for fd in (1, 2):
            os.dup2(os.open(f"{place}.{fd}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC), fd)
        sys.exit(main(arguments))
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""
COPY = """
import sys
from pyarrow import fs

there, path = fs.FileSystem.from_uri(sys.argv[2])
there.create_dir(path)
fs.copy_files(sys.argv[1], path, destination_filesystem=there)
"""
CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "key",
    "AWS_SECRET_ACCESS_KEY": "secret",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
}
JOBS = ("latency", "timeline", "audit", "wakeups", "lag", "e2e")
FIGURES = ("status", "records", "rows", "totals", "topics")

Run = Callable[..., dict[str, Any]]


@pytest.fixture(scope="module")
def store() -> Iterator[dict[str, str]]:
    """The environment of its users."""
    env = {**environment(), **CREDENTIALS}
    with subprocess.Popen(
        [sys.executable, "-c", SERVER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=env,
    ) as server:
        assert server.stdout is not None
        env["AWS_ENDPOINT_URL"] = server.stdout.readline().strip()

        yield env
        server.communicate("")


@pytest.fixture(scope="module")
def run(store: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """A job's summary."""
    place = tmp_path_factory.mktemp("said") / "job"
    with subprocess.Popen(
        [sys.executable, "-c", RUNNER, *NAMES],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env=store,
    ) as runner:
        assert runner.stdin is not None
        assert runner.stdout is not None
        asked, answers = runner.stdin, runner.stdout

        def job(*arguments: object, status: int = 0) -> dict[str, Any]:
            print(
                json.dumps([[*map(str, arguments), "--json"], str(place)]), file=asked, flush=True
            )
            assert int(answers.readline()) == status, Path(f"{place}.2").read_text()
            found: dict[str, Any] = json.loads(Path(f"{place}.1").read_text())
            return found

        yield job
        runner.communicate()


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("logs")
    seq = np.arange(3000)
    ts = 10**9 + seq * 10**6
    for host in ("h 1", "h%2"):
        head: dict[str, Any] = {"host": host, "engine": f"e.{host}", "clock": 10**18}
        sender, listener = LogWriter(place, 9, **head), LogWriter(place, 1, **head)
        sends(sender, "a", seq, ts=ts)
        listener.add(Kind.LISTEN, channel="a", chan_seq=0, ts=10**9)
        receives(listener, "a", np.delete(seq, 7), ts=np.delete(ts, 7) + 2500, ref_ts=10**9)
        for kind in (Kind.DELIVER, Kind.FIN):
            listener.add(kind, 100, channel="t:c", commit_seq=seq[:100], ts=ts[:100], attempts=1)
        for log in (sender, listener):
            log.write(files=2)
    return place


@pytest.fixture(scope="module")
def archive(run: Run, logs: Path) -> str:
    place = "s3://bucket/some where/archive"
    found = run("ingest", logs, "--out", place)
    assert (found["totals"]["archived"], found["totals"]["unchanged"]) == (8, 0)
    return place


def figures(found: dict[str, Any]) -> dict[str, Any]:
    return {name: found.get(name) for name in FIGURES}


@pytest.mark.parametrize("job", JOBS)
def test_an_archive_there_is_what_the_logs_are(
    job: str, run: Run, logs: Path, archive: str, tmp_path: Path
) -> None:
    status = 2 if job == "audit" else 0
    here = run(job, logs, "--out", tmp_path / "out", status=status)
    there = run(job, archive, "--out", tmp_path / "there", status=status)
    assert figures(here) == figures(there)
    assert here["rows"]


@pytest.mark.full
@pytest.mark.spark
@pytest.mark.timeout(300)
def test_spark_reads_and_writes_there(run: Run, logs: Path, archive: str, tmp_path: Path) -> None:
    pytest.importorskip("pyspark")
    here = run("latency", logs, "--out", tmp_path / "out")
    there = run("latency", archive, "--out", "s3://bucket/by spark", "--master", "local[2]")
    assert figures(here) == figures(there)
    place = "s3://bucket/archive by spark"
    found = run("ingest", logs, "--out", place, "--master", "local[2]")
    assert found["totals"]["archived"] == 8
    assert figures(run("latency", place, "--out", tmp_path / "again")) == figures(here)


def test_what_is_archived_twice_is_there_once(run: Run, logs: Path, archive: str) -> None:
    again = run("ingest", logs, "--out", archive)
    assert (again["totals"]["archived"], again["totals"]["unchanged"]) == (0, 8)


def test_results_go_there(run: Run, logs: Path, archive: str, tmp_path: Path) -> None:
    out = "s3://bucket/results"
    run("report", logs, "--out", out, status=2)
    refused = run("report", archive, "--out", out, status=1)
    assert "report.json exists; --overwrite replaces it" in refused["error"]
    found = run("report", archive, "--out", out, "--overwrite", status=2)
    assert {row["path"].rpartition("/")[2] for row in found["rows"]} >= {"report.html", "all.hgrm"}
    compared = run("compare", out, logs, "--out", tmp_path / "out")
    assert {row["p99_ratio"] for row in compared["rows"]} == {1.0}


def test_raw_logs_there_are_copied(
    store: dict[str, str], run: Run, logs: Path, tmp_path: Path
) -> None:
    place = "s3://bucket/raw"
    subprocess.run([sys.executable, "-c", COPY, str(logs), place], env=store, check=True)
    here = run("audit", logs, "--out", tmp_path / "here", status=2)
    there = run("audit", place, "--out", tmp_path / "there", status=2)
    assert figures(here) == figures(there)


def test_what_is_not_there_is_said(run: Run, tmp_path: Path) -> None:
    found = run("latency", "s3://bucket/nothing", "--out", tmp_path, status=1)
    assert found["error"] == "s3://bucket/nothing: no such file or directory"
    other = run("latency", "s3://another/nothing", "--out", tmp_path, status=1)
    assert "another" in other["error"]
