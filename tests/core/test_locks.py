"""Locks that a thread does not keep when a signal handler raises as `with` has taken them."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import FrameType
from typing import Any

import pytest

from interrupting import Anywhere
from pynotify import _hot, _locks
from receiving import PATIENCE
from waiting import Call

KINDS = [threading.Lock, threading.RLock]


def is_free(lock: Any) -> bool:
    """Whether another thread can have it."""

    def take() -> bool:
        taken: bool = lock.acquire(blocking=False)
        if taken:
            lock.release()
        return taken

    return bool(Call(take).result())


class Interruption(BaseException):
    pass


def interrupted(lock: AbstractContextManager[Any]) -> bool:
    """Whether an exception came between `__enter__` and the block of a `with` statement."""
    entered = False

    def handle(_frame: FrameType, event: str, called: Any) -> None:
        name = getattr(called, "__name__", "")
        del called  # a signal handler has no reference to it
        if event == "c_return" and name == "__enter__":
            sys.setprofile(None)
            raise Interruption

    sys.setprofile(handle)
    try:
        with lock:
            entered = True
    except Interruption:
        pass
    finally:
        sys.setprofile(None)
    return not entered


@pytest.mark.parametrize("make", KINDS)
def test_a_with_statement(make: Callable[[], Any]) -> None:
    lock = _hot.Lock(make())
    for _ in range(3):
        with lock:
            assert not is_free(lock)
        assert is_free(lock)
    with pytest.raises(KeyError), lock:
        raise KeyError
    assert is_free(lock)


def test_a_thread_may_take_it_again() -> None:
    lock = _hot.Lock(threading.RLock())
    with lock:
        with lock:
            assert not is_free(lock)
        assert not is_free(lock)
    assert is_free(lock)


@pytest.mark.parametrize("make", KINDS)
def test_what_with_has_looked_up_and_drops_gives_it_back(make: Callable[[], Any]) -> None:
    lock = _hot.Lock(make())
    leave: Any = lock.__exit__
    lock.__enter__()
    assert not is_free(lock)
    del leave
    assert is_free(lock)
    leave = lock.__exit__
    del leave  # it was never entered
    assert is_free(lock)
    leave = lock.__exit__
    lock.__enter__()
    leave(None, None, None)
    assert is_free(lock)
    with lock:
        del leave  # it has left
        assert not is_free(lock)


def test_a_hold_is_that_of_its_thread() -> None:
    """As where a trace function lets another thread run between the look-up and __enter__."""
    lock = _hot.Lock(threading.RLock())
    other: Any = Call(lambda: lock.__exit__).result()
    with lock:
        del other
        assert not is_free(lock)
    other = Call(lambda: lock.__exit__).result()
    lock.__enter__()
    del other
    assert not is_free(lock)
    lock.release()
    assert is_free(lock)


def test_an_exception_of_a_handler_while_it_waits() -> None:
    class Refusing:
        def acquire(self) -> bool:
            raise Interruption

        def release(self) -> None:
            raise AssertionError("it was not taken")

    lock = _hot.Lock(Refusing())
    with pytest.raises(Interruption), lock:
        raise AssertionError("it was not taken")


@pytest.mark.parametrize("make", [_locks.Lock, _locks.RLock])
def test_what_the_package_uses(make: Callable[[], Any]) -> None:
    """Interrupted between `__enter__` and the block, if this Python does that: it is free."""
    lock = make()
    assert interrupted(lock) is (sys.version_info[:2] == (3, 14))
    assert is_free(lock)
    with lock:
        assert not is_free(lock)
    assert is_free(lock)


def everywhere(attempt: Callable[[Anywhere], object]) -> None:
    """With an exception at each place, also those of the standard library."""
    place, at = 0, Anywhere(0)
    while place == 0 or at.reached:
        place += 1
        at = Anywhere(place)
        attempt(at)


def test_an_event_whose_setting_was_interrupted() -> None:
    def attempt(at: Anywhere) -> None:
        event = _locks.Event()
        waiting = [Call(event.wait, PATIENCE) for _ in range(2)]
        at.attempt(event.set)
        Call(event.set).result()
        assert all(call.result() for call in waiting)
        assert event.wait(0)

    everywhere(attempt)


def test_an_event_that_a_handler_sets_in_the_middle_of_waiting() -> None:
    def attempt(at: Anywhere) -> None:
        event = _locks.Event()
        at._handle = event.set  # type: ignore[method-assign]
        assert at.attempt(lambda: event.wait(0)) in (False, at.reached)
        assert event.wait(0) is at.reached

    everywhere(attempt)
    assert not _locks.Event().wait(0.001)


def test_what_it_is_made_of() -> None:
    with pytest.raises(TypeError):
        _hot.Lock()  # type: ignore[call-arg]
    with pytest.raises(AttributeError):
        _hot.Lock(object())
