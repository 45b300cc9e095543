"""Exceptions of signal handlers (Ctrl-C), at every place of a call, or at some of them."""

from __future__ import annotations

import dis
import gc
import inspect
import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import pynotify

PACKAGE = str(Path(pynotify.__file__).parent)
TESTS = str(Path(__file__).parents[1])

#: Parameters of a test: `make test` looks at some places, `make test-full` at all.
WHOLE = [
    pytest.param(False, id="some places"),
    pytest.param(True, id="every place", marks=pytest.mark.full),
]
_SOME = 10


class Interruption(BaseException):
    """As KeyboardInterrupt."""


class At:
    """Raises at the n-th place inside of the package at which Python runs signal handlers.

    These are the beginnings of Python functions and the ends of calls of C functions, that is
    what a profile function is told of; and the ends of loops, at which a trace function looks.
    """

    def __init__(self, place: int, exception: type[BaseException] = Interruption) -> None:
        self._left = place
        self._exception = exception
        self.reached = False

    @property
    def passed(self) -> int:
        """How many places there were, for one that was made with 0, which never raises."""
        return -self._left

    def __call__(self, frame: FrameType, event: str, _argument: object) -> None:
        if not frame.f_code.co_filename.startswith(PACKAGE):
            return
        if event == "c_return" or (event == "call" and not _comes_back_from_await(frame)):
            self._pass()

    def _pass(self) -> None:
        self._left -= 1
        if self._left == 0:
            self.reached = True
            sys.setprofile(None)
            sys.settrace(None)
            self._handle()

    def _handle(self) -> None:
        raise self._exception

    def _trace(self, frame: FrameType, event: str, _argument: object) -> Any:
        """Of a function: in it, before each of its instructions."""
        if event != "call" or not frame.f_code.co_filename.startswith(PACKAGE):
            return None
        frame.f_trace_lines, frame.f_trace_opcodes = False, True
        last = -1

        def look(frame: FrameType, event: str, _argument: object) -> Any:
            nonlocal last
            if event == "opcode":
                jumped = last > frame.f_lasti  # backwards: the end of a loop
                last = frame.f_lasti
                if jumped:
                    self._pass()
            return look

        return look

    def attempt(self, call: Callable[[], Any]) -> Any:
        """What it returns; None when it was interrupted.

        The collector does not run meanwhile.  What a `__del__` raises is only reported; and one
        that takes the trace function away, while CPython is about to call it, frees it there.
        """
        trace = self._trace  # held, for a `__del__` without the collector
        collecting = gc.isenabled()
        gc.disable()
        sys.settrace(trace)
        sys.setprofile(self)
        try:
            return call()
        except self._exception:
            return None
        finally:
            sys.setprofile(None)
            sys.settrace(None)
            if collecting:
                gc.enable()


class Anywhere(At):
    """Also in the standard library, but not in tests."""

    def __call__(self, frame: FrameType, event: str, _argument: object) -> None:
        if not frame.f_code.co_filename.startswith(TESTS) and event in ("call", "c_return"):
            self._pass()


class Calls(At):
    """Calls a signal handler at the n-th place; what it raises, the interrupted call raises."""

    def __init__(self, place: int, handler: Callable[[], object]) -> None:
        super().__init__(place)
        self._handler = handler

    def _handle(self) -> None:
        self._handler()


def _comes_back_from_await(frame: FrameType) -> bool:
    """Python goes on there without a look at its signal handlers."""
    if not frame.f_code.co_flags & (inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR):
        return False
    code, at = frame.f_code.co_code, frame.f_lasti
    return at >= 0 and code[at] == dis.opmap["RESUME"] and code[at + 1] > 1


def at_places(
    attempt: Callable[[At], object],
    *,
    whole: bool,
    exception: type[BaseException] = Interruption,
    kind: type[At] = At,
) -> int:
    """Make the attempt with an exception at each place, or at some; how many places it has."""
    attempt(kind(0))  # the first one fills caches, and has more places
    count = kind(0)
    attempt(count)
    for place in _chosen(count.passed, whole=whole):
        attempt(kind(place, exception))
    attempt(kind(0))
    return count.passed


def _chosen(total: int, *, whole: bool) -> Iterator[int]:
    places = range(1, total + 1)
    if whole or total <= _SOME:
        yield from places
    else:
        yield from sorted(random.Random(total).sample(places, _SOME))
