"""Four processes that listen through an asyncio adapter, while one of them is killed."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, aclosing
from typing import Any

from forking import ForkedChild
from receiving import PATIENCE

MESSAGES = 1000

#: Publishes a text.
Publish = Callable[[str], Any]
#: What is heard; the first one is None, when what is published from then on will be.
Heard = Callable[[], AsyncGenerator[str | None]]


def _listen(heard: Heard, ready: int) -> list[str]:
    async def run() -> list[str]:
        got: list[str] = []
        async with aclosing(heard()) as messages:
            async for message in messages:
                if message is None:
                    os.write(ready, b".")
                    continue
                got.append(message)
                if len(got) == MESSAGES:
                    break
        return got

    return asyncio.run(run())


def hear_beside_a_kill(
    publishing: Callable[[], AbstractAsyncContextManager[Publish]], heard: Heard
) -> None:
    """Those that were not killed hear everything, in order."""
    listening, ready = os.pipe()
    children = [ForkedChild(lambda: _listen(heard, ready)) for _ in range(4)]
    for _ in children:
        os.read(listening, 1)

    async def publish_all() -> None:
        async with publishing() as publish:
            for number in range(MESSAGES):
                if number == MESSAGES // 2:
                    os.kill(children[0].pid, signal.SIGKILL)
                await publish(str(number))

    asyncio.run(publish_all())
    for child in children[1:]:
        assert child.result(PATIENCE) == [str(number) for number in range(MESSAGES)]
    assert children[0].join() == -signal.SIGKILL
    for fd in (listening, ready):
        os.close(fd)
