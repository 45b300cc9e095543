"""Fixtures: a PostgreSQL, and bridges to it, which are gone before their segments."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from bridge.bridges import Bridge, BridgeProcess
from pubsub.server import Server, own_postgres, postgres
from sessions import EngineFactory

__all__ = ["own_postgres", "postgres"]

NewBridge = Callable[..., Bridge]
NewBridgeProcess = Callable[..., BridgeProcess]


@pytest.fixture
def new_bridge(make_engine: EngineFactory) -> Iterator[NewBridge]:
    """``new_bridge(segment, server, "channel", ...)``, running."""
    with contextlib.ExitStack() as stack:

        def make(name: str, server: Server, *channels: str, **options: Any) -> Bridge:
            bridge = Bridge(name, server, *channels, **options)
            stack.callback(bridge.close)
            return bridge

        yield make


@pytest.fixture
def new_bridge_process(make_engine: EngineFactory) -> Iterator[NewBridgeProcess]:
    """The same in a process of its own."""
    with contextlib.ExitStack() as stack:

        def make(*arguments: Any) -> BridgeProcess:
            bridge = BridgeProcess(*arguments)
            stack.callback(bridge.close)
            return bridge

        yield make


@pytest.fixture
def channel(request: pytest.FixtureRequest) -> str:
    """A name of the test's own: the server is shared."""
    return f"c:{request.node.name}"[:55]
