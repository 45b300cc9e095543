"""Redis lists over a Unix socket, with a server of our own that persists nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bench.peers.redis_pubsub import Redis
from bench.queues.queue import Producer, Queue, Worker

_LIST, _PROCESSING = "bench", "bench:processing"
_PIPELINE = 100


class RedisLists(Queue):
    """RPUSH; BLMOVE to a list of what is worked on, and LREM from it: nothing is lost."""

    name = "Redis lists, BLMOVE and LREM"
    has_many = True

    @staticmethod
    def available() -> bool:
        """A redis-server on PATH, and redis-py."""
        return Redis.available()

    def prepare(self) -> None:
        self._server = Redis(self.directory, 0)
        self._server.prepare()

    def producer(self) -> Producer:
        return _Producer(self._server.connect())

    def worker(self) -> Worker:
        return _Worker(self._server.connect())

    def empty(self) -> None:
        self._server.connect().delete(_LIST)

    def dispose(self) -> None:
        self._server.dispose()


class _Producer(Producer):
    def __init__(self, client: Any) -> None:
        self._client = client

    def put_each(self, bodies: Sequence[bytes]) -> None:
        rpush = self._client.rpush
        for data in bodies:
            rpush(_LIST, data)

    def put_many(self, bodies: Sequence[bytes]) -> None:
        for i in range(0, len(bodies), _PIPELINE):
            self._client.rpush(_LIST, *bodies[i : i + _PIPELINE])


class _Worker(Worker):
    def __init__(self, client: Any) -> None:
        self._client = client

    def take(self) -> bytes:
        self._data = self._client.blmove(_LIST, _PROCESSING, 0)
        data: bytes = self._data
        return data

    def done(self) -> None:
        self._client.lrem(_PROCESSING, 1, self._data)
