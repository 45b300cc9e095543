"""What is read ahead in C, with the GIL held and no lock (native/python/inlet.c).

What cannot be put into the backlog there is left to a read under the lock: names of channels that
are new to the connection, and gaps.  Until then it is nowhere, and each caller that looks has to
find it, also where Ctrl-C keeps the leader from going on.
"""

from __future__ import annotations

import asyncio
import gc
import select
import sys
import threading
from collections import deque
from itertools import count
from types import FrameType
from typing import Any

import pytest

import pynotify
from interrupting import At
from pynotify import _receiver, errors
from pynotify._hot import Inlet
from receiving import payloads, wait_until
from sessions import Connect
from waiting import Call, await_waiting


@pytest.fixture
def aside(conn: pynotify.Connection, connect: Connect) -> pynotify.Connection:
    """As notifies() waits, of whose messages the name of the channel is not known yet."""
    conn.listen("fresh")
    connect().notify_many("fresh", ["a", "b"])
    assert conn.link.receiver.wait(-1, 64)
    assert not conn.link.receiver.backlog
    return conn


class TestReadAside:
    @pytest.mark.parametrize("timeout", [0, 0.001])
    def test_wait_finds_it(self, aside: pynotify.Connection, timeout: float) -> None:
        assert aside.wait(timeout)
        assert payloads(aside.poll()) == ["a", "b"]

    def test_the_descriptor_shows_it(self, aside: pynotify.Connection) -> None:
        assert select.select([aside.fileno()], [], [], 0)[0]
        assert payloads(aside.poll()) == ["a", "b"]

    def test_unlisten_drops_it(self, aside: pynotify.Connection) -> None:
        aside.unlisten("fresh")
        assert aside.poll() == []

    def test_the_leader_wakes_a_thread_that_came_meanwhile(
        self, aside: pynotify.Connection
    ) -> None:
        """Nothing of it is in the core, where that one sleeps."""
        receiver = aside.link.receiver
        receiver.interrupted = False  # the other one has looked before it was set
        call = Call(aside.wait)
        await_waiting(aside, 1)
        receiver.interrupted = True
        receiver.read_ahead(64)
        assert call.result()
        assert payloads(aside.poll()) == ["a", "b"]

    @pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
    def test_ctrl_c_at_every_place(self, conn: pynotify.Connection, connect: Connect) -> None:
        other = connect()
        for place in range(1, 1000):
            conn.listen(f"c{place}")
            other.notify_many(f"c{place}", ["a", "b"])
            at = At(place)
            heard = payloads(at.attempt(lambda: [next(conn.notifies())]) or [])
            assert conn.wait(0.001), place
            assert heard + payloads(conn.poll()) == ["a", "b"]
            if not at.reached:
                break
        assert place > 10


def test_unlisten_while_the_loop_is_about_to_go_on(engine_name: str, connect: Connect) -> None:
    async def run() -> None:
        async with pynotify.AsyncConnection.connect(engine_name) as conn:
            await conn.listen("fresh")
            connect().notify_many("fresh", ["a", "b"])
            assert not conn.link.receiver.take_ahead(64)
            await conn.unlisten("fresh")
            assert await conn.poll() == []

    asyncio.run(run())


def test_a_thread_that_begins_to_wait_meanwhile(
    conn: pynotify.Connection, connect: Connect
) -> None:
    """It sees what a leader has read ahead, or the leader sees it: wherever it is stopped."""
    receiver = conn.link.receiver
    other = connect()
    conn.listen("m")
    other.notify("m", "its name is known from now on")
    conn.poll()
    code = type(receiver).wait.__code__
    for line in sorted({line for *_, line in code.co_lines() if line}):
        stopped, go_on = threading.Event(), threading.Event()

        def trace(
            frame: FrameType,
            event: str,
            _: Any,
            line: int = line,
            stopped: threading.Event = stopped,
            go_on: threading.Event = go_on,
        ) -> Any:
            if frame.f_code is not code:
                return None
            if event == "line" and frame.f_lineno == line:
                sys.settrace(None)
                stopped.set()
                go_on.wait()
            return trace

        def second(trace: Any = trace) -> bool:
            sys.settrace(trace)
            try:
                return conn.wait()
            finally:
                sys.settrace(None)

        leader = Call(receiver.wait, -1, 64)
        await_waiting(conn, 1)
        call = Call(second)
        wait_until(
            lambda stopped=stopped: stopped.is_set() or receiver.election.followers,
            "the second thread is stopped, or sleeps",
        )
        other.notify_many("m", ["a", "b"])
        leader.result()
        go_on.set()
        assert call.result(), code.co_name + str(line)
        assert payloads(conn.poll()) == ["a", "b"]


class Backlog(Inlet):
    pass


def test_take_out() -> None:
    """What is left stays in its order; a large backlog takes as many steps as it has messages."""
    things: list[Any] = [str(number) for number in range(200_000)]
    inlet = Backlog()
    inlet.backlog = deque(things)
    inlet.take_out({id(thing) for thing in things[1::2]})
    assert list(inlet.backlog) == things[::2]
    with pytest.raises(TypeError, match="set of numbers"):
        inlet.take_out([])  # type: ignore[arg-type]


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="the collector runs between bytecodes")
def test_unlisten_while_the_collector_takes_out_of_the_backlog(
    conn: pynotify.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As another thread can, which the collector lets run: nothing fails, what is owed is left."""

    class Takes:
        def __init__(self) -> None:
            self.me = self

        def __del__(self) -> None:
            if backlog:
                backlog.popleft()

    def begin(function: Any) -> Any:
        """Just before it goes through the backlog."""
        Takes()
        gc.set_threshold(next(steps))
        gc.enable()
        return function

    backlog, steps = conn.link.receiver.backlog, count(1)
    threshold = gc.get_threshold()
    monkeypatch.setattr(_receiver, "cache", begin)
    conn.listen("a")
    for _ in range(1, 20):
        conn.notify_many("a", [str(number) for number in range(100)])
        conn.link.receiver.give_back(conn.poll())
        gc.collect()
        gc.disable()
        try:
            conn.link.receiver.forget_unlistened()
        finally:
            gc.set_threshold(*threshold)
            gc.enable()
        gc.collect()
        assert payloads(conn.poll()) == [str(number) for number in range(1, 100)]


def test_an_error_of_the_core_is_left_to_those_under_the_lock(
    conn: pynotify.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To make it runs Python code, and so signal handlers, whose exceptions must not end here."""
    conn.listen("m")
    conn.close()

    def fail(code: int) -> Exception:
        raise KeyboardInterrupt

    monkeypatch.setattr(errors, "native_error", fail)
    assert not conn.link.receiver.take_ahead(1)
    monkeypatch.undo()
    with pytest.raises(pynotify.InterfaceError):
        conn.link.receiver.wait(-1, 1)
