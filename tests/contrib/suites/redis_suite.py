"""pytest plugin: redis-py's pub/sub tests get connections to a segment."""

from __future__ import annotations

import os
from typing import Any

import redis
import redis.asyncio
import redis.asyncio.connection
import redis.connection

from pynotify.compat.redis import PynotifyConnection
from pynotify.compat.redis import asyncio as tasks


class Connection(PynotifyConnection):
    """Without the host and the port."""

    def __init__(self, host: str = "", port: int = 0, **options: Any) -> None:
        super().__init__(os.environ["SEGMENT"], **options)


class AsyncConnection(tasks.PynotifyConnection):
    """Without the host and the port."""

    def __init__(self, host: str = "", port: int = 0, **options: Any) -> None:
        super().__init__(os.environ["SEGMENT"], **options)


class AsyncConnectionPool(redis.asyncio.ConnectionPool):
    """The default of a pool, which is bound early."""

    def __init__(self, connection_class: Any = AsyncConnection, **options: Any) -> None:
        super().__init__(connection_class=connection_class, **options)


async def nothing(*_: Any, **__: Any) -> None:
    """There are no keys that a test could leave behind."""


redis.Connection = redis.connection.Connection = Connection  # type: ignore[misc,assignment]
redis.Redis.flushdb = lambda *_, **__: None  # type: ignore[assignment,method-assign]
redis.asyncio.connection.Connection = AsyncConnection  # type: ignore[misc,assignment]
redis.asyncio.ConnectionPool = AsyncConnectionPool  # type: ignore[misc]
redis.asyncio.Redis.flushdb = nothing  # type: ignore[assignment,method-assign]
