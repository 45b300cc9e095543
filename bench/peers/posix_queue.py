"""posix_ipc.MessageQueue: the kernel's own queue, one receiver, a system call each way."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from bench.peer import PAYLOAD_BYTES, Peer, Receiver, Sender


class PosixQueue(Peer):
    """10 deep, which is what Linux allows users other than root."""

    name = "posix_ipc.MessageQueue"

    def prepare(self) -> None:
        import posix_ipc

        self._queue_name = f"/bench-{os.getpid()}-{id(self):x}"
        self._queue = posix_ipc.MessageQueue(
            self._queue_name, posix_ipc.O_CREX, max_messages=10, max_message_size=PAYLOAD_BYTES
        )

    def sender(self) -> Sender:
        return Sender(self._queue.send)

    def receiver(self) -> Receiver:
        return _QueueReceiver(self._queue)

    def dispose(self) -> None:
        self._queue.close()
        self._queue.unlink()


class _QueueReceiver(Receiver):
    def __init__(self, queue: Any) -> None:
        super().__init__()
        self._queue = queue

    def receive(self, count: int) -> bytes:
        receive = self._queue.receive
        data = b""
        for _ in range(count):
            data, _priority = receive()
        return data

    def stream(self) -> Iterator[bytes]:
        receive = self._queue.receive
        while True:
            yield receive()[0]
