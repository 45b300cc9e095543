"""Redis over a Unix socket, with a server of our own that persists nothing."""

from __future__ import annotations

import importlib
import importlib.util
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from bench.peer import Peer, Queue, Receiver, Sender, Taker

_CHANNEL = "bench"
_LIST, _PROCESSING = "bench", "bench:processing"
_PIPELINE = 100
_START_TIMEOUT = 10.0


class _Server(Peer):
    @staticmethod
    def available() -> bool:
        """A redis-server on PATH, and redis-py."""
        return bool(shutil.which("redis-server")) and bool(importlib.util.find_spec("redis"))

    @property
    def url(self) -> str:
        """The URL of its socket, as Celery has it."""
        return f"redis+socket://{self.socket}"

    @property
    def pid(self) -> int:
        """The pid of the server."""
        return self._server.pid

    def prepare(self) -> None:
        self.socket = str(self.directory / f"redis-{id(self):x}")
        options = {"port": "0", "unixsocket": self.socket, "save": "", "appendonly": "no"}
        # A slow reader is not thrown out: nothing may be lost here.
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
        return importlib.import_module("redis").Redis(unix_socket_path=self.socket)

    def dispose(self) -> None:
        self._server.terminate()
        self._server.wait()


class Redis(_Server):
    """One PUBLISH and its answer for each message, as most programs write it."""

    name = "Redis PUBLISH"

    def sender(self) -> Sender:
        return Sender(partial(self.connect().publish, _CHANNEL))

    def receiver(self) -> Receiver:
        return _Subscriber(self.connect())


class RedisPipeline(Redis):
    """PUBLISH in pipelines of 100."""

    name = "Redis PUBLISH, pipelines of 100"

    def sender(self) -> Sender:
        return _PipelinePublisher(self.connect())


class _PipelinePublisher(Sender):
    def __init__(self, client: Any) -> None:
        super().__init__(partial(client.publish, _CHANNEL))
        self._client = client

    def send_all(self, payloads: Sequence[bytes]) -> None:
        for i in range(0, len(payloads), _PIPELINE):
            pipeline = self._client.pipeline(transaction=False)
            for data in payloads[i : i + _PIPELINE]:
                pipeline.publish(_CHANNEL, data)
            pipeline.execute()


class _Subscriber(Receiver):
    def __init__(self, client: Any) -> None:
        super().__init__()
        self._pubsub = client.pubsub(ignore_subscribe_messages=True)
        self._pubsub.subscribe(_CHANNEL)

    def stream(self) -> Iterator[bytes]:
        for message in self._pubsub.listen():
            if message["type"] == "message":
                yield message["data"]


class RedisLists(_Server, Queue):
    """RPUSH; BLMOVE to a list of what is worked on, and LREM from it: nothing is lost."""

    name = "Redis lists, BLMOVE and LREM"
    has_many = True

    def sender(self) -> Sender:
        return _Producer(self.connect())

    def receiver(self) -> Taker:
        return _Worker(self.connect())

    def empty(self) -> None:
        self.connect().delete(_LIST)


class _Producer(Sender):
    def __init__(self, client: Any) -> None:
        super().__init__(partial(client.rpush, _LIST))

    def send_many(self, payloads: Sequence[bytes]) -> None:
        for i in range(0, len(payloads), _PIPELINE):
            self.send(*payloads[i : i + _PIPELINE])


class _Worker(Taker):
    def __init__(self, client: Any) -> None:
        super().__init__(self._move)
        self._client = client

    def _move(self) -> bytes:
        data: bytes = self._client.blmove(_LIST, _PROCESSING, 0)
        self._data = data
        return data

    def done(self) -> None:
        self._client.lrem(_PROCESSING, 1, self._data)
