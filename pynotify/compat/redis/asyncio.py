"""`redis.asyncio`'s pub/sub without a Redis: `Redis("app")` is a client of a segment.

```
from pynotify.compat.redis import asyncio as redis

r = redis.Redis("app")  # it was redis.asyncio.Redis(host=...)
async with r.pubsub() as p:
    await p.subscribe("news")
    await r.publish("news", "hello")
```
"""

from __future__ import annotations

import asyncio
import builtins
import contextlib
import math
from typing import TYPE_CHECKING, Any

import redis.asyncio
from redis.asyncio import Subscription, client
from redis.asyncio.connection import AbstractConnection
from redis.exceptions import (
    AuthenticationError,
    AuthenticationWrongNumberOfArgsError,
    BusyLoadingError,
    ChildDeadlockedError,
    ConnectionError,
    DataError,
    InvalidResponse,
    OutOfMemoryError,
    PubSubError,
    ReadOnlyError,
    RedisError,
    ResponseError,
    TimeoutError,
    WatchError,
)

from pynotify.compat.redis._client import (
    SegmentClient,
    SegmentConnection,
    SegmentPool,
    decoded,
    errors_of_redis,
    warn_of_gap,
    words_of,
)
from pynotify.compat.redis._session import (
    KINDS,
    PATTERN,
    PATTERNS,
    NotPubSub,
    Patterns,
    Session,
    address,
    answer_pubsub,
    refuse,
    with_channel,
)
from pynotify.contrib._names import connect_async_preferring, limit_of
from pynotify.errors import Error
from pynotify.pubsub import AsyncPubSub

if TYPE_CHECKING:
    from pynotify._async_connection import AsyncConnection

__all__ = [
    "AuthenticationError",
    "AuthenticationWrongNumberOfArgsError",
    "BusyLoadingError",
    "ChildDeadlockedError",
    "ConnectionError",
    "ConnectionPool",
    "DataError",
    "InvalidResponse",
    "NotPubSub",
    "OutOfMemoryError",
    "PubSubError",
    "PynotifyConnection",
    "ReadOnlyError",
    "Redis",
    "RedisError",
    "ResponseError",
    "StrictRedis",
    "Subscription",
    "TimeoutError",
    "WatchError",
    "client",
    "from_url",
]


class _Link:
    """A connection to the segment, with what it is subscribed to."""

    def __init__(self, connection: AsyncConnection) -> None:
        self.connection = connection
        self.pubsub = AsyncPubSub(connection)
        self.session = Session(limit_of(connection))
        self._patterns = Patterns()
        self._generation = connection.generation(PATTERNS)
        #: Set when there is a reply, or the link was closed.
        self._changed = asyncio.Event()
        self._reading: asyncio.Task[None] | None = None
        self._closed = False

    async def close(self) -> None:
        self._closed = True
        self._changed.set()
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.wait([self._reading])
        await self.pubsub.close()
        await self.connection.close()

    async def run(self, command: str, words: list[bytes]) -> None:
        """Run a command; its reply stands in the session's."""
        session = self.session
        if command in ("PUBLISH", "SPUBLISH"):
            session.replies.append(await self._publish(command, *words))
        elif command == "PUBSUB":
            listened = await self.connection.channels("redis:")
            session.replies.append(answer_pubsub(words, lambda _: listened, session.limit))
        elif command in KINDS:
            await self._subscribe(command, words)
        elif command == "PING":
            session.ping(words)
        elif not session.polite(command, words):
            raise refuse(command)
        self._changed.set()

    async def _subscribe(self, command: str, words: list[bytes]) -> None:
        kind = KINDS[command]
        try:
            with self.session.under_way():
                if "UNSUB" in command:
                    await self.pubsub.unsubscribe(*self.session.unsubscribing(kind, words))
                else:
                    await self.pubsub.subscribe(*self.session.subscribing(kind, words))
                    if self._reading is None:
                        self._reading = asyncio.create_task(self._read())
                if kind is PATTERN:
                    await self._generation.bump()
        finally:
            self._changed.set()

    async def _read(self) -> None:
        try:
            with contextlib.suppress(Error):
                async for channel, data, _ in self.pubsub:
                    self.session.came(channel, data, warn_of_gap)
                    self._changed.set()
        finally:  # whatever ended it: a client that waits is told
            self._closed = True
            self._changed.set()

    async def _publish(self, command: str, channel: bytes, data: bytes) -> int:
        kind, connection = KINDS[command], self.connection
        target = address(kind, channel, self.session.limit)
        matching = await self._matching(channel) if command == "PUBLISH" else []
        count = sum([await connection.listeners(each) for each in (target, *matching)])
        if not matching:
            await self.pubsub.publish(target, data)
            return count
        async with connection.transaction():
            await self.pubsub.publish(target, data)
            for each in matching:
                await self.pubsub.publish(each, with_channel(channel, data))
        return count

    async def _matching(self, channel: bytes) -> list[str]:
        now = self._generation.value
        if now != self._patterns.seen:
            self._patterns.read(now, await self.connection.channels("redis:"))
        return self._patterns.matching(channel)

    async def wait(self, timeout: float | None) -> bool:
        """Until there is a reply; False when the time is over."""
        try:
            async with asyncio.timeout(timeout):
                while not self.session.readable:
                    if self._closed:
                        raise ConnectionError("the connection was closed")
                    self._changed.clear()
                    await self._changed.wait()
        except builtins.TimeoutError:
            return self.session.readable
        return True


class PynotifyConnection(SegmentConnection, AbstractConnection):
    """A connection of redis.asyncio that leads to a segment; `ConnectionPool` makes them."""

    _link: _Link | None

    async def connect(self) -> None:
        """Take a backend slot; subscriptions of an earlier one are made again."""
        await self.connect_check_health()

    async def connect_check_health(
        self, check_health: bool = True, retry_socket_connect: bool = True
    ) -> None:
        """Connect as `connect` does; there is no health to check."""
        if self._link is not None:
            return
        await self._connect()
        for reference in list(self._connect_callbacks):
            callback = reference()
            if callback is not None:
                await callback(self)

    async def _connect(self) -> None:
        options = dict(self._segment_options)
        wakeup = options.pop("wakeup", None)
        try:
            link = _Link(await connect_async_preferring(self.segment, wakeup, **options))
            await link.pubsub.__aenter__()  # it cannot be opened inside a transaction
            self._link = link
        except Error as error:
            raise ConnectionError(self._error_message(error)) from error

    async def disconnect(self, *_args: Any, **_kwargs: Any) -> None:
        """Give the backend slot back."""
        link, self._link = self._link, None
        self._should_reconnect = False
        if link is not None:
            await link.close()

    def _close(self) -> None:
        """What redis-py calls when the connection is forgotten."""
        self._link = None

    async def send_command(self, *args: Any, **_kwargs: Any) -> None:
        """Run a command; `read_response` gives its reply."""
        command, words = words_of(args, self.encoder)
        await self.connect()
        assert self._link is not None
        with errors_of_redis():
            await self._link.run(command, words)

    async def send_packed_command(self, command: Any, check_health: bool = True) -> None:
        """Refuse: pipelines are no pub/sub."""
        raise refuse("a pipeline")

    async def can_read(self) -> bool:
        """Whether there is a reply or a message."""
        return self._link is not None and self._link.session.readable

    async def can_read_destructive(self) -> bool:
        """Whether there is a reply or a message; nothing is destroyed."""
        return await self.can_read()

    async def read_response(
        self,
        disable_decoding: bool = False,
        timeout: float | None = None,
        *,
        disconnect_on_error: bool = True,
        push_request: bool | None = False,
    ) -> Any:
        """The next reply or message; waits for it, at most `timeout` seconds."""
        await self.connect()
        link = self._link
        assert link is not None
        limit = None if timeout is None or timeout == math.inf else timeout
        with errors_of_redis():
            found = await link.wait(limit)
        if not found:
            return None
        reply = link.session.replies.popleft()
        return reply if disable_decoding else decoded(reply, self.encoder.decode)


class ConnectionPool(SegmentPool, redis.asyncio.ConnectionPool):
    """Connections to a segment; the arguments are those of `Redis`."""

    _kind = PynotifyConnection


class Redis(SegmentClient, redis.asyncio.Redis):  # type: ignore[misc]
    """redis.asyncio's client on a segment: `publish`, `pubsub()` and the commands of PUBSUB.

    The arguments are those of `pynotify.compat.redis.Redis`.
    """

    _pool = ConnectionPool


StrictRedis = Redis


def from_url(url: str, **options: Any) -> Redis:
    """`Redis.from_url`."""
    return Redis.from_url(url, **options)
