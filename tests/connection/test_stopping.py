"""Workers that wait, all of which are told to stop at once: by Ctrl-C, a supervisor, a container.

Each is asleep in the kernel and stopped there; then comes a wake-up of ours, which brings nothing,
and the signal.  So one sleep is ended by both, as when the first of a group closes its connection.
"""

from __future__ import annotations

import contextlib
import select
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import pytest

import pynotify
from receiving import wait_until
from sessions import Connect, EngineFactory, NewWorker, Worker

GROUP = 3


class Told(BaseException):
    """What the handler raises, as KeyboardInterrupt; not for code that catches errors."""


def _raise(_number: int, _frame: FrameType | None) -> None:
    raise Told


def _wait(conn: pynotify.Connection) -> None:
    conn.listen("c")
    while not conn.wait():
        pass


def _notifies(conn: pynotify.Connection) -> None:
    conn.listen("c")
    for _ in conn.notifies():
        pass


def _next(conn: pynotify.Connection) -> None:
    conn.subscribe("c").next()


def _get(conn: pynotify.Connection) -> None:
    conn.topic("t").channel("c").consumer().get()


def _iterate(conn: pynotify.Connection) -> None:
    for _ in conn.topic("t").channel("c").consumer():
        pass


def _run(conn: pynotify.Connection) -> None:
    conn.topic("t").channel("c").consumer().run(print)


def _drain(conn: pynotify.Connection) -> None:
    """The handler does not raise: the loop ends."""
    consumer = conn.topic("t").channel("c").consumer()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda _number, _frame: consumer.drain() and None)
    consumer.run(print)


KINDS = [_wait, _notifies, _next, _get, _iterate, _run, _drain]


def wait_until_told(name: str, how: Callable[[pynotify.Connection], None]) -> str:
    """In a process of its own."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _raise)
    try:
        with pynotify.connect(name) as conn:
            how(conn)
    except Told:
        return "told"
    return "returned"


def is_blocked(worker: Worker) -> bool:
    return Path(f"/proc/{worker.pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "S"


def waiting(engine: pynotify.Engine) -> int:
    """Listeners that sleep, and consumers."""
    consumers = sum(
        len(channel.consumers) for topic in engine.topics() for channel in topic.channels
    )
    backends = engine.stat().backends
    return consumers + sum(backend.asleep and backend.channels > 0 for backend in backends)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("how", KINDS)
def test_a_group_stops(
    make_engine: EngineFactory,
    connect: Connect,
    new_worker: NewWorker,
    how: Callable[[pynotify.Connection], None],
    number: int,
) -> None:
    engine = make_engine()
    group = [new_worker() for _ in range(GROUP)]
    for worker in group:
        worker.start(wait_until_told, make_engine.name_of(engine), how)
    wait_until(lambda: waiting(engine) == GROUP, "all of them wait")
    wait_until(lambda: all(map(is_blocked, group)), "all of them are in the kernel")
    for worker in group:
        worker.suspend()
    connect(to=engine)  # those in front of it have to watch it
    for worker in group:
        worker.signal(number)
    for worker in group:
        worker.resume()
    expected = "returned" if how is _drain else "told"
    assert [worker.result() for worker in group] == [expected] * GROUP


# ---- many rounds, with real signals and nothing held back ---------------------------------------


def _fileno(conn: pynotify.Connection) -> None:
    consumer = conn.topic("t").channel("c").consumer()
    descriptor = consumer.fileno()
    while True:
        select.select([descriptor], [], [])
        with contextlib.suppress(pynotify.Timeout):
            consumer.get(timeout=0)


def _pubsub(conn: pynotify.Connection) -> None:
    ps = pynotify.PubSub(conn)
    ps.subscribe("c")
    for _ in ps:
        pass


def end_by(name: str, how: Callable[[pynotify.Connection], None], handling: str) -> str:
    """In a process of its own, until the handler has ended it: by sys.exit() or by close()."""
    conn = pynotify.connect(name)

    def handler(_number: int, _frame: FrameType | None) -> None:
        if handling == "close":
            conn.close()
        sys.exit()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, handler)
    with contextlib.suppress(SystemExit):
        how(conn)
        return "returned"
    conn.close()
    return "ended"


@pytest.mark.full
@pytest.mark.parametrize("size", [2, 4, 16])
@pytest.mark.parametrize("how", [_wait, _notifies, _next, _get, _run, _pubsub, _fileno])
def test_groups_stop_again_and_again(
    make_engine: EngineFactory,
    new_worker: NewWorker,
    how: Callable[[pynotify.Connection], None],
    size: int,
) -> None:
    """The first that ends signals those in front of it, which the signal reaches just then."""
    name = make_engine.name_of(make_engine())
    group = [new_worker() for _ in range(size)]
    for turn in range(8):
        handling = ("exit", "close")[turn % 2]
        for worker in group:
            worker.start(end_by, name, how, handling)
        with pynotify.open(name) as engine:
            wait_until(lambda engine=engine: waiting(engine) == size, "all of them wait")
        wait_until(lambda: all(map(is_blocked, group)), "all of them are in the kernel")
        for worker in group:
            worker.signal((signal.SIGTERM, signal.SIGINT)[turn // 2 % 2])
        assert [worker.result() for worker in group] == ["ended"] * size


def _hear_all(name: str, total: int) -> tuple[int, int]:
    """What was heard of a stream, and how many signals were handled, one of them after the last."""
    handled: list[int] = []
    signal.signal(signal.SIGUSR2, lambda number, _frame: handled.append(number))
    heard = 0
    with pynotify.connect(name) as conn:
        conn.listen("c")
        for message in conn.notifies():
            assert message.payload == str(heard)
            heard += 1
            if heard == total:
                break
        seen = len(handled)
        while len(handled) == seen:
            conn.wait(0.001)
    return heard, seen


@pytest.mark.full
def test_signals_beside_a_stream(
    make_engine: EngineFactory, connect: Connect, new_worker: NewWorker
) -> None:
    """A signal every millisecond: neither they nor the messages get lost."""
    total = 3000
    engine = make_engine()
    conn, worker = connect(to=engine), new_worker()
    worker.start(_hear_all, make_engine.name_of(engine), total)
    wait_until(lambda: waiting(engine) == 1, "it listens")
    over = threading.Event()

    def annoy() -> None:
        while not over.wait(0.001):
            worker.signal(signal.SIGUSR2)

    thread = threading.Thread(target=annoy)
    thread.start()
    try:
        for number in range(total):
            conn.notify("c", str(number))
            over.wait(0.0005)  # so that it sleeps in between
        heard, handled = worker.result()
    finally:
        over.set()
        thread.join()
    assert heard == total
    assert handled > 0
