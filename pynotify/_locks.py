"""Locks and events of which no part stays locked when a signal handler raises.

CPython 3.14 runs signal handlers between the `__enter__` of a `with` statement and its block, and
then calls no `__exit__` (python/cpython#148874): after a Ctrl-C at that moment every other thread
would wait for ever.  So there the locks are our own (native/python/lock.c); before and after 3.14
they are threading's.

With each version the same happens to threading's events and conditions, whose `__enter__` is Python
code; and a handler that sets an event which its own thread is about to wait for never comes back.
"""

import contextlib
import sys
import threading
from queue import Empty, SimpleQueue

if sys.version_info[:2] == (3, 14):
    from pynotify import _hot

    def Lock() -> _hot.Lock:
        """A lock."""
        return _hot.Lock(threading.Lock())

    def RLock() -> _hot.Lock:
        """A lock that its thread may take again."""
        return _hot.Lock(threading.RLock())

else:
    from threading import Lock, RLock


class Event:
    """Set once."""

    __slots__ = ("_is_set", "_tokens")

    def __init__(self) -> None:
        self._is_set = False
        #: Each that waits takes one, and puts one back for the next.
        self._tokens: SimpleQueue[None] = SimpleQueue()

    def set(self) -> None:
        """End all waiting.  A signal handler may call it, too."""
        self._is_set = True
        self._tokens.put(None)

    def is_set(self) -> bool:
        """Whether it is."""
        return self._is_set

    def wait(self, seconds: float) -> bool:
        """Until it is set, but no longer than that; whether it is."""
        if not self.is_set():
            try:
                with contextlib.suppress(Empty):
                    self._tokens.get(timeout=max(seconds, 0.0))
            finally:
                if self.is_set():
                    self._tokens.put(None)
        return self.is_set()


__all__ = ["Event", "Lock", "RLock"]
