"""Locks that no thread keeps when a signal handler raises just after `with` has taken them.

CPython 3.14 runs signal handlers there, between `__enter__` and the block, and then calls no
`__exit__` (python/cpython#148874): after a Ctrl-C at that moment every other thread would wait for
ever.  So there the locks are our own (native/python/lock.c); before and after 3.14 they are
threading's.
"""

import sys
import threading

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

__all__ = ["Lock", "RLock"]
