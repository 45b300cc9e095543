"""A rig for queues of work: one producer and its workers, ready for any number of passes.

Every worker notes the numbers of what it got, and the parent compares them with what was sent: a
pass in which something was lost or came twice has no figure.  The last messages tell the workers
to stop, one each.
"""

from __future__ import annotations

import time
from array import array
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Self

from bench.queues.queue import STOP, Queue, body, number_of
from bench.rig import Child, Lost


class WorkRig:
    """`with WorkRig(queue, workers=4) as rig: rig.shared(100_000)`."""

    def __init__(self, queue: Queue, *, workers: int) -> None:
        self.queue = queue
        self._count = workers
        self._workers: list[Child] = []

    def __enter__(self) -> Self:
        self.queue.prepare()
        self._producer = Child(lambda pipe: _produce(pipe, self.queue))
        self._producer.answer()
        self._workers = [
            Child(lambda pipe: _work(pipe, self.queue)) for _ in range(self._count)
        ]
        for child in self._workers:
            child.answer()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for child in (self._producer, *self._workers):
            if error is not None:
                child.process.kill()
            child.end() if error is None else child.process.join()
        self.queue.dispose()

    def put(self, count: int, *, many: bool = False) -> float:
        """Messages a second into the queue, with nobody who takes them; it is emptied afterwards."""
        self._producer.ask("put_many" if many else "put_each", count, 0)
        began, ended = self._producer.answer()
        self.queue.empty()
        return count / (ended - began) * 1e9

    def shared(self, count: int, *, many: bool = False) -> float:
        """Messages a second from the first put until the last worker has finished its last one."""
        for child in self._workers:
            child.ask("work")
        self._producer.ask("put_many" if many else "put_each", count, self._count)
        began, _ = self._producer.answer()
        last = 0
        seen = array("I")
        for child in self._workers:
            ended, numbers = child.answer()
            last = max(last, ended)
            seen.frombytes(numbers)
        if sorted(seen) != list(range(count)):
            twice = len(seen) - len(set(seen))
            lost = count - len(set(seen))
            raise Lost(f"{self.queue.name}: {lost} of {count} lost, {twice} twice")
        return count / (last - began) * 1e9


def _produce(pipe: Connection, queue: Queue) -> None:
    producer = queue.producer()
    pipe.send("ready")
    bodies: list[bytes] = []
    while (command := pipe.recv())[0] != "quit":
        how, count, stops = command
        if len(bodies) != count:
            bodies = [body(number) for number in range(count)]
        put = getattr(producer, how)
        began = time.monotonic_ns()
        put(bodies)
        ended = time.monotonic_ns()
        producer.put_each([body(STOP)] * stops)
        pipe.send((began, ended))
    producer.close()


def _work(pipe: Connection, queue: Queue) -> None:
    worker = queue.worker()
    pipe.send("ready")
    while pipe.recv()[0] != "quit":
        numbers = array("I")
        append = numbers.append
        for data in worker.work():
            number = number_of(data)
            if number == STOP:
                break
            append(number)
        ended = time.monotonic_ns()
        pipe.send((ended, numbers.tobytes()))
    worker.close()
