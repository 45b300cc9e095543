"""An ASGI application that opens one connection per worker, in its lifespan.

$USE says what for: "listen" (the default), "connect" without ever listening, or "close" after
having listened.
"""

from __future__ import annotations

import asyncio
import os
from typing import Any

from journal import note

import pynotify

SEGMENT = os.environ["SEGMENT"]
USE = os.environ.get("USE", "listen")


class Listener:
    """A connection, and a task that hears what comes on it."""

    async def open(self) -> None:
        self.conn = await pynotify.AsyncConnection.connect(SEGMENT)
        if USE != "connect":
            self.sub = await self.conn.subscribe("c")
            self.hearing = asyncio.create_task(self._hear())
        if USE == "close":
            await self.close()
        loop = type(asyncio.get_running_loop()).__module__
        note("listening" if USE == "listen" else USE, self.conn.pid, loop)

    async def _hear(self) -> None:
        async for message in self.sub:
            note("heard", message.payload)

    async def close(self) -> None:
        if USE != "connect":
            await self.sub.close()
            await self.hearing
        await self.conn.close()


async def lifespan(receive: Any, send: Any) -> None:
    await receive()
    listener = Listener()
    await listener.open()
    await send({"type": "lifespan.startup.complete"})
    await receive()
    await listener.close()
    await send({"type": "lifespan.shutdown.complete"})


async def app(scope: dict[str, Any], receive: Any, send: Any) -> None:
    if scope["type"] == "lifespan":
        await lifespan(receive, send)
        return
    headers = [(b"content-type", b"text/plain")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": str(os.getpid()).encode()})
