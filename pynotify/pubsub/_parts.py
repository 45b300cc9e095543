"""Objects that are too large for one transaction, over the connections of pynotify.

1. They go in parts, several in a transaction, and several transactions after each other; from a
   PubSub with raw=True also those that are not too large, all parts in one transaction.  A part
   is `~`, the object's number, the part's place and the object's size, in bytes, and then bytes of
   the container as they are: a payload of pynotify may have any.  No connection gives a number
   twice, so objects of several threads interleave, and a listener that begins in the middle of
   one knows that it is the middle.  A size of 0 says that the object will not end.
2. Size and place are below 2^48, so they have bytes that are 0, which PostgreSQL refuses: no part
   comes through a bridge, and an object on a channel that goes upstream is not sent in parts.
3. Flow: a sender leaves half of the queue to others.  What it has sent has to be read, mostly,
   before it goes on, whatever `on_full` says.  When nothing was read for `full_timeout`, it goes
   on all the same, and what comes of it is what `on_full` has: QueueFull, for instance.
"""

from __future__ import annotations

import itertools
import struct
import time
from typing import TYPE_CHECKING, Final

from pynotify.errors import QueueFull
from pynotify.pubsub._format import PART, Malformed, Pieces

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pynotify._handle import Handle

_HEADER = struct.Struct("<QQQ")
_LIMIT = 1 << 48
_PAGE = 8192
#: Of the ring: what goes in one transaction because it is small, and what one of parts has.
_IN_ONE: Final = 0.5
_TOGETHER: Final = 0.1
#: Of the queue: beyond that a sender waits.  With its next parts that is less than the half of
#: which the queue warns.
_SHARE: Final = 0.375
_FIRST_PAUSE = 0.0005
_LONGEST_PAUSE = 0.05

_numbers = itertools.count(1)


class Room:
    """What a segment has room for."""

    def __init__(self, handle: Handle) -> None:
        handle.check_usable()
        options = handle.options()
        #: The most that a payload may have.
        self.limit = int(options.max_payload)
        self._ring = int(options.queue_pages) * _PAGE
        self.timeout = float(options.full_timeout_ns) / 1e9

    def takes_in_one(self, size: int) -> bool:
        """Whether a container of that size goes in one transaction."""
        return size * 4 // 3 <= self._ring * _IN_ONE

    def outgoing(self, whole: bytes) -> Outgoing:
        """The object's parts, to be sent one transaction after the other."""
        batch = int(self._ring * _TOGETHER)
        return Outgoing(whole, min(self.limit, batch), batch)

    def together(self, whole: bytes) -> list[bytes]:
        """The object's parts, to be sent in one transaction."""
        limit = min(self.limit, int(self._ring * _TOGETHER))
        (parts,) = Outgoing(whole, limit, 2 * len(whole) + limit).batches()
        return parts


class Outgoing:
    """An object on its way.  `sent`: bytes of it that were committed.

    `ends`: the batch that was given out last is the last one.
    """

    def __init__(self, whole: bytes, limit: int, batch: int) -> None:
        self._whole = memoryview(whole)
        self._number = next(_numbers)
        self._size = limit - _HEADER.size - len(PART)
        self._together = max(batch // limit, 1)
        self.sent = 0
        self.ends = False

    def batches(self) -> Iterator[list[bytes]]:
        """The payloads of one transaction after the other."""
        whole = self._whole
        step = self._size * self._together
        for start in range(0, len(whole), step):
            end = min(start + step, len(whole))
            self.ends = end == len(whole)
            yield [
                self._part(at, min(at + self._size, end)) for at in range(start, end, self._size)
            ]
            self.sent = end

    def _part(self, start: int, end: int) -> bytes:
        header = _HEADER.pack(self._number, start, len(self._whole))
        return b"".join((PART, header, self._whole[start:end]))

    def given_up(self) -> bytes:
        """The payload that says so."""
        return PART + _HEADER.pack(self._number, 0, 0)

    def refused(self, error: QueueFull) -> QueueFull:
        """The error for the publisher: what has become of the object."""
        message, _, hint = str(error).partition("\n")
        what = (
            f"{self.sent} of the object's {len(self._whole)} bytes had gone; listeners drop them."
        )
        return QueueFull(message, hint=f"{hint} {what}")


class Flow:
    """When the next transaction of an object may go."""

    def __init__(self, timeout: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._timeout = timeout
        self._clock = clock
        self._pause = _FIRST_PAUSE
        #: The least that the queue was filled since there was room; None: there is.
        self._least: float | None = None
        self._until = 0.0
        self._refused = False

    def pause(self, usage: float) -> float:
        """Seconds until it looks again at how full the queue is; 0: it goes."""
        refused, self._refused = self._refused, False
        if usage <= _SHARE and not refused:
            self._least, self._pause = None, _FIRST_PAUSE
            return 0.0
        self._begin(usage)
        if self._clock() >= self._until:
            return 0.0
        self._pause = min(2 * self._pause, _LONGEST_PAUSE)
        return self._pause

    def again(self) -> bool:
        """The queue was full: whether to wait for room."""
        self._refused = True
        self._begin(1.0)
        return self._clock() < self._until

    def _begin(self, usage: float) -> None:
        if self._least is None or usage < self._least:
            self._least = usage
            self._until = self._clock() + self._timeout


class Part:
    """One that has come.  Raises `Malformed`."""

    __slots__ = ("data", "number", "place", "size")

    def __init__(self, payload: bytes) -> None:
        start = len(PART)
        if len(payload) < start + _HEADER.size:
            raise Malformed("a part without its header")
        self.number: int
        self.place: int
        self.size: int
        self.number, self.place, self.size = _HEADER.unpack_from(payload, start)
        self.data = memoryview(payload)[start + _HEADER.size :]
        within = 0 < len(self.data) <= self.size - self.place
        if self.size >= _LIMIT or (self.size and not within):
            raise Malformed("a part that is not within its object")

    @property
    def ends(self) -> bool:
        """Nothing more of its object comes."""
        return self.place + len(self.data) >= self.size


class Parts(Pieces):
    """The parts of one object so far."""

    __slots__ = ()

    def add_part(self, part: Part) -> None:
        """The next one.  Raises `Malformed`, after which no more can be added."""
        if part.place != len(self.data):
            raise Malformed(f"a part at {part.place}, after {len(self.data)} bytes")
        self.data += part.data
