"""An exception of a signal handler at every place of what PubSub sends and receives.

What was published once is handed out once, by the call that was interrupted or by the next.
"""

from __future__ import annotations

import contextlib
import threading
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import pynotify
from interrupting import WHOLE, Anywhere, At, at_places
from pynotify._array_files import array_files
from receiving import PATIENCE
from sessions import EngineFactory
from waiting import Call

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
            assert how == "run" or got == objects

        at_places(attempt, whole=whole)


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
