"""Arrays and processes: what is left of those that die, and what a forked child has."""

from __future__ import annotations

import io
import logging
import os
import resource
import signal
from multiprocessing import Pipe
from typing import Any

import numpy as np
import pytest

import pynotify
from forking import ForkedChild
from pubsub.arrays import blocks, frame, in_queue, number_of
from pubsub.conftest import NewPubSub
from pubsub.objects import objects, take
from pynotify._array_files import array_files
from pynotify.pubsub import _memory
from sessions import Connect, NewWorker, Worker

# ---- processes that die --------------------------------------------------------------------------

_kept: list[Any] = []


def subscribe(name: str) -> None:
    pubsub = pynotify.PubSub(pynotify.connect(name))
    pubsub.subscribe("c")
    _kept.append(pubsub)


def hold() -> int:
    (array,) = objects(take(_kept[0], 1))
    _kept.append(array)
    return number_of(array)


def publish(name: str, number: int) -> None:
    pubsub = pynotify.PubSub(pynotify.connect(name))
    _kept.append(pubsub)
    pubsub.publish("c", frame(number))


def die(*_: Any, **__: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def publish_and_die(name: str, when: str) -> None:
    if when == "the block is made":
        os.posix_fallocate = die
    elif when == "the block is mapped":
        _memory.Mapping.__init__ = die  # type: ignore[method-assign]
    elif when == "it is written":
        np.copyto = die
    elif when == "it is placed":
        pynotify.Connection.notify_many = die  # type: ignore[method-assign,assignment]
    publish(name, 4)
    die()


@pytest.fixture
def reader(sender: pynotify.PubSub, engine_name: str, new_worker: NewWorker) -> Worker:
    """It holds the array that was sent first."""
    worker = new_worker()
    worker.call(subscribe, engine_name)
    sender.publish("c", frame(1))
    assert worker.call(hold) == 1
    return worker


def test_a_killed_reader_has_let_go(
    sender: pynotify.PubSub, engine_name: str, reader: Worker
) -> None:
    for number in range(3):
        sender.publish("c", frame(number))
    reader.kill()
    reader.await_end()
    sender.close()
    assert blocks(engine_name) == []


@pytest.mark.usefixtures("reader")
def test_a_living_reader_in_another_process_has_not(
    sender: pynotify.PubSub, engine_name: str
) -> None:
    sender.close()
    assert len(blocks(engine_name)) == 1


@pytest.mark.parametrize(
    "when", ["the block is made", "the block is mapped", "it is written", "it is placed"]
)
def test_a_publisher_killed_before_it_notifies_leaves_nothing(
    engine_name: str, new_worker: NewWorker, connect: Connect, receiver: pynotify.PubSub, when: str
) -> None:
    worker = new_worker()
    worker.start(publish_and_die, engine_name, when)
    worker.await_end()
    assert len(blocks(engine_name)) == 1
    assert receiver.run(0) == 0
    with pynotify.PubSub(connect()) as other:
        other.publish("c", frame(0))  # it makes an arena of its own
        assert len(blocks(engine_name)) == 1
        assert number_of(objects(take(receiver, 1))[0]) == 0
    assert blocks(engine_name) == []


def test_what_a_killed_publisher_has_sent_arrives(
    engine_name: str, new_worker: NewWorker, connect: Connect, receiver: pynotify.PubSub
) -> None:
    worker = new_worker()
    worker.start(publish_and_die, engine_name, "it was sent")
    worker.await_end()
    pynotify.PubSub(connect()).close()  # looks for what the dead have left
    (received,) = objects(take(receiver, 1))
    assert number_of(received) == 4
    pynotify.PubSub(connect()).close()
    assert len(blocks(engine_name)) == 1
    del received
    receiver.run(0)
    assert blocks(engine_name) == []


def test_a_closed_publisher_leaves_what_is_unread(
    engine_name: str, connect: Connect, receiver: pynotify.PubSub
) -> None:
    with pynotify.PubSub(connect()) as sender:
        for number in range(3):
            sender.publish("c", frame(number))
    assert len(blocks(engine_name)) == 3
    assert [number_of(array) for array in objects(take(receiver, 3))] == [0, 1, 2]
    receiver.run(0)
    assert blocks(engine_name) == []


def test_unlink_takes_all_files_and_arrays_stay(new_name: Any, new_worker: NewWorker) -> None:
    name = new_name()
    with pynotify.connect(name) as conn, pynotify.PubSub(conn) as pubsub:
        pubsub.subscribe("c")
        worker = new_worker()
        worker.call(publish, name, 6)
        (kept,) = objects(take(pubsub, 1))
        worker.kill()
        worker.await_end()
    assert array_files(name)
    pynotify.unlink(name)
    assert array_files(name) == []
    assert number_of(kept) == 6


def test_files_of_a_segment_with_a_longer_name_stay(new_name: Any) -> None:
    name = new_name()
    longer = f"{name}.{'0' * 16}"
    try:
        with pynotify.connect(longer) as conn, pynotify.PubSub(conn) as pubsub:
            pubsub.publish("c", frame(1))
            pynotify.connect(name).close()
            pynotify.unlink(name)
            assert len(blocks(longer)) == 1
    finally:
        pynotify.unlink(longer, force=True)


def publish_without_room(name: str) -> str:
    conn = pynotify.connect(name)
    _soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 19, hard))
    said = io.StringIO()
    logging.getLogger("pynotify").addHandler(logging.StreamHandler(said))
    with pynotify.PubSub(conn) as pubsub:
        for number in range(3):
            pubsub.publish("c", frame(number))
    conn.close()
    return said.getvalue()


def test_where_no_file_can_be_made_it_goes_through_the_queue(
    engine_name: str, new_worker: NewWorker, receiver: pynotify.PubSub
) -> None:
    said = new_worker().call(publish_without_room, engine_name)
    received = objects(take(receiver, 3))
    assert [number_of(array) for array in received] == [0, 1, 2]
    assert all(map(in_queue, received))
    assert said.count("an array of 1048576 bytes finds no place in /dev/shm") == 1
    assert blocks(engine_name) == []


def check_all(name: str, count: int) -> int:
    """Hold every seventh for a while; in the end, what is wrong."""
    wrong = 0
    held: list[tuple[int, Any]] = []
    for at, array in enumerate(obj for _, obj, _ in _kept[0]):
        wrong += number_of(array) != at
        if at % 7 == 0:
            held.append((at, array))
        if len(held) > 5:
            number, old = held.pop(0)
            wrong += number_of(old) != number
        if at + 1 == count:
            return wrong
    return -1


def test_readers_that_hold_and_a_publisher_that_does_not_wait(
    connect: Connect, new_pubsub: NewPubSub, engine_name: str, new_worker: NewWorker
) -> None:
    count = 1500
    sender = new_pubsub(connect(), max_shared=64 * 9 * (1 << 14))
    workers = [new_worker() for _ in range(2)]
    for worker in workers:
        worker.call(subscribe, engine_name)
        worker.start(check_all, engine_name, count)
    for number in range(count):
        sender.publish("c", frame(number, 1 << 14))
    assert [worker.result() for worker in workers] == [0, 0]


# ---- fork ----------------------------------------------------------------------------------------


def test_a_forked_child_keeps_what_the_parent_had(
    sender: pynotify.PubSub, receiver: pynotify.PubSub, engine_name: str
) -> None:
    sender.publish("c", frame(8))
    kept = objects(take(receiver, 1))
    theirs, ours = Pipe(duplex=False)

    def look() -> int:
        theirs.recv()
        return number_of(kept[0])

    child = ForkedChild(look)
    kept.clear()
    try:
        for number in range(5):
            sender.publish("c", frame(number))
            take(receiver, 1)
        assert len(blocks(engine_name)) == 2
    finally:
        ours.send("look")
        seen = child.result()
    assert seen == 8
    sender.close()
    assert blocks(engine_name) == []


def test_a_forked_child_that_lets_go_takes_nothing_from_the_parent(
    sender: pynotify.PubSub, receiver: pynotify.PubSub
) -> None:
    sender.publish("c", frame(8))
    kept = objects(take(receiver, 1))
    assert ForkedChild(kept.clear).result() is None
    for number in range(5):
        sender.publish("c", frame(number))
        take(receiver, 1)
    assert number_of(kept[0]) == 8


def test_a_forked_child_does_not_stand_for_its_parent(
    connect: Connect, receiver: pynotify.PubSub, engine_name: str
) -> None:
    """An arena has an owner, and a reader has something in hand, in the parent alone."""
    sender = pynotify.PubSub(connect())
    sender.publish("c", frame(8))
    theirs, ours = Pipe(duplex=False)
    child = ForkedChild(theirs.recv)
    try:
        sender.close()
        assert number_of(objects(take(receiver, 1))[0]) == 8
        receiver.run(0)
        assert blocks(engine_name) == []
    finally:
        ours.send(None)
        child.result()


def publish_and_fork(name: str) -> int:
    """The pid of a child that does nothing."""
    publish(name, 2)
    ready, said = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(said, b"!")
        while True:
            signal.pause()
    os.read(ready, 1)
    return pid


def test_a_killed_owner_is_dead_though_its_child_lives(
    engine_name: str, new_worker: NewWorker, connect: Connect
) -> None:
    worker = new_worker()
    child = worker.call(publish_and_fork, engine_name)
    try:
        worker.kill()
        worker.await_end()
        assert len(blocks(engine_name)) == 1
        pynotify.PubSub(connect()).close()
        assert blocks(engine_name) == []
    finally:
        os.kill(child, signal.SIGKILL)
