"""A gateway beside what else is on the segment: a bridge to a PostgreSQL, and PubSub."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

import pynotify
from bridge.bridges import APPLICATION, hear, hear_nothing_but, lines_of, listening
from bridge.conftest import NewBridge, new_bridge
from gateway.conftest import NewGateway
from gateway.gateways import Running
from gateway.wire import Client
from programs import require_module
from pubsub.objects import objects, random_objects, take
from pubsub.server import Server, own_postgres
from receiving import PATIENCE

__all__ = ["new_bridge", "own_postgres"]


@pytest.fixture
def gateway(engine: pynotify.Engine, new_gateway: NewGateway) -> Running:
    return new_gateway(engine)


@pytest.fixture
def client(gateway: Running) -> Iterator[Client]:
    with gateway.client() as found:
        yield found


# ---- GW-BR --------------------------------------------------------------------------------------


def test_postgres_and_clients_hear_each_other_once(
    new_bridge: NewBridge,
    engine: pynotify.Engine,
    client: Client,
    gateway: Running,
    postgres: Server,
) -> None:
    bridge = new_bridge(engine.name, postgres, "gw-br", both=True)
    client.ask('LISTEN "gw-br"')
    bridge.await_listening("gw-br")
    with postgres.connect() as sender, listening(postgres, "gw-br") as upstream:
        for number in range(50):
            sender.execute("SELECT pg_notify('gw-br', %s)", [str(number)])
        for number in range(50):
            assert client.notification() == (sender.info.backend_pid, "gw-br", str(number))
        assert hear(upstream, 50) == [str(number) for number in range(50)]
        with gateway.client() as other:
            for number in range(50):
                other.ask(f"NOTIFY \"gw-br\", 'back {number}'")
            for number in range(50):
                assert client.notification() == (other.pid, "gw-br", f"back {number}")
        assert hear(upstream, 50) == [f"back {number}" for number in range(50)]
        # What upstream sends comes next, here and there: nothing has come back.
        hear_nothing_but(upstream, "gw-br")
        assert client.notification().payload == "the end"


def test_clients_get_payloads_without_headers(
    engine: pynotify.Engine, client: Client, gateway: Running
) -> None:
    """The protocol of PostgreSQL has no place for them."""
    client.ask("LISTEN c")
    with engine.connect() as conn:
        conn.listen("c")
        conn.notify("c", "x", headers={"k": "v"})
        conn.notify_many("c", ["y"], headers={"k": "v"})
        assert [client.notification() for _ in range(2)] == [
            (conn.pid, "c", "x"),
            (conn.pid, "c", "y"),
        ]
        client.ask("NOTIFY c, 'z'")
        heard = [next(conn.notifies(timeout=PATIENCE)) for _ in range(3)]
        assert [n.headers for n in heard] == [{"k": "v"}, {"k": "v"}, {}]  # type: ignore[union-attr]


def test_a_lost_upstream_ends_the_sessions_that_listen(
    new_bridge: NewBridge,
    engine: pynotify.Engine,
    client: Client,
    gateway: Running,
    own_postgres: Server,
) -> None:
    bridge = new_bridge(engine.name, own_postgres, "c", both=True)
    client.ask("LISTEN c")
    bridge.await_listening("c")
    with gateway.client() as other:
        other.ask("LISTEN elsewhere")
        with own_postgres.connect() as conn:
            conn.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE application_name = %s",
                [APPLICATION],
            )
        bridge.await_connections(2)
        (answer,) = client.until_ready()
        assert answer[1]["C"] == "57P01"
        assert client.at_end()
        answers = other.ask("NOTIFY elsewhere, 'still here'")
        assert ("A", other.pid, "elsewhere", "still here") in answers
    assert lines_of(own_postgres, "SELECT 1") == [(1,)]


# ---- GW-PS --------------------------------------------------------------------------------------


def test_pubsub_over_psycopg_and_native_pubsub_understand_each_other(
    engine: pynotify.Engine, gateway: Running
) -> None:
    require_module("psycopg")
    import psycopg

    sent: list[Any] = [*random_objects(40), "x" * 30_000, bytes(range(256)) * 200]
    with ExitStack() as stack:
        native = stack.enter_context(pynotify.PubSub(stack.enter_context(engine.connect())))
        conn = stack.enter_context(psycopg.connect(gateway.dsn, autocommit=True))
        foreign = stack.enter_context(pynotify.PubSub(conn))
        native.subscribe("there")
        foreign.subscribe("here")
        for obj in sent:
            foreign.publish("there", obj)
            assert objects(take(native, 1)) == [obj]
            native.publish("here", obj)
            assert objects(take(foreign, 1)) == [obj]
        for pubsub in (native, foreign):
            assert pubsub.stats().malformed == 0
