"""An exception of a signal handler at every place of what PubSub sends and receives.

What was published once is handed out once, by the call that was interrupted or by the next.
"""

from __future__ import annotations

import contextlib
import os
import threading
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import pynotify
from interrupting import WHOLE, Anywhere, At, Interruption, at_places
from pynotify._array_files import DIRECTORY, array_files
from pynotify.pubsub import Received, _guard
from pynotify.pubsub._dispatch import Handlers
from receiving import PATIENCE
from sessions import EngineFactory
from waiting import Call, await_waiting

# A handler may also raise while a generator is closed, where Python ignores it.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

LARGE = "x" * 30_000
"""It takes several segments."""


class Round:
    """A PubSub that is interrupted, and one that sends to it and hears what it sends."""

    def __init__(
        self, engine: pynotify.Engine, conn: pynotify.Connection, other: pynotify.Connection
    ) -> None:
        self.engine = engine
        self.conn = conn
        self.pubsub = pynotify.PubSub(conn)
        self.other = pynotify.PubSub(other)
        self.pubsub.subscribe("a", "b")
        self.other.subscribe("answers")

    def rest(self) -> list[Any]:
        """What is left for the one that was interrupted."""
        found: list[Any] = []
        handlers = {channel: found.append for channel in ("a", "b")}
        for channel, handler in handlers.items():
            self.pubsub.on(channel, handler)
        try:
            while self.pubsub.run(0):
                pass
        finally:
            for channel, handler in handlers.items():
                self.pubsub.off(channel, handler)
        return found

    def heard(self) -> list[Any]:
        """What the other one has got."""
        found: list[Any] = []
        self.other.on("answers", found.append)
        try:
            self.other.run(0)
        finally:
            self.other.off("answers", found.append)
        return found


@pytest.fixture
def ground(make_engine: EngineFactory) -> Iterator[Round]:
    engine = make_engine()
    with engine.connect() as conn, engine.connect() as other:
        ground = Round(engine, conn, other)
        with ground.pubsub, ground.other:
            yield ground
    assert engine.check().ok


def _one_by_one(ground: Round, got: list[Any]) -> None:
    received = iter(ground.pubsub)
    for _ in range(3):
        got.append(next(received).obj)


@pytest.mark.parametrize("whole", WHOLE)
@pytest.mark.parametrize("large", [False, True], ids=["small", "of several segments"])
@pytest.mark.parametrize("waits", [False, True], ids=["", "waiting"])
def test_iterating(ground: Round, waits: bool, large: bool, whole: bool) -> None:
    """In order, on two channels."""
    objects = [LARGE + "1", "2", LARGE + "3"] if large else ["1", "2", "3"]

    def send() -> None:
        for number, obj in enumerate(objects):
            ground.other.publish("ab"[number % 2], obj)

    def attempt(at: At) -> None:
        got: list[Any] = []
        timer = threading.Timer(0.005 if waits else 0, send)
        timer.start()
        if not waits:
            timer.join()
        at.attempt(lambda: _one_by_one(ground, got))
        timer.join()
        assert at.reached or got == objects
        assert got + ground.rest() == objects
        stats = ground.pubsub.stats()
        assert (stats.dropped, stats.malformed, stats.pending) == (0, 0, 0)

    at_places(attempt, whole=whole)


@pytest.mark.parametrize("whole", WHOLE)
def test_parts_that_follow_each_other(ground: Round, whole: bool) -> None:
    """An object of several parts, which are put together as one run, and what is around it."""
    objects = ["1", LARGE.encode(), "2", LARGE[1:].encode()]
    with ground.engine.connect() as conn, pynotify.PubSub(conn, raw=True) as sender:

        def attempt(at: At) -> None:
            got: list[Any] = []
            ground.pubsub.on("a", got.append)
            for obj in objects:
                sender.publish("a", obj)
            at.attempt(lambda: ground.pubsub.run(0))
            ground.pubsub.off("a", got.append)
            assert at.reached or got == objects
            assert got + ground.rest() == objects
            stats = ground.pubsub.stats()
            assert (stats.dropped, stats.malformed, stats.pending) == (0, 0, 0)

        at_places(attempt, whole=whole)


@pytest.mark.parametrize("whole", WHOLE)
@pytest.mark.parametrize("large", [False, True], ids=["small", "of several segments"])
def test_running(ground: Round, large: bool, whole: bool) -> None:
    """A handler has an object, or it comes to the next call; one that raises has it."""
    objects = [LARGE + "1", "2"] if large else ["1", "2"]

    def attempt(at: At) -> None:
        got: list[Any] = []
        handlers = {channel: got.append for channel in "ab"}
        for channel, handler in handlers.items():
            ground.pubsub.on(channel, handler)
        for number, obj in enumerate(objects):
            ground.other.publish("ab"[number % 2], obj)
        at.attempt(lambda: ground.pubsub.run(0))
        for channel, handler in handlers.items():
            ground.pubsub.off(channel, handler)
        assert at.reached or got == objects
        rest = ground.rest()
        assert got + rest == objects
        assert ground.pubsub.stats().dropped == 0

    at_places(attempt, whole=whole)


def _reply(ground: Round) -> None:
    for received in ground.pubsub:
        ground.pubsub.publish("answers", f"to {received.obj}")
        return


SENDING: dict[str, tuple[Callable[[Round], object], list[Any]]] = {
    "publish": (lambda ground: ground.pubsub.publish("answers", "1"), ["1"]),
    "large": (lambda ground: ground.pubsub.publish("answers", LARGE), [LARGE]),
    "headers": (
        lambda ground: ground.pubsub.publish("answers", LARGE, headers={"k": "v"}),
        [LARGE],
    ),
    "nothing": (lambda ground: ground.pubsub.publish("answers"), [None]),
    "reply": (_reply, ["to question"]),
}


@pytest.mark.parametrize("whole", WHOLE)
@pytest.mark.parametrize("how", SENDING)
def test_publishing(ground: Round, how: str, whole: bool) -> None:
    """All of it has gone, or nothing."""
    send, expected = SENDING[how]

    def attempt(at: At) -> None:
        if how == "reply":
            ground.other.publish("a", "question")
        at.attempt(lambda: send(ground))
        assert not ground.conn.in_transaction
        heard = ground.heard()
        assert heard in ([], expected) if at.reached else heard == expected
        rest = ground.rest()
        assert rest == [] or (at.reached and not heard)
        assert ground.other.stats().pending == 0

    at_places(attempt, whole=whole)


@pytest.mark.parametrize("whole", WHOLE)
@pytest.mark.parametrize("how", ["subscribe", "unsubscribe", "close"])
def test_subscribing(ground: Round, how: str, whole: bool) -> None:
    """It can be done again, and then it is right; no lock is held."""

    def attempt(at: At) -> None:
        pubsub = pynotify.PubSub(ground.conn)
        pubsub.subscribe("a")
        call = {
            "subscribe": lambda: pubsub.subscribe("more"),
            "unsubscribe": lambda: pubsub.unsubscribe("a"),
            "close": pubsub.close,
        }[how]
        at.attempt(call)
        again = threading.Thread(target=lambda: contextlib.suppress(BaseException) and call())
        again.start()
        again.join(PATIENCE)
        assert not again.is_alive()
        ground.other.publish("more", "1")
        ground.other.publish("a", "2")
        if how != "close":
            found = [received.obj for received in pubsub._received(0)]
            assert found == (["1", "2"] if how == "subscribe" else [])
        assert ground.rest() == ["2"]
        pubsub.close()

    at_places(attempt, whole=whole)


def _run(pubsub: pynotify.PubSub) -> None:
    try:
        pubsub.run(0)
    except pynotify.InterfaceError as error:
        frames = traceback.extract_tb(error.__traceback__)
        assert "_receive" not in [frame.name for frame in frames], "it had begun, and returns"


@pytest.mark.parametrize("whole", WHOLE)
@pytest.mark.parametrize("again", [False, True], ids=["", "connecting again"])
def test_a_handler_closes(ground: Round, again: bool, whole: bool) -> None:
    """Also between the parts of an object."""
    with ground.engine.connect() as conn, pynotify.PubSub(conn, raw=True) as sender:

        def attempt(at: At) -> None:
            pubsub = pynotify.PubSub(ground.engine.connect)
            pubsub.subscribe("a")
            for obj in ("1", LARGE.encode(), "2", LARGE[1:].encode()):
                sender.publish("a", obj)
            if again:
                pubsub._lose(pubsub._connected(), pynotify.ConnectionLost("as if"))
            at._handle = pubsub.close  # type: ignore[method-assign]
            at.attempt(lambda: _run(pubsub))
            assert (pubsub._transport is None) is at.reached, "its connection is closed"
            pubsub.close()
            assert len(ground.rest()) == 4

        at_places(attempt, whole=whole)


@pytest.mark.parametrize("whole", WHOLE)
@pytest.mark.parametrize("how", ["poll", "stats", "subscribe"])
def test_a_handler_closes_what_another_thread_runs(ground: Round, how: str, whole: bool) -> None:
    """That thread may need what the interrupted call has, so it is the one that closes."""

    def attempt(at: At) -> None:
        pubsub = pynotify.PubSub(ground.conn)
        pubsub.subscribe("a")
        running = Call(pubsub.run)
        await_waiting(ground.conn, 1)
        calls: dict[str, Callable[[], object]] = {
            "poll": ground.conn.poll,
            "stats": pubsub.stats,
            "subscribe": lambda: pubsub.subscribe("b"),
        }

        def interrupted() -> None:
            with contextlib.suppress(pynotify.InterfaceError):  # closed
                calls[how]()

        at._handle = pubsub.close  # type: ignore[method-assign]
        Call(lambda: at.attempt(interrupted)).result()
        if not at.reached:
            pubsub.close()
            assert pubsub._transport is None, "it has waited for the thread"
        running.result()
        assert pubsub._transport is None
        assert ground.rest() == []

    at_places(attempt, whole=whole)


@pytest.mark.parametrize("whole", WHOLE)
@pytest.mark.parametrize("how", ["stats", "unsubscribe", "run"])
def test_a_handler_calls(ground: Round, how: str, whole: bool) -> None:
    """It waits for no lock that its own thread has: it is answered, or refused."""
    calls: dict[str, Callable[[], object]] = {
        "stats": ground.pubsub.stats,
        "unsubscribe": lambda: ground.pubsub.unsubscribe("none"),
        "run": lambda: ground.pubsub.run(0),
    }
    objects = ["1", LARGE.encode(), "2", LARGE[1:].encode()]
    with ground.engine.connect() as conn, pynotify.PubSub(conn, raw=True) as sender:

        def attempt(at: At) -> None:
            def handle() -> None:
                with contextlib.suppress(pynotify.ProgrammingError):
                    calls[how]()

            got: list[Any] = []
            ground.pubsub.on("a", got.append)
            for obj in objects:
                sender.publish("a", obj)
            at._handle = handle  # type: ignore[method-assign]
            at.attempt(lambda: ground.pubsub.run(0))
            ground.pubsub.off("a", got.append)
            got += ground.rest()
            # One that was in hand comes after those that the handler has received.
            assert Counter(got) == Counter(objects) if how == "run" else got == objects
            stats = ground.pubsub.stats()
            assert (stats.dropped, stats.malformed, stats.pending) == (0, 0, 0)

        at_places(attempt, whole=whole)


def test_a_handler_receives_between_waiting_and_taking(
    ground: Round, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The place of them all where one had the first part of an object, the other the rest."""
    strands: Any = ground.pubsub._connected()._strands  # type: ignore[union-attr]
    receive, got = strands._receive, list[Any]()

    def interrupted(*arguments: Any) -> Any:
        result = receive(*arguments)
        monkeypatch.setattr(strands, "_receive", receive)
        ground.pubsub.run(0)
        return result

    monkeypatch.setattr(strands, "_receive", interrupted)
    with ground.engine.connect() as conn, pynotify.PubSub(conn, raw=True) as sender:
        sender.publish("a", LARGE.encode())
    ground.pubsub.on("a", got.append)
    ground.pubsub.run(0)
    assert got == [LARGE.encode()]


@pytest.mark.parametrize("whole", WHOLE)
def test_a_handler_receives_inside_unsubscribe(ground: Round, whole: bool) -> None:
    """What is kept of the others comes once, whatever it was taken from."""
    pubsub = ground.pubsub
    with ground.conn.subscribe("none") as reading:

        def attempt(at: At) -> None:
            for number in range(4):
                ground.other.publish("ab"[number % 2], str(number))
            received = pubsub.ready()
            got = [next(received).obj]  # the rest has been put together
            for number in range(4, 8):
                ground.other.publish("ab"[number % 2], str(number))
            with contextlib.suppress(pynotify.Timeout):
                reading.next(0)  # it reads for all: these wait for the PubSub

            def handle() -> None:
                with contextlib.suppress(pynotify.ProgrammingError):
                    got.extend(each.obj for each in pubsub.ready())

            at._handle = handle  # type: ignore[method-assign]
            at.attempt(lambda: pubsub.unsubscribe("b"))
            got += ground.rest()
            assert Counter(obj for obj in got if int(obj) % 2 == 0) == Counter("0246")
            assert set(Counter(got).values()) == {1}
            pubsub.subscribe("b")

        at_places(attempt, whole=whole)


@pytest.mark.parametrize("how", ["on", "off"])
def test_a_handler_adds_and_removes_handlers(how: str) -> None:
    """In the middle of that: each call has its effect, and no other."""

    def first(_obj: object) -> None: ...

    def second(_obj: object) -> None: ...

    def third(_obj: object) -> None: ...

    def attempt(at: At) -> None:
        handlers = Handlers()
        handlers.add("c", first)
        if how == "off":
            handlers.add("c", second)
            handlers.add("c", third)

        def handle() -> None:
            handlers.remove("c", first)

        at._handle = handle  # type: ignore[method-assign]
        if how == "on":
            at.attempt(lambda: handlers.add("c", second))
            expected = [second] if at.reached else [first, second]
        else:
            at.attempt(lambda: handlers.remove("c", second))
            expected = [third] if at.reached else [first, third]
        found = handlers.of(Received("c", 1, 1))
        assert [handler for handler, _ in found] == expected

    at_places(attempt, whole=True)


def test_another_thread_loses_the_connection(ground: Round) -> None:
    """run() goes on with the next one."""
    conns: list[pynotify.Connection] = []

    def make() -> pynotify.Connection:
        conns.append(ground.engine.connect())
        return conns[-1]

    with pynotify.PubSub(make) as pubsub:
        pubsub.subscribe("a")
        received = iter(pubsub)
        first = Call(lambda: (next(received), next(received)))
        await_waiting(conns[0], 1)
        pubsub._lose(pubsub._connected(), pynotify.ConnectionLost("as if"))
        pubsub.publish("a", "1")
        gap, message = first.result()
        assert isinstance(gap.obj, pynotify.Gap)
        assert message.obj == "1"
    ground.rest()


@pytest.mark.parametrize("whole", WHOLE)
def test_subscribing_again_after_an_interruption(ground: Round, whole: bool) -> None:
    """unsubscribe() that was interrupted has unsubscribed or not; subscribe() hears in any case."""

    def attempt(at: At) -> None:
        at.attempt(lambda: ground.pubsub.unsubscribe("a"))
        ground.pubsub.subscribe("a")
        ground.other.publish("a", "1")
        assert ground.rest() == ["1"]

    at_places(attempt, whole=whole)


@pytest.mark.parametrize("whole", WHOLE)
@pytest.mark.parametrize("how", ["subscribe", "publish"])
def test_a_handler_connects_again(ground: Round, how: str, whole: bool) -> None:
    """There is one connection afterwards, which listens to all."""

    def attempt(at: At) -> None:
        pubsub = pynotify.PubSub(ground.engine.connect)
        pubsub.subscribe("a")
        calls: dict[str, Callable[[], object]] = {
            "subscribe": lambda: pubsub.subscribe("b"),
            "publish": lambda: pubsub.publish("answers", "1"),
        }

        def handle() -> None:
            with contextlib.suppress(pynotify.ProgrammingError):
                calls[how]()

        pubsub._lose(pubsub._connected(), pynotify.ConnectionLost("as if"))
        at._handle = handle  # type: ignore[method-assign]
        at.attempt(pubsub._connected)
        pubsub.subscribe("b")
        for channel in "ab":
            ground.other.publish(channel, channel)
        found: list[Any] = []
        while more := list(pubsub.ready()):
            found += [each.obj for each in more if each.channel is not None]  # else a Gap
        assert found == ["a", "b"]
        assert len(ground.engine.stat().backends) == 3
        pubsub.close()
        assert ground.rest() == ["a", "b"]
        ground.heard()

    at_places(attempt, whole=whole)


@pytest.mark.parametrize("whole", WHOLE)
@pytest.mark.parametrize("how", ["publish", "close"])
def test_a_handler_calls_while_an_array_is_published(ground: Round, how: str, whole: bool) -> None:
    array = np.full(10_000, 7)

    def attempt(at: At) -> None:
        sender = pynotify.PubSub(ground.conn)
        handle = {"publish": lambda: sender.publish("answers", array), "close": sender.close}[how]
        at._handle = handle  # type: ignore[method-assign]
        Call(lambda: at.attempt(lambda: _publish(sender, array))).result()
        heard = ground.heard()
        assert {int(each[-1]) for each in heard} <= {7}
        if not at.reached or how == "publish":
            assert len(heard) == 1 + at.reached
        sender.close()

    at_places(attempt, whole=whole)


def _publish(sender: pynotify.PubSub, array: Any) -> None:
    with contextlib.suppress(pynotify.InterfaceError):  # closed
        sender.publish("answers", array)


@pytest.mark.parametrize("whole", WHOLE)
def test_an_array_that_is_gone_is_counted_once(ground: Round, whole: bool) -> None:
    def attempt(at: At) -> None:
        before = ground.pubsub.stats()
        ground.other.publish("a", np.full(10_000, 1))
        _locks, *blocks = sorted(array_files(ground.engine.name), key=len)
        for block in blocks:
            os.unlink(f"{DIRECTORY}/{block}")
        at.attempt(lambda: ground.pubsub.run(0))
        ground.rest()
        after = ground.pubsub.stats()
        assert (after.dropped, after.received) == (before.dropped + 1, before.received)

    at_places(attempt, whole=whole)


@pytest.mark.parametrize("whole", WHOLE)
def test_unsubscribing_from_arrays(ground: Round, whole: bool) -> None:
    """Nothing waits for those that were dropped."""

    def attempt(at: At) -> None:
        ground.other.publish("a", "first")
        ground.other.publish("b", np.full(10_000, 1))
        received = ground.pubsub.ready()
        next(received)
        at.attempt(lambda: ground.pubsub.unsubscribe("b"))
        ground.pubsub.unsubscribe("b")
        ground.rest()
        assert ground.pubsub._unresolved == {}
        ground.pubsub.subscribe("b")

    at_places(attempt, whole=whole)


@pytest.mark.parametrize("whole", WHOLE)
def test_around_a_fork(ground: Round, whole: bool) -> None:
    """Ctrl-C in what Python calls around it, where it would be forgotten, is raised behind that.

    And no lock stays.  Called here and not by a fork: callbacks of others may take the exception.
    """
    ground.other.publish("a", np.full(10_000, 1))
    (kept,) = ground.rest()

    def around() -> bool:
        for callback in (_guard._before_fork, _guard._after_fork_in_parent):
            try:
                callback()
            except Interruption as error:
                frames = [frame.name for frame in traceback.extract_tb(error.__traceback__)]
                assert frames[-1:] == ["around"], "Python would print and forget it"
                raise
        return True

    def attempt(at: At) -> None:
        came_back = at.attempt(around)
        assert came_back is None if at.reached else came_back
        _guard._after_fork_in_parent()
        ground.other.publish("a", np.full(10_000, 2))
        assert len(Call(ground.rest).result()) == 1

    at_places(attempt, whole=whole)
    assert kept[0] == 1


def test_closing(ground: Round) -> None:
    """Interrupted anywhere, also in the standard library, it can be done again."""
    place, at = 0, At(0)
    while place == 0 or at.reached:
        place += 1
        pubsub = pynotify.PubSub(ground.conn)
        pubsub.subscribe("a")
        at = Anywhere(place)
        at.attempt(pubsub.close)
        Call(pubsub.close).result()
        assert pubsub.closed


@pytest.mark.parametrize("whole", WHOLE)
def test_arrays(ground: Round, whole: bool) -> None:
    """None is lost, and none stays in the way of what is published later."""
    sent = [np.full(10_000, number) for number in range(3)]

    def attempt(at: At) -> None:
        got: list[Any] = []
        for number, array in enumerate(sent):
            ground.other.publish("ab"[number % 2], array)
        at.attempt(lambda: _one_by_one(ground, got))
        assert at.reached or len(got) == 3
        got += ground.rest()
        assert [int(array[-1]) for array in got] == [0, 1, 2]
        got.clear()
        assert ground.pubsub.stats().dropped == 0

    at_places(attempt, whole=whole)
    there = []
    for _ in range(10):
        ground.other.publish("a", sent[0])
        assert len(ground.rest()) == 1
        there.append(len(array_files(ground.engine.name)))
    assert there[-1] <= there[0] + 1  # else something still waits for a block
