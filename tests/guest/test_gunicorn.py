"""gunicorn: its workers reset all signals after the fork, and reopen their logs at SIGUSR1."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import pynotify
from forking import in_child
from requirement import require
from serving import APPS, ROOT, Notifier, Server, become, check_wake_ups
from sessions import Worker, close_all_here

WORKERS = 2
NOBODY = 65534
Serve = Callable[..., Server]

KINDS = {
    "sync": ["wsgi_listener:app"],
    "gthread": ["--threads", "2", "wsgi_listener:app"],
    "asgi-uvloop": ["--worker-class", "asgi", "asgi_listener:app"],
    "asgi-asyncio": ["--worker-class", "asgi", "--asgi-loop", "asyncio", "asgi_listener:app"],
    "uvicorn": ["--worker-class", "uvicorn_worker.UvicornWorker", "asgi_listener:app"],
}


@pytest.fixture
def gunicorn(serve: Serve, directory: Path) -> Serve:
    """Start a master that listens on the server's socket."""

    def start(*options: str | Path, **environment: str) -> Server:
        return serve(
            "gunicorn", "--bind", f"unix:{directory / 'socket'}", *options, **environment
        )  # fmt: skip

    return start


def with_listeners(gunicorn: Serve, name: str, *options: str, **environment: str) -> Server:
    """Two workers, each of which listens as soon as it has its own signal handlers."""
    return gunicorn(
        "--config", APPS / "gunicorn_conf.py", "--workers", str(WORKERS),
        "--error-logfile", "log", *options, SEGMENT=name, **environment,
    )  # fmt: skip


def check_reopening(server: Server, notifier: Notifier, workers: set[int]) -> None:
    """What gunicorn means by SIGUSR1, in the master and in every worker; not so our wake-ups."""
    processes = {server.pid, *workers}
    server.rotate_log()
    check_wake_ups(server, notifier, ["4", "5"])
    assert all("log.old" in server.log_files(pid) for pid in processes)
    server.wait_until(notifier.all_asleep, "all workers sleep")
    server.signal(signal.SIGUSR1)
    server.wait_until(
        lambda: all(server.log_files(pid) == {"log"} for pid in processes),
        "master and workers reopened their logs",
    )


def check_guest(server: Server, notifier: Notifier) -> None:
    workers = server.await_processes("listening", WORKERS)
    assert set(notifier.state().asleep) == workers
    check_wake_ups(server, notifier, ["1", "2", "3"])
    check_reopening(server, notifier, workers)
    check_wake_ups(server, notifier, ["6"])
    burst = [f"burst {number}" for number in range(200)]
    notifier.notify(*burst)
    expected = ["1", "2", "3", "4", "5", "6", *burst]
    server.await_all_heard(expected[-1], workers)
    assert server.journal("heard") == {pid: expected for pid in workers}
    assert set(server.journal("listening")) == workers, "a worker was replaced"
    assert int(server.request()) in workers
    assert server.stop() == 0
    assert "Traceback" not in server.said()


@pytest.mark.parametrize("preload", [False, True], ids=["plain", "preload"])
@pytest.mark.parametrize("kind", KINDS)
def test_workers(
    gunicorn: Serve, engine_name: str, notifier: Notifier, kind: str, preload: bool
) -> None:
    options = ["--preload"] if preload else []
    server = with_listeners(gunicorn, engine_name, *options, *KINDS[kind])
    server.await_processes("listening", WORKERS)
    check_guest(server, notifier)


def test_get_in_a_preloading_server(
    gunicorn: Serve, engine: pynotify.Engine, engine_name: str, notifier: Notifier
) -> None:
    """`pynotify.get()` at import, in the master, and again in the worker: each has its own."""
    server = with_listeners(gunicorn, engine_name, "--preload", *KINDS["sync"])
    workers = server.await_processes("listening", WORKERS)
    assert set(server.journal("imported")) == {server.pid}
    connected = [row.pid for row in engine.stat().backends if row.pid != notifier.pid]
    assert sorted(connected) == sorted({server.pid, *workers})
    assert server.journal("listening") == {pid: [str(pid)] for pid in workers}
    for pid, (refusal,) in server.journal("refused").items():
        assert refusal.startswith("ForkedConnectionError")
        assert str(server.pid) in refusal
        assert str(pid) in refusal
    check_guest(server, notifier)


def test_master_that_listens_lives(gunicorn: Serve, engine_name: str, notifier: Notifier) -> None:
    """Against the advice: each wake-up of it means SIGUSR1 to gunicorn, and nothing worse."""
    server = with_listeners(gunicorn, engine_name, "--preload", *KINDS["sync"], MASTER="listens")
    workers = server.await_processes("listening", WORKERS)
    assert set(notifier.state().asleep) == {server.pid, *workers}
    server.rotate_log()
    payloads = [str(number) for number in range(20)]
    notifier.notify(*payloads)
    server.await_all_heard(payloads[-1], workers)
    server.wait_until(
        lambda: all(server.log_files(pid) == {"log"} for pid in workers), "the logs were reopened"
    )
    assert server.journal("heard") == {pid: payloads for pid in workers}
    assert set(server.journal("listening")) == workers, "a worker was replaced"
    assert server.stop() == 0
    assert "Traceback" not in server.said()


def test_example_of_a_cache(gunicorn: Serve, new_name: Callable[[], str], directory: Path) -> None:
    """Every worker forgets what any of them changed, also after the logs were reopened."""
    server = gunicorn(
        "--workers", "3", "--preload", "--chdir", ROOT / "examples", "wsgi_cache:app",
        SEGMENT=new_name(), DATA=str(directory / "data"),
    )  # fmt: skip
    server.wait_until(server.answers, "it listens")
    for body in (b"one", b"two", b"three"):
        server.request("PUT", body)
        server.wait_until(
            lambda body=body: {server.request() for _ in range(12)} == {body},
            f"all workers say {body!r}",
        )
        server.signal(signal.SIGUSR1)
    assert server.stop() == 0
    assert "Traceback" not in server.said()


@pytest.fixture
def nobodys_worker(worker: Worker, new_name: Callable[[], str]) -> Iterator[tuple[Worker, str]]:
    """A process of another user, and the name of a segment of that user."""
    require("root")
    if not in_child(lambda: become(NOBODY) or os.access(APPS, os.R_OK | os.X_OK)):
        require("other-user", "another user may not read the tests")
    name = new_name()
    worker.call(become, NOBODY)
    yield worker, name
    worker.call(close_all_here)
    worker.call(pynotify.unlink, name, missing_ok=True, force=True)


@pytest.mark.parametrize("preload", [False, True], ids=["plain", "preload"])
@pytest.mark.parametrize("kind", ["sync", "gthread", "asgi-uvloop"])
def test_workers_of_another_user(
    nobodys_worker: tuple[Worker, str], gunicorn: Serve, kind: str, preload: bool
) -> None:
    """A segment belongs to a user: the worker makes it, after it has changed to that user."""
    worker, name = nobodys_worker
    options = ["--user", str(NOBODY), *(["--preload"] if preload else [])]
    server = with_listeners(gunicorn, name, *options, *KINDS[kind])
    workers = server.await_processes("listening", WORKERS)
    assert {Path(f"/proc/{pid}").stat().st_uid for pid in workers} == {NOBODY}
    check_guest(server, Notifier(worker, name))
    if preload and kind != "asgi-uvloop":
        for pid in workers:
            of_conn, of_engine = server.journal("refused")[pid]
            assert of_conn.startswith("ForkedConnectionError")
            assert of_engine == (
                f"InterfaceError the engine was opened by user 0, this is user {NOBODY}"
            )
