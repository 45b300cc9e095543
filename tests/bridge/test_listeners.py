"""The channels of the bridge: it follows listeners that come and go, the dead included."""

from __future__ import annotations

import os
import signal

import pytest

import pynotify
from bridge.bridges import Bridge, listening, take
from bridge.conftest import NewBridge, NewBridgeProcess
from listening import listen
from pubsub.server import Server
from receiving import wait_until
from sessions import Connect, NewWorker
from waiting import Call


@pytest.fixture
def bridge(new_bridge: NewBridge, engine_name: str, postgres: Server) -> Bridge:
    return new_bridge(engine_name, postgres, "c", "d")


# ---- coming and going --------------------------------------------------------------------------


@pytest.mark.parametrize("both", [False, True])
def test_it_listens_as_long_as_any_listener_does(
    new_bridge: NewBridge, engine_name: str, postgres: Server, connect: Connect, both: bool
) -> None:
    bridge = new_bridge(engine_name, postgres, "c", "d", both=both)
    one, other = connect(), connect()
    one.listen("c", "not bridged", wait_upstream=False)
    bridge.await_listening("c")
    other.listen("c", "d")
    bridge.await_listening("c", "d")
    one.unlisten("c")
    other.unlisten("d")
    bridge.await_listening("c")
    with one.subscribe("c", "d"):
        bridge.await_listening("c", "d")
        other.unlisten_all()
        with other.subscribe("d"):
            pass
        one.listen("c", wait_upstream=True)
        one.unlisten("c")
        assert bridge.stats().listening == {"c", "d"}
    bridge.await_listening()
    other.listen("d")
    bridge.await_listening("d")
    other.close()
    bridge.await_listening()


def test_a_rolled_back_listen_is_none(bridge: Bridge, conn: pynotify.Connection) -> None:
    with conn.transaction():
        conn.listen("c")
        raise pynotify.Rollback
    conn.listen("d", wait_upstream=True)
    assert bridge.stats().listening == {"d"}


def test_a_listener_that_is_killed_has_gone(
    bridge: Bridge, engine_name: str, conn: pynotify.Connection, new_worker: NewWorker
) -> None:
    """No other sleeps in the segment; none looks."""
    workers = [new_worker(), new_worker()]
    for worker in workers:
        worker.call(listen, engine_name)
    bridge.await_listening("c")
    workers[0].kill()
    conn.listen("d", wait_upstream=True)
    assert bridge.stats().listening == {"c", "d"}
    workers[1].kill()
    bridge.await_listening("d")


def test_a_listener_that_is_stopped_has_not(
    bridge: Bridge, engine_name: str, conn: pynotify.Connection, new_worker: NewWorker
) -> None:
    worker = new_worker()
    worker.call(listen, engine_name)
    bridge.await_listening("c")
    worker.suspend()
    conn.listen("d", wait_upstream=True)
    assert bridge.stats().listening == {"c", "d"}
    worker.resume()


def test_listeners_that_were_there_before_it(
    engine_name: str, connect: Connect, new_bridge: NewBridge, postgres: Server
) -> None:
    one, other = connect(), connect()
    one.listen("c")
    with other.subscribe("d"):
        bridge = new_bridge(engine_name, postgres, "c", "d")
        bridge.await_listening("c", "d")


def test_many_come_and_go(bridge: Bridge, connect: Connect, postgres: Server) -> None:
    """A connection that has waited hears all from then on, whatever others do."""
    conns = [connect() for _ in range(4)]
    with postgres.connect() as sender:
        for turn in range(40):
            conn, before = conns[turn % 4], conns[(turn + 3) % 4]
            before.unlisten_all()
            conn.listen("c", wait_upstream=True)
            sender.execute("SELECT pg_notify('c', %s)", [str(turn)])
            assert take(conn, 1) == [str(turn)]


# ---- wait_upstream ------------------------------------------------------------------------------


def test_without_a_bridge(conn: pynotify.Connection) -> None:
    with pytest.raises(pynotify.OperationalError, match="no bridge runs") as caught:
        conn.listen("c", wait_upstream=True)
    assert "pynotify bridge NAME" in str(caught.value.hint)
    assert conn.listening_channels() == {"c"}
    assert conn.poll() == []


def test_a_channel_that_it_does_not_have(bridge: Bridge, conn: pynotify.Connection) -> None:
    with pytest.raises(pynotify.ProgrammingError, match="x is none of c, d"):
        conn.listen("c", "x", wait_upstream=True)


def test_inside_a_transaction(bridge: Bridge, conn: pynotify.Connection) -> None:
    with conn.transaction(), pytest.raises(pynotify.ActiveTransaction):
        conn.listen("c", wait_upstream=True)


def test_many_ask_at_once(bridge: Bridge, connect: Connect) -> None:
    calls = [Call(lambda: connect().listen("c", "d", wait_upstream=True)) for _ in range(10)]
    for call in calls:
        call.result()


def test_it_waits_until_the_server_is_there(
    own_postgres: Server, new_bridge: NewBridge, engine_name: str, conn: pynotify.Connection
) -> None:
    own_postgres.kill()
    bridge = new_bridge(engine_name, own_postgres, "c")
    call = Call(lambda: conn.listen("c", wait_upstream=True))
    wait_until(lambda: bridge.it._requests, "it has asked")
    assert not call.ended
    own_postgres.start()
    call.result()
    with own_postgres.connect() as sender:
        sender.execute("SELECT pg_notify('c', 'x')")
    assert take(conn, 1) == ["x"]


def test_a_bridge_that_dies_meanwhile(
    own_postgres: Server,
    new_bridge_process: NewBridgeProcess,
    engine_name: str,
    conn: pynotify.Connection,
) -> None:
    process = new_bridge_process(engine_name, own_postgres, "c")
    own_postgres.pause()
    try:
        call = Call(lambda: conn.listen("c", wait_upstream=True))
        with pynotify.open(engine_name) as engine:
            wait_until(lambda: len(engine.stat().backends) == 4, "it asks")
        process.signal(signal.SIGKILL)
        error = call.error()
    finally:
        own_postgres.resume()
    assert isinstance(error, pynotify.OperationalError)
    assert f"the bridge (process {process.pid}) has ended" in str(error)


def test_a_bridge_that_is_closed_meanwhile(
    own_postgres: Server, new_bridge: NewBridge, engine_name: str, conn: pynotify.Connection
) -> None:
    own_postgres.kill()
    bridge = new_bridge(engine_name, own_postgres, "c")
    call = Call(lambda: conn.listen("c", wait_upstream=True))
    wait_until(lambda: bridge.it._requests, "it has asked")
    bridge.close()
    error = call.error()
    assert isinstance(error, pynotify.OperationalError)
    assert f"the bridge (process {os.getpid()}) has ended" in str(error)


def test_a_stopped_bridge_is_a_timeout(
    postgres: Server,
    new_bridge_process: NewBridgeProcess,
    engine_name: str,
    conn: pynotify.Connection,
) -> None:
    process = new_bridge_process(engine_name, postgres, "c")
    process.signal(signal.SIGSTOP)
    os.waitid(os.P_PID, process.pid, os.WSTOPPED)
    with pytest.raises(pynotify.Timeout, match=f"process {process.pid}") as caught:
        conn.listen("c", wait_upstream=True, timeout=0.1)
    assert "listened to locally" in str(caught.value.hint)
    process.signal(signal.SIGCONT)
    conn.listen("c", wait_upstream=True)


def test_nonsense_on_the_control_channel(bridge: Bridge, connect: Connect) -> None:
    vandal, conn = connect(database="pynotify.bridge"), connect()
    for text in ("", "x", "[]", "{}", '{"ask": 1}', b"\xff", '{"answer": "1"}', "1", "null"):
        vandal.notify("default", text)
    conn.listen("c", wait_upstream=True)


def test_what_is_sent_after_it_returned_is_heard(
    new_bridge: NewBridge, engine_name: str, conn: pynotify.Connection, postgres: Server
) -> None:
    """Also upstream, when the bridge sends both ways: its own LISTEN here stands by then."""
    new_bridge(engine_name, postgres, "c", both=True)
    with listening(postgres, "c") as upstream:
        conn.listen("c", wait_upstream=True)
        conn.notify("c", "up")
        upstream.execute("SELECT pg_notify('c', 'down')")
        assert sorted(take(conn, 2)) == ["down", "up"]
