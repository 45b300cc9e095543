"""multiprocessing.Pipe and multiprocessing.Queue: what everybody has."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection
from multiprocessing.queues import Queue

from bench.peer import Peer, Receiver, Sender

_CONTEXT = multiprocessing.get_context("fork")


class Pipe(Peer):
    """send_bytes and recv_bytes: no pickling; one sender, one receiver."""

    name = "multiprocessing.Pipe"
    one_to_many = False

    def prepare(self) -> None:
        self._reading, self._writing = _CONTEXT.Pipe(duplex=False)

    def sender(self) -> Sender:
        return _PipeSender(self._writing)

    def receiver(self) -> Receiver:
        return _PipeReceiver(self._reading)

    def dispose(self) -> None:
        self._reading.close()
        self._writing.close()


class _PipeSender(Sender):
    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe

    def send(self, data: bytes) -> None:
        self._pipe.send_bytes(data)

    def send_all(self, payloads: Sequence[bytes]) -> None:
        send = self._pipe.send_bytes
        for data in payloads:
            send(data)


class _PipeReceiver(Receiver):
    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe

    def receive(self, count: int) -> bytes:
        receive = self._pipe.recv_bytes
        data = b""
        for _ in range(count):
            data = receive()
        return data

    def stream(self) -> Iterator[bytes]:
        receive = self._pipe.recv_bytes
        while True:
            yield receive()


class MultiprocessingQueue(Peer):
    """Pickles; put() hands over to a thread of the sender."""

    name = "multiprocessing.Queue"
    one_to_many = False

    def prepare(self) -> None:
        self._queue: Queue[bytes] = _CONTEXT.Queue()

    def sender(self) -> Sender:
        return _QueueSender(self._queue)

    def receiver(self) -> Receiver:
        return _QueueReceiver(self._queue)

    def dispose(self) -> None:
        self._queue.close()


class _QueueSender(Sender):
    def __init__(self, queue: Queue[bytes]) -> None:
        self._queue = queue

    def send(self, data: bytes) -> None:
        self._queue.put(data)

    def send_all(self, payloads: Sequence[bytes]) -> None:
        put = self._queue.put
        for data in payloads:
            put(data)


class _QueueReceiver(Receiver):
    def __init__(self, queue: Queue[bytes]) -> None:
        self._queue = queue

    def receive(self, count: int) -> bytes:
        get = self._queue.get
        data = b""
        for _ in range(count):
            data = get()
        return data

    def stream(self) -> Iterator[bytes]:
        get = self._queue.get
        while True:
            yield get()
