"""pynotify, through its public API."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, cast

import pynotify
from bench.peer import Peer, Receiver, Sender, look_at

CHANNEL = "bench"
BATCH = 1_000
# A reader that takes the whole backlog of a full ring at once works on memory that is in no cache.
AT_ONCE = 4_096


class Pynotify(Peer):
    """Each notification a transaction of its own; each message read as a Notify.

    Flow control: the ring has its default size of 8 MiB, and `on_full="block"` makes a sender
    that is ahead by more than that wait for the slowest listener.
    """

    name = "pynotify"
    _serial = 0

    def __init__(self, directory: Path, **options: Any) -> None:
        super().__init__(directory)
        Pynotify._serial += 1
        self.segment = f"bench-{os.getpid()}-{Pynotify._serial}"
        self._options: dict[str, Any] = {"on_full": "block"} | options

    def prepare(self) -> None:
        self.engine = pynotify.open(self.segment, **self._options)

    def sender(self) -> Sender:
        return _SingleSender(self.engine)

    def receiver(self) -> Receiver:
        return _NotifyReceiver(self.engine)

    def dispose(self) -> None:
        self.engine.close()
        pynotify.unlink(self.segment, force=True)


class PynotifyBatch(Pynotify):
    """notify_many() of 1,000, read with poll_batch().payloads()."""

    name = "pynotify, notify_many and poll_batch"
    at_once: int | None = None

    def sender(self) -> Sender:
        return _BatchSender(self.engine)

    def receiver(self) -> Receiver:
        return _BatchReceiver(self.engine, self.at_once)


class PynotifyPieces(PynotifyBatch):
    """The same with poll_batch(4,096)."""

    name = "pynotify, notify_many and poll_batch in pieces"
    at_once = AT_ONCE


class PynotifyCalling(Pynotify):
    """A function of Python called for each message."""

    name = "pynotify, a function called for each"

    def receiver(self) -> Receiver:
        return _CallingReceiver(self.engine)


class _SingleSender(Sender):
    def __init__(self, engine: pynotify.Engine) -> None:
        self._conn = engine.connect()
        super().__init__(partial(self._conn.notify, CHANNEL), self._conn.close)

    def send_all(self, payloads: Sequence[bytes]) -> None:
        notify = self._conn.notify
        for data in payloads:
            notify(CHANNEL, data)


class _BatchSender(_SingleSender):
    def send_all(self, payloads: Sequence[bytes]) -> None:
        notify_many = self._conn.notify_many
        for i in range(0, len(payloads), BATCH):
            notify_many(CHANNEL, payloads[i : i + BATCH])


class _NotifyReceiver(Receiver):
    def __init__(self, engine: pynotify.Engine) -> None:
        self._conn = engine.connect()
        super().__init__(self._conn.close)
        self._conn.listen(CHANNEL)

    def receive(self, count: int) -> bytes:
        channel, data = "", b""
        for notify in self._messages(count):
            channel, data = notify.channel, notify.data
        assert channel == CHANNEL
        return data

    def stream(self) -> Iterator[bytes]:
        for notify in self._messages(None):
            yield notify.data

    def _messages(self, count: int | None) -> Iterator[pynotify.Notify]:
        # A Gap comes only where the slowest listener is dropped, and here it is waited for.
        return cast("Iterator[pynotify.Notify]", self._conn.notifies(stop_after=count))


class _CallingReceiver(_NotifyReceiver):
    def receive(self, count: int) -> bytes:
        data = b""
        for notify in self._messages(count):
            data = notify.data
            look_at(data)
        return data


class _BatchReceiver(_NotifyReceiver):
    def __init__(self, engine: pynotify.Engine, at_once: int | None) -> None:
        super().__init__(engine)
        self._at_once = at_once

    def _batches(self, count: int) -> Iterator[list[bytes]]:
        wait, poll_batch, at_once = self._conn.wait, self._conn.poll_batch, self._at_once
        while count:
            wait()
            if batch := poll_batch(at_once):
                payloads = batch.payloads()
                count -= len(payloads)
                yield payloads

    def receive(self, count: int) -> bytes:
        last = b""
        for payloads in self._batches(count):
            last = payloads[-1]
        return last

    def collect(self, count: int) -> list[bytes]:
        return [data for payloads in self._batches(count) for data in payloads]
