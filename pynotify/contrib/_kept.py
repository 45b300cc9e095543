"""Values that a process keeps as long as nothing says that they are old: what adapters put in the
place of a memory cache's dict.

1. Whether a value is still good is two loads of shared memory, of counters that never fall: no
   message, and no moment in which a process serves what another one deleted.
2. After a miss, what is set under that key belongs to the counters that the miss has seen, the
   first one since a value was set there.  So what was computed from data of before a deletion is
   not kept after it: neither by another process, nor by another task of this one.  A task that has
   missed, then deletes, and then sets, cannot be told from those: what it sets is not kept, either.
3. Keys share counters: a deletion costs other keys of the same counter a miss, and a segment that
   has a counter for each key would be full one day.
4. A value is tied to tags after it was set, and its miss did not know them.  So each deletion of a
   tag bumps the counter of all tags, and then the tag's own: a value whose miss has seen another
   number of the first is dropped when it is tied; one that is tied has the second.
"""

from __future__ import annotations

import zlib
from collections import OrderedDict
from collections.abc import Iterator, MutableMapping
from typing import TYPE_CHECKING, Any, NamedTuple

from pynotify._connect import get_present
from pynotify.contrib._own import PerProcess

if TYPE_CHECKING:
    from pynotify._connection import Connection
    from pynotify._generation import Generation

_MISSES = 1024
_NOTHING: Any = object()


class Counters(NamedTuple):
    """The counters of one name in a segment."""

    connection: Connection
    all: Generation
    tags: Generation
    some: list[Generation]

    def of(self, key: str) -> Generation:
        """The counter of a key, or of a tag; others may share it."""
        return self.some[zlib.crc32(key.encode()) % len(self.some)]


def counters_of(name: str, segment: str, count: int) -> PerProcess[Counters]:
    """`name`:0, `name`:1 ..., `name`:all and `name`:tags of the segment, for each process."""

    def make() -> Counters:
        connection = get_present(segment)
        some = [connection.generation(f"{name}:{number}") for number in range(count)]
        whole, tags = (connection.generation(f"{name}:{what}") for what in ("all", "tags"))
        return Counters(connection, whole, tags, some)

    return PerProcess(make, lambda made: not made.connection.closed, lambda made: made.connection)


class _Number(NamedTuple):
    """What the counters were: the key's own and that of all keys together, and that of all tags."""

    own: int
    tags: int


class _Value(NamedTuple):
    value: Any
    of: _Number
    ties: tuple[tuple[Generation, int], ...] = ()


class _Mine(NamedTuple):
    """What a process keeps; the numbers are of those counters."""

    counters: Counters
    values: dict[str, _Value]
    #: What the counters were when a key was not found, the latest ones.
    misses: OrderedDict[str, _Number]

    def now(self, key: str) -> _Number:
        counters = self.counters
        tags = counters.tags.value
        return _Number(counters.of(key).value + counters.all.value, tags)

    def good(self, key: str, now: _Number) -> _Value | None:
        found = self.values.get(key)
        if found is None:
            return None
        if found.of.own == now.own and all(tag.value == number for tag, number in found.ties):
            return found
        if self.values.get(key) is found:
            self.values.pop(key, None)
        return None


class Kept(MutableMapping[str, Any]):
    """Values, each as long as its counters are what they were.  In the order of their use, where
    that is said with `move_to_end`.

    Threads may use it at once: what one of them has taken out, the others do not find.
    """

    def __init__(self, counters: PerProcess[Counters]) -> None:
        self._counters = counters
        self._last: _Mine | None = None

    def _mine(self) -> _Mine:
        counters, mine = self._counters.get(), self._last
        if mine is None or mine.counters is not counters:  # a child, or another segment
            mine = self._last = _Mine(counters, {}, OrderedDict())
        return mine

    def get(self, key: str, default: Any = None) -> Any:
        """The value, if it is good; else the miss is remembered."""
        mine = self._mine()
        now = mine.now(key)
        found = mine.good(key, now)
        if found is not None:
            return found.value
        mine.misses.setdefault(key, now)
        if len(mine.misses) > _MISSES:
            mine.misses.popitem(last=False)
        return default

    def __contains__(self, key: object) -> bool:
        return isinstance(key, str) and self.get(key, _NOTHING) is not _NOTHING

    def __getitem__(self, key: str) -> Any:
        """What was good when `in`, or an iteration, said that the key is there: caches ask for it
        right afterwards, and another process may have deleted it in between.
        """
        return self._mine().values[key].value

    def __setitem__(self, key: str, value: Any) -> None:
        mine = self._mine()
        missed = mine.misses.pop(key, None)
        was = mine.values.get(key)
        number = mine.now(key) if missed is None else missed
        # What takes the place of a good one keeps its ties: to more than it needs, perhaps.
        ties = was.ties if was is not None and missed is None else ()
        mine.values[key] = _Value(value, number, ties)

    def __delitem__(self, key: str) -> None:
        del self._mine().values[key]

    def __iter__(self) -> Iterator[str]:
        """The keys whose values are good now."""
        mine = self._mine()
        return iter([key for key in list(mine.values) if mine.good(key, mine.now(key))])

    def __len__(self) -> int:
        return len(self._mine().values)

    def move_to_end(self, key: str) -> None:
        """Count `key` as used last, as an OrderedDict does."""
        values = self._mine().values
        found = values.pop(key, None)
        if found is not None:
            values[key] = found

    def popitem(self, last: bool = True) -> tuple[str, Any]:
        """Take out the value used last, or first, as an OrderedDict does."""
        values = self._mine().values
        key = next(reversed(values) if last else iter(values))
        return key, values.pop(key).value

    def invalidate(self, key: str) -> None:
        """That key's values are old in all processes."""
        self._mine().counters.of(key).bump()

    def invalidate_all(self) -> None:
        """All values are old, in all processes."""
        mine = self._mine()
        mine.counters.all.bump()
        mine.values.clear()

    def invalidate_others(self) -> None:
        """Other processes forget all values; those here are as good as they were before.

        A value is kept if nothing but this has changed its number.
        """
        mine = self._mine()
        before = {key: found for key in self if (found := mine.values.get(key)) is not None}
        mine.counters.all.bump()
        mine.values.clear()
        for key, found in before.items():
            now = mine.now(key)
            if now.own - found.of.own <= 1:  # 0: in a transaction
                own = _Number(now.own, found.of.tags)
                mine.values[key] = found._replace(of=own)

    def tie(self, key: str, tag: str) -> None:
        """That key's value is old as soon as the tag is; it was set just now."""
        mine = self._mine()
        found = mine.values.get(key)
        if found is None:
            return
        generation = mine.counters.of(tag)
        number = generation.value  # before the other: a deletion bumps that first
        if mine.counters.tags.value != found.of.tags:
            mine.values.pop(key, None)
        else:
            others = (tie for tie in found.ties if tie[0] is not generation)
            mine.values[key] = found._replace(ties=(*others, (generation, number)))

    def invalidate_tag(self, tag: str) -> None:
        """What is tied to it is old in all processes."""
        counters = self._mine().counters
        counters.tags.bump()
        counters.of(tag).bump()
