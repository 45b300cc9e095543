"""Does any hot call leave objects, or references to objects, behind?

Each call is made thousands of times; prints a line for each that left something, and at the end how
many were tried.  In a debug build of Python all references are counted, if the extension was
compiled with it; in others memory blocks, and the references to what many calls refer to.
"""

from __future__ import annotations

import gc
import pickle
import sys
from collections.abc import Callable
from contextlib import suppress

import pynotify

CALLS = 2_500
WARM_UP = 300
IMMORTAL = 1 << 30
ALLOWED = 500  # caches, and what is made now and then; Python 3.13 has 220

conn = pynotify.connect(sys.argv[1], max_payload=70_000)
conn.listen("d")
sub = conn.subscribe("s")
topic = conn.topic("t")
consumer = topic.channel("t").consumer(max_in_flight=4)
generation = conn.generation("g")
large = ["x" * 60_000, "y" * 60_000]
plain = pynotify.connect(sys.argv[1])
plain.listen("c", "e")


def wrong(call: Callable[[], object]) -> None:
    with suppress(pynotify.Error, TypeError, IndexError, ValueError):
        call()


def notify_and_poll() -> None:
    plain.notify("c", "payload")
    plain.notify("e", b"payload")
    for message in plain.poll():
        assert message.payload, message.order


def batch() -> None:
    plain.notify_many("c", ["a", b"b", "c"])
    received = plain.poll_batch()
    assert len(received.payloads()) == 3
    assert [message.channel for message in received] == ["c"] * 3
    assert bytes(received.data(1)) == b"b"
    assert len(memoryview(received._columns.seq)) == 24  # not by numpy, which is no debug build


def large_batch() -> None:
    plain.notify_many("c", large)
    received = plain.poll_batch()
    view = received.data(1)
    del received
    assert view[0] == ord("y")


def columns_pickled() -> None:
    plain.notify("c", "x")
    assert pickle.loads(pickle.dumps(plain.poll_batch())).payloads() == [b"x"]


def with_headers() -> None:
    plain.notify("c", "payload", headers={"k": "v"})
    plain.notify_many("c", ["a", b"b"], headers={"k": "v"})
    for message in plain.poll():
        assert isinstance(message, pynotify.Notify)
        assert message.headers == {"k": "v"} and message.payload
        assert pickle.loads(pickle.dumps(message)).headers
    plain.notify("c", "payload", headers={"k": "v"})
    received = plain.poll_batch()
    assert received.headers(0) and pickle.loads(pickle.dumps(received)).headers(0)


def routed() -> None:
    conn.notify("s", "x")
    conn.notify("d", "y")
    conn.poll()
    assert sub.next(0).channel == "s"


def transaction() -> None:
    with plain.transaction():
        plain.notify("e", "x")
        plain.notify_many("e", ["x", b"y"])
        generation.bump()
    plain.wait(0)
    plain.poll()
    with conn.transaction():
        topic.publish("x", ttl=60)
        topic.publish_many(["y", b"z"])
        wrong(lambda: topic.publish(1))  # type: ignore[arg-type]
    topic.publish_many(["x"])
    messages = [consumer.get(timeout=0) for _ in range(4)]
    with conn.transaction():
        for message in messages:
            message.finish()
    conn.poll()


def job() -> None:
    topic.publish("x")
    topic.publish(b"y", headers={"k": "v"})
    for _ in range(2):
        message = consumer.get(timeout=0)
        assert message is not None
        message.finish()


def errors() -> None:
    wrong(lambda: plain.notify("", "x"))
    wrong(lambda: plain.notify("c", "x" * 80_000))
    wrong(lambda: plain.notify("c", 1))  # type: ignore[arg-type]
    wrong(lambda: plain.notify("c", "x", pay=1))  # type: ignore[call-arg]
    wrong(lambda: plain.notify("c", "x", headers={"k": 1}))  # type: ignore[dict-item]
    wrong(lambda: plain.notify("c", "x", headers={"k": "x" * 70_000}))
    wrong(lambda: pynotify.Notify("c", "x", headers=1))  # type: ignore[arg-type]
    wrong(lambda: plain.notify_many("c", ["x", 1]))  # type: ignore[list-item]
    wrong(lambda: plain.notify_many("c", ["\ud800"]))
    wrong(lambda: plain.poll("x"))  # type: ignore[arg-type]
    wrong(lambda: topic.publish(""))
    wrong(lambda: topic.publish(1))  # type: ignore[arg-type]
    wrong(lambda: topic.publish("x", wrong=1))  # type: ignore[call-arg]
    wrong(lambda: pynotify.Notify("c", b"\xff").payload)  # type: ignore[arg-type, return-value]
    wrong(lambda: pynotify.Notify(1, 2))  # type: ignore[arg-type]


def value_of_a_message() -> None:
    message = pynotify.Notify("c", "x", 1)
    assert message == ("c", "x", 1) and hash(message) and repr(message) and message[0] == "c"
    assert pickle.loads(pickle.dumps(message)) == message
    assert generation.value >= 0


TRIED: list[Callable[[], None]] = [
    notify_and_poll, batch, large_batch, columns_pickled, with_headers, routed, transaction, job,
    errors, value_of_a_message,
]  # fmt: skip


SHARED = [
    None, True, False, (), 0, 1, "", b"", "c", "e", "d", "x", b"x", bytes, str, int, list, tuple,
    pynotify.Notify, type(plain.poll_batch()._columns), type(generation), pynotify.Gap,
    plain, conn, plain._handle, conn._handle, plain._receiver, plain._receiver.batch,
    plain._handlers, topic, consumer, generation, *plain._receiver.batch.channels,
]  # fmt: skip


def counted() -> list[int]:
    gc.collect()
    if hasattr(sys, "gettotalrefcount"):
        return [sys.gettotalrefcount()]
    # Python 3.14 does not count those of what is immortal, and a module with the ABI of 3.11 does.
    mortal = (count for count in map(sys.getrefcount, SHARED) if count < IMMORTAL)
    return [sys.getallocatedblocks(), *mortal]


def growth_of(call: Callable[[], None]) -> int:
    for _ in range(WARM_UP):
        call()
    before = counted()
    for _ in range(CALLS):
        call()
    return max(now - then for now, then in zip(counted(), before, strict=True))


for call in TRIED:
    if (growth := growth_of(call)) > ALLOWED:
        print(f"{call.__name__}: {growth} more")
print(f"{len(TRIED)} tried")
