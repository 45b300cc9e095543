"""A guest in another program's process: what the engine does with SIGUSR1.

Everything here runs in fresh processes, as dispositions belong to the whole process.
"""

from __future__ import annotations

import faulthandler
import logging
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import pynotify
from receiving import PATIENCE, payloads, readable, receive, wait_until
from requirement import require
from sessions import Connect, NewWorker, Worker

RT = signal.SIGRTMIN + 3


def signal_mask(field: str, pid: int | str = "self") -> int:
    """SigCgt, SigIgn, SigBlk, SigPnd or ShdPnd of a process."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith(field)), 16)


def has(field: str, number: int, pid: int | str = "self") -> bool:
    return bool(signal_mask(field, pid) >> (number - 1) & 1)


# ---- what the process under test does -----------------------------------------------------------

_held: list[pynotify.Connection] = []
_calls: list[str] = []


def open_and_listen(name: str, *channels: str, **options: object) -> int:
    conn = pynotify.connect(name, **options)
    _held.append(conn)
    conn.listen(*channels)
    return conn.backend_id


def hear(count: int) -> list[str]:
    return payloads(receive(_held[0], count))


def poll_now() -> list[str]:
    return payloads(_held[0].poll())


def close_all() -> None:
    while _held:
        _held.pop().close()


def nothing() -> str:
    return "alive"


def calls() -> list[str]:
    """What the handlers of the test noted; handlers of Python run before this returns."""
    return list(_calls)


def note(text: str) -> None:
    _calls.append(text)


def handle_in_python(text: str) -> None:
    signal.signal(signal.SIGUSR1, lambda _number, _frame: note(text))


def set_default() -> None:
    signal.signal(signal.SIGUSR1, signal.SIG_DFL)


def set_ignored() -> None:
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)


def block(number: int) -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, [number])


def unblock(number: int) -> None:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [number])


def watch_descriptor() -> bool:
    return readable(_held[0].fileno(), 3 * PATIENCE)


# ---- installing ---------------------------------------------------------------------------------


def _dispositions_step_by_step(name: str) -> dict[str, bool]:
    seen = {"import": has("SigCgt", signal.SIGUSR1)}
    engine = pynotify.open(name)
    seen["open"] = has("SigCgt", signal.SIGUSR1)
    conn = engine.connect()
    conn.notify("c")
    seen["connect and notify"] = has("SigCgt", signal.SIGUSR1)
    conn.listen("c")
    seen["listen"] = has("SigCgt", signal.SIGUSR1)
    conn.close()
    engine.close()
    return seen


def test_nothing_is_installed_before_it_is_needed(engine_name: str, worker: Worker) -> None:
    """Nothing at import; armed lazily in the process that first listens or waits."""
    assert worker.call(_dispositions_step_by_step, engine_name) == {
        "import": False,
        "open": False,
        "connect and notify": False,
        "listen": True,
    }


def test_wake_up_is_a_real_signal(
    engine: pynotify.Engine, engine_name: str, connect: Connect, worker: Worker
) -> None:
    """Blocked there, it is seen pending by the kernel: SIGUSR1, to that process."""
    worker.call(block, signal.SIGUSR1)
    worker.call(open_and_listen, engine_name, "c")
    before = engine.stat().signals_sent
    assert not has("ShdPnd", signal.SIGUSR1, worker.pid)
    connect().notify("c", "x")
    assert engine.stat().signals_sent == before + 1
    assert has("ShdPnd", signal.SIGUSR1, worker.pid)
    worker.call(unblock, signal.SIGUSR1)
    assert worker.call(hear, 1) == ["x"]


def test_blocked_signal_does_not_lose_messages(
    engine_name: str, connect: Connect, worker: Worker
) -> None:
    """Blocked in all threads: poll() and wait() still find what is there."""
    worker.call(block, signal.SIGUSR1)
    worker.call(open_and_listen, engine_name, "c")
    conn = connect()
    for number in range(5):
        conn.notify("c", str(number))
        assert worker.call(hear, 1) == [str(number)]


def test_real_time_signal(
    engine: pynotify.Engine, engine_name: str, connect: Connect, worker: Worker
) -> None:
    """`wakeup`: a real-time signal number; SIGUSR1 is left alone."""
    worker.call(block, RT)
    worker.call(open_and_listen, engine_name, "c", wakeup=int(RT))
    assert not has("SigCgt", signal.SIGUSR1, worker.pid)
    connect().notify("c", "x")
    assert has("ShdPnd", RT, worker.pid)
    worker.call(unblock, RT)
    assert worker.call(hear, 1) == ["x"]


def test_polling_needs_no_signal(
    engine: pynotify.Engine, engine_name: str, connect: Connect, worker: Worker
) -> None:
    """`wakeup="poll"`: no handler, no signal, yet waiting works, on the descriptor too."""
    worker.call(open_and_listen, engine_name, "c", wakeup="poll")
    assert not has("SigCgt", signal.SIGUSR1, worker.pid)
    conn = connect()
    before = engine.stat().signals_sent
    worker.start(hear, 1)
    conn.notify("c", "1")
    assert worker.result() == ["1"]
    worker.start(watch_descriptor)
    conn.notify("c", "2")
    assert worker.result() is True
    assert worker.call(poll_now) == ["2"]
    assert engine.stat().signals_sent == before


@pytest.mark.parametrize(
    "wakeup", ["nope", "", 0, -1, 1000, signal.SIGKILL, signal.SIGTERM, signal.SIGUSR2, 1.5, True]
)
def test_bad_wakeups(engine: pynotify.Engine, wakeup: object) -> None:
    with pytest.raises((ValueError, TypeError)):
        engine.connect(wakeup=wakeup)
    assert engine.stat().backends == []


# ---- sharing the signal with others -------------------------------------------------------------


def test_earlier_python_handler_gets_foreign_signals_only(
    engine_name: str, connect: Connect, worker: Worker
) -> None:
    """Chaining: every signal that is not ours goes on to the handler before."""
    worker.call(handle_in_python, "earlier")
    worker.call(open_and_listen, engine_name, "c")
    conn = connect()
    for number in range(3):
        conn.notify("c", str(number))
        assert worker.call(hear, 1) == [str(number)]
    assert worker.call(calls) == []
    worker.signal(signal.SIGUSR1)
    wait_until(lambda: worker.call(calls) == ["earlier"], "the earlier handler ran")


def _dump_to(path: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT)
    faulthandler.register(signal.SIGUSR1, fd, all_threads=False, chain=False)


@pytest.mark.parametrize("earlier", [True, False])
def test_handler_written_in_c(
    engine_name: str, connect: Connect, worker: Worker, tmp_path: Path, earlier: bool
) -> None:
    """faulthandler's, which `signal.getsignal` cannot see; before ours and after it."""
    path = tmp_path / "stack"
    if earlier:
        worker.call(_dump_to, str(path))
    worker.call(open_and_listen, engine_name, "c")
    if not earlier:
        worker.call(_dump_to, str(path))
        assert worker.call(poll_now) == []
        worker.call(listen_more, "d")
    conn = connect()
    conn.notify("c", "x")
    assert worker.call(hear, 1) == ["x"]
    assert path.read_text() == "", "a signal of ours was passed on"
    worker.signal(signal.SIGUSR1)
    wait_until(lambda: "most recent call first" in path.read_text(), "a foreign one was passed on")


def listen_more(channel: str) -> None:
    _held[0].listen(channel)


@pytest.mark.parametrize("again", ["listen", "wait"])
def test_reinstalled_after_signal_signal_replaced_it(
    engine: pynotify.Engine, engine_name: str, connect: Connect, worker: Worker, again: str
) -> None:
    """The disposition is checked at every listen and wait; the new owner is chained."""
    worker.call(open_and_listen, engine_name, "c")
    before = engine.stat().handler_reinstalls
    worker.call(handle_in_python, "replacement")
    if again == "listen":
        worker.call(listen_more, "d")
    else:
        worker.call(wait_briefly)
    assert engine.stat().handler_reinstalls == before + 1
    conn = connect()
    for number in range(3):
        conn.notify("c", str(number))
        assert worker.call(hear, 1) == [str(number)]
    assert worker.call(calls) == []
    worker.signal(signal.SIGUSR1)
    wait_until(lambda: worker.call(calls) == ["replacement"], "the new owner's handler ran")
    assert engine.stat().handler_reinstalls == before + 1


class _Notes(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        note(record.getMessage())


def log_to_calls() -> None:
    logging.getLogger("pynotify").addHandler(_Notes(logging.WARNING))


def test_reinstallation_is_logged_once(
    engine: pynotify.Engine, engine_name: str, worker: Worker
) -> None:
    """Handler re-installs are among the warnings to the logger "pynotify"."""
    worker.call(log_to_calls)
    worker.call(open_and_listen, engine_name, "c")
    assert worker.call(calls) == []
    worker.call(set_ignored)
    for _ in range(3):
        worker.call(wait_briefly)
    assert len(worker.call(calls)) == 1
    assert engine.stat().handler_reinstalls == 1


def wait_briefly() -> bool:
    return _held[0].wait(0.001)


@pytest.mark.parametrize("disposition", [set_default, set_ignored])
def test_process_without_our_handler_is_not_signalled(
    engine: pynotify.Engine,
    engine_name: str,
    connect: Connect,
    worker: Worker,
    disposition: Callable[[], None],
) -> None:
    """A library restored what it thought was there: a wake-up must not kill the process."""
    worker.call(open_and_listen, engine_name, "c")
    worker.call(disposition)
    conn = connect()
    for number in range(20):
        conn.notify("c", str(number))
    assert worker.call(nothing) == "alive"
    assert worker.call(hear, 20) == [str(number) for number in range(20)]
    assert worker.call(wait_briefly) is False
    assert engine.stat().handler_reinstalls == 1
    conn.notify("c", "woken by a signal again")
    assert worker.call(hear, 1) == ["woken by a signal again"]


@pytest.mark.full
def test_descriptor_is_as_safe_when_our_handler_was_replaced(
    engine_name: str, connect: Connect, worker: Worker
) -> None:
    """A loop that only watches the fd never enters our wait: a slow timer looks after it."""
    worker.call(open_and_listen, engine_name, "c")
    worker.call(set_default)
    worker.start(watch_descriptor)
    connect().notify("c", "x")
    assert worker.result(3 * PATIENCE) is True
    assert worker.call(poll_now) == ["x"]


def test_foreign_signal_with_default_disposition_terminates(
    engine_name: str, worker: Worker
) -> None:
    """While a connection is open."""
    worker.call(open_and_listen, engine_name, "c")
    worker.signal(signal.SIGUSR1)
    assert worker.join() == -signal.SIGUSR1


def test_foreign_signal_after_the_last_close_is_ignored(engine_name: str, worker: Worker) -> None:
    """A late wake-up must not kill."""
    worker.call(open_and_listen, engine_name, "c")
    worker.call(open_and_listen, engine_name, "c")
    worker.call(close_all)
    assert has("SigIgn", signal.SIGUSR1, worker.pid)
    worker.signal(signal.SIGUSR1)
    assert worker.call(nothing) == "alive"


def test_earlier_handler_is_back_after_the_last_close(engine_name: str, worker: Worker) -> None:
    worker.call(handle_in_python, "earlier")
    worker.call(open_and_listen, engine_name, "c")
    worker.call(close_all)
    worker.signal(signal.SIGUSR1)
    wait_until(lambda: worker.call(calls) == ["earlier"], "the earlier handler ran")


def test_connecting_again_installs_again(
    engine_name: str, connect: Connect, worker: Worker
) -> None:
    conn = connect()
    for number in range(3):
        worker.call(open_and_listen, engine_name, "c")
        assert has("SigCgt", signal.SIGUSR1, worker.pid)
        conn.notify("c", str(number))
        assert worker.call(hear, 1) == [str(number)]
        worker.call(close_all)


def test_storm_of_foreign_signals(engine_name: str, connect: Connect, worker: Worker) -> None:
    """Progress and nothing lost while others send the same signal as fast as they can."""
    worker.call(handle_in_python, "storm")
    worker.call(open_and_listen, engine_name, "c")
    conn, over = connect(), threading.Event()

    def storm() -> None:
        while not over.is_set():
            worker.signal(signal.SIGUSR1)

    thread = threading.Thread(target=storm)
    thread.start()
    try:
        worker.start(hear, 1000)
        for number in range(1000):
            conn.notify("c", str(number))
        assert worker.result() == [str(number) for number in range(1000)]
    finally:
        over.set()
        thread.join()
    assert "storm" in worker.call(calls)


def _use_it_from_a_signal_handler(name: str) -> tuple[int, int]:
    """Handlers of Python that interrupt calls on the connection and make calls themselves."""
    conn = pynotify.connect(name)
    conn.listen("c")
    sent = refused = 0
    inside = False

    def handler(_number: int, _frame: object) -> None:
        nonlocal sent, refused, inside
        if inside:
            return
        inside = True
        try:
            conn.notify("c", f"handler {sent}")
            conn.poll(max=1)
            sent += 1
        except pynotify.Error:
            refused += 1
        finally:
            inside = False

    signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
    deadline = time.monotonic() + 1.0
    while time.monotonic() < deadline:
        conn.notify("c", "x")
        with conn.transaction():
            conn.notify("c", "y")
        conn.poll()
        conn.wait(0.0005)
    signal.setitimer(signal.ITIMER_REAL, 0)
    conn.close()
    return sent, refused


def test_calls_from_a_signal_handler(engine_name: str, worker: Worker) -> None:
    """No deadlock: they work, or are refused with an error."""
    sent, refused = worker.call(_use_it_from_a_signal_handler, engine_name)
    assert sent + refused > 0
    assert sent > 0


# ---- no stranger is signalled -------------------------------------------------------------------


def _read_forever() -> list[str]:
    return [sys.executable, "-c", "import sys; sys.stdin.read()"]


def test_program_that_was_execed_is_not_signalled(
    engine: pynotify.Engine, engine_name: str, connect: Connect, tmp_path: Path
) -> None:
    """The process lives on with the same pid and the default disposition: it is a stranger now."""
    script = (
        "import os, signal, sys, pynotify\n"
        "signal.signal(signal.SIGUSR1, signal.SIG_DFL)\n"
        "conn = pynotify.connect(sys.argv[1])\n"
        "conn.listen('c')\n"
        "print('listening', flush=True)\n"
        "sys.stdin.readline()\n"
        "os.execv(sys.executable, [sys.executable, '-c',"
        " \"import sys; print('changed', flush=True); print(sys.stdin.readline().strip())\"])\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, engine_name],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        assert process.stdout.readline() == "listening\n"
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.stdout.readline() == "changed\n"
        conn = connect()
        for number in range(20):
            conn.notify("c", str(number))
        assert conn.queue_usage() == 0
        rest, _ = process.communicate("still alive\n", PATIENCE)
        assert rest == "still alive\n"
        assert process.returncode == 0
    assert [backend.pid for backend in engine.stat().backends] == [conn.pid]


def _start_child() -> int:
    child = subprocess.Popen(_read_forever(), stdin=subprocess.PIPE)
    _children.append(child)
    return child.pid


def _end_child() -> int:
    child = _children.pop()
    child.communicate()
    return child.returncode


_children: list[subprocess.Popen[bytes]] = []


def test_child_of_a_listener_is_not_signalled(
    engine_name: str, connect: Connect, worker: Worker
) -> None:
    """A program that a listener started has the default disposition, and lives."""
    worker.call(open_and_listen, engine_name, "c")
    worker.call(_start_child)
    conn = connect()
    for number in range(20):
        conn.notify("c", str(number))
        assert worker.call(hear, 1) == [str(number)]
    assert worker.call(_end_child) == 0


def test_zombie_is_dead(
    engine: pynotify.Engine, engine_name: str, connect: Connect, worker: Worker
) -> None:
    """Killed, not yet waited for: `kill(pid, 0)` succeeds, yet it holds nothing."""
    worker.call(open_and_listen, engine_name, "c")
    worker.signal(signal.SIGKILL)
    worker.await_end()
    conn = connect()
    for _ in range(2000):
        conn.notify("c", "x" * 7990)
    assert [backend.pid for backend in engine.stat().backends] == [conn.pid]


def test_stopped_listener_is_not_dead(
    engine: pynotify.Engine, engine_name: str, connect: Connect, worker: Worker
) -> None:
    """Liveness is never a time-out."""
    worker.call(open_and_listen, engine_name, "c")
    worker.suspend()
    conn = connect()
    conn.notify("c", "kept for it")
    assert worker.pid in [backend.pid for backend in engine.stat().backends]
    worker.resume()
    assert worker.call(hear, 1) == ["kept for it"]


class Stranger:
    """`cat` in a process that has nothing to do with us, with SIGUSR1's default disposition."""

    def __init__(self) -> None:
        stdin, self._writing = os.pipe()
        self._reading, stdout = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            signal.signal(signal.SIGUSR1, signal.SIG_DFL)
            os.dup2(stdin, 0)
            os.dup2(stdout, 1)
            os.execv("/bin/cat", ["cat"])
        os.close(stdin)
        os.close(stdout)

    def echo(self, text: bytes) -> bytes:
        """What comes back; empty when it is dead."""
        try:
            os.write(self._writing, text)
        except BrokenPipeError:
            return b""
        return os.read(self._reading, len(text))

    def end(self) -> int:
        os.close(self._writing)
        os.close(self._reading)
        _pid, status = os.waitpid(self.pid, 0)
        return os.waitstatus_to_exitcode(status)


def _come_near(pid: int) -> None:
    """Make the kernel's next pids those just before `pid`: as root at once, else by using up all.

    Threads have numbers of the same sequence, and are quicker than processes.
    """
    choose = Path("/proc/sys/kernel/ns_last_pid")
    if os.geteuid() == 0 and choose.exists():
        choose.write_text(str(pid - 1))
        return
    for _ in range(80_000):
        thread = threading.Thread(target=os.getpid)
        thread.start()
        thread.join()
        if 0 < pid - (thread.native_id or 0) <= 4:
            return


def _stranger_with_pid(pid: int) -> Stranger | None:
    """None if that pid was not to be had."""
    for _ in range(3):
        _come_near(pid)
        for _ in range(8):
            stranger = Stranger()
            if stranger.pid == pid:
                return stranger
            stranger.end()
            if Path(f"/proc/{pid}").exists():
                return None
    return None


@pytest.mark.parametrize("listening_again", [False, True])
def test_stranger_with_the_pid_of_a_dead_listener_lives(
    engine: pynotify.Engine,
    engine_name: str,
    connect: Connect,
    new_worker: NewWorker,
    listening_again: bool,
) -> None:
    """pid reuse: SIGUSR1 by default terminates, so the stranger would die of a signal."""
    require("pid-reuse")
    deadline = time.monotonic() + 3 * PATIENCE
    while time.monotonic() < deadline:
        listener = new_worker()
        listener.call(open_and_listen, engine_name, "c")
        conn = connect()
        conn.listen("d")
        if listening_again:
            conn.notify("c", "opens the cached pidfd")
            listener.call(hear, 1)
        listener.kill()
        stranger = _stranger_with_pid(listener.pid)
        if stranger is not None:
            break
        conn.close()
    else:
        require("pid-reuse", "other processes took the pid each time")
        return
    try:
        assert stranger.echo(b"before") == b"before"
        assert not has("SigIgn", signal.SIGUSR1, stranger.pid)
        for number in range(50):
            conn.notify("c", str(number))
        assert stranger.echo(b"after") == b"after", "a stranger was signalled"
        assert [backend.pid for backend in engine.stat().backends] == [conn.pid]
    finally:
        status = stranger.end()
    assert status == 0


def test_new_listener_with_the_pid_of_a_dead_one_is_signalled(
    engine: pynotify.Engine, engine_name: str, connect: Connect, worker: Worker
) -> None:
    """Slots are used again: the generation tells the new owner from the old."""
    conn = connect()
    for number in range(5):
        worker.call(open_and_listen, engine_name, "c")
        conn.notify("c", str(number))
        assert worker.call(hear, 1) == [str(number)]
        worker.call(close_all)
        conn.notify("c", "unheard")
    assert len(engine.stat().backends) == 1


def test_descriptors_are_closed_on_exec(conn: pynotify.Connection) -> None:
    """None of ours is inherited by a program that is started."""
    conn.listen("c")
    inheritable = [fd for fd in map(int, os.listdir("/proc/self/fd")) if _ours(fd)]
    assert inheritable == []


def _ours(fd: int) -> bool:
    try:
        target = os.readlink(f"/proc/self/fd/{fd}")
        return "pynotify" in target and os.get_inheritable(fd)
    except OSError:
        return False


def test_wait_in_a_thread_only(engine_name: str, connect: Connect, worker: Worker) -> None:
    """No main thread is needed: whichever thread takes the signal, the waiting one wakes."""
    worker.call(open_and_listen, engine_name, "c")
    worker.start(_hear_in_thread, 20)
    conn = connect()
    for number in range(20):
        conn.notify("c", str(number))
        select.select([], [], [], 0.001)
    assert worker.result() == [str(number) for number in range(20)]


def _hear_in_thread(count: int) -> list[str]:
    heard: list[str] = []
    thread = threading.Thread(target=lambda: heard.extend(hear(count)))
    thread.start()
    thread.join()
    return heard
