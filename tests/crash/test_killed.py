"""SIGKILL at random: of notifiers, of listeners, of all processes in turn."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

import pynotify
from forking import ChildFailed, ForkedChild
from receiving import PATIENCE, payloads, readable, receive, wait_until
from sessions import Connect

ROUNDS = 25


def kill(child: ForkedChild) -> None:
    os.kill(child.pid, signal.SIGKILL)
    assert child.join() == -signal.SIGKILL


def acknowledged(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def notify_for_ever(engine: pynotify.Engine, name: str, acks: Path) -> None:
    """Numbered transactions of three; a byte in the file for each that was committed."""
    fd = os.open(acks, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    with engine.connect() as conn:
        number = 0
        while True:
            sent = [f"{name} {number}.{part}" for part in "abc"]
            try:
                if number % 2:
                    conn.notify_many("c", sent)
                else:
                    with conn.transaction():
                        for payload in sent:
                            conn.notify("c", payload)
            except pynotify.QueueFull:
                continue
            os.write(fd, b".")
            number += 1


def complete_transactions(heard: list[str], name: str) -> int:
    """How many of the sender's transactions came: whole, in order, once, and without a hole."""
    mine = [payload for payload in heard if payload.startswith(f"{name} ")]
    count, rest = divmod(len(mine), 3)
    assert rest == 0, "half a transaction"
    assert mine == [f"{name} {number}.{part}" for number in range(count) for part in "abc"]
    return count


def test_notifiers_are_killed(engine: pynotify.Engine, connect: Connect, tmp_path: Path) -> None:
    """All that a notifier knew to be committed is heard, and at most the one in doubt more."""
    chance = random.Random()
    listener, survivor = connect(), connect()
    listener.listen("c")
    for round_number in range(ROUNDS):
        acks = tmp_path / f"acks {round_number}"
        name = f"n{round_number}"
        child = ForkedChild(lambda name=name, acks=acks: notify_for_ever(engine, name, acks))
        heard: list[str] = []
        enough = chance.randrange(200)

        def has_enough(acks: Path = acks, enough: int = enough, heard: list[str] = heard) -> bool:
            heard += payloads(listener.poll())
            return acknowledged(acks) > enough

        wait_until(has_enough, "it notifies")
        kill(child)
        certain = acknowledged(acks)
        survivor.notify("c", "over")
        while heard[-1:] != ["over"]:
            heard += payloads(receive(listener, 1))
        assert complete_transactions(heard, name) - certain in (0, 1)
    assert [row.pid for row in engine.stat().backends] == [os.getpid()] * 2
    assert engine.check().ok


def listen_for_ever(engine: pynotify.Engine, started: Path) -> None:
    with engine.connect() as conn:
        while True:
            conn.listen("c", "own")
            started.touch()
            for _ in range(5):
                conn.wait(0.01)
                conn.poll(max=3)
            conn.unlisten_all()


def test_listeners_are_killed(engine: pynotify.Engine, connect: Connect, tmp_path: Path) -> None:
    """No other loses anything, nothing stays pinned, no slot is lost."""
    chance = random.Random()
    listener, notifier = connect(), connect()
    listener.listen("c")
    for round_number in range(ROUNDS):
        started = tmp_path / f"started {round_number}"
        child = ForkedChild(lambda started=started: listen_for_ever(engine, started))
        wait_until(started.exists, "it listens")
        count = chance.randrange(1, 300)
        for number in range(count):
            notifier.notify("c", str(number))
        kill(child)
        notifier.notify("c", "over")
        heard = payloads(receive(listener, count + 1))
        assert heard == [*(str(number) for number in range(count)), "over"]
        assert [row.pid for row in engine.stat().backends] == [os.getpid()] * 2
        assert notifier.queue_usage() == 0
    assert [row.pid for row in engine.stat().backends] == [os.getpid()] * 2
    assert engine.check().ok


def everything_for_ever(engine: pynotify.Engine, seed: int) -> None:
    chance = random.Random(seed)
    while True:
        with engine.connect(database=chance.choice("xy")) as conn:
            for _ in range(20):
                chance.choice((
                    lambda: conn.listen(chance.choice("cde")),
                    lambda: conn.unlisten(chance.choice("cde")),
                    conn.unlisten_all,
                    lambda: conn.notify(chance.choice("cde"), "z" * chance.randrange(3000)),
                    lambda: conn.notify_many(chance.choice("cde"), ["p", "q", "r"]),
                    lambda: conn.poll(max=chance.randrange(1, 4)),
                    lambda: conn.wait(0.001),
                    lambda: transaction(conn, chance),
                    conn.queue_usage,
                    engine.stat,
                ))()  # fmt: skip


def transaction(conn: pynotify.Connection, chance: random.Random) -> None:
    with conn.transaction() as tx:
        conn.notify("c", "1")
        conn.listen("d")
        with conn.transaction():
            conn.notify("d", "2")
            if chance.random() < 0.3:
                raise pynotify.Rollback
        if chance.random() < 0.5:
            tx.prepare()


def soak(engine: pynotify.Engine, connect: Connect, rounds: int) -> None:
    """Four at a time are killed in turn, while two survivors talk to each other all the time."""
    chance = random.Random()
    one, two = connect(database="survivors"), connect(database="survivors")
    one.listen("to one")
    two.listen("to two")

    def spawn() -> ForkedChild:
        seed = chance.randrange(1 << 30)
        return ForkedChild(lambda: everything_for_ever(engine, seed))

    children = [spawn() for _ in range(4)]
    try:
        for round_number in range(rounds):
            one.notify("to two", str(round_number))
            assert payloads(receive(two, 1)) == [str(round_number)]
            two.notify("to one", str(round_number))
            assert payloads(receive(one, 1)) == [str(round_number)]
            place = chance.randrange(4)
            assert not readable(children[place].pidfd, chance.random() * 0.01), (
                "a process of the crowd died by itself",
                child_error(children[place]),
            )
            kill(children[place])
            children[place] = spawn()
    finally:
        for child in children:
            os.kill(child.pid, signal.SIGKILL)
            child.join()
    wait_until(lambda: len(engine.stat().backends) == 2, "only the survivors are left")
    assert engine.check().ok
    assert one.poll() == two.poll() == []
    assert one.queue_usage() == 0


def child_error(child: ForkedChild) -> str:
    try:
        return str(child.result())
    except ChildFailed as error:
        return str(error)


def test_each_process_is_killed_in_turn(engine: pynotify.Engine, connect: Connect) -> None:
    soak(engine, connect, 60)


@pytest.mark.full
@pytest.mark.timeout(600)
def test_each_process_is_killed_in_turn_for_long(engine: pynotify.Engine, connect: Connect) -> None:
    soak(engine, connect, 2_000)


def test_death_is_noticed_by_a_sleeper(
    engine: pynotify.Engine, connect: Connect, remote: Callable[..., object]
) -> None:
    """Of a listener with everything unread: its slot is free before any sender asks for room."""
    sleeper = connect()
    sleeper.listen("c")

    def die() -> None:
        dying = engine.connect()
        dying.listen("c")
        dying.notify("c", "x")
        os.kill(os.getpid(), signal.SIGKILL)

    child = ForkedChild(die)
    assert child.join() == -signal.SIGKILL
    assert payloads(receive(sleeper, 1, PATIENCE)) == ["x"]
    assert [row.pid for row in engine.stat().backends] == [os.getpid()]
