"""Publishing and requesting, below FastStream's middlewares."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from faststream._internal.endpoint.utils import ParserComposition
from faststream._internal.parser import BatchCodecProto, DefaultCodec
from faststream._internal.producer import ProducerProto
from faststream.exceptions import SetupError

from pynotify.contrib.faststream._command import PynotifyPublishCommand
from pynotify.contrib.faststream._message import Parser
from pynotify.contrib.faststream._wire import (
    CONTENT_TYPE,
    CORRELATION_ID,
    REPLY_TO,
    for_channel,
    for_topic,
)

if TYPE_CHECKING:
    from fast_depends.library.serializer import SerializerProto
    from faststream._internal.parser import CodecProto
    from faststream._internal.types import AsyncCallable, CustomCallable

    from pynotify.contrib.faststream._session import Session
    from pynotify.contrib.faststream._wire import RawMessage

_REPLIES = "faststream.reply."


class Encoder:
    """A command as bodies and headers; what the producers have in common."""

    codec: CodecProto
    serializer: SerializerProto | None = None

    async def encoded(self, cmd: PynotifyPublishCommand, body: Any) -> tuple[bytes, dict[str, str]]:
        """A body as bytes, and its headers, all of them str.  Raises SetupError."""
        return self._with_headers(cmd, *await self.codec.encode(body, self.serializer))

    async def encoded_batch(
        self, cmd: PynotifyPublishCommand
    ) -> list[tuple[bytes, dict[str, str]]]:
        """The same of each body of a batch."""
        if isinstance(self.codec, BatchCodecProto):
            encoded = await self.codec.encode_batch(cmd.batch_bodies, self.serializer)
            return [self._with_headers(cmd, *each) for each in encoded]
        return [await self.encoded(cmd, body) for body in cmd.batch_bodies]

    def _with_headers(
        self, cmd: PynotifyPublishCommand, data: bytes, content_type: str | None
    ) -> tuple[bytes, dict[str, str]]:
        if not cmd.is_topic and (cmd.delay or cmd.ttl is not None):
            raise SetupError("delay and ttl are for topics: a channel keeps nothing")
        headers = {name: str(value) for name, value in cmd.headers.items()}
        if content_type:
            headers.setdefault(CONTENT_TYPE, content_type)
        if cmd.reply_to:
            headers[REPLY_TO] = cmd.reply_to
        if cmd.correlation_id:
            headers[CORRELATION_ID] = cmd.correlation_id
        return data, headers


class PynotifyProducer(Encoder, ProducerProto[PynotifyPublishCommand]):
    """Publishes over a broker's session."""

    def __init__(
        self, session: Session, parser: CustomCallable | None, decoder: CustomCallable | None
    ) -> None:
        own = Parser(session.in_transaction)
        self._session = session
        self._parser: AsyncCallable = ParserComposition(parser, own.parse_message)
        self._decoder: AsyncCallable = ParserComposition(decoder, own.decode_message)
        self.codec = DefaultCodec()

    def connect(self, serializer: SerializerProto | None, codec: CodecProto | None) -> None:
        """What bodies are encoded with from now on."""
        self.serializer = serializer
        self.codec = codec or DefaultCodec()

    async def publish(self, cmd: PynotifyPublishCommand) -> str | None:
        """Publish; the id of a topic's message, None for a channel."""
        body, headers = await self.encoded(cmd, cmd.body)
        if not cmd.is_topic:
            await self._session.send(cmd.destination, for_channel(body, headers))
            return None
        return await self._session.publish(
            cmd.destination, *for_topic(body, headers), cmd.delay, cmd.ttl
        )

    async def publish_batch(self, cmd: PynotifyPublishCommand) -> list[str]:
        """Publish all bodies to a topic, or none; their ids."""
        messages = [for_topic(*each) for each in await self.encoded_batch(cmd)]
        return await self._session.publish_batch(cmd.destination, messages, cmd.delay, cmd.ttl)

    async def request(self, cmd: PynotifyPublishCommand) -> RawMessage:
        """Publish, and wait for what comes on a channel made for the reply.

        Raises TimeoutError.
        """
        cmd.reply_to = f"{_REPLIES}{uuid4().hex}"
        async with asyncio.timeout(cmd.timeout):
            replies = await self._session.listen(cmd.reply_to, lasting=False)
            try:
                await self.publish(cmd)
                async with aclosing(replies.messages()) as messages:
                    return await anext(messages)
            finally:
                await replies.close()
