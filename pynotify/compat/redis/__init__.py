"""redis-py's pub/sub without a Redis: `Redis("app")` is a client of a segment.

```
from pynotify.compat import redis

r = redis.Redis("app")  # it was redis.Redis(host=...)
p = r.pubsub()
p.subscribe("news")
r.publish("news", "hello")
```

It is redis-py itself (8 or later) on a connection of another kind, so messages, handlers and
`run_in_thread` are what they were.  A command that is no pub/sub raises `NotPubSub` with its name.
`pynotify.compat.redis.asyncio` is the same for `redis.asyncio`.  Exceptions have the names that
they have in `redis`, and are the same.
"""

from __future__ import annotations

import contextlib
import os
import select
import time
from typing import TYPE_CHECKING, Any

import redis
from redis import Subscription, client, exceptions
from redis.connection import AbstractConnection
from redis.exceptions import (
    AuthenticationError,
    AuthenticationWrongNumberOfArgsError,
    BusyLoadingError,
    ChildDeadlockedError,
    ConnectionError,
    CrossSlotTransactionError,
    DataError,
    InvalidPipelineStack,
    InvalidResponse,
    MaxConnectionsError,
    OutOfMemoryError,
    PubSubError,
    ReadOnlyError,
    RedisClusterException,
    RedisError,
    ResponseError,
    TimeoutError,
    WatchError,
)

from pynotify._finalizing import OwnDescriptor
from pynotify._time import milliseconds
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
from pynotify.contrib._names import connect_preferring, limit_of
from pynotify.errors import Error
from pynotify.pubsub import PubSub

if TYPE_CHECKING:
    from pynotify._connection import Connection

__all__ = [
    "AuthenticationError",
    "AuthenticationWrongNumberOfArgsError",
    "BusyLoadingError",
    "ChildDeadlockedError",
    "ConnectionError",
    "ConnectionPool",
    "CrossSlotTransactionError",
    "DataError",
    "InvalidPipelineStack",
    "InvalidResponse",
    "MaxConnectionsError",
    "NotPubSub",
    "OutOfMemoryError",
    "PubSubError",
    "PynotifyConnection",
    "ReadOnlyError",
    "Redis",
    "RedisClusterException",
    "RedisError",
    "ResponseError",
    "StrictRedis",
    "Subscription",
    "TimeoutError",
    "WatchError",
    "client",
    "exceptions",
    "from_url",
]


class _Link:
    """A connection to the segment, with what it is subscribed to."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.pubsub = PubSub(connection)
        self.session = Session(limit_of(connection))
        self._patterns = Patterns()
        self._generation = connection.generation(PATTERNS)
        self._waiting = select.poll()
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._owned = OwnDescriptor(self._wake)
        self._waiting.register(self._wake, select.POLLIN)
        self._watched = False

    def close(self) -> None:
        self.pubsub.close()
        self.connection.close()
        os.eventfd_write(self._wake, 1)

    def run(self, command: str, words: list[bytes]) -> None:
        """Run a command; its reply stands in the session's."""
        session = self.session
        if command in ("PUBLISH", "SPUBLISH"):
            session.replies.append(self._publish(command, *words))
        elif command == "PUBSUB":
            counts = self.connection.channels
            session.replies.append(answer_pubsub(words, counts, session.limit))
        elif command in KINDS:
            self._subscribe(command, words)
        elif command == "PING":
            session.ping(words)
        elif not session.polite(command, words):
            raise refuse(command)
        os.eventfd_write(self._wake, 1)  # another thread may wait

    def _subscribe(self, command: str, words: list[bytes]) -> None:
        kind = KINDS[command]
        try:
            with self.session.under_way():
                if "UNSUB" in command:
                    self.pubsub.unsubscribe(*self.session.unsubscribing(kind, words))
                else:
                    self.pubsub.subscribe(*self.session.subscribing(kind, words))
                if kind is PATTERN:
                    self._generation.bump()
        finally:
            os.eventfd_write(self._wake, 1)  # another thread may wait

    def _publish(self, command: str, channel: bytes, data: bytes) -> int:
        kind, connection = KINDS[command], self.connection
        target = address(kind, channel, self.session.limit)
        matching = self._matching(channel) if command == "PUBLISH" else []
        count = connection.listeners(target) + sum(map(connection.listeners, matching))
        if not matching:
            self.pubsub.publish(target, data)
            return count
        with connection.transaction():
            self.pubsub.publish(target, data)
            for each in matching:
                self.pubsub.publish(each, with_channel(channel, data))
        return count

    def _matching(self, channel: bytes) -> list[str]:
        now = self._generation.value
        if now != self._patterns.seen:
            self._patterns.read(now, self.connection.channels("redis:"))
        return self._patterns.matching(channel)

    def wait(self, timeout: float | None) -> bool:
        """Until there is a reply; False when the time is over."""
        deadline = None if timeout is None else time.monotonic() + timeout
        if not self._watched:
            self._watched = True
            self._waiting.register(self.connection.fileno(), select.POLLIN)
        while True:
            self._read()
            if self.session.readable:
                return True
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                return False
            ready = self._waiting.poll(milliseconds(left))
            if any(descriptor == self._wake for descriptor, _ in ready):
                with contextlib.suppress(BlockingIOError):  # another thread was faster
                    os.eventfd_read(self._wake)
                if self.pubsub.closed:
                    raise ConnectionError("the connection was closed")

    def _read(self) -> None:
        for channel, data, _ in self.pubsub.ready():
            self.session.came(channel, data, warn_of_gap)


class PynotifyConnection(SegmentConnection, AbstractConnection):
    """A connection of redis-py that leads to a segment; `ConnectionPool` makes them."""

    _link: _Link | None

    def connect(self) -> None:
        """Take a backend slot; subscriptions of an earlier one are made again."""
        self.connect_check_health()

    def connect_check_health(
        self, check_health: bool = True, retry_socket_connect: bool = True
    ) -> None:
        """Connect as `connect` does; there is no health to check."""
        if self._link is not None:
            return
        self._link = self._connect()
        for reference in list(self._connect_callbacks):
            callback = reference()
            if callback is not None:
                callback(self)

    def _connect(self) -> _Link:
        options = dict(self._segment_options)
        try:
            return _Link(connect_preferring(self.segment, options.pop("wakeup", None), **options))
        except Error as error:
            raise ConnectionError(self._error_message(error)) from error

    def disconnect(self, *_args: Any, **_kwargs: Any) -> None:
        """Give the backend slot back."""
        link, self._link = self._link, None
        self._should_reconnect = False
        if link is not None:
            link.close()

    def send_command(self, *args: Any, **_kwargs: Any) -> None:
        """Run a command; `read_response` gives its reply."""
        command, words = words_of(args, self.encoder)
        self.connect()
        assert self._link is not None
        with errors_of_redis():
            self._link.run(command, words)

    def send_packed_command(self, command: Any, check_health: bool = True) -> None:
        """Refuse: pipelines are no pub/sub."""
        raise refuse("a pipeline")

    def can_read(self, timeout: float = 0) -> bool:
        """Wait until there is a reply or a message, at most `timeout` seconds."""
        self.connect()
        assert self._link is not None
        with errors_of_redis():
            return self._link.wait(timeout)

    def read_response(
        self,
        disable_decoding: bool = False,
        *,
        timeout: Any = None,
        disconnect_on_error: bool = True,
        push_request: bool = False,
    ) -> Any:
        """The next reply or message; waits for it, at most `timeout` seconds."""
        self.connect()
        link = self._link
        assert link is not None
        limit = timeout if isinstance(timeout, (int, float)) else None
        with errors_of_redis():
            if not link.wait(limit):
                raise TimeoutError(f"nothing came in {limit} s")
        reply = link.session.replies.popleft()
        return reply if disable_decoding else decoded(reply, self.encoder.decode)


class ConnectionPool(SegmentPool, redis.ConnectionPool):
    """Connections to a segment; the arguments are those of `Redis`."""

    _kind = PynotifyConnection


class Redis(SegmentClient, redis.Redis):
    """redis-py's client on a segment: `publish`, `pubsub()` and the commands of PUBSUB.

    `segment` is its name; `segment_options` are for `pynotify.connect`.  `decode_responses`,
    `encoding` and `encoding_errors` are redis-py's.  What `redis.Redis` takes besides is about a
    server.
    """

    _pool = ConnectionPool


StrictRedis = Redis


def from_url(url: str, **options: Any) -> Redis:
    """`Redis.from_url`."""
    return Redis.from_url(url, **options)
