"""FastStream's figures for Prometheus, of `PynotifyBroker`; it needs prometheus_client.

```
broker = PynotifyBroker("app", middlewares=[PynotifyPrometheusMiddleware(registry=registry)])
```

The figures of the segment itself are those of `pynotify exporter`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from faststream._internal.constants import EMPTY
from faststream.prometheus import ConsumeAttrs, MetricsSettingsProvider
from faststream.prometheus.middleware import PrometheusMiddleware

from pynotify.contrib.faststream._command import PynotifyPublishCommand
from pynotify.contrib.faststream._wire import RawMessage, size_of, source_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from faststream.message import StreamMessage
    from prometheus_client import CollectorRegistry

__all__ = ["PynotifyPrometheusMiddleware"]


class _Settings(MetricsSettingsProvider[RawMessage, PynotifyPublishCommand]):
    """What the figures are labelled with."""

    messaging_system = "pynotify"

    def get_consume_attrs_from_message(self, msg: StreamMessage[RawMessage]) -> ConsumeAttrs:
        """Attributes of a message that has come."""
        raw = msg.raw_message
        return {
            "destination_name": source_of(raw),
            "message_size": size_of(msg.body),
            "messages_count": len(raw) if isinstance(raw, list) else 1,
        }

    def get_publish_destination_name_from_cmd(self, cmd: PynotifyPublishCommand) -> str:
        """Where a message is published to."""
        return cmd.destination


class PynotifyPrometheusMiddleware(PrometheusMiddleware[RawMessage, PynotifyPublishCommand]):
    """Counts, sizes and seconds of what is received and published.

    `registry`: where they are registered.  The further ones are those of FastStream's other
    brokers.
    """

    def __init__(
        self,
        *,
        registry: CollectorRegistry,
        app_name: str = EMPTY,
        metrics_prefix: str = "faststream",
        received_messages_size_buckets: Sequence[float] | None = None,
        custom_labels: dict[str, str | Callable[[Any], str]] | None = None,
    ) -> None:
        super().__init__(
            settings_provider_factory=lambda _: _Settings(),
            registry=registry,
            app_name=app_name,
            metrics_prefix=metrics_prefix,
            received_messages_size_buckets=received_messages_size_buckets,
            custom_labels=custom_labels,
        )
