"""EngineStat, BackendStat and CheckReport: exact as soon as the call has returned."""

from __future__ import annotations

import asyncio
import dataclasses
import signal
import subprocess
import sys
from typing import Any

import pytest

import pynotify
from interrupting import WHOLE, At, at_places
from locked import LockHolder
from pynotify._ffi import lib
from pynotify.bridge._local import become_bridge
from receiving import payloads, readable
from sessions import Connect, EngineFactory

COUNTERS = (
    "commits",
    "notifications",
    "collapsed",
    "signals_sent",
    "signals_elided",
    "signals_unsent",
    "wakeups_useful",
    "wakeups_useless",
    "slot_writes",
    "handler_reinstalls",
    "recoveries",
)


def test_fields(engine: pynotify.Engine, conn: pynotify.Connection) -> None:
    stat = engine.stat()
    assert dataclasses.is_dataclass(stat)
    for name in COUNTERS:
        assert isinstance(getattr(stat, name), int), name
    assert isinstance(stat.queue_usage, float)
    assert stat.queue_pages == 1024
    assert 0 <= stat.tail <= stat.head
    (row,) = stat.backends
    assert dataclasses.is_dataclass(row)
    assert (row.backend_id, row.pid, row.database) == (conn.backend_id, conn.pid, "default")
    assert (row.channels, row.lag_bytes, row.in_transaction) == (0, 0, False)
    assert isinstance(row.asleep, bool)


def test_all_counters_begin_at_zero(engine: pynotify.Engine) -> None:
    stat = engine.stat()
    assert {name: getattr(stat, name) for name in COUNTERS} == dict.fromkeys(COUNTERS, 0)
    assert stat.backends == []


def test_commits_counts_transactions_with_an_effect(
    engine: pynotify.Engine, conn: pynotify.Connection
) -> None:
    steps = [
        (lambda: conn.notify("c"), 1),
        (lambda: conn.listen("c", "d"), 1),
        (lambda: conn.notify_many("c", ["a", "b"]), 1),
        (lambda: conn.notify_many("c", []), 0),
        (conn.poll, 0),
        (conn.queue_usage, 0),
        (lambda: conn.unlisten("c", "d"), 1),
    ]
    for step, expected in steps:
        before = engine.stat().commits
        step()
        assert engine.stat().commits - before == expected


def test_a_transaction_is_one_commit(engine: pynotify.Engine, conn: pynotify.Connection) -> None:
    before = engine.stat()
    with conn.transaction():
        conn.listen("c")
        for payload in ("a", "b", "a"):
            conn.notify("c", payload)
        conn.notify("unheard", "a")
    after = engine.stat()
    assert after.commits - before.commits == 1
    assert after.notifications - before.notifications == 3
    assert after.collapsed - before.collapsed == 1


def test_notifications_counts_heard_or_not(
    engine: pynotify.Engine, conn: pynotify.Connection
) -> None:
    before = engine.stat().notifications
    conn.notify("unheard")
    conn.notify_many("unheard", ["a", "b"])
    assert engine.stat().notifications - before == 3


def test_collapsed_counts_duplicates(engine: pynotify.Engine, conn: pynotify.Connection) -> None:
    before = engine.stat().collapsed
    conn.notify_many("c", ["a"] * 10 + ["b"])
    conn.notify_many("c", ["a"] * 10, dedup=False)
    with conn.transaction():
        conn.notify("c", "x")
        with conn.transaction():
            conn.notify("c", "x")
    assert engine.stat().collapsed - before == 10


def test_rolled_back_work_is_not_counted(
    engine: pynotify.Engine, conn: pynotify.Connection
) -> None:
    before = engine.stat()
    conn.begin()
    conn.notify_many("c", ["a", "a"])
    conn.rollback()
    after = engine.stat()
    for name in ("commits", "notifications", "collapsed"):
        assert getattr(after, name) == getattr(before, name)


def test_useful_and_useless_wake_ups(engine: pynotify.Engine, connect: Connect) -> None:
    """Useless: a wake-up after which nothing was found."""
    listener, notifier = connect(), connect()
    listener.listen("c")
    before = engine.stat()
    notifier.notify("c", "x")
    assert listener.wait(0)
    assert payloads(listener.poll()) == ["x"]
    middle = engine.stat()
    assert middle.wakeups_useful - before.wakeups_useful == 1
    assert middle.wakeups_useless == before.wakeups_useless
    for _ in range(5):
        listener.poll()
        listener.wait(0)
    after = engine.stat()
    assert after.wakeups_useful == middle.wakeups_useful
    assert after.wakeups_useless == middle.wakeups_useless


def test_signals_sent_and_elided(engine: pynotify.Engine, connect: Connect) -> None:
    listener, notifier = connect(), connect()
    listener.listen("c")
    before = engine.stat()
    notifier.notify("c", "1")
    middle = engine.stat()
    assert middle.signals_sent - before.signals_sent == 1
    assert middle.slot_writes > before.slot_writes
    notifier.notify("c", "2")
    after = engine.stat()
    sent = after.signals_sent - middle.signals_sent
    elided = after.signals_elided - middle.signals_elided
    assert sent + elided == 1


def test_backend_rows(engine: pynotify.Engine, connect: Connect) -> None:
    one, two = connect(database="one"), connect(database="two")
    one.listen("a", "b", "c")
    two.begin()
    rows = {row.backend_id: row for row in engine.stat().backends}
    assert rows[one.backend_id].channels == 3
    assert rows[one.backend_id].database == "one"
    assert rows[two.backend_id].database == "two"
    assert not rows[one.backend_id].in_transaction
    assert rows[two.backend_id].in_transaction
    two.rollback()
    assert not any(row.in_transaction for row in engine.stat().backends)
    two.close()
    assert [row.backend_id for row in engine.stat().backends] == [one.backend_id]


def test_lag_is_what_is_left_to_read(engine: pynotify.Engine, connect: Connect) -> None:
    """From the first entry it still has to read to head, 0 when it is quiet."""
    listener, notifier = connect(), connect()
    listener.listen("c")
    head = engine.stat().head
    notifier.notify("c", "x" * 1000)
    notifier.notify("c", "y" * 1000)
    stat = engine.stat()
    (row,) = (b for b in stat.backends if b.backend_id == listener.backend_id)
    assert 2000 < row.lag_bytes <= stat.head - head
    assert stat.tail_holder_pid == listener.pid
    listener.poll()
    stat = engine.stat()
    assert all(b.lag_bytes == 0 for b in stat.backends)
    assert stat.tail_holder_pid is None
    assert listener.poll() == []
    assert all(b.asleep for b in engine.stat().backends if b.channels)


def test_queue_usage_is_the_connections(engine: pynotify.Engine, connect: Connect) -> None:
    listener, notifier = connect(), connect()
    listener.listen("c")
    for _ in range(20):
        notifier.notify("c", "x" * 7000)
    usage = engine.stat().queue_usage
    assert usage > 0
    assert usage == notifier.queue_usage()
    assert readable(listener.fileno())


@pytest.mark.parametrize("pages", [64, 100, 4096])
def test_queue_pages(make_engine: EngineFactory, pages: int) -> None:
    assert make_engine(queue_pages=pages).stat().queue_pages == pages


def test_check_finds_nothing_in_a_sound_segment(engine: pynotify.Engine, connect: Connect) -> None:
    conns = [connect(database=f"db{number % 3}") for number in range(20)]
    for number, conn in enumerate(conns):
        conn.listen("c", f"own {number}")
        conn.notify("c", str(number))
    for conn in conns[::2]:
        conn.poll()
    report = engine.check()
    assert report.ok
    assert report.problems == []


_STUCK = """
import ctypes, sys, pynotify

def stuck_in_foreign_code():
    print("ready", flush=True)
    ctypes.PyDLL(None).read(0, ctypes.create_string_buffer(1), 1)  # and the GIL with it

with pynotify.connect(sys.argv[1]) as conn:
    conn.listen("c")
    stuck_in_foreign_code()
    print(len(conn.poll()), flush=True)
"""


def test_a_process_prints_its_stacks_when_it_is_asked(
    make_engine: EngineFactory, engine: pynotify.Engine, conn: pynotify.Connection
) -> None:
    """To its own stderr, though it runs no byte code; nothing else happens to it."""
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [sys.executable, "-c", _STUCK, make_engine.name_of(engine)],
        stdin=pipe,
        stdout=pipe,
        stderr=pipe,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == "ready\n"
        conn.notify("c", "1")
        assert engine.log_stack(process.pid) == 1
        for line in process.stderr:
            if "in stuck_in_foreign_code" in line:
                break
        else:
            pytest.fail("no stack was printed")
        process.stdin.write("x")
        process.stdin.close()
        assert process.stdout.read() == "1\n"
    assert process.returncode == 0


def test_a_process_that_cannot_be_asked_for_a_stack(
    engine: pynotify.Engine, conn: pynotify.Connection, capfd: Any
) -> None:
    assert engine.log_stack(conn.pid) == 1, "oneself needs no signal"
    assert "test_a_process_that_cannot_be_asked_for_a_stack" in capfd.readouterr().err
    assert engine.log_stack(1) == 0


_REFUSED = """
import faulthandler, sys
import pynotify


def register(*args, **kwargs):
    raise OSError(22, "Invalid argument")


faulthandler.register = register
with pynotify.open(sys.argv[1]) as engine, engine.connect() as conn:
    conn.listen("c")
    conn.notify("c", "1")
    assert [note.payload for note in conn.poll()] == ["1"]
    assert engine.log_stack(conn.pid) == 1
"""


def test_a_kernel_or_a_valgrind_that_keeps_the_last_signal(
    engine: pynotify.Engine, make_engine: EngineFactory
) -> None:
    """No stack can be printed in that process: that is all."""
    done = subprocess.run(
        [sys.executable, "-c", _REFUSED, make_engine.name_of(engine)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == "pynotify: asked for the stack, but nothing here can print it\n"


def test_wakeup_is_told(engine: pynotify.Engine, connect: Connect) -> None:
    connect(wakeup="poll")
    connect(wakeup=signal.SIGRTMIN + 3)
    connect()
    told = [backend.wakeup for backend in engine.stat().backends]
    assert told == ["poll", signal.SIGRTMIN + 3, signal.SIGUSR1]


def test_a_stopped_lock_holder_delays_no_caller_longer_than_it_says(
    engine: pynotify.Engine, conn: pynotify.Connection, lock_holder: LockHolder
) -> None:
    conn.topic("orders")
    lock_holder.hold()
    for look in (engine.stat, engine.topics):
        with pytest.raises(pynotify.LockTimeout, match=f"PID {lock_holder.pid}\\b"):
            look(timeout=0)
    assert lib.pn_set_lock_timeout(-1) == 10 * 10**9, "it was for those calls only"
    assert engine.lock_holder() == lock_holder.pid
    lock_holder.release()
    assert engine.stat().backends
    assert [topic.name for topic in engine.topics()] == ["orders"]


@pytest.mark.parametrize("whole", WHOLE)
def test_a_handler_that_raises_leaves_the_usual_time(engine: pynotify.Engine, whole: bool) -> None:
    """The thread's other calls have it, wherever a signal handler raised in this one."""

    def attempt(at: At) -> None:
        at.attempt(lambda: engine.stat(timeout=0.5))
        assert lib.pn_set_lock_timeout(-1) == 10 * 10**9

    assert at_places(attempt, whole=whole) > 20


def test_a_bridge(engine: pynotify.Engine, connect: Connect) -> None:
    bridge = connect(database="one")
    connect()
    become_bridge(bridge.link.handle)
    kinds = {row.database: row.bridge for row in engine.stat().backends}
    assert kinds == {"one": "one way", "default": None}
    bridge.listen("c")
    kinds = {row.database: row.bridge for row in engine.stat().backends}
    assert kinds == {"one": "both ways", "default": None}
    bridge.close()
    assert [row.bridge for row in engine.stat().backends] == [None]


def test_application_names(engine: pynotify.Engine, engine_name: str) -> None:
    def names() -> list[str]:
        return [backend.application_name for backend in engine.stat().backends]

    with pynotify.connect(engine_name, application_name="web") as one, engine.connect() as two:
        assert names() == ["web", ""]
        one.application_name = "é" * 40  # 80 bytes
        two.application_name = "jobs"
        assert names() == ["é" * 31, "jobs"]
        assert (one.application_name, two.application_name) == ("é" * 40, "jobs")
        one.application_name = ""
        assert names() == ["", "jobs"]
        with pytest.raises(TypeError, match="application_name must be a str, not bytes"):
            one.application_name = b"x"  # type: ignore[assignment]
    with engine.connect() as next_of_the_slot:
        assert names() == [""]
    with pytest.raises(pynotify.InterfaceError):
        next_of_the_slot.application_name = "x"


def test_application_name_of_asyncio(engine: pynotify.Engine, engine_name: str) -> None:
    async def scenario() -> None:
        async with pynotify.AsyncConnection.connect(engine_name, application_name="loop") as conn:
            assert [backend.application_name for backend in engine.stat().backends] == ["loop"]
            conn.application_name = "other"
            assert [backend.application_name for backend in engine.stat().backends] == ["other"]

    asyncio.run(scenario())
