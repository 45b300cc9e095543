"""A kombu connection of tests: one channel, and what its consumers got."""

from __future__ import annotations

from typing import Any

import kombu
import pytest

import pynotify
import pynotify.contrib.kombu
from pynotify.contrib.kombu._declared import topic_name
from receiving import PATIENCE

JOBS = kombu.Queue("jobs")


class Peer:
    """A kombu connection with one channel, and what its consumers got."""

    def __init__(self, segment: str, path: str = "", **options: Any) -> None:
        self.connection = kombu.Connection(
            f"pynotify://{segment}/{path}", transport_options=options
        )
        self.channel = self.connection.channel()
        self.got: list[Any] = []
        self.messages: list[kombu.Message] = []

    def publish(self, body: Any, routing_key: str, exchange: str = "", **options: Any) -> None:
        kombu.Producer(self.channel).publish(
            body, exchange=exchange, routing_key=routing_key, **options
        )

    def consume(self, *queues: kombu.Queue, **options: Any) -> kombu.Consumer:
        """Consume; what comes is to be acknowledged by `self.messages`."""
        consumer = kombu.Consumer(
            self.channel,
            queues,
            callbacks=[self._receive],
            accept=["json", "pickle", "text/plain"],
            **options,
        )
        consumer.consume()
        return consumer

    def _receive(self, body: Any, message: kombu.Message) -> None:
        self.got.append(body)
        self.messages.append(message)

    def drain(self, count: int) -> list[Any]:
        """Wait until so many have come; the bodies of these."""
        before = len(self.got)
        while len(self.got) < before + count:
            self.connection.drain_events(timeout=PATIENCE)
        return self.got[before:]

    def assert_nothing(self) -> None:
        with pytest.raises(TimeoutError):
            self.connection.drain_events(timeout=0)

    def declare(self, *queues: kombu.Queue) -> None:
        for queue in queues:
            queue.bind(self.channel).declare()

    def declared(self) -> set[str]:
        return set(self.channel.session.view().queues)

    def close(self) -> None:
        self.connection.close()


class Peers:
    """Makes peers of one segment."""

    def __init__(self, segment: str) -> None:
        self.segment = segment
        self._made: list[Peer] = []

    def __call__(self, path: str = "", **options: Any) -> Peer:
        self._made.append(Peer(self.segment, path, **options))
        return self._made[-1]

    def close(self) -> None:
        for peer in self._made:
            peer.close()


def topics(segment: str) -> dict[str, pynotify.TopicStats]:
    """Those of queues."""
    with pynotify.open(segment) as opened:
        return {topic.name: topic for topic in opened.topics() if topic.name.startswith("kombu.")}


def in_flight(segment: str, queue: str) -> int:
    """How many messages of a queue the core has delivered, or fetched ahead."""
    (channel,) = topics(segment)[topic_name("kombu", queue)].channels
    return channel.in_flight


def ready(segment: str) -> int:
    """How many messages of all queues can be delivered."""
    return sum(channel.depth for topic in topics(segment).values() for channel in topic.channels)
