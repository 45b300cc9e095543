"""A chat over WebSockets, and its events by SSE, whose clients may be connected to any worker.

uvicorn --workers 4 --app-dir examples/adapters starlette_chat:app
"""

from __future__ import annotations

import os
import uuid

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket

from pynotify.contrib.starlette import Broadcast

SEGMENT = os.environ.get("SEGMENT", "starlette-chat")

broadcast = Broadcast(SEGMENT, replay=100)


async def chat(websocket: WebSocket) -> None:
    name = uuid.uuid4().hex
    await websocket.accept()
    await websocket.send_text(f"welcome {os.getpid()} {name}")
    await broadcast.websocket(websocket, "room", identity=name)


async def events(request: Request) -> Response:
    return broadcast.events(request, "room")


async def say(request: Request) -> Response:
    text = (await request.body()).decode()
    return JSONResponse({"id": await broadcast.publish("room", text)})


async def present(_request: Request) -> Response:
    return JSONResponse({"worker": os.getpid(), "present": await broadcast.present("room")})


app = Starlette(
    lifespan=broadcast.lifespan,
    routes=[
        WebSocketRoute("/chat", chat),
        Route("/events", events),
        Route("/say", say, methods=["POST"]),
        Route("/present", present),
    ],
)
