"""A rig for queues of work: one producer and its workers, ready for any number of passes.

Every worker notes the numbers of what it got, and the parent compares them with what was sent: a
pass in which something was lost or came twice has no figure.  When all is done each worker is told
to stop by a message, one after the other, since a worker may fetch more than one at a time.
"""

from __future__ import annotations

import time
from array import array
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

from bench.peer import BODY_BYTES, Queue, Sender, message_number, payload
from bench.rig import CONTEXT, Crew, Lost, ask_all, serve

_STOP = 2**64 - 1
_LOOK = 0.005
_PATIENCE = 60.0


class WorkRig(Crew):
    """`with WorkRig(queue, workers=4) as rig: rig.shared(100_000)`."""

    def __init__(self, queue: Queue, *, workers: int) -> None:
        super().__init__(queue)
        self.queue = queue
        #: How many messages each worker has done in this pass.
        self._done: Any = CONTEXT.RawArray("Q", workers)

    def start(self) -> None:
        # The producer first: it binds the socket to which workers connect.
        self.senders = self.children([lambda pipe: _produce(pipe, self.queue.sender())])
        for index in range(len(self._done)):
            self.receivers += self.children([partial(self._work, index)])

    def put(self, count: int, *, many: bool = False) -> float:
        """Messages a second into the queue, while nothing is taken; then it is emptied."""
        began, ended = self._send("send_many" if many else "send_all", count)
        self.queue.empty()
        return count / (ended - began) * 1e9

    def shared(self, count: int, *, many: bool = False) -> float:
        """Messages a second from the first put until the last worker is done with its last."""
        for index, child in enumerate(self.receivers):
            self._done[index] = 0
            child.ask("work")
        began, _ = self._send("send_many" if many else "send_all", count)
        self._wait_until_done(count)
        for _ in self.receivers:
            ask_all(self.senders, "stop")
        last = 0
        seen = array("I")
        for child in self.receivers:
            ended, numbers = child.answer()
            last = max(last, ended)
            seen.frombytes(numbers)
        if sorted(seen) != list(range(count)):
            once = len(set(seen))
            raise Lost(f"{self.queue.name}: {count - once} lost, {len(seen) - once} came twice")
        return count / (last - began) * 1e9

    def _send(self, how: str, count: int) -> tuple[int, int]:
        ((began, ended),) = ask_all(self.senders, "send", how, count)
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
        worker = self.queue.receiver()
        done = self._done

        def work() -> tuple[int, bytes]:
            numbers = array("I")
            ended = 0
            while (number := message_number(worker.take())) != _STOP:
                worker.done()
                numbers.append(number)
                ended = time.monotonic_ns()
                done[index] = len(numbers)
            worker.done()
            return ended, numbers.tobytes()

        serve(pipe, work=work)
        worker.close()


def _produce(pipe: Connection, producer: Sender) -> None:
    bodies: list[bytes] = []

    def send(how: str, count: int) -> tuple[int, int]:
        if len(bodies) != count:
            bodies[:] = [payload(number, BODY_BYTES) for number in range(count)]
        put = getattr(producer, how)
        began = time.monotonic_ns()
        put(bodies)
        return began, time.monotonic_ns()

    serve(pipe, send=send, stop=lambda: producer.send(payload(_STOP, BODY_BYTES)))
    producer.close()
