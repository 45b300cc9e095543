"""Executors on two hosts, as far as one kernel can play them: each has its name, its address and
its own disk, in namespaces of its own. One of them stops answering, or is lost.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from logwriter import LogWriter, receives, sends
from test_cluster import ENVIRONMENT, ROOT, Daemon, spark_home
from test_engines import files_of, tables_of

from receiving import wait_until
from spark_jobs.engine.local import LocalEngine
from spark_jobs.jobs import runner
from spark_jobs.logs.schema import Kind
from spark_jobs.spark.jvm_start import children, end_tree
from spark_jobs.survey import survey

pytestmark = [
    pytest.mark.spark,
    pytest.mark.full,
    pytest.mark.xdist_group("spark"),
    pytest.mark.timeout(600),
]

ADDRESSES = ("127.0.0.1", "127.0.0.2")
SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.minTaskRuntime": "100ms",
}


class Hosts:
    """A master, and a worker with one core on each host."""

    def __init__(self, place: Path, logs: Path) -> None:
        self.logs = logs
        self.fifos = place / "fifos"
        disk = place / "disk"
        for directory in (self.fifos, disk):
            directory.mkdir()
        for path in logs.iterdir():
            os.mkfifo(self.fifos / path.name)
        self._daemons: list[Daemon] = []
        common = ("--port", "0", "--webui-port", "0")
        with self._ended_if_not_started():
            master = ("org.apache.spark.deploy.master.Master", "--host", ADDRESSES[0])
            self._daemons.append(Daemon(r"spark://127\.0\.0\.1:\d+", *master, *common))
            self.url = self._daemons[0].said
            for number, address in enumerate(ADDRESSES):
                self._daemons.append(
                    Daemon(
                        "Successfully registered with master",
                        *("org.apache.spark.deploy.worker.Worker", "--host", address, *common),
                        *("--cores", "1", "--memory", "1g", "--work-dir", disk / "work", self.url),
                        before=self._on_host(number, disk),
                        environment={"SPARK_LOCAL_IP": address, "SPARK_LOCAL_DIRS": str(disk)},
                    )
                )

    @contextlib.contextmanager
    def _ended_if_not_started(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self.end()
            raise

    def _on_host(self, number: int, disk: Path) -> tuple[str, ...]:
        """The command that enters it. On the second one, reading a log takes for ever."""
        steps = [f"hostname spark{number}", f"mount -t tmpfs disk {disk}"]
        if number == 1:
            steps.append(f"mount --bind {self.fifos} {self.logs}")
        script = " && ".join([*steps, 'exec "$@"'])
        return ("unshare", "--mount", "--uts", "--", "sh", "-c", script, "sh")

    def wait_for_a_reader(self, running: Running) -> list[int]:
        """Until a task on the second host reads a log, which it does from now on; the fds that
        keep it at that.
        """
        held: list[int] = []

        def there() -> bool:
            for path in self.fifos.iterdir():
                with contextlib.suppress(OSError):  # ENXIO: no reader
                    held.append(os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC))
            assert held or not running.ended(), running.report(0)
            return bool(held)

        wait_until(there, "a task of the second host reads", 300)
        return held

    def lose_the_second(self) -> None:
        """As if it had lost its power: the worker first, which would start another executor."""
        todo = [self._daemons[2].process.pid]
        while todo:
            pid = todo.pop(0)
            os.kill(pid, signal.SIGSTOP)
            todo += children(pid)
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def end(self) -> None:
        for daemon in reversed(self._daemons):
            daemon.end()


class Running:
    """A command that prints a report."""

    def __init__(self, command: Sequence[object], place: Path) -> None:
        self._said = [place / name for name in ("stdout", "stderr")]
        with self._said[0].open("w") as out, self._said[1].open("w") as err:
            self._process = subprocess.Popen(
                [str(word) for word in command],
                env=ENVIRONMENT | {"PYTHONPATH": str(ROOT)},
                stdout=out,
                stderr=err,
            )

    def __enter__(self) -> Running:
        return self

    def __exit__(self, *error: object) -> None:
        if self._process.poll() is None:
            end_tree(self._process.pid)
        self._process.wait()

    def ended(self) -> bool:
        return self._process.poll() is not None

    def report(self, status: int) -> Any:
        assert self._process.wait() == status, self._said[1].read_text()
        return json.loads(self._said[0].read_text())


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Each of a few files, so that an audit's pieces are on both hosts; and some loss."""
    directory = tmp_path_factory.mktemp("logs")
    random = np.random.default_rng(1)
    sender = LogWriter(directory, 9, clock=10**18)
    for channel in ("a", "b"):
        sends(sender, channel, np.arange(20_000))
    sender.write(files=2)
    for pid in (1, 2, 3):
        log = LogWriter(directory, pid, clock=10**18)
        for channel in ("a", "b"):
            log.add(Kind.LISTEN, channel=channel, chan_seq=0)
            seq = np.delete(np.arange(20_000), [pid, 9000])
            late = (random.pareto(1.5, len(seq)) * 1000).astype(np.int64)
            receives(log, channel, seq, ref_ts=10**12, ts=10**12 + late)
        log.write(files=2)
    return directory


@pytest.fixture
def hosts(logs: Path, tmp_path: Path) -> Iterator[Hosts]:
    if shutil.which("unshare") is None:
        pytest.skip("unshare")
    allowed = subprocess.run(
        ["unshare", "--mount", "--uts", "--", "sh", "-c", "hostname x && mount -t tmpfs x /mnt"],
        check=False,
        capture_output=True,
    )
    if allowed.returncode:
        pytest.skip("namespaces of mounts and names")
    found = Hosts(tmp_path, logs)
    yield found
    found.end()


def events_of(place: Path) -> str:
    return "".join(path.read_text() for path in place.rglob("*") if path.is_file())


def ran_on(events: str) -> set[str]:
    """Addresses of the hosts on which tasks ended well."""
    return set(
        re.findall(
            r'"Event":"SparkListenerTaskEnd".*?"Reason":"Success".*?"Host":"([\d.]+)"', events
        )
    )


@pytest.mark.parametrize(
    ("job", "fault"),
    [("audit", "lost"), ("latency", "lost"), ("ingest", "hangs"), ("audit", "hangs")],
)
def test_a_host_that_is_lost_or_hangs(job: str, fault: str, hosts: Hosts, tmp_path: Path) -> None:
    """Its task is done by the other one: once more when it is lost, and beside it by speculation.
    The tables are those of this process alone.
    """
    local, out, events = (tmp_path / name for name in ("local", "out", "events"))
    for directory in (local, events):
        directory.mkdir()
    expected = runner(job)(LocalEngine(1), survey([hosts.logs]), local)
    settings = {
        "spark.eventLog.enabled": "true",
        "spark.eventLog.compress": "false",
        "spark.eventLog.dir": events.as_uri(),
        "spark.scheduler.minRegisteredResourcesRatio": "1.0",
        "spark.scheduler.maxRegisteredResourcesWaitingTime": "300s",
        **(SPECULATION if fault == "hangs" else {}),
    }
    command = [
        spark_home() / "bin" / "spark-submit",
        *("--master", hosts.url),
        *(word for name, value in settings.items() for word in ("--conf", f"{name}={value}")),
        ROOT / "spark_jobs" / "__main__.py",
        *(job, hosts.logs, "--out", out, "--json"),
    ]
    with Running(command, tmp_path) as running:
        held = hosts.wait_for_a_reader(running)
        if fault == "lost":
            hosts.lose_the_second()
        report = running.report(2 if job == "audit" else 0)
    for fd in held:
        os.close(fd)
    assert report["rows"] == expected.rows
    (out / f"{job}.json").unlink()
    assert tables_of(out).keys() == tables_of(local).keys()
    if job == "ingest":
        assert len(survey([out]).logs) == 4
        for place in (out, local):
            shutil.rmtree(place / "segments")  # in an order of its own
    else:
        assert tables_of(out) == tables_of(local)
        assert files_of(out) == files_of(local)
    said = events_of(events)
    assert ran_on(said) >= {ADDRESSES[0]}
    if fault == "lost":
        assert '"ExecutorLostFailure"' in said
    else:
        assert re.search(r'"Event":"SparkListenerTaskEnd".*"Speculative":true', said)
