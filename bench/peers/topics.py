"""pynotify's topics, through its public API."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import pynotify
from bench.peer import Queue, Sender, Taker

TOPIC, CHANNEL = "bench", "work"
BATCH = 1_000
MEMORY = 256 << 20
MAX_IN_FLIGHT = 100


class Topics(Queue):
    """One topic with one channel, everything in memory; each message is finished by itself."""

    name = "pynotify"
    has_many = True
    _serial = 0

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        Topics._serial += 1
        self.segment = f"bench-topics-{os.getpid()}-{Topics._serial}"

    def prepare(self) -> None:
        self.engine = pynotify.open(self.segment, topic_memory=MEMORY)
        with self.engine.connect() as conn:
            conn.topic(TOPIC).channel(CHANNEL)

    def sender(self) -> Sender:
        return _Producer(self.engine)

    def receiver(self) -> Taker:
        return _Worker(self.engine, max_in_flight=MAX_IN_FLIGHT)

    def empty(self) -> None:
        with self.engine.connect() as conn:
            conn.topic(TOPIC).channel(CHANNEL).empty()

    def dispose(self) -> None:
        self.engine.close()
        pynotify.unlink(self.segment, force=True)


class DurableTopics(Topics):
    """The same with every message in the topic's log, which is not synced."""

    def prepare(self) -> None:
        self.engine = pynotify.open(self.segment, topic_memory=MEMORY, data_dir=str(self.directory))
        with self.engine.connect() as conn:
            conn.topic(TOPIC, durable=True, fsync="none").channel(CHANNEL)


class SingleTopics(Topics):
    """One consumer that has one message at a time, as the rig that measures latencies has it."""

    name = "pynotify topics"

    def receiver(self) -> Taker:
        return _Worker(self.engine)


class _Producer(Sender):
    def __init__(self, engine: pynotify.Engine) -> None:
        conn = engine.connect()
        self._topic = conn.topic(TOPIC)
        super().__init__(self._topic.publish, conn.close)

    def send_many(self, payloads: Sequence[bytes]) -> None:
        publish_many = self._topic.publish_many
        for i in range(0, len(payloads), BATCH):
            publish_many(payloads[i : i + BATCH])


class _Worker(Taker):
    def __init__(self, engine: pynotify.Engine, max_in_flight: int = 1) -> None:
        conn = engine.connect()
        self._consumer = conn.topic(TOPIC).channel(CHANNEL).consumer(max_in_flight=max_in_flight)
        super().__init__(self._get, conn.close)

    def _get(self) -> bytes:
        self._message = self._consumer.get()
        return self._message.body

    def done(self) -> None:
        self._message.finish()

    def receive(self, count: int) -> bytes:
        data = b""
        for _ in range(count):
            data = self._get()
            self.done()
        return data

    def stream(self) -> Iterator[bytes]:
        for message in self._consumer:
            try:
                yield message.body
            finally:  # also of the one after which the stream is left
                message.finish()
