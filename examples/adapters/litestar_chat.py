"""A chat in Litestar, whose workers are one room.

SEGMENT=chat uvicorn --workers 4 --app-dir examples/adapters litestar_chat:app
"""

from __future__ import annotations

import os
import uuid
from typing import Any

from litestar import Litestar, WebSocket, websocket
from litestar.channels import ChannelsPlugin
from litestar.exceptions import WebSocketDisconnect

from pynotify.contrib.litestar import PynotifyChannelsBackend

backend = PynotifyChannelsBackend(os.environ.get("SEGMENT", "chat"))
plugin = ChannelsPlugin(backend, channels=["room"])


@websocket("/chat")
async def chat(socket: WebSocket[Any, Any, Any]) -> None:
    async def tell(message: bytes) -> None:
        await socket.send_text(message.decode())

    await socket.accept()
    async with (
        plugin.start_subscription(["room"]) as subscriber,
        subscriber.run_in_background(tell),
    ):
        await socket.send_text(f"welcome {os.getpid()} {uuid.uuid4().hex}")
        try:
            while True:
                await plugin.wait_published(await socket.receive_text(), "room")
        except WebSocketDisconnect:
            pass


app = Litestar([chat], plugins=[plugin])
