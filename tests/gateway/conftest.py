"""Fixtures: gateways that are gone before their segments, and a PostgreSQL to compare with."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import pynotify
from gateway.gateways import GatewayProcess, Running
from pubsub.server import postgres
from sessions import EngineFactory

__all__ = ["postgres"]

NewGateway = Callable[..., Running]
NewGatewayProcess = Callable[..., GatewayProcess]


@pytest.fixture
def new_gateway(make_engine: EngineFactory) -> Iterator[NewGateway]:
    """``new_gateway(engine, **options)``, running in a thread."""
    with contextlib.ExitStack() as stack:

        def make(engine: pynotify.Engine | None = None, **options: Any) -> Running:
            gateway = Running((engine or make_engine()).name, **options)
            stack.callback(gateway.close)
            return gateway

        yield make


@pytest.fixture
def gateway(new_gateway: NewGateway) -> Running:
    return new_gateway()


@pytest.fixture
def new_gateway_process(make_engine: EngineFactory) -> Iterator[NewGatewayProcess]:
    """The same in a process of its own."""
    with contextlib.ExitStack() as stack:

        def make(engine: pynotify.Engine, *arguments: str, **options: Any) -> GatewayProcess:
            process = GatewayProcess(engine.name, *arguments, **options)
            stack.callback(process.close)
            return process

        yield make
