"""python-socketio and Flask-SocketIO: emits, rooms, callbacks and disconnects over all workers.

```
socketio.Server(client_manager=PynotifyManager("app"))  # threads, gevent, eventlet
socketio.AsyncServer(client_manager=AsyncPynotifyManager("app"))
flask_socketio.SocketIO(app, client_manager=PynotifyManager("app"))
```

They stand where `RedisManager` and `AsyncRedisManager` stood.  A process that is no server emits by
`PynotifyManager("app", write_only=True).emit(...)`.
"""

from __future__ import annotations

from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

from socketio.async_pubsub_manager import AsyncPubSubManager
from socketio.pubsub_manager import PubSubManager

from pynotify._async_connection import AsyncConnection
from pynotify._connect import connect
from pynotify._segments import check_name
from pynotify._types import Gap
from pynotify.contrib._own import PerLoop, PerProcess
from pynotify.errors import Error
from pynotify.pubsub import AsyncPubSub, PubSub

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator
    from typing import Unpack

    from pynotify._connection import Connection
    from pynotify._open_options import OpenOptions

__all__ = ["AsyncPynotifyManager", "PynotifyManager"]

_LOST = "pynotify: messages of other workers were lost (%s)"
_NOT_SENT = "Cannot publish to pynotify segment %r: %s"


class _Bus:
    """What a process has: a connection, and a PubSub on it."""

    def __init__(
        self, segment: str, channel: str, wakeup: str | int | None, options: OpenOptions
    ) -> None:
        self.connection: Connection | None = None

        def make() -> Connection:
            self.connection = connect(segment, wakeup=wakeup, **options)
            return self.connection

        self.pubsub = PubSub(make, skip_self=True)
        self._channel = channel

    def listen(self) -> None:
        """Receive from now on.  Doing it twice changes nothing."""
        self.pubsub.subscribe(self._channel)

    def received(self, wait: Callable[[int], object] | None) -> Iterator[Any]:
        """What the others sent, for ever.  `wait` for a descriptor, if no thread may be blocked."""
        if wait is None:
            for _, message, _ in self.pubsub:
                yield message
            return
        came: list[Any] = []
        self.pubsub.on(self._channel, came.append)
        while not self.pubsub.closed:
            self.pubsub.run(0)
            yield from came
            came.clear()
            assert self.connection is not None
            wait(self.connection.fileno())


class PynotifyManager(PubSubManager):  # type: ignore[misc]
    """A client manager over a segment, for servers that use threads, gevent or eventlet.

    `segment` is its name; `channel`, `write_only`, `logger` and `json` are those of the managers
    of python-socketio.  `wakeup` and `options` as for `pynotify.connect`.  The connection is made
    in the process that needs it: the manager may be made before a fork.  What cannot be sent is
    logged, as `RedisManager` does it; local clients have got it then.
    """

    name = "pynotify"

    def __init__(
        self,
        segment: str = "default",
        channel: str = "socketio",
        write_only: bool = False,
        logger: Any = None,
        json: Any = None,
        *,
        wakeup: str | int | None = None,
        **options: Unpack[OpenOptions],
    ) -> None:
        check_name(segment)
        super().__init__(channel=channel, write_only=write_only, logger=logger, json=json)
        self.segment = segment
        self._bus = PerProcess(
            lambda: _Bus(segment, channel, wakeup, options), lambda bus: not bus.pubsub.closed
        )

    def initialize(self) -> None:
        """Listen, and then start the thread: nothing that others send from now on is missed."""
        if not self.write_only:
            self._bus.get().listen()
        super().initialize()

    def close(self) -> None:
        """Free the backend slot of this process, and end the thread that listens."""
        bus = self._bus.take()
        if bus is not None:
            bus.pubsub.close()

    def _publish(self, data: dict[str, Any]) -> None:
        try:
            self._bus.get().pubsub.publish(self.channel, self.json.dumps(data))
        except Error as error:
            self._get_logger().error(_NOT_SENT, self.segment, error)

    def _listen(self) -> Iterator[Any]:
        bus = self._bus.get()
        bus.listen()
        for message in bus.received(self._waiting()):
            if isinstance(message, Gap):
                self._get_logger().warning(_LOST, message.reason)
            else:
                yield message

    def _waiting(self) -> Callable[[int], object] | None:
        """How the servers whose hub no thread may block wait for a descriptor."""
        mode = getattr(self.server, "async_mode", None)
        if mode in ("gevent", "gevent_uwsgi"):
            wait_read: Callable[[int], object] = import_module("gevent.socket").wait_read
            return wait_read
        if mode == "eventlet":
            return partial(import_module("eventlet.hubs").trampoline, read=True)
        return None


class AsyncPynotifyManager(AsyncPubSubManager):  # type: ignore[misc]
    """A client manager over a segment, for asyncio servers.

    Arguments are those of `PynotifyManager`.  The connection belongs to the event loop that uses
    the manager first; from another loop it makes another one.
    """

    name = "pynotify"

    def __init__(
        self,
        segment: str = "default",
        channel: str = "socketio",
        write_only: bool = False,
        logger: Any = None,
        json: Any = None,
        *,
        wakeup: str | int | None = None,
        **options: Unpack[OpenOptions],
    ) -> None:
        check_name(segment)
        super().__init__(channel=channel, write_only=write_only, logger=logger, json=json)
        self.segment = segment

        async def make() -> AsyncPubSub:
            pubsub = AsyncPubSub(
                lambda: AsyncConnection.connect(segment, wakeup=wakeup, **options), skip_self=True
            )
            if not self.write_only:
                await pubsub.subscribe(self.channel)
            return pubsub

        self._bus = PerLoop(make)

    async def connect(self, sid: str, namespace: str) -> Any:
        """Listen before the first client is one: it misses nothing that others send."""
        if not self.write_only:
            await self._bus.get()
        return await super().connect(sid, namespace)

    async def close(self) -> None:
        """Free the backend slot of this loop, and end the task that listens."""
        pubsub = self._bus.take()
        if pubsub is not None:
            await pubsub.close()

    async def _publish(self, data: dict[str, Any]) -> None:
        try:
            pubsub = await self._bus.get()
            await pubsub.publish(self.channel, self.json.dumps(data))
        except Error as error:
            self._get_logger().error(_NOT_SENT, self.segment, error)

    async def _listen(self) -> AsyncIterator[Any]:
        async for _, message, _ in await self._bus.get():
            if isinstance(message, Gap):
                self._get_logger().warning(_LOST, message.reason)
            else:
                yield message
