"""The connections of adapters: made in the process, or for the loop, that needs one.

Frameworks import, and often make their objects, in a process that forks afterwards.  So an adapter
keeps the name of its segment, and connects where it is used.
"""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from pynotify._finalizing import WeakSet
from pynotify._hot import finalizer
from pynotify._locks import RLock

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

_T = TypeVar("_T")


class PerProcess(Generic[_T]):
    """An object of each process that asks for it, made by `make` when there is none."""

    def __init__(self, make: Callable[[], _T], usable: Callable[[_T], bool]) -> None:
        self._make = make
        self._usable = usable
        self.forget()
        _per_process.add(self)

    def forget(self) -> None:
        """Forget what another process, or none, has made."""
        # The lock may be held at the moment of the fork by a thread that the child does not have.
        self._lock = RLock()
        self._made: _T | None = None

    def get(self) -> _T:
        """The object of this process."""
        made = self._made
        if made is None or not self._usable(made):
            with self._lock:
                made = self._made
                if made is None or not self._usable(made):
                    made = self._made = self._make()
        return made

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
    """An object of the running event loop; one of another loop is let go."""

    def __init__(self, make: Callable[[], Awaitable[_T]]) -> None:
        self._make = make
        self._loop: asyncio.AbstractEventLoop | None = None
        self._making: asyncio.Future[Any] | None = None

    async def get(self) -> _T:
        """The object of this loop.  Tasks that ask at the same time get the same one."""
        loop = asyncio.get_running_loop()
        if self._loop is not loop or self._making is None:
            self._loop = loop
            self._making = asyncio.ensure_future(self._make())
        making = self._making
        try:
            made: _T = await asyncio.shield(making)
        except BaseException:
            if making.done() and self._making is making:
                self._making = None  # it failed: the next caller tries again
            raise
        return made

    def take(self) -> _T | None:
        """Take the object of the running loop out; None when it has none."""
        making, self._making = self._making, None
        if making is None or self._loop is not asyncio.get_running_loop():
            return None
        if not making.done() or making.cancelled() or making.exception() is not None:
            making.cancel()
            return None
        made: _T = making.result()
        return made
