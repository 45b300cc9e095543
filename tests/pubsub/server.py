"""A real PostgreSQL for tests: on a Unix socket in a directory of its own, gone with the tests.

Fixtures, for a conftest to import: ``postgres`` is one server for all tests of a worker, which
no test may stop; ``own_postgres`` is the test's alone, to be killed, paused and started again.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from programs import require_module
from receiving import wait_until
from requirement import postgres_programs, require

_OPTIONS = {
    "listen_addresses": "",
    "fsync": "off",
    "max_connections": "300",
    "max_prepared_transactions": "10",
    "shared_buffers": "16MB",
    "dynamic_shared_memory_type": "mmap",  # of the killed nothing stays in /dev/shm
    "log_min_messages": "warning",
    "timezone": "UTC",
}


class Server:
    """A cluster in `directory`; `dsn` is what libpq wants to know."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.dsn = f"host={directory} user=postgres dbname=postgres"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """Of the postmaster."""
        assert self._process is not None, "it does not run"
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        settings = {**_OPTIONS, "unix_socket_directories": str(self.directory)}
        options = [word for key, value in settings.items() for word in ("-c", f"{key}={value}")]
        options = ["-D", str(self._data), *options]
        program = str(postgres_programs() / "postgres")
        with open(self.directory / "log", "ab") as log:
            self._process = subprocess.Popen(
                # It ends with the thread of the tests that started it, however that ends.
                ["setpriv", "--pdeathsig", "QUIT", *_as_its_user(), program, *options],
                cwd=self.directory,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        wait_until(self._is_ready, "PostgreSQL is ready")

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """SIGINT throws all clients out, SIGQUIT does not even say goodbye; then it may start."""
        if self._process is not None:
            if self.running:
                self._process.send_signal(how)
            self._process.wait()
            self._process = None

    def kill(self) -> None:
        """SIGKILL for the postmaster and all its backends."""
        assert self._process is not None, "it does not run"
        self._process.send_signal(signal.SIGSTOP)  # or it starts new ones meanwhile
        family = self.backends()
        for pid in [*family, self._process.pid]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.wait()
        self._process = None
        wait_until(lambda: not any(map(lives, family)), "its backends are gone")

    def pause(self) -> None:
        """As seen from outside: nothing answers, and no connection breaks."""
        for pid in [self.pid, *self.backends()]:
            with contextlib.suppress(ProcessLookupError):  # a worker may end at any time
                os.kill(pid, signal.SIGSTOP)

    def resume(self) -> None:
        for pid in [*self.backends(), self.pid]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    def backends(self) -> list[int]:
        """All processes of the server but the postmaster."""
        listing = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text()
        return [int(pid) for pid in listing.split()]

    def connect(self, **options: Any) -> Any:
        """A psycopg connection in autocommit."""
        import psycopg

        return psycopg.connect(self.dsn, autocommit=True, **options)

    def _make(self) -> None:
        self._run(
            str(postgres_programs() / "initdb"), "-D", str(self._data), "-U", "postgres",
            "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync",
        )  # fmt: skip

    def _run(self, *command: str) -> None:
        done = subprocess.run(
            [*_as_its_user("setpriv"), *command],
            cwd=self.directory,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr

    @property
    def _data(self) -> Path:
        return self.directory / "data"

    def _is_ready(self) -> bool:
        if not self.running:
            raise RuntimeError(f"PostgreSQL ended: {(self.directory / 'log').read_text()}")
        with contextlib.suppress(FileNotFoundError):
            lines = (self._data / "postmaster.pid").read_text().splitlines()
            # It is written line by line.
            return len(lines) > 7 and lines[0] == str(self.pid) and lines[7].strip() == "ready"
        return False


def _as_its_user(*program: str) -> list[str]:
    """Options of setpriv (after `program`, when they are all): PostgreSQL refuses to be root."""
    if os.geteuid() != 0:
        return []
    user = _user()
    return [*program, f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups"]


def _user() -> pwd.struct_passwd:
    try:
        return pwd.getpwnam("postgres")
    except KeyError:
        return pwd.getpwnam("nobody")


def lives(pid: int) -> bool:
    """Whether there is such a process, other than a zombie."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


@contextlib.contextmanager
def running_server() -> Iterator[Server]:
    """A new cluster, started."""
    require("postgres")
    require("setpriv")
    require_module("psycopg")
    # Not pytest's directory: its path may be too long for a socket, and only root may enter it.
    directory = Path(tempfile.mkdtemp(prefix="pynotify-pg-"))
    server = Server(directory)
    try:
        if os.geteuid() == 0:
            os.chown(directory, _user().pw_uid, _user().pw_gid)
        server._make()
        server.start()
        yield server
    finally:
        if server.running:
            server.resume()
        server.stop(signal.SIGQUIT)
        shutil.rmtree(directory)


@pytest.fixture(scope="session")
def postgres() -> Iterator[Server]:
    """For all tests of this worker: a test that stops it takes `own_postgres`."""
    with running_server() as server:
        yield server


@pytest.fixture
def own_postgres() -> Iterator[Server]:
    """The test's alone."""
    with running_server() as server:
        yield server
