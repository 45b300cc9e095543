"""Signal handlers that raise while Python drops an object: what they raise comes behind that.

Python prints what is raised in a `__del__` or a callback of a weak reference, and goes on; such a
Ctrl-C would be lost, and the rest of the work not done.
"""

from __future__ import annotations

import _thread
import copy
import gc
import os
import pickle
import signal
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pynotify
from interrupting import Anywhere, Interruption
from pynotify._descriptor import Descriptor
from pynotify._finalizing import OwnDescriptor, WeakKeyDictionary, WeakSet, WeakValueDictionary
from pynotify._hot import finalizer
from pynotify.pubsub import _memory
from receiving import PATIENCE
from sessions import Connect


def dropped(make: Callable[[], Any], check: Callable[[], None], least: int = 2) -> None:
    """With an exception at each place of what happens when the last reference to it goes."""
    for place in range(1, 1000):
        held = [make()]
        at = Anywhere(place)

        def drop(held: list[Any] = held) -> str:
            held.clear()
            return "not interrupted"

        came_through = at.attempt(drop) is not None
        assert came_through != at.reached  # what was raised came out, once, and only if it was
        check()
        if came_through:
            assert place > least, "it has no such places"
            return
    raise AssertionError("it never came through")


def descriptors() -> set[int]:
    return {fd for fd in range(256) if Path(f"/proc/self/fd/{fd}").is_symlink()}


def test_subscription(conn: pynotify.Connection, connect: Connect) -> None:
    """Nothing is kept for it any more."""
    inboxes: list[Any] = []

    def make() -> pynotify.Subscription:
        sub = conn.subscribe("s")
        inboxes.append(sub._inbox)
        return sub

    dropped(make, lambda: None if inboxes[-1].closed else pytest.fail("it is kept"), least=1)
    connect().notify("s", "x")
    assert conn.poll() == []


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, pickle.dumps])
def test_there_are_no_copies(
    conn: pynotify.Connection, duplicate: Callable[[object], object]
) -> None:
    """Whose end would be the original's: a subscription got nothing any more."""
    sub, pubsub = conn.subscribe("s"), pynotify.PubSub(conn)
    with conn.topic("t").channel("c").consumer() as consumer:
        for each in (conn, sub, pubsub, consumer):
            with pytest.raises(TypeError, match="cannot copy or pickle a "):
                duplicate(each)
    gc.collect()
    conn.notify("s", "x")
    assert sub.next(PATIENCE).payload == "x"
    pubsub.close()


def test_pubsub(conn: pynotify.Connection) -> None:
    strands: list[Any] = []

    def make() -> pynotify.PubSub:
        pubsub = pynotify.PubSub(conn)
        pubsub.subscribe("a", "b", "c")
        ours = pubsub._transport._strands
        strands[:] = [ours._inbox, *ours._merged.strands.values()]
        return pubsub

    def check() -> None:
        assert all(strand.closed for strand in strands)

    dropped(make, check)


def test_array(conn: pynotify.Connection, connect: Connect) -> None:
    """Its block is let go of, once."""
    with pynotify.PubSub(connect()) as sender, pynotify.PubSub(conn) as receiver:
        receiver.subscribe("c")

        def make() -> Any:
            sender.publish("c", np.zeros(100_000))
            return next(iter(receiver)).obj

        def check() -> None:
            held = receiver._transport._arrays.guard._held
            assert held is not None
            assert not held._counts
            assert not held._gone

        dropped(make, check, least=5)


def test_transaction_block(conn: pynotify.Connection, connect: Connect) -> None:
    """The `__exit__` that its `with` statement had is gone: the block was not left."""
    other = connect()
    other.listen("c")

    def make() -> Any:
        block = conn.transaction()
        leave = block.__exit__
        block.__enter__()
        conn.notify("c", "undone")
        return leave

    def check() -> None:
        conn.notify("c", "done")
        assert [message.payload for message in other.poll()] == ["done"]

    dropped(make, check, least=5)


@pytest.mark.parametrize(
    "make",
    [
        lambda path, core: Descriptor(core),
        lambda path, core: _memory.LockFile(str(path), create=True),
        lambda path, core: OwnDescriptor(os.eventfd(0)),
    ],
    ids=["of an event loop", "of locks", "of another object"],
)
def test_descriptor(make: Callable[[Path, int], Any], tmp_path: Path) -> None:
    """It is closed, once: what has its number afterwards is another's."""
    core = os.eventfd(0)
    try:
        before = descriptors()
        dropped(
            lambda: make(tmp_path / "locks", core),
            lambda: None if descriptors() == before else pytest.fail("it is open"),
            least=1,
        )
    finally:
        os.close(core)


@pytest.mark.parametrize(
    "container", [WeakSet, WeakValueDictionary, WeakKeyDictionary], ids=lambda kind: kind.__name__
)
def test_weak_container(container: Callable[[], Any]) -> None:
    class Thing:
        pass

    kept = container()

    def make() -> Thing:
        thing = Thing()
        if container is WeakSet:
            kept.add(thing)
        elif container is WeakKeyDictionary:
            kept[thing] = 1
        else:
            kept[1] = thing
        return thing

    dropped(make, lambda: None if len(kept) == 0 else pytest.fail("it is kept"), least=1)


class Raises:
    """In its `__del__`, once or always."""

    def __init__(self, exception: BaseException, times: int) -> None:
        self.exception, self.times = exception, times

    @finalizer
    def __del__(self) -> None:
        if self.times > 0:
            self.times -= 1
            raise self.exception


def reported(call: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> list[BaseException]:
    found: list[BaseException] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda report: found.append(report.exc_value))
    call()
    return found


def test_an_error_of_its_own_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """As Python does it, and not raised anywhere."""
    error = ValueError("its own")
    assert reported(lambda: Raises(error, 1) and None, monkeypatch) == [error]


def test_in_another_thread_all_are_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """No signal handlers run there."""
    error = Interruption()

    def call() -> None:
        thread = threading.Thread(target=lambda: Raises(error, 1) and None)
        thread.start()
        thread.join()

    assert reported(call, monkeypatch) == [error]


def test_a_thread_of_the_programs_own_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """threading, which has not started it, is not told of it: it would keep an entry for good."""
    known: list[threading.Thread] = []
    ended = threading.Event()

    def run() -> None:
        Raises(ValueError(), 1)
        known.extend(threading.enumerate())
        ended.set()

    before = threading.enumerate()
    assert len(reported(lambda: _thread.start_new_thread(run, ()) and ended.wait(), monkeypatch))
    assert known == before


def test_a_signal_while_it_is_asked_whose_an_error_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error is reported, the exception of the handler comes out behind the finalizer."""
    places = 0
    for place in range(1, 1000):
        error, at = ValueError("its own"), Anywhere(place)

        def drop(error: ValueError = error) -> str:
            held = [Raises(error, 1)]
            held.clear()
            return "not interrupted"

        outcome: list[Any] = []

        def attempt(at: Anywhere = at, drop: Any = drop, outcome: list[Any] = outcome) -> None:
            outcome.append(at.attempt(drop))

        found = reported(attempt, monkeypatch)
        assert (outcome == [None]) == at.reached, place
        assert found == [error], place
        if not at.reached:
            break
        places += 1
    assert places > 5


class Notes:
    """That its `__del__` has run."""

    def __init__(self, run: list[int], depth: int) -> None:
        self.run, self.depth = run, depth

    @finalizer
    def __del__(self) -> None:
        self.run.append(self.depth)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_stack_that_is_too_deep_is_no_handler() -> None:
    """Neither can the finalizer begin there, nor can it be asked why: nothing comes behind it."""

    def drop_at(depth: int, held: list[Notes]) -> None:
        if depth > 0:
            drop_at(depth - 1, held)
        else:
            held.clear()

    run: list[int] = []
    for depth in range(sys.getrecursionlimit()):
        held = [Notes(run, depth)]
        try:
            drop_at(depth, held)
        except RecursionError:
            assert held, "it came behind the finalizer"
            break
    assert len(run) < depth  # so there were some that did not run
    assert run == list(range(len(run)))


class _Error(Exception):
    """As a handler of the program's raises for a time limit."""


class Signalled:
    """Gets a signal in its `__del__`."""

    begun = ended = 0

    @finalizer
    def __del__(self) -> None:
        Signalled.begun += 1
        if Signalled.begun == 1:
            os.kill(os.getpid(), signal.SIGUSR2)
        Signalled.ended += 1


def _raise(kind: type[BaseException], number: int, frame: object) -> None:
    raise kind("from a signal")


@pytest.mark.parametrize("others", [0, 3], ids=["", "and others go with it"])
@pytest.mark.parametrize("wrapped", [False, True], ids=["", "a partial handles it"])
@pytest.mark.parametrize("kind", [KeyboardInterrupt, _Error])
def test_a_real_signal(kind: type[BaseException], wrapped: bool, others: int) -> None:
    """What it raises comes behind all that go at once, and each of them is done."""

    def handler(number: int, frame: object) -> None:
        _raise(kind, number, frame)

    Signalled.begun = Signalled.ended = 0
    before = signal.signal(signal.SIGUSR2, partial(_raise, kind) if wrapped else handler)
    try:
        with pytest.raises(kind, match="from a signal"):
            held = tuple(Signalled() for _ in range(1 + others))
            del held
            gc.isenabled()
    finally:
        signal.signal(signal.SIGUSR2, before)
    assert Signalled.ended == 1 + others


def test_a_handler_that_replaces_itself() -> None:
    """The next signal is to end the program, say."""

    def handler(number: int, frame: object) -> None:
        signal.signal(number, signal.SIG_IGN)
        raise _Error("from a signal")

    Signalled.begun = Signalled.ended = 0
    before = signal.signal(signal.SIGUSR2, handler)
    try:
        with pytest.raises(_Error, match="from a signal"):
            Signalled()
            gc.isenabled()
    finally:
        signal.signal(signal.SIGUSR2, before)
    assert Signalled.ended == 1
