"""Processes that a listener starts, in all the ways there are: no wake-up is ever theirs.

A program that a listener becomes by exec is in
tests/guest/test_signals.py::test_program_that_was_execed_is_not_signalled.
"""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import threading
from collections.abc import Callable

import pytest

from listening import hear, hear_by_itself, listen
from receiving import PATIENCE, wait_until
from serving import Notifier
from sessions import Worker

READ_A_BYTE = [sys.executable, "-c", "import sys; sys.exit(len(sys.stdin.read(1)) - 1)"]

# ---- what the listener does, in a process of its own ---------------------------------------------

_ends: list[Callable[[], int]] = []


def end_child() -> int:
    """Its exit status, once it was told to end."""
    return _ends.pop()()


def _end(writing: int, pid: int) -> int:
    os.write(writing, b"x")
    os.close(writing)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def start_by_fork() -> None:
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os._exit(len(os.read(reading, 1)) - 1)
    os.close(reading)
    _ends.append(lambda: _end(writing, pid))


def start_by_posix_spawn() -> None:
    reading, writing = os.pipe()
    actions = [(os.POSIX_SPAWN_DUP2, reading, 0)]
    pid = os.posix_spawn(READ_A_BYTE[0], READ_A_BYTE, os.environ, file_actions=actions)
    os.close(reading)
    _ends.append(lambda: _end(writing, pid))


def start_by_subprocess() -> None:
    child = subprocess.Popen(READ_A_BYTE, stdin=subprocess.PIPE)

    def end() -> int:
        child.communicate(b"x")
        return child.returncode

    _ends.append(end)


def start_by_multiprocessing(method: str) -> None:
    context = multiprocessing.get_context(method)
    ours, theirs = context.Pipe()
    process = context.Process(target=theirs.recv)
    process.start()

    def end() -> int:
        ours.send("the end")
        process.join(PATIENCE)
        ours.close()
        theirs.close()
        assert process.exitcode is not None
        return process.exitcode

    _ends.append(end)


class _Listener(threading.Thread):
    def __init__(self, count: int) -> None:
        super().__init__()
        self._count = count
        self.heard: list[str] = []

    def run(self) -> None:
        self.heard = hear(self._count)


_listeners: list[_Listener] = []


def hear_in_a_thread(count: int) -> None:
    _listeners.append(_Listener(count))
    _listeners[0].start()


def heard_in_the_thread() -> list[str]:
    _listeners[0].join()
    return _listeners[0].heard


def run_by(how: str) -> int:
    """Start a program that ends at once; its exit status."""
    return RUNNING[how]()


def _posix_spawn() -> int:
    pid = os.posix_spawn("/bin/true", ["true"], os.environ)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def _fork_and_exec() -> int:
    pid = os.fork()
    if pid == 0:
        os.execv("/bin/true", ["true"])
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


RUNNING: dict[str, Callable[[], int]] = {
    "fork and exec": _fork_and_exec,
    "posix_spawn": _posix_spawn,
    "subprocess": lambda: subprocess.call(["/bin/true"]),
}


def hear_both(name: str, method: str, count: int) -> tuple[list[str], int, list[str]]:
    """What the listener heard; the pid of a child that listens by itself, what that heard."""
    context = multiprocessing.get_context(method)
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=hear_by_itself, args=(name, count, theirs))
    process.start()
    heard = hear(count)
    pid, heard_there = ours.recv()
    process.join(PATIENCE)
    assert process.pid == pid
    assert process.exitcode == 0
    return heard, pid, heard_there


# ---- tests ---------------------------------------------------------------------------------------

STARTING: dict[str, Callable[[], None]] = {
    "fork": start_by_fork,
    "posix_spawn": start_by_posix_spawn,
    "subprocess": start_by_subprocess,
}


@pytest.mark.parametrize("how", [*STARTING, "mp-fork", "mp-spawn", "mp-forkserver"])
def test_child_that_does_not_listen_lives(
    engine_name: str, worker: Worker, notifier: Notifier, how: str
) -> None:
    """Whether it has our handler, as after fork, or the default, which would terminate it."""
    worker.call(listen, engine_name)
    if how in STARTING:
        worker.call(STARTING[how])
    else:
        worker.call(start_by_multiprocessing, how.removeprefix("mp-"))
    before = notifier.state().signals_sent
    for number in range(20):
        worker.start(hear, 1)
        notifier.notify(str(number))
        assert worker.result() == [str(number)]
    assert notifier.state().signals_sent > before
    assert worker.call(end_child) == 0


@pytest.mark.parametrize("how", RUNNING)
def test_programs_started_while_messages_come(
    engine_name: str, worker: Worker, notifier: Notifier, how: str
) -> None:
    """A signal may hit between fork and exec, and right after it."""
    worker.call(listen, engine_name)
    messages = [str(number) for number in range(300)]
    worker.call(hear_in_a_thread, len(messages))
    for first in range(0, len(messages), 10):
        worker.start(run_by, how)
        notifier.notify(*messages[first : first + 10])
        assert worker.result() == 0
    assert worker.call(heard_in_the_thread) == messages


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_child_that_listens_is_woken_too(
    engine_name: str, worker: Worker, notifier: Notifier, method: str
) -> None:
    """Each of the two by signals of its own."""
    worker.call(listen, engine_name)
    worker.start(hear_both, engine_name, method, 20)
    wait_until(lambda: len(notifier.state().asleep) == 2, "both listen")
    messages = [str(number) for number in range(20)]
    for message in messages:
        wait_until(notifier.all_asleep, "both sleep")
        before = notifier.state().signals_sent
        notifier.notify(message)
        assert notifier.state().signals_sent >= before + 2
    heard, child, heard_there = worker.result()
    assert heard == heard_there == messages
    assert child != worker.pid
