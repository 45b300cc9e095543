"""What goes with an object, of which no exception of a signal handler may be lost.

Python runs signal handlers between two bytecodes, also those of a `__del__` or of a callback of a
weak reference; what they raise there is printed and forgotten.  So such functions of ours are in
`finalizer` (native/python/finalizer.c), and weak containers are those of this module: the standard
library's have callbacks in Python.
"""

from __future__ import annotations

import os
import weakref
from functools import partial

from pynotify._hot import finalizer

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType, FrameType
    from typing import Any, TypeVar

    _T = TypeVar("_T")
    _K = TypeVar("_K")
    _V = TypeVar("_V")


def is_of_a_handler(exception: BaseException) -> bool:
    """Whether a signal handler of Python's has raised it; they run in the main thread alone.

    KeyboardInterrupt and the like are of no other origin in a finalizer; of an `Exception` it is
    known by the places it went through: a handler's code, or, of one that was replaced meanwhile,
    perhaps by itself, that it was given the frame that it interrupted.
    """
    import signal  # noqa: PLC0415
    import threading  # noqa: PLC0415

    if threading.get_ident() != threading.main_thread().ident:
        return False
    if not isinstance(exception, Exception) or "_raised_outside" in vars(exception):
        return True  # or it is raised behind another finalizer
    handlers = {_code_of(signal.getsignal(number)) for number in signal.valid_signals()}
    place = exception.__traceback__
    while place is not None:
        if place.tb_frame.f_code in handlers or _has_interrupted(place.tb_frame):
            return True
        place = place.tb_next
    return False


def _has_interrupted(frame: FrameType) -> bool:
    """Whether the last argument of its function is the frame below it."""
    code = frame.f_code
    last = code.co_argcount - 1
    given = frame.f_locals.get(code.co_varnames[last]) if last > 0 else None
    return given is not None and given is frame.f_back


def _code_of(handler: Any) -> CodeType | None:
    """The code of a function, a method, or an object that can be called."""
    while isinstance(handler, partial):
        handler = handler.func
    code: CodeType | None = getattr(handler, "__code__", None)
    if code is None:
        code = getattr(getattr(handler, "__call__", None), "__code__", None)  # noqa: B004
    return code


class _Protected:
    """A weak container in whose callback no exception of a signal handler is lost."""

    _remove: Callable[..., None]

    def __init__(self) -> None:
        super().__init__()
        self._remove = finalizer(self._remove)


class WeakSet(_Protected, weakref.WeakSet["_T"]):
    """As the standard library's."""


class WeakValueDictionary(_Protected, weakref.WeakValueDictionary["_K", "_V"]):
    """As the standard library's."""


class WeakKeyDictionary(_Protected, weakref.WeakKeyDictionary["_K", "_V"]):
    """As the standard library's."""


class OwnDescriptor:
    """A descriptor that is closed with the object that has this."""

    __slots__ = ("_fd",)

    def __init__(self, fd: int) -> None:
        self._fd = fd

    @finalizer
    def __del__(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)
