"""Listeners: the number of connections on a channel, and the channels that are listened to."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable

import pytest

import pynotify
from receiving import wait_until
from sessions import Connect, RemoteSession


def test_listeners_are_connections(conn: pynotify.Connection, connect: Connect) -> None:
    other = connect()
    assert conn.listeners("c") == 0
    conn.listen("c")
    other.listen("c")
    with conn.subscribe("c"), other.subscribe("c"):
        assert conn.listeners("c") == 2
    other.unlisten("c")
    assert conn.listeners("c") == 1


def test_a_listen_counts_from_its_commit_on(conn: pynotify.Connection, connect: Connect) -> None:
    other = connect()
    with conn.transaction():
        conn.listen("c")
        assert other.listeners("c") == 0
    assert other.listeners("c") == 1


def test_channels_by_prefix(conn: pynotify.Connection, connect: Connect) -> None:
    other = connect()
    conn.listen("room:é", "room:b", "hall:c")
    other.listen("room:b")
    conn.unlisten("room:c")
    assert conn.channels("room:") == {"room:é": 1, "room:b": 2}
    assert conn.channels("room:b") == {"room:b": 2}
    assert set(conn.channels()) == {"room:é", "room:b", "hall:c"}
    assert conn.channels("x") == {}


def test_another_database_has_channels_of_its_own(
    conn: pynotify.Connection, connect: Connect
) -> None:
    other = connect(database="other")
    other.listen("c")
    assert conn.channels() == {}
    assert conn.listeners("c") == 0


def test_more_channels_than_one_call_gives(conn: pynotify.Connection) -> None:
    names = {f"c{number}" for number in range(3000)}
    conn.listen(*names)
    assert set(conn.channels()) == names
    conn.unlisten_all()
    assert conn.channels() == {}


def test_of_a_killed_process_nothing_is_listed(
    conn: pynotify.Connection, remote: Callable[..., RemoteSession], engine_name: str
) -> None:
    session = remote(engine_name)
    session.listen("c")
    assert conn.channels() == {"c": 1}
    os.kill(session.worker.pid, signal.SIGKILL)
    wait_until(lambda: conn.channels() == {}, "its slot is free")
    assert conn.listeners("c") == 0


def test_bad_names(conn: pynotify.Connection) -> None:
    with pytest.raises(pynotify.InvalidChannelName):
        conn.listeners("")
    with pytest.raises(TypeError):
        conn.channels(b"c")  # type: ignore[arg-type]
    conn.close()
    with pytest.raises(pynotify.InterfaceError):
        conn.channels()


def test_tasks_ask_as_well(conn: pynotify.Connection, engine_name: str) -> None:
    conn.listen("room:a")

    async def ask() -> tuple[int, dict[str, int]]:
        async with await pynotify.AsyncConnection.connect(engine_name) as tasks:
            return await tasks.listeners("room:a"), await tasks.channels("room:")

    assert asyncio.run(ask()) == (1, {"room:a": 1})


def test_an_engine_lists_all_databases_without_a_slot(
    engine: pynotify.Engine, conn: pynotify.Connection, connect: Connect
) -> None:
    other = connect(database="other")
    conn.listen("room:é", "c")
    other.listen("c")
    conn.notify_many("c", ["a", "b"])
    found = engine.channels()
    assert [(each.database, each.name, each.listeners, each.notifications) for each in found] == [
        ("default", "c", 1, 2),
        ("default", "room:é", 1, 0),
        ("other", "c", 1, 0),
    ]
    assert engine.channels("other") == [found[2]]
    assert engine.channels(prefix="room:") == [found[1]]
    assert engine.channels("none") == []
    assert len(engine.stat().backends) == 2


def test_an_engine_lists_more_channels_than_one_call_gives(
    engine: pynotify.Engine, conn: pynotify.Connection
) -> None:
    names = [f"c{number}" for number in range(3000)]
    conn.listen(*names)
    assert [each.name for each in engine.channels()] == sorted(names)


def test_a_database_of_a_bad_name_is_refused(engine_name: str) -> None:
    with pynotify.open(engine_name) as engine, pytest.raises(pynotify.InvalidChannelName):
        engine.channels("a\0b")
    with pytest.raises(pynotify.InterfaceError):
        engine.channels()
