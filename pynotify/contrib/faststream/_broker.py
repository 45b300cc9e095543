"""The broker."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, cast

from fast_depends import dependency_provider
from faststream import AckPolicy, ContextRepo
from faststream._internal.broker import BrokerUsecase
from faststream._internal.constants import EMPTY
from faststream._internal.di import FastDependsConfig
from faststream.message import gen_cor_id
from faststream.response import PublishType
from faststream.specification.schema import BrokerSpec

from pynotify._async_connection import AsyncConnection
from pynotify._segments import check_name
from pynotify.contrib.faststream._command import PynotifyPublishCommand
from pynotify.contrib.faststream._config import PynotifyBrokerConfig, logger_state
from pynotify.contrib.faststream._declared import destination_of
from pynotify.contrib.faststream._producer import PynotifyProducer
from pynotify.contrib.faststream._registrator import PynotifyRegistrator
from pynotify.contrib.faststream._session import Session
from pynotify.contrib.faststream._wire import RawMessage
from pynotify.errors import Error

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from types import TracebackType
    from typing import Unpack

    from fast_depends import Provider
    from fast_depends.dependencies import Dependant
    from fast_depends.library.serializer import SerializerProto
    from faststream._internal.basic_types import LoggerProto, SendableMessage
    from faststream._internal.parser import CodecProto
    from faststream._internal.types import BrokerMiddleware, CustomCallable
    from faststream.specification.schema.extra import Tag, TagDict

    from pynotify._open_options import OpenOptions
    from pynotify.contrib.faststream._message import PynotifyMessage

__all__ = ["PynotifyBroker"]

_PING_S = 5.0
#: A name that the segment is asked about; nothing is sent there.
_PINGED = "faststream.ping"


class PynotifyBroker(
    PynotifyRegistrator, BrokerUsecase[RawMessage, AsyncConnection, PynotifyBrokerConfig]
):
    """A broker on a segment.  It connects in the loop and the process that start it.

    `durable`: the messages of topics survive a reboot; it needs `data_dir`.  `max_pending`:
    messages of a channel that may wait in the process for a subscriber's handlers; then the oldest
    is dropped, which is logged.  `graceful_timeout`: seconds for which `stop` waits for handlers.
    `wakeup` and `options` as of `pynotify.connect`.  The further ones are those of FastStream's
    other brokers.
    """

    def __init__(
        self,
        segment: str = "default",
        *,
        durable: bool = False,
        max_pending: int = 65536,
        graceful_timeout: float | None = 15.0,
        ack_policy: AckPolicy = EMPTY,
        parser: CustomCallable | None = None,
        decoder: CustomCallable | None = None,
        codec: CodecProto | None = None,
        dependencies: Sequence[Dependant] = (),
        middlewares: Sequence[BrokerMiddleware[Any]] = (),
        routers: Iterable[PynotifyRegistrator] = (),
        id_generator: Callable[[], str] = gen_cor_id,
        logger: LoggerProto | None = EMPTY,
        log_level: int = logging.INFO,
        apply_types: bool = True,
        serializer: SerializerProto | None = EMPTY,
        provider: Provider | None = None,
        context: ContextRepo | None = None,
        description: str | None = None,
        tags: Iterable[Tag | TagDict] = (),
        wakeup: str | int | None = None,
        **options: Unpack[OpenOptions],
    ) -> None:
        check_name(segment)
        session = Session(
            segment, durable=durable, max_pending=max_pending, wakeup=wakeup, options=options
        )
        super().__init__(
            routers=routers,
            config=PynotifyBrokerConfig(
                session=session,
                producer=PynotifyProducer(session, parser, decoder),
                broker_middlewares=middlewares,
                broker_parser=parser,
                broker_decoder=decoder,
                broker_codec=codec,
                broker_dependencies=dependencies,
                graceful_timeout=graceful_timeout,
                ack_policy=ack_policy,
                id_generator=id_generator,
                logger=logger_state(logger, log_level),
                fd_config=FastDependsConfig(
                    use_fastdepends=apply_types,
                    serializer=serializer,
                    provider=provider or dependency_provider,
                    context=context or ContextRepo(),
                ),
                extra_context={"broker": self},
            ),
            specification=BrokerSpec(
                url=[f"pynotify://localhost/{segment}"],
                protocol="pynotify",
                protocol_version="1",
                description=description,
                tags=tags,
                security=None,
            ),
        )

        session.connected = self._connected_again

    def _connected_again(self, connection: AsyncConnection) -> None:
        """The segment was removed; handlers get the connection to the new one."""
        if self._connection is not None:
            self._connection = connection

    # ---- its life ------------------------------------------------------------------------

    async def _connect(self) -> AsyncConnection:
        config = self.config.broker_config
        connection = await config.session.connect()
        # What FastStream's own brokers do; there is no public name for it.
        serializer = config.fd_config._serializer  # noqa: SLF001
        cast("PynotifyProducer", config.producer).connect(serializer, config.broker_codec)
        return connection

    async def start(self) -> None:
        """Connect, and start the subscribers."""
        await self.connect()
        await super().start()

    async def stop(
        self,
        exc_type: type[BaseException] | None = None,
        exc_val: BaseException | None = None,
        exc_tb: TracebackType | None = None,
    ) -> None:
        """Stop the subscribers, and give the connection up.

        What is not answered by then goes to other processes.
        """
        try:
            await super().stop(exc_type, exc_val, exc_tb)
        finally:
            self._connection = None
            await self.config.broker_config.session.close()

    async def ping(self, timeout: float | None = None) -> bool:
        """Whether it is connected, and the segment answers within `timeout` seconds (None: 5).

        A segment that was removed is made again.
        """
        if self._connection is None or self._connection.closed:
            return False
        session = self.config.broker_config.session
        try:
            async with asyncio.timeout(_PING_S if timeout is None else timeout):
                await session.call(lambda connection: connection.listeners(_PINGED))
        except (Error, TimeoutError):
            return False
        return True

    # ---- publishing ----------------------------------------------------------------------

    async def publish(
        self,
        message: SendableMessage = None,
        channel: str | None = None,
        *,
        topic: str | None = None,
        headers: dict[str, Any] | None = None,
        correlation_id: str | None = None,
        reply_to: str = "",
        delay: float = 0.0,
        ttl: float | None = None,
    ) -> str | None:
        """Publish a message: the id of a topic's message, None for a channel.

        `reply_to`: the channel to which a handler's result is sent.  `delay`: seconds before it is
        delivered, `ttl`: seconds after which it no longer is; both for topics alone.  Inside a
        transaction of the broker's connection it is published with the commit.  Raises SetupError
        unless one of `channel` and `topic` is given, `pynotify.QueueFull`, `pynotify.TopicFull`,
        `pynotify.PayloadTooLong`.
        """
        command = self._command(
            (message,),
            channel,
            topic,
            _publish_type=PublishType.PUBLISH,
            headers=headers,
            correlation_id=correlation_id,
            reply_to=reply_to,
            delay=delay,
            ttl=ttl,
        )
        published: str | None = await self._basic_publish(command, producer=self.config.producer)
        return published

    async def publish_batch(  # type: ignore[override]
        self,
        *messages: SendableMessage,
        topic: str,
        headers: dict[str, Any] | None = None,
        correlation_id: str | None = None,
        reply_to: str = "",
        delay: float = 0.0,
        ttl: float | None = None,
    ) -> list[str]:
        """Publish several messages to a topic, all or none, and return their ids.

        Arguments and errors are those of `publish`.
        """
        command = self._command(
            messages,
            None,
            topic,
            _publish_type=PublishType.PUBLISH,
            headers=headers,
            correlation_id=correlation_id,
            reply_to=reply_to,
            delay=delay,
            ttl=ttl,
        )
        published: list[str] = await self._basic_publish_batch(
            command, producer=self.config.producer
        )
        return published

    async def request(  # type: ignore[override]
        self,
        message: SendableMessage = None,
        channel: str | None = None,
        *,
        topic: str | None = None,
        headers: dict[str, Any] | None = None,
        correlation_id: str | None = None,
        timeout: float | None = 30.0,
    ) -> PynotifyMessage:
        """Publish a message, and return what a handler answers.

        Raises TimeoutError when nothing comes within `timeout` seconds (None: no limit),
        `pynotify.ActiveTransaction` in a transaction, and what `publish` raises.
        """
        command = self._command(
            (message,),
            channel,
            topic,
            _publish_type=PublishType.REQUEST,
            headers=headers,
            correlation_id=correlation_id,
            timeout=timeout,
        )
        reply: PynotifyMessage = await self._basic_request(command, producer=self.config.producer)
        return reply

    def _command(
        self,
        messages: tuple[SendableMessage, ...],
        channel: str | None,
        topic: str | None,
        *,
        correlation_id: str | None,
        **options: Any,
    ) -> PynotifyPublishCommand:
        destination, is_topic = destination_of(channel, topic)
        return PynotifyPublishCommand(
            *messages,
            destination=destination,
            is_topic=is_topic,
            correlation_id=correlation_id or self.config.id_generator(),
            **options,
        )
