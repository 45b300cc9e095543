"""FastStream's own middlewares for Prometheus and OpenTelemetry, of this broker."""

from __future__ import annotations

from typing import Any

import pytest

from requirement import require

try:
    import faststream  # noqa: F401
except ImportError as missing:
    require("faststream", str(missing))
try:
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
except ImportError as missing:
    require("opentelemetry", str(missing))
from prometheus_client import CollectorRegistry

from faststream_case import Case, Heard, in_loop
from pynotify.contrib.faststream import PynotifyBroker, TopicSub
from pynotify.contrib.faststream.opentelemetry import PynotifyTelemetryMiddleware
from pynotify.contrib.faststream.prometheus import PynotifyPrometheusMiddleware


@pytest.fixture(params=["channel", "topic", "batch"])
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


async def answer_one(case: Case, kind: str, middleware: Any) -> None:
    """A message that a handler answers by another one."""
    broker, heard = case.broker(middlewares=[middleware]), Heard()
    where = (
        {"channel": "q"} if kind == "channel" else {"topic": TopicSub("q", batch=kind == "batch")}
    )

    @broker.subscriber(**where)
    @broker.publisher("answers")
    async def handler(m: Any) -> str:
        return "answer"

    answers = PynotifyBroker(case.segment, logger=None)
    answers.subscriber("answers")(heard.add)
    async with case.started(broker, answers):
        await broker.publish("hello", **{"channel" if kind == "channel" else "topic": "q"})
        assert await heard.upto(1) == ["answer"]


@in_loop
async def test_prometheus(segment_name: str, kind: str) -> None:
    registry = CollectorRegistry()
    middleware = PynotifyPrometheusMiddleware(registry=registry)
    await answer_one(Case(segment_name, "", in_memory=False), kind, middleware)

    def value(name: str, **labels: str) -> float | None:
        labels = {"app_name": "faststream", "broker": "pynotify", **labels}
        return registry.get_sample_value(f"faststream_{name}", labels)

    assert value("received_messages_total", handler="q") == 1
    assert value("received_messages_size_bytes_sum", handler="q") == len("hello")
    assert value("received_messages_in_process", handler="q") == 0
    for destination in ("q", "answers"):
        assert value("published_messages_total", destination=destination, status="success") == 1


@in_loop
async def test_opentelemetry(segment_name: str, kind: str) -> None:
    spans, reader = InMemorySpanExporter(), InMemoryMetricReader()
    tracers = TracerProvider()
    tracers.add_span_processor(SimpleSpanProcessor(spans))
    middleware = PynotifyTelemetryMiddleware(
        tracer_provider=tracers, meter_provider=MeterProvider([reader])
    )
    await answer_one(Case(segment_name, "", in_memory=False), kind, middleware)
    found = {span.name: span for span in spans.get_finished_spans()}
    assert found.keys() == {"q create", "q publish", "q process", "answers publish"}
    process = found["q process"]
    assert process.attributes["messaging.message.payload_size_bytes"] == len("hello")
    assert process.attributes["messaging.system"] == "pynotify"
    assert ("messaging.batch.message_count" in process.attributes) == (kind == "batch")
    traces = {name: span.context.trace_id for name, span in found.items()}
    assert traces["q process"] == traces["answers publish"]
    if kind != "batch":  # a batch is linked to the traces of its messages
        assert len(set(traces.values())) == 1
    data = reader.get_metrics_data()
    (metrics,) = (scope.metrics for each in data.resource_metrics for scope in each.scope_metrics)
    assert {metric.name for metric in metrics} >= {
        "messaging.process.duration",
        "messaging.publish.messages",
    }
