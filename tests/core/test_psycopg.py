"""psycopg's tests of notifications, translated: T-PG3-1 to T-PG3-11."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

import pynotify
from receiving import PATIENCE, payloads
from sessions import Connect


def spawn(function: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=function)
    thread.start()
    return thread


@pytest.fixture
def foo(conn: pynotify.Connection) -> pynotify.Connection:
    conn.listen("foo")
    return conn


def test_notify_handlers(foo: pynotify.Connection) -> None:
    """T-PG3-1: two handlers, removal, double removal.

    psycopg calls them while it executes something; here they run in `poll()`.
    """
    first: list[pynotify.Notify] = []
    second: list[pynotify.Notify] = []
    foo.add_notify_handler(first.append)
    handler = second.append
    foo.add_notify_handler(handler)
    foo.notify("foo", "n1")
    foo.poll()
    assert first == second == [("foo", "n1", foo.pid)]
    remove = first.append
    foo.remove_notify_handler(remove)
    foo.notify("foo", "n2")
    foo.poll()
    assert len(first) == 1
    assert len(second) == 2
    message = second[1]
    assert isinstance(message, pynotify.Notify)
    assert message == ("foo", "n2", foo.pid)
    assert hash(message)
    with pytest.raises(ValueError):
        foo.remove_notify_handler(remove)


def test_generator(foo: pynotify.Connection, connect: Connect) -> None:
    """T-PG3-2: heard when sent, not before and not much later."""
    notifier = connect()
    sent: list[float] = []
    heard: list[tuple[pynotify.Notify, float]] = []
    first_heard = threading.Event()

    def notify() -> None:
        sent.append(time.monotonic())
        notifier.notify("foo", "1")
        first_heard.wait(PATIENCE)
        sent.append(time.monotonic())
        notifier.notify("foo", "2")

    worker = spawn(notify)
    generator = foo.notifies()
    for message in generator:
        heard.append((message, time.monotonic()))
        first_heard.set()
        if len(heard) == 2:
            generator.close()
    worker.join()
    assert [message for message, _ in heard] == [
        ("foo", "1", notifier.pid),
        ("foo", "2", notifier.pid),
    ]
    for (_message, then), began in zip(heard, sent, strict=True):
        assert began <= then < began + PATIENCE / 2


def test_no_notify_timeout(foo: pynotify.Connection) -> None:
    """T-PG3-3: without a notification it ends at the time-out."""
    began = time.monotonic()
    assert list(foo.notifies(timeout=0.1)) == []
    assert 0.1 <= time.monotonic() - began < PATIENCE


def test_notify_timeout(foo: pynotify.Connection, connect: Connect) -> None:
    """T-PG3-4: a notification restarts the wait."""
    notifier = connect()
    timer = threading.Timer(0.15, notifier.notify, ["foo", "1"])
    began = time.monotonic()
    timer.start()
    assert payloads(foo.notifies(timeout=0.6)) == ["1"]
    timer.join()
    assert time.monotonic() - began >= 0.15 + 0.6 - 0.01


def test_notify_timeout_0(foo: pynotify.Connection, connect: Connect) -> None:
    """T-PG3-5: `timeout=0` drains."""
    assert list(foo.notifies(timeout=0)) == []
    connect().notify("foo", "1")
    assert payloads(foo.notifies(timeout=0)) == ["1"]


def test_stop_after(foo: pynotify.Connection, connect: Connect) -> None:
    """T-PG3-6: stops after n."""
    notifier = connect()

    def notify() -> None:
        for payload in ("1", "2", "3"):
            notifier.notify("foo", payload)

    worker = spawn(notify)
    assert payloads(foo.notifies(timeout=PATIENCE, stop_after=2)) == ["1", "2"]
    worker.join()
    assert payloads(foo.notifies(timeout=0)) == ["3"]


def test_stop_after_batch(foo: pynotify.Connection, connect: Connect) -> None:
    """T-PG3-7, deliberately different: psycopg yields the whole batch, we exactly `stop_after`."""
    notifier = connect()

    def notify() -> None:
        with notifier.transaction():
            notifier.notify("foo", "1")
            notifier.notify("foo", "2")

    worker = spawn(notify)
    assert payloads(foo.notifies(timeout=PATIENCE, stop_after=1)) == ["1"]
    worker.join()
    assert payloads(foo.notifies(timeout=0)) == ["2"]


def test_notifies_does_not_block_others(foo: pynotify.Connection) -> None:
    """T-PG3-8, deliberately different: there, other use of the connection waits for it."""
    heard: list[str] = []
    worker = spawn(lambda: heard.extend(payloads(foo.notifies(timeout=PATIENCE, stop_after=1))))
    began = time.monotonic()
    foo.listen("bar")
    assert foo.listening_channels() == {"foo", "bar"}
    assert time.monotonic() - began < PATIENCE / 2
    foo.notify("foo", "end")
    worker.join(PATIENCE)
    assert heard == ["end"]


def test_generator_and_handler(foo: pynotify.Connection, connect: Connect) -> None:
    """T-PG3-9, deliberately different: psycopg warns; here both get every message."""
    handled: list[pynotify.Notify] = []
    foo.add_notify_handler(handled.append)
    connect().notify("foo", "1")
    heard = list(foo.notifies(timeout=PATIENCE, stop_after=1))
    assert heard == handled
    assert payloads(heard) == ["1"]


@pytest.mark.parametrize("query_between", [True, False])
def test_first_notify_not_lost(
    foo: pynotify.Connection, connect: Connect, query_between: bool
) -> None:
    """T-PG3-10: what arrives before the generator starts is kept."""
    connect().notify("foo", "hi")
    if query_between:
        foo.queue_usage()
        foo.notify("bar")
    assert payloads(foo.notifies(timeout=PATIENCE, stop_after=1)) == ["hi"]


@pytest.mark.parametrize("sleep_before", [True, False])
@pytest.mark.parametrize("listen_between", [True, False])
def test_notify_query_notify(
    foo: pynotify.Connection, connect: Connect, sleep_before: bool, listen_between: bool
) -> None:
    """T-PG3-11: 0, 1, 2 are all received, whatever happens in between."""
    notifier = connect()
    ready = threading.Event()

    def notify() -> None:
        ready.wait(PATIENCE)
        for number in range(3):
            notifier.notify("foo", str(number))

    worker = spawn(notify)
    heard: list[str] = []
    ready.set()
    if sleep_before:
        assert foo.wait(PATIENCE)
    heard += payloads(foo.notifies(timeout=PATIENCE, stop_after=1))
    if listen_between:
        with foo.transaction():
            foo.listen("bar")
            foo.notify("bar", "own")
    while len(heard) < 3 + listen_between:
        heard += payloads(foo.notifies(timeout=PATIENCE, stop_after=1))
    worker.join()
    assert [payload for payload in heard if payload != "own"] == ["0", "1", "2"]
