"""What is to be published, as publishers, middlewares and the producer pass it on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from faststream.response import BatchPublishCommand, PublishType, Response

if TYPE_CHECKING:
    from faststream.response import PublishCommand

__all__ = ["PynotifyPublishCommand", "PynotifyResponse"]


class PynotifyResponse(Response):
    """What a handler may return: a body, and how it is published.

    `delay` (seconds before it is delivered) and `ttl` (seconds after which it no longer is) are
    for publishers of topics.
    """

    def __init__(
        self,
        body: Any = None,
        *,
        headers: dict[str, Any] | None = None,
        correlation_id: str | None = None,
        delay: float = 0.0,
        ttl: float | None = None,
    ) -> None:
        super().__init__(body, headers=headers, correlation_id=correlation_id)
        self.delay, self.ttl = delay, ttl

    def as_publish_command(self) -> PynotifyPublishCommand:
        """The command; its publisher says where it goes."""
        return PynotifyPublishCommand(
            self.body,
            headers=self.headers,
            correlation_id=self.correlation_id,
            delay=self.delay,
            ttl=self.ttl,
            _publish_type=PublishType.PUBLISH,
        )


class PynotifyPublishCommand(BatchPublishCommand):
    """A command to publish.  `is_topic`: the destination is a topic, else a channel."""

    def __init__(
        self,
        body: Any = None,
        /,
        *bodies: Any,
        _publish_type: PublishType,
        destination: str = "",
        is_topic: bool = False,
        headers: dict[str, Any] | None = None,
        correlation_id: str | None = None,
        reply_to: str = "",
        delay: float = 0.0,
        ttl: float | None = None,
        timeout: float | None = None,
    ) -> None:
        super().__init__(
            body,
            *bodies,
            _publish_type=_publish_type,
            destination=destination,
            headers=headers,
            correlation_id=correlation_id,
            reply_to=reply_to,
        )
        self.is_topic = is_topic
        self.delay, self.ttl, self.timeout = delay, ttl, timeout

    @classmethod
    def from_cmd(cls, cmd: PublishCommand, *, batch: bool = False) -> PynotifyPublishCommand:
        """Another broker's command, or a plain one, as one of this broker."""
        if isinstance(cmd, PynotifyPublishCommand):
            return cmd
        body, bodies = cls._parse_bodies(cmd.body, batch=batch)
        return cls(
            body,
            *bodies,
            destination=cmd.destination,
            headers=cmd.headers,
            correlation_id=cmd.correlation_id,
            reply_to=cmd.reply_to,
            _publish_type=cmd.publish_type,
        )
