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
from urllib.parse import parse_qsl, urlsplit

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
from pynotify._log import logger
from pynotify._segments import check_name
from pynotify._time import milliseconds
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
    from collections.abc import Callable, Iterable, Iterator
    from typing import Self

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


def warn_of_gap(reason: str) -> None:
    """Log that messages are missing, which Redis would not tell either."""
    logger.warning("pynotify.compat.redis: messages were lost (%s)", reason)


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


class PynotifyConnection(AbstractConnection):
    """A connection of redis-py that leads to a segment; `ConnectionPool` makes them."""

    def __init__(
        self,
        segment: str = "default",
        segment_options: dict[str, Any] | None = None,
        **options: Any,
    ) -> None:
        check_name(segment)
        self.segment, self._segment_options = segment, segment_options or {}
        self._link: _Link | None = None
        self.host, self.port = f"pynotify:{segment}", 0
        super().__init__(**options_without_server(options))

    def repr_pieces(self) -> list[tuple[str, Any]]:
        """What `repr()` shows."""
        return [("segment", self.segment)]

    @property
    def is_connected(self) -> bool:
        """Whether it has a backend slot."""
        return self._link is not None

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

    def _host_error(self) -> str:
        return f"segment {self.segment}"

    def _error_message(self, exception: BaseException) -> str:
        return f"Error connecting to {self._host_error()}. {exception}"

    def disconnect(self, *_args: Any, **_kwargs: Any) -> None:
        """Give the backend slot back."""
        link, self._link = self._link, None
        self._should_reconnect = False
        if link is not None:
            link.close()

    def send_command(self, *args: Any, **_kwargs: Any) -> None:
        """Run a command; `read_response` gives its reply."""
        command, *words = words_of(args, self.encoder)
        self.connect()
        assert self._link is not None
        with errors_of_redis():
            self._link.run(command.decode().upper(), words)

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


def options_without_server(options: dict[str, Any]) -> dict[str, Any]:
    """What a connection of redis-py is made with, less what it would say to a server."""
    kept = {name: value for name, value in options.items() if "maint" not in name}
    return {**kept, "protocol": 2, "driver_info": None, "health_check_interval": 0}


def decoded(reply: Any, decode: Callable[[bytes], Any]) -> Any:
    """A reply as the client's encoding has it."""
    if isinstance(reply, list):
        return [decoded(each, decode) for each in reply]
    return decode(reply) if isinstance(reply, bytes) else reply


def words_of(args: Iterable[Any], encoder: Any) -> list[bytes]:
    """A command as bytes; "PUBSUB CHANNELS" is one argument, and two words."""
    words: list[bytes] = []
    for arg in args:
        encoded = encoder.encode(arg)
        words += encoded.split() if not words else [encoded]
    return words


@contextlib.contextmanager
def errors_of_redis() -> Iterator[None]:
    """What goes wrong in the segment is, for a client, its connection."""
    try:
        yield
    except Error as error:
        raise ConnectionError(str(error)) from error


class ConnectionPool(redis.ConnectionPool):
    """Connections to a segment; the arguments are those of `Redis`."""

    def __init__(self, segment: str = "default", **options: Any) -> None:
        check_name(segment)
        options.setdefault("connection_class", PynotifyConnection)
        super().__init__(segment=segment, protocol=2, **options)

    @classmethod
    def from_url(cls, url: str, **options: Any) -> Self:
        """A pool for `pynotify://SEGMENT`; as of `Redis.from_url`."""
        segment, given = parse_url(url)
        return cls(segment, **{**given, **options})


class Redis(redis.Redis):
    """redis-py's client on a segment: `publish`, `pubsub()` and the commands of PUBSUB.

    `segment` is its name; `segment_options` are for `pynotify.connect`.  `decode_responses`,
    `encoding` and `encoding_errors` are redis-py's.  What `redis.Redis` takes besides is about a
    server.
    """

    def __init__(
        self,
        segment: str = "default",
        *,
        connection_pool: ConnectionPool | None = None,
        segment_options: dict[str, Any] | None = None,
        single_connection_client: bool = False,
        **options: Any,
    ) -> None:
        own = connection_pool is None
        pool = connection_pool or ConnectionPool(
            segment, segment_options=segment_options, **options
        )
        super().__init__(connection_pool=pool, single_connection_client=single_connection_client)
        self.auto_close_connection_pool = own

    @classmethod
    def from_url(cls, url: str, **options: Any) -> Redis:
        """A client for `pynotify://SEGMENT`, with `?decode_responses=1` and the like."""
        segment, given = parse_url(url)
        return cls(segment, **{**given, **options})


StrictRedis = Redis


def from_url(url: str, **options: Any) -> Redis:
    """`Redis.from_url`."""
    return Redis.from_url(url, **options)


def parse_url(url: str) -> tuple[str, dict[str, Any]]:
    """The segment and the options of a URL."""
    parts = urlsplit(url)
    if parts.scheme != "pynotify" or not parts.netloc:
        raise ValueError(f"the URL must be pynotify://SEGMENT, not {url!r}")
    options: dict[str, Any] = dict(parse_qsl(parts.query))
    if "decode_responses" in options:
        options["decode_responses"] = options["decode_responses"].lower() in ("1", "true", "yes")
    return parts.netloc, options
