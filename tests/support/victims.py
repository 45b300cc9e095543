"""Processes that are killed at a crash point, and the scenarios in which they are.

The functions without an underscore run in a nursery: a `sessions.Worker` on the build with crash
points.  It forks a victim for each attempt, which is quicker than starting Python each time.
A scenario is what the victim does; `before` and `meanwhile` are what others do around it.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pynotify
from forking import ForkedChild
from receiving import PATIENCE, payloads

PAGES = 64
ONE_PAGE = "x" * 7990
HEARD = "heard"
"""The channel that the survivors listen to."""
COUNTERS = ("victims", "bumps")
BUMPING = ("c.3", "h")
"""The last messages of the transactions that bump each counter once."""
OWN = "own"
"""The channel on which the victim is notified."""

_victims: dict[int, ForkedChild] = {}


def crash_labels() -> list[str]:
    from pynotify._ffi import ffi, lib

    return [
        ffi.string(lib.pn_crash_label(number)).decode()
        for number in range(lib.pn_crash_label_count())
    ]


def start_victim(
    scenario: str, name: str, acks: str, label: str | None, *, nth: int = 1, stop: bool = False
) -> int:
    """Fork; the pid.  Killed (or stopped) at the nth passage of `label`."""

    def run() -> Any:
        from pynotify._ffi import lib

        if label is not None:
            action = lib.PN_CRASH_STOP if stop else lib.PN_CRASH_KILL
            assert lib.pn_crash_arm(label.encode(), nth, action) == 0
        return SCENARIOS[scenario](name, Log(acks))

    return _start(run)


def start_falling_asleep(name: str, acks: str, label: str, passage: int) -> int:
    return _start(lambda: fall_asleep(name, Log(acks), label, passage))


def _start(run: Callable[[], Any]) -> int:
    child = ForkedChild(run)
    _victims[child.pid] = child
    return child.pid


def victims_end(pid: int) -> int:
    """Its exit status, minus the signal's number."""
    return _victims.pop(pid).join()


def victims_result(pid: int) -> Any:
    return _victims.pop(pid).result()


def kill_victim(pid: int) -> int:
    os.kill(pid, signal.SIGKILL)
    return victims_end(pid)


class Log:
    """What the victim knows to be committed, a line each, in a file that survives it."""

    def __init__(self, path: str) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def trying(self, *sent: str) -> None:
        self._write("try", sent)

    def committed(self) -> None:
        self._write("ok", ())

    def note(self, text: str) -> None:
        self._write("note", (text,))

    def _write(self, kind: str, words: tuple[str, ...]) -> None:
        os.write(self._fd, (" ".join((kind, *words)) + "\n").encode())


def read_log(path: Path) -> tuple[list[list[str]], list[str], list[str]]:
    """Committed transactions, the one in doubt (empty if there is none), and the notes."""
    committed: list[list[str]] = []
    doubtful: list[str] = []
    notes: list[str] = []
    for line in path.read_text().splitlines() if path.exists() else []:
        kind, *words = line.split(" ")
        if kind == "try":
            doubtful = words
        elif kind == "ok":
            committed.append(doubtful)
            doubtful = []
        else:
            notes.extend(words)
    return committed, doubtful, notes


# ---- scenarios: what a victim does -------------------------------------------------------------


def _send(conn: pynotify.Connection, log: Log, *sent: str) -> None:
    """One transaction."""
    log.trying(*sent)
    if len(sent) == 1:
        conn.notify(HEARD, sent[0])
    else:
        assert conn.notify_many(HEARD, sent) == len(sent)
    log.committed()


def _send_and_bump(conn: pynotify.Connection, log: Log, payload: str) -> None:
    """One transaction, with a bump of each of `COUNTERS`."""
    log.trying(payload)
    with conn.transaction():
        _bump(conn)
        conn.notify(HEARD, payload)
    log.committed()


def _bump(conn: pynotify.Connection) -> None:
    for name in COUNTERS:
        conn.generation(name).bump()


def _send_with_everything(conn: pynotify.Connection, log: Log, name: str) -> None:
    """A transaction with savepoints, LISTEN, UNLISTEN, bumps, and `prepare`."""
    log.trying(f"{name}.1", f"{name}.3")
    with conn.transaction() as tx:
        conn.notify(HEARD, f"{name}.1")
        with conn.transaction():
            conn.notify(HEARD, f"never.{name}")
            _bump(conn)
            raise pynotify.Rollback
        conn.listen("x", "y")
        conn.unlisten("x")
        conn.notify(HEARD, f"{name}.3")
        conn.notify(OWN, "with bumps")
        _bump(conn)
        tx.prepare()
    log.committed()


def work(name: str, log: Log) -> None:
    """A bit of everything; `meanwhile` notifies it."""
    with pynotify.connect(name) as conn:
        conn.listen(OWN, "another")
        conn.listen_pattern(f"{OWN}*", "[an]*")
        _send(conn, log, "a")
        _send(conn, log, "b.1", "b.2", "b.3")
        _send_with_everything(conn, log, "c")
        with conn.transaction():
            conn.notify(HEARD, "never")
            raise pynotify.Rollback
        conn.notify(OWN, "to myself")
        conn.poll(max=1)
        log.note("listening")
        for _ in range(6):
            conn.wait(0.5)
            conn.poll()
        for number in range(10):
            conn.notify(OWN, "x" * 4000)
            _send(conn, log, f"d{number}")
            conn.wait(0)
            conn.poll()
        conn.queue_usage()
        conn.unlisten("another")
        conn.unlisten_pattern(f"{OWN}*")
        conn.listen("another", "z")
        conn.unlisten_all()
        _send(conn, log, "e")
        conn.listen(OWN)


def work_by_descriptor(name: str, log: Log) -> None:
    """As an event loop does, which never enters our wait."""
    with pynotify.connect(name) as conn:
        conn.listen(OWN)
        conn.poll()
        log.note("listening")
        for number in range(6):
            select.select([conn], [], [], 0.5)
            conn.poll()
            _send(conn, log, f"f{number}")


def create(name: str, log: Log) -> None:
    """The segment does not exist yet."""
    with pynotify.connect(name, queue_pages=PAGES) as conn:
        conn.notify(OWN, "x")


def look_around(name: str, log: Log) -> None:
    """A process has died before: reap it."""
    with pynotify.open(name, create=False) as engine:
        engine.stat()
        with engine.connect() as conn:
            _send(conn, log, "g")


def take_over(name: str, log: Log) -> None:
    """A process has died with the lock before: recover it."""
    with pynotify.connect(name) as conn:
        conn.listen(OWN)
        _send_and_bump(conn, log, "h")


def notify_once(name: str, log: Log) -> None:
    with pynotify.connect(name) as conn:
        _send_and_bump(conn, log, "h")


def listen_once(name: str, log: Log) -> None:
    with pynotify.connect(name) as conn:
        conn.listen_pattern(f"{OWN}*")
        conn.listen(OWN, "another")


def poll_busily(name: str, log: Log) -> None:
    """Look for messages all the time, for a while."""
    with pynotify.connect(name) as conn:
        conn.listen(OWN)
        log.note("listening")
        deadline = time.monotonic() + 2
        while time.monotonic() < deadline:
            conn.poll()
        log.note("over")


def sleep_once(name: str, log: Log) -> None:
    """Until one message has come."""
    with pynotify.connect(name) as conn:
        conn.listen(OWN)
        log.note("listening")
        while not conn.poll():
            conn.wait(PATIENCE)


def notify_victim(name: str, log: Log) -> None:
    with pynotify.connect(name) as conn:
        conn.notify(OWN)


def fall_asleep(name: str, log: Log, label: str, passage: int) -> None:
    """Stand between the last look and falling asleep; on SIGUSR2 be killed at `label`.

    The handler is one of C's: it runs as soon as the process goes on, still inside poll().
    """
    from pynotify._ffi import lib

    def arm(_number: int) -> None:
        lib.pn_crash_arm(label.encode(), 1, lib.PN_CRASH_KILL)

    handler = ctypes.CFUNCTYPE(None, ctypes.c_int)(arm)
    ctypes.CDLL(None).signal(signal.SIGUSR2, handler)
    with pynotify.connect(name) as conn:
        conn.listen(OWN)
        conn.fileno()
        conn.poll()
        conn.notify(OWN)
        lib.pn_crash_arm(b"wake:owed-cleared", passage, lib.PN_CRASH_STOP)
        conn.poll()


def fill(name: str, log: Log) -> None:
    """Notify until the queue is full, and with "block" wait for room."""
    with pynotify.connect(name) as conn:
        for number in range(2 * PAGES):
            log.trying(f"i{number}")
            conn.notify(HEARD, f"i{number} ".ljust(7990, "x"))
            log.committed()


def read_slowly(name: str, log: Log) -> None:
    """The laggard that a sender waits for."""
    with pynotify.connect(name) as conn:
        conn.listen(OWN)
        log.note("listening")
        for _ in range(3 * PAGES):
            while conn.queue_usage() <= (PAGES - 2) / PAGES:  # else the sender may never wait
                select.select([], [], [], 0.002)
            conn.poll(max=1)


def reserve(name: str, log: Log) -> None:
    """Prepared, not committed: what is reserved must be given back."""
    with pynotify.connect(name) as conn, conn.transaction() as tx:
        conn.notify_many(HEARD, [f"never.{n}".ljust(7990, "x") for n in range(PAGES // 3)])
        conn.listen("reserved")
        tx.prepare()
        raise pynotify.Rollback(tx)


def hear(name: str, log: Log) -> list[str]:
    """Until "end": everything heard on the own channel."""
    heard: list[str] = []
    with pynotify.connect(name) as conn:
        conn.listen(OWN)
        conn.notify(OWN, "0")
        log.note("listening")
        while "end" not in heard:
            conn.wait(PATIENCE)
            heard += payloads(conn.poll(max=3))
    return heard


SCENARIOS: dict[str, Callable[[str, Log], Any]] = {
    function.__name__: function
    for function in (
        create,
        fill,
        hear,
        listen_once,
        look_around,
        notify_once,
        notify_victim,
        poll_busily,
        read_slowly,
        reserve,
        sleep_once,
        take_over,
        work,
        work_by_descriptor,
    )
}
