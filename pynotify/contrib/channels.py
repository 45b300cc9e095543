"""The channel layer of Django Channels: all workers of a host, without Redis.

```
CHANNEL_LAYERS = {
    "default": {
        "BACKEND": "pynotify.contrib.channels.PynotifyChannelLayer",
        "CONFIG": {"segment": "app"},
    },
}
```
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import math
import os
import select
import threading
import time
import uuid
from typing import TYPE_CHECKING, Any

import msgpack
from channels.exceptions import ChannelFull, MessageTooLarge
from channels.layers import BaseChannelLayer

from pynotify._connect import is_gone
from pynotify._finalizing import OwnDescriptor
from pynotify._locks import Lock, RLock
from pynotify._log import logger
from pynotify._segments import check_name
from pynotify._types import Gap
from pynotify.contrib._mailbox import Mailbox, closed
from pynotify.contrib._names import connect_preferring, fitting, limit_of
from pynotify.contrib._own import PerProcess
from pynotify.errors import (
    ConnectionLost,
    Error,
    InterfaceError,
    PayloadTooLong,
    QueueFull,
    SegmentFull,
    SegmentUnlinked,
    Timeout,
    TopicFull,
)
from pynotify.pubsub import PubSub

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from typing import Unpack

    from pynotify._open_options import OpenOptions
    from pynotify.topics import Consumer

__all__ = ["PynotifyChannelLayer"]

#: Objects of more bytes are sent by a thread: the loop goes on meanwhile.
_LARGE = 1 << 16
#: The channel of each topic.
_QUEUE = "layer"
_TOPIC_NAME = 64
#: What calls raise once the segment was removed.
_LOST = (SegmentUnlinked, ConnectionLost, InterfaceError)


class _Hub:
    """What a process has of a layer: a thread that listens, mailboxes, and members of groups."""

    def __init__(self, layer: PynotifyChannelLayer) -> None:
        self._layer = layer
        self.client = uuid.uuid4().hex
        self.connection = layer.connect_here()
        self.limit = limit_of(self.connection)
        self.pubsub = PubSub(self.connection)
        #: How often any process has made a channel without "!" a member of a group.
        self.outside = self.connection.generation(f"{layer.prefix}:n")
        self._lock = Lock()
        #: Of subscribing and unsubscribing, which go with the first and the last member.
        self._membership = Lock()
        self._boxes: dict[str, Mailbox] = {}
        #: Nothing comes any more.
        self.ended = False
        self._groups: dict[str, dict[str, float]] = {}
        self._consumers: dict[str, Consumer] = {}
        #: Requests to other processes that they have not answered yet.
        self._asked: dict[str, concurrent.futures.Future[None]] = {}
        self._taking = Lock()
        self._swept = time.monotonic()
        #: Of reading and delivering, which a task does as well that is about to receive.
        self._reading = RLock()
        self._stop = os.eventfd(0, os.EFD_CLOEXEC)
        self._owned = OwnDescriptor(self._stop)
        self._listen(layer.address(self.client))
        self._listen(layer.address("all"))
        self._thread = threading.Thread(
            target=self._watch, name=f"pynotify-channels-{layer.segment}", daemon=True
        )
        self._thread.start()

    @property
    def usable(self) -> bool:
        return not self.pubsub.closed

    def close(self) -> None:
        os.eventfd_write(self._stop, 1)
        if threading.current_thread() is not self._thread:
            self._thread.join()
        self.pubsub.close()
        self._end()
        self.connection.close()

    def lose(self) -> None:
        """The process has another hub from now on."""
        self.pubsub.close()
        self._end()

    def lost(self) -> bool:
        """Whether the segment was removed; then the process has another hub from now on."""
        gone = is_gone(self.connection)
        if gone:
            self.lose()
        return gone

    def _end(self) -> None:
        """Wake the tasks that wait: the channels of this process go with what it has."""
        with self._lock:
            self.ended = True
            for box in self._boxes.values():
                box.end()
        self._layer.fail_waiting(self)

    # ---- what comes ------------------------------------------------------------------------

    def _watch(self) -> None:
        """What the thread does: read whenever something has come."""
        waiting = select.poll()
        waiting.register(self._stop, select.POLLIN)
        try:
            waiting.register(self.connection.fileno(), select.POLLIN)
            while all(descriptor != self._stop for descriptor, _ in waiting.poll()):
                self.read()
        except Error as error:
            logger.error("channel layer: it does not listen any more: %s", error)
            self.lose()

    def read(self) -> None:
        """Deliver everything that was sent before the call, in order."""
        with self._reading:
            self.pubsub.run(0)

    def _came(self, packed: bytes | Gap) -> None:
        if isinstance(packed, Gap):
            logger.warning("channel layer: messages were lost (%s)", packed.reason)
        else:
            self._take(*msgpack.unpackb(packed))

    def _take(self, kind: str, name: str, until: float, body: Any) -> None:
        now = time.monotonic()
        if kind == "send":
            with self._lock:
                self._deliver(name, body, until, now)
        elif kind == "group":
            self._spread(name, body, until, now)
        elif kind == "add":
            channel, client, request = body
            self.add(name, channel)
            self._answer(client, request)
        elif kind == "added":
            self._answered(name)
        elif kind == "discard":
            self.discard(name, body)
        elif kind == "flush" and name != self.client:
            self.flush()
        self._sweep(now)

    def _deliver(self, channel: str, body: bytes, until: float, now: float) -> bool:
        return until <= now or self._box(channel).put(body, until, now)

    def _box(self, channel: str) -> Mailbox:
        box = self._boxes.get(channel)
        if box is None:
            box = self._boxes[channel] = Mailbox(self._lock, self._layer.get_capacity(channel))
        return box

    def _spread(self, group: str, body: bytes, until: float, now: float) -> None:
        """To the members that this process has."""
        with self._lock:
            members = self._groups.get(group, {})
            channels = [channel for channel, ends in members.items() if ends > now]
            full = sum(not self._deliver(channel, body, until, now) for channel in channels)
        if full:
            logger.info("%s of %s channels over capacity in group %s", full, len(channels), group)

    def _sweep(self, now: float) -> None:
        """Forget what no task will ask for any more."""
        if now < self._swept + self._layer.expiry:
            return
        self._swept = now
        with self._lock:
            for channel, box in list(self._boxes.items()):
                box.expire(now)
                if box.idle:
                    del self._boxes[channel]
            ended = [
                (group, channel)
                for group, members in self._groups.items()
                for channel, ends in members.items()
                if ends <= now
            ]
        for group, channel in ended:
            self.discard(group, channel)

    async def receive(self, channel: str) -> bytes:
        try:
            self.read()
        except _LOST as error:
            if not self.lost():
                raise
            raise closed() from error
        with self._lock:
            if self.ended:
                raise closed()
            box = self._box(channel)
        try:
            body: bytes = await box.get(time.monotonic())
        finally:
            with self._lock:
                if box.idle and self._boxes.get(channel) is box:
                    del self._boxes[channel]
        return body

    def consumer(self, topic: str) -> Consumer:
        with self._membership:
            if topic not in self._consumers:
                queue = self.connection.topic(topic).channel(_QUEUE)
                # One at a time: what it took beforehand, no other process would get.
                self._consumers[topic] = queue.consumer(max_in_flight=1)
            return self._consumers[topic]

    def take(self, consumer: Consumer) -> bytes | None:
        """A message that is there, or None."""
        with self._taking:
            try:
                message = consumer.get(timeout=0)
            except Timeout:
                return None
            message.finish()
        return bytes(message.body)

    # ---- groups ----------------------------------------------------------------------------

    def _listen(self, address: str) -> None:
        self.pubsub.on(address, self._came)
        self.pubsub.subscribe(address)

    def _unlisten(self, address: str) -> None:
        self.pubsub.unsubscribe(address)
        self.pubsub.off(address, self._came)

    def add(self, group: str, channel: str) -> None:
        ends = time.monotonic() + self._layer.group_expiry
        with self._membership:
            if group not in self._groups:
                self._listen(self._layer.group_address(group, self.limit))
            with self._lock:
                self._groups.setdefault(group, {})[channel] = ends

    def _answer(self, client: str, request: str) -> None:
        """Tell the process that asked: what it sends to the group from now on comes here."""
        packed = msgpack.packb(("added", request, math.inf, None))
        try:
            self.pubsub.publish(self._layer.address(client), packed)
        except Error as error:  # it asks again whether we live
            logger.warning("channel layer: a process was not told of its member: %s", error)

    def _answered(self, request: str) -> None:
        future = self._asked.pop(request, None)
        if future is not None and future.set_running_or_notify_cancel():
            future.set_result(None)

    async def added_elsewhere(self, request: str, address: str, patience: float) -> None:
        """Until the process at `address` has answered, or is gone."""
        answer = asyncio.wrap_future(self._asked[request])
        ends = time.monotonic() + patience
        try:
            while not (await asyncio.wait([answer], timeout=1))[0]:
                if not self.connection.listeners(address):
                    break
                if time.monotonic() > ends:
                    logger.warning("channel layer: %s did not answer in %s s", address, patience)
                    break
        finally:
            self._asked.pop(request, None)
            answer.cancel()

    def ask(self) -> str:
        """A request that another process is to answer."""
        request = uuid.uuid4().hex
        self._asked[request] = concurrent.futures.Future()
        return request

    def discard(self, group: str, channel: str) -> None:
        with self._membership:
            with self._lock:
                members = self._groups.get(group)
                if members is None or members.pop(channel, None) is None or members:
                    return
                del self._groups[group]
            self._unlisten(self._layer.group_address(group, self.limit))

    def flush(self) -> None:
        with self._membership:
            with self._lock:
                groups = list(self._groups)
                self._groups.clear()
                for box in self._boxes.values():
                    box.expire(float("inf"))
            for group in groups:
                self._unlisten(self._layer.group_address(group, self.limit))


class _Waiting(set[asyncio.Future[None]]):
    """The tasks of one loop that wait for a consumer of the hub."""

    def __init__(self, hub: _Hub) -> None:
        super().__init__()
        self.hub = hub


class PynotifyChannelLayer(BaseChannelLayer):  # type: ignore[misc]
    """A channel layer over a segment, with the extensions `groups` and `flush`.

    `segment` is its name; layers that share it and `prefix` are one.  `expiry`, `group_expiry`,
    `capacity` and `channel_capacity` are those of the specification.  `wakeup` and `options` as for
    `pynotify.connect`.  It may be made before a fork, and used from any number of event loops.

    Process-specific channels and groups are notifications, other channels are topics.  A group has
    its members in the processes that listen to it: those of a killed process are gone with it.
    """

    extensions = ("groups", "flush")

    def __init__(
        self,
        segment: str = "channels",
        *,
        expiry: float = 60,
        group_expiry: float = 86400,
        capacity: int = 100,
        channel_capacity: dict[Any, int] | None = None,
        prefix: str = "asgi",
        wakeup: str | int | None = None,
        **options: Unpack[OpenOptions],
    ) -> None:
        check_name(segment)
        super().__init__(expiry=expiry, capacity=capacity)
        self.channel_capacity = self.compile_capacities(channel_capacity or {})
        self.segment, self.prefix, self.group_expiry = segment, prefix, group_expiry
        self._wakeup, self._options = wakeup, options
        self._hub = PerProcess(lambda: _Hub(self), lambda hub: hub.usable)
        #: Tasks that wait for a consumer's descriptor, by their loop.
        self._waiting: dict[tuple[asyncio.AbstractEventLoop, int], _Waiting] = {}

    # ---- the specification -----------------------------------------------------------------

    async def send(self, channel: str, message: dict[str, Any]) -> None:
        """Send a message to a channel.

        Raises `ChannelFull` when a channel without "!" has `capacity` messages, or the segment no
        room, and `MessageTooLarge`.  A process-specific channel that is full drops it silently.
        """
        assert isinstance(message, dict), "message is not a dict"
        self.require_valid_channel_name(channel)
        assert "__asgi_channel__" not in message
        body = self.serialize(message)
        try:
            if "!" in channel:
                address = self.address(_client_of(channel))
                await self._call(lambda hub: self._publish(hub, address, "send", channel, body))
            else:
                await self._call(lambda hub: self._enqueue(hub, channel, body))
        except (QueueFull, TopicFull, SegmentFull) as error:
            raise ChannelFull(str(error)) from error
        except PayloadTooLong as error:
            raise MessageTooLarge(str(error)) from error

    async def receive(self, channel: str) -> dict[str, Any]:
        """Wait for a message of a channel; each comes to one task.  Cancelling it loses nothing."""
        self.require_valid_channel_name(channel)
        if "!" in channel:
            hub = self._hub.get()
            assert _client_of(channel) == hub.client, "Wrong client prefix"
            return self.deserialize(await hub.receive(channel))
        return self.deserialize(await self._dequeue(self._topic_name(channel)))

    async def new_channel(self, prefix: str = "specific") -> str:
        """A name that no other channel has, for messages to this process."""
        return f"{prefix}.{self._hub.get().client}!{uuid.uuid4().hex}"

    async def group_add(self, group: str, channel: str) -> None:
        """Add a channel to a group, for `group_expiry` seconds or until its process ends.

        A channel of another process is added by that process, whose answer is waited for: it
        gets what is sent to the group afterwards.
        """
        self.require_valid_group_name(group)
        self.require_valid_channel_name(channel)
        await self._call(lambda hub: self._add(hub, group, channel))

    async def _add(self, hub: _Hub, group: str, channel: str) -> None:
        if "!" not in channel:
            hub.pubsub.subscribe(self._member_address(group, channel, hub))
            hub.outside.bump()
        elif _client_of(channel) == hub.client:
            hub.add(group, channel)
        else:
            address = self.address(_client_of(channel))
            if hub.connection.listeners(address):
                request = hub.ask()
                await self._publish(hub, address, "add", group, (channel, hub.client, request))
                await hub.added_elsewhere(request, address, self.expiry)

    async def group_discard(self, group: str, channel: str) -> None:
        """Take a channel out of a group; one that is no member is no error."""
        self.require_valid_group_name(group)
        self.require_valid_channel_name(channel)
        await self._call(lambda hub: self._discard(hub, group, channel))

    async def _discard(self, hub: _Hub, group: str, channel: str) -> None:
        if "!" not in channel:
            hub.pubsub.unsubscribe(self._member_address(group, channel, hub))
        elif _client_of(channel) == hub.client:
            hub.discard(group, channel)
        else:
            address = self.address(_client_of(channel))
            await self._publish(hub, address, "discard", group, channel)

    async def group_send(self, group: str, message: dict[str, Any]) -> None:
        """Send a message to each member of a group; those that are full do not get it."""
        assert isinstance(message, dict), "message is not a dict"
        self.require_valid_group_name(group)
        body = self.serialize(message)
        await self._call(lambda hub: self._spread(hub, group, body))

    async def _spread(self, hub: _Hub, group: str, body: bytes) -> None:
        try:
            await self._publish(hub, self.group_address(group, hub.limit), "group", group, body)
        except QueueFull as error:
            logger.warning("channel layer: not sent to group %s: %s", group, error)
        start = self._members(group)
        for name in hub.connection.channels(start) if hub.outside.value else ():
            try:
                await self._enqueue(hub, name[len(start) :], body)
            except (ChannelFull, TopicFull, SegmentFull):
                logger.info("channel %s over capacity in group %s", name[len(start) :], group)

    async def flush(self) -> None:
        """Empty all channels and groups, those of other processes when they receive it."""
        await self._call(self._flush)

    async def _flush(self, hub: _Hub) -> None:
        hub.flush()
        for name in hub.pubsub.channels:
            if name.startswith(f"{self.prefix}:n:"):
                hub.pubsub.unsubscribe(name)
        await self._publish(hub, self.address("all"), "flush", hub.client, None)
        for name in hub.connection.topics():
            if name.startswith(f"{self.prefix}."):
                hub.connection.topic(name).empty()

    async def close(self) -> None:
        """Free what this process and this event loop have; the next use makes it again."""
        hub = self._hub.take()
        if hub is not None:
            hub.close()

    def serialize(self, message: dict[str, Any]) -> bytes:
        """A message as bytes (msgpack)."""
        packed: bytes = msgpack.packb(message, use_bin_type=True)
        return packed

    def deserialize(self, body: bytes) -> dict[str, Any]:
        """The message that `serialize` made bytes of."""
        message: dict[str, Any] = msgpack.unpackb(body, raw=False)
        return message

    @property
    def client_prefix(self) -> str:
        """What stands before the "!" in the names of this process's channels."""
        return self._hub.get().client

    # ---- names -----------------------------------------------------------------------------

    def address(self, client: str) -> str:
        """Where a process listens, or with "all" each of them."""
        return fitting(f"{self.prefix}:c", client, 63)

    def group_address(self, group: str, limit: int) -> str:
        """Where the processes listen that have members of the group."""
        return fitting(f"{self.prefix}:g", group, limit)

    def _members(self, group: str) -> str:
        """How the names begin that stand for members without "!"."""
        return f"{fitting(f'{self.prefix}:n', group, 48)}/"

    def _member_address(self, group: str, channel: str, hub: _Hub) -> str:
        """Listened to by the processes that have added a channel without "!"; nothing is sent."""
        name = f"{self._members(group)}{channel}"
        if len(name) > hub.limit:
            raise TypeError(
                f"channel {channel!r} is too long for a member of a group: names have at most"
                f" {hub.limit} bytes in segment {self.segment!r}; make it with max_channel_name=255"
            )
        return name

    def _topic_name(self, channel: str) -> str:
        name = f"{self.prefix}.{channel}"
        if len(name) <= _TOPIC_NAME:
            return name
        return fitting(self.prefix, channel, 0).replace("#", ".", 1)

    # ---- what it takes ---------------------------------------------------------------------

    def connect_here(self) -> Any:
        """A connection for this process."""
        return connect_preferring(self.segment, self._wakeup, **self._options)

    async def _call(self, act: Callable[[_Hub], Awaitable[None]]) -> None:
        """Do something with the hub; once more, with another one, when its segment is gone."""
        hub = self._hub.get()
        try:
            await act(hub)
        except _LOST:
            if not hub.lost():
                raise
            await act(self._hub.get())

    async def _dequeue(self, topic: str) -> bytes:
        hub = self._hub.get()
        waited = False
        while True:
            try:
                consumer = hub.consumer(topic)
                body = hub.take(consumer)
            except _LOST as error:
                if not hub.lost():
                    raise
                if waited:
                    raise closed() from error
                hub = self._hub.get()
                continue
            if body is not None:
                return body
            waited = True
            await self._readable(hub, consumer.fileno())

    async def _readable(self, hub: _Hub, descriptor: int) -> None:
        """Wait until it is; each loop watches it once, and for all of its tasks."""
        loop = asyncio.get_running_loop()
        key, future = (loop, descriptor), loop.create_future()
        waiting = self._waiting.setdefault(key, _Waiting(hub))
        if waiting.hub is not hub:  # another descriptor had this number
            self._fail(waiting.hub, loop, descriptor)
            waiting = self._waiting[key] = _Waiting(hub)
        if not waiting:
            try:
                loop.add_reader(descriptor, _wake, waiting)
            except (OSError, ValueError):  # another thread has closed it
                self._waiting.pop(key, None)
                raise closed() from None
        waiting.add(future)
        try:
            if hub.ended:  # before it could be told
                raise closed()
            await future
        finally:
            waiting.discard(future)
            if not waiting and self._waiting.get(key) is waiting:
                del self._waiting[key]
                loop.remove_reader(descriptor)

    def fail_waiting(self, hub: _Hub) -> None:
        """End the waiting for the hub's consumers, whose descriptors are about to go."""
        for loop, descriptor in list(self._waiting):
            if loop is asyncio._get_running_loop():  # noqa: SLF001 - None where there is none
                self._fail(hub, loop, descriptor)
            else:
                with contextlib.suppress(RuntimeError):  # it is closed
                    loop.call_soon_threadsafe(self._fail, hub, loop, descriptor)

    def _fail(self, hub: _Hub, loop: asyncio.AbstractEventLoop, descriptor: int) -> None:
        waiting = self._waiting.get((loop, descriptor))
        if waiting is None or waiting.hub is not hub:
            return
        del self._waiting[loop, descriptor]
        loop.remove_reader(descriptor)
        for future in waiting:
            if not future.done():
                future.set_exception(closed())

    async def _publish(self, hub: _Hub, address: str, kind: str, name: str, body: Any) -> None:
        until = time.monotonic() + self.expiry
        packed = msgpack.packb((kind, name, until, body))
        await _off_loop_if_large(packed, hub.pubsub.publish, address, packed)

    async def _enqueue(self, hub: _Hub, channel: str, body: bytes) -> None:
        await _off_loop_if_large(body, self._put, hub, channel, body)

    def _put(self, hub: _Hub, channel: str, body: bytes) -> None:
        topic = hub.connection.topic(self._topic_name(channel))
        if topic.stats().unfinished >= self.get_capacity(channel):
            raise ChannelFull(channel)
        topic.publish(body, ttl=self.expiry)

    def __str__(self) -> str:
        return f"{type(self).__name__}(segment={self.segment!r})"


def _client_of(channel: str) -> str:
    """The process of a process-specific channel: what stands between the last "." and the "!"."""
    return channel.partition("!")[0].rpartition(".")[2]


def _wake(waiting: set[asyncio.Future[None]]) -> None:
    for future in waiting:
        if not future.done():
            future.set_result(None)


async def _off_loop_if_large(body: bytes, call: Any, *arguments: Any) -> None:
    if len(body) > _LARGE:
        await asyncio.to_thread(call, *arguments)
    else:
        call(*arguments)
