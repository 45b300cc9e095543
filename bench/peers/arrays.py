"""Arrays of 1 MB: PubSub's, shared memory of multiprocessing with a queue, and pyzmq.

What is sent is the same for all: one array of the sender, into which it writes the message's 100
bytes each time.  So each peer has to copy it once.  Receivers get the array, and look at its 100
bytes, or sum all of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt

import pynotify
from bench.peer import PAYLOAD_BYTES, Peer, Receiver, Sender
from bench.peers.ours import CHANNEL, Pynotify
from bench.peers.zeromq import ZeroMQ
from bench.rig import CONTEXT

SIZE = 1 << 20
#: Blocks that shared memory of multiprocessing goes round in; PubSub may have twice as much.
BLOCKS = 16

Bytes = npt.NDArray[np.uint8]


def _payload(array: Bytes) -> bytes:
    return array[:PAYLOAD_BYTES].tobytes()


class _ArraySender(Sender):
    """`publish` is what sends an array."""

    def __init__(self, publish: Any, close: Any) -> None:
        self._array = np.zeros(SIZE, np.uint8)
        self._publish = publish
        super().__init__(self._send, close)

    def _send(self, data: bytes) -> None:
        self._array[:PAYLOAD_BYTES] = memoryview(data)
        self._publish(self._array)

    def send_all(self, payloads: Sequence[bytes]) -> None:
        for data in payloads:
            self._send(data)


class _ArrayReceiver(Receiver):
    """`arrays` gives one after the other; with `sums` all of each is read."""

    def __init__(self, arrays: Iterator[Bytes], sums: bool, close: Any) -> None:
        super().__init__(close)
        self._arrays, self._sums = arrays, sums

    def stream(self) -> Iterator[bytes]:
        for array in self._arrays:
            if self._sums:
                array.view(np.uint64).sum()
            yield _payload(array)


class _Summing:
    """Receivers of 1 MB arrays; `listeners` of them, and whether they sum."""

    def __init__(self, directory: Path, *, listeners: int, sums: bool) -> None:
        super().__init__(directory)  # type: ignore[call-arg]
        self._listeners, self._sums = listeners, sums


class PynotifyArrays(_Summing, Pynotify):
    """`PubSub.publish(channel, array)`, and iterating a PubSub."""

    name = "PubSub"

    def sender(self) -> Sender:
        conn = self.engine.connect()
        pubsub = pynotify.PubSub(conn, max_shared=BLOCKS * 2 * SIZE)

        def close() -> None:
            pubsub.close()
            conn.close()

        return _ArraySender(lambda array: pubsub.publish(CHANNEL, array), close)

    def receiver(self) -> Receiver:
        conn = self.engine.connect()
        pubsub = pynotify.PubSub(conn)
        pubsub.subscribe(CHANNEL)

        def close() -> None:
            pubsub.close()
            conn.close()

        return _ArrayReceiver((obj for _, obj, _ in pubsub), self._sums, close)


class ZeroMQArrays(_Summing, ZeroMQ):
    """The array's buffer is sent, and the frame that comes is looked at where it is."""

    name = "pyzmq PUB/SUB ipc, HWM 0"

    def receiver(self) -> Any:
        import zmq

        context = zmq.Context()
        socket = context.socket(zmq.SUB)
        socket.setsockopt(zmq.RCVHWM, 0)
        socket.setsockopt(zmq.RECONNECT_IVL, 10)
        socket.setsockopt(zmq.SUBSCRIBE, b"")
        socket.connect(self._address)

        def arrays() -> Iterator[Bytes]:
            while True:
                yield np.frombuffer(socket.recv(copy=False).buffer, np.uint8)

        return _ArrayReceiver(arrays(), self._sums, lambda: context.destroy(linger=0))

    def sender(self) -> Sender:
        sender = super().sender()
        return _ArraySender(sender.send, sender.close)


class SharedMemoryQueue(_Summing, Peer):
    """The number of a block through a queue to each receiver, and back through one for all."""

    name = "multiprocessing.shared_memory and Queue"

    def prepare(self) -> None:
        self._blocks = [SharedMemory(create=True, size=SIZE) for _ in range(BLOCKS)]
        self._queues: list[Any] = [CONTEXT.Queue() for _ in range(self._listeners)]
        self._back: Any = CONTEXT.Queue()
        self._places: Any = CONTEXT.Queue()
        for place in range(self._listeners):
            self._places.put(place)

    def _arrays(self) -> list[Bytes]:
        return [
            np.frombuffer(cast("memoryview", block.buf), np.uint8, SIZE) for block in self._blocks
        ]

    def sender(self) -> Sender:
        blocks, free = self._arrays(), list(range(BLOCKS))
        readers = [0] * BLOCKS

        def publish(array: Bytes) -> None:
            while not free:
                number = self._back.get()
                readers[number] -= 1
                if not readers[number]:
                    free.append(number)
            number = free.pop()
            np.copyto(blocks[number], array)
            readers[number] = len(self._queues)
            for queue in self._queues:
                queue.put(number)

        return _ArraySender(publish, lambda: None)

    def receiver(self) -> Receiver:
        blocks, queue = self._arrays(), self._queues[self._places.get()]

        def arrays() -> Iterator[Bytes]:
            while True:
                number = queue.get()
                yield blocks[number]
                self._back.put(number)

        return _ArrayReceiver(arrays(), self._sums, lambda: None)

    def dispose(self) -> None:
        for queue in (*self._queues, self._back, self._places):
            queue.close()
            queue.cancel_join_thread()
        for block in self._blocks:
            block.close()
            block.unlink()
