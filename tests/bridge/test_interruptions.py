"""Servers and bridges that are killed, stopped and come back."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable

import pytest

import pynotify
from bridge.bridges import (
    FAST,
    GAP,
    Bridge,
    BridgeProcess,
    bridges_on,
    hear,
    hear_nothing_but,
    listening,
    take,
)
from bridge.conftest import NewBridge, NewBridgeProcess
from forking import in_child
from interrupting import WHOLE, At, at_places
from pubsub.server import Server
from pynotify import InterfaceError, Notify, OperationalError, ProgrammingError
from pynotify.bridge import PostgresBridge
from receiving import PATIENCE, readable, wait_until
from sessions import Connect, EngineFactory
from waiting import Call

_TERMINATE = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid = %s"


def send(server: Server, channel: str, *payloads: str) -> None:
    with server.connect() as conn:
        for payload in payloads:
            conn.execute("SELECT pg_notify(%s, %s)", [channel, payload])


def cut(bridge: Bridge, server: Server) -> None:
    """Its connection, and wait until there is another."""
    before = bridge.stats()
    with server.connect() as conn:
        conn.execute(_TERMINATE, [before.upstream_pid])
    bridge.await_connections(before.connections + 1)
    bridge.await_listening(*before.listening)  # what is sent before that is lost


@pytest.fixture
def bridge(new_bridge: NewBridge, engine_name: str, postgres: Server) -> Bridge:
    return new_bridge(engine_name, postgres, "c", "d", both=True)


@pytest.fixture
def own_bridge(new_bridge: NewBridge, engine_name: str, own_postgres: Server) -> Bridge:
    """To a server that may be killed and stopped."""
    return new_bridge(engine_name, own_postgres, "c", "d", both=True)


# ---- the server --------------------------------------------------------------------------------


def test_a_killed_server_is_a_gap(
    own_bridge: Bridge, conn: pynotify.Connection, own_postgres: Server
) -> None:
    """In its place: between what came before and what comes after; once."""
    conn.listen("c", "d", wait_upstream=True)
    send(own_postgres, "c", "before")
    wait_until(lambda: own_bridge.stats().received == 1, "it was received")
    own_postgres.kill()
    own_bridge.await_loss()
    assert take(conn, 1) == ["before"]
    own_postgres.start()
    own_bridge.await_connections(2)
    own_bridge.await_listening("c", "d")
    send(own_postgres, "d", "after")
    assert take(conn, 2) == [GAP, "after"]
    assert bridges_on(own_postgres) == 1


def test_a_gap_is_for_those_that_were_there(
    own_bridge: Bridge, connect: Connect, own_postgres: Server
) -> None:
    conn, late = connect(), connect()
    conn.listen("c", wait_upstream=True)
    with conn.subscribe("c") as ours, conn.subscribe("local") as local:
        own_postgres.kill()
        own_bridge.await_loss()
        late.listen("d")
        own_postgres.start()
        own_bridge.await_connections(2)
        own_bridge.await_listening("c", "d")
        send(own_postgres, "c", "1")
        send(own_postgres, "d", "2")
        assert take(late, 1) == ["2"]
        assert take(conn, 2) == [GAP, "1"]
        gap = ours.next()
        assert isinstance(gap, pynotify.Gap)
        assert (gap.reason, gap.missed_bytes, gap.channel) == (pynotify.Gap.UPSTREAM, 0, None)
        assert isinstance(ours.next(), pynotify.Notify)
        assert local.pending == 0
        with pytest.raises(pynotify.Timeout):
            local.next(timeout=0)


def test_gaps_in_columns(bridge: Bridge, conn: pynotify.Connection, postgres: Server) -> None:
    conn.listen("c", "d", wait_upstream=True)
    send(postgres, "c", "1")
    wait_until(lambda: bridge.stats().received == 1, "the first")
    cut(bridge, postgres)
    send(postgres, "c", "2")
    wait_until(lambda: bridge.stats().received == 2, "the second")
    batch = conn.poll_batch()
    assert batch.payloads() == [b"1", b"2"]
    assert [(index, gap.reason) for index, gap in batch.gaps] == [(1, pynotify.Gap.UPSTREAM)]


def test_every_loss_is_a_gap(bridge: Bridge, conn: pynotify.Connection, postgres: Server) -> None:
    conn.listen("c", wait_upstream=True)
    for turn in range(3):
        cut(bridge, postgres)
        send(postgres, "c", str(turn))
        assert take(conn, 2) == [GAP, str(turn)]


def test_what_is_sent_while_it_is_away_goes_when_it_is_back(
    own_bridge: Bridge, conn: pynotify.Connection, own_postgres: Server
) -> None:
    conn.listen("c", wait_upstream=True)
    own_postgres.kill()
    own_bridge.await_loss()
    for i in range(50):
        conn.notify("c", str(i))
    wait_until(lambda: own_bridge.stats().waiting == 50, "they wait")
    assert conn.queue_usage() == 0 or len(conn.poll()) == 50
    own_postgres.start()
    wait_until(lambda: own_bridge.stats().sent == 50, "they are sent")
    with listening(own_postgres, "c") as upstream:
        conn.notify("c", "now")
        assert hear(upstream, 1) == ["now"]


def test_in_order_after_a_loss(bridge: Bridge, conn: pynotify.Connection, postgres: Server) -> None:
    """What was on its way may come twice, and nothing is missing or out of order."""
    expected = [str(i) for i in range(300)]
    with listening(postgres, "c") as upstream:
        for i in range(300):
            conn.notify("c", str(i))
            if i % 100 == 50:
                cut(bridge, postgres)
        heard: list[str] = []
        while not heard or heard[-1] != "299":
            heard += hear(upstream, 1)
    once = [payload for n, payload in enumerate(heard) if n == 0 or payload != heard[n - 1]]
    assert once == expected


def test_what_the_old_connection_sent_is_no_echo(
    bridge: Bridge, conn: pynotify.Connection, postgres: Server
) -> None:
    conn.listen("c", wait_upstream=True)
    sent = 0
    for _ in range(5):
        for _ in range(20):
            conn.notify("c", str(sent))
            sent += 1
        cut(bridge, postgres)
    wait_until(lambda: bridge.stats().waiting == 0, "all is sent")
    send(postgres, "c", "the end")
    wait_until(lambda: bridge.stats().received == 1, "the end")
    notes = [m.payload for m in conn.poll() if isinstance(m, pynotify.Notify)]
    assert notes == [str(i) for i in range(sent)] + ["the end"]


def test_a_stopped_server_stops_no_process_here(
    own_bridge: Bridge, connect: Connect, own_postgres: Server
) -> None:
    """It is away for a while, and nothing is lost: no gap."""
    conn, other = connect(), connect()
    conn.listen("c", wait_upstream=True)
    with listening(own_postgres, "c") as upstream:
        own_postgres.pause()
        try:
            for i in range(2000):
                other.notify("c", str(i))
                conn.poll()
            wait_until(lambda: own_bridge.stats().waiting >= 1999, "they wait")
            with pytest.raises(pynotify.Timeout, match="did not listen to d upstream"):
                conn.listen("d", wait_upstream=True, timeout=0.01)
        finally:
            own_postgres.resume()
        assert hear(upstream, 2000) == [str(i) for i in range(2000)]
        own_bridge.await_listening("c", "d")
        upstream.execute("SELECT pg_notify('d', 'there')")
        assert take(conn, 1) == ["there"]
    assert own_bridge.stats().connections == 1


def test_a_server_that_does_not_answer_is_given_up(
    new_bridge: NewBridge,
    engine_name: str,
    conn: pynotify.Connection,
    own_postgres: Server,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """connect_timeout holds, though nothing here ever waits."""
    conn.listen("c")
    own_postgres.pause()
    try:
        dsn = Server(own_postgres.directory)
        dsn.dsn = own_postgres.dsn + " connect_timeout=2"
        bridge = new_bridge(engine_name, dsn, "c")
        wait_until(lambda: "does not answer" in caplog.text, "it gives up")
        with pytest.raises(pynotify.Timeout, match="does not answer"):
            conn.listen("c", wait_upstream=True, timeout=0.1)
    finally:
        own_postgres.resume()
    conn.listen("c", wait_upstream=True)
    assert bridge.stats().connections == 1


def test_a_refusal_of_the_server_is_said(
    new_bridge: NewBridge,
    engine_name: str,
    conn: pynotify.Connection,
    postgres: Server,
    caplog: pytest.LogCaptureFixture,
) -> None:
    wrong = Server(postgres.directory)
    wrong.dsn = postgres.dsn + " dbname=missing"
    new_bridge(engine_name, wrong, "c")
    said = 'database "missing" does not exist'
    wait_until(lambda: said in caplog.text and "again in" in caplog.text, "it is logged")
    with pytest.raises(pynotify.Timeout, match=said):
        conn.listen("c", wait_upstream=True, timeout=0.1)


def test_both_ways_need_a_server_for_all_texts(
    new_bridge: NewBridge,
    engine_name: str,
    conn: pynotify.Connection,
    postgres: Server,
    caplog: pytest.LogCaptureFixture,
) -> None:
    with postgres.connect() as admin:
        admin.execute("DROP DATABASE IF EXISTS latin WITH (FORCE)")
        admin.execute("CREATE DATABASE latin ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0")
    latin = Server(postgres.directory)
    latin.dsn = postgres.dsn + " dbname=latin"
    bridge = new_bridge(engine_name, latin, "c", both=True)
    wait_until(lambda: "its encoding is LATIN1" in caplog.text, "it says why")
    with pytest.raises(pynotify.Timeout, match="its encoding is LATIN1"):
        conn.listen("c", wait_upstream=True, timeout=0.1)
    bridge.close()
    new_bridge(engine_name, latin, "c")
    conn.listen("c", wait_upstream=True)
    with latin.connect() as sender:
        sender.execute("SELECT pg_notify('c', 'é')")
    assert take(conn, 2) == [GAP, "é"]


# ---- the bridge --------------------------------------------------------------------------------


@pytest.fixture
def process(
    new_bridge_process: NewBridgeProcess, engine_name: str, postgres: Server
) -> BridgeProcess:
    return new_bridge_process(engine_name, postgres, "c", "--both")


def test_a_killed_bridge_is_a_gap_when_another_comes(
    new_bridge_process: NewBridgeProcess,
    new_bridge: NewBridge,
    engine_name: str,
    conn: pynotify.Connection,
    own_postgres: Server,
) -> None:
    process = new_bridge_process(engine_name, own_postgres, "c", "--both")
    conn.listen("c", wait_upstream=True)
    send(own_postgres, "c", "before")
    assert take(conn, 1) == ["before"]
    process.signal(signal.SIGKILL)
    process.finish()
    conn.notify("c", "goes nowhere")  # and is no error
    assert take(conn, 1) == ["goes nowhere"]
    wait_until(lambda: bridges_on(own_postgres) == 0, "the server has noticed")
    send(own_postgres, "c", "lost")
    bridge = new_bridge(engine_name, own_postgres, "c", both=True)
    bridge.await_listening("c")
    send(own_postgres, "c", "after")
    assert take(conn, 2) == [GAP, "after"]


def test_killed_again_and_again_it_never_echoes(
    new_bridge_process: NewBridgeProcess,
    engine_name: str,
    conn: pynotify.Connection,
    postgres: Server,
) -> None:
    conn.listen("c")
    with listening(postgres, "c") as upstream:
        for turn in range(4):
            process = new_bridge_process(engine_name, postgres, "c", "--both")
            conn.notify("c", f"here {turn}")
            assert hear(upstream, 1) == [f"here {turn}"]
            upstream.execute("SELECT pg_notify('c', %s)", [f"there {turn}"])
            assert hear(upstream, 1) == [f"there {turn}"]
            heard: list[str] = []
            while heard[-1:] != [f"there {turn}"]:
                heard += take(conn, 1)
            assert [h for h in heard if h != GAP] == [f"here {turn}", f"there {turn}"]
            process.signal(signal.SIGKILL)
            process.finish()
        hear_nothing_but(upstream, "c")
    assert conn.poll() == []


def test_a_stopped_bridge_goes_on_where_it_was(
    process: BridgeProcess, conn: pynotify.Connection, postgres: Server
) -> None:
    conn.listen("c", wait_upstream=True)
    with listening(postgres, "c") as upstream:
        process.signal(signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED)
        for i in range(100):
            conn.notify("c", f"here {i}")
            upstream.execute("SELECT pg_notify('c', %s)", [f"there {i}"])
        here, there = [f"here {i}" for i in range(100)], [f"there {i}" for i in range(100)]
        assert take(conn, 100) == here
        assert hear(upstream, 100) == there
        process.signal(signal.SIGCONT)
        assert take(conn, 100) == there
        assert hear(upstream, 100) == here


def test_an_unlinked_segment_ends_it(
    new_bridge_process: NewBridgeProcess, new_name: Callable[[], str], postgres: Server
) -> None:
    name = new_name()
    process = new_bridge_process(name, postgres, "c")
    pynotify.unlink(name, force=True)
    done = process.finish()
    assert done.status == 1
    assert "unlinked" in done.err


# ---- Ctrl-C ------------------------------------------------------------------------------------


def alone(name: str) -> PostgresBridge:
    """Without a server."""
    return PostgresBridge(name, conninfo="host=/nonexistent", channels=["c"])


@pytest.mark.parametrize("how", ["run", "close"])
def test_an_interrupted_call_keeps_no_lock(make_engine: EngineFactory, how: str) -> None:
    """`close()` comes back afterwards, and has closed all."""
    name = make_engine().name

    def attempt(at: At) -> None:
        bridge = alone(name)
        at.attempt((lambda: bridge.run(0)) if how == "run" else bridge.close)
        Call(bridge.close).result()
        alone(name).close()
        assert bridge._wake < 0

    at_places(attempt, whole=True)


@pytest.mark.parametrize("how", ["run", "close"])
def test_a_handler_closes(make_engine: EngineFactory, how: str) -> None:
    """What its own thread is about to close; inside of run() it is refused."""
    name = make_engine().name

    def attempt(at: At) -> None:
        bridge = alone(name)

        def handle() -> None:
            with contextlib.suppress(ProgrammingError):
                bridge.close()

        def interrupted() -> None:
            with contextlib.suppress(InterfaceError):  # it was closed before it ran
                bridge.run(0) if how == "run" else bridge.close()

        at._handle = handle  # type: ignore[method-assign]
        Call(lambda: at.attempt(interrupted)).result()
        bridge.close()
        alone(name).close()

    at_places(attempt, whole=True)


@pytest.mark.parametrize("whole", WHOLE)
def test_an_interrupted_turn_loses_nothing_unsaid(
    make_engine: EngineFactory, postgres: Server, whole: bool
) -> None:
    """What is sent here arrives there; of what comes from there at least a Gap."""
    engine = make_engine()
    bridge = PostgresBridge(engine.name, channels=["c"], conninfo=postgres.dsn, both=True, **FAST)
    with bridge, engine.connect() as conn, listening(postgres, "c") as upstream:
        conn.listen("c")

        def settle() -> None:
            def settled() -> bool:
                bridge.run(0.01)
                stats = bridge.stats()
                return stats.listening == {"c"} and not stats.waiting

            wait_until(settled, "it is connected, and has sent all")

        def attempt(at: At) -> None:
            settle()
            conn.poll()
            upstream.execute("SELECT pg_notify('c', 'there')")
            conn.notify("c", "here")
            readable(bridge._upstream.fileno(), PATIENCE)
            at.attempt(lambda: bridge.run(0))
            settle()
            heard: set[str] = set()
            while not heard & {"there", GAP}:
                bridge.run(0)
                heard |= {m.payload if isinstance(m, Notify) else GAP for m in conn.poll()}
            upstream.execute("SELECT pg_notify('c', 'the end')")
            sent = {n.payload for n in upstream.notifies(timeout=0, stop_after=None)}
            assert "here" in sent

        at_places(attempt, whole=whole)


def test_close_in_a_child_waits_for_no_thread_of_its_parent(make_engine: EngineFactory) -> None:
    """Nor does it take anything from it."""
    name = make_engine().name
    bridge = alone(name)
    running = Call(bridge.run)
    wait_until(lambda: bridge._runner is not None, "it runs")

    def close() -> bool:
        bridge.close()
        with pytest.raises(InterfaceError):
            bridge.run(0)
        return True

    assert in_child(close)
    with pytest.raises(OperationalError):
        alone(name)
    assert not running.ended
    bridge.stop()
    running.result()
    bridge.close()
