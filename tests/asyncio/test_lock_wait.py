"""Tasks that wait for the writer lock share a thread; each has all of the time-out.

What a call has its thread do for this it does not leave to it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import pynotify
from interrupting import WHOLE, At, at_places
from locked import LockHolder
from pynotify._ffi import lib
from pynotify._off_loop import LockWait
from receiving import PATIENCE
from tasks import AsyncConnections


class Attempts(LockWait):
    """Attempts to take the lock that end when the test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.futures: list[asyncio.Future[None]] = []

    def _start(self, engine_handle: Any) -> asyncio.Future[None]:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        future.add_done_callback(self._ended)
        self.futures.append(future)
        return future

    def time_out(self) -> None:
        self.futures[-1].set_exception(pynotify.LockTimeout("the holder stands still"))


async def turn() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def test_a_task_that_comes_late_waits_for_a_whole_time_out() -> None:
    async def scenario() -> None:
        waits = Attempts()
        first = asyncio.create_task(waits.until_free(None, without_limit=False))
        await turn()
        late = asyncio.create_task(waits.until_free(None, without_limit=False))
        await turn()
        assert len(waits.futures) == 1, "one thread waits for both"
        waits.time_out()
        with pytest.raises(pynotify.LockTimeout):
            await first
        await turn()
        assert not late.done()
        assert len(waits.futures) == 2, "it had only a part of the first one"
        waits.time_out()
        with pytest.raises(pynotify.LockTimeout):
            await late

    asyncio.run(scenario())


def test_without_limit_it_is_tried_again_and_again() -> None:
    async def scenario() -> None:
        waits = Attempts()
        task = asyncio.create_task(waits.until_free(None, without_limit=True))
        for attempt in range(1, 4):
            await turn()
            assert len(waits.futures) == attempt
            waits.time_out()
        await turn()
        waits.futures[-1].set_result(None)
        await task

    asyncio.run(scenario())


async def _notify_nowait(conn: pynotify.AsyncConnection) -> None:
    conn.notify_nowait("c", "x")


CALLS: dict[str, Callable[[pynotify.AsyncConnection], Awaitable[object]]] = {
    "notify": lambda conn: conn.notify("c", "x"),
    "notify_nowait": _notify_nowait,
    "listen": lambda conn: conn.listen("c"),
}


@pytest.mark.parametrize("whole", WHOLE)
@pytest.mark.parametrize("how", CALLS)
async def test_a_handler_that_raises_leaves_a_thread_that_waits(
    aconnect: AsyncConnections, how: str, whole: bool
) -> None:
    """Else a `Connection` that the thread uses later would not wait for the lock."""
    conn = await aconnect()

    def to_its_end() -> None:
        with pytest.raises(StopIteration):
            CALLS[how](conn).__await__().send(None)  # it need not wait here

    def attempt(at: At) -> None:
        at.attempt(to_its_end)
        assert not lib.pn_set_never_wait(0)

    assert at_places(attempt, whole=whole) > 5


SENDS: dict[str, Callable[[pynotify.AsyncConnection, bytearray], Awaitable[object]]] = {
    "notify": lambda conn, buffer: conn.notify("c", buffer),
    "notify_counted": lambda conn, buffer: conn.notify_counted("c", buffer),
    "notify_many": lambda conn, buffer: conn.notify_many("c", [buffer]),
}


@pytest.mark.parametrize("how", [*SENDS, "publish", "publish with ttl", "publish_many"])
async def test_what_waits_to_be_sent_is_what_was_given(
    aconnect: AsyncConnections, lock_holder: LockHolder, how: str
) -> None:
    conn = await aconnect()
    await conn.listen("c")
    topic = conn.topic("t")
    channel = topic.channel("k")
    buffer = bytearray(b"given")
    calls: dict[str, Callable[[], Awaitable[object]]] = {
        "publish": lambda: topic.publish(buffer),
        "publish with ttl": lambda: topic.publish(buffer, ttl=60),
        "publish_many": lambda: topic.publish_many([buffer]),
    }
    lock_holder.hold()
    try:
        call = calls.get(how) or (lambda: SENDS[how](conn, buffer))
        sending = asyncio.ensure_future(call())
        await turn()
        assert not sending.done()
        buffer[:] = b"other"
    finally:
        await asyncio.to_thread(lock_holder.release)
    await sending
    if how in SENDS:
        (note,) = await conn.poll()
        assert isinstance(note, pynotify.Notify) and note.data == b"given"
    else:
        async with channel.consumer() as consumer:
            message = await consumer.get(PATIENCE)
            assert message.body == b"given"
            await message.finish()
