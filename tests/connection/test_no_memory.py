"""What was read ahead, where there is no memory: nothing is lost, doubled or in another order.

In a child each, since the interpreter itself may not survive it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from functools import partial
from typing import Any

import pytest

import pynotify
from forking import in_child
from nomemory import without_memory_at
from pynotify._hot import Inlet
from receiving import payloads

NUMBER = 200  # some blocks of a deque


class Backlog(Inlet):
    pass


def no_spare_blocks() -> deque[int]:
    """A deque takes blocks that others have left; this one has them all, as long as it lives."""
    return deque(range(64 * 20))


@pytest.mark.parametrize("first", [0, 1, 10, 63])
def test_take_out(first: int) -> None:
    def all_places() -> list[str]:
        wrong, failures = [], 0
        for place in range(1, 500):
            things = [f"{place} {number}" for number in range(300)]
            inlet = Backlog()
            inlet.backlog = deque(things)
            for _ in range(first):
                inlet.backlog.popleft()
            doomed = {id(thing) for thing in things[1::2]}
            spare = no_spare_blocks()
            _, failed = without_memory_at(place, partial(inlet.take_out, doomed))
            del spare
            left = things[first:]
            expected = left if failed else [thing for thing in left if id(thing) not in doomed]
            if list(inlet.backlog) != expected:
                wrong.append(f"{place}: {list(inlet.backlog)}")
            failures += failed
        return wrong if failures > 3 else [f"only {failures} failures"]

    assert in_child(all_places) == []


def test_unlisten(segment_name: str, engine: pynotify.Engine) -> None:
    """What is owed stays; of the other channel perhaps all, if that was refused."""

    def all_places() -> list[str]:
        wrong, failures = [], 0
        with pynotify.connect(segment_name) as conn:
            conn.listen("stays")
            receiver = conn.link.receiver
            for place in range(1, 800):
                conn.listen("goes")
                sent = [f"{('goes', 'stays')[i % 2]} {place} {i}" for i in range(NUMBER)]
                for payload in sent:
                    conn.notify(payload.split()[0], payload)
                receiver.read_ahead(NUMBER)
                assert len(receiver.backlog) == NUMBER
                spare = no_spare_blocks()
                _, failed = without_memory_at(place, lambda: conn.unlisten("goes"))
                del spare
                stays = [payload for payload in sent if payload.startswith("stays")]
                left = payloads(conn.poll())
                if left not in ([sent, stays] if failed else [stays]):
                    wrong.append(f"{place}: {left}")
                failures += failed
                conn.unlisten("goes")
        return wrong if failures > 3 else [f"only {failures} failures"]

    assert in_child(all_places) == []


def test_the_loops_reader(segment_name: str, engine: pynotify.Engine) -> None:
    """Where the backlog has no memory the messages are left to others, without an error."""

    async def all_places() -> list[str]:
        wrong: list[str] = []
        async with pynotify.AsyncConnection.connect(segment_name) as conn:
            await conn.listen("m")
            receiver: Any = conn.link.receiver
            for place in range(1, 40 + 3 * NUMBER):
                sent = [f"{place} {number}" for number in range(NUMBER)]
                await conn.notify_many("m", sent)
                spare = no_spare_blocks()
                without_memory_at(place, lambda: receiver.take_ahead(NUMBER))
                del spare
                got = payloads(await conn.poll())
                if got != sent:
                    wrong.append(f"{place}: {got}")
        return wrong

    assert in_child(lambda: asyncio.run(all_places())) == []
