"""A broker of FastStream over a segment or in memory, whose messages go by channels or topics."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from pynotify.contrib.faststream import PynotifyBroker, PynotifyRouter, TestPynotifyBroker
from receiving import PATIENCE


def in_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run a coroutine function as a test, in a loop of its own."""

    @functools.wraps(test)
    def run(*arguments: Any, **fixtures: Any) -> None:
        asyncio.run(test(*arguments, **fixtures))

    return run


async def within(*awaited: Awaitable[Any]) -> list[Any]:
    """Their results, in time."""
    return await asyncio.wait_for(asyncio.gather(*awaited), PATIENCE)


class Heard:
    """What handlers have got, in their order."""

    def __init__(self) -> None:
        self.all: list[Any] = []
        self._changed = asyncio.Condition()

    async def add(self, one: Any) -> None:
        self.all.append(one)
        async with self._changed:
            self._changed.notify_all()

    async def upto(self, count: int) -> list[Any]:
        """All of them, when so many have come."""
        async with self._changed:
            await within(self._changed.wait_for(lambda: len(self.all) >= count))
        return self.all


class Case:
    """`by`: "channel" or "topic"; `in_memory`: under `TestPynotifyBroker`."""

    def __init__(self, segment: str, by: str, *, in_memory: bool) -> None:
        self.segment, self.by, self.in_memory = segment, by, in_memory

    def broker(self, **options: Any) -> PynotifyBroker:
        return PynotifyBroker(self.segment, **{"logger": None, "apply_types": False, **options})

    def router(self, **options: Any) -> PynotifyRouter:
        return PynotifyRouter(**options)

    def at(self, name: str) -> dict[str, str]:
        """Where: an argument of `subscriber`, `publisher`, `publish` and `request`."""
        return {self.by: name}

    @asynccontextmanager
    async def started(self, *brokers: PynotifyBroker) -> AsyncIterator[PynotifyBroker]:
        """The first of them, all started."""
        async with AsyncExitStack() as stack:
            if self.in_memory:
                await stack.enter_async_context(TestPynotifyBroker(*brokers))
            else:
                for each in brokers:
                    await stack.enter_async_context(each)
                    await each.start()
            yield brokers[0]
