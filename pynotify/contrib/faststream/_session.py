"""The connection of a broker, and what its subscribers receive from."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from faststream.exceptions import IncorrectState

from pynotify._log import logger
from pynotify._types import Gap
from pynotify.contrib._lasting import LOST, Lasting
from pynotify.contrib._names import connect_async_preferring
from pynotify.contrib.faststream._wire import ChannelMessage, TopicMessage
from pynotify.errors import Error, InterfaceError, SegmentUnlinked, Timeout, TopicDeleted
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
        self._lasting = Lasting("FastStream", self._make, self._prepare)
        self._pubsub: AsyncPubSub | None = None
        self._topics: dict[str, AsyncTopic] = {}
        #: Gets each connection that is made.
        self.connected: Callable[[AsyncConnection], None] = lambda _: None

    @property
    def connection(self) -> AsyncConnection:
        """Raises IncorrectState before `connect` and after `close`."""
        if self._lasting.current is None:
            raise IncorrectState(_NOT_CONNECTED)
        return self._lasting.current

    def in_transaction(self) -> bool:
        """Whether the running task has a transaction open."""
        connection = self._lasting.current
        return connection is not None and connection.in_transaction

    async def connect(self) -> AsyncConnection:
        """Connect, in the running loop."""
        return await self._lasting.open()

    async def _make(self) -> AsyncConnection:
        return await connect_async_preferring(self._segment, self._wakeup, **self._options)

    async def _prepare(self, connection: AsyncConnection) -> None:
        # Opened now: the first message may be sent in a transaction, where it cannot be.
        opened = await AsyncPubSub(connection).__aenter__()
        old, self._pubsub = self._pubsub, opened
        self._topics.clear()
        self.connected(connection)
        if old is not None:
            with contextlib.suppress(Error):
                await old.close()

    async def close(self) -> None:
        """Give the connection up."""
        pubsub, self._pubsub = self._pubsub, None
        self._topics.clear()
        try:
            if pubsub is not None:
                await pubsub.close()
        finally:
            await self._lasting.close()

    def is_lost(self, connection: AsyncConnection) -> bool:
        """Whether what failed on it succeeds on another one."""
        return self._lasting.is_lost(connection)

    async def call(self, act: Callable[[AsyncConnection], Awaitable[_T]]) -> _T:
        """Do something with the connection; once more, when its segment was removed.

        Raises IncorrectState.
        """
        if self._lasting.current is None:
            raise IncorrectState(_NOT_CONNECTED)
        return await self._lasting.call(act)

    # ---- sending -------------------------------------------------------------------------

    async def send(self, channel: str, obj: bytes) -> None:
        """Send on a channel."""

        async def publish(_connection: AsyncConnection) -> None:
            if self._pubsub is None:
                raise IncorrectState(_NOT_CONNECTED)
            await self._pubsub.publish(channel, obj)

        await self.call(publish)
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
        async def on(connection: AsyncConnection) -> _T:
            try:
                return await act(self._topic(connection, name))
            except TopicDeleted:  # by `pynotify topics delete`
                self._topics.pop(name, None)
                return await act(self._topic(connection, name))

        return await self.call(on)

    def _topic(self, connection: AsyncConnection, name: str) -> AsyncTopic:
        topic = self._topics.get(name)
        if topic is None:
            topic = self._topics[name] = connection.topic(name, **self._topic_options)
        return topic

    # ---- receiving -----------------------------------------------------------------------

    async def listen(self, channel: str, *, lasting: bool = True) -> Source:
        """What is sent on a channel from now on.

        Not `lasting`: it raises an error when the segment was removed, and else goes on.
        """
        made = _Channel(self, channel, self._max_pending, lasting=lasting)
        await made.open()
        return made

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

        made = _Topic(self, declared, lambda: self._on_topic(declared.topic, open_one))
        await made.open()
        return made


class _Channel:
    """A subscription of one channel.

    It reads whatever its handlers do, since a listener that does not read fills the queue of all
    processes.
    """

    def __init__(self, session: Session, channel: str, max_pending: int, *, lasting: bool) -> None:
        self._session, self._channel, self._lasting = session, channel, lasting
        #: None while there is none: its segment was removed.
        self._pubsub: AsyncPubSub | None = None
        self._connection: AsyncConnection
        #: What was read and not taken yet; an error ends the reading, None everything.
        self._pending: asyncio.Queue[ChannelMessage | Error | None] = asyncio.Queue(max_pending)
        self._reading: asyncio.Task[None]
        self._over = False

    async def open(self) -> None:
        """Subscribe, and start to read."""
        await self._session.call(self._subscribe)
        self._reading = asyncio.create_task(self._read())

    async def _subscribe(self, connection: AsyncConnection) -> None:
        pubsub = AsyncPubSub(connection)
        try:
            await pubsub.subscribe(self._channel)
        except BaseException:
            await pubsub.close()
            raise
        self._connection, self._pubsub = connection, pubsub

    async def _read(self) -> None:
        while not self._over:
            try:
                if self._pubsub is None:
                    await self._session.call(self._subscribe)
                    self._warn_of_loss("reconnected")
                else:
                    await self._read_all(self._pubsub)
            except Error as error:
                gone = self._pubsub is not None and self._session.is_lost(self._connection)
                if gone:
                    with contextlib.suppress(Error):
                        await self._unsubscribe()
                    self._pubsub = None
                if not gone or not self._lasting:
                    self._put(error)
                    return
        await self._unsubscribe()  # it was over while it subscribed again

    async def _unsubscribe(self) -> None:
        """When that fails the subscription is still there, and the next call does it."""
        pubsub = self._pubsub
        if pubsub is not None:
            with contextlib.suppress(SegmentUnlinked, InterfaceError):
                await pubsub.close()
            if self._pubsub is pubsub:
                self._pubsub = None

    async def _read_all(self, pubsub: AsyncPubSub) -> None:
        async for received in pubsub:
            if isinstance(received.obj, Gap):
                self._warn_of_loss(received.obj.reason)
            elif received.channel is not None:
                self._put(ChannelMessage(channel=received.channel, obj=received.obj))

    def _warn_of_loss(self, reason: str) -> None:
        logger.warning("FastStream: messages of %r were lost (%s)", self._channel, reason)

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
        await self._unsubscribe()

    async def close(self) -> None:
        await self.drain()
        await self._reading


class _Topic:
    """A consumer, which is made again when its topic was deleted, or the segment removed."""

    def __init__(
        self, session: Session, declared: TopicSub, make: Callable[[], Awaitable[AsyncConsumer]]
    ) -> None:
        self._session, self._declared, self._make = session, declared, make
        self._making = asyncio.Lock()
        self._consumer: AsyncConsumer | None = None
        self._connection: AsyncConnection
        self._over = False

    async def open(self, instead_of: AsyncConsumer | None = None) -> None:
        """Make the consumer, unless another task has."""
        async with self._making:
            if self._consumer is instead_of and not self._over:
                self._consumer = await self._make()
                self._connection = self._session.connection

    async def _opened_again(self, consumer: AsyncConsumer, error: Exception) -> bool:
        """Whether there is another one now, since that one's topic or segment is gone."""
        lost = isinstance(error, TopicDeleted) or self._session.is_lost(self._connection)
        if lost and not self._over:
            await self.open(consumer)
        return lost

    async def messages(self) -> AsyncGenerator[RawMessage]:
        while not self._over:
            consumer = self._consumer
            assert consumer is not None
            try:
                message = await self._with_others(consumer, await anext(consumer))
            except StopAsyncIteration as error:
                if not await self._opened_again(consumer, error):
                    return
            except (TopicDeleted, *LOST) as error:  # by `pynotify topics delete`, or `rm`
                if not await self._opened_again(consumer, error):
                    raise
            else:
                yield message

    async def take(self, timeout: float) -> RawMessage | None:
        clock = asyncio.get_running_loop().time
        ends = clock() + timeout
        while True:
            consumer = self._consumer
            assert consumer is not None
            try:
                taken = await consumer.get(max(0.0, ends - clock()))
                return await self._with_others(consumer, taken)
            except Timeout:
                return None
            except (TopicDeleted, *LOST) as error:
                if not await self._opened_again(consumer, error):
                    raise

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
