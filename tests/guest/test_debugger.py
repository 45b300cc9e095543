"""A listener that a debugger has stopped, or whose signals it looks at first.

The debugger is a process that calls ptrace() as gdb does.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from listening import hear, listen
from receiving import wait_until
from requirement import require
from serving import Notifier
from sessions import NewWorker, Worker

SIGNAL = signal.SIGUSR1
LATEST = (
    5.0  # The slow timer of a sleeper, 1.25 s at most, on a machine that has other things to do.
)

CONT, DETACH, SEIZE, INTERRUPT = 7, 17, 0x4206, 0x4207
ALL_THREADS = 0x40000000  # __WALL
PR_SET_PTRACER = 0x59616D61

# ---- what the debugger does, in a process of its own ---------------------------------------------


def _ptrace(request: int, thread: int, data: int = 0) -> None:
    call = ctypes.CDLL(None, use_errno=True).ptrace
    call.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
    call.restype = ctypes.c_long
    if call(request, thread, None, data) != 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))


def _threads(pid: int) -> list[int]:
    return [int(path.name) for path in Path(f"/proc/{pid}/task").iterdir()]


def _await_stop(thread: int = -1) -> tuple[int, int]:
    """Which one, and the signal that it stopped for, 0 if it stopped because it was told to."""
    stopped, status = os.waitpid(thread, ALL_THREADS)
    assert os.WIFSTOPPED(status), f"{stopped} ended: {status:#x}"
    return stopped, 0 if status >> 16 else os.WSTOPSIG(status)


def attach(pid: int) -> bool:
    """All of its threads stand afterwards.  False: this is not allowed here."""
    for thread in _threads(pid):
        try:
            _ptrace(SEIZE, thread)
        except PermissionError:
            return False
        _ptrace(INTERRUPT, thread)
        _await_stop(thread)
    return True


def run_until_signalled(pid: int, count: int, passing: bool) -> list[int]:
    """Let it run; it stops at each signal, which it then gets or does not get."""
    seen: list[int] = []
    for thread in _threads(pid):
        _ptrace(CONT, thread)
    while len(seen) < count:
        thread, number = _await_stop()
        seen.append(number)
        _ptrace(CONT, thread, number if passing else 0)
    return seen


def interrupt_and_detach(pid: int) -> None:
    for thread in _threads(pid):
        _ptrace(INTERRUPT, thread)
        _ptrace(DETACH, *_await_stop(thread))


def detach(pid: int) -> None:
    for thread in _threads(pid):
        _ptrace(DETACH, thread)


# ---- tests ---------------------------------------------------------------------------------------


def allow_debuggers() -> None:
    """Where Yama restricts them to the parents of a process."""
    ctypes.CDLL(None).prctl(PR_SET_PTRACER, ctypes.c_ulong(-1), 0, 0, 0)


def start_listener(new_worker: NewWorker, name: str) -> Worker:
    worker = new_worker()
    worker.call(allow_debuggers)
    worker.call(listen, name)
    return worker


@pytest.fixture
def listener(new_worker: NewWorker, engine_name: str) -> Worker:
    return start_listener(new_worker, engine_name)


@pytest.fixture
def debugger(new_worker: NewWorker, listener: Worker) -> Worker:
    """Attached to the listener, whose one thread stands."""
    worker = new_worker()
    if not worker.call(attach, listener.pid):
        require("ptrace", "a process may not trace another one here")
    return worker


@contextlib.contextmanager
def stopped_by_debugger(listener: Worker, new_worker: NewWorker) -> Iterator[None]:
    tracer = new_worker()
    if not tracer.call(attach, listener.pid):
        require("ptrace", "a process may not trace another one here")
    yield
    tracer.call(detach, listener.pid)


@contextlib.contextmanager
def stopped_by_signal(listener: Worker, _new_worker: NewWorker) -> Iterator[None]:
    listener.suspend()
    yield
    listener.resume()


STOPS: dict[str, Callable[[Worker, NewWorker], contextlib.AbstractContextManager[None]]] = {
    "debugger": stopped_by_debugger,
    "SIGSTOP": stopped_by_signal,
}


@pytest.mark.parametrize("how", STOPS)
def test_stopped_listener_delays_no_other(
    new_worker: NewWorker, engine_name: str, listener: Worker, notifier: Notifier, how: str
) -> None:
    """Nor is it killed; it hears everything when it goes on.  It is the first to be signalled."""
    others = [start_listener(new_worker, engine_name) for _ in range(4)]
    single = [f"single {number}" for number in range(5)]
    stream = [f"stream {number}" for number in range(200)]
    with STOPS[how](listener, new_worker):
        for message in single:
            for other in others:
                other.start(hear, 1)
            notifier.notify(message)
            assert [other.result(LATEST) for other in others] == [[message]] * len(others)
        for other in others:
            other.start(hear, len(stream))
        notifier.notify(*stream)
        assert [other.result(LATEST) for other in others] == [stream] * len(others)
        assert listener.alive
        assert listener.pid in notifier.state().asleep
    assert listener.call(hear, len(single + stream)) == single + stream
    listener.start(hear, 1)
    notifier.notify("afterwards")
    assert listener.result() == ["afterwards"]


def test_debugger_that_passes_signals_on(
    listener: Worker, notifier: Notifier, debugger: Worker
) -> None:
    """gdb's default.  The tag survives that; a signal without it would terminate the process."""
    debugger.start(run_until_signalled, listener.pid, 3, passing=True)
    for message in ("1", "2", "3"):
        listener.start(hear, 1)
        wait_until(notifier.all_asleep, "it sleeps")
        notifier.notify(message)
        assert listener.result() == [message]
    assert debugger.result() == [SIGNAL] * 3
    debugger.call(interrupt_and_detach, listener.pid)
    listener.start(hear, 1)
    notifier.notify("afterwards")
    assert listener.result() == ["afterwards"]


def test_debugger_that_keeps_signals(
    listener: Worker, notifier: Notifier, debugger: Worker
) -> None:
    """gdb's `handle SIGUSR1 nopass`: the slow timer makes up for it."""
    debugger.start(run_until_signalled, listener.pid, 1, passing=False)
    listener.start(hear, 1)
    notifier.notify("kept")
    assert debugger.result() == [SIGNAL]
    assert listener.result(LATEST) == ["kept"]
    debugger.call(interrupt_and_detach, listener.pid)
    listener.start(hear, 1)
    notifier.notify("afterwards")
    assert listener.result() == ["afterwards"]
