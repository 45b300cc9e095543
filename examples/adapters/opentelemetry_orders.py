"""One trace from a shop to all displays, which show an order, and to the packer that has it.

export SEGMENT=shop
python opentelemetry_orders.py display &     # any number of these
python opentelemetry_orders.py packer &      # and of these
python opentelemetry_orders.py shop 7 8

Each prints its spans, a line of JSON each; a program of yours gives them to an exporter.
"""

from __future__ import annotations

import os
import sys

from opentelemetry import trace
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor

import pynotify
from pynotify.contrib.opentelemetry import Telemetry
from pynotify.pubsub import Received
from pynotify.topics import Message


def line_of(span: ReadableSpan) -> str:
    return span.to_json(indent=None) + "\n"


def report_as(service: str) -> None:
    provider = TracerProvider(resource=Resource.create({"service.name": service}))
    exporter = ConsoleSpanExporter(formatter=line_of)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)


def show(received: Received) -> None:
    trace.get_current_span().set_attribute("order", received.obj["id"])


def pack(message: Message) -> None:
    trace.get_current_span().set_attribute("order", int(message.body))


def display(conn: pynotify.Connection, telemetry: Telemetry) -> None:
    with pynotify.PubSub(conn) as ps:
        ps.on("orders", telemetry.object_handler(show), received=True)
        ps.subscribe("orders")
        ps.run()


def packer(conn: pynotify.Connection, telemetry: Telemetry) -> None:
    channel = conn.topic("parcels").channel("packers")
    with channel.consumer() as consumer:
        consumer.run(telemetry.handler(channel, pack))


def shop(conn: pynotify.Connection, telemetry: Telemetry, orders: list[int]) -> None:
    parcels = conn.topic("parcels")
    tracer = trace.get_tracer("shop")
    with pynotify.PubSub(conn) as ps:
        for order in orders:
            # Both or neither: what is sent in a transaction goes at its commit.
            with tracer.start_as_current_span("order"), conn.transaction():
                telemetry.publish(parcels, str(order))
                telemetry.publish_object(ps, "orders", {"id": order})


def main() -> None:
    what, *orders = sys.argv[1:]
    report_as(what)
    telemetry = Telemetry()
    with pynotify.connect(os.environ.get("SEGMENT", "shop")) as conn:
        if what == "shop":
            shop(conn, telemetry, [int(order) for order in orders])
        else:
            {"display": display, "packer": packer}[what](conn, telemetry)


if __name__ == "__main__":
    main()
