"""Gateways in tests: one in a thread of the test, one in a process of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

from gateway.wire import Client
from pynotify.gateway import Gateway
from receiving import PATIENCE

ROOT = Path(__file__).resolve().parents[2]


def short_directory() -> tempfile.TemporaryDirectory[str]:
    """For a socket, whose path has 107 bytes at the most."""
    return tempfile.TemporaryDirectory(prefix="gw-")


class Running:
    """A `Gateway` and the thread that serves; `options` are its own."""

    def __init__(self, segment: str, **options: Any) -> None:
        self._directory = short_directory()
        self.gateway = Gateway(segment, directory=self._directory.name, **options)
        self.segment, self.path = segment, self.gateway.path
        self.port = int(self.path.suffix[1:])
        self._raised: list[BaseException] = []
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.gateway.run()
        except BaseException as error:
            self._raised.append(error)

    @property
    def dsn(self) -> str:
        return f"host={self.path.parent} port={self.port} user=me dbname=default"

    def client(self, database: str = "default", user: str = "me", **parameters: str) -> Client:
        """Connected and ready."""
        client = Client(self.path)
        answers = client.start(user, database, **parameters)
        assert answers, "the gateway closed the connection"
        assert answers[-1] == ("Z", "I"), answers
        return client

    def join(self) -> None:
        """Until it has ended; raises what it raised."""
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive()
        if self._raised:
            raise self._raised.pop()

    def close(self) -> None:
        self.gateway.stop()
        try:
            self.join()
        finally:
            self.gateway.close()
            self._directory.cleanup()


class GatewayProcess:
    """`pynotify gateway SEGMENT`, or another program that takes its arguments."""

    def __init__(self, segment: str, *arguments: str, program: tuple[str, ...] = ()) -> None:
        self._directory = short_directory()
        self.directory = Path(self._directory.name)
        command = program or (sys.executable, "-m", "pynotify", "gateway")
        self._process = subprocess.Popen(
            [*command, segment, "--directory", str(self.directory), *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        assert self._process.stdout is not None
        self.said = self._process.stdout.readline()
        assert "listening at" in self.said, self.said + self._process.stdout.read()
        self.pid = self._process.pid
        self.path = next(self.directory.glob(".s.PGSQL.*[0-9]"))

    def line(self) -> str:
        """What it says next."""
        assert self._process.stdout is not None
        return self._process.stdout.readline()

    def client(self, database: str = "default", user: str = "me") -> Client:
        client = Client(self.path)
        answers = client.start(user, database)
        assert answers[-1] == ("Z", "I"), answers
        return client

    def end(self, signo: signal.Signals = signal.SIGTERM) -> int:
        """Its exit status."""
        self._process.send_signal(signo)
        return self._process.wait(PATIENCE)

    def close(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._directory.cleanup()
