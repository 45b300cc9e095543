"""What a listener owes and what it was handed, kept as the numbers that are missing.

For all channels of a log at once: a message is the number ``channel << 40 | chan_seq``, so that the
running maximum of a sorted chunk never leaks from one channel into the next. State is the highest
number of each channel and the holes below it; a healthy log has none, so memory does not grow
with the number of messages.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from spark_jobs.logs.model import SEQUENCE_BITS, Chunk
from spark_jobs.logs.schema import Kind

BASE_BITS = SEQUENCE_BITS

Ints = NDArray[np.int64]


def _starts(values: Ints) -> Ints:
    """Where each run of equal values begins."""
    return np.flatnonzero(np.concatenate([[True], values[1:] != values[:-1]]))


class Holes:
    """Disjoint ranges of numbers, both ends included, in order."""

    def __init__(self, low: Ints | None = None, high: Ints | None = None) -> None:
        self.low = np.empty(0, dtype=np.int64) if low is None else low
        self.high = np.empty(0, dtype=np.int64) if high is None else high

    def add(self, low: Ints, high: Ints) -> None:
        """Ranges that touch none of those here."""
        if len(low):
            self.low = np.sort(np.concatenate([self.low, low]))
            self.high = np.sort(np.concatenate([self.high, high]))

    def which(self, numbers: Ints) -> Ints:
        """Index of the hole that contains each number, or -1."""
        if len(self.low) == 0:
            return np.full(len(numbers), -1, dtype=np.int64)
        index = np.searchsorted(self.low, numbers, side="right") - 1
        return np.where((index >= 0) & (numbers <= self.high[index]), index, -1)

    def remove(self, numbers: Ints) -> None:
        """Takes out numbers, each of them in a hole and there once."""
        if len(numbers):
            low = np.sort(np.concatenate([self.low, numbers + 1]))
            high = np.sort(np.concatenate([self.high, numbers - 1]))
            self.low, self.high = low[low <= high], high[low <= high]

    def below(self, limits: Ints) -> Ints:
        """How many missing numbers are below each limit."""
        if len(self.low) == 0:
            return np.zeros(len(limits), dtype=np.int64)
        sums = np.concatenate([[0], np.cumsum(self.high - self.low + 1)])
        index = np.searchsorted(self.low, limits, side="left")
        over = np.maximum(self.high[np.maximum(index - 1, 0)] + 1 - limits, 0)
        return np.asarray(sums[index] - np.where(index > 0, over, 0), dtype=np.int64)


@dataclass(frozen=True)
class Settled:
    """Per channel with a LISTEN or RECV: how the debt stands at the end of the log.

    `open_end`: chan_seq at which the debt would go on if the listener still owes, or -1.
    """

    channel: Ints
    expected: Ints
    missing: Ints
    dropped: Ints
    distinct: Ints
    unowed: Ints
    dup: Ints
    out_of_order: Ints
    open_end: Ints


class Debt:
    """Feed it chunks in order, then settle."""

    def __init__(self) -> None:
        self.top = np.empty(0, dtype=np.int64)
        """Highest number handed over, per channel; the base less one before the first."""
        self.first = np.empty(0, dtype=np.int64)
        self.received = np.empty(0, dtype=np.int64)
        self.dup = np.empty(0, dtype=np.int64)
        self.late = np.empty(0, dtype=np.int64)
        self.holes = Holes()
        self.announced = np.empty(0, dtype=np.int64)
        """Numbers at which a Gap was announced, if a hole begins there."""
        # channel, kind, chan_seq, lag, top at that time; one entry per LISTEN or UNLISTEN
        self.controls: list[tuple[Ints, Ints, Ints, Ints, Ints]] = []

    def _grow(self, channels: int) -> None:
        old = len(self.top)
        if channels <= old:
            return
        base = np.arange(old, channels, dtype=np.int64) << BASE_BITS
        self.top = np.concatenate([self.top, base - 1])
        self.first = np.concatenate([self.first, base - 1])
        zeros = np.zeros(channels - old, dtype=np.int64)
        self.received = np.concatenate([self.received, zeros])
        self.dup = np.concatenate([self.dup, zeros])
        self.late = np.concatenate([self.late, zeros])

    def add(self, chunk: Chunk, channels: int) -> None:
        """Takes a chunk in; `channels` are known by now."""
        self._grow(channels)
        kind = chunk.records["kind"]
        wanted = (chunk.channel >= 0) & (
            (kind == Kind.RECV) | (kind == Kind.LISTEN) | (kind == Kind.UNLISTEN)
        )
        cuts = np.flatnonzero(kind == Kind.DROP)
        begin = 0
        for end in [*cuts.tolist(), len(kind)]:  # Gaps are rare
            part = slice(begin, end)
            if wanted[part].any():
                self._add(chunk, np.flatnonzero(wanted[part]) + begin)
            if end < len(kind):
                self.announced = np.union1d(self.announced, self.top + 1)
            begin = end

    def _add(self, chunk: Chunk, index: NDArray[np.intp]) -> None:
        channel = chunk.channel[index]
        narrow = channel.astype(np.uint16) if len(self.top) <= 1 << 16 else channel
        order = np.argsort(narrow, kind="stable")
        channel, index = channel[order], index[order]
        kind = chunk.records["kind"][index]
        received = kind == Kind.RECV
        sequence = chunk.records["chan_seq"][index].astype(np.int64)
        base = channel << BASE_BITS
        number = np.where(received, base | sequence, base - 1)

        start = _starts(channel)
        last = np.append(start[1:], len(channel)) - 1
        seen = number.copy()
        seen[start] = np.maximum(seen[start], self.top[channel[start]])
        running = np.maximum.accumulate(seen)
        before = np.empty_like(running)
        before[1:] = running[:-1]
        before[start] = self.top[channel[start]]

        ahead = received & (number > before)
        opening = ahead & (before == base - 1)
        self.first[channel[opening]] = number[opening]
        jump = ahead & (number > before + 1)
        self.holes.add(before[jump] + 1, number[jump] - 1)
        self._late(number[received & ~ahead])
        self.top[channel[last]] = running[last]
        self.received += np.bincount(channel[received], minlength=len(self.top))
        if not received.all():
            at = ~received
            self.controls.append(
                (
                    channel[at],
                    kind[at].astype(np.int64),
                    sequence[at],
                    chunk.records["lag"][index[at]].astype(np.int64),
                    before[at],
                )
            )

    def _late(self, numbers: Ints) -> None:
        """Numbers handed over after a higher one: they fill a hole, or are there already."""
        if len(numbers) == 0:
            return
        distinct, times = np.unique(numbers, return_counts=True)
        fills = self.holes.which(distinct) >= 0
        channel, size = distinct >> BASE_BITS, len(self.top)
        self.late += np.bincount(channel[fills], minlength=size)
        again = np.repeat(channel, times - fills)
        self.dup += np.bincount(again, minlength=size)
        self.holes.remove(distinct[fills])

    def _owed(self) -> tuple[Ints, Ints, Ints]:
        """Ranges owed (start, end excluded), disjoint and in order; and per channel whether the
        last of them was still open.
        """
        columns = [np.concatenate(column) for column in zip(*self.controls, strict=True)]
        if not columns:
            columns = [np.empty(0, dtype=np.int64)] * 5
        order = np.argsort(columns[0], kind="stable")
        channel, kind, sequence, lag, top = (column[order] for column in columns)
        base = channel << BASE_BITS
        listen = np.flatnonzero(kind == Kind.LISTEN)
        following = np.minimum(listen + 1, max(len(kind) - 1, 0))
        followed = (listen + 1 < len(kind)) & (channel[following] == channel[listen])
        ended = followed & (kind[following] == Kind.UNLISTEN)
        proved = base[following] + sequence[following] - lag[following]
        end = np.where(
            ended,
            np.maximum(proved, top[following] + 1),
            # a second LISTEN changes nothing: the first one's range goes on as the second's
            np.where(
                followed, base[following] + sequence[following], self.top[channel[listen]] + 1
            ),
        )
        is_open = np.zeros(len(self.top), dtype=np.int64)
        is_open[channel[listen[~followed]]] = 1
        # Without any LISTEN record the debt begins with the first message.
        bare = np.setdiff1d(np.flatnonzero(self.received > 0), channel[listen])
        start = np.concatenate([base[listen] + sequence[listen], self.first[bare]])
        end = np.concatenate([end, self.top[bare] + 1])
        is_open[bare] = 1
        order = np.argsort(start, kind="stable")
        start, end = start[order], end[order]
        reached = np.maximum.accumulate(end) if len(end) else end
        start[1:] = np.maximum(start[1:], reached[:-1])
        return start, np.maximum(start, end), is_open

    def settle(self) -> Settled:
        """The account at the end of the log."""
        size = len(self.top)
        start, end, is_open = self._owed()
        owner = start >> BASE_BITS
        length = np.zeros(size, dtype=np.int64)
        np.add.at(length, owner, end - start)

        # What was owed above the highest number handed over is missing too.
        furthest = self.top + 1
        np.maximum.at(furthest, owner, end)
        tail = furthest > self.top + 1
        missing = Holes(self.holes.low, self.holes.high)
        missing.add(self.top[tail] + 1, furthest[tail] - 1)
        told = missing.which(self.announced)
        told = np.unique(told[told >= 0])
        announced = Holes(missing.low[told], missing.high[told])

        owed = np.zeros((2, size), dtype=np.int64)
        for row, holes in enumerate((missing, announced)):
            np.add.at(owed[row], owner, holes.below(end) - holes.below(start))
        distinct = length - owed[0]
        listening = np.zeros(size, dtype=bool)
        listening[owner] = True
        listening |= self.received > 0
        channel = np.flatnonzero(listening)
        open_end = np.where(is_open == 1, furthest - (np.arange(size) << BASE_BITS), -1)
        figures = (
            length - owed[1],
            owed[0] - owed[1],
            owed[1],
            distinct,
            self.received - self.dup - distinct,
            self.dup,
            self.late,
            open_end,
        )
        return Settled(channel, *(figure[channel] for figure in figures))
