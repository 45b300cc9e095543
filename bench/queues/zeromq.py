"""pyzmq PUSH/PULL over ipc, the high-water marks off.  Nothing is acknowledged."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence

from bench.queues.queue import Producer, Queue, Worker


class PushPull(Queue):
    """One frame a message; dealt out in turn, whoever is slow."""

    name = "pyzmq PUSH/PULL ipc, HWM 0, no acknowledgement"
    acknowledges = False

    @staticmethod
    def available() -> bool:
        return importlib.util.find_spec("zmq") is not None

    @property
    def _address(self) -> str:
        return f"ipc://{self.directory}/push-{id(self):x}"

    def producer(self) -> Producer:
        return _Producer(self._address)

    def worker(self) -> Worker:
        return _Worker(self._address)


class _Producer(Producer):
    def __init__(self, address: str) -> None:
        import zmq

        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.PUSH)
        self._socket.setsockopt(zmq.SNDHWM, 0)
        self._socket.bind(address)

    def put_each(self, bodies: Sequence[bytes]) -> None:
        send = self._socket.send
        for data in bodies:
            send(data)

    def close(self) -> None:
        self._socket.close(linger=0)
        self._context.term()


class _Worker(Worker):
    def __init__(self, address: str) -> None:
        import zmq

        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.PULL)
        self._socket.setsockopt(zmq.RCVHWM, 0)
        self._socket.setsockopt(zmq.RECONNECT_IVL, 10)
        self._socket.connect(address)

    def take(self) -> bytes:
        data: bytes = self._socket.recv()
        return data

    def close(self) -> None:
        self._socket.close(linger=0)
        self._context.term()
