"""Wake-ups by a process that has no descriptor left, or may not signal at all."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import gc
import logging
import os
import platform
import resource
import select
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import pynotify
from forking import in_child
from receiving import PATIENCE, wait_until
from sessions import Connect, NewWorker

LISTENERS = 3
_held: list[pynotify.Connection] = []


class Warnings(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())


@contextlib.contextmanager
def warnings() -> Iterator[list[str]]:
    handler = Warnings()
    logging.getLogger("pynotify").addHandler(handler)
    yield handler.texts
    logging.getLogger("pynotify").removeHandler(handler)


def connect_here(name: str) -> None:
    _held.append(pynotify.connect(name))


def hear_one(name: str) -> str:
    """It stays connected: closing tells those that watch, and they need no signal any more."""
    connect_here(name)
    conn = _held[-1]
    conn.listen("c")
    while not conn.wait(PATIENCE):
        pass
    return ",".join(message.payload for message in conn.poll())


def notify_without_descriptors(limit: int | None) -> list[str]:
    """All descriptors below the limit are taken; 0: not even one that is given up can be had."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken: list[int] = []
    with warnings() as texts:
        try:
            highest = max(map(int, os.listdir("/proc/self/fd")))
            limits = (highest + 2 if limit is None else limit, before[1])
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
            with contextlib.suppress(OSError):
                while True:
                    taken.append(os.open("/dev/null", os.O_RDONLY))
            for number in range(2):
                _held[0].notify("c", str(number))
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, before)
            for fd in taken:
                os.close(fd)
    return texts


def asleep(engine: pynotify.Engine) -> int:
    return sum(backend.asleep and backend.channels == 1 for backend in engine.stat().backends)


def test_a_process_without_descriptors_wakes_nevertheless(
    engine: pynotify.Engine, engine_name: str, new_worker: NewWorker
) -> None:
    notifier, *listeners = [new_worker() for _ in range(1 + LISTENERS)]
    notifier.call(connect_here, engine_name)
    for listener in listeners:
        listener.start(hear_one, engine_name)
    wait_until(lambda: asleep(engine) == LISTENERS, "all of them sleep")
    before = engine.stat().signals_sent
    assert notifier.call(notify_without_descriptors, None) == []
    assert engine.stat().signals_sent >= before + LISTENERS
    for listener in listeners:
        assert listener.result()[0] == "0"
    notifier.close()


def test_a_process_that_cannot_wake_says_so_once(
    engine: pynotify.Engine, engine_name: str, new_worker: NewWorker
) -> None:
    notifier, listener = new_worker(), new_worker()
    notifier.call(connect_here, engine_name)
    listener.start(hear_one, engine_name)
    wait_until(lambda: asleep(engine) == 1, "it sleeps")
    assert engine.stat().signals_unsent == 0
    texts = notifier.call(notify_without_descriptors, 0)
    assert engine.stat().signals_unsent > 0
    assert len(texts) == 1
    assert "Too many open files" in texts[0]
    assert f"PID {listener.pid}" in texts[0]
    assert listener.result()[0] == "0"
    notifier.close()


def refuse_pidfds(name: str, error: int) -> list[str]:
    """As an old kernel, or an old sandbox, does."""
    allow, refuse = 0x7FFF0000, 0x00050000 | error
    program = [(0x20, 0, 0, 0)]
    for number in (424, 434):  # pidfd_send_signal, pidfd_open: the same on every machine
        program += [(0x15, 0, 1, number), (0x06, 0, 0, refuse)]
    program.append((0x06, 0, 0, allow))
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in program))
    filters = struct.pack("HxxxxxxP", len(program), ctypes.addressof(code))
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.prctl(38, 1, 0, 0, 0) == 0
    assert libc.prctl(22, 2, filters, 0, 0) == 0
    with warnings() as texts, pynotify.connect(name) as conn, pynotify.connect(name):
        conn.notify("c", "x")
    return texts


@pytest.mark.skipif(platform.machine() not in {"x86_64", "aarch64"}, reason="another machine")
@pytest.mark.parametrize("error", [errno.ENOSYS, errno.EPERM])
def test_refused_pidfds_are_told_at_connect(
    engine: pynotify.Engine, engine_name: str, connect: Connect, new_worker: NewWorker, error: int
) -> None:
    connect().listen("c")
    texts = new_worker().call(refuse_pidfds, engine_name, error)
    assert len(texts) == 1
    assert os.strerror(error) in texts[0]
    assert "late" in texts[0]


# ---- a thousand connections of one process -------------------------------------------------------

THOUSAND = 1000
#: The segment, lock files, two spares; of the few connections that watch two sets, and pidfds.
SHARED = 1 + 16 + 2 + 8 * (2 + 2)


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def listen_a_thousand_times(name: str) -> int:
    """How many descriptors that takes, with a descriptor for an event loop each."""
    resource.setrlimit(
        resource.RLIMIT_NOFILE, (4096, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
    )
    before = open_descriptors()
    for _ in range(THOUSAND):
        conn = pynotify.connect(name)
        conn.listen("c")
        conn.fileno()
        conn.wait(0)
        _held.append(conn)
    return open_descriptors() - before


def hear_in_one_loop() -> int:
    """How many have got the message."""
    silent = {conn.fileno(): conn for conn in _held}
    with select.epoll() as loop:
        for fd in silent:
            loop.register(fd, select.EPOLLIN)
        while silent:
            for fd, _ in loop.poll(PATIENCE):
                if fd in silent and [n.payload for n in silent[fd].poll()] == ["all"]:
                    del silent[fd]
    return THOUSAND - len(silent)


def close_all() -> int:
    for conn in _held:
        conn.close()
    _held.clear()
    return open_descriptors()


def test_a_thousand_connections_of_one_process(
    new_name: Callable[[], str], new_worker: NewWorker
) -> None:
    name = new_name()
    gateway, notifier = new_worker(), new_worker()
    before = gateway.call(open_descriptors)
    with pynotify.open(name) as engine:
        notifier.call(connect_here, name)
        assert gateway.call(listen_a_thousand_times, name) <= 3 * THOUSAND + SHARED
        gateway.start(hear_in_one_loop)
        notifier.call(notify_all)
        assert gateway.result() == THOUSAND
        assert gateway.call(close_all) == before
        assert engine.check().ok
    gateway.close()
    notifier.close()


def notify_all() -> None:
    _held[0].notify("c", "all")


# ---- numbers that are another file's by now ------------------------------------------------------


def use_everything(name: str) -> pynotify.Connection:
    conn = pynotify.connect(name)
    conn.listen("c")
    conn.fileno()
    conn.wait(0.001)
    with conn.topic("t").channel("c").consumer() as consumer:
        consumer.fileno()
    return conn


def take_numbers(directory: Path) -> list[int]:
    return [os.open(directory / str(i), os.O_RDWR | os.O_CREAT) for i in range(40)]


def test_a_forked_child_has_nothing_of_the_parents_open(engine_name: str, tmp_path: Path) -> None:
    """And closes nothing when the parent's connection is collected: it may be a daemon's file."""
    before = set(os.listdir("/proc/self/fd"))
    conn = use_everything(engine_name)
    ours = {int(fd) for fd in set(os.listdir("/proc/self/fd")) - before}

    def look() -> list[str]:
        nonlocal conn
        anonymous = []
        for fd in ours:
            with contextlib.suppress(OSError):
                link = os.readlink(f"/proc/self/fd/{fd}")
                if link.startswith("anon_inode") or "pidfd" in link:
                    anonymous.append(link)
        files = take_numbers(tmp_path)
        del conn
        gc.collect()
        for fd in files:
            os.fstat(fd)
        return anonymous

    assert in_child(look) == []
    conn.notify("c", "1")
    assert [n.payload for n in conn.poll()] == ["1"]
    conn.close()


def test_what_was_closed_behind_our_back_is_not_closed_again(
    engine_name: str, tmp_path: Path
) -> None:
    def look() -> None:
        before = set(os.listdir("/proc/self/fd"))
        conn = use_everything(engine_name)
        for fd in set(os.listdir("/proc/self/fd")) - before:
            with contextlib.suppress(OSError):
                os.close(int(fd))
        files = take_numbers(tmp_path)
        for fd in files:
            os.pwrite(fd, b"precious", 0)
        conn.notify("c", "1")
        assert [n.payload for n in conn.poll()] == ["1"]
        assert conn.poll() == []
        with pytest.raises(pynotify.OperationalError, match="closed the descriptor"):
            while True:
                conn.wait(PATIENCE)
        conn.close()
        for fd in files:
            assert os.read(fd, 100) == b"precious", "nothing was read from it or written to it"

    in_child(look)


def pidfds() -> set[int]:
    found = set()
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            if "pidfd" in os.readlink(f"/proc/self/fd/{fd}"):
                found.add(int(fd))
    return found


def test_the_programs_pidfd_of_a_neighbour_under_the_number_of_ours(
    conn: pynotify.Connection, engine_name: str, new_worker: NewWorker
) -> None:
    """It looks like ours, and is not: it stays open, and the neighbour is watched by another."""
    peer = new_worker()
    peer.call(connect_here, engine_name)
    before = pidfds()
    conn.listen("c")
    wait_until(lambda: conn.wait(0.01) or bool(pidfds() - before), "the neighbour is watched")
    (number,) = pidfds() - before
    own = os.pidfd_open(peer.pid)
    os.dup2(own, number, inheritable=False)
    os.close(own)
    try:
        wait_until(
            lambda: conn.wait(0.01) or bool(pidfds() - before - {number}), "it is watched again"
        )
        conn.close()
        os.fstat(number)
    finally:
        os.close(number)


def backlog_after_a_failed_fileno(name: str) -> int:
    with pynotify.connect(name) as conn:
        conn.listen("c")
        before = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, before[1]))
        try:
            with pytest.raises(pynotify.OperationalError, match="could not create an eventfd"):
                conn.fileno()
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, before)
        conn.notify_many("c", ["1", "2", "3", "4"])
        messages = conn.notifies()
        assert next(messages).payload == "1"
        return len(conn._receiver.backlog)


def test_without_a_descriptor_it_reads_ahead_as_before(
    engine: pynotify.Engine, engine_name: str
) -> None:
    """One that has no descriptor to show leaves nothing in the core for its sake."""
    assert in_child(lambda: backlog_after_a_failed_fileno(engine_name)) == 3
