"""OpenTelemetry: a trace goes on from the publisher of a message to the worker that processes it.

```
telemetry = Telemetry()

telemetry.publish(topic, body)  # a span "publish jobs"; its context goes along in the headers

consumer.run(telemetry.handler(channel, work))  # a span "process jobs" in the same trace

telemetry.notify(conn, "orders", "7")  # the same of a notification: a span "publish orders"

conn.add_notify_handler(telemetry.notification_handler(work))  # "process orders", in each listener

telemetry.publish_object(ps, "orders", {"id": 7})  # the same of an object of a PubSub

ps.on("orders", telemetry.object_handler(work), received=True)

telemetry.observe("app")  # the figures of the segment as metrics
```

Spans and attributes follow the semantic conventions for messaging.  The context is in the headers
that the propagator writes (`traceparent`), so programs in other languages find it there as well.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import time
from typing import TYPE_CHECKING, Any, TypeVar

from opentelemetry import metrics, propagate, trace

from pynotify._engine import open as open_segment
from pynotify._headers import Taken
from pynotify._locks import Lock
from pynotify._types import Notify
from pynotify.contrib import _figures
from pynotify.errors import Error
from pynotify.pubsub._arrays import is_array
from pynotify.pubsub._format import NOTHING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from opentelemetry.metrics import CallbackOptions, MeterProvider
    from opentelemetry.propagators.textmap import TextMapPropagator
    from opentelemetry.trace import Span, TracerProvider
    from typing_extensions import Buffer

    from pynotify._async_connection import AsyncConnection
    from pynotify._connection import Connection
    from pynotify._types import EngineStat, Gap
    from pynotify.pubsub import AsyncPubSub, PubSub, Received
    from pynotify.topics import (
        AsyncChannel,
        AsyncMessage,
        AsyncTopic,
        Channel,
        Message,
        Topic,
        TopicStats,
    )

    Attributes = dict[str, str]
    Row = tuple[Attributes, Any]

__all__ = ["Telemetry"]

_F = TypeVar("_F", bound="Callable[..., Any]")
_SCOPE = "pynotify"
#: Seconds for which a look at a segment serves the instruments: one collection asks all of them.
_LOOK = 0.5
#: Seconds for the writer lock, which is free in microseconds.
_PATIENCE = 1.0


def _length(body: str | Buffer) -> int:
    return len(body.encode()) if isinstance(body, str) else memoryview(body).nbytes


def _object_length(obj: Any) -> int | None:
    """Bytes of what goes as bytes; None: it goes as JSON."""
    if isinstance(obj, str | bytes | bytearray | memoryview):
        return _length(obj)
    return int(obj.nbytes) if is_array(obj) else None


def _inside(span: Callable[[Any], contextlib.AbstractContextManager[object]], function: _F) -> _F:
    """`function(message)`, which may be a coroutine function, in that span of the message."""
    call: Any
    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def call(message: Any) -> Any:
            with span(message):
                return await function(message)

    else:

        @functools.wraps(function)
        def call(message: Any) -> Any:
            with span(message):
                return function(message)

    handled: _F = call
    return handled


class Telemetry:
    """Spans of publishing and processing, and metrics of segments.

    The providers and the propagator are the global ones unless they are given.
    """

    def __init__(
        self,
        *,
        tracer_provider: TracerProvider | None = None,
        meter_provider: MeterProvider | None = None,
        propagator: TextMapPropagator | None = None,
    ) -> None:
        self._tracer = trace.get_tracer(_SCOPE, tracer_provider=tracer_provider)
        self._meters = meter_provider
        self._propagator = propagator

    # ---- spans -----------------------------------------------------------------------------

    @contextlib.contextmanager
    def _publishing(
        self, name: str, length: int | None, headers: Mapping[str, str] | None
    ) -> Iterator[tuple[Span, dict[str, str]]]:
        attributes: dict[str, str | int] = {
            "messaging.system": "pynotify",
            "messaging.operation.name": "publish",
            "messaging.operation.type": "send",
            "messaging.destination.name": name,
        }
        if length is not None:
            attributes["messaging.message.body.size"] = length
        with self._tracer.start_as_current_span(
            f"publish {name}", kind=trace.SpanKind.PRODUCER, attributes=attributes
        ) as span:
            carried = dict(headers or {})
            (self._propagator or propagate.get_global_textmap()).inject(carried)
            yield span, carried

    def publish(
        self,
        topic: Topic,
        body: str | Buffer,
        *,
        headers: Mapping[str, str] | None = None,
        **options: Any,
    ) -> str:
        """`topic.publish` in a span of its own, whose context goes along in the headers."""
        with self._publishing(topic.name, _length(body), headers) as (span, carried):
            found = topic.publish(body, headers=carried, **options)
            span.set_attribute("messaging.message.id", found)
        return found

    async def publish_async(
        self,
        topic: AsyncTopic,
        body: str | Buffer,
        *,
        headers: Mapping[str, str] | None = None,
        **options: Any,
    ) -> str:
        """The same with a topic of asyncio."""
        with self._publishing(topic.name, _length(body), headers) as (span, carried):
            found = await topic.publish(body, headers=carried, **options)
            span.set_attribute("messaging.message.id", found)
        return found

    def notify(
        self,
        conn: Connection,
        channel: str,
        payload: str | Buffer = "",
        *,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """`conn.notify` in a span of its own, whose context goes along in the headers.

        Of equal notifications of a transaction the first is sent, with the context of its span.
        """
        with self._publishing(channel, _length(payload), headers) as (_, carried):
            conn.notify(channel, payload, headers=carried)

    async def notify_async(
        self,
        conn: AsyncConnection,
        channel: str,
        payload: str | Buffer = "",
        *,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """The same with a connection of asyncio."""
        with self._publishing(channel, _length(payload), headers) as (_, carried):
            await conn.notify(channel, payload, headers=carried)

    def publish_object(
        self,
        pubsub: PubSub,
        channel: str,
        obj: Any = NOTHING,
        *,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """`pubsub.publish` in a span of its own, whose context goes along in the headers.

        Over PostgreSQL, where there are none, the context is left out; `headers` raise as ever.
        """
        with self._publishing(channel, _object_length(obj), headers) as (_, carried):
            pubsub.publish(channel, obj, headers=Taken(carried, optional=not headers))

    async def publish_object_async(
        self,
        pubsub: AsyncPubSub,
        channel: str,
        obj: Any = NOTHING,
        *,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """The same with an `AsyncPubSub`."""
        with self._publishing(channel, _object_length(obj), headers) as (_, carried):
            await pubsub.publish(channel, obj, headers=Taken(carried, optional=not headers))

    @contextlib.contextmanager
    def process(
        self, channel: Channel | AsyncChannel, message: Message | AsyncMessage
    ) -> Iterator[Span]:
        """A span, current in the block, whose parent is that of the publisher.

        An exception is recorded, and goes on.  Answering the message is up to the block.
        """
        name = channel.topic.name
        attributes: dict[str, str | int] = {
            "messaging.system": "pynotify",
            "messaging.operation.name": "process",
            "messaging.operation.type": "process",
            "messaging.destination.name": name,
            "messaging.destination.subscription.name": channel.name,
            "messaging.message.id": message.id,
            "messaging.message.body.size": len(message.body),
            "pynotify.message.attempts": message.attempts,
        }
        with self._processing(name, message.headers, attributes) as span:
            yield span

    @contextlib.contextmanager
    def process_notification(self, message: Notify) -> Iterator[Span]:
        """The same around what a listener does with a notification.

        Each listener has a span of its own.
        """
        attributes: dict[str, str | int] = {
            "messaging.system": "pynotify",
            "messaging.operation.name": "process",
            "messaging.operation.type": "process",
            "messaging.destination.name": message.channel,
            "messaging.message.body.size": len(message.data),
        }
        if message.pattern is not None:
            attributes["messaging.destination.template"] = message.pattern
        with self._processing(message.channel, message.headers, attributes) as span:
            yield span

    @contextlib.contextmanager
    def process_object(self, received: Received) -> Iterator[Span]:
        """The same around what a listener does with what iterating a PubSub yields.

        A Gap has no span of its own.
        """
        if received.channel is None:
            yield trace.INVALID_SPAN
            return
        attributes: dict[str, str | int] = {
            "messaging.system": "pynotify",
            "messaging.operation.name": "process",
            "messaging.operation.type": "process",
            "messaging.destination.name": received.channel,
        }
        length = _object_length(received.obj)
        if length is not None:
            attributes["messaging.message.body.size"] = length
        with self._processing(received.channel, received.headers, attributes) as span:
            yield span

    @contextlib.contextmanager
    def _processing(
        self, name: str, headers: Mapping[str, str], attributes: Mapping[str, str | int]
    ) -> Iterator[Span]:
        context = (self._propagator or propagate.get_global_textmap()).extract(headers)
        with self._tracer.start_as_current_span(
            f"process {name}",
            context=context,
            kind=trace.SpanKind.CONSUMER,
            attributes=attributes,
        ) as span:
            yield span

    def handler(self, channel: Channel | AsyncChannel, function: _F) -> _F:
        """`function(message)`, which may be a coroutine function, in the span of `process`."""
        return _inside(lambda message: self.process(channel, message), function)

    def notification_handler(self, function: _F) -> _F:
        """The same in the span of `process_notification`; a Gap is handed on without one."""
        return _inside(self._process_what_came, function)

    def object_handler(self, function: _F) -> _F:
        """The same in the span of `process_object`, for `PubSub.on(..., received=True)`."""
        return _inside(self.process_object, function)

    def _process_what_came(
        self, message: Notify | Gap
    ) -> contextlib.AbstractContextManager[Span | None]:
        if isinstance(message, Notify):
            return self.process_notification(message)
        return contextlib.nullcontext()

    # ---- metrics ---------------------------------------------------------------------------

    def observe(self, segment: str = "default") -> None:
        """Report the figures of a segment, whenever the provider collects.

        The names are those of the Prometheus collector with dots.  All state is in shared memory,
        so let one process of a host do this.  A segment that cannot be read has no figures.
        """
        meter = metrics.get_meter(_SCOPE, meter_provider=self._meters)
        looks = _Looks(segment)
        for rows, counters, gauges in (
            (looks.of_segment, _figures.COUNTERS, _figures.GAUGES),
            (looks.of_topics, _figures.TOPIC_COUNTERS, _figures.TOPIC_GAUGES),
            (looks.of_channels, _figures.CHANNEL_COUNTERS, _figures.CHANNEL_GAUGES),
        ):
            for make, figures in (
                (meter.create_observable_counter, counters),
                (meter.create_observable_gauge, gauges),
            ):
                for name, attribute, text in figures:
                    callback = functools.partial(_observations, rows, attribute)
                    make(name.replace("_", ".", 1), callbacks=[callback], description=text)


def _observations(
    rows: Callable[[], list[Row]], attribute: str, _options: CallbackOptions
) -> Iterable[metrics.Observation]:
    for attributes, stats in rows():
        value = getattr(stats, attribute)
        if value is not None:
            yield metrics.Observation(value, attributes)


class _Looks:
    """A segment, looked at once for all instruments of a collection."""

    def __init__(self, segment: str) -> None:
        self._segment = segment
        self._lock = Lock()
        self._at = float("-inf")
        self._stat: EngineStat | None = None
        self._topics: list[TopicStats] = []

    def _look(self) -> tuple[EngineStat | None, list[TopicStats]]:
        with self._lock:
            if time.monotonic() - self._at > _LOOK:
                self._stat, self._topics = None, []
                with (
                    contextlib.suppress(Error),
                    open_segment(self._segment, create=False) as engine,
                ):
                    stat = engine.stat(timeout=_PATIENCE)
                    self._topics = list(engine.topics(timeout=_PATIENCE))
                    self._stat = stat
                self._at = time.monotonic()
            return self._stat, self._topics

    def of_segment(self) -> list[Row]:
        stat, _ = self._look()
        return [] if stat is None else [({"segment": self._segment}, stat)]

    def of_topics(self) -> list[Row]:
        _, topics = self._look()
        return [(self._labels(topic), topic) for topic in topics]

    def of_channels(self) -> list[Row]:
        _, topics = self._look()
        return [
            ({**self._labels(topic), "channel": channel.name}, channel)
            for topic in topics
            for channel in topic.channels
        ]

    def _labels(self, topic: TopicStats) -> Attributes:
        return {"segment": self._segment, "database": topic.database, "topic": topic.name}
