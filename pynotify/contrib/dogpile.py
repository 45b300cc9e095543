"""Regions of dogpile.cache that all processes of a host invalidate together.

```
from dogpile.cache import make_region
from pynotify.contrib.dogpile import SharedInvalidation

region = make_region().configure(
    "dogpile.cache.memory", region_invalidator=SharedInvalidation("prices", segment="app")
)
region.invalidate()  # in every process, before this returns
```

dogpile.cache keeps what it invalidates in the process: `region.invalidate()` in one worker says
nothing to the others.  Here it bumps a generation counter of the segment, one for hard and one for
soft invalidation, and a value is old when it was made before the counter changed.

1. To ask is a load of shared memory or two: no message, and no moment in which another process
   takes a value for good that was invalidated.
2. A value that a soft invalidation follows is still hard invalidated if it was before.
3. Times are those of this host's clock, as those of dogpile.cache's values.  dogpile.cache notes
   when a value was there, and not when its function began to read: one that was computed from data
   of before an invalidation, and came after it, counts as new.  `pynotify.contrib.cache` has not
   got this fault.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple

from dogpile.cache.region import RegionInvalidationStrategy

from pynotify._connect import created_at, get_present
from pynotify.contrib._own import PerProcess

if TYPE_CHECKING:
    from pynotify._connection import Connection
    from pynotify._generation import Generation

__all__ = ["SharedInvalidation"]


class _Counters(NamedTuple):
    connection: Connection
    hard: Generation
    soft: Generation


class SharedInvalidation(RegionInvalidationStrategy):
    """For `region_invalidator=`; regions with the same `name` are invalidated together.

    The counters are `name`:hard and `name`:soft of `segment`, by the connection that
    `pynotify.get(segment)` gives: one backend slot a process, made where it is first needed, so
    that a server may fork after the region was configured.  In a transaction of that connection
    `invalidate` takes effect at its commit.
    """

    def __init__(self, name: str, *, segment: str = "default") -> None:
        #: When the segment was made; and since when it is not the one of before, which may have
        #: been told of invalidations that are forgotten now.
        self._created: int | None = None
        self._since: float | None = None

        def make() -> _Counters:
            connection = get_present(segment)
            hard, soft = (connection.generation(f"{name}:{kind}") for kind in ("hard", "soft"))
            created, before = created_at(connection), self._created
            if before not in {None, created}:
                self._since = time.time()
            self._created = created
            return _Counters(connection, hard, soft)

        self._counters = PerProcess(
            make, lambda made: not made.connection.closed, lambda made: made.connection
        )

    def invalidate(self, hard: bool = True) -> None:
        """Every value that there is by now is old: gone, or (not `hard`) served until it is made
        again.  Raises `LockTimeout`.
        """
        counters = self._counters.get()
        (counters.hard if hard else counters.soft).bump()

    def is_invalidated(self, timestamp: float) -> bool:
        """Whether a value of that time was invalidated since."""
        return self.is_hard_invalidated(timestamp) or _is_before(timestamp, self._soft_at())

    def is_hard_invalidated(self, timestamp: float) -> bool:
        """Whether a value of that time is not to be served any more."""
        return _is_before(timestamp, self._hard_at())

    def is_soft_invalidated(self, timestamp: float) -> bool:
        """Whether a value of that time may be served until there is a new one."""
        before_soft = _is_before(timestamp, self._soft_at())
        return before_soft and not self.is_hard_invalidated(timestamp)

    def was_hard_invalidated(self) -> bool:
        """Whether the last invalidation was a hard one."""
        hard, soft = self._hard_at(), self._soft_at()
        return hard is not None and (soft is None or hard >= soft)

    def was_soft_invalidated(self) -> bool:
        """Whether the last invalidation was a soft one."""
        return self._soft_at() is not None and not self.was_hard_invalidated()

    def _hard_at(self) -> float | None:
        at, since = self._counters.get().hard.changed_at, self._since
        return at if since is None else max(at or since, since)

    def _soft_at(self) -> float | None:
        return self._counters.get().soft.changed_at


def _is_before(timestamp: float, at: float | None) -> bool:
    return at is not None and timestamp < at
