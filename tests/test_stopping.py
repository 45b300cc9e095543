"""Workers that wait, all of which are told to stop at once: by Ctrl-C, a supervisor, a container.

Each is asleep in the kernel and stopped there; then comes a wake-up of ours, which brings nothing,
and the signal.  So one sleep is ended by both, as when the first of a group closes its connection.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import pytest

import pynotify
from receiving import wait_until
from sessions import Connect, EngineFactory, NewWorker, Worker

GROUP = 3


class Told(BaseException):
    """What the handler raises, as KeyboardInterrupt; not for anybody who catches errors."""


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
