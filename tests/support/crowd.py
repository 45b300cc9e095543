"""Many threads at once: started together, each with a record of what it did."""

from __future__ import annotations

import contextlib
import random
import sys
import threading
from collections.abc import Callable, Iterator

import pytest

import pynotify
from receiving import PATIENCE, readable

KEPT = ("kept a", "kept b")
"""Channels that stay listened to."""

#: Of the interpreter, in seconds; None: as it is.
SWITCH_INTERVALS = [pytest.param(None, id="usual"), pytest.param(1e-6, id="every microsecond")]


def run_threads(*bodies: Callable[[], None]) -> None:
    """Start one thread for each, together, and wait for their ends."""
    errors: list[BaseException] = []
    start = threading.Barrier(len(bodies))

    def run(body: Callable[[], None]) -> None:
        start.wait()
        try:
            body()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(body,)) for body in bodies]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(3 * PATIENCE)
    assert not any(thread.is_alive() for thread in threads)
    if errors:
        raise errors[0]


@contextlib.contextmanager
def switching(interval: float | None) -> Iterator[None]:
    """Threads take turns so often."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(interval or before)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


class Sender:
    """What one thread sends on the kept channels: which of it was committed, and which never."""

    def __init__(self, conn: pynotify.Connection, name: str) -> None:
        self.conn = conn
        self.name = name
        self.rng = random.Random(name)
        self.committed: list[str] = []
        self.never: list[str] = []
        self._number = 0

    def payload(self) -> str:
        self._number += 1
        return f"{self.name} {self._number}"

    def notify(self) -> None:
        payload = self.payload()
        self.conn.notify(self.rng.choice(KEPT), payload)
        self.committed.append(payload)

    def notify_many(self) -> None:
        sent = [self.payload() for _ in range(self.rng.randrange(1, 12))]
        assert self.conn.notify_many(self.rng.choice(KEPT), sent) == len(sent)
        self.committed += sent

    def blocks(self) -> None:
        """Nested blocks, each of which may be undone, and with it those inside."""
        kept = self._block(0)
        self.committed += kept

    def _block(self, depth: int) -> list[str]:
        """What of it is left when it has been left."""
        sent: list[str] = []
        undone = self.rng.random() < 0.3
        with self.conn.transaction() as tx:
            assert self.conn.in_transaction
            assert self.conn.poll() == []
            for _ in range(self.rng.randrange(3)):
                sent.append(self.payload())
                self.conn.notify(self.rng.choice(KEPT), sent[-1])
                if depth < 3 and self.rng.random() < 0.4:
                    sent += self._block(depth + 1)
            if undone:
                self.never += sent
                sent = []
                raise pynotify.Rollback(tx)
        return sent

    def explicit(self) -> None:
        conn = self.conn
        conn.begin()
        first, second, third = self.payload(), self.payload(), self.payload()
        conn.notify(KEPT[0], first)
        conn.savepoint("s")
        conn.notify(KEPT[1], second)
        with pytest.raises(pynotify.ActiveTransaction):
            conn.wait(0)
        conn.rollback_to("s")
        conn.notify(KEPT[0], third)
        conn.release("s")
        self.never.append(second)
        if self.rng.random() < 0.3:
            conn.rollback()
            self.never += [first, third]
        else:
            conn.commit()
            self.committed += [first, third]
        assert not conn.in_transaction

    def channels(self) -> None:
        """Comes and goes with channels of its own, and with one that others come and go with."""
        conn, own = self.conn, f"own {self.name}"
        conn.listen(own, "in and out")
        conn.notify(own, self.payload())
        conn.notify("in and out", self.payload())
        with conn.transaction():
            conn.unlisten(own)
            conn.listen(KEPT[0])
        conn.unlisten("in and out")
        assert set(KEPT) <= conn.listening_channels()


class Receiver:
    """What one thread receives, by every method in turn."""

    def __init__(self, conn: pynotify.Connection, name: str) -> None:
        self.conn = conn
        self.rng = random.Random(name)
        self.messages: list[pynotify.Notify] = []
        self._descriptor = conn.fileno()

    def poll(self) -> None:
        self.messages += self.conn.poll(max=self.rng.choice([None, None, 1, 3]))

    def poll_batch(self) -> None:
        self.messages += list(self.conn.poll_batch(max=self.rng.choice([None, 2])))

    def notifies(self) -> None:
        for message in self.conn.notifies(timeout=0, stop_after=self.rng.choice([None, 1, 4])):
            self.messages.append(message)
            if self.rng.random() < 0.1:
                break

    def wait(self) -> None:
        self.conn.wait(self.rng.choice([0, 0.001]))
        self.poll()

    def descriptor(self) -> None:
        if readable(self._descriptor):
            self.poll()


def assert_order(messages: list[pynotify.Notify]) -> None:
    """Commit order, and each sender's own."""
    numbers = [message.seq for message in messages]
    assert numbers == sorted(numbers)
    latest: dict[tuple[str, bool], int] = {}
    for message in messages:
        sender, _, number = message.payload.rpartition(" ")
        key = sender, message.channel in KEPT
        assert int(number) > latest.get(key, -1)
        latest[key] = int(number)
