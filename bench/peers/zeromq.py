"""pyzmq PUB/SUB over ipc, the high-water marks off so that nothing is dropped."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from bench.peer import Peer, Receiver, Sender


class ZeroMQ(Peer):
    """One frame of 100 bytes, an empty subscription: its fastest form."""

    name = "pyzmq PUB/SUB ipc, HWM 0"

    @property
    def _address(self) -> str:
        return f"ipc://{self.directory}/{self.name.split()[0]}-{id(self):x}"

    def sender(self) -> Sender:
        return _Publisher(self._address)

    def receiver(self) -> Receiver:
        return _Subscriber(self._address)


class _Publisher(Sender):
    def __init__(self, address: str) -> None:
        import zmq

        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.PUB)
        self._socket.setsockopt(zmq.SNDHWM, 0)
        self._socket.bind(address)

    def send(self, data: bytes) -> None:
        self._socket.send(data)

    def send_all(self, payloads: Sequence[bytes]) -> None:
        send = self._socket.send
        for data in payloads:
            send(data)

    def close(self) -> None:
        self._socket.close(linger=0)
        self._context.term()


class _Subscriber(Receiver):
    def __init__(self, address: str) -> None:
        import zmq

        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.SUB)
        self._socket.setsockopt(zmq.RCVHWM, 0)
        self._socket.setsockopt(zmq.SUBSCRIBE, b"")
        self._socket.setsockopt(zmq.RECONNECT_IVL, 10)
        self._socket.connect(address)

    def receive(self, count: int) -> bytes:
        recv = self._socket.recv
        data = b""
        for _ in range(count):
            data = recv()
        return data

    def stream(self) -> Iterator[bytes]:
        while True:
            yield self._socket.recv()

    def close(self) -> None:
        self._socket.close(linger=0)
        self._context.term()
