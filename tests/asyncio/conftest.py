"""Tests that are coroutine functions run in a loop of their own, of each kind there is."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Coroutine
from typing import Any

import pytest

from receiving import PATIENCE
from tasks import DEBUG, AsyncConnections, loop_factory

LOOPS = ["asyncio", DEBUG, "uvloop"]


@pytest.fixture
def aconnect(engine_name: str) -> AsyncConnections:
    """To the segment of the fixture `engine`, which the test may override."""
    return AsyncConnections(engine_name)


@pytest.fixture(params=LOOPS)
def kind(request: pytest.FixtureRequest) -> str:
    """Of event loop.  A test without it runs in asyncio's own, in debug mode."""
    return str(request.param)


async def _within_patience(
    test: Coroutine[Any, Any, None], to_close: list[AsyncConnections]
) -> None:
    try:
        async with asyncio.timeout(3 * PATIENCE):
            await test
    finally:
        for connections in to_close:
            await connections.close()


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    values = pyfuncitem.funcargs
    names = inspect.signature(pyfuncitem.obj).parameters
    to_close = [value for value in values.values() if isinstance(value, AsyncConnections)]
    test = pyfuncitem.obj(**{name: values[name] for name in names})
    kind = values.get("kind", DEBUG)
    with asyncio.Runner(loop_factory=loop_factory(kind), debug=kind == DEBUG) as runner:
        runner.run(_within_patience(test, to_close))
    return True
