"""Clients of a chat over WebSockets, whose server has several workers."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from pathlib import Path

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from receiving import PATIENCE
from workers import ROOT, Workers


class Chatter:
    """One client.  The first text it gets is "welcome", the worker's pid and what it is called."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._connection: ClientConnection
        self.said: list[str] = []
        self._changed = asyncio.Condition()

    async def connect(self) -> Chatter:
        async with asyncio.timeout(PATIENCE):
            while True:
                try:
                    self._connection = await connect(self._url, max_size=None, proxy=None)
                    break
                except OSError:  # no worker listens yet
                    await asyncio.sleep(0.02)
            welcome = str(await self._connection.recv())
        _, pid, self.name = welcome.split()
        self.pid = int(pid)
        self._hearing = asyncio.create_task(self._hear())
        # It is welcome before it is in the group, and hears itself as soon as it is.
        await self.say(f"here is {self.name}")
        await self.until_said(f"here is {self.name}")
        return self

    async def _hear(self) -> None:
        try:
            async for text in self._connection:
                async with self._changed:
                    self.said.append(str(text))
                    self._changed.notify_all()
        except ConnectionClosed:
            pass

    async def say(self, text: str) -> None:
        await self._connection.send(text)

    async def until_said(self, text: str) -> None:
        async with asyncio.timeout(PATIENCE), self._changed:
            await self._changed.wait_for(lambda: text in self.said)

    async def until_gone(self) -> None:
        async with asyncio.timeout(PATIENCE):
            await self._hearing

    async def close(self) -> None:
        await self._connection.close()
        await self._hearing


async def connect_until(url: str, reached: Callable[[set[int]], object]) -> list[Chatter]:
    """Clients of workers with such pids, at most two of each."""
    clients: list[Chatter] = []
    async with asyncio.timeout(PATIENCE):
        while not reached({client.pid for client in clients}):
            new = await Chatter(url).connect()
            if sum(client.pid == new.pid for client in clients) < 2:
                clients.append(new)
            else:
                await new.close()
    return clients


async def talk_beside_a_kill(url: str, workers: int) -> None:
    """Each survivor hears what each talker says, once and in its order, and a new worker, too."""
    clients = await connect_until(url, lambda pids: len(pids) == workers)
    old = {client.pid for client in clients}
    *talkers, victim = {client.pid: client for client in clients}.values()
    large = "x" * 1_000_000
    await talkers[0].say(large)
    for client in clients:
        await client.until_said(large)
    half = asyncio.Event()

    async def talk(client: Chatter) -> None:
        for number in range(100):
            await client.say(f"{client.name} {number}")
            await client.until_said(f"{client.name} {number}")
            if number == 50:
                half.set()
            if number % 20 == 19:  # a client a hundred messages behind would lose some, rightly
                for other in clients:
                    if other.pid != victim.pid:
                        await other.until_said(f"{client.name} {number}")

    talking = [asyncio.create_task(talk(client)) for client in talkers]
    await half.wait()
    os.kill(victim.pid, signal.SIGKILL)
    await asyncio.gather(*talking)
    for client in clients:
        if client.pid == victim.pid:
            await client.until_gone()
            continue
        for talker in talkers:
            await client.until_said(f"{talker.name} 99")
            heard = [text for text in client.said if text.startswith(f"{talker.name} ")]
            assert heard == [f"{talker.name} {number}" for number in range(100)]
    new = await connect_until(url, lambda pids: pids - old)
    await talkers[0].say("welcome back")
    for client in (*talkers, *new):
        await client.until_said("welcome back")
    for client in (*clients, *new):
        await client.close()


def example_talks_beside_a_kill(application: str, tmp_path: Path, segment_name: str) -> None:
    """A chat of examples/adapters, as a server with four workers."""
    server = Workers(
        tmp_path, "uvicorn", "--workers", "4", "--port", "0",
        "--app-dir", ROOT / "examples" / "adapters", "--timeout-graceful-shutdown", "2",
        application, SEGMENT=segment_name,
    )  # fmt: skip
    try:
        asyncio.run(talk_beside_a_kill(f"ws{server.url.removeprefix('http')}/chat", 4))
    except BaseException:
        print(server.said())
        raise
    finally:
        server.close()
