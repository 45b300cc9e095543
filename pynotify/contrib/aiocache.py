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

Rules and their reasons are those of `pynotify.contrib._kept`.
"""

from __future__ import annotations

from typing import Any

from aiocache import SimpleMemoryCache

from pynotify.contrib._kept import Kept, counters_of

__all__ = ["SharedInvalidationCache"]


class SharedInvalidationCache(SimpleMemoryCache):  # type: ignore[misc]
    """aiocache's `SimpleMemoryCache`, but that `delete` and `clear` are for all processes.

    Caches with the same `name` are invalidated together.  Their counters are `name`:0, `name`:1
    ..., `name`:all and `name`:tags of `segment`, by the connection that `pynotify.get(segment)`
    gives: one backend slot a process, made where it is first needed, so that a server may fork
    after the cache was made.  In a transaction of that connection `delete` and `clear` take effect
    at its commit.  Of `clear(namespace=...)` other processes know the name only: they forget
    everything.

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
        self._cache = self._kept = Kept(counters_of(name, segment, counters))

    async def _delete(self, key: str, _conn: Any = None) -> int:
        deleted: int = await super()._delete(key)
        self._kept.invalidate(key)
        return deleted

    async def _clear(self, namespace: str | None = None, _conn: Any = None) -> bool:
        if namespace is None:
            self._kept.invalidate_all()
            return True
        for key in self._kept:
            if key.startswith(namespace):
                await super()._delete(key)
        self._kept.invalidate_others()
        return True
