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


def start() -> pynotify.Connection:
    conn = pynotify.connect(SEGMENT)
    loop = asyncio.get_running_loop()
    if USE != "connect":
        conn.listen("c")
        loop.add_reader(conn.fileno(), _hear, conn)
    if USE == "close":
        loop.remove_reader(conn.fileno())
        conn.close()
    note("listening" if USE == "listen" else USE, conn.pid, type(loop).__module__)
    return conn


def _hear(conn: pynotify.Connection) -> None:
    for message in conn.poll():
        note("heard", message.payload)


async def app(scope: dict[str, Any], receive: Any, send: Any) -> None:
    if scope["type"] == "lifespan":
        await receive()
        conn = start()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        conn.close()
        await send({"type": "lifespan.shutdown.complete"})
        return
    headers = [(b"content-type", b"text/plain")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": str(os.getpid()).encode()})
