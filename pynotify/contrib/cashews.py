"""A memory backend of cashews whose entries all processes of a host forget together.

```
from cashews import cache
import pynotify.contrib.cashews  # makes the scheme known

cache.setup("pynotify://app?name=prices")

@cache(ttl="10m", key="price:{product}", tags=["prices"])
async def price(product):
    return await database.query(...)

await cache.delete("price:tea")  # in every process, before this returns
await cache.delete_tags("prices")
await cache.delete_match("price:*")
```

Each process keeps its own values, as with cashews' memory backend: `set()` says nothing to the
others, and locks, rate limits and circuit breakers are of the process.  `delete`, `delete_many`,
`delete_match`, `delete_tags`, `clear` and `invalidate` are for all.

Rules and their reasons are those of `pynotify.contrib._kept`.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from cashews import register_backend
from cashews.backends.memory import Memory

from pynotify.contrib._kept import Kept, counters_of

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["SharedInvalidationMemory"]

_TAGS = "_tag:"
"""What cashews calls the sets of keys that have a tag."""


class SharedInvalidationMemory(Memory):
    """cashews' `Memory`, but that deletions are for all processes.

    Backends with the same `name` are invalidated together.  Their counters are `name`:0, `name`:1
    ..., `name`:all and `name`:tags of `segment`, by the connection that `pynotify.get(segment)`
    gives: one backend slot a process, made where it is first needed, so that a server may fork
    after the cache was set up.  In a transaction of that connection deletions take effect at its
    commit.  Of `delete_match` other processes know the pattern only: they forget everything.

    `size`, `check_interval` and what else there is are those of cashews.  Raises
    `TooManyGenerations` when the segment has no room for that many counters.
    """

    def __init__(
        self,
        name: str = "cashews",
        *,
        segment: str = "default",
        counters: int = 32,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self._kept = Kept(counters_of(name, segment, counters))
        #: Of this task: keys that it has from a tag, and will delete.  With the tag they are old
        #: already; a counter for each of many keys would take all others with them.
        self._popped: ContextVar[frozenset[str]] = ContextVar("popped", default=frozenset())
        self.store = self._kept  # type: ignore[assignment]  # it does what Memory asks of a dict

    async def clear(self) -> None:
        """Forget everything, in all processes."""
        self._kept.invalidate_all()

    async def delete(self, key: str) -> bool:
        """Forget `key` in all processes; whether this one had it."""
        deleted = bool(await super().delete(key))
        self._kept.invalidate(key)
        return deleted

    async def delete_many(self, *keys: str) -> None:
        """Forget these in all processes."""
        await super().delete_many(*keys)
        popped = self._popped.get()
        for key in keys:
            if key not in popped:
                self._kept.invalidate(key)
        self._popped.set(popped.difference(keys))

    async def delete_match(self, pattern: str) -> None:
        """Forget what matches (`*`: anything); other processes forget everything."""
        await super().delete_match(pattern)
        self._kept.invalidate_others()

    async def _get(self, key: str, default: Any = None) -> Any:
        value = await super()._get(key, default)
        if value is default:
            self._kept.get(key)  # one that has just expired is a miss, too
        return value

    async def set_add(self, key: str, *values: str, expire: float | None = None) -> None:
        """Add to a set of this process; `values` of a tag are keys that were just set."""
        await super().set_add(key, *values, expire=expire)
        if _TAGS in key:
            for value in values:
                self._kept.tie(value, key)

    async def set_pop(self, key: str, count: int = 100) -> Iterable[str]:
        """Take from a set of this process; keys with that tag are forgotten in all processes."""
        popped: Iterable[str] = await super().set_pop(key, count)
        if _TAGS in key:
            self._kept.invalidate_tag(key)
            self._popped.set(self._popped.get().union(popped))
        return popped


def _made(address: str, **options: Any) -> SharedInvalidationMemory:
    """``pynotify://SEGMENT?name=NAME``."""
    segment = unquote(urlsplit(address).netloc)
    if segment:
        options["segment"] = segment
    return SharedInvalidationMemory(**options)


register_backend("pynotify", _made, pass_uri=True)
