"""Objects that are too large for one transaction, over the connections of pynotify.

1. They go in parts, several in a transaction, and several transactions after each other; from a
   PubSub with raw=True also those that are not too large, all parts in one transaction.  A part
   is `~`, the object's number, the part's place and the object's size, in bytes, and then bytes of
   the container as they are: a payload of pynotify may have any.  No connection gives a number
   twice, so objects of several threads interleave, and a listener that begins in the middle of
   one knows that it is the middle.  A size of 0 says that the object will not end.  What follows
   each other when it is read is put together as one run.
2. Size and place are below 2^48, so they have bytes that are 0, which PostgreSQL refuses: no part
   comes through a bridge, and an object on a channel that goes upstream is not sent in parts.
3. Flow: a sender leaves half of the queue to others.  What it has sent has to be read, mostly,
   before it goes on, whatever `on_full` says.  When nothing was read for `full_timeout`, it goes
   on all the same, and what comes of it is what `on_full` has: QueueFull, for instance.
"""

from __future__ import annotations

import functools
import itertools
import struct
import time
from typing import TYPE_CHECKING, Final, NamedTuple

from pynotify._hot import cut_parts, run_of_parts
from pynotify.errors import QueueFull
from pynotify.pubsub._format import PART, LongContainer, Malformed, Pieces

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from pynotify._handle import Handle
    from pynotify._hot import Parts as SentParts
    from pynotify._types import Notify

    Container = bytes | LongContainer

_HEADER = struct.Struct("<QQQ")
_START = len(PART) + _HEADER.size
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

#: What the C library maps by itself, and unmaps as soon as it is freed, unless it has seen a
#: larger block freed (M_MMAP_THRESHOLD); then the kernel clears each page of each object again.
_MAPPED = 128 << 10
_SEEN = 4 << 20

_numbers = itertools.count(1)


@functools.cache
def _keep_memory() -> None:
    """Let the C library keep what objects of some MiB take for the next ones."""
    bytes(_SEEN)  # of zeros that nothing has touched: no memory


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

    def outgoing(self, whole: Container) -> Outgoing:
        """The object's parts, to be sent one transaction after the other."""
        batch = int(self._ring * _TOGETHER)
        return Outgoing(whole, min(self.limit, batch), batch)

    def together(self, whole: Container) -> SentParts:
        """The object's parts, to be sent in one transaction."""
        limit = min(self.limit, int(self._ring * _TOGETHER))
        (parts,) = Outgoing(whole, limit, 2 * len(whole) + limit).batches()
        return parts


class Outgoing:
    """An object on its way.  `sent`: bytes of it that were committed.

    `ends`: the batch that was given out last is the last one.
    """

    def __init__(self, whole: Container, limit: int, batch: int) -> None:
        if len(whole) >= _MAPPED:
            _keep_memory()
        self._length = len(whole)
        self._flag = whole.flag if isinstance(whole, LongContainer) else b""
        self._body = whole.body if isinstance(whole, LongContainer) else whole
        self._number = next(_numbers)
        self._size = limit - _HEADER.size - len(PART)
        self._together = max(batch // limit, 1)
        self.sent = 0
        self.ends = False

    def batches(self) -> Iterator[SentParts]:
        """The payloads of one transaction after the other."""
        length, step = self._length, self._size * self._together
        for start in range(0, length, step):
            end = min(start + step, length)
            self.ends = end == length
            yield cut_parts(self._flag, self._body, self._number, start, end, self._size)
            self.sent = end

    def given_up(self) -> bytes:
        """The payload that says so."""
        return PART + _HEADER.pack(self._number, 0, 0)

    def refused(self, error: QueueFull) -> QueueFull:
        """The error for the publisher: what has become of the object."""
        message, _, hint = str(error).partition("\n")
        what = f"{self.sent} of the object's {self._length} bytes had gone; listeners drop them."
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
        if len(payload) < _START:
            raise Malformed("a part without its header")
        self.number: int
        self.place: int
        self.size: int
        self.number, self.place, self.size = _HEADER.unpack_from(payload, len(PART))
        self.data = memoryview(payload)[_START:]
        within = 0 < len(self.data) <= self.size - self.place
        if self.size >= _LIMIT or (self.size and not within):
            raise Malformed("a part that is not within its object")

    @property
    def ends(self) -> bool:
        """Nothing more of its object comes."""
        return self.place + len(self.data) >= self.size


class Run(NamedTuple):
    """Parts of one object that follow each other, from `place` on."""

    number: int
    place: int
    size: int
    views: list[memoryview]
    #: The notification of the last one.
    last: Notify

    #: Bytes in `views`.
    length: int

    @property
    def data(self) -> bytes:
        """All of them."""
        return b"".join(self.views)

    @property
    def ends(self) -> bool:
        """Nothing more of its object comes."""
        return self.place + self.length == self.size


def run_of(messages: Iterable[object], most: int) -> Run | None:
    """What the first messages are, up to `most` bytes; None: not two parts at least.

    A run costs a part a fraction of what it costs by itself.  It ends before whatever does not
    continue it, well-formed or not, and looks at nothing beyond that.
    """
    found = run_of_parts(messages, int(min(most, _LIMIT)))
    if len(found) < 2:
        return None
    first = Part(found[0].data)
    if first.size >= _MAPPED:
        _keep_memory()
    views = [memoryview(message.data)[_START:] for message in found]
    length = sum(map(len, views))
    return Run(first.number, first.place, first.size, views, found[-1], length)


class Parts(Pieces):
    """The parts of one object so far."""

    __slots__ = ()

    def add_part(self, part: Part | Run) -> None:
        """The next one.  Raises `Malformed`, after which no more can be added."""
        if part.place != len(self.data):
            raise Malformed(f"a part at {part.place}, after {len(self.data)} bytes")
        self.data += part.data
