"""Many listeners on one connection, as tasks."""

from __future__ import annotations

import asyncio
import copy
import gc
import logging
from collections.abc import Callable

import pytest

import pynotify
from interrupting import At
from locked import LockHolder
from receiving import PATIENCE, payloads
from sessions import Connect, RemoteSession
from tasks import AsyncConnections, Counter, settled, turns, until

Remote = Callable[..., RemoteSession]


def send_numbers(conn: pynotify.Connection, channel: str, count: int) -> None:
    """In a worker."""
    for number in range(count):
        conn.notify(channel, str(number))


async def texts(sub: pynotify.AsyncSubscription, count: int) -> list[str | None]:
    """The next messages; None for a Gap."""
    found = [await sub.next(PATIENCE) for _ in range(count)]
    return [message.payload if message.channel else None for message in found]


class TestOpening:
    async def test_async_with(self, kind: str, aconnect: AsyncConnections, remote: Remote) -> None:
        conn, other = await aconnect(), remote(aconnect.name)
        async with conn.subscribe("a", "b", "a") as sub:
            assert isinstance(sub, pynotify.AsyncSubscription)
            assert sub.channels == ("a", "b")
            other.notify("a", "1")
            other.notify("x", "not for us")
            other.notify("b", "2")
            assert await sub.next() == ("a", "1", other.pid)
            assert await sub.next() == ("b", "2", other.pid)
            assert (sub.pending, sub.dropped, sub.closed) == (0, 0, False)
            assert "0 pending" in repr(sub)
        assert sub.closed
        assert "closed" in repr(sub)

    async def test_await(self, kind: str, aconnect: AsyncConnections) -> None:
        """It listens when that returns."""
        conn = await aconnect()
        sub = await conn.subscribe("a")
        await conn.notify("a", "1")
        assert await texts(sub, 1) == ["1"]
        await sub.close()
        await sub.close()

    async def test_there_are_no_copies(self, kind: str, aconnect: AsyncConnections) -> None:
        conn = await aconnect()
        sub = await conn.subscribe("a")
        for each, name in ((sub, "an AsyncSubscription"), (conn, "an AsyncConnection")):
            with pytest.raises(TypeError, match=f"cannot copy or pickle {name}:"):
                copy.copy(each)
        gc.collect()
        await conn.notify("a", "1")
        assert await texts(sub, 1) == ["1"]
        await sub.close()

    async def test_not_before(self, aconnect: AsyncConnections) -> None:
        conn = await aconnect()
        sub = conn.subscribe("a")
        with pytest.raises(pynotify.InterfaceError, match="does not listen"):
            await sub.next()
        await conn.notify("a", "too early")
        async with sub:
            with pytest.raises(pynotify.Timeout):
                await sub.next(0)
            with pytest.raises(pynotify.InterfaceError, match="already"):
                await sub
        with pytest.raises(pynotify.InterfaceError):
            await sub

    async def test_what_was_committed_before_is_not_owed(
        self, kind: str, aconnect: AsyncConnections
    ) -> None:
        """Though another subscription has it still to be read."""
        conn = await aconnect()
        async with conn.subscribe("a") as first:
            await conn.notify("a", "1")
            async with conn.subscribe("a") as second:
                await conn.notify("a", "2")
                assert await texts(first, 2) == ["1", "2"]
                assert await texts(second, 1) == ["2"]
                assert second.pending == 0

    async def test_bad_arguments(self, aconnect: AsyncConnections) -> None:
        conn = await aconnect()
        with pytest.raises(TypeError):
            conn.subscribe()
        with pytest.raises(ValueError, match="maxlen"):
            conn.subscribe("a", maxlen=0)
        with pytest.raises(ValueError, match="overflow"):
            conn.subscribe("a", overflow="explode")
        with pytest.raises(pynotify.InvalidChannelName):
            await conn.subscribe("good", "")
        with pytest.raises(TypeError):
            await conn.subscribe(5)  # type: ignore[arg-type]
        gc.collect()
        async with conn.subscribe("good") as sub:
            await conn.notify("good", "works")
            assert await texts(sub, 1) == ["works"]
        assert await conn.listening_channels() == frozenset()
        assert not conn.link.receiver.routed

    async def test_too_many_channels(
        self, aconnect: AsyncConnections, make_engine: Callable[..., pynotify.Engine]
    ) -> None:
        engine = make_engine(max_channels=1)
        conn = await aconnect(engine.name)
        async with conn.subscribe("a"):
            with pytest.raises(pynotify.TooManyChannels):
                await conn.subscribe("b")
        async with conn.subscribe("b"):
            assert engine.stat().subscriptions == 1
        assert engine.stat().subscriptions == 0


class TestNext:
    async def test_timeout(self, kind: str, aconnect: AsyncConnections) -> None:
        conn = await aconnect()
        async with conn.subscribe("a") as sub:
            for timeout in (0, -1, 0.01):
                with pytest.raises(pynotify.Timeout, match="a in"):
                    await sub.next(timeout)
            with pytest.raises(TimeoutError):
                await sub.next(0)
            with pytest.raises(ValueError, match="NaN"):
                await sub.next(float("nan"))
            await conn.notify("a", "1")
            assert (await sub.next(0)).payload == "1"

    async def test_async_for(self, kind: str, aconnect: AsyncConnections, remote: Remote) -> None:
        """It ends when the subscription is closed."""
        conn, other = await aconnect(), remote(aconnect.name)
        heard = []
        async with conn.subscribe("a") as sub:
            other.run(send_numbers, "a", 500)
            async for message in sub:
                heard.append(message.payload)
                if message.payload == "499":
                    await sub.close()
        assert heard == [str(number) for number in range(500)]
        other.worker.result()

    async def test_tasks_are_served_in_the_order_in_which_they_came(
        self, kind: str, aconnect: AsyncConnections
    ) -> None:
        conn = await aconnect()
        served: list[tuple[int, str]] = []

        async def receive(name: int) -> None:
            message = await sub.next()
            served.append((name, message.payload))

        async with conn.subscribe("a") as sub, asyncio.TaskGroup() as group:
            for name in range(10):
                group.create_task(receive(name))
                await turns(1)
            await conn.notify_many("a", [str(number) for number in range(4)])
            await until(lambda: len(served) == 4, "four were served")
            await conn.notify_many("a", [str(number) for number in range(4, 10)])
        assert served == [(number, str(number)) for number in range(10)]

    async def test_one_message_wakes_one_task(self, kind: str, aconnect: AsyncConnections) -> None:
        conn = await aconnect()
        async with conn.subscribe("a") as sub:
            tasks = [asyncio.create_task(sub.next()) for _ in range(5)]
            await turns(3)
            await conn.notify("a", "x")
            done, waiting = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            await turns(10)
            assert (len(done), len(waiting)) == (1, 4)
            assert not any(task.done() for task in waiting)
            for task in waiting:
                task.cancel()

    async def test_close_wakes_waiting_tasks(self, kind: str, aconnect: AsyncConnections) -> None:
        conn = await aconnect()
        for close in ("subscription", "connection"):
            sub = await conn.subscribe("a")
            waiting = [asyncio.create_task(sub.next()), asyncio.create_task(sub.next(PATIENCE))]
            iterating = asyncio.create_task(_all_of(sub))
            await turns(3)
            await (sub if close == "subscription" else conn).close()
            for task in waiting:
                with pytest.raises(pynotify.InterfaceError, match=f"{close} is closed"):
                    await task
            if close == "subscription":
                assert await iterating == []
            else:
                with pytest.raises(pynotify.InterfaceError):
                    await iterating
            with pytest.raises(pynotify.InterfaceError):
                await sub.next(0)
            await sub.close()


async def _all_of(sub: pynotify.AsyncSubscription) -> list[str]:
    return [message.payload async for message in sub]


class TestOverflow:
    async def _fed(self, conn: pynotify.AsyncConnection, *sent: str) -> None:
        for text in sent:
            await conn.notify("a", text)
        await conn.poll()

    async def test_drop_oldest(self, kind: str, aconnect: AsyncConnections) -> None:
        conn = await aconnect()
        async with conn.subscribe("a", maxlen=2) as sub:
            await self._fed(conn, "one", "two", "three", "four", "five")
            assert (sub.pending, sub.dropped) == (2, 3)
            gap = await sub.next()
            assert isinstance(gap, pynotify.Gap)
            assert (gap.channel, gap.missed, gap.missed_bytes) == (None, 3, 11)
            assert gap.reason == "overflow"
            assert await texts(sub, 2) == ["four", "five"]
            await self._fed(conn, "six", "seven")
            assert await texts(sub, 1) == ["six"]
            await self._fed(conn, "eight", "nine")
            assert await texts(sub, 3) == [None, "eight", "nine"]
            assert sub.dropped == 4

    async def test_drop_newest(self, kind: str, aconnect: AsyncConnections) -> None:
        conn = await aconnect()
        async with conn.subscribe("a", maxlen=2, overflow="drop-newest") as sub:
            await self._fed(conn, "1", "2", "3", "4")
            assert (sub.pending, sub.dropped) == (2, 2)
            assert await texts(sub, 1) == ["1"]
            await self._fed(conn, "5", "6")
            assert await texts(sub, 4) == ["2", None, "5", None]
            assert (sub.pending, sub.dropped) == (0, 3)

    async def test_without_a_limit(self, kind: str, aconnect: AsyncConnections) -> None:
        conn = await aconnect()
        async with conn.subscribe("a", maxlen=None) as sub:
            await conn.notify_many("a", [str(number) for number in range(5000)])
            await conn.poll()
            assert (sub.pending, sub.dropped) == (5000, 0)
            assert await texts(sub, 5000) == [str(number) for number in range(5000)]

    async def test_block_stops_reading_for_all(
        self, kind: str, aconnect: AsyncConnections, remote: Remote
    ) -> None:
        conn, other = await aconnect(), remote(aconnect.name)
        await conn.listen("c")
        heard: list[str] = []
        sub = await conn.subscribe("a", maxlen=2, overflow="block")
        quick = await conn.subscribe("c")
        task = quick.start(lambda message: heard.append(message.payload))
        for number in range(5):
            other.notify("a", str(number))
        other.notify("c", "behind them")
        await until(lambda: sub.pending == 2, "it is full")
        await turns(50)
        assert await conn.poll() == []
        assert heard == []
        assert await texts(sub, 5) == list("01234")
        await until(lambda: heard == ["behind them"], "it goes on")
        assert payloads(await conn.poll()) == ["behind them"]
        assert sub.dropped == 0
        await task.stop()
        await sub.close()
        await quick.close()

    async def test_one_that_has_room_again_need_not_ask_for_more(
        self, kind: str, aconnect: AsyncConnections
    ) -> None:
        """Others get theirs as soon as one message was taken."""
        conn = await aconnect()
        async with (
            conn.subscribe("a", maxlen=2, overflow="block") as full,
            conn.subscribe("c") as other,
        ):
            await conn.notify_many("a", ["1", "2"])
            await conn.notify("c", "behind them")
            waiting = asyncio.create_task(other.next())
            await settled(waiting)
            assert (await full.next()).payload == "1"
            assert (await waiting).payload == "behind them"

    @pytest.mark.parametrize("how", ["closed", "forgotten"])
    async def test_a_full_one_that_is_gone_blocks_no_other(
        self, kind: str, how: str, aconnect: AsyncConnections
    ) -> None:
        conn = await aconnect()
        async with conn.subscribe("c") as other:
            full = await conn.subscribe("a", maxlen=1, overflow="block")
            await conn.notify_many("a", ["1", "2"])
            await conn.notify("c", "behind them")
            waiting = asyncio.create_task(other.next())
            await settled(waiting)
            if how == "closed":
                await full.close()
            else:
                del full
                gc.collect()
            assert (await asyncio.wait_for(waiting, PATIENCE)).payload == "behind them"

    async def test_a_producer_that_is_held_back(
        self, kind: str, aconnect: AsyncConnections, remote: Remote
    ) -> None:
        conn, other = await aconnect(), remote(aconnect.name)
        heard = []
        async with conn.subscribe("a", maxlen=3, overflow="block") as sub:
            other.run(send_numbers, "a", 1000)
            async for message in sub:
                heard.append(message.payload)
                assert sub.pending <= 3
                if message.payload == "999":
                    break
        assert heard == [str(number) for number in range(1000)]
        other.worker.result()


class TestTogether:
    async def test_skip_self_is_by_connection(
        self, kind: str, aconnect: AsyncConnections, connect: Connect
    ) -> None:
        conn, same_process = await aconnect(), connect()
        async with conn.subscribe("a", skip_self=True) as sub, conn.subscribe("a") as all_of_it:
            await conn.notify("a", "mine")
            same_process.notify("a", "of the same process")
            assert await texts(sub, 1) == ["of the same process"]
            assert await texts(all_of_it, 2) == ["mine", "of the same process"]

    async def test_listen_and_subscribe(self, kind: str, aconnect: AsyncConnections) -> None:
        """A channel in both goes to both; neither UNLISTEN touches the other."""
        conn = await aconnect()
        await conn.listen("a", "b")
        async with conn.subscribe("a") as sub, conn.subscribe("a") as second:
            await conn.notify("a", "1")
            await conn.notify("b", "2")
            assert payloads(await conn.poll()) == ["1", "2"]
            assert await texts(sub, 1) == ["1"]
            await conn.unlisten("a")
            await conn.notify("a", "3")
            assert await conn.poll() == []
            await conn.unlisten_all()
            await conn.notify("a", "4")
            assert await conn.listening_channels() == frozenset()
            assert await texts(sub, 2) == ["3", "4"]
            await conn.listen("a")
            await sub.close()
            await conn.notify("a", "5")
            assert await texts(second, 4) == ["1", "3", "4", "5"]
        await conn.notify("a", "6")
        assert payloads(await conn.poll()) == ["5", "6"]

    async def test_notifies_and_subscriptions_at_once(
        self, kind: str, aconnect: AsyncConnections, remote: Remote
    ) -> None:
        """The first waiting task reads for all."""
        conn, other = await aconnect(), remote(aconnect.name)
        await conn.listen("a")
        heard: dict[str, list[str]] = {"listen": [], "one": [], "two": []}

        async def listen() -> None:
            async for message in conn.notifies(stop_after=500):
                heard["listen"].append(message.payload)

        async def receive(sub: pynotify.AsyncSubscription, name: str) -> None:
            while len(heard[name]) < 500:
                heard[name].append((await sub.next()).payload)

        async with (
            conn.subscribe("a") as one,
            conn.subscribe("a", "b") as two,
            asyncio.TaskGroup() as group,
        ):
            group.create_task(listen())
            group.create_task(receive(one, "one"))
            group.create_task(receive(two, "two"))
            other.run(send_numbers, "a", 500)
        expected = [str(number) for number in range(500)]
        assert heard == {"listen": expected, "one": expected, "two": expected}
        other.worker.result()

    async def test_a_burst_leaves_others_their_turn(
        self, kind: str, aconnect: AsyncConnections
    ) -> None:
        """It is read in pieces."""
        conn = await aconnect()
        async with conn.subscribe("a", maxlen=None) as sub:
            await conn.notify_many("a", [str(number) for number in range(5000)])
            seen = 0
            while seen < 5000:
                await turns(1)
                assert sub.pending - seen <= 256
                seen = sub.pending

    async def test_what_is_there_is_found_at_once(
        self, kind: str, aconnect: AsyncConnections
    ) -> None:
        """Behind any number of messages for others."""
        conn = await aconnect()
        await conn.listen("c")
        async with conn.subscribe("a", maxlen=None), conn.subscribe("b") as sub:
            for last in ("b", "c"):
                await conn.notify_many("a", [str(number) for number in range(3000)])
                await conn.notify(last, "x")
                if last == "b":
                    assert (await sub.next(0)).payload == "x"
                else:
                    assert await conn.wait(0)
                    assert [m.payload async for m in conn.notifies(timeout=0)] == ["x"]

    async def test_a_hundred_share_a_slot(
        self, kind: str, aconnect: AsyncConnections, engine: pynotify.Engine, remote: Remote
    ) -> None:
        conn, other = await aconnect(), remote(aconnect.name)
        subs = [await conn.subscribe("a") for _ in range(100)]
        waiting = [asyncio.create_task(sub.next()) for sub in subs]
        await turns(3)
        assert engine.stat().subscriptions == 1
        before = engine.stat()
        other.notify("a", "to all")
        assert payloads(await asyncio.gather(*waiting)) == ["to all"] * 100
        assert engine.stat().signals_sent - before.signals_sent == 1
        for sub in subs:
            await sub.close()
        assert engine.stat().subscriptions == 0

    async def test_forgotten_ones_are_taken_off(
        self, aconnect: AsyncConnections, engine: pynotify.Engine
    ) -> None:
        conn = await aconnect()
        for _ in range(3):
            await conn.subscribe("a")
        gc.collect()
        async with conn.subscribe("b"):
            pass
        assert engine.stat().subscriptions == 0

    async def test_they_wait_for_the_lock_and_the_loop_goes_on(
        self,
        kind: str,
        aconnect: AsyncConnections,
        engine: pynotify.Engine,
        lock_holder: LockHolder,
    ) -> None:
        conn = await aconnect()
        sub = await conn.subscribe("a")
        waiting = asyncio.create_task(sub.next())
        opening: list[asyncio.Task[pynotify.AsyncSubscription]] = []

        async def open_one(channel: str) -> pynotify.AsyncSubscription:
            return await conn.subscribe(channel)

        lock_holder.hold()
        async with Counter() as counter:
            opening = [asyncio.create_task(open_one(channel)) for channel in "abc"]
            closing = asyncio.create_task(sub.close())
            await counter.goes_on()
            with pytest.raises(pynotify.InterfaceError):
                await waiting  # it is closed at once, though not UNSUBSCRIBEd
            assert not closing.done()
            assert not any(task.done() for task in opening)
            lock_holder.release()
            await closing
            for task in opening:
                await (await task).close()
        assert engine.stat().subscriptions == 0


class TestChannelsThatComeAndGo:
    async def test_add_and_discard(self, kind: str, aconnect: AsyncConnections) -> None:
        conn = await aconnect()
        async with conn.subscribe("a") as sub, conn.subscribe("b") as same:
            await conn.notify("b", "before")
            await sub.add("b", "c", "a")
            assert sub.channels == ("a", "b", "c")
            for channel in ("a", "b", "c"):
                await conn.notify(channel, f"on {channel}")
            assert await texts(sub, 3) == ["on a", "on b", "on c"]
            await conn.notify("b", "unread")
            await conn.notify("a", "last")
            await sub.discard("b", "never heard of")
            assert await texts(sub, 1) == ["last"]
            with pytest.raises(pynotify.Timeout):
                await sub.next(0)
            assert await texts(same, 3) == ["before", "on b", "unread"]
            with pytest.raises(pynotify.InvalidChannelName):
                await sub.add("d", "")
            assert sub.channels == ("a", "c")
            await sub.discard("a", "c")
            assert sub.channels == ()
            waiting = asyncio.create_task(sub.next(PATIENCE))
            await turns(3)
            await sub.add("d")
            await conn.notify("d", "x")
            assert (await waiting).payload == "x"

    async def test_where_it_is_refused(self, aconnect: AsyncConnections) -> None:
        conn = await aconnect()
        sub = conn.subscribe("a")
        for change in (sub.add, sub.discard):
            with pytest.raises(pynotify.InterfaceError, match="does not listen yet"):
                await change("b")
        async with sub, conn.transaction():
            for change in (sub.add, sub.discard):
                with pytest.raises(pynotify.ActiveTransaction):
                    await change("b")
        for change in (sub.add, sub.discard):
            with pytest.raises(pynotify.InterfaceError, match="closed"):
                await change("b")

    async def test_cancelled_while_they_wait_for_the_lock(
        self,
        kind: str,
        aconnect: AsyncConnections,
        engine: pynotify.Engine,
        lock_holder: LockHolder,
    ) -> None:
        """add() has not happened; of what is discarded nothing comes, and it is given up later."""
        conn = await aconnect()
        async with conn.subscribe("a", "b") as sub:
            await conn.notify("b", "unread")
            for change, channel in ((sub.add, "c"), (sub.discard, "b")):
                lock_holder.hold()
                task = asyncio.create_task(change(channel))
                await settled(task)
                task.cancel()
                await asyncio.wait([task])
                assert task.cancelled()
                lock_holder.release()
            assert sub.channels == ("a",)
            for name in "abc":
                await conn.notify(name, f"on {name}")
            assert await texts(sub, 1) == ["on a"]
            await sub.add("c")
            await sub.discard("b")
            await conn.notify("c", "x")
            assert await texts(sub, 1) == ["x"]
            assert engine.stat().subscriptions == 2


class TestStart:
    async def test_plain_and_coroutine_handlers(
        self, kind: str, aconnect: AsyncConnections, remote: Remote
    ) -> None:
        conn, other = await aconnect(), remote(aconnect.name)
        plain: list[str] = []
        awaited: list[str] = []

        async def handle(message: pynotify.Notify) -> None:
            await asyncio.sleep(0)
            awaited.append(message.payload)

        async with conn.subscribe("a") as one, conn.subscribe("a") as two:
            tasks = [one.start(lambda m: plain.append(m.payload)), two.start(handle)]
            other.run(send_numbers, "a", 300)
            await until(lambda: len(plain) == len(awaited) == 300, "all have come")
            for task in tasks:
                await task.stop()
            await conn.notify("a", "after the end")
            await turns(10)
        assert plain == awaited == [str(number) for number in range(300)]
        other.worker.result()

    async def test_gaps_too(self, kind: str, aconnect: AsyncConnections) -> None:
        conn = await aconnect()
        heard: list[object] = []
        async with conn.subscribe("a", maxlen=1) as sub:
            for text in ("1", "2", "3"):
                await conn.notify("a", text)
            await conn.poll()
            task = sub.start(heard.append)
            await until(lambda: len(heard) == 2, "both are there")
            await task.stop()
        assert heard[0] == pynotify.Gap(2, "overflow", 2)
        assert heard[1] == ("a", "3", conn.pid)

    async def test_errors_do_not_end_it(
        self, kind: str, aconnect: AsyncConnections, caplog: pytest.LogCaptureFixture
    ) -> None:
        conn = await aconnect()
        errors: list[Exception] = []
        heard: list[str] = []

        async def fail_later(message: pynotify.Notify) -> None:
            await asyncio.sleep(0)
            fail(message)

        def fail(message: pynotify.Notify) -> None:
            heard.append(message.payload)
            raise ZeroDivisionError(message.payload)

        async with conn.subscribe("a") as sub:
            for handler in (fail, fail_later):
                task = sub.start(handler, on_error=errors.append)
                await conn.notify("a", "1")
                await conn.notify("a", "2")
                await until(lambda: len(errors) == 2, "both have failed")
                assert [error.args for error in errors] == [("1",), ("2",)]
                errors.clear()
                await task.stop()
            assert not caplog.records
            with caplog.at_level(logging.ERROR, logger="pynotify"):
                task = sub.start(fail)
                await conn.notify("a", "3")
                await until(lambda: caplog.records, "it is logged")
                await task.stop()
            assert "ZeroDivisionError" in caplog.text

    async def test_a_cancelled_part_of_a_handler_does_not_end_it(
        self, aconnect: AsyncConnections, caplog: pytest.LogCaptureFixture
    ) -> None:
        """A handler may wait for a task that is cancelled; that was not meant for us."""
        conn = await aconnect()
        heard: list[str] = []

        async def handle(message: pynotify.Notify) -> None:
            heard.append(message.payload)
            part = asyncio.create_task(asyncio.sleep(PATIENCE))
            part.cancel()
            await part

        async with conn.subscribe("a") as sub:
            task = sub.start(handle)
            await conn.notify("a", "1")
            await conn.notify("a", "2")
            await until(lambda: heard == ["1", "2"], "both are there")
            await task.stop()
        assert "CancelledError" in caplog.text

    async def test_stop_lets_the_handler_finish(
        self, kind: str, aconnect: AsyncConnections
    ) -> None:
        conn = await aconnect()
        entered, leave, heard = asyncio.Event(), asyncio.Event(), []

        async def handle(message: pynotify.Notify) -> None:
            entered.set()
            await leave.wait()
            heard.append(message.payload)

        async with conn.subscribe("a") as sub:
            task = sub.start(handle)
            await conn.notify_many("a", ["1", "2"])
            await entered.wait()
            stopping = asyncio.create_task(task.stop())
            await settled(stopping)
            leave.set()
            await stopping
            assert heard == ["1"]
            assert await texts(sub, 1) == ["2"]
            await task.stop()

    async def test_stop_in_the_handler_and_at_once(
        self, kind: str, aconnect: AsyncConnections
    ) -> None:
        conn = await aconnect()
        heard: list[str] = []

        async def handle(message: pynotify.Notify) -> None:
            heard.append(message.payload)
            await task.stop()

        async with conn.subscribe("a") as sub:
            await sub.start(heard.append).stop()
            task = sub.start(handle)
            await conn.notify_many("a", ["1", "2"])
            await until(lambda: heard, "it came")
            await turns(10)
            assert heard == ["1"]
            assert await texts(sub, 1) == ["2"]

    async def test_it_ends_with_the_subscription_or_the_connection(
        self, aconnect: AsyncConnections, caplog: pytest.LogCaptureFixture
    ) -> None:
        conn = await aconnect()
        for close in ("subscription", "connection"):
            sub = await conn.subscribe("a")
            errors: list[Exception] = []
            task = sub.start(print, on_error=errors.append)
            await turns(3)
            await (sub if close == "subscription" else conn).close()
            await task.stop()
            assert errors == []
        assert not caplog.records


class TestPatterns:
    async def test_listened_to(self, aconnect: AsyncConnections, remote: Remote) -> None:
        conn, other = await aconnect(), remote(aconnect.name)
        async with conn.transaction():
            await conn.listen_pattern("c*", "*1")
            await conn.listen("c2")
        assert await conn.listening_patterns() == ("c*", "*1")
        assert await conn.patterns() == {"c*": 1, "*1": 1}
        await conn.unlisten_pattern("*1")
        other.notify("c1", "1")
        other.notify("c2", "2")
        found = [message async for message in conn.notifies(stop_after=2, timeout=PATIENCE)]
        assert [(m.channel, m.pattern) for m in found] == [("c1", "c*"), ("c2", None)]
        await conn.unlisten_all()
        assert await conn.patterns() == {}

    async def test_subscribed_to(self, aconnect: AsyncConnections, remote: Remote) -> None:
        conn, other = await aconnect(), remote(aconnect.name)
        subscription = conn.subscribe("x", patterns=["c*"])
        assert (subscription.channels, subscription.patterns) == (("x",), ("c*",))
        async with subscription as sub:
            await sub.add(patterns=["?9"])
            for channel in ("x", "c1", "y", "y9"):
                other.notify(channel, channel)
            found = [await sub.next(PATIENCE) for _ in range(3)]
            assert [(m.channel, m.pattern) for m in found] == [
                ("x", None),
                ("c1", "c*"),
                ("y9", "?9"),
            ]
            await sub.discard("x", patterns=["c*"])
            other.notify("c1")
            other.notify("z9", "last")
            assert await texts(sub, 1) == ["last"]
            assert await conn.patterns() == {"?9": 1}
        assert await conn.patterns() == {}


async def test_a_full_one_that_is_forgotten_in_the_middle_of_a_signal(
    aconnect: AsyncConnections,
) -> None:
    """Reading had stopped for it, and goes on; what the signal's handler raised comes out."""
    conn = await aconnect()
    other = await conn.subscribe("c")
    full: list[pynotify.AsyncSubscription] = []
    for place in range(1, 1000):
        full.append(await conn.subscribe("a", maxlen=1, overflow="block"))
        await conn.notify_many("a", ["1", "2"])
        await conn.notify("c", str(place))
        waiting = asyncio.create_task(other.next())
        await settled(waiting)
        at = At(place)  # not in the debugging of asyncio, whose generators swallow it

        def drop() -> str:
            full.clear()
            return "not interrupted"

        came_through = at.attempt(drop) is not None
        assert came_through != at.reached
        assert (await waiting).payload == str(place)
        if came_through:
            break
    assert place > 2
