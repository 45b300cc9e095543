"""A memory cache of aiocache whose entries all processes of a host forget together.

```
from aiocache import cached
from pynotify.contrib.aiocache import SharedInvalidationCache

@cached(cache=SharedInvalidationCache, name="prices", segment="app", key="tea")
async def price():
    return await database.query(...)

await price.cache.delete("tea")  # in every process, before this returns
```

Each process keeps its own values, as with aiocache's memory cache: `set()` says nothing to the
others.  `delete()` and `clear()` do.  They bump a generation counter of the segment, and a value is
kept only as long as the counter is what it was.

1. Whether a value is still good is two loads of shared memory: no message, and no moment in which
   another process serves what was deleted.
2. After a miss, what is set under that key belongs to the counter that the miss has seen.  So what
   was computed from data of before a `delete()` is not kept after it.
3. Keys share counters, `counters` of them: a `delete()` costs other keys of the same counter a
   miss, and a segment that has a counter for each key would be full one day.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, MutableMapping
from typing import TYPE_CHECKING, Any, NamedTuple

from aiocache import SimpleMemoryCache

from pynotify._connect import get
from pynotify.contrib._own import PerProcess

if TYPE_CHECKING:
    from pynotify._connection import Connection
    from pynotify._generation import Generation

__all__ = ["SharedInvalidationCache"]

_MISSES = 1024
_NOTHING: Any = object()
_NO_VALUE = _NOTHING, -1  # of no counters


class _Counters(NamedTuple):
    connection: Connection
    all: Generation
    some: list[Generation]

    def of(self, key: str) -> Generation:
        return self.some[zlib.crc32(key.encode()) % len(self.some)]


class _Kept(MutableMapping[str, Any]):
    """Values, each as long as its counters are what they were; in the place of aiocache's dict."""

    def __init__(self, counters: PerProcess[_Counters]) -> None:
        self._counters = counters
        #: Those that the numbers below are of.
        self._of: _Counters | None = None
        self._values: dict[str, tuple[Any, int]] = {}
        #: What the counters were when a key was not found, the latest ones.
        self._misses: dict[str, int] = {}

    def _shared(self) -> _Counters:
        counters = self._counters.get()
        if counters is not self._of:  # a child, or another segment: its numbers mean nothing here
            self._of = counters
            self._values.clear()
            self._misses.clear()
        return counters

    def _now(self, key: str) -> int:
        counters = self._shared()
        return counters.of(key).value + counters.all.value  # neither ever falls

    def get(self, key: str, default: Any = None) -> Any:
        now = self._now(key)
        value, of = self._values.get(key, _NO_VALUE)
        if of == now:
            return value
        self._values.pop(key, None)
        self._misses.setdefault(key, now)
        if len(self._misses) > _MISSES:
            del self._misses[next(iter(self._misses))]
        return default

    def __contains__(self, key: object) -> bool:
        return isinstance(key, str) and self.get(key, _NOTHING) is not _NOTHING

    def __getitem__(self, key: str) -> Any:
        value = self.get(key, _NOTHING)
        if value is _NOTHING:
            raise KeyError(key)
        return value

    def __setitem__(self, key: str, value: Any) -> None:
        missed = self._misses.pop(key, None)
        self._values[key] = value, self._now(key) if missed is None else missed

    def __delitem__(self, key: str) -> None:
        del self._values[key]

    def __iter__(self) -> Iterator[str]:
        return iter(list(self._values))

    def __len__(self) -> int:
        return len(self._values)

    def invalidate(self, key: str) -> None:
        """That key's values are old in all processes."""
        self._shared().of(key).bump()
        self._misses.pop(key, None)  # what is set from now on is new

    def invalidate_all(self) -> None:
        self._shared().all.bump()
        self._values.clear()
        self._misses.clear()


class SharedInvalidationCache(SimpleMemoryCache):  # type: ignore[misc]
    """aiocache's `SimpleMemoryCache`, but that `delete` and `clear` are for all processes.

    Caches with the same `name` are invalidated together.  Their counters are `name`:0, `name`:1 ...
    and `name`:all of `segment`, by the connection that `pynotify.get(segment)` gives: one backend
    slot a process, made where it is first needed, so that a server may fork after the cache was
    made.  In a transaction of that connection `delete` and `clear` take effect at its commit.  Of
    `clear(namespace=...)` other processes know the name only: they forget everything.

    Raises `TooManyGenerations` when the segment has no room for that many counters.
    """

    def __init__(
        self,
        name: str = "aiocache",
        *,
        segment: str = "default",
        counters: int = 32,
        **options: Any,
    ) -> None:
        super().__init__(**options)

        def make() -> _Counters:
            connection = get(segment)
            some = [connection.generation(f"{name}:{number}") for number in range(counters)]
            return _Counters(connection, connection.generation(f"{name}:all"), some)

        self._cache = self._kept = _Kept(PerProcess(make, lambda made: not made.connection.closed))

    async def _delete(self, key: str, _conn: Any = None) -> int:
        deleted: int = await super()._delete(key)
        self._kept.invalidate(key)
        return deleted

    async def _clear(self, namespace: str | None = None, _conn: Any = None) -> bool:
        for key in self._kept:
            if namespace is None or key.startswith(namespace):
                await super()._delete(key)
        self._kept.invalidate_all()
        return True
