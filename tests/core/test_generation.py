"""Shared generation counters: bumps belong to transactions, and no reader sees half of one."""

from __future__ import annotations

import copy
import gc
import multiprocessing
import os
import pickle
import random
import signal
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection as Pipe
from pathlib import Path

import pytest

import pynotify
from forking import ForkedChild, in_child
from receiving import PATIENCE, payloads, receive, wait_until
from sessions import Connect, EngineFactory, RemoteSession

BUMPERS = 3
READERS = 3
TRANSACTIONS = 1500  # of each bumper
KILLS = 15


# ---- names --------------------------------------------------------------------------------------


def test_starts_at_zero_and_every_bump_counts(conn: pynotify.Connection) -> None:
    users = conn.generation("users")
    assert (users.name, users.value) == ("users", 0)
    for expected in range(1, 6):
        users.bump()
        assert users.value == expected
    assert conn.generation("orders").value == 0


def test_when_it_changed(connect: Connect) -> None:
    conn = connect()
    users = conn.generation("users")
    assert users.changed_at is None
    before = time.time()
    users.bump()
    first = users.changed_at
    assert first is not None
    assert before <= first <= time.time()
    assert in_child(lambda: users.changed_at) == first
    with conn.transaction():
        users.bump()
        assert users.changed_at == first
        between = time.time()
    assert connect().generation("users").changed_at == users.changed_at
    assert (users.changed_at or 0) >= between
    conn.close()
    assert (users.changed_at or 0) >= between


def bump_users(conn: pynotify.Connection) -> None:
    conn.generation("users").bump()


def test_a_name_is_one_counter_everywhere(
    engine_name: str, remote: Callable[..., RemoteSession], connect: Connect
) -> None:
    """In another connection, and in another process."""
    conn = connect()
    users = conn.generation("users")
    bump_users(connect())
    session = remote(engine_name)
    session.run(bump_users)
    session.worker.result()
    assert users.value == conn.generation("users").value == 2


def test_databases_have_counters_of_their_own(connect: Connect) -> None:
    here, there = connect(), connect(database="elsewhere")
    here.generation("users").bump()
    assert there.generation("users").value == 0
    there.generation("users").bump()
    there.generation("users").bump()
    assert (here.generation("users").value, there.generation("users").value) == (1, 2)


def test_it_outlives_its_connections(engine: pynotify.Engine) -> None:
    with engine.connect() as conn:
        conn.generation("users").bump()
    with engine.connect() as conn:
        assert conn.generation("users").value == 1


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("", "counter name cannot be empty"),
        ("x" * 64, "counter name too long"),
        ("ä" * 32, "counter name too long"),
        ("a\0b", "counter name cannot contain a NUL byte"),
        ("\udc80", "counter name cannot be encoded as UTF-8"),
    ],
)
def test_bad_names(conn: pynotify.Connection, name: str, text: str) -> None:
    with pytest.raises(pynotify.InvalidChannelName) as caught:
        conn.generation(name)
    assert str(caught.value).startswith(text)
    assert caught.value.sqlstate == "22023"
    assert caught.value.hint


@pytest.mark.parametrize("name", [None, b"users", 1])
def test_a_name_is_a_str(conn: pynotify.Connection, name: object) -> None:
    with pytest.raises(TypeError, match="counter name must be a str"):
        conn.generation(name)  # type: ignore[arg-type]


def test_full_table(make_engine: EngineFactory, connect: Connect) -> None:
    conn = connect(to=make_engine(max_generations=3))
    counters = [conn.generation(name) for name in "abc"]
    with pytest.raises(pynotify.TooManyGenerations, match="max_generations is 3") as caught:
        conn.generation("d")
    assert isinstance(caught.value, pynotify.OperationalError)
    assert caught.value.sqlstate == "53200"
    assert "larger max_generations" in (caught.value.hint or "")
    for counter in counters:
        counter.bump()
    assert [conn.generation(name).value for name in "abc"] == [1, 1, 1]


@pytest.mark.parametrize("value", [0, -1, True, "3", 2.0])
def test_bad_max_generations(new_name: Callable[[], str], value: object) -> None:
    with pytest.raises(ValueError, match="max_generations"):
        pynotify.open(new_name(), max_generations=value)


def test_statistics_count_them(engine: pynotify.Engine, conn: pynotify.Connection) -> None:
    for name in ("a", "b", "a"):
        conn.generation(name)
    conn.generation("a").bump()
    stat = engine.stat()
    assert (stat.generations, stat.commits, stat.notifications) == (2, 1, 0)


# ---- transactions -------------------------------------------------------------------------------


def test_bumps_take_effect_at_commit_with_the_notifications(connect: Connect) -> None:
    conn, listener = connect(), connect()
    listener.listen("c")
    users = conn.generation("users")
    with conn.transaction():
        users.bump()
        conn.notify("c", "x")
        users.bump()
        assert users.value == 0
        assert listener.poll() == []
    assert payloads(listener.poll()) == ["x"]
    assert users.value == 2


def test_a_rolled_back_bump_was_none(conn: pynotify.Connection) -> None:
    users = conn.generation("users")
    with conn.transaction():
        users.bump()
        raise pynotify.Rollback
    conn.begin()
    users.bump()
    conn.rollback()
    with pytest.raises(ZeroDivisionError), conn.transaction():
        users.bump()
        raise ZeroDivisionError
    assert users.value == 0


def test_savepoints(conn: pynotify.Connection) -> None:
    users = conn.generation("users")
    with conn.transaction():
        users.bump()
        with conn.transaction():
            users.bump()
            users.bump()
            raise pynotify.Rollback
        with conn.transaction():
            users.bump()
    assert users.value == 2
    conn.begin()
    users.bump()
    conn.savepoint("a")
    users.bump()
    conn.rollback_to("a")
    users.bump()
    conn.release("a")
    conn.commit()
    assert users.value == 4


def test_a_failed_transaction_takes_no_bumps(conn: pynotify.Connection) -> None:
    users = conn.generation("users")
    conn.begin()
    users.bump()
    with pytest.raises(pynotify.InvalidChannelName):
        conn.notify("")
    with pytest.raises(pynotify.InFailedTransaction):
        users.bump()
    with pytest.raises(pynotify.InFailedTransaction):
        conn.commit()
    assert users.value == 0


def test_to_ask_for_a_counter_is_no_part_of_a_transaction(conn: pynotify.Connection) -> None:
    """It is made at once, stays after a rollback, and a bad name does not fail the transaction."""
    conn.begin()
    conn.generation("made inside").bump()
    with pytest.raises(pynotify.InvalidChannelName):
        conn.generation("")
    conn.notify("c", "still usable")
    conn.rollback()
    assert conn.generation("made inside").value == 0


def test_prepare(connect: Connect) -> None:
    conn, other = connect(), connect()
    users = conn.generation("users")
    with conn.transaction() as tx:
        users.bump()
        tx.prepare()
        with pytest.raises(pynotify.ProgrammingError, match="prepared"):
            users.bump()
        other.generation("users").bump()
        assert users.value == 1
    assert users.value == 2
    with conn.transaction() as tx:
        users.bump()
        tx.prepare()
        raise pynotify.Rollback(tx)
    assert users.value == 2


def test_another_thread_does_not_join_the_transaction(conn: pynotify.Connection) -> None:
    users = conn.generation("users")
    with conn.transaction():
        users.bump()
        thread = threading.Thread(target=users.bump)
        thread.start()
        thread.join(PATIENCE)
        assert users.value == 1
    assert users.value == 2


def test_full_queue(make_engine: EngineFactory, connect: Connect) -> None:
    engine = make_engine(queue_pages=64)
    conn, laggard = connect(to=engine), connect(to=engine)
    laggard.listen("c")
    users = conn.generation("users")
    with pytest.raises(pynotify.QueueFull):
        while True:
            conn.notify("c", "x" * 7900)
    with pytest.raises(pynotify.QueueFull):
        while True:  # what is left of the last page
            users.bump()
    before = users.value
    with pytest.raises(pynotify.QueueFull), conn.transaction():
        users.bump()
    assert users.value == before
    laggard.poll()
    users.bump()
    assert users.value == before + 1


# ---- lifetime, processes ------------------------------------------------------------------------


def test_the_value_can_be_read_after_close(new_name: Callable[[], str]) -> None:
    """Also when nothing else of this process is left of the segment."""
    name = new_name()
    conn = pynotify.connect(name)
    users = conn.generation("users")
    conn.close()
    with pytest.raises(pynotify.InterfaceError, match="closed"):
        users.bump()
    with pytest.raises(pynotify.InterfaceError, match="closed"):
        conn.generation("users")
    del conn
    gc.collect()

    def child() -> None:
        with pynotify.connect(name) as own:
            own.generation("users").bump()

    in_child(child)
    assert users.value == 1


def test_it_stays_readable_when_the_segment_is_gone(new_name: Callable[[], str]) -> None:
    name = new_name()
    with pynotify.connect(name) as conn:
        users = conn.generation("users")
        users.bump()
        pynotify.unlink(name, force=True)
        with pytest.raises(pynotify.SegmentUnlinked):
            users.bump()
        assert users.value == 1
    assert users.value == 1


def test_in_a_forked_child(engine: pynotify.Engine, conn: pynotify.Connection) -> None:
    users = conn.generation("users")
    users.bump()

    def child() -> tuple[int, str, int]:
        before = users.value
        try:
            users.bump()
        except pynotify.ForkedConnectionError as error:
            text = f"{error} {error.hint}"
        with engine.connect() as own:
            own.generation("users").bump()
        return before, text, users.value

    before, text, after = in_child(child)
    assert (before, after) == (1, 2)
    assert str(os.getpid()) in text
    assert "pynotify.get(" in text  # what to do
    assert users.value == 2


def _in_process(engine: pynotify.Engine, pipe: Pipe) -> None:
    with engine.connect() as conn:
        users = conn.generation("users")
        seen = users.value
        users.bump()
        pipe.send((seen, users.value))


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_by_multiprocessing(
    engine: pynotify.Engine, conn: pynotify.Connection, method: str
) -> None:
    context = multiprocessing.get_context(method)
    users = conn.generation("users")
    users.bump()
    ours, theirs = context.Pipe()
    process = context.Process(target=_in_process, args=(engine, theirs))
    process.start()
    assert ours.poll(PATIENCE)
    assert ours.recv() == (1, 2)
    process.join(PATIENCE)
    assert users.value == 2
    process.close()


@pytest.mark.parametrize("duplicate", [pickle.dumps, copy.copy, copy.deepcopy])
def test_cannot_be_pickled(
    conn: pynotify.Connection, duplicate: Callable[[object], object]
) -> None:
    with pytest.raises(TypeError, match="cannot pickle a Generation"):
        duplicate(conn.generation("users"))


def test_repr(conn: pynotify.Connection) -> None:
    users = conn.generation("users")
    users.bump()
    assert repr(users) == "<pynotify.Generation 'users' value 1>"


# ---- what a reader sees -------------------------------------------------------------------------


def test_a_handler_reads_what_it_is_told_of(connect: Connect) -> None:
    conn, listener = connect(), connect()
    listener.listen("c")
    users = listener.generation("users")
    seen: list[int] = []
    listener.add_notify_handler(lambda _notify: seen.append(users.value))
    with conn.transaction():
        conn.generation("users").bump()
        conn.notify("c")
    listener.poll()
    assert seen == [1]


def test_a_sleeper_is_told_and_then_reads(engine: pynotify.Engine, connect: Connect) -> None:
    conn = connect()
    conn.listen("c")
    users = conn.generation("users")

    def child() -> None:
        with engine.connect() as own, own.transaction():
            own.notify("c", "bumped")
            own.generation("users").bump()

    process = ForkedChild(child)
    assert payloads(receive(conn, 1)) == ["bumped"]
    assert users.value == 1
    process.result()


def bump_and_tell(conn: pynotify.Connection, seed: int) -> None:
    """Transactions of any number of bumps of two counters; the message says how many."""
    chance = random.Random(seed)
    counters = conn.generation("g"), conn.generation("h")
    for _ in range(TRANSACTIONS):
        bumps = chance.randrange(3), chance.randrange(2)
        while True:
            try:
                with conn.transaction():
                    for counter, count in zip(counters, bumps, strict=True):
                        for _ in range(count):
                            counter.bump()
                    conn.notify("news", f"{bumps[0]} {bumps[1]}")
                break
            except pynotify.QueueFull:
                continue


def read_and_compare(conn: pynotify.Connection) -> list[int]:
    """In each round: what was read before is found, what is found can be read."""
    counters = conn.generation("g"), conn.generation("h")
    told = [0, 0]
    messages = 0
    while messages < BUMPERS * TRANSACTIONS:
        before = [counter.value for counter in counters]
        news = conn.poll()
        for message in news:
            for place, count in enumerate(message.payload.split()):
                told[place] += int(count)
        after = [counter.value for counter in counters]
        for place in range(2):
            if not before[place] <= told[place] <= after[place]:
                raise AssertionError(f"read {before}, was told of {told}, then read {after}")
        messages += len(news)
        if not news:
            conn.wait(1)
    return told


def test_no_reader_sees_half_of_a_transaction(
    engine_name: str, remote: Callable[..., RemoteSession], conn: pynotify.Connection
) -> None:
    """A listener that is told reads the value, and one that reads the value is told."""
    readers = [remote(engine_name) for _ in range(READERS)]
    bumpers = [remote(engine_name) for _ in range(BUMPERS)]
    for reader in readers:
        reader.listen("news")
        reader.run(read_and_compare)
    for seed, bumper in enumerate(bumpers):
        bumper.run(bump_and_tell, seed)
    for bumper in bumpers:
        bumper.worker.result(4 * PATIENCE)
    told = [reader.worker.result(4 * PATIENCE) for reader in readers]
    expected = [conn.generation("g").value, conn.generation("h").value]
    assert told == [expected] * READERS
    assert expected[0] > TRANSACTIONS


def bump_for_ever(engine: pynotify.Engine, acks: Path) -> None:
    """A byte in the file for each transaction of two bumps and a message."""
    fd = os.open(acks, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    with engine.connect() as conn:
        users = conn.generation("users")
        while True:
            try:
                with conn.transaction():
                    users.bump()
                    conn.notify("c", "x")
                    users.bump()
            except pynotify.QueueFull:
                continue
            os.write(fd, b".")


def test_bumpers_are_killed(engine: pynotify.Engine, connect: Connect, tmp_path: Path) -> None:
    """Each transaction happened or not, its bumps and its message, whatever moment it died at."""
    chance = random.Random()
    listener = connect()
    listener.listen("c")
    users = listener.generation("users")
    heard = certain = 0

    def listen() -> None:
        nonlocal heard
        before = users.value
        heard += len(listener.poll())
        assert before <= 2 * heard <= users.value

    for number in range(KILLS):
        acks = tmp_path / f"acks {number}"
        child = ForkedChild(lambda acks=acks: bump_for_ever(engine, acks))
        enough = chance.randrange(200)

        def has_enough(acks: Path = acks, enough: int = enough) -> bool:
            listen()
            return acks.exists() and acks.stat().st_size > enough

        wait_until(has_enough, "it bumps")
        os.kill(child.pid, signal.SIGKILL)
        assert child.join() == -signal.SIGKILL
        certain += acks.stat().st_size
        listen()
        assert users.value == 2 * heard
        assert certain <= heard <= certain + number + 1
    assert engine.stat().generations == 1
