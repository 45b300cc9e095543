"""The clients of `bench.websocket`: many WebSockets to the workers of one port, and the publisher.

Told by lines of JSON on its standard input, each answered by one.  The protocol is the websockets
library's, without the tasks and queues that it has for applications: what the clients cost stands
in every latency.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections import Counter
from typing import Any

import uvloop
from websockets.client import ClientProtocol
from websockets.frames import Frame, Opcode
from websockets.http11 import Response
from websockets.uri import parse_uri

SIZE = 100
_PATIENCE = 60.0
_PROBE_INTERVAL = 0.02
#: What is not counted.
_PROBE = "probe"


class Client(asyncio.Protocol):
    """One WebSocket; what comes is numbered, and has the time when it was sent."""

    def __init__(self, url: str) -> None:
        self._protocol = ClientProtocol(parse_uri(url), max_size=None)
        loop = asyncio.get_running_loop()
        self.accepted: asyncio.Future[int] = loop.create_future()
        self.gone: asyncio.Future[None] = loop.create_future()
        self._transport: Any = None
        self._last = ""
        self.heard_all = asyncio.Event()
        self.forget()

    def forget(self, last: str = "") -> None:
        """Count from here on, until `last` comes."""
        self.latencies: list[int] = []
        self.next, self.wrong = 0, 0
        self._last = last
        self.heard_all.clear()

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self._protocol.send_request(self._protocol.connect())
        self._flush()

    def data_received(self, data: bytes) -> None:
        now = time.monotonic_ns()
        self._protocol.receive_data(data)
        for event in self._protocol.events_received():
            if isinstance(event, Response):
                self.accepted.set_result(int(event.headers["x-pid"]))
            elif isinstance(event, Frame) and event.opcode is Opcode.TEXT:
                self._heard(bytes(event.data).decode(), now)
        self._flush()

    def _heard(self, text: str, now: int) -> None:
        number, sent, _ = text.split(" ", 2)
        if number == self._last:
            self.heard_all.set()
        if number.isdigit():
            self.wrong += int(number) != self.next
            self.next = int(number) + 1
            self.latencies.append(now - int(sent))

    def connection_lost(self, error: Exception | None) -> None:
        if not self.accepted.done():
            self.accepted.set_exception(error or ConnectionResetError())
        self.gone.set_result(None)
        self.heard_all.set()

    def send(self, text: str) -> None:
        self._protocol.send_text(text.encode())
        self._flush()

    def close(self) -> None:
        self._transport.close()

    def _flush(self) -> None:
        data = b"".join(self._protocol.data_to_send())
        if data:
            self._transport.write(data)


class Clients:
    """What the parent tells it."""

    def __init__(self) -> None:
        self._clients: dict[Client, int] = {}
        self._publishers: dict[int, Client] = {}

    async def connect(self, port: int, clients: int, workers: int, everywhere: bool) -> Any:
        """So many of each worker, and a publisher, or one in each; the pids, its own the first.

        A worker that has enough of them is left again: which one accepts is the kernel's choice.
        """
        url = f"ws://127.0.0.1:{port}"
        publishers = workers if everywhere else 1
        async with asyncio.timeout(_PATIENCE):
            while len(self._publishers) < publishers:
                client, pid = await self._open(f"{url}/publish")
                if self._publishers.setdefault(pid, client) is not client:
                    client.close()
            counts: Counter[int] = Counter()
            while len(self._clients) < clients:
                client, pid = await self._open(f"{url}/clients")
                if counts[pid] == clients // workers:
                    client.close()
                    continue
                counts[pid] += 1
                self._clients[client] = pid
        await self._until_all_hear()
        publisher = next(iter(self._publishers))
        return [publisher, *(pid for pid in counts if pid != publisher)]

    async def _open(self, url: str) -> tuple[Client, int]:
        uri = parse_uri(url)
        make = asyncio.get_running_loop().create_connection(lambda: Client(url), uri.host, uri.port)
        _, client = await make
        return client, await client.accepted

    async def _until_all_hear(self) -> None:
        """They are in the group some time after they have connected."""
        for client in self._clients:
            client.forget(_PROBE)
        async with asyncio.timeout(_PATIENCE):
            while not all(client.heard_all.is_set() for client in self._clients):
                self._publish(_PROBE)
                await asyncio.sleep(_PROBE_INTERVAL)

    def _publish(self, number: str) -> None:
        text = f"{number} {time.monotonic_ns()} ".ljust(SIZE, ".")
        for publisher in self._publishers.values():
            publisher.send(text)

    async def load(self, messages: int, interval: float) -> Any:
        """Publish so many, one every `interval` s; what has come until each has had the last."""
        for client in self._clients:
            client.forget(str(messages - 1))
        loop = asyncio.get_running_loop()
        begin = loop.time()
        for number in range(messages):
            await asyncio.sleep(begin + number * interval - loop.time())
            self._publish(str(number))
        live = [client for client in self._clients if not client.gone.done()]
        async with asyncio.timeout(_PATIENCE):
            for client in live:
                await client.heard_all.wait()
        latencies = sorted(each for client in live for each in client.latencies)
        return {
            "deliveries": len(latencies),
            "lost": messages * len(live) - len(latencies),
            "wrong": sum(client.wrong for client in live),
            "gone": len(self._clients) - len(live),
            "p50": latencies[len(latencies) // 2] / 1e3,
            "p99": latencies[len(latencies) * 99 // 100] / 1e3,
        }


async def main() -> None:
    """Until the standard input ends."""
    clients = Clients()
    while line := await asyncio.to_thread(sys.stdin.readline):
        what, arguments = json.loads(line)
        print(json.dumps(await getattr(clients, what)(**arguments)), flush=True)


if __name__ == "__main__":
    uvloop.run(main())
