"""Connections and tasks of an event loop in tests."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine
from typing import Any

import pynotify
from programs import require_module
from receiving import PATIENCE
from sessions import Connect, EngineFactory

PAGE = "x" * 7900
"""The payload of a message that takes a page of the queue."""


DEBUG = "asyncio in debug mode"


def loop_factory(kind: str) -> Callable[[], asyncio.AbstractEventLoop]:
    if kind == "uvloop":
        require_module("uvloop")
        import uvloop

        return uvloop.new_event_loop
    return asyncio.new_event_loop


class AsyncConnections:
    """Connects to a segment; what was made is closed when the test is over."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._made: list[pynotify.AsyncConnection] = []

    async def __call__(self, name: str = "", **options: Any) -> pynotify.AsyncConnection:
        conn = await pynotify.AsyncConnection.connect(name or self.name, **options)
        self._made.append(conn)
        return conn

    async def close(self) -> None:
        while self._made:
            await self._made.pop().close()


async def turns(count: int) -> None:
    """Let the other tasks go on, so many times."""
    for _ in range(count):
        await asyncio.sleep(0)


async def settled(task: asyncio.Task[Any]) -> None:
    """Until it waits for something that does not come by itself, as far as one can tell."""
    await turns(20)
    assert not task.done(), task


async def until(condition: Callable[[], object], what: str) -> None:
    async with asyncio.timeout(PATIENCE):
        while not condition():
            await asyncio.sleep(0.001)
    assert condition(), what


def waiting_threads() -> int:
    """In which something waits in the core for tasks."""
    return sum(thread.name == "pynotify-waits" for thread in threading.enumerate())


async def threads_are_done() -> None:
    """And what follows their end."""
    for _ in range(2):
        await until(lambda: not waiting_threads(), "no thread waits")
        await turns(5)


async def cancelled_after(count: int, work: Coroutine[Any, Any, Any]) -> Any:
    """Cancel it after so many turns of the loop: `CANCELLED`, or its result if it was over."""
    task = asyncio.create_task(work)
    await turns(count)
    task.cancel()
    try:
        return await task
    except asyncio.CancelledError:
        return CANCELLED


CANCELLED = object()


class Counter:
    """A task that counts the turns of the loop: it stands still when the loop is blocked."""

    async def __aenter__(self) -> Counter:
        self.count = 0
        self._task = asyncio.create_task(self._run())
        await self.goes_on(1)
        return self

    async def __aexit__(self, *_exception: object) -> None:
        self._task.cancel()

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(0)
            self.count += 1

    async def goes_on(self, turns: int = 200) -> None:
        """Until it has counted so many more."""
        end = self.count + turns
        while self.count < end:
            await asyncio.sleep(0)


class FullQueue:
    """Of a segment with "block": a laggard has not read, nothing more fits."""

    def __init__(self, make_engine: EngineFactory, connect: Connect, **options: float) -> None:
        self.engine = make_engine(queue_pages=64, on_full="block", **options)
        self.name = make_engine.name_of(self.engine)
        self.laggard = connect(to=self.engine)
        self.laggard.listen("c")
        self.sent = 0

    def fill(self, conn: pynotify.AsyncConnection) -> None:
        with contextlib.suppress(pynotify.QueueFull):
            while True:
                conn.notify_nowait("c", f"{self.sent} {PAGE}")
                self.sent += 1

    def make_room(self) -> list[str]:
        return [message.payload.partition(" ")[0] for message in self.laggard.poll()]
