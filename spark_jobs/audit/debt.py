"""What a listener owes and what it was handed, kept as the numbers that are missing.

For all channels of a log at once: a message is the number ``channel << 40 | chan_seq``, so that the
running maximum of a sorted chunk never leaks from one channel into the next. State is the highest
number of each channel and the holes below it; a healthy log has none, so memory does not grow
with the number of messages.

A log may be read in pieces, at the same time. Each has a `Debt` of its own, as if nothing had been
before it, and gives an `Account` of each channel; `Account.then` puts those of two pieces together.
It cannot where a piece was handed a number that is not above all those of the pieces before: was it
a hole of theirs? Then the log is read in order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from spark_jobs.logs.model import Chunk
from spark_jobs.logs.schema import SEQUENCE_BITS, Kind

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
class Account:
    """The account of one channel, in one or more pieces of a log; its numbers are the channel's.

    `top`, `first` and `least` number that was handed over, -1 if none was. `untold`: whether a Gap
    was announced before the first one was. `holes` are ranges below `top`, both ends included,
    `announced` numbers at which a Gap was announced; `controls` are kind, chan_seq, lag and the
    `top` of that time of each LISTEN and UNLISTEN.
    """

    top: int = -1
    first: int = -1
    least: int = -1
    received: int = 0
    dup: int = 0
    late: int = 0
    untold: bool = False
    holes: tuple[tuple[int, int], ...] = ()
    announced: tuple[int, ...] = ()
    controls: tuple[tuple[int, int, int, int], ...] = ()

    def to_list(self) -> list[int]:
        return [
            *(self.top, self.first, self.least, self.received, self.dup, self.late),
            int(self.untold),
            *(len(self.holes), len(self.announced)),
            *(end for hole in self.holes for end in hole),
            *self.announced,
            *(each for control in self.controls for each in control),
        ]

    @staticmethod
    def from_list(numbers: Sequence[int]) -> Account:
        top, first, least, received, dup, late, untold, holes, announced = numbers[:9]
        told = 9 + 2 * holes
        ends, rest = numbers[9:told], numbers[told + announced :]
        return Account(
            top,
            first,
            least,
            received,
            dup,
            late,
            bool(untold),
            tuple(zip(ends[::2], ends[1::2], strict=True)),
            tuple(numbers[told : told + announced]),
            tuple(zip(rest[::4], rest[1::4], rest[2::4], rest[3::4], strict=True)),
        )

    def then(self, later: Account | None, *, gaps: bool) -> Account | None:
        """With that of the next piece; None: they have to be read in order.

        A channel that is not in the next piece has no account there; `gaps`: whether a Gap was
        announced in that piece.
        """
        next_number = self.top + 1
        if later is None:
            told = {*self.announced, next_number} if gaps else self.announced
            return replace(self, announced=tuple(sorted(told)))
        if self.received and later.received and later.least <= self.top:
            return None
        # Before its first number the piece took the channel for empty.
        holes = [(max(low, next_number), high) for low, high in later.holes if high >= next_number]
        announced = {next_number if number == 0 else number for number in later.announced}
        announced |= {next_number} if later.untold else set()
        controls = [
            (kind, sequence, lag, self.top if top < 0 else top)
            for kind, sequence, lag, top in later.controls
        ]
        return Account(
            later.top if later.received else self.top,
            self.first if self.received else later.first,
            self.least if self.received else later.least,
            self.received + later.received,
            self.dup + later.dup,
            self.late + later.late,
            self.untold,
            (*self.holes, *holes),
            tuple(sorted({*self.announced, *announced})),
            (*self.controls, *controls),
        )


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
        self.least = np.empty(0, dtype=np.int64)
        self.untold = np.empty(0, dtype=bool)
        self.gaps = False
        """Whether one was announced."""
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
        self.least = np.concatenate([self.least, base - 1])
        self.untold = np.concatenate([self.untold, np.full(len(base), self.gaps)])
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
                self.untold |= self.received == 0
                self.gaps = True
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
        self.least[channel[opening]] = number[opening]
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
        np.minimum.at(self.least, channel, distinct)
        self.late += np.bincount(channel[fills], minlength=size)
        again = np.repeat(channel, times - fills)
        self.dup += np.bincount(again, minlength=size)
        self.holes.remove(distinct[fills])

    def accounts(self) -> list[Account]:
        """The accounts of all channels, by number."""
        size = len(self.top)
        base = np.arange(size, dtype=np.int64) << BASE_BITS
        holes: list[list[tuple[int, int]]] = [[] for _ in range(size)]
        announced: list[list[int]] = [[] for _ in range(size)]
        controls: list[list[tuple[int, int, int, int]]] = [[] for _ in range(size)]
        for low, high in zip(self.holes.low.tolist(), self.holes.high.tolist(), strict=True):
            channel = low >> BASE_BITS
            holes[channel].append((low - (channel << BASE_BITS), high - (channel << BASE_BITS)))
        for number in self.announced.tolist():
            announced[number >> BASE_BITS].append(number & ((1 << BASE_BITS) - 1))
        for part in self.controls:
            for channel, kind, sequence, lag, top in zip(
                *map(np.ndarray.tolist, part), strict=True
            ):
                controls[channel].append((kind, sequence, lag, top - (channel << BASE_BITS)))
        return [
            Account(
                int(self.top[channel] - base[channel]),
                int(self.first[channel] - base[channel]),
                int(self.least[channel] - base[channel]),
                int(self.received[channel]),
                int(self.dup[channel]),
                int(self.late[channel]),
                bool(self.untold[channel]),
                tuple(holes[channel]),
                tuple(announced[channel]),
                tuple(controls[channel]),
            )
            for channel in range(size)
        ]

    @staticmethod
    def of(accounts: Sequence[Account]) -> Debt:
        """One that has followed a whole log, of which these are the accounts."""
        debt = Debt()
        size = len(accounts)
        base = np.arange(size, dtype=np.int64) << BASE_BITS
        for name in ("top", "first", "least"):
            setattr(debt, name, base + [getattr(each, name) for each in accounts])
        for name in ("received", "dup", "late", "untold"):
            numbers = [getattr(each, name) for each in accounts]
            kind = bool if name == "untold" else np.int64
            setattr(debt, name, np.array(numbers, dtype=kind))
        ends = [
            (begin + low, begin + high)
            for begin, each in zip(base.tolist(), accounts, strict=True)
            for low, high in each.holes
        ]
        low, high = (np.array([pair[at] for pair in ends], dtype=np.int64) for at in (0, 1))
        debt.holes.add(low, high)
        told = [
            begin + number
            for begin, each in zip(base.tolist(), accounts, strict=True)
            for number in each.announced
        ]
        debt.announced = np.array(told, dtype=np.int64)
        rows = [
            (channel, kind, sequence, lag, (channel << BASE_BITS) + top)
            for channel, each in enumerate(accounts)
            for kind, sequence, lag, top in each.controls
        ]
        if rows:
            columns = np.array(rows, dtype=np.int64).T
            debt.controls.append((columns[0], columns[1], columns[2], columns[3], columns[4]))
        return debt

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
