"""FastStream's traces and metrics of OpenTelemetry, of `PynotifyBroker`; it needs its SDK.

```
broker = PynotifyBroker("app", middlewares=[PynotifyTelemetryMiddleware()])
```

The context of a trace goes in the headers of messages, also of topics, where
`pynotify.contrib.opentelemetry` takes it up in workers without FastStream.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from faststream.opentelemetry import TelemetrySettingsProvider
from faststream.opentelemetry.consts import MESSAGING_DESTINATION_PUBLISH_NAME
from faststream.opentelemetry.middleware import TelemetryMiddleware
from opentelemetry.semconv.trace import SpanAttributes

from pynotify.contrib.faststream._command import PynotifyPublishCommand
from pynotify.contrib.faststream._wire import RawMessage, size_of, source_of

if TYPE_CHECKING:
    from faststream.message import StreamMessage
    from opentelemetry.metrics import Meter, MeterProvider
    from opentelemetry.trace import TracerProvider

__all__ = ["PynotifyTelemetryMiddleware"]


class _Settings(TelemetrySettingsProvider[RawMessage, PynotifyPublishCommand]):
    """What spans are called, and their attributes."""

    messaging_system = "pynotify"

    def get_consume_attrs_from_message(self, msg: StreamMessage[RawMessage]) -> dict[str, Any]:
        """Attributes of a message that has come."""
        raw = msg.raw_message
        attributes = {
            SpanAttributes.MESSAGING_SYSTEM: self.messaging_system,
            SpanAttributes.MESSAGING_MESSAGE_ID: msg.message_id,
            SpanAttributes.MESSAGING_MESSAGE_CONVERSATION_ID: msg.correlation_id,
            SpanAttributes.MESSAGING_MESSAGE_PAYLOAD_SIZE_BYTES: size_of(msg.body),
            MESSAGING_DESTINATION_PUBLISH_NAME: source_of(raw),
        }
        if isinstance(raw, list):
            attributes[SpanAttributes.MESSAGING_BATCH_MESSAGE_COUNT] = len(raw)
        return attributes

    def get_consume_destination_name(self, msg: StreamMessage[RawMessage]) -> str:
        """Where a message that has come was published."""
        return source_of(msg.raw_message)

    def get_publish_attrs_from_cmd(self, cmd: PynotifyPublishCommand) -> dict[str, Any]:
        """Attributes of a message that is published."""
        return {
            SpanAttributes.MESSAGING_SYSTEM: self.messaging_system,
            SpanAttributes.MESSAGING_DESTINATION_NAME: cmd.destination,
            SpanAttributes.MESSAGING_MESSAGE_CONVERSATION_ID: cmd.correlation_id,
        }

    def get_publish_destination_name(self, cmd: PynotifyPublishCommand) -> str:
        """Where a message is published."""
        return cmd.destination


class PynotifyTelemetryMiddleware(TelemetryMiddleware[PynotifyPublishCommand]):
    """One trace from the publisher to the handler, and on to what that publishes.

    The arguments are those of FastStream's other brokers; without them the global providers of
    OpenTelemetry are used.
    """

    def __init__(
        self,
        *,
        tracer_provider: TracerProvider | None = None,
        meter_provider: MeterProvider | None = None,
        meter: Meter | None = None,
        include_messages_counters: bool = True,
    ) -> None:
        super().__init__(
            settings_provider_factory=lambda _: _Settings(),
            tracer_provider=tracer_provider,
            meter_provider=meter_provider,
            meter=meter,
            include_messages_counters=include_messages_counters,
        )
