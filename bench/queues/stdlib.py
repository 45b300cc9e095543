"""multiprocessing.Queue: what everybody has.  Nothing is acknowledged."""

from __future__ import annotations

import multiprocessing
from collections.abc import Sequence
from typing import Any

from bench.queues.queue import Producer, Queue, Worker

_CONTEXT = multiprocessing.get_context("fork")


class MultiprocessingQueue(Queue):
    """Pickles; put() hands over to a thread of the producer."""

    name = "multiprocessing.Queue, no acknowledgement"
    acknowledges = False

    def prepare(self) -> None:
        self._queue: Any = _CONTEXT.Queue()

    def producer(self) -> Producer:
        return _Producer(self._queue)

    def worker(self) -> Worker:
        return _Worker(self._queue)

    def dispose(self) -> None:
        self._queue.close()


class _Producer(Producer):
    def __init__(self, queue: Any) -> None:
        self._queue = queue

    def put_each(self, bodies: Sequence[bytes]) -> None:
        put = self._queue.put
        for data in bodies:
            put(data)


class _Worker(Worker):
    def __init__(self, queue: Any) -> None:
        self._queue = queue

    def take(self) -> bytes:
        data: bytes = self._queue.get()
        return data
