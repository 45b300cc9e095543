"""Publishers of one channel or topic."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from faststream._internal.endpoint.publisher import PublisherSpecification, PublisherUsecase
from faststream._internal.endpoint.publisher.fake import FakePublisher
from faststream.response import PublishType
from faststream.specification.asyncapi.utils import resolve_payloads
from faststream.specification.schema import Message, Operation, PublisherSpec

from pynotify.contrib.faststream._command import PynotifyPublishCommand
from pynotify.contrib.faststream._config import (
    PynotifyBrokerConfig,
    PynotifyPublisherConfig,
    PynotifyPublisherSpecificationConfig,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from faststream._internal.basic_types import SendableMessage
    from faststream._internal.producer import ProducerProto
    from faststream._internal.types import PublisherMiddleware
    from faststream.response import PublishCommand

    from pynotify.contrib.faststream._message import PynotifyMessage

__all__ = ["Publisher", "ReplyPublisher"]


class Specification(
    PublisherSpecification[PynotifyBrokerConfig, PynotifyPublisherSpecificationConfig]
):
    """A publisher in AsyncAPI."""

    @property
    def address(self) -> str:
        """The channel or topic, with the prefixes of routers."""
        return f"{self._outer_config.prefix}{self.config.destination}"

    @property
    def name(self) -> str:
        """The title, or what it publishes to."""
        return self.config.title_ or f"{self.address}:Publisher"

    def get_schema(self) -> dict[str, PublisherSpec]:
        """The schema under its name."""
        message = Message(
            title=f"{self.name}:Message",
            payload=resolve_payloads(self.get_payloads(), "Publisher"),
        )
        return {
            self.name: PublisherSpec(
                address=self.address,
                description=self.config.description_,
                operation=Operation(message=message, bindings=None),
                bindings=None,
            )
        }


class Publisher(PublisherUsecase):
    """Made by `broker.publisher`: a decorator of handlers, and a way to publish."""

    _outer_config: PynotifyBrokerConfig

    def __init__(self, config: PynotifyPublisherConfig, specification: Specification) -> None:
        super().__init__(config, cast("PublisherSpecification", specification))
        self._name, self.is_topic = config.destination, config.is_topic
        self.headers, self.reply_to = config.headers, config.reply_to

    @property
    def destination(self) -> str:
        """The channel or topic, with the prefixes of routers."""
        return f"{self._outer_config.prefix}{self._name}"

    async def publish(
        self,
        message: SendableMessage = None,
        *,
        headers: dict[str, Any] | None = None,
        correlation_id: str | None = None,
        reply_to: str = "",
        delay: float = 0.0,
        ttl: float | None = None,
    ) -> str | None:
        """Publish a message: the id of a topic's message, None for a channel.

        `headers` beside those of the publisher; `delay`, `ttl` as of `PynotifyBroker.publish`.
        """
        command = self._command(
            message,
            _publish_type=PublishType.PUBLISH,
            headers=headers,
            correlation_id=correlation_id,
            reply_to=reply_to or self.reply_to,
            delay=delay,
            ttl=ttl,
        )
        published: str | None = await self._basic_publish(
            command, producer=self._outer_config.producer, _extra_middlewares=()
        )
        return published

    async def request(
        self,
        message: SendableMessage = None,
        *,
        headers: dict[str, Any] | None = None,
        correlation_id: str | None = None,
        timeout: float | None = 30.0,
    ) -> PynotifyMessage:
        """Publish a message and return the reply, as of `PynotifyBroker.request`."""
        command = self._command(
            message,
            _publish_type=PublishType.REQUEST,
            headers=headers,
            correlation_id=correlation_id,
            timeout=timeout,
        )
        reply: PynotifyMessage = await self._basic_request(
            command, producer=self._outer_config.producer
        )
        return reply

    def _command(
        self,
        message: SendableMessage,
        *,
        headers: dict[str, Any] | None,
        correlation_id: str | None,
        **options: Any,
    ) -> PynotifyPublishCommand:
        return PynotifyPublishCommand(
            message,
            destination=self.destination,
            is_topic=self.is_topic,
            headers={**self.headers, **(headers or {})},
            correlation_id=correlation_id or self._outer_config.id_generator(),
            **options,
        )

    async def _publish(
        self, cmd: PublishCommand, *, _extra_middlewares: Iterable[PublisherMiddleware]
    ) -> None:
        """What a handler returned."""
        command = PynotifyPublishCommand.from_cmd(cmd)
        command.destination, command.is_topic = self.destination, self.is_topic
        command.add_headers(self.headers, override=False)
        command.reply_to = command.reply_to or self.reply_to
        await self._basic_publish(
            command, producer=self._outer_config.producer, _extra_middlewares=_extra_middlewares
        )


class ReplyPublisher(FakePublisher):
    """Sends what a handler returned on the channel that its message named."""

    def __init__(self, producer: ProducerProto[Any], channel: str) -> None:
        super().__init__(producer=producer)
        self._channel = channel

    def patch_command(self, cmd: PublishCommand) -> PynotifyPublishCommand:
        """The command as one to the channel."""
        command = PynotifyPublishCommand.from_cmd(super().patch_command(cmd))
        command.destination, command.is_topic = self._channel, False
        return command
