"""A broker of FastStream over a segment or in memory, whose messages go by channels or topics.

FastStream's own cases of any broker are `tests/brokers/base` of its repository, which no
distribution of it carries.  So they are written again, under their names, each for a channel and a
topic, over a segment and in memory (test_faststream_consume.py, _publish, _router, _testclient,
_fastapi).
Left out are:

    address.py: names are no patterns here
    exception_handlers.py, of an option that 0.7.8 does not have
    option_surface.py, of options that FastStream's own brokers have in common
    driver_annotations.py: there is no table of annotations
    of connection.py the arguments that are a server's address
    of middlewares.py what looks into ExceptionMiddleware, and its order of classes
    of publish_command.py the keys, and of testclient.py the tombstones, which are Kafka's
    of testclient.py some of the assertions on recorded calls, which pass no broker's code
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest

import pynotify
from pynotify.contrib.faststream import PynotifyBroker, PynotifyRouter, TestPynotifyBroker
from receiving import PATIENCE

#: Parameters of fixtures that make a `Case`.
REAL = [pytest.param((by, False), id=by) for by in ("channel", "topic")]
MEMORY = [pytest.param((by, True), id=f"{by}-in-memory") for by in ("channel", "topic")]


def cases(params: Sequence[Any]) -> Any:
    """A fixture that is a `Case` of each of the parameters."""

    @pytest.fixture(params=params)
    def case(request: pytest.FixtureRequest, segment_name: str) -> Case:
        by, in_memory = request.param
        return Case(segment_name, by, in_memory=in_memory)

    return case


def in_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run a coroutine function as a test, in a loop of its own."""

    @functools.wraps(test)
    def run(*arguments: Any, **fixtures: Any) -> None:
        asyncio.run(test(*arguments, **fixtures))

    return run


async def within(*awaited: Awaitable[Any]) -> list[Any]:
    """Their results, in time."""
    return await asyncio.wait_for(asyncio.gather(*awaited), PATIENCE)


async def until(condition: Callable[[], object]) -> None:
    """Look at `condition` again and again until it holds."""
    async with asyncio.timeout(PATIENCE):
        while not condition():
            await asyncio.sleep(0.002)


def topics(segment: str) -> dict[str, int]:
    """How many messages of each topic are not finished."""
    with pynotify.open(segment) as engine:
        return {topic.name: topic.unfinished for topic in engine.topics()}


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
