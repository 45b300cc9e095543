"""poll, poll_batch, wait, notifies, handlers and the descriptor, in tasks."""

from __future__ import annotations

import asyncio
import logging
import select
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

import pynotify
from interrupting import WHOLE, At, at_places
from pynotify._task_receiver import TaskReceiver
from receiving import PATIENCE, payloads, readable
from sessions import RemoteSession
from tasks import AsyncConnections, Counter, settled, turns, until

Remote = Callable[..., RemoteSession]


async def listening(aconnect: AsyncConnections) -> pynotify.AsyncConnection:
    conn = await aconnect()
    await conn.listen("c")
    return conn


async def heard_until_end(conn: pynotify.AsyncConnection) -> list[str]:
    heard = []
    async for message in conn.notifies(timeout=PATIENCE):
        if message.payload == "end":
            break
        heard.append(message.payload)
    return heard


def send_numbers(conn: pynotify.Connection, count: int, step: int) -> None:
    """In a worker: `count` messages on "c", then "end"."""
    for first in range(0, count, step):
        conn.notify_many("c", [str(number) for number in range(first, min(first + step, count))])
    conn.notify("c", "end")


class TestPoll:
    async def test_from_itself_and_another_process(
        self, kind: str, aconnect: AsyncConnections, remote: Remote
    ) -> None:
        conn, other = await listening(aconnect), remote(aconnect.name)
        assert await conn.poll() == []
        await conn.notify("c", "mine")
        other.notify("c", "theirs")
        messages = await conn.poll()
        assert messages == [("c", "mine", conn.pid), ("c", "theirs", other.pid)]
        assert [m.backend_id for m in messages] == [conn.backend_id, other.backend_id]

    async def test_max(self, kind: str, aconnect: AsyncConnections) -> None:
        conn = await listening(aconnect)
        await conn.notify_many("c", [str(number) for number in range(10)])
        assert await conn.poll(max=0) == []
        assert payloads(await conn.poll(max=3)) == ["0", "1", "2"]
        assert payloads(await conn.poll(1)) == ["3"]
        assert payloads(await conn.poll(max=100)) == ["4", "5", "6", "7", "8", "9"]
        with pytest.raises(ValueError, match="negative"):
            await conn.poll(max=-1)

    async def test_after_notifies_has_read_ahead(
        self, kind: str, aconnect: AsyncConnections
    ) -> None:
        conn = await listening(aconnect)
        await conn.notify_many("c", [str(number) for number in range(600)])
        async for message in conn.notifies():
            assert message.payload == "0"
            break
        assert payloads(await conn.poll(max=300)) == [str(number) for number in range(1, 301)]
        batch = await conn.poll_batch(max=200)
        assert batch.payloads() == [str(number).encode() for number in range(301, 501)]
        assert payloads(await conn.poll()) == [str(number) for number in range(501, 600)]

    async def test_batch(self, kind: str, aconnect: AsyncConnections) -> None:
        conn = await listening(aconnect)
        assert len(await conn.poll_batch()) == 0
        await conn.notify_many("c", ["a", "b"])
        assert len(await conn.poll_batch(max=0)) == 0
        batch = await conn.poll_batch()
        assert isinstance(batch, pynotify.NotifyBatch)
        assert batch.payloads() == [b"a", b"b"]
        assert batch.gaps == []


class TestWait:
    async def test_there_may_be_something(
        self, kind: str, aconnect: AsyncConnections, remote: Remote
    ) -> None:
        conn, other = await listening(aconnect), remote(aconnect.name)
        assert await conn.wait(0) is False
        assert await conn.wait(0.01) is False
        waiting = asyncio.create_task(conn.wait())
        await settled(waiting)
        other.notify("c", "x")
        assert await waiting is True
        assert await conn.wait(0) is True
        assert await conn.wait() is True
        assert payloads(await conn.poll()) == ["x"]
        assert await conn.wait(0) is False

    async def test_bad_timeout(self, aconnect: AsyncConnections) -> None:
        conn = await aconnect()
        with pytest.raises(ValueError, match="NaN"):
            await conn.wait(float("nan"))
        with pytest.raises(ValueError, match="NaN"):
            conn.notifies(timeout=float("nan"))
        with pytest.raises(ValueError, match="stop_after"):
            conn.notifies(stop_after=-1)

    async def test_without_limit(self, kind: str, aconnect: AsyncConnections) -> None:
        """A bound that no clock can express is none."""
        conn = await listening(aconnect)
        waiting = asyncio.create_task(conn.wait(float("inf")))
        await settled(waiting)
        await conn.notify("c")
        assert await waiting is True

    async def test_all_tasks_are_woken(self, kind: str, aconnect: AsyncConnections) -> None:
        conn = await listening(aconnect)
        tasks = [asyncio.create_task(conn.wait()) for _ in range(5)]
        await turns(3)
        await conn.notify("c")
        assert await asyncio.gather(*tasks) == [True] * 5
        assert len(await conn.poll()) == 1

    async def test_wait_and_poll_for_ever_leave_others_their_turn(
        self, kind: str, aconnect: AsyncConnections
    ) -> None:
        """Also when something is always there already."""
        conn = await listening(aconnect)

        async def work() -> None:
            while True:
                await conn.notify("c", "again")
                await conn.wait()
                await conn.poll()

        async with Counter() as counter:
            task = asyncio.create_task(work())
            await counter.goes_on()
            task.cancel()


class TestNotifies:
    async def test_from_another_process(
        self, kind: str, aconnect: AsyncConnections, remote: Remote
    ) -> None:
        conn, other = await listening(aconnect), remote(aconnect.name)
        other.run(send_numbers, 3000, 7)
        assert await heard_until_end(conn) == [str(number) for number in range(3000)]
        other.worker.result()

    async def test_stop_after(self, kind: str, aconnect: AsyncConnections) -> None:
        conn = await listening(aconnect)
        await conn.notify_many("c", ["1", "2", "3", "4"])
        assert [m.payload async for m in conn.notifies(stop_after=0)] == []
        assert [m.payload async for m in conn.notifies(stop_after=2)] == ["1", "2"]
        assert [m.payload async for m in conn.notifies(stop_after=1)] == ["3"]
        assert [m.payload async for m in conn.notifies(timeout=0, stop_after=9)] == ["4"]

    async def test_timeout_drains_at_0(self, kind: str, aconnect: AsyncConnections) -> None:
        conn = await listening(aconnect)
        assert [m async for m in conn.notifies(timeout=0)] == []
        count = 1000
        await conn.notify_many("c", [str(number) for number in range(count)])
        drained = [m.payload async for m in conn.notifies(timeout=0)]
        assert drained == [str(number) for number in range(count)]

    async def test_timeout_bounds_each_wait(self, kind: str, aconnect: AsyncConnections) -> None:
        """It does not begin again each time that another task was faster."""
        conn = await listening(aconnect)

        class Thief:
            message = None

            def wake(self) -> None:
                conn._backlog.clear()

            resume = wake

        conn.link.receiver.inboxes.main.waiters.append(Thief())
        messages = conn.notifies(timeout=0.1)
        task = asyncio.create_task(anext(messages, None))
        while not task.done():
            await conn.notify("c", "stolen")
            await asyncio.sleep(0.01)
        assert await task is None

    async def test_leaving_the_loop_loses_nothing(
        self, kind: str, aconnect: AsyncConnections
    ) -> None:
        conn = await listening(aconnect)
        await conn.notify_many("c", [str(number) for number in range(10)])
        heard = []
        for _ in range(10):
            async for message in conn.notifies(timeout=0):
                heard.append(message.payload)
                break
        assert heard == [str(number) for number in range(10)]
        with pytest.raises(ZeroDivisionError):
            await conn.notify_many("c", ["a", "b"])
            async for _message in conn.notifies():
                raise ZeroDivisionError
        assert payloads(await conn.poll()) == ["b"]

    async def test_tasks_share(self, kind: str, aconnect: AsyncConnections, remote: Remote) -> None:
        """Everything once, to the first that asks; each gets it in order."""
        conn, other = await listening(aconnect), remote(aconnect.name)
        heard: list[list[int]] = [[], [], []]

        async def receive(mine: list[int]) -> None:
            async for message in conn.notifies():
                mine.append(int(message.payload))
                await asyncio.sleep(0)

        tasks = [asyncio.create_task(receive(mine)) for mine in heard]
        other.run(_send_only_numbers, 1000)
        await until(lambda: sum(map(len, heard)) == 1000, "all have come")
        for task in tasks:
            task.cancel()
        assert sorted(number for mine in heard for number in mine) == list(range(1000))
        assert all(mine == sorted(mine) for mine in heard)
        other.worker.result()

    @pytest.mark.parametrize("timeout", [None, 0, 5])
    async def test_others_get_their_turn(
        self, kind: str, timeout: float | None, aconnect: AsyncConnections
    ) -> None:
        """After at most 256 messages; whether they were read for it or for a subscription."""
        conn = await listening(aconnect)
        async with conn.subscribe("other"), Counter() as counter:
            await conn.notify_many("c", [str(number) for number in range(3000)])
            before, longest, since = counter.count, 0, 0
            async for _message in conn.notifies(timeout=timeout, stop_after=3000):
                since = since + 1 if counter.count == before else 0
                before, longest = counter.count, max(longest, since)
            assert longest <= 256

    async def test_unlisten_forgets_what_was_read_ahead(
        self, kind: str, aconnect: AsyncConnections
    ) -> None:
        conn = await listening(aconnect)
        await conn.listen("d")
        for number in range(4):
            await conn.notify("cd"[number % 2], str(number))
        async for message in conn.notifies():
            assert message.payload == "0"
            break
        await conn.unlisten("c")
        await conn.listen("c")
        assert payloads(await conn.poll()) == ["1", "3"]
        await conn.notify("c", "kept")
        assert await conn.wait()
        async with conn.transaction():
            await conn.unlisten("c")
            await conn.listen("c")
        assert payloads(await conn.poll()) == ["kept"]

    async def test_closed(self, kind: str, aconnect: AsyncConnections) -> None:
        conn = await listening(aconnect)
        await conn.notify_many("c", ["1", "2"])
        messages = conn.notifies()
        assert (await anext(messages)).payload == "1"
        await conn.close()
        with pytest.raises(pynotify.InterfaceError):
            await anext(messages)
        with pytest.raises(pynotify.InterfaceError):
            conn.notifies()
        with pytest.raises(pynotify.InterfaceError):
            await conn.poll()

    async def test_close_wakes_waiting_tasks(self, kind: str, aconnect: AsyncConnections) -> None:
        conn = await listening(aconnect)
        tasks = [
            asyncio.create_task(conn.wait()),
            asyncio.create_task(conn.wait(PATIENCE)),
            asyncio.create_task(anext(conn.notifies())),
        ]
        await turns(3)
        await conn.close()
        for task in tasks:
            with pytest.raises(pynotify.InterfaceError):
                await task


def _send_only_numbers(conn: pynotify.Connection, count: int) -> None:
    for number in range(count):
        conn.notify("c", str(number))


class TestHandlers:
    async def test_they_run_before_the_message_is_returned(
        self, kind: str, aconnect: AsyncConnections
    ) -> None:
        conn = await listening(aconnect)
        seen: list[str] = []
        conn.add_notify_handler(lambda message: seen.append(message.payload))
        await conn.notify_many("c", ["1", "2"])
        assert await conn.wait()
        assert seen == []
        async for message in conn.notifies():
            assert seen == [message.payload]
            break
        await conn.poll()
        assert seen == ["1", "2"]
        await conn.notify("c", "3")
        await conn.poll_batch()
        assert seen == ["1", "2", "3"]

    async def test_one_that_raises_is_removed(
        self, aconnect: AsyncConnections, caplog: pytest.LogCaptureFixture
    ) -> None:
        conn = await listening(aconnect)

        def fail(_message: pynotify.Notify) -> None:
            raise ZeroDivisionError

        conn.add_notify_handler(fail)
        await conn.notify("c", "x")
        with caplog.at_level(logging.ERROR, logger="pynotify"):
            assert payloads(await conn.poll()) == ["x"]
        assert "removed" in caplog.text
        with pytest.raises(ValueError, match="not in list"):
            conn.remove_notify_handler(fail)


class TestDescriptor:
    """fileno(): for another loop than ours."""

    async def test_readable_iff_poll_may_return_something(
        self, kind: str, aconnect: AsyncConnections, remote: Remote
    ) -> None:
        conn, other = await listening(aconnect), remote(aconnect.name)
        descriptor = conn.fileno()
        assert conn.fileno() == descriptor
        assert not readable(descriptor)
        other.notify("c", "1")
        assert readable(descriptor, PATIENCE)
        assert readable(descriptor)
        assert payloads(await conn.poll()) == ["1"]
        assert not readable(descriptor)

    async def test_what_was_read_ahead_counts(self, kind: str, aconnect: AsyncConnections) -> None:
        conn = await listening(aconnect)
        descriptor = conn.fileno()
        await conn.notify_many("c", [str(number) for number in range(4)])
        async for _message in conn.notifies():
            break
        assert readable(descriptor)
        assert payloads(await conn.poll(max=1)) == ["1"]
        assert readable(descriptor)
        assert [m.payload async for m in conn.notifies(timeout=0)] == ["2", "3"]
        assert not readable(descriptor)
        await conn.notify_many("c", ["4", "5"])
        assert [m.payload async for m in conn.notifies(stop_after=2)] == ["4", "5"]
        assert not readable(descriptor)
        await conn.notify("c", "4")
        assert await conn.wait()
        assert readable(descriptor)
        assert payloads(await conn.poll()) == ["4"]
        assert not readable(descriptor)

    async def test_what_was_read_for_a_subscription_does_not(
        self, kind: str, aconnect: AsyncConnections
    ) -> None:
        conn = await listening(aconnect)
        descriptor = conn.fileno()
        async with conn.subscribe("s") as sub:
            await conn.notify("s", "for the subscription")
            assert (await sub.next(PATIENCE)).payload == "for the subscription"
            assert not readable(descriptor)
            await conn.notify("c", "for poll")
            await conn.notify("s", "for the subscription")
            assert (await sub.next(PATIENCE)).payload == "for the subscription"
            assert readable(descriptor)
            assert payloads(await conn.poll()) == ["for poll"]
            assert not readable(descriptor)

    async def test_a_full_subscription_keeps_it_quiet(
        self, kind: str, aconnect: AsyncConnections
    ) -> None:
        """As long as poll() may not read."""
        conn = await listening(aconnect)
        descriptor = conn.fileno()
        async with conn.subscribe("s", maxlen=1, overflow="block") as full:
            await conn.notify_many("s", ["1", "2"])
            await conn.notify("c", "behind them")
            assert await conn.poll() == []
            assert await conn.poll() == []
            assert not readable(descriptor)
            assert payloads([await full.next(), await full.next()]) == ["1", "2"]
            assert readable(descriptor, PATIENCE)
            assert payloads(await conn.poll()) == ["behind them"]

    async def test_in_the_same_loop(self, kind: str, aconnect: AsyncConnections) -> None:
        """The loop has a reader for each descriptor: ours is another one."""
        conn = await listening(aconnect)
        heard: asyncio.Queue[str] = asyncio.Queue()
        loop = asyncio.get_running_loop()

        def called() -> None:
            task = loop.create_task(conn.poll())
            tasks.append(task)
            loop.remove_reader(conn.fileno())
            task.add_done_callback(polled)

        def polled(task: asyncio.Task[list[pynotify.Notify]]) -> None:
            for text in payloads(task.result()):
                heard.put_nowait(text)
            loop.add_reader(conn.fileno(), called)

        tasks: list[asyncio.Task[list[pynotify.Notify]]] = []
        loop.add_reader(conn.fileno(), called)
        async with conn.subscribe("s") as sub:
            for number in range(5):
                await conn.notify("s", str(number))
                await conn.notify("c", str(number))
                assert (await sub.next(PATIENCE)).payload == str(number)
                assert await heard.get() == str(number)
        loop.remove_reader(conn.fileno())

    async def test_closed(self, aconnect: AsyncConnections) -> None:
        conn = await aconnect()
        poller = select.poll()
        poller.register(conn.fileno())
        await conn.close()
        assert poller.poll(0)[0][1] & select.POLLNVAL
        with pytest.raises(pynotify.InterfaceError):
            conn.fileno()


class TestNoBusyLoop:
    """A level-triggered descriptor calls again and again while something is unread."""

    @pytest.fixture
    def calls(self, monkeypatch: pytest.MonkeyPatch) -> list[None]:
        """Grows with each call of the loop's reader."""
        calls: list[None] = []
        original = TaskReceiver._on_readable

        def on_readable(receiver: TaskReceiver) -> None:
            calls.append(None)
            original(receiver)

        monkeypatch.setattr(TaskReceiver, "_on_readable", on_readable)
        return calls

    async def test_when_no_task_waits(
        self, kind: str, aconnect: AsyncConnections, calls: list[None]
    ) -> None:
        conn = await listening(aconnect)
        assert await conn.wait(0.001) is False  # the reader is there now
        before = len(calls)
        await conn.notify_many("c", [str(number) for number in range(1000)])
        await turns(200)
        assert len(calls) <= before + 2
        assert len(await conn.poll()) == 1000

    async def test_when_a_task_has_left_messages_behind(
        self, kind: str, aconnect: AsyncConnections, calls: list[None]
    ) -> None:
        conn = await listening(aconnect)
        waiting = asyncio.create_task(anext(conn.notifies()))
        await settled(waiting)
        await conn.notify_many("c", [str(number) for number in range(1000)])
        await waiting
        before = len(calls)
        await turns(200)
        assert len(calls) <= before + 2

    @pytest.mark.parametrize("watched", [False, True])
    async def test_with_subscriptions(
        self, kind: str, watched: bool, aconnect: AsyncConnections, calls: list[None]
    ) -> None:
        """What it reads for poll() stays in the backlog; a full one forbids to read."""
        conn = await listening(aconnect)
        if watched:
            conn.fileno()
        async with (
            conn.subscribe("s") as quiet,
            conn.subscribe("full", maxlen=2, overflow="block") as full,
        ):
            await conn.notify("c", "no task polls")
            await turns(200)
            assert len(calls) <= 5
            await conn.notify_many("full", [str(number) for number in range(10)])
            await turns(200)
            assert len(calls) <= 10
            assert [(await full.next()).payload for _ in range(10)] == list("0123456789")
            assert payloads(await conn.poll()) == ["no task polls"]
            assert quiet.pending == 0

    async def test_after_an_error(
        self, aconnect: AsyncConnections, calls: list[None], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        conn = await listening(aconnect)
        waiting = asyncio.create_task(conn.wait())
        await settled(waiting)

        def fail(*_arguments: object) -> list[pynotify.Notify]:
            raise MemoryError

        with monkeypatch.context() as patch:
            patch.setattr(conn.link.receiver.reader, "read", fail)
            await conn.notify("c", "x")
            with pytest.raises(MemoryError):
                await waiting
            before = len(calls)
            await turns(100)
            assert len(calls) == before
        assert await conn.wait()
        assert payloads(await conn.poll()) == ["x"]


#: What was returned, in pieces; taken apart afterwards, since that is interrupted as well.
Heard = list[list[pynotify.Notify | pynotify.Gap] | pynotify.NotifyBatch]


async def _to_poll(conn: pynotify.AsyncConnection, heard: Heard) -> None:
    heard += (await conn.poll(),)


async def _to_poll_a_batch(conn: pynotify.AsyncConnection, heard: Heard) -> None:
    heard += (await conn.poll_batch(),)


async def _to_look(conn: pynotify.AsyncConnection, heard: Heard) -> None:
    await conn.wait(0)


async def _to_go_through(conn: pynotify.AsyncConnection, heard: Heard) -> None:
    async for message in conn.notifies(timeout=0):
        heard += ([message],)


RECEIVERS = [_to_poll, _to_poll_a_batch, _to_look, _to_go_through]


@pytest.mark.parametrize("whole", WHOLE)
@pytest.mark.parametrize("how", RECEIVERS)
async def test_a_handler_that_raises_loses_nothing(
    aconnect: AsyncConnections, how: Callable[..., Coroutine[Any, Any, None]], whole: bool
) -> None:
    conn = await listening(aconnect)
    sent = ["1", "2", "3"]

    def attempt(at: At) -> None:
        heard: Heard = []
        assert sender.notify_many("c", sent) == len(sent)
        at.attempt(lambda: _without_waiting(how(conn, heard)))
        _without_waiting(_to_poll(conn, heard))
        pieces = [each if isinstance(each, list) else each.in_order() for each in heard]
        assert [payload for piece in pieces for payload in payloads(piece)] == sent

    with pynotify.connect(aconnect.name) as sender:
        assert at_places(attempt, whole=whole) > 5


def _without_waiting(task: Coroutine[Any, Any, None]) -> None:
    with pytest.raises(StopIteration):
        task.send(None)
