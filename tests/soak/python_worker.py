"""The same as native/tests/support/soak_worker.c through the package: one connection, forked."""

from __future__ import annotations

import os
import random
import select
import struct
import time
from pathlib import Path

import numpy as np

import pynotify
from soak import journal as j

_FRONT = struct.Struct("<IIHHIQI")  # struct soak_payload, less its sum
_SIZE = _FRONT.size + 4
_WORKERS = 64
_EXPECTED = (pynotify.QueueFull, pynotify.TooManyChannels)


def _sum(front: bytes) -> int:
    total = 2166136261
    for word in struct.unpack("<7I", front):
        total = (total ^ word) * 16777619 & 0xFFFFFFFF
    return total


def _filler(total: int, length: int) -> bytes:
    at = np.arange(_SIZE, length)
    return ((total >> (at % 4 * 8)) + at & 0xFF).astype(np.uint8).tobytes()


def compose(*front: int, length: int, counter: int = 0, owner: int = 0) -> bytes:
    """struct soak_payload (its first four fields come first), and what follows it."""
    packed = _FRONT.pack(*front, length, counter, owner)
    total = _sum(packed)
    return packed + struct.pack("<I", total) + _filler(total, length)


class _Undone(Exception):
    """Raised inside of a block, to roll it back."""


class Worker:
    def __init__(
        self, engine: pynotify.Engine, directory: Path, number: int, place: int, seed: int
    ) -> None:
        self._chance = random.Random(seed)
        self._place = place
        self._number = number
        self._conn = engine.connect("soak", wakeup=self._chance.choice([None, None, "poll"]))
        self._journal = j.Journal(directory, number)
        self._counters = [self._conn.generation(f"g{n}") for n in range(_WORKERS)]
        self._txn = 0
        self._next_index = 0
        self._bumps = 0
        self.end = 0

    # ---- payloads ------------------------------------------------------------------------

    def _compose(self, channel: int, index: int, length: int) -> bytes:
        counter = self._counters[self._place].value + self._bumps if self._bumps else 0
        return compose(
            self._number,
            self._txn,
            index,
            channel,
            length=length,
            counter=counter,
            owner=self._place,
        )

    def _flaws(self, channel: str, data: bytes) -> tuple[int, dict[str, int]]:
        if len(data) < _SIZE:
            return j.FLAW_CONTENT, {}
        front = data[: _FRONT.size]
        connection, txn, index, number, length, counter, owner = _FRONT.unpack(front)
        fields = {"connection": connection, "txn": txn, "index": index, "channel": number}
        total = _sum(front)
        flaws = 0
        if length != len(data) or data[_FRONT.size :] != struct.pack("<I", total) + _filler(
            total, length
        ):
            flaws |= j.FLAW_CONTENT
        if channel != j.channel_name(number, self._number):
            flaws |= j.FLAW_CHANNEL
        if not flaws and counter and self._counters[owner].value < counter:
            flaws |= j.FLAW_COUNTER
        if number == j.CHANNEL_END and not flaws:
            self.end = 2 if index else max(self.end, 1)
        return flaws, fields

    # ---- receiving -----------------------------------------------------------------------

    def receive(self, limit: int | None = None) -> None:
        before = time.monotonic_ns()
        try:
            if self._chance.random() < 0.5:
                batch = self._conn.poll_batch(limit)
                messages: list[pynotify.Notify | pynotify.Gap] = list(batch)
                for index, gap in reversed(batch.gaps):
                    messages.insert(index, gap)
            else:
                messages = self._conn.poll(limit)
        except pynotify.Error as error:
            self._unexpected(error)
            return
        records = []
        for message in messages:
            if isinstance(message, pynotify.Gap):
                records.append(self._journal.record(j.GAP, seq=message.missed_bytes))
                continue
            flaws, fields = self._flaws(message.channel, message.data)
            records.append(
                self._journal.record(
                    j.RECEIVED, **fields, flag=flaws, seq=message.seq, time=message.sent_ns
                )
            )
        if limit is None or len(messages) < limit:
            records.append(self._journal.record(j.DRAINED, time=before))
        if records:
            self._journal.write(np.concatenate(records))

    def sleep(self, timeout: float | None) -> None:
        if self._chance.random() < 0.3:
            poll = select.poll()
            poll.register(self._conn.fileno(), select.POLLIN)
            poll.poll(1000 if timeout is None else timeout * 1000)
        else:
            self._conn.wait(timeout)
        self.receive()

    # ---- sending -------------------------------------------------------------------------

    def _unexpected(self, error: BaseException) -> None:
        os.write(2, f"connection {self._number}: {error!r}\n".encode())
        self._journal.note(j.ERROR, seq=getattr(error, "errno", None) or 1)

    def _length(self) -> int:
        return _SIZE + self._chance.randrange(3000 if self._chance.random() < 0.1 else 120)

    def _channel(self) -> int:
        if self._chance.random() < 0.2:
            return j.CHANNEL_OWN
        return self._chance.randrange(j.SHARED_CHANNELS)

    def _event(self, channel: int) -> tuple[dict[str, int], str, bytes]:
        index = self._next_index
        self._next_index += 1
        data = self._compose(channel, index, self._length())
        part = {"kind": j.EVENT, "channel": channel, "index": index}
        return part, j.channel_name(channel, self._number), data

    def _notify(self, parts: list[dict[str, int]], channel: int) -> None:
        part, name, data = self._event(channel)
        self._conn.notify(name, data)
        parts.append(part)

    def _fill(self, parts: list[dict[str, int]], level: int = 0) -> None:
        """Random statements in the open transaction; what will be left of them in `parts`."""
        for _ in range(self._chance.randrange(1, 6)):
            what = self._chance.random()
            if what < 0.6:
                self._notify(parts, self._channel())
            elif what < 0.75 and level < 3:
                inner: list[dict[str, int]] = []
                try:
                    with self._conn.transaction():
                        self._fill(inner, level + 1)
                        if self._chance.random() < 0.5:
                            raise _Undone
                except _Undone:
                    continue
                parts += inner
            elif what < 0.85 and level == 0:
                self._counters[self._place].bump()
                self._bumps += 1
            elif what < 0.92:
                channel = self._chance.randrange(j.SHARED_CHANNELS)
                wanted = self._chance.random() < 0.6
                name = j.channel_name(channel, self._number)
                (self._conn.listen if wanted else self._conn.unlisten)(name)
                parts.append({"kind": j.LISTEN if wanted else j.UNLISTEN, "channel": channel})

    def _begin(self) -> None:
        self._txn += 1
        self._next_index = self._bumps = 0

    def transact(self, parts_wanted: list[dict[str, int]] | None = None) -> bool:
        """One transaction; whether it was committed."""
        self._begin()
        parts: list[dict[str, int]] = list(parts_wanted or [])
        intended = False
        try:
            with self._conn.transaction() as tx:
                for part in parts:
                    self._conn.listen(j.channel_name(part["channel"], self._number))
                if parts_wanted is None:
                    self._fill(parts)
                self._notify(parts, j.CHANNEL_OWN)
                if self._bumps:
                    parts.append({"kind": j.BUMP, "index": self._place, "count": self._bumps})
                if self._chance.random() < 0.1:
                    tx.prepare()
                    time.sleep(self._chance.random() * 0.002)
                if self._chance.random() < 0.05 and parts_wanted is None:
                    raise _Undone
                intended = True
                self._journal.intent(self._txn, parts)
        except _Undone:
            return False
        except _EXPECTED:
            if intended:
                self._journal.outcome(self._txn, 1)
            self._wait_for_room()
            return False
        self._journal.outcome(self._txn)
        return True

    def _wait_for_room(self) -> None:
        self.receive()  # it may be on us
        time.sleep(self._chance.random() * 0.004)

    def notify_alone(self) -> None:
        self._begin()
        many = self._chance.random() < 0.3
        channel = self._channel()
        count = self._chance.randrange(1, 20) if many else 1
        events = [self._event(channel) for _ in range(count)]
        self._journal.intent(self._txn, [part for part, _, _ in events])
        try:
            if many:
                self._conn.notify_many(events[0][1], [data for _, _, data in events])
            else:
                self._conn.notify(events[0][1], events[0][2])
        except _EXPECTED:
            self._journal.outcome(self._txn, 1)
            self._wait_for_room()
        else:
            self._journal.outcome(self._txn)

    # ---- from begin to end ---------------------------------------------------------------

    def listen_first(self) -> None:
        channels = [j.CHANNEL_OWN, j.CHANNEL_END]
        channels += self._chance.sample(range(j.SHARED_CHANNELS), self._chance.randrange(5))
        parts = [{"kind": j.LISTEN, "channel": channel} for channel in channels]
        while not self.transact(parts):
            pass

    def act(self) -> None:
        what = self._chance.random()
        if what < 0.4:
            self.transact()
        elif what < 0.6:
            self.receive(self._chance.choice([None, None, 1, 7, 20]))
        elif what < 0.8:
            self.sleep(self._chance.random() * 0.005)
        else:
            self.notify_alone()

    def run(self, told: int) -> None:
        try:
            self.listen_first()
            while self.end == 0:
                self.act()
            os.write(told, b".")
            while self.end != 2:
                self.sleep(None)
            self._journal.note(j.ENDED)
            self._conn.close()
        except Exception as error:
            self._unexpected(error)
            raise
