"""Time-outs that are no number, longer than what the kernel or Python takes, or shorter than it
counts.
"""

from __future__ import annotations

import asyncio
import math
import os
import select
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import pynotify
from pynotify._time import milliseconds, nanoseconds
from pynotify.cli.terminal import Watch
from pynotify.topics._backoff import Backoff, Outcome
from sessions import Connect

NAN = math.nan
LONG = [1e10, 1e18, 2**64, math.inf]


@pytest.fixture
def readable() -> Iterator[int]:
    out, into = os.pipe()
    os.write(into, b"x")
    yield out
    os.close(out)
    os.close(into)


def test_nanoseconds() -> None:
    assert (nanoseconds(None), nanoseconds(-1), nanoseconds(-0.0), nanoseconds(2)) == (
        *(-1, 0, 0),
        2_000_000_000,
    )
    assert [nanoseconds(seconds) for seconds in LONG] == [10**18] * 4


def test_milliseconds() -> None:
    assert (milliseconds(None), milliseconds(-1), milliseconds(0)) == (None, 0, 0)
    assert (milliseconds(1e-12), milliseconds(0.001), milliseconds(0.0011)) == (1, 1, 2)


@pytest.mark.parametrize("seconds", LONG)
def test_poll_takes_them(readable: int, seconds: float) -> None:
    poll = select.poll()
    poll.register(readable, select.POLLIN)
    assert poll.poll(milliseconds(seconds)) == [(readable, select.POLLIN)]
    assert readable in Watch(readable).wait(seconds)


@pytest.mark.parametrize("seconds", LONG[:2])
def test_a_back_off_is_no_longer_than_a_thread_can_sleep(seconds: float) -> None:
    backoff = Backoff(seconds, 1e308)
    backoff.record(Outcome.FAILURE, 0.0)
    backoff.record(Outcome.FAILURE, 1e11)
    assert backoff.pause(1e11) <= threading.TIMEOUT_MAX
    assert backoff.delay(100) <= threading.TIMEOUT_MAX


@pytest.mark.parametrize("seconds", LONG)
def test_a_thread_is_stopped(conn: pynotify.Connection, seconds: float) -> None:
    with conn.subscribe("c") as subscription:
        thread = subscription.start(print)
        with pytest.raises(ValueError, match="NaN"):
            thread.stop(NAN)
        assert thread.is_alive()
        thread.stop(seconds)
        assert not thread.is_alive()


@pytest.mark.parametrize(
    "call",
    [
        lambda conn: pynotify.PubSub(conn).run(NAN),
        lambda conn: conn.listen("c", wait_upstream=True, timeout=NAN),
        lambda conn: conn.wait(NAN),
        lambda conn: conn.subscribe("c").next(NAN),
    ],
)
def test_what_is_no_number(connect: Connect, call: Callable[[pynotify.Connection], Any]) -> None:
    conn = connect()
    with pytest.raises(ValueError, match="timeout must be a number"):
        call(conn)
    assert not conn.listening_channels()


def test_what_is_no_number_for_a_task(engine: pynotify.Engine) -> None:
    async def tries() -> None:
        async with await pynotify.AsyncConnection.connect(engine.name) as conn:
            with pytest.raises(ValueError, match="timeout must be a number"):
                await conn.listen("c", wait_upstream=True, timeout=NAN)
            async with pynotify.AsyncPubSub(conn) as pubsub:
                with pytest.raises(ValueError, match="timeout must be a number"):
                    await pubsub.run(NAN)

    asyncio.run(tries())


@pytest.mark.parametrize("seconds", [*LONG, 0, -1, -math.inf])
def test_the_lock_is_waited_for(engine: pynotify.Engine, seconds: float) -> None:
    with pytest.raises(ValueError, match="timeout must be a number"):
        engine.stat(timeout=NAN)
    assert engine.stat(timeout=seconds).commits == 0
