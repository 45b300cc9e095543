"""Signals that come just before a thread sleeps, when there is nothing that they interrupt.

Python's handlers run when the sleep has ended, so it must end for them: native/python/sleep.c.
Two places count.  Before the sleep has begun for C: there a C function raises the signal that is
called from C, so that no bytecode comes in between.  And right before the system call: there
the process is stopped, and signalled.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import operator
import os
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

import pynotify
from pynotify import _hot
from receiving import PATIENCE, wait_until
from requirement import require
from sessions import EngineFactory, NewWorker
from waiting import Call, await_waiting

LONG = 3_600 * 10**9
SHORT = 100 * 10**6  # for what no signal ends; longer than what sleeps without the bell

Part = Callable[[pynotify.Connection], Any]


def _in_the_main_thread(name: str, part: Part) -> Any:
    with pynotify.connect(name) as conn:
        conn.listen("c")
        try:
            return part(conn)
        finally:
            signal.signal(signal.SIGUSR2, signal.SIG_DFL)
            signal.set_wakeup_fd(-1)


@pytest.fixture
def play(
    make_engine: EngineFactory, engine: pynotify.Engine, new_worker: NewWorker
) -> Callable[[Part], Any]:
    """Play it with a connection in the main thread of another process; its result."""
    name = make_engine.name_of(engine)
    return lambda part: new_worker().call(_in_the_main_thread, name, part)


def _raised_before(sleep: Callable[[], Any]) -> Any:
    """What a sleep returns that begins when a signal was raised, and is noted only."""
    noted = partial(ctypes.PyDLL(None)["raise"], int(signal.SIGUSR2))
    return list(map(operator.call, [noted, sleep]))[-1]


def _waiting(conn: pynotify.Connection, timeout_ns: int = LONG) -> Callable[[], int]:
    """The wait as a function of C."""
    return partial(_hot.wait, conn.link.handle, timeout_ns)


def _wait(conn: pynotify.Connection, timeout_ns: int = LONG) -> int:
    return _waiting(conn, timeout_ns)()


def _signalled(sleep: Callable[[], Any], *before: Callable[[], Any]) -> Any:
    """What a sleep returns in which a signal comes, from another thread."""

    def send() -> None:
        for each in before:
            each()
        _await_sleep()
        signal.pthread_kill(main, signal.SIGUSR2)

    main = threading.main_thread().ident
    assert main is not None
    sender = Call(send)
    result = sleep()
    sender.result()
    return result


def _await_sleep() -> None:
    """Until the main thread sleeps in a system call that waits for descriptors."""
    calls = ("ep_poll", "do_epoll", "do_sys_poll", "poll_schedule", "schedule_hrtimeout")
    path = f"/proc/self/task/{os.getpid()}/wchan"

    def sleeps() -> bool:
        with open(path) as wchan:
            return wchan.read().startswith(calls)

    wait_until(sleeps, "the main thread sleeps")


# ---- a signal that was noted before ------------------------------------------------------------


def _handled_first(conn: pynotify.Connection) -> list[str]:
    """The handler runs before the sleep, which then is one like any other."""
    order: list[str] = []
    signal.signal(signal.SIGUSR2, lambda *_: order.append("handled"))

    assert _raised_before(_waiting(conn, SHORT)) == 0
    order.append("slept")
    return order


def test_handlers_run_before_the_sleep(play: Callable[[Part], Any]) -> None:
    assert play(_handled_first) == ["handled", "slept"]


class _Told(BaseException):
    pass


class _Signalled:
    """A signal comes while it goes; what the handler raises is to come behind that."""

    gone = False

    @_hot.finalizer
    def __del__(self) -> None:
        if not self.gone:
            self.gone = True
            os.kill(os.getpid(), signal.SIGUSR2)


def _raised_outside_first(conn: pynotify.Connection) -> list[str]:
    order: list[str] = []

    def handler(_number: int, _frame: object) -> None:
        raise _Told

    signal.signal(signal.SIGUSR2, handler)
    held = [_Signalled()]
    steps = [held.clear, _waiting(conn, SHORT), partial(order.append, "slept")]
    try:
        list(map(operator.call, steps))  # no bytecode comes in between
    except _Told:
        order.append("told")
    return order


def test_what_a_finalizer_has_left_comes_before_the_sleep(play: Callable[[Part], Any]) -> None:
    assert play(_raised_outside_first) == ["told"]


def _raises(conn: pynotify.Connection) -> tuple[str, int, int]:
    def handler(*_: object) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGUSR2, handler)
    try:
        _raised_before(_waiting(conn))
    except KeyboardInterrupt:
        ended = "interrupted"
    else:
        ended = "slept"
    return ended, signal.set_wakeup_fd(-1), _wait(conn, SHORT)


def test_a_handler_that_raises_ends_the_sleep(play: Callable[[Part], Any]) -> None:
    assert play(_raises) == ("interrupted", -1, 0)


def _sleeps_itself(conn: pynotify.Connection) -> list[int]:
    """The outer sleep is one that signals end, also after the inner one."""
    inner: list[int] = []

    def handler(*_: object) -> None:
        signal.signal(signal.SIGUSR2, lambda *_: None)
        inner.append(_wait(conn, SHORT))

    signal.signal(signal.SIGUSR2, handler)
    sleep = partial(_raised_before, _waiting(conn))
    outer = _signalled(sleep, lambda: wait_until(lambda: inner, "the handler has slept"))
    return [*inner, outer]


def test_a_handler_that_sleeps(play: Callable[[Part], Any]) -> None:
    assert play(_sleeps_itself) == [0, -errno.EINTR]


def _forks(conn: pynotify.Connection) -> tuple[int, int]:
    """The child of a handler that forks goes on into the sleep, with a bell of its own."""
    pids: list[int] = []
    signal.signal(signal.SIGUSR2, lambda *_: pids.append(os.fork()))
    result = _raised_before(partial(_hot.sleep_until_called, _Waiter(), SHORT))
    if pids[0] == 0:
        with contextlib.suppress(BaseException):
            signal.signal(signal.SIGUSR2, lambda *_: os._exit(7))
            ours = signal.set_wakeup_fd(-1)
            rung = _raised_before(partial(_hot.sleep_until_called, _Waiter(), LONG))
            os._exit(8 if ours == -1 and rung else 9)
        os._exit(10)
    return int(result), os.waitstatus_to_exitcode(os.waitpid(pids[0], 0)[1])


class _Waiter:
    woken = called = False


def test_a_handler_that_forks(play: Callable[[Part], Any]) -> None:
    assert play(_forks) == (1, 7)


# ---- a wakeup fd of the program ----------------------------------------------------------------


def _programs_fd(conn: pynotify.Connection) -> tuple[int, bytes, bool]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        theirs.setblocking(False)
        signal.signal(signal.SIGUSR2, lambda *_: None)
        signal.set_wakeup_fd(ours.fileno())
        result = _signalled(_waiting(conn))
        return result, theirs.recv(64), signal.set_wakeup_fd(-1) == ours.fileno()


def test_a_programs_wakeup_fd_gets_each_signal(play: Callable[[Part], Any]) -> None:
    assert play(_programs_fd) == (-errno.EINTR, bytes([signal.SIGUSR2]), True)


def _set_by_a_handler(conn: pynotify.Connection) -> tuple[int, bool]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        signal.signal(signal.SIGUSR2, lambda *_: signal.set_wakeup_fd(ours.fileno()) and None)
        result = _raised_before(_waiting(conn, SHORT))
        return result, signal.set_wakeup_fd(-1) == ours.fileno()


def test_one_that_a_handler_sets_stays(play: Callable[[Part], Any]) -> None:
    assert play(_set_by_a_handler) == (0, True)


# ---- descriptors -------------------------------------------------------------------------------


def _fifos() -> list[int]:
    found = []
    for entry in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            if os.readlink(f"/proc/self/fd/{entry}").startswith("pipe:"):
                found.append(int(entry))
    return found


def _closed_by_the_program(conn: pynotify.Connection) -> tuple[int, int, bytes]:
    """Its number is a file's of the program by now; what signals write does not go there."""
    before = set(_fifos())
    signal.signal(signal.SIGUSR2, lambda *_: None)
    _wait(conn, SHORT)
    (bell,) = set(_fifos()) - before
    with tempfile.TemporaryFile() as file:
        os.dup2(file.fileno(), bell)
        result = _signalled(_waiting(conn))
        again = _signalled(_waiting(conn))
        file.seek(0)
        written = file.read()
    os.close(bell)
    return result, again, written


def test_a_bell_that_the_program_closes_is_made_again(play: Callable[[Part], Any]) -> None:
    assert play(_closed_by_the_program) == (-errno.EINTR, -errno.EINTR, b"")


def _without_descriptors(conn: pynotify.Connection) -> tuple[int, bool, int]:
    signal.signal(signal.SIGUSR2, lambda *_: None)
    _wait(conn, 1)  # the connection has its latch by now
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    _hot._module.sleeps_after_fork()  # it has no bell any more
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        result = _wait(conn, SHORT)
        followed = _hot.sleep_until_called(_Waiter(), SHORT)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return result, followed, _signalled(_waiting(conn))


def test_without_a_free_descriptor_it_sleeps_all_the_same(play: Callable[[Part], Any]) -> None:
    assert play(_without_descriptors) == (0, False, -errno.EINTR)


def _forked_by_a_thread(conn: pynotify.Connection) -> tuple[int, int]:
    """While the main thread sleeps: the child's signals are not the parent's."""
    signal.signal(signal.SIGUSR2, lambda *_: None)
    statuses: list[int] = []

    def fork() -> None:
        _await_sleep()
        pid = os.fork()
        if pid == 0:
            ours = signal.set_wakeup_fd(-1)
            os.kill(os.getpid(), signal.SIGUSR2)
            os._exit(0 if ours == -1 else 1)
        statuses.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))

    forker = Call(fork)
    result = _wait(conn, 2 * SHORT)
    forker.result()
    return result, statuses[0]


def test_a_child_that_a_thread_forks_meanwhile(play: Callable[[Part], Any]) -> None:
    assert play(_forked_by_a_thread) == (0, 0)


# ---- right before the system call --------------------------------------------------------------

PROGRAM = """
import errno, signal, sys
import pynotify
from pynotify import _hot
from pynotify._ffi import lib
conn = pynotify.connect(sys.argv[1])
conn.listen("c")
def handler(number, frame):
    print("handled", flush=True)
signal.signal(signal.SIGTERM, handler)
channel = conn.topic("t").channel("ch")
consumer = channel.consumer()
waiter = type("Waiter", (), {"woken": False, "called": False})()
sleep = {
    "wait": lambda: _hot.wait(conn.link.handle, 100_000_000),
    "get": lambda: consumer.get_in_core(100_000_000),
    "follow": lambda: _hot.sleep_until_called(waiter, -1) and -errno.EINTR,
}[sys.argv[2]]
print("ready", flush=True)
assert lib.pn_crash_arm(b"sleep:begins", 1, lib.PN_CRASH_STOP) == 0
print(sleep() == -errno.EINTR, flush=True)
"""


@contextlib.contextmanager
def _stopped(name: str, program: str, *words: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process that is stopped right before its sleep."""
    require("crash-points")
    paths = os.pathsep.join(path for path in sys.path if path)
    running = subprocess.Popen(
        [sys.executable, "-c", program, name, *words],
        stdout=subprocess.PIPE,
        env=os.environ | {"PYNOTIFY_CRASHPOINTS": "1", "PYTHONPATH": paths},
    )
    try:
        os.waitid(os.P_PID, running.pid, os.WSTOPPED | os.WNOWAIT)
        yield running
    finally:
        running.kill()
        running.communicate()


@pytest.mark.parametrize("how", ["wait", "get", "follow"])
def test_right_before_the_system_call(
    make_engine: EngineFactory, engine: pynotify.Engine, how: str
) -> None:
    with _stopped(make_engine.name_of(engine), PROGRAM, how) as running:
        running.send_signal(signal.SIGTERM)
        running.send_signal(signal.SIGCONT)
        out, _ = running.communicate(timeout=PATIENCE)
    assert out.split() == [b"ready", b"handled", b"True"]


# ---- in a stream of messages -------------------------------------------------------------------

STREAM = """
import operator, signal, sys
from functools import partial
import pynotify
from pynotify import _hot
from pynotify._ffi import lib
class Handled(Exception):
    pass
def handler(number, frame):
    raise Handled
conn = pynotify.connect(sys.argv[1])
conn.listen("c")
signal.signal(signal.SIGTERM, handler)
conn.notify("c")
assert _hot.wait(conn.link.handle, 100_000_000) == 1
conn.poll()
while _hot.wait(conn.link.handle, 1) != 0:
    pass  # its own signal
marks = []
sleep = partial(_hot.wait, conn.link.handle, 100_000_000)
mark = partial(marks.append, "the sleep was over")
assert lib.pn_crash_arm(b"sleep:begins", 1, lib.PN_CRASH_STOP) == 0
try:
    list(map(operator.call, [sleep, mark]))
except Handled:
    print("handled", *marks)
"""


def test_after_a_short_sleep(make_engine: EngineFactory, engine: pynotify.Engine) -> None:
    """It is the next sleep's, without a return to Python."""
    with _stopped(make_engine.name_of(engine), STREAM) as running:
        running.send_signal(signal.SIGTERM)
        running.send_signal(signal.SIGCONT)
        out, _ = running.communicate(timeout=PATIENCE)
    assert out == b"handled\n"


# ---- a bell that nothing answers ---------------------------------------------------------------


def _rung_in_vain(conn: pynotify.Connection) -> list[tuple[int, ...]]:
    """It is in the set of the connection, and rings when the main thread has left."""
    ended = []
    assert _wait(conn, SHORT) == 0
    for sleep in (_waiting(conn, 15 * 10**6), _waiting(conn, SHORT)):
        _hot.ring()
        ended.append(Call(lambda sleep=sleep: tuple(sleep() for _ in range(3))).result()[1:])
        _hot.ring()
        ended.append(tuple(sleep() for _ in range(3))[1:])
    return ended


def test_a_ring_that_comes_late_ends_one_sleep_at_most(play: Callable[[Part], Any]) -> None:
    """Of this thread and of others: nothing spins."""
    assert play(_rung_in_vain) == [(0, 0)] * 4


# ---- a main thread that another one leads ------------------------------------------------------


def _led(conn: pynotify.Connection) -> list[str]:
    """Messages wake it as they wake a thread that sleeps on a lock."""
    ours, theirs = conn.subscribe("ours"), conn.subscribe("theirs")
    leader = theirs.start(lambda _message: None)
    await_waiting(conn, 1)

    def send() -> None:
        for number in range(3):
            await_waiting(conn, 2)
            conn.notify("ours", str(number))
            wait_until(lambda number=number: len(heard) > number, "it was heard")

    heard: list[str] = []
    sender = Call(send)
    for _ in range(3):
        heard.append(ours.next(PATIENCE).payload)
    sender.result()
    leader.stop()
    return heard


def test_a_main_thread_that_is_led_is_woken(play: Callable[[Part], Any]) -> None:
    assert play(_led) == ["0", "1", "2"]
