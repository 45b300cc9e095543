"""uvicorn with two workers and uvloop, without a handler of SIGUSR1: the default terminates."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import pytest

import pynotify
from serving import Notifier, Server, check_wake_ups

WORKERS = 2
Start = Callable[[str], Server]


@pytest.fixture
def uvicorn(serve: Callable[..., Server], engine_name: str) -> Start:
    """Start it with an application that connects in its lifespan, and does this."""

    def start(use: str) -> Server:
        return serve(
            "uvicorn", "--uds", "socket", "--workers", str(WORKERS), "--loop", "uvloop",
            "--lifespan", "on", "asgi_listener:app", SEGMENT=engine_name, USE=use,
        )  # fmt: skip

    return start


def test_two_workers(uvicorn: Start, engine_name: str, notifier: Notifier) -> None:
    """A foreign SIGUSR1 ends a worker, as without us; the one that takes its place listens."""
    server = uvicorn("listen")
    workers = server.await_processes("listening", WORKERS)
    assert all(words[0].endswith(" uvloop") for words in server.journal("listening").values())
    check_wake_ups(server, notifier, ["1", "2", "3"])
    notifier.notify(*map(str, range(4, 200)))
    server.await_all_heard("199", workers)
    expected = [str(number) for number in range(1, 200)]
    assert server.journal("heard") == {pid: expected for pid in workers}
    assert set(server.journal("listening")) == workers, "a worker was replaced"

    gone = min(workers)
    os.kill(gone, signal.SIGUSR1)
    (new,) = server.await_processes("listening", WORKERS + 1) - workers
    server.wait_until(lambda: gone not in notifier.state().asleep, "its slot is free")
    check_wake_ups(server, notifier, ["200"])
    assert server.journal("heard")[new] == ["200"]
    assert int(server.request()) in {new, max(workers)}
    assert server.stop() == 0
    assert "Traceback" not in server.said()


@pytest.mark.parametrize("use", ["connect", "close"])
def test_worker_that_does_not_listen_lives(
    uvicorn: Start, engine: pynotify.Engine, engine_name: str, notifier: Notifier, use: str
) -> None:
    """Connected and never listened: nothing was installed.  Closed: a late wake-up is ignored."""
    server = uvicorn(use)
    workers = server.await_processes(use, WORKERS)
    before = engine.stat().signals_sent
    notifier.notify(*map(str, range(50)))
    assert engine.stat().signals_sent == before
    if use == "close":
        for pid in workers:
            os.kill(pid, signal.SIGUSR1)
    answering: set[int] = set()
    server.wait_until(
        lambda: answering.add(int(server.request())) or answering >= workers, "both answer"
    )
    assert answering == workers
    assert set(server.journal(use)) == workers, "a worker was replaced"
    assert server.stop() == 0
    assert "Traceback" not in server.said()
