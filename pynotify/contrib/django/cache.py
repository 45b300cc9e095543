"""A cache in the memory of each process; what is deleted in one is forgotten by all.

```
CACHES = {
    "default": {
        "BACKEND": "pynotify.contrib.django.cache.GenerationCache",
        "LOCATION": "app",  # a segment
    },
}
```

Whether an entry is still good is one load from shared memory: there is no message, and no moment in
which another process serves what was deleted.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, TypeAlias
from zlib import crc32

from django.core.cache.backends.base import DEFAULT_TIMEOUT
from django.core.cache.backends.locmem import LocMemCache

from pynotify._connect import connect, created_at
from pynotify._segments import check_name
from pynotify.contrib._own import PerProcess

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pynotify._generation import Generation

__all__ = ["GenerationCache"]

#: When the segment was made, and two counters of it.
_Date: TypeAlias = "tuple[int, int, int]"

_SLOTS = 64
#: Of a thread: how many keys it looked up in vain it remembers.
_MISSES = 1024


class _Counters:
    """The counters of a cache in this process: one for each slot of keys, one for all."""

    def __init__(self, segment: str, name: str, slots: int) -> None:
        self.connection = connect(segment)
        self._created = created_at(self.connection)
        self.all = self.connection.generation(f"cache:{name}")
        self._slots: list[Generation] = [
            self.connection.generation(f"cache:{name}:{slot}") for slot in range(slots)
        ]

    @property
    def usable(self) -> bool:
        return not self.connection.closed

    def of(self, key: str) -> Generation:
        return self._slots[crc32(key.encode()) % len(self._slots)]

    def now(self, key: str) -> _Date:
        """What an entry must have been stored at."""
        return self._created, self.all.value, self.of(key).value

    def bump(self, generations: Iterable[Generation]) -> None:
        """All at one moment."""
        with self.connection.transaction():
            for generation in generations:
                generation.bump()


class GenerationCache(LocMemCache):  # type: ignore[misc]
    """Django's memory cache, whose entries other processes invalidate.

    `delete`, `delete_many` and `clear` take effect in every process of the segment when they
    return.  `set` and its like store in this process alone: they are for what was computed, not for
    what has changed.  What was computed from data of before a `delete` is not kept: the `set` of a
    thread after its own `get` in vain counts as of that `get`.

    `OPTIONS`: `name` (caches of one segment with different names are apart), `slots` (64: how many
    counters the keys are spread over; a delete forgets what shares its counter), `MAX_ENTRIES`,
    `CULL_FREQUENCY`.
    """

    def __init__(self, name: str, params: dict[str, Any]) -> None:
        options = dict(params.get("OPTIONS", {}))
        segment = name or "default"
        check_name(segment)
        label, slots = options.pop("name", "default"), int(options.pop("slots", _SLOTS))
        super().__init__(f"pynotify:{segment}:{label}", {**params, "OPTIONS": options})
        self._counters = PerProcess(
            lambda: _Counters(segment, label, slots),
            lambda made: made.usable,
            lambda made: made.connection,
        )
        self._of_thread = threading.local()

    # ---- what is stored --------------------------------------------------------------------

    def get(self, key: Any, default: Any = None, version: int | None = None) -> Any:
        """The value, if no process has deleted it since."""
        made = self.make_and_validate_key(key, version=version)
        now = self._counters.get().now(made)
        found = self._found(key, now, version)
        if found is not self:
            return found
        misses = self._misses()
        if len(misses) >= _MISSES:
            misses.clear()
        misses[made] = now
        return default

    def set(
        self,
        key: Any,
        value: Any,
        timeout: Any = DEFAULT_TIMEOUT,
        version: int | None = None,
    ) -> None:
        """Keep a value in this process."""
        super().set(key, self._dated(key, value, version), timeout=timeout, version=version)

    def add(
        self,
        key: Any,
        value: Any,
        timeout: Any = DEFAULT_TIMEOUT,
        version: int | None = None,
    ) -> bool:
        """Keep a value in this process unless it has one that is good."""
        made = self.make_and_validate_key(key, version=version)
        # Not get(), in vain it would be the one as of which the value counts.
        if self._found(key, self._counters.get().now(made), version) is not self:
            return False
        return bool(
            super().add(key, self._dated(key, value, version), timeout=timeout, version=version)
        )

    def has_key(self, key: Any, version: int | None = None) -> bool:
        """Whether this process has a value that is good."""
        return self.get(key, self, version=version) is not self

    def incr(self, key: Any, delta: int = 1, version: int | None = None) -> int:
        """Add to a number of this process.  Raises ValueError when there is none."""
        value = self.get(key, self, version=version)
        if value is self:
            raise ValueError(f"Key {key!r} not found")
        self.set(key, value + delta, version=version)
        new: int = value + delta
        return new

    # ---- what is forgotten, by all ---------------------------------------------------------

    def delete(self, key: Any, version: int | None = None) -> bool:
        """Forget a key in every process; True when this one had it."""
        made = self.make_and_validate_key(key, version=version)
        had = self.has_key(key, version=version)
        self._counters.get().bump([self._counters.get().of(made)])
        super().delete(key, version=version)
        return had

    def delete_many(self, keys: Iterable[Any], version: int | None = None) -> None:
        """Forget keys in every process, at one moment."""
        made = [(key, self.make_and_validate_key(key, version=version)) for key in keys]
        counters = self._counters.get()
        counters.bump({id(each): each for each in (counters.of(key) for _, key in made)}.values())
        for key, _ in made:
            super().delete(key, version=version)

    def clear(self) -> None:
        """Forget everything in every process."""
        self._counters.get().bump([self._counters.get().all])
        super().clear()

    def _found(self, key: Any, now: _Date, version: int | None) -> Any:
        """The value of this process that is good now; itself: there is none."""
        found = super().get(key, self, version=version)
        if found is self:
            return self
        stored, value = found
        if stored == now:
            return value
        super().delete(key, version=version)
        return self

    # ---- when it was computed --------------------------------------------------------------

    def _misses(self) -> dict[str, _Date]:
        if not hasattr(self._of_thread, "misses"):
            self._of_thread.misses = {}
        misses: dict[str, _Date] = self._of_thread.misses
        return misses

    def _dated(self, key: Any, value: Any, version: int | None) -> tuple[_Date, Any]:
        made = self.make_and_validate_key(key, version=version)
        now: Callable[[str], _Date] = self._counters.get().now
        return self._misses().pop(made, None) or now(made), value
