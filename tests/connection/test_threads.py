"""A Connection is thread-safe, an Engine too."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable

import pytest

import pynotify
from crowd import KEPT, SWITCH_INTERVALS, Receiver, Sender, assert_order, run_threads, switching
from receiving import PATIENCE, payloads
from sessions import Connect, EngineFactory, RemoteSession

THREADS = 8


def test_eight_threads_notify_and_poll_on_one_connection(conn: pynotify.Connection) -> None:
    """Everything once; each sender's messages in order for the thread that received them."""
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
    """Every message wakes a thread; together they get all."""
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


# ---- sixteen threads that do everything ---------------------------------------------------------

MANY = 16
ROUNDS = 400


def send_from_afar(conn: pynotify.Connection, count: int) -> list[str]:
    """In another process: what it has committed."""
    sent = [f"afar {number}" for number in range(count)]
    for payload in sent:
        conn.notify(KEPT[0], payload)
    return sent


class Observer:
    """Looks at things, and comes and goes with handlers."""

    def __init__(self, conn: pynotify.Connection, engine: pynotify.Engine) -> None:
        self.conn = conn
        self.engine = engine
        #: What each handler was called with; a call that has begun ends after the removal.
        self.calls: list[list[pynotify.Notify]] = []

    def statistics(self) -> None:
        assert [row.backend_id for row in self.engine.stat().backends if row.channels] == [
            self.conn.backend_id
        ]
        assert 0 <= self.conn.queue_usage() < 1

    def handler(self) -> None:
        calls: list[pynotify.Notify] = []
        self.conn.add_notify_handler(calls.append)
        self.conn.wait(0)
        self.conn.remove_notify_handler(calls.append)
        self.calls.append(calls)


class Handled:
    """A handler that stays: what each thread was called with."""

    def __init__(self) -> None:
        self.by_thread: dict[int, list[pynotify.Notify]] = {}

    def __call__(self, message: pynotify.Notify) -> None:
        self.by_thread.setdefault(threading.get_ident(), []).append(message)


@pytest.mark.parametrize("interval", SWITCH_INTERVALS)
@pytest.mark.parametrize("handled", [True, False], ids=["a handler", "no handler"])
def test_sixteen_threads_that_do_everything(
    interval: float | None,
    handled: bool,
    make_engine: EngineFactory,
    connect: Connect,
    remote: Callable[..., RemoteSession],
) -> None:
    """What was committed on channels that stay is returned once, what was rolled back never."""
    engine = make_engine()
    conn = connect(to=engine)
    conn.listen(*KEPT)
    handler = Handled()
    if handled:
        conn.add_notify_handler(handler)
    senders = [Sender(conn, f"thread {number}") for number in range(MANY)]
    receivers = [Receiver(conn, f"thread {number}") for number in range(MANY)]
    observer = Observer(conn, engine)
    idents: list[int] = [0] * MANY

    def work(number: int) -> None:
        sender, receiver = senders[number], receivers[number]
        idents[number] = threading.get_ident()
        actions = [
            sender.notify, sender.notify, sender.notify_many, sender.blocks, sender.explicit,
            sender.channels, receiver.poll, receiver.poll, receiver.poll_batch, receiver.notifies,
            receiver.wait, receiver.descriptor, observer.statistics, observer.handler,
        ]  # fmt: skip
        for _ in range(ROUNDS):
            sender.rng.choice(actions)()

    far = remote(make_engine.name_of(engine))
    far.run(send_from_afar, 5 * ROUNDS)
    with switching(interval):
        run_threads(*(lambda number=number: work(number) for number in range(MANY)))
    committed = Counter(far.worker.result())
    for sender in senders:
        committed.update(sender.committed)
    rest = Receiver(conn, "rest")
    rest.messages += conn.poll()

    everything = [m for receiver in (*receivers, rest) for m in receiver.messages]
    assert Counter(m.payload for m in everything if m.channel in KEPT) == committed
    others = Counter(m.payload for m in everything if m.channel not in KEPT)
    assert set(others.values()) <= {1}
    never = {payload for sender in senders for payload in sender.never}
    assert never.isdisjoint(others)
    for receiver in (*receivers, rest):
        assert_order(receiver.messages)
    for calls in observer.calls:
        assert len({id(message) for message in calls}) == len(calls)
    if handled:
        for ident, receiver in zip(idents, receivers, strict=True):
            mine = handler.by_thread.get(ident, [])
            assert [m.payload for m in mine] == [m.payload for m in receiver.messages]
    assert conn.listening_channels() >= set(KEPT)
    assert not any(row.in_transaction for row in engine.stat().backends)


@pytest.mark.parametrize("interval", SWITCH_INTERVALS)
def test_one_of_sixteen_threads_receives(
    interval: float | None,
    engine_name: str,
    conn: pynotify.Connection,
    remote: Callable[..., RemoteSession],
) -> None:
    """It gets what each of the others committed in the order in which that one committed it."""
    conn.listen(*KEPT)
    senders = [Sender(conn, f"thread {number}") for number in range(MANY - 1)]
    receiver = Receiver(conn, "the receiver")
    left = len(senders)
    lock = threading.Lock()

    def send(sender: Sender) -> None:
        nonlocal left
        actions = [sender.notify, sender.notify_many, sender.blocks, sender.explicit]
        for _ in range(ROUNDS):
            sender.rng.choice(actions)()
        with lock:
            left -= 1
            if not left:
                conn.notify(KEPT[0], "end 0")

    def receive() -> None:
        ways = [receiver.poll, receiver.poll_batch, receiver.notifies, receiver.descriptor]
        ended = False
        while not ended:
            assert conn.wait(PATIENCE)
            before = len(receiver.messages)
            receiver.rng.choice(ways)()
            ended = any(message.payload == "end 0" for message in receiver.messages[before:])

    far = remote(engine_name)
    far.run(send_from_afar, 5 * ROUNDS)
    with switching(interval):
        run_threads(receive, *(lambda sender=sender: send(sender) for sender in senders))
    sent = {sender.name: sender.committed for sender in senders}
    sent["afar"] = far.worker.result()
    receiver.messages += conn.poll()
    assert_order(receiver.messages)
    for name, committed in sent.items():
        heard = [m.payload for m in receiver.messages if m.payload.rpartition(" ")[0] == name]
        assert heard == committed
