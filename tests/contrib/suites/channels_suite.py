"""pytest plugin: channels_redis' tests get our layer for its own."""

from __future__ import annotations

import os
from typing import Any

import channels_redis.core
import channels_redis.pubsub
from django.conf import settings

from pynotify.contrib.channels import PynotifyChannelLayer

if not settings.configured:
    settings.configure()


class Layer(PynotifyChannelLayer):
    """Without the hosts; and Redis' connections of a loop, which its tests close, are not ours."""

    def __init__(self, hosts: Any = None, **options: Any) -> None:
        super().__init__(os.environ["SEGMENT"], **options)

    async def close_pools(self) -> None:
        """Nothing."""


channels_redis.core.RedisChannelLayer = Layer
channels_redis.pubsub.RedisPubSubChannelLayer = Layer
