"""Subscriptions of one connection, read by many threads."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable

import pytest

import pynotify
from crowd import SWITCH_INTERVALS, Sender, run_threads, switching
from receiving import PATIENCE, payloads, wait_until
from sessions import Connect, RemoteSession

NEWS = "news"

Message = pynotify.Notify | pynotify.Gap


class Reader:
    """What one thread, or one after another, got from a subscription."""

    def __init__(self) -> None:
        self.messages: list[Message] = []

    def loop(self, sub: pynotify.Subscription) -> None:
        for message in sub:
            self.messages.append(message)

    def next(self, sub: pynotify.Subscription) -> None:
        """With and without a limit of time, which must lose nothing."""
        while not sub.closed:
            try:
                self.messages.append(sub.next(random.choice([0, 0.001, PATIENCE])))
            except pynotify.Timeout:
                continue
            except pynotify.InterfaceError:
                return

    def threads(self, sub: pynotify.Subscription) -> None:
        """`start()` and `stop()` again and again: one thread at a time, and none too many."""
        while not sub.closed:
            before = len(self.messages)
            thread = sub.start(self.messages.append)
            while len(self.messages) < before + 20 and thread.is_alive():
                thread.join(0.001)
            thread.stop()
            assert not thread.is_alive()


class Audience:
    """A subscription, the threads that read it, and what it must have got in the end."""

    def __init__(
        self, conn: pynotify.Connection, *readers: str, late: bool = False, **options: object
    ) -> None:
        self.sub = conn.subscribe(NEWS, **options)  # type: ignore[arg-type]
        self.readers = [Reader() for _ in readers]
        self._ways = readers
        self._late = late
        self._skipped = conn.backend_id if options.get("skip_self") else None

    def bodies(self, half: threading.Event) -> list[Callable[[], None]]:
        def body(reader: Reader, way: str) -> None:
            if self._late:
                assert half.wait(PATIENCE)
            getattr(reader, way)(self.sub)

        return [
            lambda reader=reader, way=way: body(reader, way)
            for reader, way in zip(self.readers, self._ways, strict=True)
        ]

    def due(self, everything: list[pynotify.Notify]) -> list[pynotify.Notify]:
        return [message for message in everything if message.backend_id != self._skipped]

    def received(self) -> int:
        """How many are accounted for."""
        return sum(
            message.missed or 0 if isinstance(message, pynotify.Gap) else 1
            for reader in self.readers
            for message in tuple(reader.messages)
        )

    def check(self, everything: list[pynotify.Notify]) -> None:
        due = self.due(everything)
        assert self.received() == len(due)
        place = {message.payload: number for number, message in enumerate(due)}
        gaps = []
        seen: list[int] = []
        for reader in self.readers:
            heard = []
            at = 0
            for message in reader.messages:
                if isinstance(message, pynotify.Gap):
                    gaps.append(message)
                    assert message.missed
                    lost = due[at : at + message.missed]
                    at += message.missed
                    if len(self.readers) == 1:
                        assert message.missed_bytes == sum(len(gone.data) for gone in lost)
                else:
                    heard.append(place[message.payload])
                    if len(self.readers) == 1:
                        assert heard[-1] == at, "not what comes next, nor what a Gap stands for"
                    at += 1
            assert heard == sorted(heard)
            seen += heard
        assert len(set(seen)) == len(seen)
        assert sum(gap.missed or 0 for gap in gaps) == self.sub.dropped == len(due) - len(seen)
        assert {gap.reason for gap in gaps} <= {pynotify.Gap.OVERFLOW}


def send_in_transactions(conn: pynotify.Connection, sender: Sender, half: threading.Event) -> None:
    """`half` is set when it has sent half of it."""
    for number in range(100):
        if number == 50:
            half.set()
        payload = sender.payload()
        with conn.transaction():
            conn.notify(NEWS, payload)
            conn.notify_many(NEWS, [f"{payload} a", f"{payload} b"])
            with conn.transaction():
                conn.notify(NEWS, f"{payload} never")
                raise pynotify.Rollback


def come_and_go(conn: pynotify.Connection, name: str) -> list[list[str]]:
    """Subscriptions that last for a few messages: what each of them got."""
    parts = []
    for number in range(40):
        with conn.subscribe(NEWS, maxlen=None) as sub:
            conn.notify(NEWS, f"{name} {number}")
            heard: list[str] = []
            while not heard or heard[-1] != f"{name} {number}":
                heard.append(sub.next(PATIENCE).payload)
            parts.append(heard)
    return parts


@pytest.mark.parametrize("interval", SWITCH_INTERVALS)
def test_eight_subscriptions_of_one_connection(
    interval: float | None, engine_name: str, connect: Connect, remote: Callable[..., RemoteSession]
) -> None:
    """Each gets everything exactly once and in order, but for what it says it has dropped."""
    conn, witness = connect(), connect()
    witness.listen(NEWS)
    conn.listen(NEWS)
    audiences = [
        Audience(conn, "loop", maxlen=None),
        Audience(conn, "threads", maxlen=8, overflow="block"),
        Audience(conn, "next", "loop", maxlen=16, overflow="block"),
        Audience(conn, "next", late=True, maxlen=16, overflow="drop-oldest"),
        Audience(conn, "loop", late=True, maxlen=16, overflow="drop-newest"),
        Audience(conn, "next", "next", late=True, maxlen=5, overflow="drop-oldest"),
        Audience(conn, "threads", late=True, maxlen=5, overflow="drop-newest"),
        Audience(conn, "next", maxlen=None, skip_self=True),
    ]
    half = threading.Event()
    senders = [Sender(conn, f"thread {number}") for number in range(4)]
    parts: dict[str, list[list[str]]] = {}
    polled: list[Message] = []
    everything: list[pynotify.Notify] = []

    def end() -> None:
        """When all of it has arrived, and the other thread has nothing more to say."""
        for thread in working:
            thread.join(PATIENCE)
            assert not thread.is_alive()
        far.worker.result()
        everything.extend(witness.poll())
        deadline = time.monotonic() + PATIENCE
        for audience in audiences:
            while audience.received() < len(audience.due(everything)):
                assert time.monotonic() < deadline, (audience.sub, audience.received())
                polled.extend(conn.poll())
                conn.wait(0.001)
            audience.sub.close()

    far = remote(engine_name)
    working = [
        threading.Thread(target=send_in_transactions, args=(conn, sender, half))
        for sender in senders
    ] + [threading.Thread(target=lambda: parts.update(goer=come_and_go(conn, "goer")))]
    far.run(send_news, 300)
    with switching(interval):
        for thread in working:
            thread.start()
        run_threads(end, *(body for audience in audiences for body in audience.bodies(half)))

    polled += conn.poll()
    order = [message.payload for message in everything]
    assert len(order) == len(set(order)) == 4 * 100 * 3 + 40 + 300
    assert payloads(polled) == order
    for audience in audiences:
        audience.check(everything)
    for audience in audiences[3:7]:
        assert audience.sub.dropped > 0
    for number, part in enumerate(parts["goer"]):
        assert part[-1] == f"goer {number}"
        last = order.index(part[-1])
        assert part == order[last + 1 - len(part) : last + 1]


def send_news(conn: pynotify.Connection, count: int) -> None:
    """In another process."""
    for number in range(count):
        conn.notify(NEWS, f"afar {number}")


def test_a_look_does_not_take_the_wake_up_of_a_stalled_thread(conn: pynotify.Connection) -> None:
    """One thread sleeps, as a full subscription lets it read nothing; others look in passing, and
    one makes room.  A sleeper that was forgotten would go on after a second, twenty times."""
    full = conn.subscribe("full", maxlen=1, overflow="block")
    other = conn.subscribe("other")
    heard: list[str] = []
    thread = other.start(lambda message: heard.append(message.payload))
    began = time.monotonic()
    for number in range(20):
        conn.notify("full", str(number))
        conn.notify("other", str(number))
        wait_until(lambda: full.pending == 1, "the thread has read for all")
        for _ in range(50):
            conn.wait(0)
        assert full.next(0).payload == str(number)
        wait_until(lambda number=number: len(heard) > number, "it went on")
    assert time.monotonic() - began < PATIENCE / 4
    thread.stop()
    assert heard == [str(number) for number in range(20)]
