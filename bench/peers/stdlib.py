"""multiprocessing.Pipe and multiprocessing.Queue, which are always there."""

from __future__ import annotations

from typing import Any

from bench.peer import Peer, Queue, Sender, Taker
from bench.rig import CONTEXT


class Pipe(Peer):
    """send_bytes and recv_bytes: no pickling; one sender, one receiver."""

    name = "multiprocessing.Pipe"

    def prepare(self) -> None:
        self._reading, self._writing = CONTEXT.Pipe(duplex=False)

    def sender(self) -> Sender:
        return Sender(self._writing.send_bytes)

    def receiver(self) -> Taker:
        return Taker(self._reading.recv_bytes)

    def dispose(self) -> None:
        self._reading.close()
        self._writing.close()


class MultiprocessingQueue(Queue):
    """Pickles; put() hands over to a thread of the sender."""

    name = "multiprocessing.Queue"

    def prepare(self) -> None:
        self._queue: Any = CONTEXT.Queue()

    def sender(self) -> Sender:
        return Sender(self._queue.put)

    def receiver(self) -> Taker:
        return Taker(self._queue.get)

    def dispose(self) -> None:
        self._queue.close()


class UnacknowledgedQueue(MultiprocessingQueue):
    """The same beside queues that acknowledge."""

    name = "multiprocessing.Queue, no acknowledgement"
