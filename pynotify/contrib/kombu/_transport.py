"""The transport: what a kombu connection is over a segment."""

from __future__ import annotations

import os
import select
import time
from importlib.metadata import version
from itertools import count
from typing import TYPE_CHECKING, Any

from amqp.exceptions import RecoverableConnectionError
from kombu.exceptions import ChannelError
from kombu.transport import virtual

from pynotify._time import milliseconds
from pynotify.contrib._own import PerProcess
from pynotify.contrib.kombu import _channel
from pynotify.contrib.kombu._session import Session, Settings
from pynotify.errors import (
    InterfaceError,
    LayoutMismatch,
    LockTimeout,
    PayloadTooLong,
    SegmentCorrupt,
    SegmentFull,
    SegmentNotFound,
    SegmentUnlinked,
    TooManyBackends,
    TooManyConsumers,
    TooManyTopics,
    TopicDeleted,
    TopicFull,
)

if TYPE_CHECKING:
    from pynotify.contrib.kombu._feed import Source

#: Messages that one turn of an event loop delivers of a consumer: others have their turn, too.
_IN_A_TURN = 64
_WITHOUT_CONSUMERS_S = 1.0
_numbers = count(1)


class Transport(virtual.Transport):  # type: ignore[misc]
    """A kombu transport over a segment: `Connection("pynotify://SEGMENT/DATABASE")`."""

    Channel = _channel.Channel

    driver_type = "pynotify"
    driver_name = "pynotify"
    polling_interval = None
    connection_errors = (
        *virtual.Transport.connection_errors,
        OSError,
        RecoverableConnectionError,
        InterfaceError,
        LayoutMismatch,
        LockTimeout,
        SegmentCorrupt,
        SegmentFull,
        SegmentNotFound,
        SegmentUnlinked,
        TooManyBackends,
    )
    channel_errors = (
        ChannelError,
        PayloadTooLong,
        TooManyConsumers,
        TooManyTopics,
        TopicDeleted,
        TopicFull,
    )
    implements = virtual.Transport.implements.extend(
        asynchronous=True, exchange_type=frozenset(["direct", "topic", "fanout"])
    )

    def __init__(self, client: Any, **options: Any) -> None:
        super().__init__(client, **options)
        settings = Settings.of(
            client.transport_options, client.hostname or "", client.virtual_host or "/"
        )
        self._settings = settings
        self._session = PerProcess(
            lambda: Session(settings, next(_numbers)), lambda session: session.usable
        )
        self._pid = os.getpid()
        self._loop: Any = None
        self._poll: Any = None
        #: By the descriptor of the feed.
        self._watched: dict[int, tuple[_channel.Channel, Source]] = {}

    def driver_version(self) -> str:
        """The version of pynotify."""
        return version("pynotify-ipc")

    @property
    def default_connection_params(self) -> dict[str, Any]:
        """What holds for a URL that has no host."""
        return {"hostname": "default", "port": None}

    @property
    def session(self) -> Session:
        """What there is in this process; made when there is nothing."""
        return self._session.get()

    @property
    def is_ours(self) -> bool:
        """Whether its consumers are this process's, and not those of its parent."""
        return self._pid == os.getpid()

    # ---- connecting ----------------------------------------------------------------------

    def establish_connection(self) -> Transport:
        """Connect to the segment."""
        self.claim()
        self._session.get()
        connection: Transport = super().establish_connection()
        return connection

    def verify_connection(self, connection: Any) -> bool:
        """Whether it is connected, in this process."""
        return self.is_ours and self.session.usable

    def close_connection(self, connection: Any) -> None:
        """End the consumers, and give the connection to the segment up."""
        self.claim()
        super().close_connection(connection)
        session = self._session.take()
        if session is not None:
            session.close()

    def claim(self) -> None:
        """Forget, in a forked child, what the parent has."""
        if self.is_ours:
            return
        self._pid = os.getpid()
        self._loop = self._poll = None
        self._watched.clear()
        for channel in {*self._avail_channels, *self.channels}:
            channel.abandon()

    def declare_dead_letter(self, channel: _channel.Channel) -> None:
        """Make the queue of the option `dead_letter`."""
        queue = self._settings.dead_letter
        if queue is not None and queue not in self.session.view().queues:
            channel.queue_declare(queue, durable=True)

    # ---- waiting -------------------------------------------------------------------------

    def watch(self, channel: _channel.Channel, source: Source) -> None:
        """Wait for a consumer's messages from now on."""
        for feed in source.feeds:
            descriptor = feed.consumer.fileno()
            self._watched[descriptor] = (channel, source)
            if self._poll is not None:
                self._poll.register(descriptor, select.POLLIN)
            if self._loop is not None:
                self._loop.add_reader(descriptor, self.on_readable, descriptor)

    def unwatch(self, source: Source) -> None:
        """Wait for it no more; its descriptors are there still."""
        for descriptor, (_, other) in list(self._watched.items()):
            if other is not source:
                continue
            del self._watched[descriptor]
            if self._poll is not None:
                self._poll.unregister(descriptor)
            if self._loop is not None:
                self._loop.remove_reader(descriptor)

    def register_with_event_loop(self, connection: Any, loop: Any) -> None:
        """Have kombu's hub, which is Celery's, deliver messages; it sleeps while there are none."""
        self._loop = loop
        for descriptor in self._watched:
            loop.add_reader(descriptor, self.on_readable, descriptor)

    def unregister_from_event_loop(self, connection: Any, loop: Any) -> None:
        """Undo `register_with_event_loop`."""
        self._loop = None
        for descriptor in self._watched:
            loop.remove_reader(descriptor)

    def on_readable(self, descriptor: int, *_: Any) -> None:
        """Deliver what a consumer has."""
        for _turn in range(_IN_A_TURN):
            watched = self._watched.get(descriptor)  # a callback may cancel it
            if watched is None or not watched[0].deliver(watched[1]):
                return

    def drain_events(self, connection: Any, timeout: float | None = None) -> None:
        """Deliver a message, and wait for one if there is none.  Raises TimeoutError."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while not self._deliver_next():
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                raise TimeoutError
            self._wait(left)

    def _deliver_next(self) -> bool:
        """Deliver a message; consumers have their turns."""
        for descriptor, (channel, source) in list(self._watched.items()):
            if channel.deliver(source):
                if descriptor in self._watched:
                    self._watched[descriptor] = self._watched.pop(descriptor)
                return True
        return False

    def _wait(self, timeout: float | None) -> None:
        if not self._watched:
            left = _WITHOUT_CONSUMERS_S if timeout is None else timeout
            time.sleep(min(left, _WITHOUT_CONSUMERS_S))
            return
        if self._poll is None:
            self._poll = select.poll()
            for descriptor in self._watched:
                self._poll.register(descriptor, select.POLLIN)
        self._poll.poll(milliseconds(timeout))
