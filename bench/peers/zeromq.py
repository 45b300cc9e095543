"""pyzmq over ipc, the high-water marks off so that nothing is dropped: PUB/SUB and PUSH/PULL."""

from __future__ import annotations

import importlib.util
from functools import partial
from typing import Any

from bench.peer import Peer, Queue, Sender, Taker, look_at


def _sender(kind: str, address: str) -> Sender:
    import zmq

    context, socket = _socket(kind)
    socket.setsockopt(zmq.SNDHWM, 0)
    socket.bind(address)
    return Sender(socket.send, partial(context.destroy, linger=0))


def _receiver(kind: str, address: str) -> Taker:
    import zmq

    context, socket = _socket(kind)
    socket.setsockopt(zmq.RCVHWM, 0)
    socket.setsockopt(zmq.RECONNECT_IVL, 10)
    if kind == "SUB":
        socket.setsockopt(zmq.SUBSCRIBE, b"")
    socket.connect(address)
    return Taker(socket.recv, partial(context.destroy, linger=0))


def _socket(kind: str) -> tuple[Any, Any]:
    import zmq

    context = zmq.Context()
    return context, context.socket(getattr(zmq, kind))


class ZeroMQ(Peer):
    """One frame of 100 bytes, an empty subscription: its fastest form."""

    name = "pyzmq PUB/SUB ipc, HWM 0"

    @property
    def _address(self) -> str:
        return f"ipc://{self.directory}/publish-{id(self):x}"

    def sender(self) -> Sender:
        return _sender("PUB", self._address)

    def receiver(self) -> Taker:
        return _receiver("SUB", self._address)


class ZeroMQCalling(ZeroMQ):
    """A function of Python called for each message."""

    name = "pyzmq PUB/SUB ipc, a function called for each"

    def receiver(self) -> Taker:
        return _Calling(super().receiver())


class _Calling(Taker):
    def __init__(self, taker: Taker) -> None:
        super().__init__(taker.take, taker.close)

    def receive(self, count: int) -> bytes:
        take = self.take
        data = b""
        for _ in range(count):
            data = take()
            look_at(data)
        return data


class PushPull(Queue):
    """One frame a message; dealt out in turn, however slow a worker is."""

    name = "pyzmq PUSH/PULL ipc, HWM 0, no acknowledgement"

    @staticmethod
    def available() -> bool:
        return importlib.util.find_spec("zmq") is not None

    @property
    def _address(self) -> str:
        return f"ipc://{self.directory}/push-{id(self):x}"

    def sender(self) -> Sender:
        return _sender("PUSH", self._address)

    def receiver(self) -> Taker:
        return _receiver("PULL", self._address)
