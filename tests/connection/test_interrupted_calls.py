"""An exception of a signal handler at every place of what sends, of blocks, and of what is opened.

All of it has happened or nothing, nothing stays reserved, and nothing is open that should not be.
"""

from __future__ import annotations

import contextlib
import gc
import os
from collections.abc import Callable

import pytest

import pynotify
from interrupting import WHOLE, At, Calls, at_places
from receiving import payloads
from sessions import EngineFactory


def _block(conn: pynotify.Connection) -> None:
    with conn.transaction():
        conn.notify("m", "1")
        conn.notify("m", "2")


def _prepared(conn: pynotify.Connection) -> None:
    with conn.transaction() as block:
        conn.notify_many("m", ["1", "2"])
        block.prepare()


def _nested(conn: pynotify.Connection) -> None:
    with conn.transaction():
        conn.notify("m", "1")
        with conn.transaction():
            conn.notify("m", "2")


def _undone(conn: pynotify.Connection) -> None:
    with conn.transaction():
        conn.notify("m", "1")
        with contextlib.suppress(ValueError), conn.transaction():
            conn.notify("m", "undone")
            raise ValueError
        conn.notify("m", "2")


def _inner_rollback(conn: pynotify.Connection) -> None:
    with conn.transaction():
        conn.notify("m", "1")
        with conn.transaction() as inner:
            conn.notify("m", "undone")
            raise pynotify.Rollback(inner)
    with conn.transaction() as outer:
        conn.notify("m", "undone")
        raise pynotify.Rollback(outer)


BLOCKS: dict[str, Callable[[pynotify.Connection], None]] = {
    "a block": _block,
    "a prepared block": _prepared,
    "nested blocks": _nested,
    "an inner block is undone": _undone,
    "rollbacks": _inner_rollback,
}


def _go_on(conn: pynotify.Connection, listener: pynotify.Connection) -> None:
    """Half of the queue, which what is still reserved would not leave for long."""
    conn.notify("m", "on it goes")
    assert payloads(listener.poll()) == ["on it goes"]
    assert conn.notify_many("m", [str(number) * 2000 for number in range(100)]) == 100
    assert len(listener.poll()) == 100


@pytest.mark.parametrize("whole", WHOLE)
@pytest.mark.parametrize("how", BLOCKS)
def test_a_block(make_engine: EngineFactory, how: str, whole: bool) -> None:
    """The end of the `with` statement is the end of the transaction, whatever ends it."""
    engine = make_engine(queue_pages=64)
    expected = ["1"] if how == "rollbacks" else ["1", "2"]
    with engine.connect() as listener, engine.connect() as conn:
        listener.listen("m")

        def attempt(at: At) -> None:
            at.attempt(lambda: BLOCKS[how](conn))
            assert not conn.in_transaction
            heard = payloads(listener.poll())
            assert heard in ([], expected) if at.reached else heard == expected
            _go_on(conn, listener)

        assert at_places(attempt, whole=whole) > 20
    assert engine.check().ok


@pytest.mark.parametrize("whole", WHOLE)
def test_an_inner_block_in_one_that_goes_on(make_engine: EngineFactory, whole: bool) -> None:
    """What it did is undone or kept, and the levels of the others are what they were."""
    engine = make_engine()
    with engine.connect() as listener, engine.connect() as conn:
        listener.listen("m")

        def inner() -> None:
            with conn.transaction():
                conn.notify("m", "inner")

        def attempt(at: At) -> None:
            with conn.transaction():
                conn.notify("m", "1")
                at.attempt(inner)
                conn.notify("m", "2")
                with conn.transaction():
                    conn.notify("m", "3")
                with contextlib.suppress(ValueError), conn.transaction():
                    conn.notify("m", "undone")
                    raise ValueError
            heard = payloads(listener.poll())
            assert heard == ["1", "inner", "2", "3"] or (at.reached and heard == ["1", "2", "3"])

        assert at_places(attempt, whole=whole) > 20


def _savepoints(conn: pynotify.Connection) -> None:
    conn.savepoint("s")
    conn.notify("m", "undone")
    conn.rollback_to("s")
    conn.notify("m", "inner")
    conn.release("s")


@pytest.mark.parametrize("whole", WHOLE)
def test_savepoints(make_engine: EngineFactory, whole: bool) -> None:
    """Named levels stay those of the core."""
    engine = make_engine()
    with engine.connect() as listener, engine.connect() as conn:
        listener.listen("m")

        def attempt(at: At) -> None:
            conn.begin()
            conn.notify("m", "1")
            conn.savepoint("around")
            at.attempt(lambda: _savepoints(conn))
            conn.notify("m", "2")
            conn.savepoint("later")
            conn.notify("m", "undone, too")
            conn.rollback_to("later")
            conn.notify("m", "3")
            conn.commit()
            heard = payloads(listener.poll())
            if at.reached:
                inner = {"undone", "inner"}  # as far as it had come
                assert [name for name in heard if name not in inner] == ["1", "2", "3"]
            else:
                assert heard == ["1", "inner", "2", "3"]

        assert at_places(attempt, whole=whole) > 20


@pytest.mark.parametrize("whole", WHOLE)
@pytest.mark.parametrize("how", ["begin", "rollback"])
def test_begin_and_rollback(make_engine: EngineFactory, how: str, whole: bool) -> None:
    """What is open afterwards, rollback() ends."""
    engine = make_engine(queue_pages=64)
    with engine.connect() as listener, engine.connect() as conn:
        listener.listen("m")

        def attempt(at: At) -> None:
            if how == "rollback":
                conn.begin()
                conn.notify("m", "x")
                next(iter(conn._transactions.values())).prepare()
            at.attempt(conn.begin if how == "begin" else conn.rollback)
            if conn.in_transaction:
                conn.rollback()
            assert not conn.in_transaction
            _go_on(conn, listener)

        assert at_places(attempt, whole=whole) > 5
    assert engine.check().ok


@pytest.mark.parametrize("whole", WHOLE)
@pytest.mark.parametrize("in_block", [False, True], ids=["", "in a block"])
def test_bump(make_engine: EngineFactory, in_block: bool, whole: bool) -> None:
    """It counts once, or not at all."""
    engine = make_engine()
    with engine.connect() as conn:
        counter = conn.generation("g")

        def bump() -> None:
            with conn.transaction() if in_block else contextlib.nullcontext():
                counter.bump()

        def attempt(at: At) -> None:
            before = counter.value
            at.attempt(bump)
            assert not conn.in_transaction
            assert counter.value - before in ((0, 1) if at.reached else (1,))

        assert at_places(attempt, whole=whole) > 3


def _descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize("whole", WHOLE)
@pytest.mark.parametrize("how", ["connect", "close"])
def test_a_connection(make_engine: EngineFactory, how: str, whole: bool) -> None:
    """No slot and no descriptor is left."""
    engine = make_engine()
    with engine.connect() as witness:
        witness.listen("m")
        found: list[int] = []

        def attempt(at: At) -> None:
            if how == "connect":
                made = at.attempt(engine.connect)
                assert made is not None or at.reached
            else:
                made = engine.connect()
                made.listen("m")
                made.begin()
                made.notify("m", "never")
                at.attempt(made.close)
            if made is not None:
                made.close()
                assert made.closed
            del made
            gc.collect()
            assert len(engine.stat().backends) == 1
            assert witness.poll() == []
            found.append(_descriptors())

        at_places(attempt, whole=whole)
        assert found[-1] <= found[1]


@pytest.mark.parametrize("whole", WHOLE)
@pytest.mark.parametrize("how", ["subscribe", "close"])
def test_a_subscription(make_engine: EngineFactory, how: str, whole: bool) -> None:
    """None is left, nor what it has listened to; the other one loses nothing."""
    engine = make_engine()
    with engine.connect() as conn, engine.connect() as sender:
        other = conn.subscribe("s")

        def attempt(at: At) -> None:
            if how == "subscribe":
                made = at.attempt(lambda: conn.subscribe("s", "t"))
                sender.notify("t", "x")
            else:
                made = conn.subscribe("s", "t")
                sender.notify("t", "x")
                at.attempt(made.close)
            sender.notify("s", "x")
            if how == "subscribe" and made is not None:
                assert [made.next(0).channel for _ in range(2)] == ["t", "s"]
            if made is not None:
                made.close()
            del made
            assert other.next(0).channel == "s"
            assert other.pending == 0
            conn.subscribe("z").close()
            assert conn.link.receiver.inboxes.all == {other._inbox}
            assert not conn.link.receiver.inboxes.stale
            assert conn.poll() == []

        at_places(attempt, whole=whole)


@pytest.mark.parametrize("how", ["subscribe", "discard"])
def test_nothing_that_no_subscription_has_stays_listened_to(
    make_engine: EngineFactory, how: str
) -> None:
    """Of one that was collected, or of a part of one, and nothing is tried again."""
    engine = make_engine()
    with engine.connect() as conn, engine.connect() as sender:
        other = conn.subscribe("s")

        def attempt(at: At) -> None:
            made: pynotify.Subscription | None = conn.subscribe("s", "t", patterns=["t?"])
            if how == "subscribe":
                made = None  # collected, and its place is left to the next
                made = at.attempt(lambda: conn.subscribe("s", "u"))
            else:
                assert made is not None
                at.attempt(lambda: made.discard("t", patterns=["t?"]))
                made.add("t")
                sender.notify("t", "x")
                assert made.next(0).payload == "x"
            if made is not None:
                made.close()
            sender.notify("s", "x")
            assert other.next(0).channel == "s"
            conn.subscribe("z").close()
            assert engine.stat().subscriptions == 1
            assert conn.link.receiver.inboxes.all == {other._inbox}

        assert at_places(attempt, whole=True) > 50
    assert engine.check().ok


def test_a_handler_takes_a_message_while_channels_are_discarded(make_engine: EngineFactory) -> None:
    """What was for the others stays, whatever the handler has taken."""
    engine = make_engine()
    with engine.connect() as conn, engine.connect() as sender:

        def attempt(at: At) -> None:
            sub = conn.subscribe("s", "t")
            for number in range(6):
                sender.notify("st"[number % 2], str(number))
            got = [sub.next(0).payload]  # the rest was read with it

            def handle() -> None:
                with contextlib.suppress(pynotify.Timeout, pynotify.ProgrammingError):
                    got.append(sub.next(0).payload)

            at._handle = handle  # type: ignore[method-assign]
            at.attempt(lambda: sub.discard("t"))
            left = sub.pending
            with contextlib.suppress(pynotify.Timeout):
                while True:
                    got.append(sub.next(0).payload)
                    left -= 1
            assert left == 0
            assert [each for each in got if int(each) % 2 == 0] == ["0", "2", "4"]
            sub.close()

        assert at_places(attempt, whole=True) > 20


def test_the_exception_is_the_handlers(conn: pynotify.Connection) -> None:
    """Not OutOfOrderTransactionNesting of the block around the one that it has interrupted."""
    for place in range(1, 200):
        at = At(place)

        def call(at: At = at) -> None:
            with conn.transaction(), conn.transaction():
                conn.notify("m", "x")

        try:
            at.attempt(call)
        except pynotify.Error as error:
            raise AssertionError(f"at place {place}") from error
        if not at.reached:
            break
    assert place > 20


@pytest.mark.parametrize("how", ["subscribe", "close"])
def test_a_handler_subscribes_and_closes_meanwhile(make_engine: EngineFactory, how: str) -> None:
    """In the middle of that of another subscription to the same channels: none is deaf."""
    engine = make_engine()
    with engine.connect() as conn, engine.connect() as sender:
        place, reached = 0, True
        while reached:
            place += 1
            sub, other = conn.subscribe("s"), conn.subscribe("o", "p")
            made: list[pynotify.Subscription] = []

            def handler(
                made: list[pynotify.Subscription] = made,
                other: pynotify.Subscription = other,
            ) -> None:
                other.close()
                with contextlib.suppress(pynotify.ProgrammingError):  # not at this place
                    made.append(conn.subscribe("s"))

            at = Calls(place, handler)
            if how == "close":
                at.attempt(sub.close)
            else:
                made.append(at.attempt(lambda: conn.subscribe("s", "p")))
                sub.close()
            sender.notify("s", "x")
            assert [one.next(0).channel for one in made] == ["s"] * len(made), f"at place {place}"
            for one in made:
                one.close()
            other.close()
            assert conn.channels() == {}, f"at place {place}"
            reached = at.reached
        assert place > 50
