"""The bridge, as its users see it: both ways, in order, once, without an echo."""

from __future__ import annotations

import os
import signal

import pytest

import pynotify
from bridge.bridges import (
    Bridge,
    bridges_on,
    hear,
    hear_nothing_but,
    listening,
    take,
)
from bridge.conftest import NewBridge, NewBridgeProcess
from listening import hear as hear_in_worker
from listening import listen
from pubsub.server import Server
from receiving import PATIENCE, wait_until
from sessions import Connect, EngineFactory, NewWorker


def assert_counted(bridge: Bridge, **expected: int) -> None:
    """It counts when it has done it, so a listener may know a moment earlier."""

    def counted() -> dict[str, int]:
        stats = bridge.stats()
        return {name: getattr(stats, name) for name in expected}

    wait_until(lambda: all(counted()[name] >= expected[name] for name in expected), str(expected))
    assert counted() == expected


@pytest.fixture
def bridge(new_bridge: NewBridge, engine_name: str, postgres: Server, channel: str) -> Bridge:
    """One way."""
    return new_bridge(engine_name, postgres, channel)


@pytest.fixture
def both(new_bridge: NewBridge, engine_name: str, postgres: Server, channel: str) -> Bridge:
    """Both ways."""
    return new_bridge(engine_name, postgres, channel, both=True)


# ---- from upstream -----------------------------------------------------------------------------


def test_what_is_sent_upstream_is_heard_here(
    bridge: Bridge, conn: pynotify.Connection, postgres: Server, channel: str
) -> None:
    conn.listen(channel, wait_upstream=True)
    with postgres.connect() as sender:
        sender.execute("SELECT pg_notify(%s, 'é' || i) FROM generate_series(1, 500) i", [channel])
        assert take(conn, 500) == [f"é{i}" for i in range(1, 501)]
        sender.execute("SELECT pg_notify(%s, '')", [channel])
        (note,) = conn.notifies(stop_after=1)
        assert isinstance(note, pynotify.Notify)
        assert note == (channel, "", sender.info.backend_pid)
    assert_counted(bridge, received=501)


def test_order_across_channels_and_senders(
    new_bridge: NewBridge,
    engine_name: str,
    conn: pynotify.Connection,
    postgres: Server,
    channel: str,
) -> None:
    names = [f"{channel}{i}" for i in range(3)]
    new_bridge(engine_name, postgres, *names)
    conn.listen(*names, wait_upstream=True)
    sent = []
    with postgres.connect() as one, postgres.connect() as other:
        for i in range(60):
            sent.append((names[i % 3], str(i), (one, other)[i % 2].info.backend_pid))
            (one, other)[i % 2].execute("SELECT pg_notify(%s, %s)", [names[i % 3], str(i)])
    assert list(conn.notifies(stop_after=60)) == sent


def test_equal_notifications_of_several_transactions_stay_several(
    bridge: Bridge, conn: pynotify.Connection, postgres: Server, channel: str
) -> None:
    conn.listen(channel, wait_upstream=True)
    with postgres.connect() as sender:
        for _ in range(3):
            sender.execute("SELECT pg_notify(%s, 'same')", [channel])
    assert take(conn, 3) == ["same"] * 3


def test_two_hundred_listeners_cost_one_connection(
    own_postgres: Server,
    new_bridge: NewBridge,
    engine_name: str,
    connect: Connect,
    new_worker: NewWorker,
) -> None:
    bridge = new_bridge(engine_name, own_postgres, "c")
    workers = [new_worker() for _ in range(4)]
    for worker in workers:
        worker.call(listen, engine_name)
    here = [connect() for _ in range(196)]
    for conn in here:
        conn.listen("c")
    here[0].listen("c", wait_upstream=True)
    with own_postgres.connect() as sender:
        sender.execute("SELECT pg_notify('c', 'to all')")
    for conn in here:
        assert take(conn, 1) == ["to all"]
    for worker in workers:
        assert worker.call(hear_in_worker, 1) == ["to all"]
    assert bridges_on(own_postgres) == 1
    assert_counted(bridge, received=1)


def test_a_database_of_its_own(
    new_bridge: NewBridge, engine_name: str, connect: Connect, postgres: Server, channel: str
) -> None:
    new_bridge(engine_name, postgres, channel, database="mine")
    mine, theirs = connect(database="mine"), connect()
    mine.listen(channel, wait_upstream=True)
    theirs.listen(channel)
    with postgres.connect() as sender:
        sender.execute("SELECT pg_notify(%s, 'x')", [channel])
    assert take(mine, 1) == ["x"]
    assert theirs.poll() == []
    with pytest.raises(pynotify.OperationalError, match="no bridge runs"):
        theirs.listen(channel, wait_upstream=True)


# ---- to upstream, and no echo ------------------------------------------------------------------


@pytest.mark.parametrize("signaling", ["targeted", "broadcast"])
def test_a_bridge_is_no_listener_that_counts(
    make_engine: EngineFactory,
    new_bridge: NewBridge,
    postgres: Server,
    channel: str,
    signaling: str,
) -> None:
    engine = make_engine(signaling=signaling)
    bridge = new_bridge(make_engine.name_of(engine), postgres, channel, both=True)
    with engine.connect() as conn, listening(postgres, channel) as upstream:
        assert conn.notify_counted(channel, "x") == 0
        assert hear(upstream, 1) == ["x"], "the bridge has heard it all the same"
        conn.listen(channel, wait_upstream=True)
        assert conn.notify_counted(channel, "y") == 1
        assert hear(upstream, 1) == ["y"]
    assert_counted(bridge, sent=2)


def test_what_is_sent_here_goes_upstream_once(
    both: Bridge, conn: pynotify.Connection, postgres: Server, channel: str
) -> None:
    conn.listen(channel, wait_upstream=True)
    with listening(postgres, channel) as upstream:
        for i in range(100):
            conn.notify(channel, str(i))
        conn.notify("not bridged", "x")
        expected = [str(i) for i in range(100)]
        assert hear(upstream, 100) == expected
        assert take(conn, 100) == expected
        # What upstream sends comes next, here and there: nothing has come back.
        hear_nothing_but(upstream, channel)
        assert take(conn, 1) == ["the end"]
    assert_counted(both, sent=100, received=1, waiting=0)


def test_one_way_sends_nothing_upstream(
    bridge: Bridge, conn: pynotify.Connection, postgres: Server, channel: str
) -> None:
    conn.listen(channel, wait_upstream=True)
    with listening(postgres, channel) as upstream:
        conn.notify(channel, "local")
        assert take(conn, 1) == ["local"]
        hear_nothing_but(upstream, channel)
    assert bridge.stats().sent == 0


def test_a_transaction_stays_together(
    both: Bridge, connect: Connect, postgres: Server, channel: str
) -> None:
    """Others send meanwhile, here and there; each transaction is contiguous, in its order."""
    senders = [connect() for _ in range(3)]
    senders[0].listen(channel, wait_upstream=True)
    with listening(postgres, channel) as upstream, postgres.connect() as other:
        for turn in range(20):
            for number, conn in enumerate(senders):
                with conn.transaction():
                    for i in range(5):
                        conn.notify(channel, f"{turn}.{number}.{i}")
            other.execute("SELECT pg_notify(%s, 'between')", [channel])
        heard = hear(upstream, 20 * 16)
    ours = [payload for payload in heard if payload != "between"]
    assert ours == [f"{t}.{n}.{i}" for t in range(20) for n in range(3) for i in range(5)]
    cut = "".join("|" if payload == "between" else "x" for payload in heard)
    assert all(len(part) % 5 == 0 for part in cut.split("|")), cut


def test_a_rolled_back_transaction_goes_nowhere(
    both: Bridge, conn: pynotify.Connection, postgres: Server, channel: str
) -> None:
    with listening(postgres, channel) as upstream:
        with conn.transaction():
            conn.notify(channel, "no")
            raise pynotify.Rollback
        conn.notify(channel, "yes")
        assert hear(upstream, 1) == ["yes"]


def test_equal_notifications_that_are_meant_stay_several(
    both: Bridge, conn: pynotify.Connection, postgres: Server, channel: str
) -> None:
    with listening(postgres, channel) as upstream:
        conn.notify_many(channel, ["a", "b", "a", "a"], dedup=False)
        assert hear(upstream, 4) == ["a", "b", "a", "a"]


def test_what_needs_quoting(
    new_bridge: NewBridge, engine_name: str, conn: pynotify.Connection, postgres: Server
) -> None:
    channel = """a "b" \\ 'c' {d},é"""
    new_bridge(engine_name, postgres, channel, both=True)
    conn.listen(channel, wait_upstream=True)
    nasty = ['"', "\\", "{}", ",", "'", "NULL", "", " x ", '\\"', "é\n\t\x01"]
    with postgres.connect() as upstream:
        quoted = channel.replace('"', '""')
        upstream.execute(f'LISTEN "{quoted}"')
        with conn.transaction():
            for payload in nasty:
                conn.notify(channel, payload)
        assert hear(upstream, len(nasty)) == nasty
        assert take(conn, len(nasty)) == nasty
        upstream.execute("SELECT pg_notify(%s, %s)", [channel, nasty[8]])
        assert take(conn, 1) == [nasty[8]]


def test_two_segments_on_one_server(
    new_bridge: NewBridge,
    make_engine: EngineFactory,
    connect: Connect,
    postgres: Server,
    channel: str,
) -> None:
    """As on two hosts: each hears the other once, and nothing goes in circles."""
    engines = [make_engine(), make_engine()]
    bridges = [
        new_bridge(make_engine.name_of(engine), postgres, channel, both=True) for engine in engines
    ]
    one, other = (connect(to=engine) for engine in engines)
    for conn in (one, other):
        conn.listen(channel, wait_upstream=True)
    with listening(postgres, channel) as upstream:
        for i in range(20):
            one.notify(channel, f"one {i}")
        expected = [f"one {i}" for i in range(20)]
        assert take(other, 20) == take(one, 20) == hear(upstream, 20) == expected
        other.notify(channel, "back")
        assert take(one, 1) == take(other, 1) == hear(upstream, 1) == ["back"]
        hear_nothing_but(upstream, channel)
        assert take(one, 1) == take(other, 1) == ["the end"]
    for one_of_them, sent in zip(bridges, (20, 1), strict=True):
        assert_counted(one_of_them, sent=sent)


# ---- only one ----------------------------------------------------------------------------------


def test_a_second_bridge_is_refused(
    bridge: Bridge, new_bridge: NewBridge, engine_name: str, postgres: Server, channel: str
) -> None:
    with pytest.raises(pynotify.OperationalError, match=f"PID {os.getpid()}"):
        new_bridge(engine_name, postgres, channel)
    bridge.close()
    new_bridge(engine_name, postgres, channel)


def test_a_killed_bridge_is_in_nobodys_way(
    new_bridge: NewBridge,
    new_bridge_process: NewBridgeProcess,
    engine_name: str,
    postgres: Server,
    channel: str,
) -> None:
    process = new_bridge_process(engine_name, postgres, channel)
    with pytest.raises(pynotify.OperationalError, match=f"PID {process.pid}"):
        new_bridge(engine_name, postgres, channel)
    process.signal(signal.SIGKILL)
    process.finish()
    new_bridge(engine_name, postgres, channel)


def test_bad_arguments(engine_name: str, postgres: Server, make_engine: EngineFactory) -> None:
    from pynotify.bridge import PostgresBridge

    with pytest.raises(ValueError, match="at least one"):
        PostgresBridge(engine_name, channels=[])
    with pytest.raises(TypeError):
        PostgresBridge(engine_name, channels="abc")
    with pytest.raises(pynotify.InvalidChannelName):
        PostgresBridge(engine_name, channels=["x" * 64])
    small = make_engine.name_of(make_engine(max_payload=100))
    with pytest.raises(pynotify.ProgrammingError, match="max_payload"):
        PostgresBridge(small, channels=["c"])


def test_its_life(engine_name: str, postgres: Server, channel: str) -> None:
    bridge = pynotify.bridge.PostgresBridge(engine_name, channels=[channel], conninfo=postgres.dsn)
    with pytest.raises(ValueError, match="NaN"):
        bridge.run(float("nan"))
    bridge.run(timeout=0)
    bridge.stop()
    bridge.run()
    assert channel in repr(bridge)
    bridge.close()
    bridge.close()
    with pytest.raises(pynotify.InterfaceError):
        bridge.run()


def test_headers_stay_here(
    both: Bridge, conn: pynotify.Connection, postgres: Server, channel: str
) -> None:
    """NOTIFY of PostgreSQL has no place for them: the payload goes alone."""
    conn.listen(channel, wait_upstream=True)
    with listening(postgres, channel) as upstream:
        conn.notify(channel, "x", headers={"k": "v"})
        conn.notify_many(channel, ["y", "z"], headers={"k": "v"})
        assert hear(upstream, 3) == ["x", "y", "z"]
        hear_nothing_but(upstream, channel)
    heard = list(conn.notifies(timeout=PATIENCE, stop_after=4))
    assert [(n.payload, n.headers) for n in heard] == [  # type: ignore[union-attr]
        ("x", {"k": "v"}), ("y", {"k": "v"}), ("z", {"k": "v"}), ("the end", {}),
    ]  # fmt: skip
