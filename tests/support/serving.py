"""Servers in tests: other people's programs, whose worker processes use the library.

A `Server` runs in a directory of its own, answers on a Unix socket there and logs there; its
workers note what happens to them in a journal (tests/guest/apps/journal.py), a file for each
process.  A `Notifier` is the process that notifies them.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pynotify
from receiving import PATIENCE, readable, wait_until
from sessions import RemoteSession, Worker

ROOT = Path(__file__).resolve().parents[2]
APPS = ROOT / "tests" / "guest" / "apps"


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=PATIENCE)
        self._path = str(path)

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(self._path)


class Server:
    """`python -m COMMAND` in `directory`, with all of its children in a session of their own."""

    def __init__(self, directory: Path, *command: str | Path, **environment: str) -> None:
        self.directory = directory
        self.socket, self.log = directory / "socket", directory / "log"
        self._journal = directory / "journal"
        self._journal.mkdir()
        self._journal.chmod(0o777)  # workers may change their user
        paths = [str(ROOT), str(APPS), os.environ.get("PYTHONPATH", "")]
        with (directory / "output").open("wb") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", *map(str, command)],
                cwd=directory,
                env={
                    **os.environ,
                    "PYTHONPATH": os.pathsep.join(filter(None, paths)),
                    "HOME": str(directory),
                    "JOURNAL": str(self._journal),
                    **environment,
                },
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.pid = self._process.pid
        self._pidfd = os.pidfd_open(self.pid)

    def request(self, method: str = "GET", body: bytes | None = None) -> bytes:
        connection = _UnixConnection(self.socket)
        with contextlib.closing(connection):
            connection.request(method, "/key", body)
            return connection.getresponse().read()

    def answers(self) -> bool:
        with contextlib.suppress(FileNotFoundError, ConnectionRefusedError):
            self.request()
            return True
        return False

    def journal(self, word: str) -> dict[int, list[str]]:
        """What stands behind `word` in the lines that begin with it, for each process with one."""
        found: dict[int, list[str]] = {}
        for file in self._journal.iterdir():
            for line in file.read_text().splitlines():
                first, _, rest = line.partition(" ")
                if first == word:
                    found.setdefault(int(file.name), []).append(rest)
        return found

    def await_processes(self, word: str, count: int) -> set[int]:
        """The processes that noted `word`, when there are `count` of them."""
        self.wait_until(lambda: len(self.journal(word)) == count, f"{count} processes: {word}")
        return set(self.journal(word))

    def await_all_heard(self, payload: str, pids: set[int]) -> None:
        """Until each of the processes noted that it heard it."""

        def heard() -> bool:
            journal = self.journal("heard")
            return all(payload in journal.get(pid, []) for pid in pids)

        self.wait_until(heard, f"all processes heard {payload}")

    def wait_until(self, condition: Callable[[], object], what: str) -> None:
        """As `receiving.wait_until`, but says what the server said."""

        def look() -> object:
            if readable(self._pidfd):
                raise RuntimeError(f"the server ended\n{self.said()}")
            return condition()

        try:
            wait_until(look, what)
        except TimeoutError as error:
            raise TimeoutError(f"{error}\n{self.said()}") from None

    def said(self) -> str:
        """Its output, its logs and the journal."""
        files = [self.directory / "output", *self.directory.glob("log*"), *self._journal.iterdir()]
        return "\n".join(f"-- {file.name}\n{file.read_text()}" for file in files if file.exists())

    def log_files(self, pid: int) -> set[str]:
        """Names of the log files that a process has open."""
        found = set()
        for link in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(FileNotFoundError):
                target = link.readlink()
                if target.parent == self.directory and target.name.startswith("log"):
                    found.add(target.name)
        return found

    def rotate_log(self) -> None:
        """As logrotate does: the old one gets another name, the new one the same owner."""
        owner = self.log.stat()
        self.log.rename(self.directory / "log.old")
        self.log.touch()
        os.chown(self.log, owner.st_uid, owner.st_gid)

    def signal(self, number: int) -> None:
        """To the main process alone."""
        self._process.send_signal(number)

    def stop(self) -> int:
        """SIGTERM, and its exit status; whatever does not end by itself is killed."""
        if self._process.returncode is None:
            self._process.terminate()
            readable(self._pidfd, PATIENCE)
        return self.kill()

    def kill(self) -> int:
        """SIGKILL for whatever is left of it, and its exit status."""
        if self._process.returncode is None:
            workers = [self._pidfd, *self._open_workers()]
            # Not after it is reaped, as the group's number is its own until then.
            os.killpg(self.pid, signal.SIGKILL)
            for pidfd in workers:
                readable(pidfd, PATIENCE)
                os.close(pidfd)
        return self._process.wait()

    def _open_workers(self) -> Iterator[int]:
        """A pidfd of each process that has a journal and lives."""
        for file in self._journal.iterdir():
            with contextlib.suppress(ProcessLookupError):
                yield os.pidfd_open(int(file.name))


def _stat_of(_conn: pynotify.Connection, name: str) -> pynotify.EngineStat:
    with pynotify.open(name, create=False) as engine:
        return engine.stat()


def become(uid: int) -> None:
    """Give up root for good."""
    os.setgid(uid)
    os.setuid(uid)


class State(NamedTuple):
    """Of the segment, without the notifier's own slot."""

    signals_sent: int
    asleep: dict[int, bool]  # by pid, of those that listen


class Notifier:
    """A process that notifies on a segment that exists already."""

    def __init__(self, worker: Worker, name: str) -> None:
        self._name = name
        self._session = RemoteSession(worker, name)
        self.pid = worker.pid

    def notify(self, *payloads: str, channel: str = "c") -> None:
        """A commit each."""
        for payload in payloads:
            self._session.notify(channel, payload)

    def state(self) -> State:
        self._session.run(_stat_of, self._name)
        stat: Any = self._session.worker.result()
        return State(
            stat.signals_sent, {row.pid: row.asleep for row in stat.backends if row.channels}
        )

    def all_asleep(self) -> bool:
        return all(self.state().asleep.values())


def check_wake_ups(server: Server, notifier: Notifier, payloads: list[str]) -> None:
    """Each of them wakes every worker by a signal, and is heard by each before the next."""
    for payload in payloads:
        server.wait_until(notifier.all_asleep, "all workers sleep")
        before = notifier.state()
        notifier.notify(payload)
        server.await_all_heard(payload, set(before.asleep))
        assert notifier.state().signals_sent >= before.signals_sent + len(before.asleep)
