"""pytest plugin: python-socketio's manager tests get our managers for its base classes."""

from __future__ import annotations

import contextlib
import os
import sys
from types import SimpleNamespace
from typing import Any

from socketio import async_pubsub_manager, base_server, pubsub_manager

from pynotify.contrib.socketio import AsyncPynotifyManager, PynotifyManager

# It would be chosen for a server that names no mode; their own environment does not have it.
sys.modules["gevent"] = None  # type: ignore[assignment]

SEGMENT = os.environ["SEGMENT"]


class PubSubManager(PynotifyManager):  # type: ignore[misc]
    def __init__(self, channel: str = "socketio", **others: Any) -> None:
        super().__init__(SEGMENT, channel, **others)


class AsyncPubSubManager(AsyncPynotifyManager):  # type: ignore[misc]
    def __init__(self, channel: str = "socketio", **others: Any) -> None:
        super().__init__(SEGMENT, channel, **others)


pubsub_manager.PubSubManager = PubSubManager
async_pubsub_manager.AsyncPubSubManager = AsyncPubSubManager
# Flask-SocketIO's tests name no manager: a server without one gets ours.
base_server.manager = SimpleNamespace(Manager=PubSubManager)

# Its test client refuses servers with a message queue, whose messages may come by a thread; those
# of the server's own clients do not.
with contextlib.suppress(ImportError):
    from flask_socketio import test_client

    test_client.PubSubManager = type("NoManager", (), {})
