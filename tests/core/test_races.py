"""Races that PostgreSQL had, or nearly had: T-RACE-1, T-RACE-2, T-GROW, and their kin."""

from __future__ import annotations

import select
import threading
from collections.abc import Callable

import pynotify
from receiving import PATIENCE, payloads, receive, wait_until
from sessions import Connect, EngineFactory, NewWorker, RemoteSession, Sessions


def test_t_race_1_listener_paused_at_an_old_position(sessions: Sessions) -> None:
    """T-RACE-1: the tail moves over what a paused reader does not need, never over what it does.

    There: a reader that had copied its position was carried forward directly, then wrote the old
    position back and read pages that had been cut off.
    """
    listener, paused, notifier = sessions(3)
    listener.listen("busy")
    paused.listen("rare", "busy too")
    for round_number in range(3):
        paused.begin()
        assert paused.heard() == []
        for number in range(100):
            notifier.notify("busy", f"{number:03000}")
            assert listener.heard() == [("busy", f"{number:03000}")]
        notifier.queue_usage()
        notifier.notify("rare", str(round_number))
        for number in range(100):
            notifier.notify("busy", f"{number:03000}")
        assert len(listener.heard()) == 100
        notifier.queue_usage()
        paused.commit()
        assert paused.heard() == [("rare", str(round_number))]
    assert notifier.queue_usage() == 0


def test_t_race_1_listener_stopped_anywhere(
    engine: pynotify.Engine, make_engine: EngineFactory, connect: Connect, new_worker: NewWorker
) -> None:
    """T-RACE-1 with SIGSTOP at whatever instruction: afterwards all it is owed, in order, once."""
    reader, notifier, listener = new_worker(), connect(), connect()
    listener.listen("busy")
    total = 400
    reader.start(_read_numbers, make_engine.name_of(engine), total)
    wait_until(lambda: engine.stat().subscriptions == 2, "the reader listens")
    sent = 0
    while sent < total:
        reader.suspend()
        for _ in range(20):
            notifier.notify("rare", str(sent))
            sent += 1
            for _ in range(2):
                notifier.notify("busy", "x" * 3000)
        listener.poll()
        notifier.queue_usage()
        reader.resume()
        for _ in range(5):
            notifier.notify("busy", "x" * 3000)
            listener.poll()
    assert reader.result() == list(range(total))


def _read_numbers(name: str, count: int) -> list[int]:
    heard: list[int] = []
    with pynotify.connect(name) as conn:
        conn.listen("rare")
        while len(heard) < count and conn.wait(PATIENCE):
            heard.extend(int(message.payload) for message in conn.poll(max=3))
    return heard


def _is_a_run(numbers: list[int]) -> bool:
    return not numbers or numbers == list(range(numbers[0], numbers[-1] + 1))


def _notify_until(conn: pynotify.Connection, stop: Callable[[], bool]) -> int:
    number = 0
    while not stop():
        try:
            conn.notify("c", str(number))
        except pynotify.QueueFull:
            select.select([], [], [], 0.001)
        else:
            number += 1
    return number


def test_t_race_2_notify_during_the_first_listen(connect: Connect) -> None:
    """T-RACE-2: notifications that race with a LISTEN's commit are lost up to one point only.

    What the listener hears is a run without a hole, and all that was sent after `listen()` had
    returned is in it.
    """
    notifier = connect()
    for _ in range(30):
        listener = connect()
        done = threading.Event()
        counts: list[int] = []
        thread = threading.Thread(
            target=lambda done=done, counts=counts: counts.append(
                _notify_until(notifier, done.is_set)
            )
        )
        thread.start()
        listener.listen("c")
        first = receive(listener, 1)
        done.set()
        thread.join()
        numbers = [int(payload) for payload in payloads(first + listener.poll())]
        assert _is_a_run(numbers)
        assert numbers[-1] == counts[0] - 1
        listener.close()


def _listen_again_and_again(name: str, rounds: int) -> list[list[int]]:
    heard = []
    with pynotify.connect(name) as conn:
        for _ in range(rounds):
            conn.listen("c")
            heard.append([int(payload) for payload in payloads(receive(conn, 5))])
            conn.unlisten("c")
            assert conn.poll() == []
    return heard


def test_t_race_2_with_processes(
    engine: pynotify.Engine, make_engine: EngineFactory, connect: Connect, new_worker: NewWorker
) -> None:
    """T-RACE-2: two processes listen and unlisten while a third notifies."""
    name, notifier = make_engine.name_of(engine), connect()
    workers = [new_worker() for _ in range(2)]
    for worker in workers:
        worker.start(_listen_again_and_again, name, 100)
    results: list[list[list[int]]] = []
    collector = threading.Thread(
        target=lambda: results.extend(worker.result(3 * PATIENCE) for worker in workers)
    )
    collector.start()
    _notify_until(notifier, lambda: not collector.is_alive())
    collector.join()
    assert len(results) == 2
    for rounds in results:
        assert all(_is_a_run(numbers) for numbers in rounds)
        flat = [number for numbers in rounds for number in numbers]
        assert flat == sorted(set(flat))


def test_t_race_2_listener_and_notifier_take_turns(sessions: Sessions) -> None:
    """T-RACE-2: a LISTEN that is staged, not committed, while another session notifies."""
    listener, notifier = sessions(2)
    for number in range(20):
        listener.begin()
        listener.listen("c")
        notifier.notify("c", f"before {number}")
        listener.commit()
        notifier.notify("c", f"after {number}")
        assert listener.heard() == [("c", f"after {number}")]
        listener.unlisten("c")


def test_t_grow_five_sessions_on_one_channel(sessions: Sessions) -> None:
    """T-GROW: there the array of listeners grew past 4."""
    *listeners, notifier = sessions(6)
    for count, listener in enumerate(listeners, 1):
        listener.listen("c1")
        notifier.notify("c1", str(count))
        for other in listeners[:count]:
            assert other.heard() == [("c1", str(count))]


def test_t_grow_past_every_word_of_the_bitmap(connect: Connect) -> None:
    """T-GROW here: the set of listeners is a bitmap, of 64 bits a word."""
    listeners, notifier = [connect() for _ in range(200)], connect()
    for listener in listeners:
        listener.listen("c1")
    notifier.notify("c1", "all")
    for listener in listeners:
        assert payloads(listener.poll()) == ["all"]
    for listener in listeners[::3]:
        listener.unlisten("c1")
    notifier.notify("c1", "some")
    for number, listener in enumerate(listeners):
        assert payloads(listener.poll()) == (["some"] if number % 3 else [])


def _come_and_go(name: str, rounds: int) -> int:
    heard = 0
    for number in range(rounds):
        with pynotify.connect(name) as conn:
            conn.listen("c", f"own {number}")
            conn.notify("c", "x")
            heard += len(conn.poll())
    return heard


def test_sessions_that_come_and_go(
    engine: pynotify.Engine, make_engine: EngineFactory, connect: Connect, new_worker: NewWorker
) -> None:
    """Registration races with registration, with delivery and with the tail; nothing is left."""
    listener, name = connect(), make_engine.name_of(engine)
    listener.listen("c")
    workers = [new_worker() for _ in range(3)]
    for worker in workers:
        worker.start(_come_and_go, name, 100)
    heard = payloads(receive(listener, 300, 3 * PATIENCE))
    assert heard == ["x"] * 300
    assert all(worker.result() >= 100 for worker in workers)
    assert [backend.pid for backend in engine.stat().backends] == [listener.pid]
    assert engine.check().ok


def test_many_sessions_in_processes_ping_pong(
    engine: pynotify.Engine, make_engine: EngineFactory, remote: Callable[..., RemoteSession]
) -> None:
    """Turns over a ring of processes: a lost wake-up would stop it."""
    name = make_engine.name_of(engine)
    ring = [remote(name) for _ in range(4)]
    for place, session in enumerate(ring):
        session.listen(f"place {place}")
    for place, session in enumerate(ring):
        session.run(_pass_on, place, len(ring), 200)
    assert [session.worker.result() for session in ring] == [200, 200, 200, 200]


def _pass_on(conn: pynotify.Connection, place: int, places: int, rounds: int) -> int:
    """Each round starts at place 0 and ends there."""
    if place == 0:
        conn.notify("place 1", "0")
    for number in range(rounds):
        assert payloads(receive(conn, 1)) == [str(number)]
        following = number if place else number + 1
        if following < rounds:
            conn.notify(f"place {(place + 1) % places}", str(following))
    return rounds
