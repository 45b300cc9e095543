"""The application that `bench.websocket` runs under `uvicorn --workers 4`: what is published in one
worker goes to the WebSocket clients of all.

Environment: SIDE, one of `SIDES`, and WHERE, a segment or the URL of a Redis.  A client of /clients
gets all messages; what a client of /publish sends is published.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncIterator
from typing import Any

from starlette.applications import Starlette
from starlette.routing import WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

_GROUP = "room"
_MAXLEN = 1024


class Side(ABC):
    """How messages come to the clients of all workers."""

    @abstractmethod
    def lifespan(self, app: Any) -> contextlib.AbstractAsyncContextManager[None]:
        """While the worker runs."""

    @abstractmethod
    async def publish(self, text: str) -> None: ...

    @abstractmethod
    async def serve(self, websocket: WebSocket) -> None:
        """Until the client is gone; its WebSocket is accepted."""


class Pynotify(Side):
    """The adapter, as its documentation has it."""

    def __init__(self, where: str) -> None:
        from pynotify.contrib.starlette import Broadcast

        self._broadcast = Broadcast(where)

    def lifespan(self, app: Any) -> contextlib.AbstractAsyncContextManager[None]:
        return self._broadcast.lifespan(app)

    async def publish(self, text: str) -> None:
        await self._broadcast.publish(_GROUP, text)

    async def serve(self, websocket: WebSocket) -> None:
        await self._broadcast.websocket(websocket, _GROUP)


class _Mailbox:
    """What one client has not been sent yet, the oldest dropped where it is too slow."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._messages: deque[str] = deque(maxlen=_MAXLEN)
        self._waiter: asyncio.Future[None] | None = None

    def put(self, text: str) -> None:
        self._messages.append(text)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def get(self) -> str:
        while not self._messages:
            self._waiter = self._loop.create_future()
            await self._waiter
        return self._messages.popleft()


class _FanOut(Side):
    """From the worker to its clients, as `Broadcast` does it."""

    def __init__(self) -> None:
        self._clients: set[_Mailbox] = set()

    def fan_out(self, text: str) -> None:
        for client in self._clients:
            client.put(text)

    async def serve(self, websocket: WebSocket) -> None:
        mailbox = _Mailbox()
        self._clients.add(mailbox)

        async def forward() -> None:
            while True:
                text = await mailbox.get()
                await websocket.send({"type": "websocket.send", "text": text})

        try:
            await _beside(forward(), _until_gone(websocket))
        finally:
            self._clients.discard(mailbox)


class Redis(_FanOut):
    """redis.asyncio, one connection of a worker subscribed, whatever the number of its clients."""

    def __init__(self, where: str) -> None:
        super().__init__()
        import redis.asyncio

        self._redis = redis.asyncio.Redis.from_url(where)

    @contextlib.asynccontextmanager
    async def lifespan(self, _app: Any) -> AsyncIterator[None]:
        async with self._redis, self._redis.pubsub(ignore_subscribe_messages=True) as pubsub:
            await pubsub.subscribe(_GROUP)
            listening = asyncio.create_task(self._listen(pubsub))
            yield
            listening.cancel()
            await asyncio.wait([listening])

    async def _listen(self, pubsub: Any) -> None:
        async for message in pubsub.listen():
            self.fan_out(message["data"].decode())

    async def publish(self, text: str) -> None:
        await self._redis.publish(_GROUP, text)


class Broadcaster(Side):
    """broadcaster with its Redis backend, as its documentation has it."""

    def __init__(self, where: str) -> None:
        self._where = where
        # Two first subscribers at the same time, and it forgets one of them.
        self._subscribing = asyncio.Lock()

    @contextlib.asynccontextmanager
    async def lifespan(self, _app: Any) -> AsyncIterator[None]:
        from broadcaster import Broadcast
        from broadcaster._backends.redis import RedisBackend

        class Backend(RedisBackend):
            """0.3.1 says "ready" before it has subscribed; with redis-py 8 it stays deaf then."""

            async def subscribe(self, channel: str) -> None:
                await self._pubsub.subscribe(channel)
                self._ready.set()

        # Broadcast(url) takes no Unix socket.
        async with Broadcast(backend=Backend(self._where)) as self._broadcast:
            yield

    async def publish(self, text: str) -> None:
        await self._broadcast.publish(_GROUP, text)

    async def serve(self, websocket: WebSocket) -> None:
        async with contextlib.AsyncExitStack() as stack:
            async with self._subscribing:
                subscribing = self._broadcast.subscribe(channel=_GROUP)
                subscriber = await stack.enter_async_context(subscribing)

            async def forward() -> None:
                async for event in subscriber:  # type: ignore[union-attr]
                    await websocket.send_text(event.message)  # type: ignore[union-attr]

            await _beside(forward(), _until_gone(websocket))


class Alone(_FanOut):
    """Nothing between the workers: the publisher tells each of them."""

    def __init__(self, _where: str) -> None:
        super().__init__()

    @contextlib.asynccontextmanager
    async def lifespan(self, _app: Any) -> AsyncIterator[None]:
        yield

    async def publish(self, text: str) -> None:
        self.fan_out(text)


async def _until_gone(websocket: WebSocket) -> None:
    with contextlib.suppress(WebSocketDisconnect):
        while True:
            await websocket.receive_text()


async def _beside(*runs: Any) -> None:
    """Until one of them ends; the others are cancelled."""
    tasks = [asyncio.ensure_future(run) for run in runs]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


SIDES: dict[str, type[Any]] = {
    "pynotify": Pynotify,
    "redis": Redis,
    "broadcaster": Broadcaster,
    "alone": Alone,
}


def make_app() -> Starlette:
    """For `uvicorn --factory`."""
    side: Side = SIDES[os.environ["SIDE"]](os.environ["WHERE"])
    pid = [(b"x-pid", b"%d" % os.getpid())]

    async def clients(websocket: WebSocket) -> None:
        await websocket.accept(headers=pid)
        await side.serve(websocket)

    async def publish(websocket: WebSocket) -> None:
        await websocket.accept(headers=pid)
        with contextlib.suppress(WebSocketDisconnect):
            while True:
                await side.publish(await websocket.receive_text())

    return Starlette(
        lifespan=side.lifespan,
        routes=[WebSocketRoute("/clients", clients), WebSocketRoute("/publish", publish)],
    )
