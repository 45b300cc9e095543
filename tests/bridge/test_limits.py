"""PostgreSQL's limits, and those of the segment: refused where one can still do something."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import pynotify
from bridge.bridges import Bridge, hear, hear_nothing_but, listening, take
from bridge.conftest import NewBridge
from pubsub.server import Server
from receiving import PATIENCE, wait_until
from sessions import Connect, EngineFactory

MEGABYTE = bytes(1 << 20)
"""Its segments are all alike."""


@pytest.fixture
def engine(make_engine: EngineFactory) -> pynotify.Engine:
    return make_engine(max_payload=1 << 20)


@pytest.fixture
def both(new_bridge: NewBridge, engine_name: str, postgres: Server) -> Bridge:
    return new_bridge(engine_name, postgres, "c", both=True)


REFUSED = [
    (b"x" * 8000, pynotify.PayloadTooLong, "22023", "payload string too long"),
    (b"a\0b", pynotify.InvalidPayload, "22021", 'invalid byte sequence for encoding "UTF8": 0x00'),
    (b"\xff", pynotify.InvalidPayload, "22021", 'invalid byte sequence for encoding "UTF8": 0xff'),
]


@pytest.mark.parametrize("refused", REFUSED)
def test_what_postgresql_does_not_take_is_refused_at_notify(
    both: Bridge,
    conn: pynotify.Connection,
    postgres: Server,
    refused: tuple[bytes, type[pynotify.Error], str, str],
) -> None:
    payload, kind, sqlstate, text = refused
    conn.listen("c")
    with listening(postgres, "c") as upstream:
        sends: list[Callable[[], object]] = [
            lambda: conn.notify("c", payload),
            lambda: conn.notify_many("c", [b"fine", payload]),
        ]
        for send in sends:
            with pytest.raises(kind) as caught:
                send()
            assert str(caught.value).partition("\n")[0] == text
            assert caught.value.sqlstate == sqlstate
            assert "PubSub" in str(caught.value.hint)
        with pytest.raises(kind), conn.transaction():
            conn.notify("c", "not alone")
            conn.notify("c", payload)
        conn.notify("local", payload)
        conn.notify("c", b"x" * 7999)
        assert hear(upstream, 1) == take(conn, 1) == ["x" * 7999]
        hear_nothing_but(upstream, "c")


def test_what_came_before_the_bridge_is_refused_at_commit(
    new_bridge: NewBridge, engine_name: str, connect: Connect, postgres: Server
) -> None:
    conn = connect()
    conn.begin()
    conn.notify("c", b"\xff")
    new_bridge(engine_name, postgres, "c", both=True)
    with pytest.raises(pynotify.InvalidPayload):
        conn.commit()
    conn.notify("c", "fine")


def test_one_way_refuses_nothing(
    new_bridge: NewBridge, engine_name: str, conn: pynotify.Connection, postgres: Server
) -> None:
    new_bridge(engine_name, postgres, "c")
    conn.listen("c", wait_upstream=True)
    conn.notify("c", MEGABYTE)
    (note,) = conn.poll()
    assert isinstance(note, pynotify.Notify)
    assert note.data == MEGABYTE


def test_without_a_bridge_everything_is_as_before(both: Bridge, conn: pynotify.Connection) -> None:
    both.close()
    conn.listen("c")
    conn.notify("c", b"\0" * 8000)
    assert len(conn.poll()) == 1


def test_prepared_before_it_came_it_is_counted(
    new_bridge: NewBridge,
    engine_name: str,
    conn: pynotify.Connection,
    postgres: Server,
    caplog: pytest.LogCaptureFixture,
) -> None:
    with listening(postgres, "c") as upstream:
        with conn.transaction() as tx:
            conn.notify("c", b"\xff")
            tx.prepare()
            bridge = new_bridge(engine_name, postgres, "c", both=True)
        conn.notify("c", "next")
        assert hear(upstream, 1) == ["next"]
    assert bridge.stats().refused == 1
    assert "invalid byte sequence" in caplog.text


# ---- objects -----------------------------------------------------------------------------------


@pytest.fixture
def upstream_pubsub(postgres: Server) -> Iterator[pynotify.PubSub]:
    with postgres.connect() as conn, pynotify.PubSub(conn) as ps:
        ps.subscribe("c")
        yield ps


OBJECTS: list[Any] = [
    MEGABYTE,
    "é" * 9000,
    {"a": ["x" * 8000]},
    None,
    "",
    b"",
    "x" * 7998,
    "x" * 7999,
]


def objects(ps: pynotify.PubSub, count: int) -> list[Any]:
    return [received.obj for _, received in zip(range(count), ps, strict=False)]


def test_objects_of_any_size_go_both_ways(
    both: Bridge, conn: pynotify.Connection, upstream_pubsub: pynotify.PubSub
) -> None:
    conn.listen("c", wait_upstream=True)
    conn.unlisten("c")
    with pynotify.PubSub(conn, skip_self=True) as ps:
        ps.subscribe("c")
        for obj in OBJECTS:
            ps.publish("c", obj)
        assert objects(upstream_pubsub, len(OBJECTS)) == OBJECTS
        sender = threading.Thread(
            target=lambda: [upstream_pubsub.publish("c", obj) for obj in OBJECTS]
        )
        sender.start()
        assert objects(ps, len(OBJECTS)) == OBJECTS
        sender.join()
        assert ps.stats().malformed == upstream_pubsub.stats().malformed == 0


def test_senders_upstream_do_not_mix(
    both: Bridge, conn: pynotify.Connection, postgres: Server
) -> None:
    """Their segments interleave, and all come from one bridge."""
    with pynotify.PubSub(conn) as ps, postgres.connect() as one, postgres.connect() as other:
        ps.subscribe("c")
        conn.listen("c", wait_upstream=True)
        for piece in ("#IW9u", "#ISBv"):  # "!one" and "! other", cut into two
            (one if piece == "#IW9u" else other).execute("SELECT pg_notify('c', %s)", [piece])
        one.execute("SELECT pg_notify('c', '$ZQ==')")
        other.execute("SELECT pg_notify('c', '$dGhlcg==')")
        assert objects(ps, 2) == ["one", " other"]
        assert ps.stats().malformed == 0


# ---- a segment that is full --------------------------------------------------------------------


def test_what_there_is_no_room_for_is_a_gap(
    new_bridge: NewBridge,
    make_engine: EngineFactory,
    connect: Connect,
    postgres: Server,
    caplog: pytest.LogCaptureFixture,
) -> None:
    engine = make_engine(queue_pages=64)
    bridge = new_bridge(make_engine.name_of(engine), postgres, "c")
    conn = connect(to=engine)
    conn.listen("c", wait_upstream=True)
    with postgres.connect() as sender:
        query = "SELECT pg_notify('c', i || repeat('x', 4000)) FROM generate_series(1, 400) i"
        sender.execute(query)
        wait_until(lambda: bridge.stats().dropped, "the segment is full")
        stats = bridge.stats
        wait_until(lambda: stats().dropped + stats().received == 400, "all has come")
        kept = stats().received
        after = ("c", "after", sender.info.backend_pid)
        found = [message for _, message in zip(range(kept), conn.notifies(), strict=False)]
        assert all(isinstance(message, pynotify.Notify) for message in found)
        sender.execute("SELECT pg_notify('c', 'after')")
        rest = list(itertools.takewhile(lambda m: m != after, conn.notifies(timeout=PATIENCE)))
        assert rest
        assert all(isinstance(message, pynotify.Gap) for message in rest)
    assert "too many notifications in the NOTIFY queue" in caplog.text
    assert caplog.text.count("is dropped") == 1
