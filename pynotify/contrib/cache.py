"""Results of a function, kept by each process until any process says that they are old.

```
from pynotify.contrib.cache import cached

@cached("prices", segment="app")
def price(product):
    return database.query(...)

price.invalidate()  # every process forgets, before this returns
```

1. Whether what is kept is still good is one load from shared memory, of a generation counter: there
   is no message, and no moment in which another process serves what was invalidated.
2. A call reads the counter first, and looks and computes in what belongs to that value.  So what
   was computed from data of before an invalidation is never served after it.
3. In a process a result is computed once, however many threads or tasks ask for it at that moment.
   Exceptions are not kept.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import time
import types
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar, cast

from pynotify._connect import get_present
from pynotify._locks import RLock
from pynotify.contrib._own import PerProcess

if TYPE_CHECKING:
    from collections.abc import Callable

    from pynotify._connection import Connection

__all__ = ["Cached", "CachedCoroutine", "cached"]

P = ParamSpec("P")
R = TypeVar("R")

_EMPTY: Any = object()


class _Entry:
    """The result for one set of arguments, or the place where it is computed."""

    __slots__ = ("computing", "expires", "lock", "value")

    def __init__(self) -> None:
        self.lock = RLock()  # the function may call itself
        self.value: Any = _EMPTY
        self.expires: float | None = None
        self.computing: asyncio.Future[Any] | None = None

    def found(self) -> Any:
        expires = self.expires
        return self.value if expires is None or time.monotonic() < expires else _EMPTY

    def keep(self, value: Any, ttl: float | None) -> None:
        self.expires = None if ttl is None else time.monotonic() + ttl
        self.value = value


class _Kept:
    """What this process has, of one value of the counter."""

    def __init__(self, connection: Connection, generation: str, maxsize: int | None) -> None:
        self.connection = connection
        self.generation = connection.generation(generation)
        self._maxsize = maxsize
        self._of_value = self._nothing(-1)

    def _nothing(self, value: int) -> tuple[int, Callable[..., _Entry]]:
        return value, functools.lru_cache(self._maxsize)(lambda *_args, **_options: _Entry())

    def entries(self) -> Callable[..., _Entry]:
        now = self.generation.value  # first this, then what it stands for
        of_value = self._of_value
        if of_value[0] < now:
            of_value = self._of_value = self._nothing(now)
        return of_value[1]


class Cached(Generic[P, R]):
    """A function whose results are kept; made by `cached`.  It is called as the function is."""

    def __init__(
        self,
        function: Callable[P, R],
        generation: str,
        segment: str,
        maxsize: int | None,
        ttl: float | None,
    ) -> None:
        functools.update_wrapper(self, function)
        self._function = function
        self._ttl = ttl
        self._kept = PerProcess(
            lambda: _Kept(get_present(segment), generation, maxsize),
            lambda made: not made.connection.closed,
            lambda made: made.connection,
        )

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """The result that is kept, or that of the function."""
        entry = self._kept.get().entries()(*args, **kwargs)
        value = entry.found()
        if value is _EMPTY:
            with entry.lock:
                value = entry.found()
                if value is _EMPTY:
                    value = self._function(*args, **kwargs)
                    entry.keep(value, self._ttl)
        return cast("R", value)

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self if instance is None else types.MethodType(self, instance)

    def invalidate(self) -> None:
        """Forget all results, in every process of the segment.

        In a transaction of `pynotify.get(segment)` it takes effect when that commits.  So does
        `bump()` of the counter of that name, on whichever connection.
        """
        self._kept.get().generation.bump()


class CachedCoroutine(Cached[P, Any]):
    """The same of a coroutine function; it is awaited as that is."""

    async def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Any:
        """The result that is kept, or that of the function."""
        entry = self._kept.get().entries()(*args, **kwargs)
        value = entry.found()
        if value is not _EMPTY:
            return value
        computing = entry.computing
        if computing is None or computing.get_loop() is not asyncio.get_running_loop():
            computing = asyncio.ensure_future(self._compute(entry, args, kwargs))
            entry.computing = computing
        # A caller that is cancelled does not take the result from the others.
        return await asyncio.shield(computing)

    async def _compute(self, entry: _Entry, args: Any, kwargs: Any) -> Any:
        try:
            value = await cast("Any", self._function(*args, **kwargs))
            entry.keep(value, self._ttl)
        finally:
            entry.computing = None
        return value


def cached(
    generation: str,
    *,
    segment: str = "default",
    maxsize: int | None = 1024,
    ttl: float | None = None,
) -> Callable[[Callable[P, R]], Cached[P, R]]:
    """Keep the results of a function, or of a coroutine function, in each process that calls it.

    `generation`: the name of the counter on which they depend; functions with the same one forget
    together.  `maxsize`: how many results a process keeps at most, those used last (None: all).
    `ttl`: seconds after which a result is computed again in any case.  Arguments are hashed, as
    `functools.lru_cache` does, and a method's instance is one of them.
    """

    def decorate(function: Callable[P, R]) -> Cached[P, R]:
        kind = CachedCoroutine if inspect.iscoroutinefunction(function) else Cached
        return kind(function, generation, segment, maxsize, ttl)

    return decorate
