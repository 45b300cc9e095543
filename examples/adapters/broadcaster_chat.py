"""A chat with broadcaster, whose workers are one room.

SEGMENT=chat uvicorn --workers 4 --app-dir examples/adapters broadcaster_chat:app
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import uuid
from collections.abc import AsyncIterable, AsyncIterator

from broadcaster import Broadcast, Event
from starlette.applications import Starlette
from starlette.routing import WebSocketRoute
from starlette.websockets import WebSocket

from pynotify.contrib.broadcaster import PynotifyBackend

broadcast = Broadcast(backend=PynotifyBackend(os.environ.get("SEGMENT", "chat")))


@contextlib.asynccontextmanager
async def lifespan(_app: Starlette) -> AsyncIterator[None]:
    async with broadcast:
        yield


async def tell(websocket: WebSocket, events: AsyncIterable[Event]) -> None:
    async for event in events:
        await websocket.send_text(event.message)


async def chat(websocket: WebSocket) -> None:
    await websocket.accept()
    async with broadcast.subscribe("room") as subscriber:
        await websocket.send_text(f"welcome {os.getpid()} {uuid.uuid4().hex}")
        telling = asyncio.create_task(tell(websocket, subscriber))
        async for text in websocket.iter_text():
            await broadcast.publish("room", text)
        telling.cancel()
        await asyncio.wait([telling])


app = Starlette(lifespan=lifespan, routes=[WebSocketRoute("/chat", chat)])
