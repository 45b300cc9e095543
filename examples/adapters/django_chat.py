"""A chat with Django Channels, and a cached title, over several workers, in one file.

    uvicorn --workers 4 --app-dir examples/adapters django_chat:application

A project of its own has the settings in settings.py; the two that matter are CHANNEL_LAYERS and
CACHES.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import django
from channels.generic.websocket import AsyncWebsocketConsumer
from channels.routing import ProtocolTypeRouter, URLRouter
from django.conf import settings
from django.core.asgi import get_asgi_application
from django.core.cache import cache
from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.urls import path

SEGMENT = os.environ.get("SEGMENT", "django-chat")
DATA = Path(os.environ.get("DATA") or f"{tempfile.gettempdir()}/django-chat.{os.getuid()}")
DATA.mkdir(mode=0o700, exist_ok=True)

settings.configure(
    SECRET_KEY="an example's",
    ALLOWED_HOSTS=["*"],
    ROOT_URLCONF=__name__,
    INSTALLED_APPS=["pynotify.contrib.django"],
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": DATA / "db"}},
    PYNOTIFY_SEGMENT=SEGMENT,
    CHANNEL_LAYERS={
        "default": {
            "BACKEND": "pynotify.contrib.channels.PynotifyChannelLayer",
            "CONFIG": {"segment": SEGMENT},
        }
    },
    CACHES={
        "default": {
            "BACKEND": "pynotify.contrib.django.cache.GenerationCache",
            "LOCATION": SEGMENT,
        }
    },
)
django.setup()


class Chat(AsyncWebsocketConsumer):  # type: ignore[misc]
    """All clients are in one room."""

    groups = ("room",)

    async def connect(self) -> None:
        await self.accept()
        await self.send(f"welcome {os.getpid()} {self.channel_name}")

    async def receive(self, text_data: str | None = None, bytes_data: bytes | None = None) -> None:
        await self.channel_layer.group_send("room", {"type": "said", "text": text_data})

    async def said(self, event: dict[str, Any]) -> None:
        await self.send(event["text"])


def title(request: HttpRequest) -> HttpResponse:
    """GET answers from the worker's memory; PUT changes the title for all workers."""
    if request.method == "PUT":
        with transaction.atomic():
            (DATA / "title").write_bytes(request.body)
            transaction.on_commit(lambda: cache.delete("title"))
        return HttpResponse(status=204)
    text = cache.get_or_set("title", (DATA / "title").read_bytes)
    return HttpResponse(text, headers={"Worker": os.getpid()})


urlpatterns = [path("title", title)]
application = ProtocolTypeRouter(
    {
        "http": get_asgi_application(),
        "websocket": URLRouter([path("chat", Chat.as_asgi())]),
    }
)
