"""Getting messages in tests: always until they are there, never for a time."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

import pynotify
from receiving import PATIENCE

SOON = 0.05
"""Seconds after which something is due for which a test then waits."""


def take(consumer: pynotify.Consumer, count: int) -> list[pynotify.Message]:
    return [consumer.get(PATIENCE) for _ in range(count)]


def work(consumer: pynotify.Consumer, count: int) -> list[bytes]:
    """Take and finish so many; their bodies."""
    bodies = []
    for _ in range(count):
        with consumer.get(PATIENCE) as message:
            bodies.append(message.body)
    return bodies


def bodies(messages: Iterable[pynotify.Message | pynotify.PeekedMessage]) -> list[bytes]:
    return [message.body for message in messages]


def assert_nothing(consumer: pynotify.Consumer) -> None:
    with pytest.raises(pynotify.Timeout):
        consumer.get(0)


def figures(channel: pynotify.Channel) -> tuple[int, int, int]:
    """Ready, in flight, deferred."""
    stats = channel.stats()
    return stats.depth, stats.in_flight, stats.deferred


def numbered(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]
