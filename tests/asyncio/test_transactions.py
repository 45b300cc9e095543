"""Transactions belong to tasks."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import weakref

import pytest

import pynotify
from locked import LockHolder
from receiving import PATIENCE, pairs, payloads
from sessions import Connect, EngineFactory
from tasks import PAGE, AsyncConnections, Counter, FullQueue, cancelled_after, settled, turns


@pytest.fixture
def listener(connect: Connect) -> pynotify.Connection:
    conn = connect()
    conn.listen("c")
    return conn


class TestBlocks:
    async def test_commit(
        self, kind: str, aconnect: AsyncConnections, listener: pynotify.Connection
    ) -> None:
        conn = await aconnect()
        async with conn.transaction() as tx:
            assert isinstance(tx, pynotify.AsyncTransaction)
            assert tx.connection is conn
            assert conn.in_transaction
            await conn.notify("c", "1")
            await conn.notify("c", "1")
            assert await conn.notify_many("c", ["1", "2"]) == 1
            assert listener.poll() == []
            assert "transaction (active)" in repr(tx)
        assert not conn.in_transaction
        messages = listener.poll()
        assert payloads(messages) == ["1", "2"]
        assert messages[0].seq == messages[1].seq

    async def test_an_exception_rolls_back(
        self, kind: str, aconnect: AsyncConnections, listener: pynotify.Connection
    ) -> None:
        conn = await aconnect()
        with pytest.raises(ZeroDivisionError):
            async with conn.transaction():
                await conn.notify("c")
                await conn.listen("d")
                raise ZeroDivisionError
        assert not conn.in_transaction
        assert await conn.listening_channels() == frozenset()
        assert listener.poll() == []

    async def test_nested_blocks_are_savepoints(
        self, kind: str, aconnect: AsyncConnections, listener: pynotify.Connection
    ) -> None:
        conn = await aconnect()
        async with conn.transaction():
            await conn.notify("c", "1")
            async with conn.transaction():
                await conn.notify("c", "gone")
                raise pynotify.Rollback
            async with conn.transaction():
                await conn.notify("c", "2")
            with contextlib.suppress(ZeroDivisionError):
                async with conn.transaction():
                    await conn.notify("c", "gone, too")
                    raise ZeroDivisionError
        assert payloads(listener.poll()) == ["1", "2"]

    async def test_rollback_names_a_block(
        self, kind: str, aconnect: AsyncConnections, listener: pynotify.Connection
    ) -> None:
        conn = await aconnect()
        reached = []
        async with conn.transaction() as outer:
            await conn.notify("c", "1")
            async with conn.transaction() as middle:
                await conn.notify("c", "gone")
                async with conn.transaction():
                    raise pynotify.Rollback(middle)
                reached.append("after the inner")
            reached.append("after the middle")
            async with conn.transaction():
                raise pynotify.Rollback(outer)
        assert reached == ["after the middle"]
        assert listener.poll() == []
        with pytest.raises(pynotify.Rollback):
            async with conn.transaction():
                raise pynotify.Rollback(outer)

    async def test_a_failed_transaction(
        self, kind: str, aconnect: AsyncConnections, listener: pynotify.Connection
    ) -> None:
        conn = await aconnect()
        with pytest.raises(pynotify.InFailedTransaction):
            async with conn.transaction():
                await conn.notify("c", "gone")
                with pytest.raises(pynotify.InvalidChannelName):
                    await conn.notify("")
                with pytest.raises(pynotify.InFailedTransaction):
                    conn.notify_nowait("c")
                with pytest.raises(pynotify.InFailedTransaction):
                    await conn.listen("c")
        async with conn.transaction():
            await conn.notify("c", "1")
            with pytest.raises(pynotify.InFailedTransaction):
                async with conn.transaction():
                    with pytest.raises(pynotify.InvalidChannelName):
                        await conn.notify("")
            await conn.notify("c", "2")
        assert payloads(listener.poll()) == ["1", "2"]

    async def test_once_and_in_order(self, aconnect: AsyncConnections) -> None:
        conn = await aconnect()
        tx = conn.transaction()
        async with tx:
            with pytest.raises(pynotify.ProgrammingError):
                await conn.commit()
            with pytest.raises(pynotify.ProgrammingError):
                await conn.rollback()
            with pytest.raises(pynotify.ActiveTransaction):
                await conn.begin()
        with pytest.raises(TypeError):
            await tx.__aenter__()
        outer, inner = conn.transaction(), conn.transaction()
        await outer.__aenter__()
        await inner.__aenter__()
        with pytest.raises(pynotify.OutOfOrderTransactionNesting):
            await outer.__aexit__(None, None, None)
        with pytest.raises(pynotify.OutOfOrderTransactionNesting):
            await inner.__aexit__(None, None, None)
        assert not conn.in_transaction

    async def test_listen_takes_effect_at_commit(self, aconnect: AsyncConnections) -> None:
        conn = await aconnect()
        async with conn.transaction():
            await conn.notify("c", "hears itself")
            await conn.listen("c")
            assert await conn.listening_channels() == frozenset()
        assert payloads(await conn.poll()) == ["hears itself"]


class TestExplicitForm:
    async def test_commit_and_rollback(
        self, kind: str, aconnect: AsyncConnections, listener: pynotify.Connection
    ) -> None:
        conn = await aconnect()
        for method in (conn.commit, conn.rollback):
            with pytest.raises(pynotify.NoActiveTransaction):
                await method()
        await conn.begin()
        with pytest.raises(pynotify.ActiveTransaction):
            await conn.begin()
        await conn.notify("c", "1")
        await conn.commit()
        await conn.begin()
        await conn.notify("c", "gone")
        await conn.rollback()
        assert payloads(listener.poll()) == ["1"]

    async def test_savepoints(
        self, kind: str, aconnect: AsyncConnections, listener: pynotify.Connection
    ) -> None:
        conn = await aconnect()
        await conn.begin()
        await conn.notify("c", "1")
        await conn.savepoint("s")
        await conn.notify("c", "gone")
        await conn.rollback_to("s")
        await conn.notify("c", "2")
        await conn.release("s")
        with pytest.raises(pynotify.InvalidSavepoint):
            await conn.rollback_to("s")
        with pytest.raises(pynotify.InFailedTransaction):
            await conn.commit()
        assert not conn.in_transaction
        await conn.begin()
        await conn.savepoint("s")
        with pytest.raises(pynotify.InvalidChannelName):
            await conn.notify("")
        with pytest.raises(pynotify.InFailedTransaction):
            await conn.release("s")
        await conn.rollback_to("s")
        async with conn.transaction():
            await conn.notify("c", "in a block")
        await conn.commit()
        assert payloads(listener.poll()) == ["in a block"]
        for method in (conn.savepoint, conn.release, conn.rollback_to):
            with pytest.raises(pynotify.NoActiveTransaction):
                await method("s")


class TestReceivingInside:
    async def test_nothing_is_delivered(self, kind: str, aconnect: AsyncConnections) -> None:
        conn = await aconnect()
        await conn.listen("c")
        conn.notify_nowait("c", "x")
        messages = conn.notifies()
        sub = await conn.subscribe("s")
        async with conn.transaction():
            assert await conn.poll() == []
            assert len(await conn.poll_batch()) == 0
            for receive in (conn.wait, sub.next, messages.__anext__):
                with pytest.raises(pynotify.ActiveTransaction):
                    await receive()
            with pytest.raises(pynotify.ActiveTransaction):
                conn.notifies()
            with pytest.raises(pynotify.ActiveTransaction):
                async with conn.subscribe("c"):
                    pass
            for change in (conn.add_listener, conn.remove_listener):
                with pytest.raises(pynotify.ActiveTransaction):
                    await change("c", print)
            assert await asyncio.create_task(_receive(conn)) == ["x"]
            await sub.close()


async def _receive(conn: pynotify.AsyncConnection) -> list[str]:
    """In a task that has no transaction."""
    return payloads(await conn.poll())


class TestPrepare:
    async def test_what_is_left_then(
        self, kind: str, aconnect: AsyncConnections, listener: pynotify.Connection
    ) -> None:
        conn = await aconnect()
        async with conn.transaction() as tx:
            await conn.notify("c", "1")
            await conn.listen("d")
            await tx.prepare()
            for call in (
                lambda: conn.notify("c"),
                lambda: conn.listen("e"),
                lambda: conn.savepoint("s"),
                tx.prepare,
            ):
                with pytest.raises(pynotify.ProgrammingError):
                    await call()
        assert payloads(listener.poll()) == ["1"]
        assert await conn.listening_channels() == {"d"}

    async def test_only_the_outermost(self, aconnect: AsyncConnections) -> None:
        conn = await aconnect()
        async with conn.transaction() as outer:
            async with conn.transaction() as inner:
                for tx in (inner, outer):
                    with pytest.raises(pynotify.ProgrammingError):
                        await tx.prepare()
            await outer.prepare()
        with pytest.raises(pynotify.ProgrammingError):
            await outer.prepare()

    async def test_of_another_task(self, aconnect: AsyncConnections) -> None:
        conn = await aconnect()
        async with conn.transaction() as tx:
            with pytest.raises(pynotify.ProgrammingError, match="another thread or task"):
                await asyncio.create_task(tx.prepare())

    async def test_rolled_back_it_gives_everything_back_at_once(
        self, kind: str, aconnect: AsyncConnections, make_engine: EngineFactory
    ) -> None:
        """Room and entries of the table, before the block is left."""
        engine = make_engine(queue_pages=64, max_channels=2)
        conn = await aconnect(make_engine.name_of(engine))
        for explicit in (False, True):
            with contextlib.suppress(ZeroDivisionError):
                async with conn.transaction() as tx:
                    await conn.listen("a", "b")
                    await conn.notify_many("a", [f"{n} {PAGE}" for n in range(40)])
                    await tx.prepare()
                    other = asyncio.create_task(conn.listen("c"))
                    with pytest.raises(pynotify.TooManyChannels):
                        await other
                    if explicit:
                        raise pynotify.Rollback(tx)
                    raise ZeroDivisionError
            assert engine.stat().subscriptions == 0
            assert await conn.queue_usage() == 0
            async with conn.transaction() as tx:
                await conn.notify_many("a", [f"{n} {PAGE}" for n in range(60)])
                await tx.prepare()

    async def test_its_commit_waits_for_the_lock(
        self,
        kind: str,
        aconnect: AsyncConnections,
        listener: pynotify.Connection,
        lock_holder: LockHolder,
    ) -> None:
        conn = await aconnect()
        async with Counter() as counter:
            async with conn.transaction() as tx:
                await conn.notify("c", "1")
                await tx.prepare()
                lock_holder.hold()
                asyncio.get_running_loop().call_later(0.05, lock_holder.release)
                count = counter.count
            assert counter.count > count
        assert payloads(listener.poll()) == ["1"]

    @pytest.mark.full
    async def test_its_commit_waits_without_limit(
        self,
        aconnect: AsyncConnections,
        listener: pynotify.Connection,
        lock_holder: LockHolder,
    ) -> None:
        """Longer than any other call would wait."""
        conn = await aconnect()
        async with conn.transaction() as tx:
            await conn.notify("c", "1")
            await tx.prepare()
            lock_holder.hold()
            asyncio.get_running_loop().call_later(12, lock_holder.release)
        assert payloads(listener.poll()) == ["1"]

    async def test_its_commit_goes_on_when_cancelled(
        self,
        kind: str,
        aconnect: AsyncConnections,
        listener: pynotify.Connection,
        lock_holder: LockHolder,
    ) -> None:
        """What was prepared and is to be committed will be committed, also if all is closed."""
        conn = await aconnect()
        prepared = asyncio.Event()

        async def work() -> None:
            async with conn.transaction() as tx:
                await conn.notify("c", "1")
                await conn.listen("d")
                await tx.prepare()
                lock_holder.hold()
                prepared.set()

        task = asyncio.create_task(work())
        await prepared.wait()
        await settled(task)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not conn._transactions
        assert await conn.poll() == []
        closing = asyncio.create_task(conn.close())
        await settled(closing)
        lock_holder.release()
        await closing
        assert payloads(listener.poll()) == ["1"]

    async def test_rolling_back_does_not_block_the_loop(
        self, kind: str, aconnect: AsyncConnections, lock_holder: LockHolder
    ) -> None:
        """Giving back what was reserved takes the lock: no other task waits for that."""
        conn = await aconnect()
        async with Counter() as counter:
            for end in ("block", "task"):
                task = asyncio.create_task(_prepare_and_roll_back(conn, lock_holder, end))
                while not lock_holder.pid:
                    await asyncio.sleep(0)
                await counter.goes_on()
                assert task.done() == (end == "task")
                lock_holder.release()
                await task
        assert not conn.in_transaction

    async def test_cancelled(
        self, aconnect: AsyncConnections, make_engine: EngineFactory, connect: Connect
    ) -> None:
        """While it waits for room: only rolling back is left."""
        full = FullQueue(make_engine, connect, full_timeout=1000.0)
        conn = await aconnect(full.name)
        full.fill(conn)

        async def work() -> None:
            async with conn.transaction() as tx:
                await conn.notify("c", PAGE)
                await conn.savepoint("s")
                with contextlib.suppress(asyncio.CancelledError):
                    await tx.prepare()
                with pytest.raises(pynotify.Error):
                    await conn.notify("c", "not any more")
                with pytest.raises(pynotify.Error):
                    await conn.rollback_to("s")

        task = asyncio.create_task(work())
        await settled(task)
        task.cancel()
        await turns(3)
        full.make_room()
        with pytest.raises(pynotify.InFailedTransaction):
            await task
        assert full.make_room() == []
        await conn.notify("c", "now")
        assert full.make_room() == ["now"]


async def _prepare_and_roll_back(
    conn: pynotify.AsyncConnection, lock_holder: LockHolder, end: str
) -> None:
    if end == "block":
        with contextlib.suppress(ZeroDivisionError):
            async with conn.transaction() as tx:
                await conn.listen("c")
                await tx.prepare()
                lock_holder.hold()
                raise ZeroDivisionError
        return
    tx = conn.transaction()
    await tx.__aenter__()
    await conn.listen("c")
    await tx.prepare()
    lock_holder.hold()


class TestTasks:
    async def test_each_has_its_own(
        self, kind: str, aconnect: AsyncConnections, listener: pynotify.Connection
    ) -> None:
        conn = await aconnect()

        async def work(name: int) -> None:
            for number in range(20):
                async with conn.transaction() as tx:
                    assert conn.in_transaction
                    await conn.notify("c", f"{name} {number} a")
                    await asyncio.sleep(0)
                    async with conn.transaction():
                        await conn.notify("c", "gone")
                        await asyncio.sleep(0)
                        raise pynotify.Rollback
                    await conn.notify("c", f"{name} {number} b")
                    if number % 3 == 2:
                        raise pynotify.Rollback(tx)
                assert not conn.in_transaction
                await asyncio.sleep(0)

        async with asyncio.TaskGroup() as group:
            for name in range(8):
                group.create_task(work(name))
        messages = listener.poll()
        for name in range(8):
            mine = [m.payload for m in messages if m.payload.startswith(f"{name} ")]
            kept = [number for number in range(20) if number % 3 != 2]
            assert mine == [f"{name} {number} {part}" for number in kept for part in "ab"]
        for first, second in zip(messages[::2], messages[1::2], strict=True):
            assert first.seq == second.seq

    async def test_notify_of_another_task_is_its_own(
        self, kind: str, aconnect: AsyncConnections, listener: pynotify.Connection
    ) -> None:
        conn = await aconnect()
        async with conn.transaction():
            await conn.notify("c", "inside")
            await asyncio.gather(conn.notify("c", "another task"), _is_outside(conn))
            assert payloads(listener.poll()) == ["another task"]
        assert payloads(listener.poll()) == ["inside"]

    async def test_another_task_cannot_leave_a_block(self, aconnect: AsyncConnections) -> None:
        conn = await aconnect()
        async with conn.transaction() as tx:
            with pytest.raises(pynotify.ProgrammingError, match="another thread or task"):
                await asyncio.create_task(tx.__aexit__(None, None, None))

    async def test_one_that_ends_is_rolled_back(
        self, kind: str, aconnect: AsyncConnections, make_engine: EngineFactory
    ) -> None:
        """Also when it had prepared: room and entries of the table are given back."""
        engine = make_engine(queue_pages=64, max_channels=1)
        conn = await aconnect(make_engine.name_of(engine))

        async def leave_open(prepare: bool) -> None:
            tx = conn.transaction()
            await tx.__aenter__()
            await conn.listen("a")
            await conn.notify_many("a", [f"{n} {PAGE}" for n in range(40)])
            if prepare:
                await tx.prepare()

        for prepare in (False, True):
            await asyncio.create_task(leave_open(prepare))
            async with asyncio.timeout(PATIENCE):
                while engine.stat().subscriptions or engine.stat().backends[0].in_transaction:
                    await asyncio.sleep(0)
            assert not conn._transactions
            async with conn.transaction() as tx:
                await conn.notify_many("c", [f"{n} {PAGE}" for n in range(60)])
                await conn.listen("b")
                await tx.prepare()
                raise pynotify.Rollback

    async def test_cancelled_in_a_block(
        self, kind: str, aconnect: AsyncConnections, listener: pynotify.Connection
    ) -> None:
        conn = await aconnect()

        async def work() -> None:
            async with conn.transaction():
                await conn.notify("c")
                await asyncio.get_running_loop().create_future()

        with pytest.raises(asyncio.CancelledError):
            task = asyncio.create_task(work())
            await settled(task)
            task.cancel()
            await task
        assert not conn._transactions
        assert listener.poll() == []

    async def test_the_main_task_ends(self, aconnect: AsyncConnections) -> None:
        """`asyncio.run` over a transaction that was not ended; the fixture checks the slots."""
        conn = await aconnect()
        tx = conn.transaction()
        await tx.__aenter__()
        await conn.listen("c")
        await tx.prepare()

    async def test_many_in_one_task_pile_nothing_up(self, aconnect: AsyncConnections) -> None:
        conn = await aconnect()
        me = asyncio.current_task()
        assert me is not None

        def callbacks() -> int:
            found = [repr(callback) for callback in me._callbacks or ()]
            return sum("_task_ended" in text for text in found)

        def mine() -> int:
            gc.collect()
            return sum(isinstance(thing, pynotify.AsyncTransaction) for thing in gc.get_objects())

        before = mine()
        for _ in range(100):
            async with conn.transaction():
                await conn.notify("c")
            await conn.begin()
            await conn.rollback()
        assert callbacks() == 1
        assert mine() == before
        await conn.close()
        assert callbacks() == 0

    async def test_it_keeps_no_task_alive(self, aconnect: AsyncConnections) -> None:
        conn = await aconnect()

        async def work() -> None:
            async with conn.transaction():
                await conn.notify("c")

        task = asyncio.create_task(work())
        there = weakref.ref(task)
        await task
        del task
        await turns(2)
        gc.collect()
        assert there() is None

    async def test_closing_rolls_back_all(
        self, kind: str, aconnect: AsyncConnections, listener: pynotify.Connection
    ) -> None:
        conn = await aconnect()

        async def work(prepare: bool) -> None:
            async with conn.transaction() as tx:
                await conn.notify("c")
                if prepare:
                    await tx.prepare()
                begun.release()
                await closed.wait()

        begun, closed = asyncio.Semaphore(0), asyncio.Event()
        tasks = [asyncio.create_task(work(prepare)) for prepare in (False, True)]
        for _ in tasks:
            await begun.acquire()
        await conn.close()
        closed.set()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(result) for result in results] == [pynotify.InterfaceError] * 2
        assert listener.poll() == []

    async def test_not_in_a_callback(self, aconnect: AsyncConnections) -> None:
        """Where no task runs nothing could end it."""
        conn = await aconnect()
        loop = asyncio.get_running_loop()
        result = loop.create_future()

        def call() -> None:
            assert not conn.in_transaction
            beginning = conn.begin()
            try:
                beginning.send(None)
            except pynotify.InterfaceError as error:
                result.set_result(str(error))

        loop.call_soon(call)
        assert "task" in await result
        assert not conn._transactions


async def _is_outside(conn: pynotify.AsyncConnection) -> None:
    assert not conn.in_transaction
    with pytest.raises(pynotify.NoActiveTransaction):
        await conn.commit()


@pytest.mark.parametrize("count", range(4))
async def test_a_cancelled_commit_is_over(
    count: int,
    aconnect: AsyncConnections,
    listener: pynotify.Connection,
    lock_holder: LockHolder,
) -> None:
    """While it waits for the lock: nothing has happened, and nothing is open."""
    conn = await aconnect()
    states = []

    async def work() -> None:
        await conn.begin()
        await conn.notify("c", "cancelled")
        lock_holder.hold()
        try:
            await conn.commit()
        finally:
            states.append(conn.in_transaction)
            with pytest.raises(pynotify.NoActiveTransaction):
                await conn.rollback()

    await cancelled_after(count + 1, work())
    assert states == [False]
    lock_holder.release()
    async with conn.transaction():
        await conn.notify("c", "usable")
    assert pairs(listener.poll()) == [("c", "usable")]
