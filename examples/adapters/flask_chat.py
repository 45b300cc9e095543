"""The chat of socketio_chat.py with Flask-SocketIO.

gunicorn --workers 4 --threads 100 --chdir examples/adapters flask_chat:app
"""

from __future__ import annotations

import os
from typing import Any

from flask import Flask, request
from flask_socketio import SocketIO, disconnect

from pynotify.contrib.socketio import PynotifyManager

SEGMENT = os.environ.get("SEGMENT", "flask-chat")

app = Flask(__name__)
server = SocketIO(
    app,
    async_mode="threading",
    transports=["websocket"],
    client_manager=PynotifyManager(SEGMENT),  # it was message_queue="redis://..."
)


@server.on("connect")
def connect() -> None:
    sid = request.sid  # type: ignore[attr-defined]
    server.emit("welcome", {"sid": sid, "pid": os.getpid()}, to=sid)


@server.on("say")
def say(text: str) -> None:
    server.emit("said", text)


@server.on("ask")
def ask(other: str, text: str) -> Any:
    return server.call("question", text, to=other)


@server.on("kick")
def kick(other: str) -> None:
    disconnect(other, namespace="/")
