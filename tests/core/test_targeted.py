"""Wake-ups: only of those for which something was committed, however many others there are."""

from __future__ import annotations

import os
import select
from collections.abc import Callable
from pathlib import Path

import pytest

import pynotify
from receiving import PATIENCE, readable, receive, wait_until
from requirement import require
from sessions import Connect, EngineFactory, NewWorker, RemoteSession, Worker

IDLE, IDLE_PROCESSES = 1000, 4
NOTIFIERS, NOTIFICATIONS = 4, 100_000

_idle: list[pynotify.Connection] = []


def _connect_idle(name: str, first: int, count: int) -> None:
    for number in range(first, first + count):
        conn = pynotify.connect(name)
        conn.listen(f"idle {number}")
        _idle.append(conn)


def _serve(stop_fd: int) -> tuple[int, int]:
    """As an event loop would: poll what is readable.  Wake-ups of the loop, messages."""
    epoll = select.epoll()
    by_fd = {conn.fileno(): conn for conn in _idle}
    for fd in (stop_fd, *by_fd):
        epoll.register(fd, select.EPOLLIN)
    woken = messages = 0
    with epoll:
        while True:
            ready = [fd for fd, _events in epoll.poll()]
            if stop_fd in ready:
                return woken, messages
            woken += len(ready)
            messages += sum(len(by_fd[fd].poll()) for fd in ready)


def _start_serving(name: str, first: int, count: int, path: str) -> tuple[int, int]:
    _connect_idle(name, first, count)
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        return _serve(fd)
    finally:
        os.close(fd)
        while _idle:
            _idle.pop().close()


def _notify(conn: pynotify.Connection, channel: str, count: int) -> int:
    heard = 0
    for number in range(count):
        conn.notify(channel, str(number))
        if number % 100 == 99:
            heard += len(conn.poll())
    return heard + len(conn.poll())


class Notifiers:
    """Four processes; each listens to its own channel, so that all goes through the queue."""

    def __init__(self, name: str, remote: Callable[..., RemoteSession]) -> None:
        self._sessions = [remote(name) for _ in range(NOTIFIERS)]
        for place, session in enumerate(self._sessions):
            session.listen(f"hot {place}")

    def run(self, each: int) -> None:
        for place, session in enumerate(self._sessions):
            session.run(_notify, f"hot {place}", each)
        heard = [session.worker.result(3 * PATIENCE) for session in self._sessions]
        assert heard == [each] * NOTIFIERS

    def close(self) -> None:
        for session in self._sessions:
            session.close()


class Crowd:
    """Idle listeners on channels of their own, in processes that sleep in an event loop."""

    def __init__(self, engine: pynotify.Engine, name: str, fifo: Path, workers: list[Worker]):
        self._workers, self._fifo = workers, fifo
        os.mkfifo(fifo)
        share = IDLE // len(workers)
        for place, worker in enumerate(workers):
            worker.start(_start_serving, name, place * share, share, str(fifo))
        self._writer = _open_when_read(fifo)
        wait_until(lambda: engine.stat().subscriptions == IDLE, "all are registered")

    def asleep(self) -> bool:
        return all(_state(worker.pid) == "S" for worker in self._workers)

    def switches(self) -> list[int]:
        """How often each process has gone to sleep so far: the kernel's own count."""
        return [_voluntary_switches(worker.pid) for worker in self._workers]

    def dismiss(self) -> list[tuple[int, int]]:
        """End them; per process, wake-ups of the loop and messages."""
        os.write(self._writer, b"stop")
        results = [worker.result() for worker in self._workers]
        os.close(self._writer)
        return results


def _open_when_read(fifo: Path) -> int:
    return os.open(fifo, os.O_RDWR)


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0]


def _voluntary_switches(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("voluntary")))


def test_a_thousand_idle_listeners_are_not_touched(
    make_engine: EngineFactory,
    new_worker: NewWorker,
    remote: Callable[..., RemoteSession],
    tmp_path: Path,
) -> None:
    """Zero signals, zero writes to their slots, zero wake-ups over 100,000 notifications."""
    require("descriptors")
    engine = make_engine(max_backends=IDLE + 50)
    name = make_engine.name_of(engine)
    crowd = Crowd(engine, name, tmp_path / "stop", [new_worker() for _ in range(IDLE_PROCESSES)])
    notifiers = Notifiers(name, remote)
    wait_until(crowd.asleep, "all of them sleep")
    before, switches = engine.stat(), crowd.switches()
    notifiers.run(NOTIFICATIONS // NOTIFIERS)
    after = engine.stat()
    assert after.notifications - before.notifications == NOTIFICATIONS
    assert after.head - before.head > NOTIFICATIONS * 16, "they went through the queue"
    assert after.signals_sent - before.signals_sent == 0
    assert after.slot_writes - before.slot_writes == 0
    assert after.wakeups_useless - before.wakeups_useless == 0
    # The kernel's count agrees: slow timers tick now and then, the more the longer it took.
    switched = [now - then for now, then in zip(crowd.switches(), switches, strict=True)]
    assert sum(switched) < 10 * IDLE
    assert len(after.backends) == IDLE + NOTIFIERS
    assert all(row.asleep and row.lag_bytes == 0 for row in after.backends)
    notifiers.close()
    results = crowd.dismiss()
    assert sum(messages for _woken, messages in results) == 0


def test_with_broadcast_all_of_them_are_woken(
    make_engine: EngineFactory,
    new_worker: NewWorker,
    remote: Callable[..., RemoteSession],
    tmp_path: Path,
) -> None:
    """The same, as PostgreSQL did up to 18: the same counters show the opposite."""
    require("descriptors")
    engine = make_engine(max_backends=IDLE + 50, signaling="broadcast")
    name = make_engine.name_of(engine)
    crowd = Crowd(engine, name, tmp_path / "stop", [new_worker() for _ in range(IDLE_PROCESSES)])
    notifiers = Notifiers(name, remote)
    wait_until(crowd.asleep, "all of them sleep")
    before, switches = engine.stat(), crowd.switches()
    notifiers.run(25)
    wait_until(
        lambda: engine.stat().wakeups_useless - before.wakeups_useless >= IDLE,
        "every one of them was woken for nothing",
    )
    after = engine.stat()
    # one signal wakes the slots of a process that follow each other
    assert after.signals_sent - before.signals_sent >= IDLE_PROCESSES
    assert after.slot_writes - before.slot_writes >= IDLE
    wait_until(
        lambda: all(now > then for now, then in zip(crowd.switches(), switches, strict=True)),
        "each of them has gone to sleep again",
    )
    notifiers.close()
    results = crowd.dismiss()
    assert all(woken >= IDLE // IDLE_PROCESSES for woken, _messages in results)
    assert sum(messages for _woken, messages in results) == 0


@pytest.mark.parametrize("signaling", ["targeted", "broadcast"])
def test_interested_listeners_hear_it_either_way(
    make_engine: EngineFactory, connect: Connect, signaling: str
) -> None:
    engine = make_engine(signaling=signaling)
    listeners = [connect(to=engine) for _ in range(20)]
    for number, listener in enumerate(listeners):
        listener.listen("all", f"own {number}")
    notifier = connect(to=engine)
    notifier.notify("all", "x")
    for listener in listeners:
        assert len(receive(listener, 1)) == 1
    for number in range(20):
        notifier.notify(f"own {number}", "y")
        assert len(receive(listeners[number], 1)) == 1
    assert all(listener.poll() == [] for listener in listeners)


def test_those_behind_stopped_listeners_are_woken(
    make_engine: EngineFactory,
    engine: pynotify.Engine,
    connect: Connect,
    remote: Callable[..., RemoteSession],
) -> None:
    """However wake-ups are passed on, a stopped process holds up no other."""
    name, notifier = make_engine.name_of(engine), connect()
    listeners = [remote(name) for _ in range(8)]
    for listener in listeners:
        listener.listen("all")
    stopped, others = listeners[:3], listeners[3:]
    for round_number in range(3):
        for listener in listeners:
            listener.run(_hear_one)
        for listener in stopped:
            listener.worker.suspend()
        try:
            notifier.notify("unheard")  # close together, so that wake-ups may be passed on
            notifier.notify("all", str(round_number))
            assert [listener.worker.result() for listener in others] == [str(round_number)] * 5
        finally:
            for listener in stopped:
                listener.worker.resume()
        assert [listener.worker.result() for listener in stopped] == [str(round_number)] * 3


def _hear_one(conn: pynotify.Connection) -> str:
    (message,) = receive(conn, 1)
    return message.payload


def test_only_the_interested_one_of_many_is_signalled(
    engine: pynotify.Engine, connect: Connect
) -> None:
    """One listener of 100 is interested: one signal, one wake-up, its slot alone is written."""
    listeners = [connect() for _ in range(100)]
    for number, listener in enumerate(listeners):
        listener.listen(f"own {number}")
    notifier = connect()
    before = engine.stat()
    notifier.notify("own 42", "x")
    after = engine.stat()
    assert after.signals_sent - before.signals_sent == 1
    assert 1 <= after.slot_writes - before.slot_writes <= 8
    ready = [number for number, conn in enumerate(listeners) if readable(conn.fileno())]
    assert ready == [42]
    assert len(listeners[42].poll()) == 1
    final = engine.stat()
    assert final.wakeups_useful - before.wakeups_useful == 1
    assert final.wakeups_useless == before.wakeups_useless


def test_other_databases_are_not_touched(engine: pynotify.Engine, connect: Connect) -> None:
    """Q7 does not exist here: no listener of a quiet database is ever woken for lag."""
    elsewhere = [connect(database=f"db{number}") for number in range(20)]
    for conn in elsewhere:
        conn.listen("c")
    listener, notifier = connect(), connect()
    listener.listen("c")
    before = engine.stat()
    for _ in range(500):
        notifier.notify("c", "x" * 7990)
        listener.poll()
    after = engine.stat()
    assert not any(readable(conn.fileno()) for conn in elsewhere)
    assert after.wakeups_useless == before.wakeups_useless


def test_busy_listener_costs_no_signals(engine: pynotify.Engine, connect: Connect) -> None:
    """One that has not gone back to sleep is not signalled again."""
    listener, notifier = connect(), connect()
    listener.listen("c")
    notifier.notify_many("c", ["1", "2", "3"])
    listener.poll(max=1)
    before = engine.stat()
    for number in range(10):
        notifier.notify("c", str(number))
    after = engine.stat()
    assert after.signals_sent - before.signals_sent <= 1
    assert len(listener.poll()) == 12
