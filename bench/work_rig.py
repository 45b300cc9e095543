"""A rig for queues of work: one producer and its workers, ready for any number of passes.

Every worker notes the numbers of what it got, and the parent compares them with what was sent: a
pass in which something was lost or came twice has no figure.  When all is done each worker is told
to stop by a message, one after the other, since a worker may fetch more than one at a time.
"""

from __future__ import annotations

import multiprocessing
import time
from array import array
from functools import partial
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any, Self

from bench.queues.queue import STOP, Queue, body, number_of
from bench.rig import Child, Lost

_CONTEXT = multiprocessing.get_context("fork")
_LOOK = 0.005
_PATIENCE = 60.0


class WorkRig:
    """`with WorkRig(queue, workers=4) as rig: rig.shared(100_000)`."""

    def __init__(self, queue: Queue, *, workers: int) -> None:
        self.queue = queue
        self._workers: list[Child] = []
        #: How many messages each worker has done in this pass.
        self._done: Any = _CONTEXT.RawArray("Q", workers)

    def __enter__(self) -> Self:
        self.queue.prepare()
        self._producer = Child(lambda pipe: _produce(pipe, self.queue))
        self._producer.answer()
        for index in range(len(self._done)):
            self._workers.append(Child(partial(self._work, index)))
            self._workers[-1].answer()
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
        """Messages a second into the queue, while nobody takes them; then it is emptied."""
        began, ended = self._produce("put_many" if many else "put_each", count)
        self.queue.empty()
        return count / (ended - began) * 1e9

    def shared(self, count: int, *, many: bool = False) -> float:
        """Messages a second from the first put until the last worker is done with its last."""
        for index, child in enumerate(self._workers):
            self._done[index] = 0
            child.ask("work")
        began, _ = self._produce("put_many" if many else "put_each", count)
        self._wait_until_done(count)
        for _ in self._workers:
            self._produce("stop", 1)
        last = 0
        seen = array("I")
        for child in self._workers:
            ended, numbers = child.answer()
            last = max(last, ended)
            seen.frombytes(numbers)
        if sorted(seen) != list(range(count)):
            once = len(set(seen))
            raise Lost(f"{self.queue.name}: {count - once} lost, {len(seen) - once} came twice")
        return count / (last - began) * 1e9

    def _produce(self, how: str, count: int) -> tuple[int, int]:
        self._producer.ask(how, count)
        began, ended = self._producer.answer()
        return began, ended

    def _wait_until_done(self, count: int) -> None:
        deadline, before = time.monotonic() + _PATIENCE, 0
        while (done := sum(self._done)) < count:
            if done > before:
                deadline, before = time.monotonic() + _PATIENCE, done
            elif time.monotonic() > deadline:
                raise Lost(f"{self.queue.name}: {done} of {count} came")
            time.sleep(_LOOK)

    def _work(self, index: int, pipe: Connection) -> None:
        worker = self.queue.worker()
        pipe.send("ready")
        done = self._done
        while pipe.recv()[0] != "quit":
            numbers = array("I")
            ended = 0
            while (number := number_of(worker.take())) != STOP:
                worker.done()
                numbers.append(number)
                ended = time.monotonic_ns()
                done[index] = len(numbers)
            worker.done()
            pipe.send((ended, numbers.tobytes()))
        worker.close()


def _produce(pipe: Connection, queue: Queue) -> None:
    producer = queue.producer()
    pipe.send("ready")
    bodies: list[bytes] = []
    while (command := pipe.recv())[0] != "quit":
        how, count = command
        if how == "stop":
            producer.put_each([body(STOP)])
            pipe.send((0, 0))
            continue
        if len(bodies) != count:
            bodies = [body(number) for number in range(count)]
        put = getattr(producer, how)
        began = time.monotonic_ns()
        put(bodies)
        pipe.send((began, time.monotonic_ns()))
    producer.close()
