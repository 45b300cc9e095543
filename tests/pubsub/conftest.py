"""Fixtures: a PostgreSQL, and PubSubs over it or over pynotify."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import pynotify
from pubsub.server import own_postgres, postgres
from sessions import Connect

__all__ = ["own_postgres", "postgres"]

NewConnection = Callable[[], Any]
NewPubSub = Callable[..., pynotify.PubSub]


@pytest.fixture(params=["pynotify", "postgres"])
def new_connection(request: pytest.FixtureRequest) -> Iterator[NewConnection]:
    """A function that makes connections, which are closed after the test."""
    source = request.getfixturevalue("engine" if request.param == "pynotify" else "postgres")
    with contextlib.ExitStack() as stack:
        yield lambda: stack.enter_context(source.connect())


@pytest.fixture
def new_pubsub() -> Iterator[NewPubSub]:
    """``PubSub(...)``, closed after the test, before the connections."""
    with contextlib.ExitStack() as stack:
        yield lambda *args, **options: stack.enter_context(pynotify.PubSub(*args, **options))


@pytest.fixture
def sender(connect: Connect, new_pubsub: NewPubSub) -> pynotify.PubSub:
    return new_pubsub(connect())


@pytest.fixture
def receiver(connect: Connect, new_pubsub: NewPubSub) -> pynotify.PubSub:
    pubsub = new_pubsub(connect())
    pubsub.subscribe("c")
    return pubsub


@pytest.fixture
def channel(request: pytest.FixtureRequest) -> str:
    """A name of the test's own: the server is shared."""
    return f"c:{request.node.name}"[:63]
