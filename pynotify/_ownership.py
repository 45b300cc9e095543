"""Objects of the core in the hands of Python objects.

1. The core counts the references to a connection: its handle, transactions and consumers.  They may
be
   destroyed in any order, and the last one frees it.
2. A handle's destructor runs when the last reference to it goes.  A thread in the middle of a call
   of the core holds one, as an argument, so closing frees nothing under it; the hot path needs no
   lock and no counter.  A handle is looked up once for each call, and what a call has returned a
   pointer into is used while a reference to the handle is still held.
3. No method that raises keeps a handle in a local variable: the traceback would keep it, and so
   the backend slot, as long as the exception is kept.
4. What is closed has the handle of something closed in its place, and the core refuses it: so a
   method need not ask before each call, and it may be closed at any step, by another thread or by
   a signal handler.
5. The garbage collector runs destructors of a cycle in any order, also before a `__del__` of the
   program that still uses the object.  So each handle is kept here as long as its owner lives, out
   of the collector's reach, and goes with the owner's memory, after every `__del__`.
6. An exception of a signal handler (Ctrl-C) can come at every step.  So the destructor closes what
   the variable that the core has set says, and clears it in the same step: done twice it is done
   once, and the caller that was interrupted after the core's call drops it.
"""

from __future__ import annotations

import weakref
from functools import partial

from pynotify._ffi import ffi, lib

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

CLOSED = lib.pn_closed_conn()
CLOSED_CONSUMER = lib.pn_closed_consumer()
ENDED = lib.pn_ended_txn()

_kept: dict[weakref.ref[Any], tuple[Any, ...]] = {}


def adopt(out: Any, drop: Callable[[Any, Any], None]) -> Any:
    """The handle of what *out points to."""
    return ffi.gc(out[0], partial(drop, out))


def keep(owner: object, *handles: Any) -> None:
    """Keep the handles as long as `owner` lives, or until let_go()."""
    # No Python code runs when it dies: nothing could come in between.
    _kept[weakref.ref(owner, _kept.pop)] = handles


def let_go(owner: object) -> None:
    """Leave `owner` the only references to its handles."""
    _kept.pop(weakref.ref(owner), None)
