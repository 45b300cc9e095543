"""PubSub with raw=True: what is no plain text goes as bytes."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import pynotify
from bridge.conftest import NewBridge, new_bridge
from pubsub.conftest import NewPubSub
from pubsub.objects import objects, random_objects, take
from pubsub.server import Server
from receiving import PATIENCE, receive
from sessions import Connect, EngineFactory
from waiting import Call

__all__ = ["new_bridge"]

OBJECTS: list[Any] = [
    None,
    "plain",
    "\u00e9",
    b"",
    b"\x00",
    bytes(range(256)) * 40,
    {"k": "v" * 20_000},
    "x" * 20_000,
    *random_objects(40),
]


@pytest.fixture
def sender(connect: Connect, new_pubsub: NewPubSub) -> pynotify.PubSub:
    return new_pubsub(connect(), raw=True)


@pytest.mark.parametrize("raw", [False, True])
def test_all_objects_arrive(
    sender: pynotify.PubSub, connect: Connect, new_pubsub: NewPubSub, raw: bool
) -> None:
    """Also where the listener does not send so itself."""
    pubsub = new_pubsub(connect(), raw=raw)
    pubsub.subscribe("c")
    for obj in OBJECTS:
        sender.publish("c", obj)
    assert objects(take(pubsub, len(OBJECTS))) == OBJECTS
    sender.publish("c")
    assert len(take(pubsub, 1)) == 1
    assert pubsub.stats().malformed == 0


def test_what_is_sent_are_the_bytes(sender: pynotify.PubSub, connect: Connect) -> None:
    conn = connect()
    conn.listen("c")
    body = bytes(range(256)) * 100
    sender.publish("c", body)
    sender.publish("c", "plain")
    sender.publish("c", "\u00e9")
    notes = receive(conn, 6)
    *parts, plain, other = notes
    assert b"".join(note.data[25:] for note in parts) == b"%" + body
    assert len(parts) == 4
    assert plain.data == b"!plain"
    assert other.data[25:] == "!\u00e9".encode()


def test_in_a_transaction_it_is_sent_at_the_commit(connect: Connect, new_pubsub: NewPubSub) -> None:
    conn = connect()
    sender, pubsub = new_pubsub(conn, raw=True), new_pubsub(connect())
    pubsub.subscribe("c")
    with conn.transaction():
        sender.publish("c", bytes(100_000))
        sender.publish("c", bytes(100_000))
        assert pubsub.run(0) == 0
    assert objects(take(pubsub, 2)) == [bytes(100_000)] * 2
    with pytest.raises(RuntimeError), conn.transaction():
        sender.publish("c", b"never" * 10_000)
        raise RuntimeError
    sender.publish("c", "after")
    assert objects(take(pubsub, 1)) == ["after"]


@pytest.mark.parametrize("max_payload", [16, 64, 7999, 1 << 20])
def test_whatever_a_payload_may_have(
    make_engine: EngineFactory, connect: Connect, new_pubsub: NewPubSub, max_payload: int
) -> None:
    engine = make_engine(max_payload=max_payload, queue_pages=1024)
    sender, pubsub = new_pubsub(connect(to=engine), raw=True), new_pubsub(connect(to=engine))
    pubsub.subscribe("c")
    for size in (1, max_payload - 26, max_payload, max_payload + 1, 3 * max_payload + 5):
        body = bytes(number % 251 for number in range(max(size, 0)))
        sender.publish("c", body)
        assert objects(take(pubsub, 1)) == [body]


def test_an_object_that_is_larger_than_the_queue(
    make_engine: EngineFactory, connect: Connect, new_pubsub: NewPubSub
) -> None:
    engine = make_engine(queue_pages=64)
    sender, pubsub = new_pubsub(connect(to=engine), raw=True), new_pubsub(connect(to=engine))
    pubsub.subscribe("c")
    sending = Call(lambda: sender.publish("c", bytes(2_000_000)))
    assert objects(take(pubsub, 1)) == [bytes(2_000_000)]
    sending.result()


def test_on_a_channel_that_goes_upstream_it_is_text(
    new_bridge: NewBridge,
    engine: pynotify.Engine,
    connect: Connect,
    new_pubsub: NewPubSub,
    postgres: Server,
) -> None:
    sender, here = new_pubsub(connect(), raw=True), new_pubsub(connect())
    here.subscribe("raw-upstream")
    bridge = new_bridge(engine.name, postgres, "raw-upstream", both=True)
    bridge.await_listening("raw-upstream")
    with postgres.connect() as conn, pynotify.PubSub(conn) as there:
        there.subscribe("raw-upstream")
        body = bytes(range(256)) * 100
        sender.publish("raw-upstream", body)
        assert objects(take(there, 1)) == objects(take(here, 1)) == [body]


def test_postgres_sends_text(postgres: Server) -> None:
    with postgres.connect() as conn, pytest.raises(ValueError, match="PostgreSQL sends text"):
        pynotify.PubSub(conn, raw=True)


def test_tasks(engine: pynotify.Engine) -> None:
    sent = [bytes(100_000), "\u00e9", "plain"]

    async def make() -> pynotify.AsyncConnection:
        return await pynotify.AsyncConnection.connect(engine.name)

    async def play() -> list[Any]:
        heard: list[Any] = []
        async with pynotify.AsyncPubSub(make, raw=True) as sender, pynotify.AsyncPubSub(make) as ps:
            await ps.subscribe("c")
            for obj in sent:
                await sender.publish("c", obj)
            async with asyncio.timeout(PATIENCE):
                async for _, obj, _ in ps:
                    heard.append(obj)
                    if len(heard) == len(sent):
                        return heard
        return heard

    assert asyncio.run(play()) == sent
