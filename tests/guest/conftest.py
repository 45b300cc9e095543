"""A good guest in any process: where each rule of sharing a process is tried.

Every test starts real processes, and a real notify() of another one sends the signals.  After
each of them nobody has died who should live, the host's own use of SIGUSR1 works, and every
notification has come exactly once.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from serving import Notifier, Server
from sessions import EngineFactory, NewWorker


@pytest.fixture
def directory() -> Iterator[Path]:
    """As `tmp_path`, but other users may enter it, and a socket's path in it is short."""
    path = Path(tempfile.mkdtemp(prefix="pynotify-guest-"))
    path.chmod(0o777)
    yield path
    shutil.rmtree(path)


@pytest.fixture
def serve(directory: Path, make_engine: EngineFactory) -> Iterator[Callable[..., Server]]:
    """Start a server; it is stopped before the segments are looked at."""
    servers: list[Server] = []

    def start(*command: str | Path, **environment: Any) -> Server:
        servers.append(Server(directory, *command, **environment))
        return servers[-1]

    yield start
    for server in servers:
        server.stop()


@pytest.fixture
def notifier(new_worker: NewWorker, engine_name: str) -> Notifier:
    """Another process, that notifies on the test's segment."""
    return Notifier(new_worker(), engine_name)
