"""For how many connections a notification is: `notify_counted`, and transactions that count."""

from __future__ import annotations

import asyncio
import sys
from types import FrameType
from typing import Any

import pytest

import pynotify
from receiving import payloads
from sessions import Connect, EngineFactory


def test_connections_that_listen(conn: pynotify.Connection, connect: Connect) -> None:
    one, two, other = connect(), connect(), connect(database="other")
    other.listen("c")
    assert conn.notify_counted("c", "nobody") == 0
    one.listen("c")
    two.listen("c", "d")
    with two.subscribe("c"), two.subscribe("c"):
        assert conn.notify_counted("c", "two", headers={"kind": "x"}) == 2
    conn.listen("c")
    assert conn.notify_counted("c") == 3
    assert conn.notify_counted("d") == 1
    (message, _) = one.poll()
    assert (message.payload, message.headers) == ("two", {"kind": "x"})


def test_by_name_and_by_patterns_counts_once(conn: pynotify.Connection, connect: Connect) -> None:
    one, two = connect(), connect()
    one.listen("room.1")
    one.listen_pattern("room.*")
    two.listen_pattern("*.1", "room.*")
    assert conn.notify_counted("room.1") == 2
    assert conn.notify_counted("room.2") == 2
    assert conn.notify_counted("hall.1") == 1
    assert conn.notify_counted("hall.2") == 0


@pytest.mark.parametrize("signaling", ["targeted", "broadcast"])
def test_not_those_that_are_only_woken(make_engine: EngineFactory, signaling: str) -> None:
    engine = make_engine(signaling=signaling)
    conns = [engine.connect() for _ in range(300)]  # more than a commit signals by itself
    for conn in conns[:-1]:
        conn.listen("c")
    conns[-1].listen("d")
    assert conns[0].notify_counted("c") == 299
    assert conns[0].notify_counted("d") == 1


def test_a_transaction_counts_each_connection_once(
    conn: pynotify.Connection, connect: Connect
) -> None:
    one, two = connect(), connect()
    one.listen("a", "b")
    two.listen("b")
    with conn.transaction() as tx:
        with conn.transaction() as inner:
            inner.count_listeners()
        conn.notify("a", "1")
        conn.notify("b", "2")
        conn.notify("nobody", "3")
        conn.listen("b")  # at its own commit, it hears itself
        assert tx.listeners is None
    assert tx.listeners == inner.listeners == 3
    assert [payloads(each.poll()) for each in (one, two, conn)] == [["1", "2"], ["2"], ["2"]]


def test_a_prepared_transaction_counts_at_its_commit(
    conn: pynotify.Connection, connect: Connect
) -> None:
    one, two = connect(), connect()
    one.listen("a")
    with conn.transaction() as tx:
        conn.notify("a")
        tx.count_listeners()
        tx.prepare()
        one.unlisten("a")
        two.listen("a")
        connect().listen("a")
    assert tx.listeners == 2


def test_without_a_question_or_a_commit_there_is_no_answer(conn: pynotify.Connection) -> None:
    conn.listen("a")
    with conn.transaction() as tx:
        conn.notify("a")
    assert tx.listeners is None
    with conn.transaction() as tx:
        tx.count_listeners()
        conn.notify("a")
        raise pynotify.Rollback
    assert tx.listeners is None
    with conn.transaction() as tx:
        tx.count_listeners()
    assert tx.listeners == 0
    with pytest.raises(pynotify.ProgrammingError):
        tx.count_listeners()


def test_refused_in_a_transaction(conn: pynotify.Connection) -> None:
    with conn.transaction() as tx:
        with pytest.raises(pynotify.ActiveTransaction):
            conn.notify_counted("c")
        conn.notify("c")
        tx.count_listeners()
    assert tx.listeners == 0
    with pytest.raises(pynotify.InvalidChannelName):
        conn.notify_counted("")


def test_listeners_that_come_meanwhile(conn: pynotify.Connection, connect: Connect) -> None:
    """What it counts is what is owed: a look before or after the commit would find others."""
    before, after = connect(), connect()

    def come(_frame: FrameType, event: str, called: Any) -> None:
        if getattr(called, "__name__", "") == "pn_txn_commit_owned":
            {"c_call": before, "c_return": after}[event].listen("c")

    sys.setprofile(come)
    try:
        counted = conn.notify_counted("c", "x")
    finally:
        sys.setprofile(None)
    assert (payloads(before.poll()), payloads(after.poll())) == (["x"], [])
    assert counted == 1
    assert conn.notify_counted("c") == 2


def test_tasks_count_as_well(conn: pynotify.Connection, engine_name: str) -> None:
    async def main() -> tuple[int, int | None]:
        async with pynotify.AsyncConnection.connect(engine_name) as own:
            counted = await own.notify_counted("c", "x", headers={"k": "v"})
            async with own.transaction() as tx:
                tx.count_listeners()
                with pytest.raises(pynotify.ActiveTransaction):
                    await own.notify_counted("c")
                await own.notify("c", "y")
            return counted, tx.listeners

    conn.listen("c")
    assert asyncio.run(main()) == (1, 1)
    assert payloads(conn.poll()) == ["x", "y"]
