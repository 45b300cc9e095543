"""pynotify's topics, through its public API."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import pynotify
from bench.peer import Peer, Receiver, Sender
from bench.queues.queue import Producer, Queue, Worker

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

    def producer(self) -> Producer:
        return _Producer(self.engine)

    def worker(self) -> Worker:
        return _Worker(self.engine)

    def empty(self) -> None:
        with self.engine.connect() as conn:
            conn.topic(TOPIC).channel(CHANNEL).empty()

    def dispose(self) -> None:
        self.engine.close()
        pynotify.unlink(self.segment, force=True)


class DurableTopics(Topics):
    """The same with every message in the topic's log, which nobody syncs."""

    def prepare(self) -> None:
        self.engine = pynotify.open(self.segment, topic_memory=MEMORY, data_dir=str(self.directory))
        with self.engine.connect() as conn:
            conn.topic(TOPIC, durable=True, fsync="none").channel(CHANNEL)


class _Producer(Producer):
    def __init__(self, engine: pynotify.Engine) -> None:
        self._conn = engine.connect()
        self._topic = self._conn.topic(TOPIC)

    def put_each(self, bodies: Sequence[bytes]) -> None:
        publish = self._topic.publish
        for data in bodies:
            publish(data)

    def put_many(self, bodies: Sequence[bytes]) -> None:
        publish_many = self._topic.publish_many
        for i in range(0, len(bodies), BATCH):
            publish_many(bodies[i : i + BATCH])

    def close(self) -> None:
        self._conn.close()


class _Worker(Worker):
    def __init__(self, engine: pynotify.Engine) -> None:
        self._conn = engine.connect()
        channel = self._conn.topic(TOPIC).channel(CHANNEL)
        self._consumer = channel.consumer(max_in_flight=MAX_IN_FLIGHT)

    def take(self) -> bytes:
        self._message = self._consumer.get()
        return self._message.body

    def done(self) -> None:
        self._message.finish()

    def close(self) -> None:
        self._conn.close()


class TopicPeer(Peer):
    """The same for the rig that measures latencies."""

    name = "pynotify topics"
    one_to_many = False

    def prepare(self) -> None:
        self._queue = Topics(self.directory)
        self._queue.prepare()

    def sender(self) -> Sender:
        return _Sender(self._queue.engine)

    def receiver(self) -> Receiver:
        return _Receiver(self._queue.engine)

    def dispose(self) -> None:
        self._queue.dispose()


class _Sender(Sender):
    def __init__(self, engine: pynotify.Engine) -> None:
        self._conn = engine.connect()
        self._publish = self._conn.topic(TOPIC).publish

    def send(self, data: bytes) -> None:
        self._publish(data)

    def send_all(self, payloads: Sequence[bytes]) -> None:
        for data in payloads:
            self._publish(data)

    def close(self) -> None:
        self._conn.close()


class _Receiver(Receiver):
    def __init__(self, engine: pynotify.Engine) -> None:
        self._conn = engine.connect()
        self._consumer = self._conn.topic(TOPIC).channel(CHANNEL).consumer()

    def receive(self, count: int) -> bytes:
        data = b""
        for _ in range(count):
            message = self._consumer.get()
            data = message.body
            message.finish()
        return data

    def stream(self) -> Iterator[bytes]:
        for message in self._consumer:
            try:
                yield message.body
            finally:  # also of the one after which the stream is left
                message.finish()

    def close(self) -> None:
        self._conn.close()
