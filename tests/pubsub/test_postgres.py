"""PubSub over PostgreSQL: transactions, shared connections, servers and senders that go."""

from __future__ import annotations

import contextlib
import logging
import select
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

import pynotify
from interrupting import WHOLE, Anywhere, At, at_places
from programs import Program
from pubsub.conftest import NewPubSub
from pubsub.objects import objects, take
from pubsub.server import Server
from receiving import wait_until
from waiting import Call

LONG = bytes(20_000)
"""More than one segment, and equal ones."""


@pytest.fixture
def conn(postgres: Server) -> Iterator[Any]:
    with postgres.connect() as connection:
        yield connection


@pytest.fixture
def pubsub(conn: Any, new_pubsub: NewPubSub, channel: str) -> pynotify.PubSub:
    found = new_pubsub(conn)
    found.subscribe(channel)
    return found


# ---- transactions ----------------------------------------------------------------------------


def test_a_connection_must_be_in_autocommit(postgres: Server) -> None:
    import psycopg

    with (
        psycopg.connect(postgres.dsn) as conn,
        pytest.raises(pynotify.ProgrammingError, match="autocommit"),
    ):
        pynotify.PubSub(conn)


def test_segments_inside_a_transaction_are_refused(
    conn: Any, pubsub: pynotify.PubSub, channel: str
) -> None:
    with conn.transaction():
        with pytest.raises(pynotify.ActiveTransaction, match="4 segments"):
            pubsub.publish(channel, LONG)
        pubsub.publish(channel, "one segment")
        pubsub.publish(channel, "one segment")  # collapses, as PostgreSQL has it
        assert pubsub.run(0) == 0
    assert objects(take(pubsub, 1)) == ["one segment"]
    pubsub.publish(channel, LONG)
    assert objects(take(pubsub, 1)) == [LONG]


def test_subscribing_inside_a_transaction_is_refused(conn: Any, pubsub: pynotify.PubSub) -> None:
    with conn.transaction():
        with pytest.raises(pynotify.ActiveTransaction):
            pubsub.subscribe("another")
        with pytest.raises(pynotify.ActiveTransaction):
            pubsub.unsubscribe(*pubsub.channels)
    assert len(pubsub.channels) == 1


def test_a_pipeline_is_refused(conn: Any, pubsub: pynotify.PubSub, channel: str) -> None:
    """In it all segments would be one transaction."""
    with conn.pipeline(), pytest.raises(pynotify.ProgrammingError, match="pipeline"):
        pubsub.publish(channel, "x")


def test_errors_of_the_server_are_psycopgs(conn: Any, pubsub: pynotify.PubSub) -> None:
    import psycopg

    with pytest.raises(psycopg.errors.InFailedSqlTransaction), conn.transaction():
        with pytest.raises(psycopg.errors.DivisionByZero):
            conn.execute("SELECT 1 / 0")
        pubsub.publish("c", "x")


# ---- a connection and its users ----------------------------------------------------------------


def listening(conn: Any) -> set[str]:
    return {name for (name,) in conn.execute("SELECT pg_listening_channels()")}


def test_the_last_subscriber_unlistens(
    conn: Any, pubsub: pynotify.PubSub, new_pubsub: NewPubSub, channel: str
) -> None:
    second = new_pubsub(conn)
    second.subscribe(channel, channel, "other")
    assert listening(conn) == {channel, "other"}
    pubsub.unsubscribe(channel)
    assert listening(conn) == {channel, "other"}
    second.close()
    assert listening(conn) == set()


def test_what_other_statements_read_is_not_lost(
    conn: Any, postgres: Server, pubsub: pynotify.PubSub, channel: str
) -> None:
    with postgres.connect() as sender, pynotify.PubSub(sender) as other:
        other.publish(channel, LONG)
    waiting = Call(lambda: take(pubsub, 2))
    conn.execute("SELECT 1")
    conn.execute("SELECT pg_notify(%s, '!x')", (channel,))
    assert objects(waiting.result()) == [LONG, "x"]


def test_handlers_of_others_get_what_pubsub_reads(
    conn: Any, pubsub: pynotify.PubSub, channel: str
) -> None:
    raw: list[str] = []
    conn.add_notify_handler(lambda notify: raw.append(notify.payload))
    pubsub.publish(channel, "x")
    take(pubsub, 1)
    assert raw == ["!x"]
    pubsub.close()
    conn.execute("LISTEN c")
    conn.execute("NOTIFY c, 'raw'")
    assert raw == ["!x", "raw"]


def test_a_forgotten_pubsub_does_not_keep_its_connection(postgres: Server) -> None:
    import gc
    import weakref

    conn = postgres.connect()
    pynotify.PubSub(conn).subscribe("c")
    kept = weakref.ref(conn)
    conn.close()
    del conn
    gc.collect()
    assert kept() is None


# ---- senders that go -----------------------------------------------------------------------------

SENDER = """
import sys, psycopg
conn = psycopg.connect(sys.argv[1], autocommit=True)
conn.execute("SELECT pg_notify(%s, '#IcOp')", (sys.argv[2],))
print(conn.info.backend_pid, flush=True)
sys.stdin.read()
"""


def test_fragments_of_a_killed_sender_are_dropped_at_the_next_check(
    postgres: Server, conn: Any, new_pubsub: NewPubSub, channel: str
) -> None:
    pubsub = new_pubsub(conn, interval=0.01)
    pubsub.subscribe(channel)
    with Program("-c", SENDER, postgres.dsn, channel) as sender:
        pid = int(sender.lines(1)[0])
        wait_until(lambda: [pubsub.run(0.02), pubsub.stats().pending][1] == 1, "it has begun")
        for _ in range(3):
            pubsub.run(0.02)  # it lives, and so its beginning is kept
        assert pubsub.stats().pending == 1
        sender.kill()
    wait_until(lambda: pid not in backends(postgres), "its backend is gone")
    wait_until(lambda: [pubsub.run(0.02), pubsub.stats().pending][1] == 0, "it is forgotten")
    assert pubsub.stats().dropped == 1
    pubsub.publish(channel, LONG)
    assert objects(take(pubsub, 1)) == [LONG]


def backends(server: Server) -> set[int]:
    with server.connect() as conn:
        return {pid for (pid,) in conn.execute("SELECT pid FROM pg_stat_activity")}


def test_fragments_expire(
    postgres: Server, conn: Any, pubsub: pynotify.PubSub, channel: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Without `interval`, and for any sender."""
    now = [0.0]
    monkeypatch.setattr(pubsub._assembler, "_clock", lambda: now[0])
    with postgres.connect() as sender:
        sender.execute("SELECT pg_notify(%s, '#IcOp')", (channel,))
        wait_until(lambda: [pubsub.run(0), pubsub.stats().pending][1] == 1, "it has begun")
        now[0] = 59.9
        assert pubsub.stats().pending == 1
        now[0] = 60.0
        assert pubsub.stats().pending == 0
        assert pubsub.stats().dropped == 1


# ---- connections that are lost -------------------------------------------------------------------


def terminate(server: Server, pid: int) -> None:
    with server.connect() as admin:
        admin.execute("SELECT pg_terminate_backend(%s)", (pid,))
    wait_until(lambda: pid not in backends(server), "its backend is gone")


def test_a_connection_that_was_given_is_lost_with_its_backend(
    postgres: Server, conn: Any, pubsub: pynotify.PubSub, channel: str
) -> None:
    waiting = Call(pubsub.run)
    terminate(postgres, conn.info.backend_pid)
    assert isinstance(waiting.error(), pynotify.ConnectionLost)
    for call in (
        lambda: pubsub.publish(channel, "x"),
        lambda: pubsub.subscribe("another"),
        lambda: pubsub.run(0),
    ):
        with pytest.raises(pynotify.ConnectionLost):
            call()


@pytest.mark.parametrize("use", ["run", "publish", "subscribe"])
def test_given_a_function_it_connects_and_listens_again(
    postgres: Server, new_pubsub: NewPubSub, channel: str, use: str,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    made: list[Any] = []

    def make() -> Any:
        made.append(postgres.connect())
        return made[-1]

    pubsub = new_pubsub(make)
    heard: list[Any] = []
    pubsub.on(channel, heard.append)
    pubsub.subscribe(channel)
    pid = made[0].info.backend_pid
    if use == "run":
        waiting = Call(lambda: take(pubsub, 1))
        terminate(postgres, pid)
        waiting.result()
    else:
        terminate(postgres, pid)
        pubsub.publish("c", "x") if use == "publish" else pubsub.subscribe("c")
        take(pubsub, 1)
    (gap,) = heard
    assert isinstance(gap, pynotify.Gap)
    assert (len(made), made[0].closed) == (2, True)
    with postgres.connect() as conn, pynotify.PubSub(conn) as sender:
        sender.publish(channel, LONG)
    assert objects(take(pubsub, 1)) == [LONG]
    assert {record.levelno for record in caplog.records} == {logging.WARNING}
    pubsub.close()
    assert made[1].closed


def test_iterating_yields_the_gap_in_its_place(
    postgres: Server, new_pubsub: NewPubSub, channel: str
) -> None:
    pubsub = new_pubsub(postgres.connect)
    pubsub.subscribe(channel)
    pubsub.publish(channel, "before")
    assert objects(take(pubsub, 1)) == ["before"]
    terminate(postgres, pubsub._transport.connection.info.backend_pid)
    for received_on, obj, pid in pubsub:
        assert (received_on, pid) == (None, None)
        assert isinstance(obj, pynotify.Gap)
        break


def test_it_waits_for_a_server_that_is_down(own_postgres: Server, new_pubsub: NewPubSub) -> None:
    failed: list[str] = []

    def make() -> Any:
        try:
            return own_postgres.connect()
        except Exception as error:
            failed.append(str(error))
            raise

    pubsub = new_pubsub(make)
    pubsub.subscribe("c")
    own_postgres.kill()
    for _ in range(2):  # to find that it is lost, and that there is no other
        assert pubsub.run(0) == 0
    assert failed
    with pytest.raises(pynotify.ConnectionLost, match="could not connect"):
        pubsub.publish("c", "x")
    waiting = Call(lambda: take(pubsub, 2))
    attempts = len(failed)
    wait_until(lambda: len(failed) > attempts + 1, "it has tried again and again")
    own_postgres.start()
    wait_until(lambda: pubsub._transport is not None, "it has connected again")
    pubsub.publish("c", LONG)
    gap, received = waiting.result()
    assert isinstance(gap.obj, pynotify.Gap)
    assert received.obj == LONG


def test_interval_asks_the_server_now_and_then(
    postgres: Server, conn: Any, new_pubsub: NewPubSub
) -> None:
    pubsub = new_pubsub(conn, interval=0.01)
    pubsub.subscribe("c")
    with postgres.connect() as admin:
        query = "SELECT query FROM pg_stat_activity WHERE pid = %s"

        def last() -> str:
            pubsub.run(0.02)
            (found,) = admin.execute(query, (conn.info.backend_pid,)).fetchone()
            return str(found)

        wait_until(lambda: last() == "SELECT 1", "it was asked")


def test_interval_leaves_a_transaction_alone(
    postgres: Server, conn: Any, new_pubsub: NewPubSub
) -> None:
    pubsub = new_pubsub(conn, interval=0.01)
    with conn.transaction():
        conn.execute("SELECT 'ours'")
        pubsub.run(0.05)
        with postgres.connect() as admin:
            query = "SELECT state, query FROM pg_stat_activity WHERE pid = %s"
            row = admin.execute(query, (conn.info.backend_pid,)).fetchone()
    assert row == ("idle in transaction", "SELECT 'ours'")


def test_ctrl_c_in_reading_leaves_the_connection_free(conn: Any, new_pubsub: NewPubSub) -> None:
    """At each place where it reads: the program goes on with its connection."""
    transport: Any = new_pubsub(conn)._transport

    def attempt(at: At) -> None:
        at.attempt(lambda: transport._read(None))
        assert Call(conn.execute, "SELECT 1").result().fetchone() == (1,)

    at_places(attempt, whole=True)


@pytest.mark.parametrize("whole", WHOLE)
@pytest.mark.parametrize("how", ["execute", "publish", "subscribe", "unsubscribe", "run"])
def test_a_handler_closes(
    conn: Any, new_pubsub: NewPubSub, channel: str, how: str, whole: bool
) -> None:
    """It may have interrupted what holds the connection's lock, for which it does not wait."""

    def attempt(at: At) -> None:
        pubsub = new_pubsub(conn)
        pubsub.subscribe(channel)
        calls: dict[str, Callable[[], object]] = {
            "execute": lambda: conn.execute("SELECT 1"),
            "publish": lambda: pubsub.publish(channel, LONG),
            "subscribe": lambda: pubsub.subscribe("other"),
            "unsubscribe": lambda: pubsub.unsubscribe(channel),
            "run": lambda: pubsub.run(0),
        }

        def interrupted() -> None:
            with contextlib.suppress(pynotify.InterfaceError):  # closed
                calls[how]()

        at._handle = pubsub.close  # type: ignore[method-assign]
        Call(lambda: at.attempt(interrupted)).result()
        assert pubsub.closed is at.reached
        pubsub.close()
        assert pubsub._transport is None
        assert Call(conn.execute, "SELECT 1").result().fetchone() == (1,)

    at_places(attempt, whole=whole, kind=Anywhere)


@pytest.mark.parametrize("whole", WHOLE)
def test_a_handler_closes_what_another_thread_runs(
    conn: Any, new_pubsub: NewPubSub, whole: bool
) -> None:
    """That thread may wait for the statement which the handler has interrupted."""

    def attempt(at: At) -> None:
        pubsub = new_pubsub(conn)
        pubsub.subscribe("a")
        running = Call(pubsub.run)
        wait_until(lambda: not _is_free(pubsub._receiving), "it receives")
        at._handle = pubsub.close  # type: ignore[method-assign]
        Call(lambda: at.attempt(lambda: conn.execute("SELECT 1"))).result()
        if not at.reached:
            pubsub.close()
        running.result()
        assert pubsub._transport is None
        assert listening(conn) == set()

    at_places(attempt, whole=whole, kind=Anywhere)


@pytest.mark.parametrize("leaves", [False, True], ids=["returns", "raises"])
@pytest.mark.parametrize("makes", [False, True], ids=["given", "made"])
def test_a_handler_closes_what_sleeps(
    conn: Any, postgres: Server, new_pubsub: NewPubSub, makes: bool, leaves: bool
) -> None:
    """What the thread sleeps on is there until it is awake; then run() returns."""
    pubsub = new_pubsub(postgres.connect if makes else conn)
    pubsub.subscribe("a")

    class Interrupted:
        def __init__(self) -> None:
            self._poll = select.poll()
            self.register = self._poll.register

        def poll(self, timeout: float | None) -> object:
            if timeout != 0:
                pubsub.close()
                if leaves:
                    raise SystemExit
            return self._poll.poll(timeout)

    seen = SimpleNamespace(poll=Interrupted, POLLIN=select.POLLIN)
    ending = pytest.raises(SystemExit) if leaves else contextlib.nullcontext()
    with pytest.MonkeyPatch.context() as patch, ending:
        patch.setattr("pynotify.pubsub._postgres.select", seen)
        pubsub.run()
    assert pubsub.closed and pubsub._transport is None
    assert listening(conn) == set()


def _is_free(lock: Any) -> bool:
    if not lock.acquire(blocking=False):
        return False
    lock.release()
    return True
