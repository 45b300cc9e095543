"""The connections of adapters: made in the process, or for the loop, that needs one.

Frameworks import, and often make their objects, in a process that forks afterwards.  So an adapter
keeps the name of its segment, and connects where it is used.  A worker may also outlive a segment,
which is removed and made again: then it connects to the new one.
"""

from __future__ import annotations

import asyncio
import os
import time
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from pynotify._connect import is_gone
from pynotify._finalizing import WeakSet
from pynotify._hot import finalizer
from pynotify._locks import RLock

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from pynotify._connection import Connection

_T = TypeVar("_T")


#: Seconds between two looks at whether a segment is still there, which take a system call or two.
_LOOK_S = 1.0


class PerProcess(Generic[_T]):
    """An object of each process that asks for it, made by `make` when there is none.

    `connection`: that of an object, which is made again when the segment was removed.
    """

    def __init__(
        self,
        make: Callable[[], _T],
        usable: Callable[[_T], bool],
        connection: Callable[[_T], Connection] | None = None,
    ) -> None:
        self._make = make
        self._usable = usable
        self._connection = connection
        self.forget()
        _per_process.add(self)

    def forget(self) -> None:
        """Forget what another process, or none, has made."""
        # The lock may be held at the moment of the fork by a thread that the child does not have.
        self._lock = RLock()
        self._made: _T | None = None
        self._look_at = 0.0

    def get(self) -> _T:
        """The object of this process."""
        made = self._made
        if made is None or not self._usable(made) or time.monotonic() >= self._look_at:
            with self._lock:
                made = self._made
                if made is None or not self._is_there(made):
                    made = self._made = self._make()
                self._look_at = time.monotonic() + _LOOK_S
        return made

    def _is_there(self, made: _T) -> bool:
        if not self._usable(made):
            return False
        return self._connection is None or not is_gone(self._connection(made))

    def take(self) -> _T | None:
        """Take the object out, to be closed; None when this process has none."""
        with self._lock:
            made, self._made = self._made, None
        return made


#: Those that a forked child has to forget.
_per_process: WeakSet[PerProcess[Any]] = WeakSet()


@finalizer
def _forget_all() -> None:
    for each in _per_process:
        each.forget()


os.register_at_fork(after_in_child=_forget_all)


class PerLoop(Generic[_T]):
    """An object of each event loop that asks for it; those of closed loops are let go."""

    def __init__(self, make: Callable[[], Awaitable[_T]]) -> None:
        self._make = make
        self._making: dict[asyncio.AbstractEventLoop, asyncio.Future[Any]] = {}

    async def get(self) -> _T:
        """The object of this loop.  Tasks that ask at the same time get the same one."""
        loop = asyncio.get_running_loop()
        making = self._making.get(loop)
        if making is None:
            for other in list(self._making):  # other threads may have theirs
                if other.is_closed():
                    self._making.pop(other, None)
            making = self._making[loop] = asyncio.ensure_future(self._make())
        try:
            made: _T = await asyncio.shield(making)
        except BaseException:
            if making.done() and self._making.get(loop) is making:
                self._making.pop(loop, None)  # it failed: the next caller tries again
            raise
        return made

    def take(self) -> _T | None:
        """Take the object of the running loop out; None when it has none."""
        making = self._making.pop(asyncio.get_running_loop(), None)
        if making is None:
            return None
        if not making.done() or making.cancelled() or making.exception() is not None:
            making.cancel()
            return None
        made: _T = making.result()
        return made
