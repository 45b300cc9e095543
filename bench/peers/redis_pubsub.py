"""Redis PUBLISH/SUBSCRIBE over a Unix socket, with a server of our own that persists nothing."""

from __future__ import annotations

import importlib
import importlib.util
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from typing import Any

from bench.peer import Peer, Receiver, Sender

_CHANNEL = "bench"
_PIPELINE = 100
_START_TIMEOUT = 10.0


class Redis(Peer):
    """One PUBLISH and its answer for each message, as most programs write it."""

    name = "Redis PUBLISH"

    @staticmethod
    def available() -> bool:
        """A redis-server on PATH, and redis-py."""
        return bool(shutil.which("redis-server")) and bool(importlib.util.find_spec("redis"))

    def prepare(self) -> None:
        self._socket = str(self.directory / f"redis-{id(self):x}")
        options = {"port": "0", "unixsocket": self._socket, "save": "", "appendonly": "no"}
        # Nobody is thrown out for reading slowly: nothing may be lost here.
        command = ["redis-server", "--client-output-buffer-limit", "pubsub", "0", "0", "0"]
        for key, value in options.items():
            command += [f"--{key}", value]
        self._server = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=self.directory
        )
        self._wait_for_server()

    def _wait_for_server(self) -> None:
        errors = importlib.import_module("redis.exceptions")
        deadline = time.monotonic() + _START_TIMEOUT
        while True:
            try:
                self.connect().ping()
            except errors.ConnectionError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.01)
            else:
                return

    def connect(self) -> Any:
        return importlib.import_module("redis").Redis(unix_socket_path=self._socket)

    def sender(self) -> Sender:
        return _Publisher(self.connect())

    def receiver(self) -> Receiver:
        return _Subscriber(self.connect())

    def dispose(self) -> None:
        self._server.terminate()
        self._server.wait()


class RedisPipeline(Redis):
    """PUBLISH in pipelines of 100."""

    name = "Redis PUBLISH, pipelines of 100"

    def sender(self) -> Sender:
        return _PipelinePublisher(self.connect())


class _Publisher(Sender):
    def __init__(self, client: Any) -> None:
        self._client = client

    def send(self, data: bytes) -> None:
        self._client.publish(_CHANNEL, data)

    def send_all(self, payloads: Sequence[bytes]) -> None:
        publish = self._client.publish
        for data in payloads:
            publish(_CHANNEL, data)


class _PipelinePublisher(_Publisher):
    def send_all(self, payloads: Sequence[bytes]) -> None:
        for i in range(0, len(payloads), _PIPELINE):
            pipeline = self._client.pipeline(transaction=False)
            for data in payloads[i : i + _PIPELINE]:
                pipeline.publish(_CHANNEL, data)
            pipeline.execute()


class _Subscriber(Receiver):
    def __init__(self, client: Any) -> None:
        self._pubsub = client.pubsub(ignore_subscribe_messages=True)
        self._pubsub.subscribe(_CHANNEL)

    def receive(self, count: int) -> bytes:
        data = b""
        for message in self._pubsub.listen():
            if message["type"] != "message":
                continue
            data = message["data"]
            count -= 1
            if not count:
                break
        return data

    def stream(self) -> Iterator[bytes]:
        for message in self._pubsub.listen():
            if message["type"] == "message":
                yield message["data"]
