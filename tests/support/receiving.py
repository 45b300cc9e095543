"""Receiving in tests: always until something has happened, never for a time."""

from __future__ import annotations

import contextlib
import os
import select
import time
from collections.abc import Callable, Iterable

import pynotify

TIME_FACTOR = int(os.environ.get("PYNOTIFY_TIME_FACTOR", "1"))
"""Multiplies every time limit of the tests, those of ctest as well: for a busy or slow machine."""

PATIENCE = 20.0 * TIME_FACTOR
"""Seconds after which something that should happen is taken not to happen."""


def pairs(messages: Iterable[pynotify.Notify]) -> list[tuple[str, str]]:
    return [(message.channel, message.payload) for message in messages]


def payloads(messages: Iterable[pynotify.Notify]) -> list[str]:
    return [message.payload for message in messages]


def shown(messages: Iterable[pynotify.Notify | pynotify.Gap]) -> list[str | int | None]:
    """Payloads, and for a Gap how many are missing."""
    return [m.missed if isinstance(m, pynotify.Gap) else m.payload for m in messages]


def receive(
    conn: pynotify.Connection, count: int, timeout: float = PATIENCE
) -> list[pynotify.Notify]:
    """Sleep and poll until `count` messages have come."""
    deadline = time.monotonic() + timeout
    messages: list[pynotify.Notify] = []
    while len(messages) < count:
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError(f"{len(messages)} of {count} messages after {timeout} s")
        conn.wait(left)
        messages += conn.poll()
    return messages


def drain(sub: pynotify.Subscription) -> list[pynotify.Notify | pynotify.Gap]:
    """What a subscription has, without waiting for more."""
    messages: list[pynotify.Notify | pynotify.Gap] = []
    with contextlib.suppress(pynotify.Timeout):
        while True:
            messages.append(sub.next(0))
    return messages


def bodies(topic: pynotify.Topic) -> list[str]:
    """What is in the topic's channel "k", finished."""
    found: list[str] = []
    consumer = topic.channel("k").consumer(max_in_flight=100)
    with consumer, contextlib.suppress(pynotify.Timeout):
        while True:
            message = consumer.get(0)
            found.append(message.body.decode())
            message.finish()
    return found


def readable(fd: int, timeout: float = 0.0) -> bool:
    return bool(select.select([fd], [], [], timeout)[0])


def wait_until(condition: Callable[[], object], what: str, timeout: float = PATIENCE) -> None:
    """Look at `condition` again and again until it holds."""
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {timeout} s: {what}")
        select.select([], [], [], 0.002)
