"""Fixtures of the command line's tests."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from console import Guest, Running, Terminal

import pynotify
from receiving import wait_until


def _starting(kind: Callable[..., Any]) -> Iterator[Callable[..., Any]]:
    """What is left of them is ended after the test, before its segments are."""
    running: list[Any] = []

    def make(*words: str, **more: str) -> Any:
        running.append(kind(*words, **more))
        return running[-1]

    yield make
    for each in running:
        each.close()


@pytest.fixture
def start(new_name: Callable[[], str]) -> Iterator[Callable[..., Running]]:
    """Starts commands."""
    yield from _starting(Running)


@pytest.fixture
def guest(new_name: Callable[[], str]) -> Iterator[Callable[..., Guest]]:
    """Starts programs with a connection to a segment."""
    yield from _starting(Guest)


@pytest.fixture
def terminal(new_name: Callable[[], str]) -> Iterator[Callable[..., Terminal]]:
    """Starts commands on a terminal."""
    yield from _starting(Terminal)


@pytest.fixture
def wait_for_listeners() -> Callable[[pynotify.Engine, int], None]:
    """Until that many channels are listened to."""

    def wait(engine: pynotify.Engine, count: int = 1) -> None:
        wait_until(lambda: engine.stat().subscriptions >= count, f"{count} subscriptions")

    return wait
