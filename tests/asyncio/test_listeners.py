"""add_listener and remove_listener, as asyncpg has them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

import pynotify
from receiving import PATIENCE, payloads
from sessions import RemoteSession
from tasks import AsyncConnections, Counter, until

Remote = Callable[..., RemoteSession]


class Listener:
    """A callback that remembers its calls."""

    def __init__(self) -> None:
        self.calls: list[tuple[object, int, str, str]] = []

    def __call__(self, conn: object, pid: int, channel: str, payload: str) -> None:
        self.calls.append((conn, pid, channel, payload))

    @property
    def texts(self) -> list[str]:
        return [call[3] for call in self.calls]


@pytest.fixture
def complaints() -> list[dict[str, Any]]:
    """What the loop's exception handler is told, once `listen_for_complaints` was called."""
    return []


def listen_for_complaints(complaints: list[dict[str, Any]]) -> None:
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _loop, context: complaints.append(context))


async def test_the_arguments_are_asyncpgs(
    kind: str, aconnect: AsyncConnections, remote: Remote
) -> None:
    conn, other = await aconnect(), remote(aconnect.name)
    listener = Listener()
    await conn.add_listener("c", listener)
    other.notify("c", "theirs")
    other.notify("other", "not for us")
    await conn.notify("c", "mine")
    await until(lambda: len(listener.calls) == 2, "both have come")
    assert listener.calls == [(conn, other.pid, "c", "theirs"), (conn, conn.pid, "c", "mine")]


async def test_no_task_has_to_wait(kind: str, aconnect: AsyncConnections, remote: Remote) -> None:
    """And what no task waits for goes through without a pause."""
    conn, other = await aconnect(), remote(aconnect.name)
    listener = Listener()
    await conn.add_listener("c", listener)
    other.run(_send_numbers, 1000)
    await until(lambda: len(listener.calls) == 1000, "all have come")
    assert listener.texts == [str(number) for number in range(1000)]
    other.worker.result()


def _send_numbers(conn: pynotify.Connection, count: int) -> None:
    for number in range(count):
        conn.notify("c", str(number))


async def test_coroutine_callbacks(kind: str, aconnect: AsyncConnections) -> None:
    conn = await aconnect()
    heard: list[str] = []
    answered = asyncio.Event()

    async def callback(c: pynotify.AsyncConnection, _pid: int, channel: str, text: str) -> None:
        await asyncio.sleep(0)
        heard.append(text)
        async with c.transaction():
            await c.notify("answers", f"{channel} {text}")
        answered.set()

    await conn.listen("answers")
    await conn.add_listener("c", callback)
    await conn.notify("c", "x")
    await answered.wait()
    assert heard == ["x"]
    assert payloads(await conn.poll()) == ["c x"]


async def test_several(kind: str, aconnect: AsyncConnections, engine: pynotify.Engine) -> None:
    conn = await aconnect()
    one, two, elsewhere = Listener(), Listener(), Listener()
    await conn.add_listener("c", one)
    await conn.add_listener("c", two)
    await conn.add_listener("c", one)  # as asyncpg: the same as once
    await conn.add_listener("d", elsewhere)
    assert engine.stat().subscriptions == 2
    await conn.notify("c", "1")
    await until(lambda: one.calls and two.calls, "both were called")
    await conn.remove_listener("c", one)
    await conn.remove_listener("c", one)
    await conn.remove_listener("unknown", one)
    await conn.notify("c", "2")
    await conn.notify("d", "3")
    await until(lambda: elsewhere.calls, "it was called")
    assert (one.texts, two.texts, elsewhere.texts) == (["1"], ["1", "2"], ["3"])
    await conn.remove_listener("c", two)
    await conn.remove_listener("d", elsewhere)
    assert engine.stat().subscriptions == 0
    assert not conn.link.receiver.routed
    await conn.notify("c", "4")
    await conn.add_listener("c", one)
    await conn.notify("c", "5")
    await until(lambda: "5" in one.texts, "it was called")
    assert one.texts == ["1", "5"]


async def test_at_once_on_the_same_channel(
    kind: str, aconnect: AsyncConnections, engine: pynotify.Engine
) -> None:
    conn = await aconnect()
    listeners = [Listener() for _ in range(10)]
    await asyncio.gather(*(conn.add_listener("c", listener) for listener in listeners))
    await conn.notify("c", "x")
    await until(lambda: all(listener.calls for listener in listeners), "all were called")
    assert all(listener.texts == ["x"] for listener in listeners)
    await asyncio.gather(*(conn.remove_listener("c", listener) for listener in listeners))
    assert engine.stat().subscriptions == 0


async def test_removed_in_a_callback(kind: str, aconnect: AsyncConnections) -> None:
    """Nothing more comes, also of what has been read already."""
    conn = await aconnect()
    heard: list[str] = []
    other = Listener()
    removed = asyncio.Event()

    async def remove() -> None:
        await conn.remove_listener("c", callback)
        removed.set()

    tasks = []

    def callback(_conn: object, _pid: int, _channel: str, text: str) -> None:
        heard.append(text)
        tasks.append(asyncio.ensure_future(remove()))

    await conn.add_listener("c", callback)
    await conn.add_listener("c", other)
    for text in "123":
        await conn.notify("c", text)
        await removed.wait()
    await until(lambda: len(other.calls) == 3, "the other one has all")
    assert heard == ["1"]


async def test_coroutine_callback_removes_itself(kind: str, aconnect: AsyncConnections) -> None:
    conn = await aconnect()
    heard: list[str] = []

    async def callback(c: pynotify.AsyncConnection, _pid: int, channel: str, text: str) -> None:
        heard.append(text)
        await c.remove_listener(channel, callback)
        done.set()

    done = asyncio.Event()
    await conn.add_listener("c", callback)
    await conn.notify("c", "1")
    await done.wait()
    await conn.notify("c", "2")
    async with Counter() as counter:
        await counter.goes_on(20)
    assert heard == ["1"]


@pytest.mark.parametrize("coroutine", [False, True])
async def test_exceptions_go_to_the_loop(
    kind: str, coroutine: bool, aconnect: AsyncConnections, complaints: list[dict[str, Any]]
) -> None:
    """And neither the next message nor the other callbacks are affected."""
    conn = await aconnect()
    listen_for_complaints(complaints)
    other = Listener()

    def fail(_conn: object, _pid: int, _channel: str, text: str) -> None:
        raise ZeroDivisionError(text)

    async def fail_later(*arguments: Any) -> None:
        await asyncio.sleep(0)
        fail(*arguments)

    await conn.add_listener("c", fail_later if coroutine else fail)
    await conn.add_listener("c", other)
    await conn.notify("c", "1")
    await conn.notify("c", "2")
    await until(lambda: len(complaints) == 2, "both are told")
    assert [context["exception"].args for context in complaints] == [("1",), ("2",)]
    assert other.texts == ["1", "2"]


async def test_a_payload_that_is_no_text(
    kind: str, aconnect: AsyncConnections, complaints: list[dict[str, Any]]
) -> None:
    """asyncpg's callbacks get a str, so this one cannot be given."""
    conn = await aconnect()
    listen_for_complaints(complaints)
    listener = Listener()
    await conn.add_listener("c", listener)
    await conn.notify("c", b"\xff")
    await conn.notify("c", "text")
    await until(lambda: listener.calls, "it was called")
    assert listener.texts == ["text"]
    assert isinstance(complaints[0]["exception"], pynotify.PayloadDecodeError)


async def test_their_messages_are_not_in_notifies(
    kind: str, aconnect: AsyncConnections, remote: Remote
) -> None:
    conn, other = await aconnect(), remote(aconnect.name)
    listener = Listener()
    await conn.add_listener("c", listener)
    await conn.listen("d")
    assert await conn.listening_channels() == {"d"}
    other.notify("c", "1")
    other.notify("d", "2")
    heard = [message.payload async for message in conn.notifies(stop_after=1)]
    assert heard == ["2"]
    await until(lambda: listener.texts == ["1"], "it was called")
    assert await conn.poll() == []
    await conn.listen("c")
    other.notify("c", "3")
    assert [message.payload async for message in conn.notifies(stop_after=1)] == ["3"]
    await until(lambda: listener.texts == ["1", "3"], "it was called")
    await conn.unlisten_all()
    other.notify("c", "4")
    await until(lambda: listener.texts == ["1", "3", "4"], "it was called")


async def test_bad_arguments(aconnect: AsyncConnections) -> None:
    conn = await aconnect()
    with pytest.raises(pynotify.InvalidChannelName):
        await conn.add_listener("", print)
    with pytest.raises(TypeError):
        await conn.add_listener(None, print)  # type: ignore[arg-type]
    listener = Listener()
    await conn.add_listener("c", listener)
    await conn.remove_listener("c", listener)


async def test_nothing_is_called_after_close(kind: str, aconnect: AsyncConnections) -> None:
    conn = await aconnect()
    listener = Listener()
    await conn.add_listener("c", listener)
    await conn.notify("c", "x")
    await conn.poll()  # read, and about to be called
    await conn.close()
    assert listener.calls == []
    with pytest.raises(pynotify.InterfaceError):
        await conn.add_listener("c", listener)


async def test_removed_after_the_connection_was_closed(aconnect: AsyncConnections) -> None:
    """As in a `finally`; asyncpg says nothing, either."""
    conn, listener = await aconnect(), Listener()
    await conn.add_listener("c", listener)
    await conn.close()
    await conn.remove_listener("c", listener)


async def test_with_a_transaction_open(aconnect: AsyncConnections, remote: Remote) -> None:
    """Its own task's: callbacks are called, none is added or removed.  asyncpg does otherwise."""
    conn = await aconnect()
    heard: asyncio.Queue[str] = asyncio.Queue()

    def callback(_conn: object, _pid: int, _channel: str, payload: str) -> None:
        heard.put_nowait(payload)

    await conn.add_listener("c", callback)
    async with conn.transaction():
        remote(aconnect.name).notify("c", "x")
        assert await asyncio.wait_for(heard.get(), PATIENCE) == "x"
        with pytest.raises(pynotify.ActiveTransaction):
            await conn.add_listener("d", callback)
        with pytest.raises(pynotify.ActiveTransaction):
            await conn.remove_listener("c", callback)


async def test_what_cannot_be_called_is_refused_at_once(aconnect: AsyncConnections) -> None:
    conn = await aconnect()
    with pytest.raises(TypeError, match="callable"):
        await conn.add_listener("c", None)  # type: ignore[arg-type]
    assert await conn.listening_channels() == frozenset()
