"""SQLAlchemy: what a session asks for is sent when its transaction commits, and only then."""

from __future__ import annotations

import asyncio
import gc
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import pynotify
from forking import in_child
from programs import environment, output_of_example
from pubsub.server import Server
from receiving import PATIENCE, payloads, receive
from requirement import require

try:
    import aiosqlite  # noqa: F401
    import sqlalchemy as sa
    from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
    from sqlalchemy.orm import (
        DeclarativeBase,
        Mapped,
        Session,
        mapped_column,
        scoped_session,
        sessionmaker,
    )
except ImportError as missing:
    require("sqlalchemy", str(missing))

from pynotify.contrib.sqlalchemy import SessionNotifier


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orders"
    number: Mapped[int] = mapped_column(primary_key=True)


def begins_itself(engine: Any) -> None:
    """As SQLAlchemy's manual has it, so that SAVEPOINT works in sqlite3."""
    sa.event.listen(engine, "connect", lambda raw, _: setattr(raw, "isolation_level", None))
    sa.event.listen(engine, "begin", lambda conn: conn.exec_driver_sql("BEGIN"))


@pytest.fixture
def database(tmp_path: Path) -> Iterator[sa.Engine]:
    made = sa.create_engine(f"sqlite:///{tmp_path / 'db'}")
    begins_itself(made)
    Base.metadata.create_all(made)
    yield made
    made.dispose()


@pytest.fixture
def conn(segment_name: str) -> Iterator[pynotify.Connection]:
    with pynotify.connect(segment_name) as made:
        made.listen("orders")
        yield made


@pytest.fixture
def bus(segment_name: str) -> Iterator[SessionNotifier]:
    made = SessionNotifier(segment_name)
    yield made
    made.close()


def last(conn: pynotify.Connection, segment: str) -> list[str]:
    """All that was sent before this."""
    with pynotify.connect(segment) as other:
        other.notify("orders", "end")
    got: list[str] = []
    while "end" not in got:
        got += payloads(receive(conn, 1))
    return got[:-1]


def test_at_the_commit_and_not_before(
    database: sa.Engine, bus: SessionNotifier, conn: pynotify.Connection, segment_name: str
) -> None:
    with Session(database) as session:
        session.add(Order(number=1))
        bus.notify(session, "orders", 1)
        bus.notify(session, "orders", b"two")
        bus.notify(session, "orders", 1)
        session.flush()
        assert conn.poll() == []
        session.commit()
        assert payloads(receive(conn, 2)) == ["1", "two"]
        assert conn.poll() == []
    with pynotify.open(segment_name) as segment:
        assert len(segment.stat().backends) == 2  # the connection is kept for the next commit


@pytest.mark.parametrize("way", ["rollback", "exception", "close"])
def test_what_is_undone_is_never_sent(
    database: sa.Engine,
    bus: SessionNotifier,
    conn: pynotify.Connection,
    segment_name: str,
    way: str,
) -> None:
    with Session(database) as session:
        bus.notify(session, "orders", "never")
        if way == "rollback":
            session.rollback()
        elif way == "close":
            session.close()
        else:
            with pytest.raises(sa.exc.IntegrityError):
                session.execute(sa.insert(Order), [{"number": 1}, {"number": 1}])
            session.rollback()
        bus.notify(session, "orders", "next")
        session.commit()
    assert last(conn, segment_name) == ["next"]


def test_savepoints(
    database: sa.Engine, bus: SessionNotifier, conn: pynotify.Connection, segment_name: str
) -> None:
    with Session(database) as session, session.begin():
        bus.notify(session, "orders", "before")
        with session.begin_nested():
            bus.notify(session, "orders", "released")
            inner = session.begin_nested()
            bus.notify(session, "orders", "undone")
            inner.rollback()
        with pytest.raises(KeyError), session.begin_nested():
            with session.begin_nested():
                bus.notify(session, "orders", "released in what is undone")
            raise KeyError
        closed = session.begin_nested()
        bus.notify(session, "orders", "closed")
        closed.close()
        bus.notify(session, "orders", "after")
    assert last(conn, segment_name) == ["before", "released", "after"]


@pytest.fixture
def prepared(database: sa.Engine, segment_name: str, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many connections the segment has, whenever the database commits."""
    counts: list[int] = []
    commit = database.dialect.do_commit

    def look_and_commit(connection: Any) -> None:
        with pynotify.open(segment_name) as segment:
            counts.append(len(segment.stat().backends))
        commit(connection)

    monkeypatch.setattr(database.dialect, "do_commit", look_and_commit)
    return counts


@pytest.mark.parametrize("asks", ["before it begins", "inside"])
def test_a_savepoint_that_is_open_at_the_end(
    database: sa.Engine,
    bus: SessionNotifier,
    conn: pynotify.Connection,
    prepared: list[int],
    asks: str,
) -> None:
    with Session(database) as session, session.begin():
        if asks == "inside":
            session.execute(sa.text("SELECT 1"))
            session.begin_nested()
        bus.notify(session, "orders", asks)
        if asks != "inside":
            session.begin_nested()
            session.execute(sa.text("SELECT 1"))
    assert payloads(receive(conn, 1)) == [asks]
    assert prepared == [2]


def test_inside_of_a_transaction_of_the_caller(
    database: sa.Engine, bus: SessionNotifier, conn: pynotify.Connection
) -> None:
    """As test-suites do it: the session's own commit is that of a SAVEPOINT."""

    def tell(_mapper: object, _connection: object, order: Order) -> None:
        bus.notify(session, "orders", order.number)

    sa.event.listen(Order, "after_insert", tell)
    try:
        with database.connect() as outside, outside.begin() as outer:
            for number in (1, 2):
                with Session(outside, join_transaction_mode="create_savepoint") as session:
                    session.add(Order(number=number))
                    session.commit()
                assert payloads(receive(conn, 1)) == [str(number)]
            assert not list(outside.dispatch.commit)  # nothing of them is left there
            outer.rollback()
    finally:
        sa.event.remove(Order, "after_insert", tell)
    assert conn.poll() == []


def test_without_a_word_to_the_database(
    database: sa.Engine, bus: SessionNotifier, conn: pynotify.Connection, segment_name: str
) -> None:
    with Session(database) as session, session.begin():
        bus.notify(session, "orders", "x")
    assert last(conn, segment_name) == ["x"]


def test_other_sessions_are_left_alone(database: sa.Engine, bus: SessionNotifier) -> None:
    """Their handlers see what is not flushed yet."""
    seen = []
    for asks in (False, True):
        with Session(database) as session:
            sa.event.listen(session, "before_commit", lambda own: seen.append(len(own.new)))
            session.add(Order(number=int(asks)))
            if asks:
                bus.notify(session, "orders", "x")
            session.commit()
    assert seen == [1, 1]


def test_in_the_flush_of_the_commit(
    database: sa.Engine, bus: SessionNotifier, conn: pynotify.Connection, prepared: list[int]
) -> None:
    """The handlers of a mapper know what is written."""

    def tell(_mapper: object, _connection: object, order: Order) -> None:
        session = sa.orm.object_session(order)
        assert session is not None
        bus.notify(session, "orders", order.number)

    sa.event.listen(Order, "after_insert", tell)
    try:
        with Session(database) as session, session.begin():
            session.add_all([Order(number=7), Order(number=8)])
    finally:
        sa.event.remove(Order, "after_insert", tell)
    assert payloads(receive(conn, 2)) == ["7", "8"]
    assert prepared == [2]  # when the database commits


def fill(conn: pynotify.Connection) -> None:
    with pytest.raises(pynotify.QueueFull):
        while True:
            conn.notify_many("orders", ["x" * 4000] * 50)


def test_a_segment_that_is_removed(database: sa.Engine, segment_name: str) -> None:
    """No commit fails for a connection that was kept."""
    bus = SessionNotifier(segment_name)
    for number in (1, 2):
        with Session(database) as session, session.begin():
            session.add(Order(number=number))
            bus.notify(session, "orders", number)
        pynotify.unlink(segment_name, force=True)
    bus.close()


def test_a_full_queue_undoes_the_rows(database: sa.Engine, segment_name: str) -> None:
    bus = SessionNotifier(segment_name, queue_pages=64)
    with pynotify.connect(segment_name, queue_pages=64) as listener:
        listener.listen("orders")
        with pynotify.connect(segment_name) as other:
            fill(other)
        with Session(database) as session:
            session.add(Order(number=1))
            for number in range(3):
                bus.notify(session, "orders", f"{number}" + "x" * 4000)
            with pytest.raises(pynotify.QueueFull, match="too many notifications"):
                session.commit()
            listener.poll()
            session.commit()  # there is room now
            assert session.scalars(sa.select(Order.number)).all() == [1]
        assert [each[0] for each in payloads(receive(listener, 3))] == ["0", "1", "2"]
    bus.close()


def test_a_wrong_argument_undoes_the_rows(database: sa.Engine, bus: SessionNotifier) -> None:
    with pytest.raises(pynotify.InvalidChannelName), Session(database) as session, session.begin():
        session.add(Order(number=1))
        bus.notify(session, "", "x")
    with Session(database) as session:
        assert session.scalars(sa.select(Order.number)).all() == []


class Refusal(Exception):
    pass


def test_the_database_refuses_the_commit(
    database: sa.Engine, bus: SessionNotifier, conn: pynotify.Connection, segment_name: str
) -> None:
    """It was prepared here by then."""
    refuses = True

    def refuse(_connection: object) -> None:
        if refuses:
            raise Refusal

    sa.event.listen(database, "commit", refuse)
    with Session(database) as session:
        session.add(Order(number=1))
        bus.notify(session, "orders", "first")
        with pytest.raises(Refusal):
            session.commit()
        refuses = False
        session.rollback()
        with pynotify.open(segment_name) as segment:
            assert len(segment.stat().backends) == 1  # nothing is prepared any more
        assert last(conn, segment_name) == []
        session.add(Order(number=2))
        bus.notify(session, "orders", "second")
        session.commit()
    assert last(conn, segment_name) == ["second"]


def test_asked_for_while_it_commits(
    database: sa.Engine,
    bus: SessionNotifier,
    conn: pynotify.Connection,
    segment_name: str,
    prepared: list[int],
) -> None:
    with Session(database) as session:
        sa.event.listen(session, "before_commit", lambda _: bus.notify(session, "orders", "late"))
        session.execute(sa.text("SELECT 1"))
        bus.notify(session, "orders", "x")
        session.commit()
    assert last(conn, segment_name) == ["x", "late"]
    assert prepared == [2]


@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_two_phases(postgres: Server, segment_name: str, end: str) -> None:
    """Room is reserved before the database is prepared, also for what is asked for at last."""
    bus = SessionNotifier(segment_name, queue_pages=64)
    made = sa.create_engine(f"postgresql+psycopg://postgres@/postgres?host={postgres.directory}")
    with (
        pynotify.connect(segment_name, queue_pages=64) as conn,
        pynotify.connect(segment_name) as other,
        Session(made, twophase=True) as session,
    ):
        conn.listen("orders")
        sa.event.listen(session, "before_commit", lambda _: bus.notify(session, "orders", "late"))
        session.execute(sa.text("SELECT 1"))
        bus.notify(session, "orders", "x")
        session.prepare()
        assert conn.poll() == []
        fill(other)
        getattr(session, end)()
        got = [text for text in payloads(conn.poll()) if len(text) < 10]
        assert got == ["x", "late"] * (end == "commit")
    made.dispose()
    bus.close()


def test_a_forgotten_session(database: sa.Engine, bus: SessionNotifier) -> None:
    """Nothing keeps it, or what it has asked for."""
    session = Session(database)
    session.execute(sa.text("SELECT 1"))
    bus.notify(session, "orders", "never")
    gone = weakref.ref(session)
    del session
    gc.collect()
    assert gone() is None


def test_topics_and_generations(
    database: sa.Engine, bus: SessionNotifier, conn: pynotify.Connection
) -> None:
    generation = conn.generation("prices")
    consumer = conn.topic("jobs").channel("workers").consumer()
    with Session(database) as session:
        for what in ("rollback", "commit"):
            bus.publish(session, "jobs", what.encode())
            bus.bump(session, "prices")
            assert generation.value == 0
            getattr(session, what)()
    assert generation.value == 1
    message = consumer.get(timeout=PATIENCE)
    assert message is not None
    assert message.body == b"commit"
    message.finish()
    with pytest.raises(pynotify.Timeout):
        consumer.get(timeout=0)
    consumer.close()


def test_scoped_sessions_and_threads(
    database: sa.Engine, bus: SessionNotifier, conn: pynotify.Connection
) -> None:
    registry = scoped_session(sessionmaker(database))
    together = threading.Barrier(4)

    def work(number: int) -> None:
        together.wait()
        for i in range(25):
            bus.notify(registry, "orders", f"{number} {i}")
            registry.commit()
        registry.remove()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    got = [each.split() for each in payloads(receive(conn, 100))]
    for thread in threads:
        thread.join()
    for number in range(4):
        assert [i for n, i in got if n == str(number)] == [str(i) for i in range(25)]


def test_two_notifiers_of_one_session(
    database: sa.Engine, bus: SessionNotifier, conn: pynotify.Connection, new_name: Any
) -> None:
    name = new_name()
    with pynotify.connect(name) as listener, Session(database) as session:
        listener.listen("orders")
        other = SessionNotifier(name)
        bus.notify(session, "orders", "here")
        other.notify(session, "orders", "there")
        session.commit()
        assert payloads(receive(conn, 1)) == ["here"]
        assert payloads(receive(listener, 1)) == ["there"]
        other.close()


def test_after_a_fork(
    database: sa.Engine, bus: SessionNotifier, conn: pynotify.Connection, tmp_path: Path
) -> None:
    with Session(database) as session:
        bus.notify(session, "orders", "parent")
        session.commit()

    def child() -> None:
        with Session(sa.create_engine(f"sqlite:///{tmp_path / 'child'}")) as session:
            bus.notify(session, "orders", "child")
            session.commit()
        bus.close()

    in_child(child)
    assert payloads(receive(conn, 2)) == ["parent", "child"]


def test_tasks_of_one_thread_commit_at_the_same_time(
    tmp_path: Path, bus: SessionNotifier, conn: pynotify.Connection
) -> None:
    """Each is between prepare() and the commit while the others are, too."""

    async def run() -> None:
        engine = create_async_engine(f"sqlite+aiosqlite:///{tmp_path / 'adb'}")
        make = async_sessionmaker(engine)
        together = asyncio.Barrier(3)

        async def work(number: int) -> None:
            async with make() as session:
                await session.execute(sa.text("SELECT 1"))
                sa.event.listen(
                    session.sync_session,
                    "before_commit",
                    lambda _: sa.util.await_only(together.wait()),
                )
                bus.notify(session, "orders", number)
                await session.commit()

        await asyncio.gather(*(work(number) for number in range(3)))
        async with AsyncSession(engine) as session:
            bus.notify(session, "orders", "never")
        await engine.dispose()

    asyncio.run(run())
    assert sorted(payloads(receive(conn, 3))) == ["0", "1", "2"]
    assert conn.poll() == []


KILLED = """
import os, signal, sys
import sqlalchemy as sa
from sqlalchemy.orm import Session
from pynotify.contrib.sqlalchemy import SessionNotifier

name, path, moment = sys.argv[1:]
engine, bus = sa.create_engine("sqlite:///" + path), SessionNotifier(name)
die = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
with Session(engine) as session:
    session.execute(sa.text("INSERT INTO orders VALUES (1)"))
    bus.notify(session, "orders", "1")
    if moment == "prepared":
        sa.event.listen(engine, "commit", die)
    session.commit()
die()
"""


@pytest.mark.parametrize(("moment", "rows"), [("prepared", 0), ("sent", 1)])
def test_a_process_is_killed(
    database: sa.Engine, conn: pynotify.Connection, segment_name: str, moment: str, rows: int
) -> None:
    """The row and the notification, or neither."""
    done = subprocess.run(
        [sys.executable, "-c", KILLED, segment_name, str(database.url.database), moment],
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    with Session(database) as session:
        assert len(session.scalars(sa.select(Order)).all()) == rows
    assert last(conn, segment_name) == ["1"] * rows


BUSY = """
import sys
import sqlalchemy as sa
from sqlalchemy.orm import Session
from pynotify.contrib.sqlalchemy import SessionNotifier

name, path, first = sys.argv[1:]
engine = sa.create_engine("sqlite:///" + path, connect_args={"timeout": 60})
bus = SessionNotifier(name)
for number in range(int(first), int(first) + 60):
    with Session(engine) as session:
        session.execute(sa.text("INSERT INTO orders VALUES (:number)"), {"number": number})
        bus.notify(session, "orders", str(number))
        if number % 3:
            session.commit()
        else:
            session.rollback()
"""


def test_four_processes_of_which_one_is_killed(
    database: sa.Engine, segment_name: str, conn: pynotify.Connection
) -> None:
    """Each row of the others was told of, in order; of the killed one's perhaps not the last."""
    words = [sys.executable, "-c", BUSY, segment_name, str(database.url.database)]
    processes = [
        subprocess.Popen([*words, str(1_000 * writer)], env=environment()) for writer in range(4)
    ]
    heard: list[int] = []
    try:
        while not any(number < 1_000 for number in heard):
            heard += map(int, payloads(receive(conn, 1)))
        processes[0].kill()
        assert [process.wait(3 * PATIENCE) for process in processes] == [-signal.SIGKILL, 0, 0, 0]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    heard += map(int, last(conn, segment_name))
    with Session(database) as session:
        numbers = [order.number for order in session.scalars(sa.select(Order))]
    for writer in range(4):
        stored = sorted(number for number in numbers if number // 1_000 == writer)
        told = [number for number in heard if number // 1_000 == writer]
        assert told == stored[: len(told)]
        assert len(told) >= len(stored) - (writer == 0)
        if writer:
            assert stored == [n for n in range(1_000 * writer, 1_000 * writer + 60) if n % 3]


def test_the_example(segment_name: str) -> None:
    output = output_of_example("adapters/sqlalchemy_orders.py", segment_name)
    lines = sorted(line.partition(" ")[2] for line in output)
    assert lines == ["order 1: apples"] * 2 + ["order 3: pears"] * 2
