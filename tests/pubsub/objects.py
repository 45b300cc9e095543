"""Objects for round trips, and receiving them."""

from __future__ import annotations

import asyncio
import random
import time
from typing import Any

import pynotify
from pynotify.pubsub import Received
from receiving import PATIENCE

_ALPHABETS = ["ab", " '\"\\$%!@#", "\x00\n\t\x7f", "éß", "日本語", "😀🎉", "x"]


def random_objects(count: int, seed: int = 7) -> list[Any]:
    """Text with quotes and beyond ASCII, bytes, JSON; some longer than a segment."""
    chance = random.Random(seed)
    return [_random_object(chance) for _ in range(count)]


def _random_text(chance: random.Random, longest: int) -> str:
    alphabet = "".join(chance.sample(_ALPHABETS, 3))
    return "".join(chance.choices(alphabet, k=chance.randrange(longest)))


def _random_json(chance: random.Random, depth: int) -> Any:
    kind = chance.randrange(8 if depth else 6)
    if kind == 6:
        return [_random_json(chance, depth - 1) for _ in range(chance.randrange(5))]
    if kind == 7:
        return {_random_text(chance, 8): _random_json(chance, depth - 1)
                for _ in range(chance.randrange(5))}  # fmt: skip
    return [
        None, chance.random() < 0.5, chance.randrange(-(2**53), 2**53),
        round(chance.uniform(-1e6, 1e6), chance.randrange(9)), chance.uniform(-1, 1) * 1e-9,
        _random_text(chance, 20),
    ][kind]  # fmt: skip


def _random_object(chance: random.Random) -> Any:
    longest = chance.choice([5, 50, 500, 12_000])
    kind = chance.randrange(4)
    if kind == 0:
        return _random_text(chance, longest)
    if kind == 1:
        return chance.randbytes(chance.randrange(longest))
    if kind == 2:
        return {"rows": [_random_json(chance, 3) for _ in range(longest // 50)]}
    # A str would be text; it is JSON only inside of something.
    found = _random_json(chance, 3)
    return [found] if isinstance(found, str) else found


def take(pubsub: pynotify.PubSub, count: int) -> list[Received]:
    """The next ones; what comes with them stays for the next call."""
    # Bounded: a test that waits for ever says nothing.
    deadline = time.monotonic() + PATIENCE
    found: list[Received] = []
    while len(found) < count:
        left = deadline - time.monotonic()
        assert left > 0, f"{len(found)} of {count} objects in {PATIENCE} s"
        for received in pubsub._received(left):
            found.append(received)
            if len(found) == count:
                break
    return found


async def take_objects(pubsub: pynotify.AsyncPubSub, count: int) -> list[Any]:
    """The objects of the next ones; what comes behind them stays for the next call."""
    found: list[Any] = []
    async with asyncio.timeout(PATIENCE):
        async for _, obj, _ in pubsub:
            found.append(obj)
            if len(found) == count:
                break
    return found


def objects(received: list[Received]) -> list[Any]:
    return [item.obj for item in received]
