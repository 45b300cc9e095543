"""PubSub over pynotify: its transactions, its limits, and segments that go away."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import pynotify
from forking import in_child
from pubsub.conftest import NewPubSub
from pubsub.objects import objects, take
from receiving import wait_until
from sessions import Connect, EngineFactory
from waiting import Call, await_waiting

LONG = bytes(20_000)


@pytest.fixture
def pubsub(conn: pynotify.Connection, new_pubsub: NewPubSub) -> pynotify.PubSub:
    found = new_pubsub(conn)
    found.subscribe("c")
    return found


def test_an_object_is_one_transaction(
    conn: pynotify.Connection, engine: pynotify.Engine, pubsub: pynotify.PubSub
) -> None:
    conn.listen("c")
    before = engine.stat()
    pubsub.publish("c", LONG)
    after = engine.stat()
    assert (after.commits - before.commits, after.collapsed) == (1, before.collapsed)
    assert len({note.seq for note in conn.poll()}) == 1
    assert objects(take(pubsub, 1)) == [LONG]


def test_in_a_transaction_it_is_sent_at_the_commit(
    conn: pynotify.Connection, pubsub: pynotify.PubSub
) -> None:
    with conn.transaction():
        pubsub.publish("c", LONG)
        pubsub.publish("c", LONG)  # equal objects do not collapse, nor do their segments
        pubsub.publish("c", "plain")
        pubsub.publish("c", "plain")
        with conn.transaction():
            pubsub.publish("c", "rolled back")
            raise pynotify.Rollback
        with pytest.raises(pynotify.ActiveTransaction):
            pubsub.run(0)
        with pytest.raises(pynotify.ActiveTransaction):
            pubsub.subscribe("d")
    assert objects(take(pubsub, 4)) == [LONG, LONG, "plain", "plain"]


def test_max_payload_is_the_limit_of_a_segment(
    make_engine: EngineFactory, connect: Connect, new_pubsub: NewPubSub
) -> None:
    conn = connect(to=make_engine(max_payload=1 << 20, queue_pages=1024))
    pubsub = new_pubsub(conn)
    pubsub.subscribe("c")
    conn.listen("c")
    for size, count in [((1 << 20) - 1, 1), (1 << 20, 2)]:
        pubsub.publish("c", "x" * size)
        assert len(conn.poll()) == count
        assert objects(take(pubsub, 1)) == ["x" * size]


def test_unlinked_it_is_lost(
    new_name: Callable[[], str], new_pubsub: NewPubSub, engine: pynotify.Engine
) -> None:
    name = new_name()
    with pynotify.connect(name) as conn:
        pubsub = new_pubsub(conn)
        pubsub.subscribe("c")
        waiting = Call(pubsub.run)
        pynotify.unlink(name, force=True)
        assert isinstance(waiting.error(), pynotify.ConnectionLost)
        with pytest.raises(pynotify.ConnectionLost):
            pubsub.publish("c", "x")
        pubsub.close()


@pytest.mark.parametrize("use", ["run", "publish", "subscribe"])
def test_given_a_function_it_opens_the_segment_again(
    new_name: Callable[[], str], new_pubsub: NewPubSub, use: str
) -> None:
    name = new_name()
    pubsub = new_pubsub(lambda: pynotify.connect(name))
    pubsub.subscribe("c")
    pynotify.unlink(name, force=True)
    if use == "publish":
        pubsub.publish("c", LONG)
    elif use == "subscribe":
        pubsub.subscribe("d")
    assert isinstance(objects(take(pubsub, 1))[0], pynotify.Gap)
    if use == "publish":
        # It was sent over the new connection, which listened already.
        assert objects(take(pubsub, 1)) == [LONG]
    with pynotify.connect(name) as conn, pynotify.PubSub(conn) as sender:
        sender.publish("c", LONG)
    assert objects(take(pubsub, 1)) == [LONG]
    pubsub.close()


def test_closing_gives_back_what_it_listened_to(
    engine: pynotify.Engine, pubsub: pynotify.PubSub
) -> None:
    assert engine.stat().subscriptions == 1
    pubsub.close()
    assert engine.stat().subscriptions == 0


def test_forgotten_it_keeps_nothing(conn: pynotify.Connection, connect: Connect) -> None:
    forgotten = pynotify.PubSub(conn)
    forgotten.subscribe("c")
    inboxes = conn.link.receiver.inboxes
    del forgotten
    with pynotify.PubSub(conn) as pubsub:
        pubsub.subscribe("d")
        assert len(inboxes.all) == 2  # its own, and that of "d"


def test_unsubscribing_leaves_what_was_read_of_other_channels(
    conn: pynotify.Connection, pubsub: pynotify.PubSub
) -> None:
    pubsub.subscribe("d")
    for channel in ("c", "d", "c"):
        pubsub.publish(channel, channel)
    conn.poll()  # reads for all on the connection
    pubsub.unsubscribe("d")
    assert objects(take(pubsub, 2)) == ["c", "c"]
    assert pubsub.run(0) == 0


def test_a_gap_is_handed_out_once_and_ends_what_had_begun(
    make_engine: EngineFactory, connect: Connect, new_pubsub: NewPubSub
) -> None:
    engine = make_engine(on_full="drop-slowest", queue_pages=64)
    slow, sender = connect(to=engine), connect(to=engine)
    pubsub = new_pubsub(slow)
    heard: list[Any] = []
    for channel in ("c", "d", "e"):
        pubsub.subscribe(channel)
        pubsub.on(channel, heard.append)
    sender.notify("c", b"#IcOp")
    assert pubsub.run(0) == 0
    for _ in range(100):
        sender.notify("d", "!" + "x" * 7000)
    sender.notify("c", b"$IXg=")
    pubsub.run(0)
    gaps = [obj for obj in heard if isinstance(obj, pynotify.Gap)]
    assert len(gaps) == 1
    assert heard[-1] == "x"
    assert pubsub.stats().dropped == 1


def test_subscribing_while_another_thread_waits(
    conn: pynotify.Connection, connect: Connect, pubsub: pynotify.PubSub
) -> None:
    waiting = Call(lambda: take(pubsub, 2))
    pubsub.subscribe("later")
    with pynotify.PubSub(connect()) as sender:
        sender.publish("later", 1)
        sender.publish("c", 2)
    assert objects(waiting.result()) == [1, 2]


def test_a_killed_process_leaves_no_half_of_an_object(
    engine_name: str, pubsub: pynotify.PubSub, new_worker: Any
) -> None:
    """All segments are committed together, or none is."""
    worker = new_worker()
    worker.call(begin_to_publish, engine_name)
    worker.kill()
    with pynotify.connect(engine_name) as conn, pynotify.PubSub(conn) as sender:
        sender.publish("c", "after it")
    assert objects(take(pubsub, 1)) == ["after it"]
    assert pubsub.stats() == pynotify.PubSubStats(1, 0, 0, 0, 0)


_kept: list[Any] = []


def begin_to_publish(name: str) -> None:
    conn = pynotify.connect(name)
    _kept.append(conn)
    conn.begin()
    pynotify.PubSub(conn).publish("c", LONG)


def test_a_child_process_needs_its_own(pubsub: pynotify.PubSub) -> None:
    def use() -> str:
        with pytest.raises(pynotify.ForkedConnectionError):
            pubsub.publish("c", "x")
        return "refused"

    assert in_child(use) == "refused"


def test_close_in_a_child_waits_for_no_thread_of_its_parent(
    conn: pynotify.Connection, pubsub: pynotify.PubSub
) -> None:
    """One that is in run() holds a lock, which the child has no thread to give back."""
    running = Call(pubsub.run)
    await_waiting(conn, 1)

    def close() -> bool:
        assert pubsub.stats().received == 0
        pubsub.close()
        return pubsub.closed

    assert in_child(close)
    pubsub.publish("c", "unaffected")
    wait_until(lambda: pubsub.stats().received == 1, "the parent's goes on")
    pubsub.close()
    assert running.result() == 1


def test_senders_are_connections_not_slots(
    connect: Connect, engine: pynotify.Engine, pubsub: pynotify.PubSub
) -> None:
    """A slot that is used again is another sender, in the same process as well."""
    first = engine.connect()
    slot = first.backend_id
    first.notify("c", b"#IcOp")
    first.close()
    second = connect()
    wait_until(lambda: pubsub.run(0) == 0 and pubsub.stats().pending == 1, "it has begun")
    assert second.backend_id == slot
    second.notify("c", b"$IXg=")
    assert objects(take(pubsub, 1)) == ["x"]
