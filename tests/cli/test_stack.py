"""`pynotify doctor --stack PID`: the process itself says what it is doing."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator

import pytest
from console import Guest, run

from requirement import require
from sessions import RemoteSession

StartGuest = Callable[..., Guest]
LOCK_TIMEOUT = 10.0  # PN_LOCK_TIMEOUT_NS
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


@pytest.fixture
def stuck(engine_name: str, guest: StartGuest) -> Iterator[Guest]:
    """A listener that is stopped in the middle of something, with the lock of the segment."""
    require("crash-points")
    program = (
        "from pynotify._ffi import lib\n"
        "conn.listen('c')\n"
        "assert lib.pn_crash_arm(b'tail:scanned', 1, lib.PN_CRASH_STOP) == 0\n"
        "print('ready', flush=True)\n"
        "sys.stdin.readline()\n"
        "conn.queue_usage()\n"
    )
    running = guest(engine_name, program, PYNOTIFY_CRASHPOINTS="1")
    running.send(b"go on\n")
    os.waitid(os.P_PID, running.pid, os.WSTOPPED | os.WNOWAIT)
    yield running
    running.signal(signal.SIGCONT)
    assert running.line() == b"ready"


def test_process_that_holds_the_lock(stuck: Guest) -> None:
    """Asking it waits for no process."""
    begun = time.monotonic()
    done = run("doctor", "--stack", str(stuck.pid))
    assert (done.status, done.err) == (0, "")
    assert done.out.endswith("it is stopped, and will do so when it continues\n")
    assert time.monotonic() - begun < LOCK_TIMEOUT


@pytest.mark.full
def test_doctor_names_the_holder_of_the_lock(stuck: Guest, engine_name: str) -> None:
    done = run("doctor", engine_name)
    assert done.status == 1
    (line,) = (line for line in done.out.splitlines() if line.startswith("problem"))
    assert f"segments of {engine_name}: " in line
    assert str(stuck.pid) in line
