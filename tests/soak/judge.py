"""What was delivered against what was committed; nothing of the engine is believed, or used.

The order of commits is that of `seq`, the number that comes with each message; a position is
(seq, index in the transaction).  For every connection and channel the judge finds the windows
between LISTEN and UNLISTEN: the transaction that said LISTEN notified its own connection as well,
so it has a position.  Then, with "delivered" for what the connection wrote down in a window:

* delivered is, without a hole, what was committed on the channel from the window's beginning to
  the last position that the connection has read;
* whatever was committed before a poll that returned everything was returned;
* what was delivered was committed, or was about to be when its sender was killed; then all of it;
* one transaction has one seq, two have two; the clock of commits rises with seq, and lies between
  the beginning and the end of the call.

Where a connection was told of a gap, a hole may be.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from soak import journal as j

Array = NDArray[Any]

_NEVER = np.int64(2**63 - 1)
_OWN = 1000  # channel number of connection n's own channel: this plus n


@dataclass
class Verdict:
    figures: Counter[str] = field(default_factory=Counter)
    violations: Counter[str] = field(default_factory=Counter)
    examples: list[str] = field(default_factory=list)
    #: Of each counter: what committed transactions have added, and what perhaps was.
    bumps: Counter[int] = field(default_factory=Counter)
    bumps_in_doubt: Counter[int] = field(default_factory=Counter)

    def violation(self, kind: str, text: str, count: int = 1) -> None:
        self.violations[kind] += count
        if len(self.examples) < 30:
            self.examples.append(f"{kind}: {text}")


@dataclass
class Window:
    """A connection on a channel, from a LISTEN to an UNLISTEN; rows are those of its journal."""

    channel: int
    begin: int | None  # position; None: not known
    first_row: int
    last_row: int
    since: int  # the time after which LISTEN surely holds


def _keys(records: Array) -> Array:
    return records["connection"].astype(np.int64) << 32 | records["txn"].astype(np.int64)


def _name(key: int) -> str:
    return f"transaction {key & 0xFFFFFFFF} of connection {key >> 32}"


def _numbers(records: Array, connection: Array | int) -> Array:
    """Channel numbers that are unique over all connections."""
    channel = records["channel"].astype(np.int64)
    return np.where(channel == j.CHANNEL_OWN, _OWN + np.asarray(connection, np.int64), channel)


class _Sent:
    """Every transaction that was tried, and the parts of those that may have happened."""

    def __init__(self, journals: dict[int, Array], verdict: Verdict) -> None:
        self.intents: dict[int, Array] = {}  # connection -> rows of its intents
        self.outcomes: dict[int, Array] = {}  # likewise the row of the outcome, -1: none
        key, start, end, committed = [], [], [], []
        events = []
        for connection, records in journals.items():
            kinds = records["kind"]
            intents = np.flatnonzero(kinds == j.INTENT)
            outcomes = np.full(len(intents), -1)
            rows = np.flatnonzero((kinds == j.COMMITTED) | (kinds == j.FAILED))
            outcomes[np.searchsorted(intents, rows) - 1] = rows
            self.intents[connection], self.outcomes[connection] = intents, outcomes
            failed = np.array([row >= 0 and kinds[row] == j.FAILED for row in outcomes], bool)
            whole = intents + records["count"][intents] < len(records)
            possible = ~failed & whole
            key.append(_keys(records)[intents[possible]])
            start.append(records["time"][intents[possible]])
            done = outcomes[possible]
            end.append(np.where(done >= 0, records["time"][done], _NEVER))
            committed.append(done >= 0)
            part_rows = np.flatnonzero(kinds == j.EVENT)
            of = np.searchsorted(intents, part_rows) - 1
            events.append(records[part_rows[possible[of]]] if len(part_rows) else records[:0])
            verdict.figures["commits"] += int((kinds == j.COMMITTED).sum())
            verdict.figures["refused"] += int(failed.sum())
            verdict.figures["in doubt"] += int((outcomes < 0).sum())
            bumps = np.flatnonzero(kinds == j.BUMP)
            for row, owner in zip(bumps, np.searchsorted(intents, bumps) - 1, strict=True):
                tally = verdict.bumps if outcomes[owner] >= 0 else verdict.bumps_in_doubt
                if possible[owner]:
                    tally[int(records["index"][row])] += int(records["count"][row])
        order = np.argsort(np.concatenate(key), kind="stable")
        self.key = np.concatenate(key)[order]
        self.start, self.end = np.concatenate(start)[order], np.concatenate(end)[order]
        self.committed = np.concatenate(committed)[order]
        self.events = np.concatenate(events)
        self.event_txn = np.searchsorted(self.key, _keys(self.events))

    def find(self, keys: Array) -> Array:
        """Index of each transaction, -1: there is none."""
        at = np.minimum(np.searchsorted(self.key, keys), len(self.key) - 1)
        return np.where(self.key[at] == keys, at, -1)


class _Committed:
    """The events with a position, of each channel in order."""

    def __init__(self, sent: _Sent, journals: dict[int, Array], verdict: Verdict) -> None:
        self.seq = np.full(len(sent.key), -1, np.int64)  # of each transaction
        received = np.concatenate([r[r["kind"] == j.RECEIVED] for r in journals.values()])
        verdict.figures["deliveries"] += len(received)
        self._identify(sent, received, verdict)
        events, txn = sent.events, sent.event_txn
        known = self.seq[txn] >= 0
        events, txn = events[known], txn[known]
        channel = _numbers(events, events["connection"])
        position = self.seq[txn] << 16 | events["index"]
        order = np.lexsort((position, channel))
        channel, self._position, self._end = channel[order], position[order], sent.end[txn][order]
        numbers, first = np.unique(channel, return_index=True)
        self._bounds = dict(
            zip(
                numbers.tolist(),
                zip(first.tolist(), [*first[1:].tolist(), len(channel)], strict=True),
                strict=True,
            )
        )

    def _identify(self, sent: _Sent, received: Array, verdict: Verdict) -> None:
        for flaw, name in j.FLAWS.items():
            for bad in received[received["flag"] & flaw != 0]:
                verdict.violation(name, f"a message says {bad}")
        received = received[received["flag"] == 0]
        keys = _keys(received)
        txn = sent.find(keys)
        for key in np.unique(keys[txn < 0]).tolist():
            verdict.violation("uncommitted", f"{_name(key)} was delivered")
        received, txn = received[txn >= 0], txn[txn >= 0]
        seq = received["seq"].astype(np.int64)
        self.seq[txn] = seq
        for at in np.unique(txn[self.seq[txn] != seq]).tolist():
            verdict.violation("two seqs", f"{_name(int(sent.key[at]))} has several")
        known = np.flatnonzero(self.seq >= 0)
        known = known[np.argsort(self.seq[known], kind="stable")]
        for at in known[:-1][self.seq[known][1:] == self.seq[known][:-1]].tolist():
            verdict.violation("one seq", f"{_name(int(sent.key[at]))} shares {self.seq[at]}")
        verdict.figures["committed though killed"] += int((~sent.committed[known]).sum())
        clock = np.zeros(len(sent.key), np.int64)
        clock[txn] = received["time"]
        early = (clock[known] < sent.start[known]) | (clock[known] > sent.end[known])
        for at in known[early].tolist():
            verdict.violation("clock", f"{_name(int(sent.key[at]))} outside of its call")
        for at in known[:-1][clock[known][1:] < clock[known][:-1]].tolist():
            verdict.violation("clock", f"{_name(int(sent.key[at]))} after a later seq")
        if not np.array_equal(clock[txn], received["time"]):
            verdict.violation("clock", "a transaction has several times")

    def on(self, channel: int) -> tuple[Array, Array]:
        """Positions, rising, and the times after which they were surely committed."""
        low, high = self._bounds.get(channel, (0, 0))
        return self._position[low:high], self._end[low:high]


class _Listener:
    """One connection's journal, taken apart."""

    def __init__(self, connection: int, records: Array, sent: _Sent, committed: _Committed) -> None:
        self.connection = connection
        self.records = records
        kinds = records["kind"]
        good = (kinds == j.RECEIVED) & (records["flag"] == 0)
        self.rows = np.flatnonzero(good)
        received = records[self.rows]
        # One's own channel is known by its receiver; that its sender is the same is checked here.
        own = received["channel"] == j.CHANNEL_OWN
        self.strange = int((own & (received["connection"] != connection)).sum())
        self.channel = _numbers(received, connection)
        self.position = received["seq"].astype(np.int64) << 16 | received["index"]
        self.drains = np.flatnonzero(kinds == j.DRAINED)
        self.gaps = np.flatnonzero(kinds == j.GAP)
        self.windows = list(self._windows(sent, committed))

    def _windows(self, sent: _Sent, committed: _Committed) -> list[Window]:
        windows: list[Window] = []
        listening: dict[int, Window] = {}
        kinds = self.records["kind"]
        parts = np.flatnonzero(np.isin(kinds, (j.LISTEN, j.UNLISTEN, j.UNLISTEN_ALL)))
        intents, outcomes = sent.intents[self.connection], sent.outcomes[self.connection]
        for number in np.unique(np.searchsorted(intents, parts) - 1).tolist():
            row, outcome = int(intents[number]), int(outcomes[number])
            if outcome < 0 or kinds[outcome] != j.COMMITTED:
                continue
            txn = int(sent.find(_keys(self.records[row : row + 1]))[0])
            seq = int(committed.seq[txn]) if txn >= 0 else -1
            wish = self._wishes(row, set(listening))
            for channel, wanted in wish.items():
                if wanted and channel not in listening:
                    listening[channel] = Window(
                        channel=channel,
                        begin=seq << 16 if seq >= 0 else None,
                        first_row=outcome,
                        last_row=len(self.records),
                        since=int(self.records["time"][outcome]),
                    )
                    windows.append(listening[channel])
                elif not wanted and channel in listening:
                    listening.pop(channel).last_row = row
        return windows

    def _wishes(self, row: int, listening: set[int]) -> dict[int, bool]:
        wish: dict[int, bool] = {}
        for part in self.records[row + 1 : row + 1 + int(self.records["count"][row])]:
            if part["kind"] == j.UNLISTEN_ALL:
                wish = dict.fromkeys([*wish, *listening], False)
            elif part["kind"] in (j.LISTEN, j.UNLISTEN):
                channel = int(part["channel"])
                number = _OWN + self.connection if channel == j.CHANNEL_OWN else channel
                wish[number] = part["kind"] == j.LISTEN
        return wish

    def check(self, committed: _Committed, verdict: Verdict) -> None:
        place = f"connection {self.connection}"
        if self.strange:
            verdict.violation(
                "channel", f"{place} got what others sent to themselves", self.strange
            )
        steps = np.diff(self.position)
        if (steps == 0).any():
            verdict.violation("twice", f"{place}", int((steps == 0).sum()))
        if (steps < 0).any():
            verdict.violation("order", f"{place}", int((steps < 0).sum()))
        inside = 0
        for window in self.windows:
            inside += self._check_window(window, committed, verdict)
        if inside != len(self.rows):
            extra = len(self.rows) - inside
            verdict.violation("not listening", f"{place}: {extra} messages", abs(extra))

    def _check_window(self, window: Window, committed: _Committed, verdict: Verdict) -> int:
        place = f"connection {self.connection}, channel {window.channel}"
        low, high = np.searchsorted(self.rows, (window.first_row, window.last_row))
        mine = np.flatnonzero(self.channel[low:high] == window.channel) + low
        position, rows = self.position[mine], self.rows[mine]
        reached = int(self.position[:high].max()) if high else -1
        gaps = self.gaps[(self.gaps > window.first_row) & (self.gaps < window.last_row)]
        if window.begin is None:
            if not len(position) or not len(gaps):
                return len(position)  # it had not read its own LISTEN when it was killed
            window.begin = int(position[0])
        wanted, end = committed.on(window.channel)
        begin, last = np.searchsorted(wanted, (window.begin, reached + 1))
        at = np.searchsorted(wanted, position)
        found = wanted[np.minimum(at, len(wanted) - 1)] == position if len(wanted) else at < 0
        if not found.all():
            verdict.violation(
                "never sent", f"{place}: {(~found).sum()} messages", int((~found).sum())
            )
            return len(position)
        if len(at) and at[0] < begin:
            verdict.violation("before LISTEN", place)
        # Holes: between two deliveries, before the first, after the last; a gap excuses one.
        bounds = np.concatenate(([begin - 1], at, [max(last, begin)]))
        holes = np.flatnonzero(np.diff(bounds) > 1)
        edges = np.concatenate(([window.first_row], rows, [window.last_row]))
        for hole in holes.tolist():
            excused = ((gaps > edges[hole]) & (gaps < edges[hole + 1])).any()
            if not excused:
                missing = int(bounds[hole + 1] - bounds[hole] - 1)
                example = int(wanted[bounds[hole] + 1])
                verdict.violation(
                    "lost",
                    f"{place}: {missing} from seq {example >> 16} on, reached {reached >> 16}"
                    f" row {edges[hole]}",
                    missing,
                )
        self._check_drains(window, np.append(begin - 1, at) + 1, rows, end, verdict)
        return len(position)

    def _check_drains(
        self, window: Window, following: Array, rows: Array, end: Array, verdict: Verdict
    ) -> None:
        """`following`: the event after the window's beginning, and after each of its rows."""
        drains = self.drains[(self.drains > window.first_row) & (self.drains < window.last_row)]
        if not len(drains) or len(end) == 0:
            return
        # Behind a gap it cannot be known how far it has read, until something comes on the channel.
        last = np.append(-1, rows)[np.searchsorted(rows, drains)]
        last_gap = np.append(-1, self.gaps)[np.searchsorted(self.gaps, drains)]
        drains = drains[last_gap <= last]
        following = following[np.searchsorted(rows, drains)]
        # Of the events that had not been delivered at a drain, the one that was committed first.
        earliest = np.append(np.minimum.accumulate(end[::-1])[::-1], _NEVER)
        late = earliest[following] < self.records["time"][drains]
        if late.any():
            verdict.violation(
                "late", f"connection {self.connection}, channel {window.channel}", int(late.sum())
            )


def _check_unheard(
    sent: _Sent, committed: _Committed, listeners: list[_Listener], verdict: Verdict
) -> None:
    """Committed, and not received: then no connection may have been listening all the time."""
    unheard = sent.committed & (committed.seq < 0)
    verdict.figures["not heard"] += int(unheard.sum())
    events = sent.events[unheard[sent.event_txn]]
    txn = sent.event_txn[unheard[sent.event_txn]]
    channel = _numbers(events, events["connection"])
    for listener in listeners:
        drains, times = listener.drains, listener.records["time"]
        for window in listener.windows:
            low, high = np.searchsorted(drains, (window.first_row, window.last_row))
            if low == high:
                continue
            until = times[drains[high - 1]]
            missed = (channel == window.channel) & (sent.start[txn] > window.since)
            missed &= sent.end[txn] < until
            if missed.any() and not len(listener.gaps):
                verdict.violation(
                    "lost",
                    f"connection {listener.connection}, channel {window.channel}: "
                    f"{_name(int(sent.key[txn[missed][0]]))}, which was not received",
                    int(missed.sum()),
                )


def judge(directory: Path, *, gaps: bool = True) -> Verdict:
    """Of one round; `gaps`: there may be some."""
    verdict = Verdict()
    journals = {int(path.stem): j.read(path) for path in sorted(directory.glob("*.journal"))}
    verdict.figures["connections"] += len(journals)
    sent = _Sent(journals, verdict)
    committed = _Committed(sent, journals, verdict)
    listeners = []
    for connection, records in journals.items():
        for error in records[records["kind"] == j.ERROR]:
            verdict.violation("error", f"connection {connection}: {int(error['seq'])}")
        verdict.figures["gaps"] += int((records["kind"] == j.GAP).sum())
        if not gaps and (records["kind"] == j.GAP).any():
            verdict.violation("gap", f"connection {connection}")
        listeners.append(_Listener(connection, records, sent, committed))
        listeners[-1].check(committed, verdict)
    _check_unheard(sent, committed, listeners, verdict)
    return verdict
