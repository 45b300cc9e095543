"""What a notifier sends: the lines of its files, in transactions of mixed sizes.

A notifier's transactions are a pure function of its files, its number and its quota.  That is
what lets a replacement go on where a killed notifier stopped: it makes the same transactions and
leaves out those that were committed.

How many notifications are left after collapsing duplicates is worked out here as well, with plain
sets, so that the engine's own figures have something to agree with.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, cycle

from pynotify.demo.source import SourceFile, read_lines

# (share, smallest, largest) number of notifications in a transaction
_SIZES = ((25, 1, 1), (30, 2, 9), (30, 10, 99), (13, 100, 499), (2, 500, 1500))
_OPEN_FILES = 3
_SAVEPOINT_SHARE = 0.3
_SAVEPOINT_UNDONE_SHARE = 0.5
_UNDONE_SHARE = 0.04


@dataclass(frozen=True)
class Passage:
    """Consecutive lines of one file; `distinct` of them are left when they have been notified."""

    channel: int
    lines: list[bytes]
    distinct: int


@dataclass
class Plan:
    """One transaction: `first`, then `nested` inside a savepoint, then `last`."""

    number: int
    first: list[Passage] = field(default_factory=list)
    nested: list[Passage] = field(default_factory=list)
    last: list[Passage] = field(default_factory=list)
    nested_undone: bool = False
    undone: bool = False

    @property
    def surviving(self) -> Iterator[Passage]:
        """What its commit makes visible, if there is one."""
        return chain(self.first, () if self.nested_undone else self.nested, self.last)

    @property
    def notified(self) -> int:
        """How many times it notifies."""
        return sum(len(p.lines) for p in chain(self.first, self.nested, self.last))

    @property
    def committed(self) -> Counter[int]:
        """Notifications left after collapsing, per channel; empty when it is rolled back."""
        counts: Counter[int] = Counter()
        if not self.undone:
            for passage in self.surviving:
                counts[passage.channel] += passage.distinct
        return counts

    @property
    def collapsed(self) -> int:
        """Duplicates that its commit collapses."""
        if self.undone:
            return 0
        return sum(len(passage.lines) - passage.distinct for passage in self.surviving)

    @property
    def rolled_back(self) -> int:
        """Notifications that are undone, with the savepoint or with the whole."""
        if self.undone:
            return self.notified
        return sum(len(p.lines) for p in self.nested) if self.nested_undone else 0


class _Reader:
    """Takes passages from a few files at a time, round and round, without end."""

    def __init__(self, files: Sequence[SourceFile], dice: random.Random) -> None:
        shuffled = list(files)
        dice.shuffle(shuffled)
        self._files = cycle(shuffled)
        self._dice = dice
        self._open: list[tuple[int, list[bytes]]] = []

    def take(self, at_most: int) -> tuple[int, list[bytes]]:
        """A channel and 1 to `at_most` lines for it."""
        while len(self._open) < _OPEN_FILES:
            file = next(self._files)
            lines = read_lines(file.path)
            if lines:
                lines.reverse()  # so that taking from the front is cheap
                self._open.append((file.channel, lines))
        index = self._dice.randrange(len(self._open))
        channel, lines = self._open[index]
        taken = lines[-at_most:]
        del lines[-at_most:]
        taken.reverse()
        if not lines:
            del self._open[index]
        return channel, taken


def _passages(
    reader: _Reader, dice: random.Random, size: int, seen: set[tuple[int, bytes]]
) -> list[Passage]:
    """`size` notifications; what they leave is added to `seen`."""
    passages = []
    while size > 0:
        channel, lines = reader.take(dice.randint((size + 1) // 2, size))
        before = len(seen)
        seen.update((channel, line) for line in lines)
        passages.append(Passage(channel, lines, len(seen) - before))
        size -= len(lines)
    return passages


def _plan(number: int, reader: _Reader, dice: random.Random, most: int) -> Plan:
    ((_, smallest, largest),) = dice.choices(_SIZES, [share for share, _, _ in _SIZES])
    size = min(dice.randint(smallest, largest), most)
    plan = Plan(number, undone=dice.random() < _UNDONE_SHARE)
    seen: set[tuple[int, bytes]] = set()
    if size < 3 or dice.random() >= _SAVEPOINT_SHARE:
        plan.first = _passages(reader, dice, size, seen)
        return plan
    third = size // 3
    plan.nested_undone = dice.random() < _SAVEPOINT_UNDONE_SHARE
    plan.first = _passages(reader, dice, third, seen)
    # What a savepoint that is undone has added collapses nothing afterwards.
    inside = set(seen) if plan.nested_undone else seen
    plan.nested = _passages(reader, dice, third, inside)
    plan.last = _passages(reader, dice, size - 2 * third, seen)
    return plan


def plans(files: Sequence[SourceFile], notifier: int, quota: int) -> Iterator[Plan]:
    """Transactions that commit exactly `quota` notifications, duplicates collapsed."""
    dice = random.Random(f"notifier {notifier}")
    reader = _Reader(files, dice)
    left = quota
    number = 0
    while left > 0:
        # At most what is left even if nothing collapses: so the sum is exact.
        plan = _plan(number, reader, dice, left)
        left -= plan.committed.total()
        number += 1
        yield plan
