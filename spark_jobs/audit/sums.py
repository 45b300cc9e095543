"""Where were other messages received than were sent? Sums of blocks say so, without the messages.

A block is 4,096 numbers of a channel. Of its messages, sent or received, we keep how many there are
and the sum of `mixed` of each: 64 bits that depend on number and payload CRC. If a log's equal the
senders', the same messages were received; differences cancel out once in 2**64 times, where a CRC
misses one in 2**32. Blocks that differ have to be compared message by message, the others need not,
and 24 bytes for a block are what crosses into the JVM instead of 24,576.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from spark_jobs.audit.debt import BASE_BITS

Ints = NDArray[np.int64]
Words = NDArray[np.uint64]

BLOCK_BITS: Final = 12
CHANNEL_BITS: Final = BASE_BITS - BLOCK_BITS
"""A block's place is its channel's number above so many bits of the block's number."""
GROUP_BITS: Final = 10
"""So many blocks are compared at a time, which bounds what a task holds."""
HELD: Final = 1 << 16
"""So many runs of a block's messages are added up, or put out, before there are more."""

_FACTORS: Final = tuple(
    map(np.uint64, (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0xBF58476D1CE4E5B9))
)


def mixed(sequence: Ints, crc: NDArray[np.uint32]) -> Words:
    """64 bits for each message; with the same number, others for every CRC."""
    bits = sequence.view(np.uint64) * _FACTORS[0]
    bits += crc * _FACTORS[1]
    bits ^= bits >> np.uint64(32)
    bits *= _FACTORS[2]
    bits ^= bits >> np.uint64(29)
    return bits


@dataclass(frozen=True)
class Blocks:
    """By place: how many messages, and the sum of theirs. Places may appear twice."""

    place: Ints
    count: Ints
    total: Words

    def added_up(self) -> Blocks:
        """Each place once, in order."""
        order = np.argsort(self.place, kind="stable")
        place = self.place[order]
        if len(place) == 0:
            return self
        start = np.flatnonzero(np.concatenate([[True], place[1:] != place[:-1]]))
        count, total = (np.add.reduceat(each[order], start) for each in (self.count, self.total))
        return Blocks(place[start], count, total)

    def __len__(self) -> int:
        return len(self.place)


def joined(parts: Sequence[Blocks]) -> Blocks:
    """All of these."""
    columns = zip(*((part.place, part.count, part.total) for part in parts), strict=True)
    return Blocks(*map(np.concatenate, columns))


class Sums:
    """Collects messages; what it keeps grows with the number of blocks, up to `HELD`."""

    def __init__(self) -> None:
        self._runs: list[Blocks] = []
        self._held = 0

    def add(self, number: Ints, aux: NDArray[Any]) -> None:
        """Messages in an order in which those of a block are next to each other, mostly."""
        if len(number) == 0:
            return
        place = number >> BLOCK_BITS
        start = np.flatnonzero(np.concatenate([[True], place[1:] != place[:-1]]))
        values = mixed(number & ((1 << BASE_BITS) - 1), aux.astype(np.uint32))
        count = np.diff(np.append(start, len(number)))
        self._runs.append(Blocks(place[start], count, np.add.reduceat(values, start)))
        self._held += len(start)

    def is_full(self) -> bool:
        """True when it is time to `take`."""
        if self._held < HELD:
            return False
        self._runs = [joined(self._runs).added_up()]
        self._held = len(self._runs[0])
        return self._held >= HELD // 2

    def take(self) -> Blocks | None:
        """What was collected since, by place; None if nothing was."""
        if not self._runs:
            return None
        found = joined(self._runs).added_up()
        self._runs, self._held = [], 0
        return found


@dataclass(frozen=True)
class Compared:
    """`unsent`: per log, messages in blocks of which nothing was sent. `suspects`: places of blocks
    that were sent and of which some log has received something else."""

    unsent: Ints
    suspects: Ints


def compare(sent: Blocks, received: Blocks, channel_of: Ints) -> Compared:
    """Places have a channel's number in `sent`, a log's in `received`; log i is one that received
    from channel ``channel_of[i]``.
    """
    sent, received = sent.added_up(), received.added_up()
    log = received.place >> CHANNEL_BITS
    place = (channel_of[log] << CHANNEL_BITS) | (received.place & ((1 << CHANNEL_BITS) - 1))
    at = np.searchsorted(sent.place, place)
    found = np.zeros(len(place), dtype=bool)
    inside = np.flatnonzero(at < len(sent))
    found[inside] = sent.place[at[inside]] == place[inside]
    unsent = np.zeros(len(channel_of), dtype=np.int64)
    np.add.at(unsent, log[~found], received.count[~found])
    at, place = at[found], place[found]
    differ = (sent.count[at] != received.count[found]) | (sent.total[at] != received.total[found])
    return Compared(unsent, np.unique(place[differ]))
