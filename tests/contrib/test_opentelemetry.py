"""OpenTelemetry: one trace from the publisher to the worker, and the figures of a segment."""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import pynotify
from forking import in_child
from programs import ROOT, environment
from receiving import PATIENCE, wait_until
from requirement import require

try:
    from opentelemetry import trace
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
except ImportError as missing:
    require("opentelemetry", str(missing))

from pynotify.contrib.opentelemetry import Telemetry

EXAMPLE = ROOT / "examples" / "adapters" / "opentelemetry_orders.py"


class Spans:
    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))

    def finished(self) -> list[Any]:
        return list(self.exporter.get_finished_spans())


@pytest.fixture
def spans() -> Spans:
    return Spans()


@pytest.fixture
def telemetry(spans: Spans) -> Telemetry:
    return Telemetry(tracer_provider=spans.provider)


@pytest.fixture
def conn(segment_name: str) -> Iterator[pynotify.Connection]:
    with pynotify.connect(segment_name) as made:
        yield made


def test_one_trace(conn: pynotify.Connection, telemetry: Telemetry, spans: Spans) -> None:
    topic = conn.topic("jobs")
    channel = topic.channel("workers")
    tracer = trace.get_tracer("test", tracer_provider=spans.provider)
    with tracer.start_as_current_span("request"):
        message_id = telemetry.publish(topic, "körper", headers={"kind": "x"}, delay=0)
    with channel.consumer() as consumer:
        message = consumer.get(timeout=PATIENCE)
        assert message.headers["kind"] == "x"
        with telemetry.process(channel, message) as span:
            assert trace.get_current_span() is span
        message.finish()
    published, request, processed = spans.finished()
    assert request.name == "request"
    assert (published.name, published.kind) == ("publish jobs", trace.SpanKind.PRODUCER)
    assert (processed.name, processed.kind) == ("process jobs", trace.SpanKind.CONSUMER)
    assert published.parent.span_id == request.context.span_id
    assert processed.parent.span_id == published.context.span_id
    assert processed.context.trace_id == request.context.trace_id
    assert dict(published.attributes) == {
        "messaging.system": "pynotify",
        "messaging.operation.name": "publish",
        "messaging.operation.type": "send",
        "messaging.destination.name": "jobs",
        "messaging.message.body.size": 7,
        "messaging.message.id": message_id,
    }
    assert dict(processed.attributes) == {
        "messaging.system": "pynotify",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": "jobs",
        "messaging.destination.subscription.name": "workers",
        "messaging.message.id": message_id,
        "messaging.message.body.size": 7,
        "pynotify.message.attempts": 1,
    }


def test_between_processes(
    conn: pynotify.Connection, segment_name: str, telemetry: Telemetry, spans: Spans
) -> None:
    channel = conn.topic("jobs").channel("workers")

    def child() -> str:
        own = Spans()
        with pynotify.connect(segment_name) as theirs:
            Telemetry(tracer_provider=own.provider).publish(theirs.topic("jobs"), b"x")
        return format(own.finished()[0].context.trace_id, "x")

    trace_id = in_child(child)
    with channel.consumer() as consumer:
        message = consumer.get(timeout=PATIENCE)
        with telemetry.process(channel, message):
            message.finish()
    assert format(spans.finished()[0].context.trace_id, "x") == trace_id


def test_without_a_context(conn: pynotify.Connection, telemetry: Telemetry, spans: Spans) -> None:
    """Of a publisher that knows nothing of this."""
    topic = conn.topic("jobs")
    channel = topic.channel("workers")
    topic.publish(b"x")
    with channel.consumer() as consumer:
        message = consumer.get(timeout=PATIENCE)
        with telemetry.process(channel, message):
            message.finish()
    assert spans.finished()[0].parent is None


def test_a_handler_that_fails(
    conn: pynotify.Connection, telemetry: Telemetry, spans: Spans
) -> None:
    topic = conn.topic("jobs")
    channel = topic.channel("workers")
    telemetry.publish(topic, b"x")
    with channel.consumer() as consumer:

        def work(message: pynotify.topics.Message) -> None:
            """Fails once."""
            if message.attempts == 1:
                raise KeyError("broken")
            consumer.close()

        handler = telemetry.handler(channel, work)
        assert handler.__doc__ == "Fails once."
        consumer.run(handler, backoff=(0.01, 0.01))
    _, first, second = spans.finished()
    assert first.status.status_code is trace.StatusCode.ERROR
    assert first.events[0].attributes["exception.type"] == "KeyError"
    assert second.status.status_code is trace.StatusCode.UNSET
    assert first.attributes["pynotify.message.attempts"] == 1
    assert second.attributes["pynotify.message.attempts"] == 2
    assert first.context.trace_id == second.context.trace_id


def test_a_publish_that_fails(
    conn: pynotify.Connection, telemetry: Telemetry, spans: Spans
) -> None:
    with pytest.raises(pynotify.ProgrammingError):
        telemetry.publish(conn.topic("jobs"), b"")
    assert spans.finished()[0].status.status_code is trace.StatusCode.ERROR


def test_tasks(segment_name: str, telemetry: Telemetry, spans: Spans) -> None:
    async def run() -> None:
        async with await pynotify.AsyncConnection.connect(segment_name) as conn:
            topic = conn.topic("jobs")
            channel = topic.channel("workers")
            consumer = channel.consumer()
            seen = []

            async def work(message: pynotify.topics.AsyncMessage) -> None:
                seen.append(trace.get_current_span().get_span_context().trace_id)

            handler = telemetry.handler(channel, work)
            await telemetry.publish_async(topic, b"x")
            message = await consumer.get(timeout=PATIENCE)
            await handler(message)
            await message.finish()
            await consumer.close()
            assert seen == [spans.finished()[0].context.trace_id]

    asyncio.run(run())


def figures(reader: InMemoryMetricReader) -> dict[str, dict[tuple[str, ...], Any]]:
    found: dict[str, dict[tuple[str, ...], Any]] = {}
    data = reader.get_metrics_data()
    if data is None:
        return found
    for resource in data.resource_metrics:
        for scope in resource.scope_metrics:
            for metric in scope.metrics:
                found[metric.name] = {
                    tuple(point.attributes.values()): point.value
                    for point in metric.data.data_points
                }
    return found


def test_metrics(
    conn: pynotify.Connection, segment_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pynotify.contrib.opentelemetry._LOOK", -1.0)
    reader = InMemoryMetricReader()
    telemetry = Telemetry(meter_provider=MeterProvider(metric_readers=[reader]))
    telemetry.observe(segment_name)
    telemetry.observe("there-is-no-such-segment")
    conn.listen("c")
    conn.notify("c", "x")
    channel = conn.topic("jobs").channel("workers")
    conn.topic("jobs").publish(b"xyz")
    found = figures(reader)
    assert found["pynotify.notifications_committed"] == {(segment_name,): 1}
    assert found["pynotify.channels"] == {(segment_name,): 1}
    assert found["pynotify.topic_messages"] == {(segment_name, "default", "jobs"): 1}
    assert found["pynotify.topic_channel_depth"] == {
        (segment_name, "default", "jobs", "workers"): 1
    }
    with channel.consumer() as consumer:
        consumer.get(timeout=PATIENCE).finish()
    found = figures(reader)
    where = (segment_name, "default", "jobs", "workers")
    assert found["pynotify.topic_channel_depth"] == {where: 0}
    assert found["pynotify.topic_channel_finished"] == {where: 1}


# ---- notifications -------------------------------------------------------------------------------


def test_a_notification_carries_the_trace(
    conn: pynotify.Connection, segment_name: str, telemetry: Telemetry, spans: Spans
) -> None:
    """Each of its listeners has a span, whose parent is the sender's."""
    tracer = trace.get_tracer("test", tracer_provider=spans.provider)
    with pynotify.connect(segment_name) as other:
        conn.listen("orders")
        other.listen_pattern("ord*")
        with tracer.start_as_current_span("request"):
            telemetry.notify(conn, "orders", "grün", headers={"kind": "x"})
        for listener in (conn, other):
            (message,) = listener.poll()
            assert message == ("orders", "grün", conn.pid)
            assert isinstance(message, pynotify.Notify)
            assert message.headers["kind"] == "x"
            with telemetry.process_notification(message) as span:
                assert trace.get_current_span() is span
    published, request, *processed = spans.finished()
    assert (published.name, published.kind) == ("publish orders", trace.SpanKind.PRODUCER)
    assert published.parent.span_id == request.context.span_id
    assert dict(published.attributes) == {
        "messaging.system": "pynotify",
        "messaging.operation.name": "publish",
        "messaging.operation.type": "send",
        "messaging.destination.name": "orders",
        "messaging.message.body.size": 5,
    }
    for span in processed:
        assert (span.name, span.kind) == ("process orders", trace.SpanKind.CONSUMER)
        assert span.parent.span_id == published.context.span_id
    common = {
        "messaging.system": "pynotify",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": "orders",
        "messaging.message.body.size": 5,
    }
    assert [dict(span.attributes) for span in processed] == [
        common,
        {**common, "messaging.destination.template": "ord*"},
    ]


def test_a_handler_of_notifications(
    conn: pynotify.Connection, telemetry: Telemetry, spans: Spans
) -> None:
    """What it raises is recorded, and goes on; a Gap has no span."""

    def refuse(message: pynotify.Notify | pynotify.Gap) -> str:
        if isinstance(message, pynotify.Gap):
            return message.reason
        raise ValueError(message.payload)

    handle = telemetry.notification_handler(refuse)
    assert handle.__name__ == "refuse"
    conn.listen("c")
    telemetry.notify(conn, "c", "bad")
    (message,) = conn.poll()
    with pytest.raises(ValueError, match="bad"):
        handle(message)
    assert handle(pynotify.Gap(1, "overflow")) == "overflow"
    published, processed = spans.finished()
    assert processed.parent.span_id == published.context.span_id
    assert processed.status.status_code is trace.StatusCode.ERROR


def test_notifications_in_a_transaction(
    conn: pynotify.Connection, telemetry: Telemetry, spans: Spans
) -> None:
    """The trace changes nothing of what is sent: equal ones are one, of the first span."""
    conn.listen("c")
    with conn.transaction():
        telemetry.notify(conn, "c", "x")
        telemetry.notify(conn, "c", "x")
    (message,) = conn.poll()
    assert isinstance(message, pynotify.Notify)
    with telemetry.process_notification(message):
        pass
    first, _second, processed = spans.finished()
    assert processed.parent.span_id == first.context.span_id


def test_notifications_with_asyncio(segment_name: str, telemetry: Telemetry, spans: Spans) -> None:
    async def main() -> None:
        async with await pynotify.AsyncConnection.connect(segment_name) as conn:
            await conn.listen("c")
            await telemetry.notify_async(conn, "c", "x")
            seen: list[str] = []

            async def work(message: pynotify.Notify) -> None:
                seen.append(message.payload)

            async for message in conn.notifies(stop_after=1, timeout=PATIENCE):
                assert isinstance(message, pynotify.Notify)
                await telemetry.notification_handler(work)(message)
            assert seen == ["x"]

    asyncio.run(main())
    published, processed = spans.finished()
    assert processed.parent.span_id == published.context.span_id


# ---- objects -------------------------------------------------------------------------------------

OBJECTS: list[tuple[Any, int | None]] = [
    ("grün", 5),
    (bytes(30_000), 30_000),
    ({"k": "v" * 20_000}, None),
    (None, None),
]
"""And the size of their bodies, which JSON has none of."""


@pytest.mark.parametrize("row", OBJECTS, ids=["text", "segments", "JSON", "null"])
def test_an_object_carries_the_trace(
    conn: pynotify.Connection,
    segment_name: str,
    telemetry: Telemetry,
    spans: Spans,
    row: tuple[Any, int | None],
) -> None:
    """Each of its listeners has a span, whose parent is the publisher's."""
    obj, size = row
    tracer = trace.get_tracer("test", tracer_provider=spans.provider)
    with (
        pynotify.connect(segment_name) as other,
        pynotify.PubSub(conn) as first,
        pynotify.PubSub(other) as second,
    ):
        for pubsub in (first, second):
            pubsub.subscribe("orders")
        with tracer.start_as_current_span("request"):
            telemetry.publish_object(first, "orders", obj, headers={"kind": "x"})
        for pubsub in (first, second):
            (received,) = pubsub.ready()
            assert (received.obj, received.headers["kind"]) == (obj, "x")
            with telemetry.process_object(received) as span:
                assert trace.get_current_span() is span
    published, request, *processed = spans.finished()
    assert (published.name, published.kind) == ("publish orders", trace.SpanKind.PRODUCER)
    assert published.parent.span_id == request.context.span_id
    body = {} if size is None else {"messaging.message.body.size": size}
    assert dict(published.attributes) == {
        "messaging.system": "pynotify",
        "messaging.operation.name": "publish",
        "messaging.operation.type": "send",
        "messaging.destination.name": "orders",
        **body,
    }
    assert len(processed) == 2
    for span in processed:
        assert (span.name, span.kind) == ("process orders", trace.SpanKind.CONSUMER)
        assert span.parent.span_id == published.context.span_id
        assert dict(span.attributes) == {
            "messaging.system": "pynotify",
            "messaging.operation.name": "process",
            "messaging.operation.type": "process",
            "messaging.destination.name": "orders",
            **body,
        }


def test_an_object_between_processes(
    conn: pynotify.Connection, segment_name: str, telemetry: Telemetry, spans: Spans
) -> None:
    """Shared arrays as well."""
    np = pytest.importorskip("numpy")

    def child() -> str:
        own = Spans()
        with pynotify.connect(segment_name) as theirs, pynotify.PubSub(theirs) as publisher:
            array = np.arange(1 << 17)
            Telemetry(tracer_provider=own.provider).publish_object(publisher, "frames", array)
        context = own.finished()[0].context
        return f"{context.trace_id:x} {context.span_id:x}"

    with pynotify.PubSub(conn) as pubsub:
        pubsub.subscribe("frames")
        expected = in_child(child)
        (received,) = pubsub.ready()
        with telemetry.process_object(received):
            pass
    (processed,) = spans.finished()
    assert f"{processed.context.trace_id:x} {processed.parent.span_id:x}" == expected
    assert processed.attributes["messaging.message.body.size"] == 8 << 17


def test_a_handler_of_objects(
    conn: pynotify.Connection, telemetry: Telemetry, spans: Spans, caplog: pytest.LogCaptureFixture
) -> None:
    """What it raises is recorded, and goes on, to PubSub; a Gap has no span."""
    seen: list[Any] = []

    def work(received: Any) -> None:
        """Looks at it."""
        seen.append((received.obj, trace.get_current_span().get_span_context().trace_id))
        if received.obj == "bad":
            raise ValueError(received.obj)

    handle = telemetry.object_handler(work)
    assert handle.__doc__ == "Looks at it."
    with pynotify.PubSub(conn) as pubsub:
        pubsub.subscribe("c")
        pubsub.on("c", handle, received=True)
        telemetry.publish_object(pubsub, "c", "bad")
        telemetry.publish_object(pubsub, "c")
        pubsub.publish("c", "without a context")
        assert pubsub.run(0) == 3
    gap = pynotify.Gap(1, "overflow")
    handle(pynotify.pubsub.Received(None, gap, None))
    bad, nothing, first, second, third = spans.finished()
    assert first.parent.span_id == bad.context.span_id
    assert first.status.status_code is trace.StatusCode.ERROR
    assert second.parent.span_id == nothing.context.span_id
    assert third.parent is None
    traces = [span.context.trace_id for span in (first, second, third)]
    expected = ["bad", None, "without a context", gap]
    assert seen == list(zip(expected, [*traces, 0], strict=True))
    assert [record.exc_info[0] for record in caplog.records if record.exc_info] == [ValueError]


def test_objects_with_asyncio(segment_name: str, telemetry: Telemetry, spans: Spans) -> None:
    seen: list[Any] = []

    async def work(received: Any) -> None:
        await asyncio.sleep(0)
        seen.append((received.obj, trace.get_current_span().get_span_context().trace_id))

    async def main() -> None:
        async with (
            await pynotify.AsyncConnection.connect(segment_name) as conn,
            pynotify.AsyncPubSub(conn) as pubsub,
        ):
            await pubsub.subscribe("c")
            pubsub.on("c", telemetry.object_handler(work), received=True)
            await telemetry.publish_object_async(pubsub, "c", bytes(20_000))
            await pubsub.run(0)

    asyncio.run(main())
    published, processed = spans.finished()
    assert processed.parent.span_id == published.context.span_id
    assert seen == [(bytes(20_000), published.context.trace_id)]


def test_an_object_that_cannot_be_sent(
    conn: pynotify.Connection, telemetry: Telemetry, spans: Spans
) -> None:
    with pynotify.PubSub(conn) as pubsub, pytest.raises(TypeError):
        telemetry.publish_object(pubsub, "c", object())
    (published,) = spans.finished()
    assert published.status.status_code is trace.StatusCode.ERROR


# ---- the example ---------------------------------------------------------------------------------


class Role:
    """A process of the example."""

    def __init__(self, directory: Path, segment: str, *words: str) -> None:
        self._output = directory / f"{words[0]}-{len(list(directory.iterdir()))}"
        with self._output.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, EXAMPLE, *words],
                env={**environment(), "SEGMENT": segment},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    def spans(self) -> list[dict[str, Any]]:
        """Those that are whole."""
        lines = self._output.read_text().splitlines(keepends=True)
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


def test_the_example(conn: pynotify.Connection, segment_name: str, tmp_path: Path) -> None:
    """Each order is one trace, on all displays and with a packer, though one of four is killed."""
    orders = range(200)
    with contextlib.ExitStack() as stack:

        def start(*words: str) -> Role:
            role = Role(tmp_path, segment_name, *words)
            stack.callback(role.end)
            return role

        displays = [start("display") for _ in range(2)]
        packers = [start("packer") for _ in range(4)]
        wait_until(lambda: conn.listeners("orders") == 2, "both displays listen")

        def waiting() -> list[int]:
            with pynotify.open(segment_name) as engine:
                return [len(each.consumers) for topic in engine.topics() for each in topic.channels]

        wait_until(lambda: waiting() == [4], "the packers are there")
        shop = start("shop", *map(str, orders))
        wait_until(packers[0].spans, "it packs")
        packers[0].end()
        assert shop.process.wait(PATIENCE) == 0

        def packed() -> dict[int, dict[str, Any]]:
            return {span["attributes"]["order"]: span for each in packers for span in each.spans()}

        wait_until(lambda: packed().keys() == set(orders), "all is packed")
        wait_until(lambda: all(len(each.spans()) == 200 for each in displays), "all is shown")
        sent = shop.spans()
        roots = [span for span in sent if span["name"] == "order"]
        assert {span["parent_id"] for span in roots} == {None}
        seen = [(packed(), "parcels")]
        seen += [({span["attributes"]["order"]: span for span in each.spans()}, "orders")
                 for each in displays]  # fmt: skip
        for processed, name in seen:
            published = [span for span in sent if span["name"] == f"publish {name}"]
            assert {span["name"] for span in processed.values()} == {f"process {name}"}
            for order, theirs, root in zip(orders, published, roots, strict=True):
                ours = processed[order]
                assert ours["parent_id"] == theirs["context"]["span_id"]
                assert theirs["parent_id"] == root["context"]["span_id"]
                assert ours["context"]["trace_id"] == root["context"]["trace_id"]
        services = {each.spans()[0]["resource"]["attributes"]["service.name"]
                    for each in (shop, packers[1], *displays)}  # fmt: skip
        assert services == {"shop", "packer", "display"}
