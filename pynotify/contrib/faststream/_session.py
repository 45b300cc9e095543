"""The connection of a broker, and what its subscribers receive from."""

from __future__ import annotations

import asyncio
import contextlib
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from faststream.exceptions import IncorrectState

from pynotify._log import logger
from pynotify._types import Gap
from pynotify.contrib._names import connect_async_preferring
from pynotify.contrib.faststream._wire import ChannelMessage, TopicMessage
from pynotify.errors import Error, InterfaceError, Timeout, TopicDeleted
from pynotify.pubsub import AsyncPubSub

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable

    from pynotify._async_connection import AsyncConnection
    from pynotify._open_options import OpenOptions
    from pynotify.contrib.faststream._declared import TopicSub
    from pynotify.contrib.faststream._wire import RawMessage
    from pynotify.topics import AsyncMessage, AsyncTopic
    from pynotify.topics._async_consumer import AsyncConsumer

_T = TypeVar("_T")

_NOT_CONNECTED = "the broker is not connected: await its `connect()` first"


class Source(Protocol):
    """Where one subscriber's messages come from."""

    def messages(self) -> AsyncGenerator[RawMessage]:
        """Messages as they come, until `drain` or `close`; several tasks may iterate."""

    async def take(self, timeout: float) -> RawMessage | None:
        """The next message, None: there was none for `timeout` seconds."""

    async def drain(self) -> None:
        """Take no more; what was taken can still be answered."""

    async def close(self) -> None:
        """Give up what is not answered."""


class Session:
    """What a broker has of the segment; it is connected in the loop and the process that use it."""

    def __init__(
        self,
        segment: str = "default",
        *,
        durable: bool = False,
        max_pending: int = 65536,
        wakeup: str | int | None = None,
        options: OpenOptions | None = None,
    ) -> None:
        self._max_pending = max_pending
        self._segment, self._wakeup = segment, wakeup
        self._options: OpenOptions = options or {}
        self._topic_options: dict[str, Any] = {"durable": True} if durable else {}
        self._connection: AsyncConnection | None = None
        self._pubsub: AsyncPubSub | None = None
        self._topics: dict[str, AsyncTopic] = {}
        self._opened = AsyncExitStack()

    @property
    def connection(self) -> AsyncConnection:
        """Raises IncorrectState before `connect` and after `close`."""
        if self._connection is None:
            raise IncorrectState(_NOT_CONNECTED)
        return self._connection

    def in_transaction(self) -> bool:
        """Whether the running task has a transaction open."""
        return self._connection is not None and self._connection.in_transaction

    async def connect(self) -> AsyncConnection:
        """Connect, in the running loop."""
        async with AsyncExitStack() as stack:
            connection = await connect_async_preferring(
                self._segment, self._wakeup, **self._options
            )
            stack.push_async_callback(connection.close)
            # Opened now: the first message may be sent in a transaction, where it cannot be.
            self._pubsub = await stack.enter_async_context(AsyncPubSub(connection))
            self._connection = connection
            self._opened = stack.pop_all()
        return connection

    async def close(self) -> None:
        """Give the connection up."""
        self._connection = self._pubsub = None
        self._topics.clear()
        await self._opened.aclose()

    # ---- sending -------------------------------------------------------------------------

    async def send(self, channel: str, obj: bytes) -> None:
        """Send on a channel."""
        if self._pubsub is None:
            raise IncorrectState(_NOT_CONNECTED)
        await self._pubsub.publish(channel, obj)
        # It goes without waiting: a program that sends in a loop would not hear itself meanwhile.
        await asyncio.sleep(0)

    async def publish(
        self, topic: str, body: bytes, headers: dict[str, str], delay: float, ttl: float | None
    ) -> str:
        """Publish to a topic; the message's id."""
        return await self._on_topic(
            topic, lambda made: made.publish(body, headers=headers, delay=delay, ttl=ttl)
        )

    async def publish_batch(
        self,
        topic: str,
        messages: list[tuple[bytes, dict[str, str]]],
        delay: float,
        ttl: float | None,
    ) -> list[str]:
        """Publish all of them or none; their ids."""

        async def publish(made: AsyncTopic) -> list[str]:
            headers = messages[0][1] if messages else {}
            if all(each == headers for _, each in messages):
                bodies = [body for body, _ in messages]
                return list(await made.publish_many(bodies, headers=headers, delay=delay, ttl=ttl))
            ids = []
            async with self.connection.transaction():
                for body, each in messages:
                    ids.append(await made.publish(body, headers=each, delay=delay, ttl=ttl))
            return ids

        return await self._on_topic(topic, publish)

    async def _on_topic(self, name: str, act: Callable[[AsyncTopic], Awaitable[_T]]) -> _T:
        try:
            return await act(self._topic(name))
        except TopicDeleted:  # by `pynotify topics delete`
            self._topics.pop(name, None)
            return await act(self._topic(name))

    def _topic(self, name: str) -> AsyncTopic:
        topic = self._topics.get(name)
        if topic is None:
            topic = self._topics[name] = self.connection.topic(name, **self._topic_options)
        return topic

    # ---- receiving -----------------------------------------------------------------------

    async def listen(self, channel: str) -> Source:
        """What is sent on a channel from now on."""
        pubsub = AsyncPubSub(self.connection)
        try:
            await pubsub.subscribe(channel)
        except BaseException:
            await pubsub.close()
            raise
        return _Channel(pubsub, self._max_pending)

    async def consume(self, declared: TopicSub, max_in_flight: int) -> Source:
        """What a consumer of a topic's channel gets."""

        async def open_one(topic: AsyncTopic) -> AsyncConsumer:
            return await topic.channel(declared.channel).consumer(
                max_in_flight=max_in_flight,
                msg_timeout=declared.msg_timeout,
                max_msg_timeout=declared.msg_timeout,
                max_attempts=declared.max_attempts,
                dead_letter=declared.dead_letter,
            )

        made = _Topic(declared, lambda: self._on_topic(declared.topic, open_one))
        await made.open()
        return made


class _Channel:
    """A subscription of one channel.

    It reads whatever its handlers do, since a listener that does not read fills the queue of all
    processes.
    """

    def __init__(self, pubsub: AsyncPubSub, max_pending: int) -> None:
        self._pubsub = pubsub
        #: What was read and not taken yet; an error ends the reading, None everything.
        self._pending: asyncio.Queue[ChannelMessage | Error | None] = asyncio.Queue(max_pending)
        self._reading = asyncio.create_task(self._read())
        self._over = False

    async def _read(self) -> None:
        try:
            async for received in self._pubsub:
                if isinstance(received.obj, Gap):
                    logger.warning("FastStream: messages were lost (%s)", received.obj.reason)
                elif received.channel is not None:
                    self._put(ChannelMessage(channel=received.channel, obj=received.obj))
        except Error as error:
            self._put(error)

    def _put(self, item: ChannelMessage | Error | None) -> None:
        if self._pending.full():
            dropped = self._pending.get_nowait()
            if isinstance(dropped, ChannelMessage) and item is not None:
                logger.warning(
                    "FastStream: a message of channel %r was dropped: %d wait for its handler",
                    dropped.channel,
                    self._pending.maxsize,
                )
        self._pending.put_nowait(item)

    async def messages(self) -> AsyncGenerator[RawMessage]:
        while (message := await self._next()) is not None:
            yield message

    async def _next(self) -> ChannelMessage | None:
        if self._over:
            return None
        item = await self._pending.get()
        if isinstance(item, Error):
            self._reading = asyncio.create_task(self._read())
            raise item
        if item is None or self._over:
            self._put(None)  # for the other tasks
            return None
        return item

    async def take(self, timeout: float) -> RawMessage | None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                return await self._next()
        return None

    async def drain(self) -> None:
        self._over = True
        self._put(None)
        await self._pubsub.close()

    async def close(self) -> None:
        await self.drain()
        await self._reading


class _Topic:
    """A consumer, which is made again when its topic was deleted."""

    def __init__(self, declared: TopicSub, make: Callable[[], Awaitable[AsyncConsumer]]) -> None:
        self._declared, self._make = declared, make
        self._making = asyncio.Lock()
        self._consumer: AsyncConsumer | None = None
        self._over = False

    async def open(self, instead_of: AsyncConsumer | None = None) -> None:
        """Make the consumer, unless another task has."""
        async with self._making:
            if self._consumer is instead_of and not self._over:
                self._consumer = await self._make()

    async def messages(self) -> AsyncGenerator[RawMessage]:
        while not self._over:
            consumer = self._consumer
            assert consumer is not None
            try:
                message = await self._with_others(consumer, await anext(consumer))
            except StopAsyncIteration:
                return
            except TopicDeleted:  # by `pynotify topics delete`
                await self.open(consumer)
            else:
                yield message

    async def take(self, timeout: float) -> RawMessage | None:
        assert self._consumer is not None
        try:
            taken = await self._consumer.get(timeout)
        except Timeout:
            return None
        return await self._with_others(self._consumer, taken)

    async def _with_others(self, consumer: AsyncConsumer, taken: AsyncMessage) -> RawMessage:
        """The message; of a batch with what else is there."""
        if not self._declared.batch:
            return self._made(taken)
        batch = [self._made(taken)]
        with contextlib.suppress(Timeout, InterfaceError):  # the second: it is drained
            while len(batch) < self._declared.max_records:
                batch.append(self._made(await consumer.get(0)))
        return batch

    def _made(self, taken: AsyncMessage) -> TopicMessage:
        return TopicMessage(
            topic=self._declared.topic, body=taken.body, headers=taken.headers, taken=taken
        )

    async def drain(self) -> None:
        self._over = True
        if self._consumer is not None:
            with contextlib.suppress(Error):  # its topic was deleted, or `close` finds it as well
                await self._consumer.drain()

    async def close(self) -> None:
        self._over = True
        if self._consumer is not None:
            await self._consumer.close()
