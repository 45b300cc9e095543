"""nsqd over TCP on this host, by its protocol V2; the server is started from the binary given."""

from __future__ import annotations

import socket
import struct
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.peer import Queue, Sender, Taker

_TOPIC, _CHANNEL = b"bench", b"work"
_BATCH = 200
_READY = 100
_START_TIMEOUT = 10.0
_RESPONSE, _ERROR, _MESSAGE = range(3)
_HEARTBEAT = b"_heartbeat_"
_IDENTIFY = b'{"heartbeat_interval":60000,"output_buffer_timeout":1}'


class Nsqd(Queue):
    """PUB and its OK for each message, MPUB of 200, FIN for each, RDY 100; all in its memory."""

    name = "nsqd"
    has_many = True

    def __init__(self, directory: Path, binary: Path) -> None:
        super().__init__(directory)
        self._binary = binary

    def prepare(self) -> None:
        ports = _free_ports(2)
        data = self.directory / f"nsqd-{id(self):x}"
        data.mkdir()
        self.address = ("127.0.0.1", ports[0])
        self._http = ("127.0.0.1", ports[1])
        self._server = subprocess.Popen(
            [
                str(self._binary),
                f"--tcp-address=127.0.0.1:{ports[0]}",
                f"--http-address=127.0.0.1:{ports[1]}",
                f"--data-path={data}",
                "--mem-queue-size=1000000",
                "--log-level=error",
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        deadline = time.monotonic() + _START_TIMEOUT
        while True:
            try:
                _Connection(self.address).close()
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.01)
            else:
                break
        self._post(f"/topic/create?topic={_TOPIC.decode()}")
        self._post(f"/channel/create?topic={_TOPIC.decode()}&channel={_CHANNEL.decode()}")

    def _post(self, path: str) -> None:
        with socket.create_connection(self._http) as connection:
            head = f"POST {path} HTTP/1.1\r\nHost: nsqd\r\nContent-Length: 0\r\n"
            connection.sendall(f"{head}Connection: close\r\n\r\n".encode())
            assert b" 200 " in connection.recv(4096).partition(b"\r\n")[0]

    def sender(self) -> Sender:
        return _Producer(self.address)

    def receiver(self) -> Taker:
        return _Worker(self.address)

    def empty(self) -> None:
        self._post(f"/channel/empty?topic={_TOPIC.decode()}&channel={_CHANNEL.decode()}")
        self._post(f"/topic/empty?topic={_TOPIC.decode()}")

    def dispose(self) -> None:
        self._server.terminate()
        self._server.wait()


def _free_ports(count: int) -> list[int]:
    servers = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [server.getsockname()[1] for server in servers]
    for server in servers:
        server.close()
    return ports


class _Connection:
    """Commands out, frames in."""

    def __init__(self, address: tuple[str, int]) -> None:
        self._socket = socket.create_connection(address)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._file: Any = self._socket.makefile("rb", buffering=1 << 16)
        self.send(b"  V2IDENTIFY\n" + struct.pack(">I", len(_IDENTIFY)) + _IDENTIFY)
        self.ok()

    def send(self, data: bytes) -> None:
        self._socket.sendall(data)

    def frame(self) -> tuple[int, bytes]:
        size, kind = struct.unpack(">II", self._file.read(8))
        return kind, self._file.read(size - 4)

    def ok(self) -> None:
        while True:
            kind, data = self.frame()
            if kind == _ERROR:
                raise ConnectionError(data.decode())
            if data != _HEARTBEAT:
                return
            self.send(b"NOP\n")

    def close(self) -> None:
        self._file.close()
        self._socket.close()


class _Producer(Sender):
    def __init__(self, address: tuple[str, int]) -> None:
        self._connection = _Connection(address)
        super().__init__(self._publish, self._connection.close)

    def _publish(self, data: bytes) -> None:
        self._connection.send(b"PUB %b\n%b%b" % (_TOPIC, struct.pack(">I", len(data)), data))
        self._connection.ok()

    def send_many(self, payloads: Sequence[bytes]) -> None:
        for i in range(0, len(payloads), _BATCH):
            batch = payloads[i : i + _BATCH]
            parts = b"".join(struct.pack(">I", len(data)) + data for data in batch)
            head = struct.pack(">II", len(parts) + 4, len(batch))
            self._connection.send(b"MPUB %b\n%b%b" % (_TOPIC, head, parts))
            self._connection.ok()


class _Worker(Taker):
    def __init__(self, address: tuple[str, int]) -> None:
        self._connection = _Connection(address)
        super().__init__(self._message, self._connection.close)
        self._connection.send(b"SUB %b %b\n" % (_TOPIC, _CHANNEL))
        self._connection.ok()
        self._connection.send(b"RDY %d\n" % _READY)

    def _message(self) -> bytes:
        while True:
            kind, data = self._connection.frame()
            if kind == _MESSAGE:
                self._id = data[10:26]
                return data[26:]
            if data == _HEARTBEAT:
                self._connection.send(b"NOP\n")

    def done(self) -> None:
        self._connection.send(b"FIN %b\n" % self._id)
