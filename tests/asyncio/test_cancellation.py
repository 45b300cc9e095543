"""Cancelled at every await: nothing is lost, doubled, stuck or left behind."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import pynotify
from locked import LockHolder
from receiving import PATIENCE, payloads
from sessions import Connect, EngineFactory, RemoteSession
from tasks import (
    CANCELLED,
    PAGE,
    AsyncConnections,
    FullQueue,
    cancelled_after,
    threads_are_done,
    turns,
)

TURNS = range(8)
"""After so many turns of the loop: more than any of the calls takes when nothing is in its way."""

Call = Callable[[], Awaitable[Any]]


async def verify_usable(conn: pynotify.AsyncConnection, engine: pynotify.Engine) -> None:
    """Everything works, nothing is open and nothing is listened to."""
    assert not conn._transactions
    await threads_are_done()
    assert engine.stat().subscriptions == 0
    await conn.poll()
    async with conn.subscribe("usable") as sub:
        async with conn.transaction() as tx:
            await conn.listen("usable")
            await conn.notify("usable", "1")
            await tx.prepare()
        await conn.notify("usable", "2")
        assert payloads(await conn.poll()) == ["1", "2"]
        assert payloads([await sub.next(), await sub.next()]) == ["1", "2"]
    await conn.unlisten("usable")
    stat = engine.stat()
    assert not any(backend.in_transaction for backend in stat.backends)
    assert stat.subscriptions == 0
    assert stat.queue_usage == 0
    report = engine.check()
    assert report.ok, report.problems


# ---- receiving ---------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["anext", "next", "next with a timeout"])
async def test_a_receive_loses_nothing(
    kind: str, how: str, aconnect: AsyncConnections, engine: pynotify.Engine
) -> None:
    """Sent at any turn, cancelled at any turn: it is returned, or is there for the next."""
    conn, sender = await aconnect(), await aconnect()
    sub = await conn.subscribe("c")
    if how == "anext":
        await conn.listen("c")

    async def receive() -> str:
        if how == "anext":
            return str((await anext(conn.notifies())).payload)
        return str((await sub.next(PATIENCE if "timeout" in how else None)).payload)

    async def drain() -> list[str]:
        if how == "anext":
            return [message.payload async for message in conn.notifies(timeout=0)]
        await conn.poll()
        return [(await sub.next(0)).payload for _ in range(sub.pending)]

    outcomes = set()
    for sent_at in TURNS:
        for cancelled_at in TURNS:
            text = f"{sent_at} {cancelled_at}"
            task = asyncio.create_task(receive())
            for turn in TURNS:
                if turn == sent_at:
                    sender.notify_nowait("c", text)
                if turn == cancelled_at:
                    task.cancel()
                await turns(1)
            result = await asyncio.gather(task, return_exceptions=True)
            received = [text for text in result if isinstance(text, str)]
            outcomes.add(len(received))
            assert received + await drain() == [text]
    assert outcomes == {0, 1}
    await sub.close()
    await conn.unlisten_all()
    await verify_usable(conn, engine)


async def test_wait_takes_nothing(kind: str, aconnect: AsyncConnections) -> None:
    conn = await aconnect()
    await conn.listen("c")
    for count in TURNS:
        for sent_before in (False, True):
            if sent_before:
                await conn.notify("c", str(count))
            task = asyncio.create_task(cancelled_after(count, conn.wait()))
            await turns(2)
            if not sent_before:
                await conn.notify("c", str(count))
            await task
            assert await conn.wait(PATIENCE)
            assert payloads(await conn.poll()) == [str(count)]
    assert conn.link.receiver.inboxes.main.waiters == []


async def test_what_a_cancelled_task_was_handed_goes_to_the_next(
    kind: str, aconnect: AsyncConnections
) -> None:
    conn = await aconnect()
    outcomes = set()
    async with conn.subscribe("c") as sub:
        for count in TURNS:
            first, second = (asyncio.create_task(sub.next()) for _ in range(2))
            await turns(2)
            conn.notify_nowait("c", str(count))
            await turns(count)
            first.cancel()
            (outcome,) = await asyncio.gather(first, return_exceptions=True)
            outcomes.add(type(outcome))
            if isinstance(outcome, pynotify.Notify):
                second.cancel()
                assert outcome.payload == str(count)
            else:
                assert (await second).payload == str(count)
            await turns(2)
            assert sub.pending == 0
    assert outcomes == {pynotify.Notify, asyncio.CancelledError}


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0), (2, 0, 1)])
async def test_what_several_were_handed_stays_in_order(
    kind: str, order: tuple[int, ...], aconnect: AsyncConnections
) -> None:
    """All are cancelled with a message in hand, in any order; more is there already."""
    conn = await aconnect()
    async with conn.subscribe("c") as sub:
        for separate in (False, True):
            tasks = [asyncio.create_task(sub.next()) for _ in range(3)]
            await turns(2)
            if separate:
                for number in range(5):
                    await conn.notify("c", str(number))
            else:
                await conn.notify_many("c", [str(number) for number in range(5)])
            await conn.poll()
            assert sub.pending == 2
            for number in order:
                tasks[number].cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            assert all(task.cancelled() for task in tasks)
            assert sub.pending == 5
            assert [(await sub.next()).payload for _ in range(5)] == list("01234")


async def test_timeouts_of_asyncio_lose_nothing(
    kind: str, aconnect: AsyncConnections, remote: Callable[..., RemoteSession]
) -> None:
    """wait_for() cancels again and again, while another process sends."""
    conn, other = await aconnect(), remote(aconnect.name)
    heard: list[str] = []
    timeouts = 0
    async with conn.subscribe("c", maxlen=None) as sub:
        other.run(_send_numbers, 2000)
        while len(heard) < 2000:
            try:
                message = await asyncio.wait_for(sub.next(), 0.0002)
            except TimeoutError:
                timeouts += 1
            else:
                heard.append(message.payload)
    assert heard == [str(number) for number in range(2000)]
    other.worker.result()


def _send_numbers(conn: pynotify.Connection, count: int) -> None:
    for number in range(count):
        conn.notify("c", str(number))


@pytest.mark.parametrize("seed", range(3))
async def test_storm(
    kind: str, seed: int, aconnect: AsyncConnections, remote: Callable[..., RemoteSession]
) -> None:
    """Ten receivers on two subscriptions and on notifies() are cancelled at random."""
    conn, other = await aconnect(), remote(aconnect.name)
    await conn.listen("c")
    chance = random.Random(seed)
    total = 1500
    heard: dict[int, list[int]] = {0: [], 1: [], 2: []}

    async with conn.subscribe("c", maxlen=None) as one, conn.subscribe("c", maxlen=None) as two:

        async def receive(source: int) -> None:
            while True:
                if source == 2:
                    message = await anext(conn.notifies())
                else:
                    message = await (one, two)[source].next()
                heard[source].append(int(message.payload))

        tasks = [asyncio.create_task(receive(number % 3)) for number in range(10)]
        other.run(_send_numbers, total)
        async with asyncio.timeout(PATIENCE):
            while any(len(numbers) < total for numbers in heard.values()):
                await turns(chance.randrange(4))
                victim = chance.randrange(len(tasks))
                tasks[victim].cancel()
                await turns(chance.randrange(2))
                tasks[victim] = asyncio.create_task(receive(victim % 3))
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for numbers in heard.values():
            assert sorted(numbers) == list(range(total))
    other.worker.result()


# ---- everything else, when nothing is in the way -------------------------------------------------


async def test_calls_happen_or_not(
    kind: str, aconnect: AsyncConnections, engine: pynotify.Engine, connect: Connect
) -> None:
    """Each call, cancelled after each number of turns."""
    conn, witness = await aconnect(), connect()
    witness.listen("c")

    async def transaction() -> None:
        async with conn.transaction() as tx:
            await conn.notify("c", "in a transaction")
            await asyncio.sleep(0)
            await tx.prepare()
            await asyncio.sleep(0)

    async def explicitly() -> None:
        await conn.begin()
        await conn.notify("c", "explicitly")
        await asyncio.sleep(0)
        await conn.commit()

    async def subscription() -> None:
        async with conn.subscribe("a") as sub:
            await sub.next()

    async def listener() -> None:
        await conn.add_listener("a", print)
        try:
            await asyncio.sleep(PATIENCE)
        finally:
            await conn.remove_listener("a", print)

    async def listen() -> None:
        await conn.listen("a", "b")
        try:
            await conn.wait()
        finally:
            await conn.unlisten_all()

    async def run_task() -> None:
        async with conn.subscribe("a") as sub:
            await sub.start(print).stop()

    for call in (transaction, explicitly, subscription, listener, listen, run_task):
        for count in TURNS:
            result = await cancelled_after(count, call())
            heard = payloads(witness.poll())
            if call in (transaction, explicitly):
                assert len(heard) == (result is not CANCELLED)
    witness.close()
    await verify_usable(conn, engine)


# ---- while another process holds the writer lock -------------------------------------------------


async def test_while_the_lock_is_held_nothing_has_happened(
    kind: str,
    aconnect: AsyncConnections,
    engine: pynotify.Engine,
    connect: Connect,
    lock_holder: LockHolder,
) -> None:
    """Of a cancelled call; though a prepared transaction whose commit was begun is committed."""
    conn, witness = await aconnect(), connect()
    witness.listen("c", "prepared")
    await conn.listen("kept")
    sub = await conn.subscribe("sub")
    await conn.add_listener("listener", print)

    async def commit() -> None:
        async with conn.transaction():
            await conn.notify("c", "gone")
            await conn.listen("gone")

    async def commit_explicitly() -> None:
        await conn.begin()
        await conn.notify("c", "gone")
        await conn.commit()

    async def prepare() -> None:
        async with conn.transaction() as tx:
            await conn.notify("c", "gone")
            await tx.prepare()

    calls: list[Call] = [
        lambda: conn.notify("c", "gone"),
        lambda: conn.notify_many("c", ["gone", "too"]),
        lambda: conn.listen("gone"),
        lambda: conn.unlisten("kept"),
        conn.unlisten_all,
        conn.queue_usage,
        lambda: conn.add_listener("gone", print),
        lambda: conn.subscribe("gone").__aenter__(),
        commit,
        commit_explicitly,
        prepare,
    ]
    may_commit = asyncio.Event()
    prepared = [
        asyncio.create_task(_commit_prepared(conn, str(number), may_commit)) for number in TURNS
    ]
    while len(conn._transactions) < len(TURNS):
        await turns(1)
    lock_holder.hold()
    may_commit.set()
    for number in TURNS:
        for call in calls:
            assert await cancelled_after(number + 1, _awaiting(call)) is CANCELLED
        prepared[number].cancel()
    assert await cancelled_after(3, sub.close()) is CANCELLED
    assert await cancelled_after(3, conn.remove_listener("listener", print)) is CANCELLED
    assert sub.closed
    lock_holder.release()
    await asyncio.wait(prepared)
    await conn.link.off_loop.background.are_done()
    assert await conn.listening_channels() == {"kept"}
    assert sorted(payloads(witness.poll())) == [str(number) for number in TURNS]
    witness.close()
    await conn.unlisten_all()
    await verify_usable(conn, engine)


async def _awaiting(call: Call) -> Any:
    return await call()


async def _commit_prepared(
    conn: pynotify.AsyncConnection, text: str, may_commit: asyncio.Event
) -> None:
    async with conn.transaction() as tx:
        await conn.notify("prepared", text)
        await tx.prepare()
        await may_commit.wait()


async def test_closing_while_the_lock_is_held(
    kind: str, aconnect: AsyncConnections, engine: pynotify.Engine, lock_holder: LockHolder
) -> None:
    """It closes all the same."""
    conns = [await aconnect() for _ in TURNS]
    waiting = [asyncio.create_task(conn.wait()) for conn in conns]
    may_commit = asyncio.Event()
    prepared = asyncio.create_task(_commit_prepared(conns[0], "never", may_commit))
    await turns(3)
    lock_holder.hold()
    for count, conn in enumerate(conns):
        await cancelled_after(count + 1, conn.close())
        assert conn.closed
    may_commit.set()
    for task in (*waiting, prepared):
        with pytest.raises(pynotify.InterfaceError):
            await task
    lock_holder.release()
    for conn in conns:
        await conn.close()
    assert engine.stat().backends == []


async def test_closing(kind: str, aconnect: AsyncConnections, engine: pynotify.Engine) -> None:
    for count in TURNS:
        conn = await aconnect()
        await conn.listen("c")
        sub = await conn.subscribe("s")
        waiting = [asyncio.create_task(conn.wait()), asyncio.create_task(sub.next())]
        await turns(2)
        await cancelled_after(count, conn.close())
        if count == 0:
            assert not conn.closed
            assert not any(task.done() for task in waiting)
        await conn.close()
        for task in waiting:
            with pytest.raises(pynotify.InterfaceError):
                await task
        assert engine.stat().backends == []


async def test_connecting(
    kind: str, aconnect: AsyncConnections, engine: pynotify.Engine, lock_holder: LockHolder
) -> None:
    """What was made for a cancelled caller gives its slot back."""
    connect = pynotify.AsyncConnection.connect
    for hold in (False, True):
        if hold:
            lock_holder.hold()
        for count in TURNS:
            conn = await cancelled_after(count, connect(aconnect.name))
            if conn is not CANCELLED:
                assert not hold
                await conn.close()
        if hold:
            lock_holder.release()
        await threads_are_done()
        assert engine.stat().backends == []


# ---- while the queue is full ---------------------------------------------------------------------


async def test_while_the_queue_is_full(
    kind: str, aconnect: AsyncConnections, make_engine: EngineFactory, connect: Connect
) -> None:
    """It may still happen, once; and the transaction is over."""
    full = FullQueue(make_engine, connect, full_timeout=1000.0)
    conn = await aconnect(full.name)
    states = []

    async def commit(text: str) -> None:
        await conn.begin()
        await conn.notify("c", text)
        try:
            await conn.commit()
        finally:
            states.append(conn.in_transaction)

    async def prepare(text: str) -> None:
        async with conn.transaction() as tx:
            await conn.notify("c", text)
            await conn.listen("d")
            await tx.prepare()

    for number, call in enumerate(
        (
            lambda text: conn.notify("c", text),
            lambda text: conn.notify_many("c", [text]),
            commit,
            prepare,
        )
    ):
        full.fill(conn)
        for count in TURNS:
            text = f"{number}-{count} {PAGE}"
            assert await cancelled_after(count + 1, call(text)) is CANCELLED
        heard = full.make_room()
        await threads_are_done()
        heard += full.make_room()
        sent = [text for text in heard if "-" in text]
        assert len(sent) == len(set(sent))
        assert number < 3 or not sent
    assert not any(states)
    full.laggard.unlisten_all()
    await verify_usable(conn, full.engine)
