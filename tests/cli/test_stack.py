"""`pynotify doctor --stack PID`: the process itself says what it is doing."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest
from console import Guest, run

from sessions import RemoteSession

StartGuest = Callable[[str, str], Guest]
BUSY = (
    "conn.listen('c')\n"
    "def busy_with_something_else():\n"
    "    print('ready', flush=True)\n"
    "    sys.stdin.read()\n"
    "busy_with_something_else()"
)


def test_stack_goes_to_the_process_own_stderr(engine_name: str, guest: StartGuest) -> None:
    running = guest(engine_name, BUSY)
    target = os.readlink(f"/proc/{running.pid}/fd/2")
    done = run("doctor", "--stack", str(running.pid))
    assert (done.status, done.err) == (0, "")
    first, second = done.out.splitlines()
    assert first.startswith(f"asked process {running.pid} (")
    assert first.endswith(f") in segment {engine_name}:")
    assert second == (f"it prints the stacks of its threads to its own standard error ({target})")
    lines = [running.line(err=True)]
    while b"busy_with_something_else" not in lines[-1]:
        lines.append(running.line(err=True))
    assert b"most recent call first" in lines[0]


def test_no_such_process() -> None:
    done = run("doctor", "--stack", "999999999")
    assert (done.status, done.err) == (1, "pynotify doctor: there is no process 999999999\n")


@pytest.mark.parametrize("pid", ["0", "-1"])
def test_no_pid_at_all(pid: str) -> None:
    done = run("doctor", f"--stack={pid}")
    assert (done.status, done.err) == (1, f"pynotify doctor: there is no process {pid}\n")


def test_process_without_a_backend(engine_name: str) -> None:
    done = run("doctor", "--stack", "1")
    assert done.status == 1
    assert "has no backend in any segment of this user" in done.err


def test_process_that_polls(engine_name: str, remote: Callable[..., RemoteSession]) -> None:
    session = remote(engine_name, wakeup="poll")
    session.listen("c")
    done = run("doctor", "--stack", str(session.pid))
    assert done.status == 1
    assert 'is connected with wakeup="poll": it cannot be signalled' in done.err


def test_process_that_does_not_listen(
    engine_name: str, new_worker: Callable[..., object], guest: StartGuest
) -> None:
    running = guest(engine_name, "")
    done = run("doctor", "--stack", str(running.pid))
    assert done.status == 1
    assert "does not listen" in done.err


def test_stopped_process(engine_name: str, remote: Callable[..., RemoteSession]) -> None:
    session = remote(engine_name)
    session.listen("c")
    session.worker.suspend()
    try:
        done = run("doctor", "--stack", str(session.pid))
    finally:
        session.worker.resume()
    assert done.status == 0
    assert done.out.splitlines()[-1] == "it is stopped, and will do so when it continues"
