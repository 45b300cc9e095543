"""A Connection is thread-safe, an Engine too."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

import pynotify
from receiving import PATIENCE, payloads
from sessions import Connect

THREADS = 8


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


def test_eight_threads_notify_and_poll_on_one_connection(conn: pynotify.Connection) -> None:
    """Everything once; each sender's messages in order for whoever received them."""
    conn.listen("c")
    each = 500
    heard: list[list[str]] = [[] for _ in range(THREADS)]

    def work(name: int) -> None:
        for number in range(each):
            conn.notify("c", f"{name} {number}")
            heard[name] += payloads(conn.poll(max=3))

    run_threads(*(lambda name=name: work(name) for name in range(THREADS)))
    rest = payloads(conn.poll())
    everything = [payload for part in heard for payload in part] + rest
    assert len(everything) == THREADS * each
    assert len(set(everything)) == THREADS * each
    for part in (*heard, rest):
        for name in range(THREADS):
            numbers = [int(p.split()[1]) for p in part if p.startswith(f"{name} ")]
            assert numbers == sorted(numbers)


def test_eight_threads_with_transactions_of_their_own(
    conn: pynotify.Connection, connect: Connect
) -> None:
    """Each transaction is the thread's own: nothing is mixed, rolled back ones vanish."""
    listener = connect()
    listener.listen("c")
    rounds = 100

    def work(name: int) -> None:
        for number in range(rounds):
            conn.begin()
            assert conn.in_transaction
            conn.notify("c", f"{name} {number} a")
            conn.savepoint("s")
            conn.notify("c", f"{name} {number} gone")
            conn.rollback_to("s")
            conn.notify("c", f"{name} {number} b")
            if number % 3 == 2:
                conn.rollback()
            else:
                conn.commit()
            assert not conn.in_transaction

    run_threads(*(lambda name=name: work(name) for name in range(THREADS)))
    messages = listener.poll()
    for name in range(THREADS):
        mine = [m.payload for m in messages if m.payload.startswith(f"{name} ")]
        assert mine == [
            f"{name} {number} {part}"
            for number in range(rounds)
            if number % 3 != 2
            for part in "ab"
        ]
    for first, second in zip(messages[::2], messages[1::2], strict=True):
        assert first.seq == second.seq


def test_receiving_never_blocks_sending(conn: pynotify.Connection) -> None:
    """While a thread sleeps in `notifies()`, others listen, notify and commit on the same one."""
    conn.listen("c")
    heard: list[str] = []
    receiver = threading.Thread(
        target=lambda: heard.extend(payloads(conn.notifies(timeout=PATIENCE, stop_after=3)))
    )
    receiver.start()
    conn.listen("d")
    conn.notify("c", "1")
    with conn.transaction():
        conn.notify("d", "2")
    conn.unlisten("d")
    conn.notify("c", "3" if "d" not in conn.listening_channels() else "x")
    conn.notify("c", "4")
    receiver.join(PATIENCE)
    assert not receiver.is_alive()
    assert heard[0] == "1"
    assert heard[-1] in ("3", "4")


def test_several_threads_sleep_on_one_connection(
    conn: pynotify.Connection, connect: Connect
) -> None:
    """Every message wakes somebody; together they get all."""
    conn.listen("c")
    other = connect()
    total = 400
    heard: list[str] = []
    lock = threading.Lock()

    def receive() -> None:
        for message in conn.notifies(timeout=PATIENCE):
            if message.payload == "end":
                return
            with lock:
                heard.append(message.payload)

    def send() -> None:
        for number in range(total):
            other.notify("c", str(number))
        for _ in range(4):
            other.notify("c", "end")

    began = time.monotonic()
    run_threads(receive, receive, receive, receive, send)
    assert time.monotonic() - began < PATIENCE / 2, "a sleeper was not woken by what was left"
    assert sorted(heard, key=int) == [str(number) for number in range(total)]


def test_threads_come_and_go_on_one_engine(engine: pynotify.Engine) -> None:
    """An Engine is thread-safe: connect, use, close, ask for figures."""

    def work(name: int) -> None:
        for number in range(40):
            with engine.connect() as conn:
                conn.listen(f"own {name}")
                conn.notify(f"own {name}", str(number))
                assert payloads(conn.poll()) == [str(number)]
            engine.stat()

    run_threads(*(lambda name=name: work(name) for name in range(THREADS)))
    assert engine.stat().backends == []
    assert engine.check().ok


def test_closing_while_others_use_it(connect: Connect) -> None:
    """Each of them ends with InterfaceError, none hangs, none crashes."""
    for _ in range(10):
        conn = connect()
        conn.listen("c")

        def use(conn: pynotify.Connection = conn) -> None:
            with pytest.raises(pynotify.InterfaceError):
                while True:
                    conn.notify("c", "x")
                    conn.poll()
                    conn.wait(0.001)

        def leave(conn: pynotify.Connection = conn) -> None:
            conn.wait(0.01)
            conn.close()

        run_threads(use, use, use, leave)
        assert conn.closed


def test_handlers_run_in_the_thread_that_polls(conn: pynotify.Connection) -> None:
    conn.listen("c")
    ran_in: list[int] = []
    polled_in: list[int] = []
    conn.add_notify_handler(lambda _message: ran_in.append(threading.get_ident()))

    def poll() -> None:
        polled_in.extend([threading.get_ident()] * len(conn.poll()))

    conn.notify("c", "x")
    run_threads(poll)
    assert ran_in == polled_in
    assert ran_in != [threading.get_ident()]
