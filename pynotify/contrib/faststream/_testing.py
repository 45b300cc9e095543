"""A broker in memory, for the tests of applications."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar
from unittest.mock import MagicMock

from faststream._internal.endpoint.utils import ParserComposition
from faststream._internal.parser import DefaultCodec
from faststream._internal.producer import ProducerProto
from faststream._internal.testing.broker import TestBroker, change_producer
from faststream.exceptions import SubscriberNotFound

from pynotify.contrib.faststream._broker import PynotifyBroker
from pynotify.contrib.faststream._command import PynotifyPublishCommand
from pynotify.contrib.faststream._declared import TopicSub
from pynotify.contrib.faststream._message import Parser
from pynotify.contrib.faststream._producer import Encoder
from pynotify.contrib.faststream._session import Session
from pynotify.contrib.faststream._subscriber import Subscriber
from pynotify.contrib.faststream._wire import (
    ChannelMessage,
    RawMessage,
    TopicMessage,
    for_channel,
    for_topic,
)

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterator, Sequence

    from faststream._internal.types import AsyncCallable

    from pynotify.contrib.faststream._publisher import Publisher
    from pynotify.contrib.faststream._session import Source

__all__ = ["FakeProducer", "TestPynotifyBroker"]

_Entered = TypeVar("_Entered")


class TestPynotifyBroker(TestBroker[PynotifyBroker, Any], broker=PynotifyBroker):
    """`async with TestPynotifyBroker(broker) as broker`: what is published is handled at once.

    There is no segment, and what a handler raises comes out of `publish`.  A topic's message goes
    to one subscriber of each of its channels.  `with_real=True` leaves the broker as it is.
    """

    @contextmanager
    def _patch_producer(self, broker: PynotifyBroker) -> Iterator[None]:
        config = broker.config.broker_config
        session, config.session = config.session, _FakeSession()
        try:
            with change_producer(config, FakeProducer(broker, self.brokers)):
                yield
        finally:
            config.session = session

    async def _fake_connect(self, broker: PynotifyBroker, *args: Any, **options: Any) -> Any:
        return MagicMock()

    def create_publisher_fake_subscriber(
        self, broker: PynotifyBroker, publisher: Publisher
    ) -> tuple[Subscriber, bool]:
        """The subscriber that a publisher's messages go to, and whether it is the program's."""
        for subscriber in _subscribers(self.brokers):
            if _hears(subscriber, publisher.destination, publisher.is_topic):
                return subscriber, True
        if publisher.is_topic:
            return broker.subscriber(topic=publisher.destination, persistent=False), False
        return broker.subscriber(publisher.destination, persistent=False), False


def _subscribers(brokers: Sequence[PynotifyBroker]) -> list[Subscriber]:
    found = (each for broker in brokers for each in broker.subscribers)
    return [each for each in found if isinstance(each, Subscriber)]


def _hears(subscriber: Subscriber, destination: str, is_topic: bool) -> bool:
    source = subscriber.source
    if isinstance(source, TopicSub):
        return is_topic and source.topic == destination
    return not is_topic and source == destination


class FakeProducer(Encoder, ProducerProto[PynotifyPublishCommand]):
    """Calls the subscribers of the brokers."""

    def __init__(self, broker: PynotifyBroker, brokers: Sequence[PynotifyBroker]) -> None:
        own, config = Parser(), broker.config
        self._brokers = brokers
        self._parser: AsyncCallable = ParserComposition(config.broker_parser, own.parse_message)
        self._decoder: AsyncCallable = ParserComposition(config.broker_decoder, own.decode_message)
        self.codec = config.broker_codec or DefaultCodec()
        self.serializer = config.fd_config._serializer  # noqa: SLF001

    async def publish(self, cmd: PynotifyPublishCommand) -> str | None:
        """Have each subscriber handle the message.  Raises what a handler raises."""
        body, headers = await self.encoded(cmd, cmd.body)
        for subscriber in self._hearing(cmd):
            await subscriber.process_message(_raw(cmd, body, headers, subscriber))
        return _ID if cmd.is_topic else None

    async def publish_batch(self, cmd: PynotifyPublishCommand) -> list[str]:
        """Have each subscriber handle the messages, one after the other or as one batch."""
        encoded = await self.encoded_batch(cmd)
        for subscriber in self._hearing(cmd):
            raws = [_raw(cmd, *each, subscriber) for each in encoded]
            batch = [one for raw in raws if isinstance(raw, list) for one in raw]
            for raw in [batch] if batch else raws:
                await subscriber.process_message(raw)
        return [_ID for _ in encoded]

    async def request(self, cmd: PynotifyPublishCommand) -> RawMessage:
        """What the first subscriber answers.  Raises SubscriberNotFound, TimeoutError."""
        body, headers = await self.encoded(cmd, cmd.body)
        for subscriber in self._hearing(cmd):
            async with asyncio.timeout(cmd.timeout):
                result = await subscriber.process_message(_raw(cmd, body, headers, subscriber))
            answer = PynotifyPublishCommand.from_cmd(result.as_publish_command())
            answered = await self.encoded(answer, answer.body)
            return ChannelMessage(channel=cmd.destination, obj=for_channel(*answered))
        raise SubscriberNotFound(f"nothing subscribes to {cmd.destination!r}")

    def _hearing(self, cmd: PynotifyPublishCommand) -> list[Subscriber]:
        """The subscribers of a channel; of a topic, one for each of its channels."""
        found = [
            each
            for each in _subscribers(self._brokers)
            if _hears(each, cmd.destination, cmd.is_topic)
        ]
        if not cmd.is_topic:
            return found
        by_channel: dict[str, Subscriber] = {}
        for each in found:
            assert isinstance(each.source, TopicSub)
            by_channel.setdefault(each.source.channel, each)
        return list(by_channel.values())


_ID = "0" * 16


def _raw(
    cmd: PynotifyPublishCommand, body: bytes, headers: dict[str, str], subscriber: Subscriber
) -> RawMessage:
    source = subscriber.source
    if isinstance(source, str):
        return ChannelMessage(channel=source, obj=for_channel(body, headers))
    data, given = for_topic(body, headers)
    message = TopicMessage(topic=cmd.destination, body=data, headers=given)
    return [message] if source.batch else message


class _FakeSession(Session):
    """For subscribers that are started under a test broker."""

    async def listen(self, channel: str, *, lasting: bool = True) -> Source:
        """Nothing comes."""
        return _Silence()

    async def consume(self, declared: TopicSub, max_in_flight: int) -> Source:
        """Nothing comes."""
        return _Silence()


class _Silence:
    """A source of no messages."""

    def __init__(self) -> None:
        self._over = asyncio.Event()

    async def messages(self) -> AsyncGenerator[RawMessage]:
        await self._over.wait()
        while not self._over.is_set():
            yield []

    async def take(self, timeout: float) -> RawMessage | None:
        return None

    async def drain(self) -> None:
        self._over.set()

    async def close(self) -> None:
        self._over.set()
