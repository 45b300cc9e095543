"""A Socket.IO chat whose clients may be connected to any worker.

    uvicorn --workers 4 --app-dir examples/adapters socketio_chat:app

Clients connect by WebSocket only: long polling needs a proxy that sends a client to one worker.
"""

from __future__ import annotations

import os
from typing import Any

import socketio

from pynotify.contrib.socketio import AsyncPynotifyManager

SEGMENT = os.environ.get("SEGMENT", "socketio-chat")

server = socketio.AsyncServer(
    async_mode="asgi",
    transports=["websocket"],
    client_manager=AsyncPynotifyManager(SEGMENT),  # it was AsyncRedisManager("redis://...")
)
app = socketio.ASGIApp(server)


@server.event
async def connect(sid: str, environ: dict[str, Any]) -> None:
    await server.emit("welcome", {"sid": sid, "pid": os.getpid()}, to=sid)


@server.event
async def say(_sid: str, text: str) -> None:
    """To every client of every worker."""
    await server.emit("said", text)


@server.event
async def ask(_sid: str, other: str, text: str) -> Any:
    """What another client answers, which may be connected to another worker."""
    return await server.call("question", text, to=other)


@server.event
async def kick(_sid: str, other: str) -> None:
    await server.disconnect(other)
