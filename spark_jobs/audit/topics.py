"""Was every message of a topic finished once, and not delivered after that?

1. Ids of messages are unique in an engine, and ascend. A *queue*, which is a channel of a topic,
   owes what was published from the first message on that some log shows in it.
2. *finished_twice*: more than one FIN of a message in a queue. *delivered_after*: a DELIVER of a
   later attempt than that of its FIN. Attempts are compared, never times: each delivery counts one
   more than the one before it, in whatever process. 255 stands for all above.
3. *unfinished*: published, owed, and without a FIN. It may be waiting, in flight, a dead letter,
   dropped, expired, cancelled or removed, or its consumer was killed between finishing and logging
   that; so it is no violation. *undelivered*: of these, those without a DELIVER.
4. *unpublished*: in a queue, but no log has its PUBLISH.

As for notifications (`spark_jobs.audit.sums`) sums of blocks say where to look: 4,096 ids of a
topic. Where a queue's FINs add up to what was published, and its DELIVERs to the attempts of these
FINs, each message was finished once, and delivered so often as that took. Only of other blocks are
the messages themselves compared.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spark_jobs.audit.sums import HELD, Ints, Words, mixed
from spark_jobs.logs.schema import Kind

BLOCK_BITS: Final = 12
BLOCK: Final = 1 << BLOCK_BITS
GROUP_BITS: Final = 10
"""So many blocks are compared at a time, which bounds what a task holds."""
MOST_ATTEMPTS: Final = 255
FIGURES: Final = (
    "finished",
    "finished_twice",
    "delivered_after",
    "unpublished",
    "unfinished",
    "undelivered",
)
UNPROVEN: Final = ("unfinished", "undelivered", "unpublished")
"""The figures of which a log that is incomplete proves nothing."""
COMPARED: Final = (*FIGURES, "unfinished_rest", "undelivered_rest")
"""The figures of `compare_messages`."""

_DELIVER, _FIN, _PUBLISH = int(Kind.DELIVER), int(Kind.FIN), int(Kind.PUBLISH)
_LISTS: Final = ("sizes", "totals", "balances", "firsts")
_NO_MESSAGE: Final = np.iinfo(np.int64).max


Rows = tuple[Ints, dict[str, Any]]
"""The log's channel of each row, and its columns."""


def of_topics(kind: NDArray[np.uint8], channel: Ints) -> NDArray[np.intp]:
    """Which records are of use here; one whose writer had no memory for its channel is not."""
    which = (kind == _DELIVER) | (kind == _FIN) | (kind == _PUBLISH)
    return np.flatnonzero(which & (channel >= 0))


@dataclass(frozen=True)
class Accounts:
    """By channel of the log and block, each pair once and in order.

    `size` and `total` are of what was published, or finished; `balance` is that of the deliveries
    less those that the FINs tell of; `first` the lowest id.
    """

    channel: Ints
    block: Ints
    size: Ints
    total: Words
    balance: Words
    first: Ints

    def __len__(self) -> int:
        return len(self.channel)


def _added_up(parts: Accounts) -> Accounts:
    order = np.lexsort((parts.block, parts.channel))
    channel, block = parts.channel[order], parts.block[order]
    begins = np.ones(len(order), dtype=bool)
    begins[1:] = (np.diff(channel) != 0) | (np.diff(block) != 0)
    start = np.flatnonzero(begins)
    return Accounts(
        channel[start],
        block[start],
        np.add.reduceat(parts.size[order], start),
        np.add.reduceat(parts.total[order], start),
        np.add.reduceat(parts.balance[order], start),
        np.minimum.reduceat(parts.first[order], start),
    )


def _joined(parts: list[Accounts]) -> Accounts:
    return _added_up(
        Accounts(
            np.concatenate([part.channel for part in parts]),
            np.concatenate([part.block for part in parts]),
            np.concatenate([part.size for part in parts]),
            np.concatenate([part.total for part in parts]),
            np.concatenate([part.balance for part in parts]),
            np.concatenate([part.first for part in parts]),
        )
    )


def _deliveries(message: Ints, attempts: Ints) -> tuple[Ints, Words]:
    """What the attempts 1 to `attempts` of each message add to a sum: of which one, and what."""
    owner = np.repeat(np.arange(len(message)), attempts)
    begin = np.cumsum(attempts) - attempts
    number = np.arange(len(owner)) - np.repeat(begin, attempts) + 1
    return owner, mixed(message[owner], number.astype(np.uint32))


def _rows_of(found: Accounts) -> Rows:
    """A row per channel and group of blocks: ``block`` is the group, and ``blocks`` and others are
    lists.
    """
    group = found.block >> GROUP_BITS
    begins = np.ones(len(found), dtype=bool)
    begins[1:] = (np.diff(found.channel) != 0) | (np.diff(group) != 0)
    start = np.flatnonzero(begins)
    ends = pa.array(np.append(start, len(found)).astype(np.int32))
    lists = (found.size, found.total.view(np.int64), found.balance.view(np.int64), found.first)
    columns = {"blocks": found.block, **dict(zip(_LISTS, lists, strict=True))}
    return found.channel[start], {
        "block": group[start],
        **{name: pa.ListArray.from_arrays(ends, pa.array(each)) for name, each in columns.items()},
    }


class Sums:
    """Collects the records of a log; what it keeps grows with the number of blocks to `HELD`."""

    def __init__(self) -> None:
        self._runs: list[Accounts] = []
        self._held = 0

    def add(self, channel: Ints, records: Any) -> bool:
        """True when it is time to `take`."""
        message = records["commit_seq"].astype(np.int64)
        kind, attempts = records["kind"], records["attempts"].astype(np.int64)
        counted = (kind != _DELIVER).astype(np.int64)
        total = np.where(counted == 1, mixed(message, np.zeros(len(message), np.uint32)), 0)
        balance = np.where(kind == _DELIVER, mixed(message, attempts.astype(np.uint32)), 0)
        balance = balance.astype(np.uint64)
        finished = np.flatnonzero(kind == _FIN)
        owner, of_them = _deliveries(message[finished], attempts[finished])
        np.subtract.at(balance, finished[owner], of_them)
        run = Accounts(
            channel,
            message >> BLOCK_BITS,
            counted,
            total.astype(np.uint64),
            balance,
            message,
        )
        self._runs.append(_added_up(run))
        self._held += len(self._runs[-1])
        if self._held < HELD:
            return False
        self._runs = [_joined(self._runs)]
        self._held = len(self._runs[0])
        return self._held >= HELD // 2

    def take(self) -> Rows | None:
        """What was collected since; None if nothing was."""
        if not self._runs:
            return None
        found = _joined(self._runs)
        self._runs, self._held = [], 0
        return _rows_of(found)


def _accounts(rows: pa.Table) -> Accounts:
    """The accounts of one topic, or queue, from all its rows of one group."""
    block = rows["blocks"].combine_chunks().flatten().to_numpy()
    size, total, balance, first = (
        rows[name].combine_chunks().flatten().to_numpy() for name in _LISTS
    )
    words = (total.view(np.uint64), balance.view(np.uint64))
    return _added_up(Accounts(np.zeros(len(block), np.int64), block, size, *words, first))


def compare(published: pa.Table, queues: Mapping[str, pa.Table]) -> Iterator[dict[str, Any]]:
    """Rows on a group of a topic's blocks: one of role ``topic``, and a ``queue`` for each queue.

    ``blocks`` and ``sizes`` of a topic are what was published in them. Of a queue ``blocks`` are
    those in which it has something, ``sizes`` what was finished in them, or -1 where they have to
    be compared message by message; ``first`` is the lowest id.
    """
    owed = _accounts(published)
    if len(owed):
        yield {"role": "topic", "blocks": owed.block, "sizes": owed.size}
    for name, rows in queues.items():
        own = _accounts(rows)
        at = np.searchsorted(owed.block, own.block)
        known = np.isin(own.block, owed.block)
        at = np.where(known, at, 0)
        same = known & (own.balance == 0)
        if len(owed):
            same &= own.total == owed.total[at]
        yield {
            "role": "queue",
            "queue": name,
            "blocks": own.block,
            "sizes": np.where(same, own.size, -1),
            "first": int(own.first.min(initial=_NO_MESSAGE)),
        }


class Details:
    """Collects the messages of blocks that have to be compared one by one."""

    def __init__(self) -> None:
        self.wanted: list[Ints] = []
        """By channel of the log; for `add`."""
        self._parts: list[tuple[Ints, Ints, NDArray[np.uint16]]] = []
        self._held = 0

    def add(self, channel: Ints, records: Any) -> bool:
        """True when it is time to `take`."""
        message = records["commit_seq"].astype(np.int64)
        block = message >> BLOCK_BITS
        which = np.zeros(len(message), dtype=bool)
        for number in np.unique(channel).tolist():
            own = channel == number
            which[own] = np.isin(block[own], self.wanted[number])
        at = np.flatnonzero(which)
        if len(at):
            mark = records["kind"][at].astype(np.uint16) << np.uint16(8)
            self._parts.append((channel[at], message[at], mark | records["attempts"][at]))
            self._held += len(at)
        return self._held >= 1 << 20

    def take(self) -> Rows | None:
        """A row per channel and block: ``offsets`` in it and ``marks``, which are kind and
        attempts.
        """
        if not self._parts:
            return None
        channel, message, mark = map(np.concatenate, zip(*self._parts, strict=True))
        self._parts, self._held = [], 0
        order = np.lexsort((message, channel))
        channel, message, mark = channel[order], message[order], mark[order]
        block = message >> BLOCK_BITS
        begins = np.ones(len(order), dtype=bool)
        begins[1:] = (np.diff(channel) != 0) | (np.diff(block) != 0)
        start = np.flatnonzero(begins)
        ends = np.append(start, len(order)).tolist()
        offset = (message & (BLOCK - 1)).astype("<u2")
        slices = list(pairwise(ends))
        return channel[start], {
            "block": block[start],
            "offsets": [offset[begin:end].tobytes() for begin, end in slices],
            "marks": [mark[begin:end].astype("<u2").tobytes() for begin, end in slices],
        }


def _messages(rows: pa.Table) -> tuple[Ints, Ints, Ints]:
    """Offset, kind and attempts of each."""
    offset, mark = (
        np.frombuffer(b"".join(rows[name].to_pylist()), dtype="<u2").astype(np.int64)
        for name in ("offsets", "marks")
    )
    return offset, mark >> 8, mark & 0xFF


def compare_messages(
    published: pa.Table, queues: Mapping[str, pa.Table]
) -> Iterator[dict[str, Any]]:
    """Rows about a block of a topic: one for each queue, with its `FIGURES`.

    What is owed of the block is owed from its first message of the queue on, where it is the first
    of the queue: ``unfinished_rest`` and ``undelivered_rest`` are the part of these that is before
    that message, and owed in all other blocks.
    """
    sent = np.zeros(BLOCK, dtype=bool)
    sent[_messages(published)[0]] = True
    for name, rows in queues.items():
        offset, kind, attempts = _messages(rows)
        finished, delivered = offset[kind == _FIN], offset[kind == _DELIVER]
        times = np.bincount(finished, minlength=BLOCK)
        handed = np.bincount(delivered, minlength=BLOCK) > 0
        by = np.full(BLOCK, MOST_ATTEMPTS)
        np.minimum.at(by, finished, attempts[kind == _FIN])
        last = np.zeros(BLOCK, dtype=np.int64)
        np.maximum.at(last, delivered, attempts[kind == _DELIVER])
        seen = handed | (times > 0)
        left = sent & (times == 0)
        before = np.arange(BLOCK) < offset.min()
        counts = {
            "finished": times > 0,
            "finished_twice": times > 1,
            "delivered_after": (times > 0) & (last > by),
            "unpublished": seen & ~sent,
            "unfinished": left & ~before,
            "undelivered": left & ~before & ~handed,
            "unfinished_rest": left & before,
            "undelivered_rest": left & before & ~handed,
        }
        yield {"queue": name} | {each: int(np.count_nonzero(at)) for each, at in counts.items()}


@dataclass
class Queue:
    """What is known of one queue, until it is `settled`."""

    first: int = _NO_MESSAGE
    finished: int = 0
    blocks: set[int] = field(default_factory=set)
    suspects: set[int] = field(default_factory=set)

    def add(self, row: Mapping[str, Any]) -> None:
        """A row of role ``queue`` of `compare`."""
        self.first = min(self.first, row["first"])
        self.blocks.update(row["blocks"])
        pairs = zip(row["blocks"], row["sizes"], strict=True)
        self.suspects.update(block for block, size in pairs if size < 0)
        self.finished += sum(size for size in row["sizes"] if size > 0)

    def settled(
        self, published: Mapping[int, int], compared: list[Mapping[str, Any]]
    ) -> dict[str, int]:
        """The `FIGURES`. `published`: how many in each block of the topic; `compared`: the rows of
        `compare_messages` of the queue, with ``block``: another queue may have wanted these.
        """
        figures = dict.fromkeys(FIGURES, 0) | {"finished": self.finished}
        first = self.first >> BLOCK_BITS
        for row in compared:
            if row["block"] not in self.suspects:
                continue
            for name in FIGURES:
                figures[name] += row[name]
            if row["block"] > first:
                for name in ("unfinished", "undelivered"):
                    figures[name] += row[f"{name}_rest"]
        unseen = sum(
            size for block, size in published.items() if block > first and block not in self.blocks
        )
        for name in ("unfinished", "undelivered"):
            figures[name] += unseen
        return figures


Queues = dict[tuple[str, int, str, str], Queue]
"""By engine, database, topic and channel."""
