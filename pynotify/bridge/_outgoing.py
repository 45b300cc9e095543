"""What goes upstream: local transactions, in order, in the form in which PostgreSQL takes them.

1. A local transaction is one upstream, with one exception: PostgreSQL collapses equal
   notifications of a transaction, and here they may be meant (`dedup=False`; the segments of an
   object of zeros are all alike).  Before one that is there already another transaction begins.
2. While PostgreSQL is away they wait here, up to `max_backlog` bytes, not in the segment's queue:
   that would fill up, for all processes.  Beyond it the oldest go, and are counted.
3. What was on its way when the connection broke is sent again: it may come twice, as it is
   not known whether it came.
4. An exception of a signal handler (Ctrl-C) may come after each call: what must happen together
   happens in statements without calls.
"""

from __future__ import annotations

from collections import deque
from itertools import groupby
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from pynotify._types import Notify

_ONE: Final = b"SELECT pg_catalog.pg_notify($1, $2)"
_MANY: Final = (
    b"SELECT pg_catalog.pg_notify(c, p) FROM unnest($1::text[], $2::text[])"
    b" WITH ORDINALITY AS v (c, p, n) ORDER BY n"
)


class Outward(NamedTuple):
    """One upstream transaction."""

    pairs: list[tuple[bytes, bytes]]
    size: int

    @property
    def statement(self) -> bytes:
        """The statement that sends the transaction."""
        return _ONE if len(self.pairs) == 1 else _MANY

    @property
    def values(self) -> list[bytes]:
        """The values of that statement."""
        if len(self.pairs) == 1:
            return list(self.pairs[0])
        channels, payloads = zip(*self.pairs, strict=True)
        return [_array(channels), _array(payloads)]


def _array(values: Iterable[bytes]) -> bytes:
    """As text[] is written."""
    quoted = (value.replace(b"\\", b"\\\\").replace(b'"', b'\\"') for value in values)
    return b"{" + b",".join(b'"' + value + b'"' for value in quoted) + b"}"


def _outward(pairs: Iterable[tuple[bytes, bytes]]) -> Outward:
    found = list(pairs)
    return Outward(found, sum(len(channel) + len(payload) for channel, payload in found))


class Backlog:
    """Transactions that were not sent yet, the next one in front."""

    def __init__(self, max_backlog: int) -> None:
        if max_backlog < 0:
            raise ValueError(f"max_backlog must not be negative, is {max_backlog}")
        self._max_backlog = max_backlog
        self._waiting: deque[Outward] = deque()
        #: The first of them is on its way.
        self._sending = False
        self.bytes = 0
        #: Notifications that are gone, since there were too many.
        self.dropped = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, messages: Iterable[Notify], source: deque[Any] | None = None) -> None:
        """Append what was read, in order; `source` is emptied in the same step."""
        source = deque() if source is None else source
        added: list[Outward] = []
        for _, transaction in groupby(messages, key=lambda message: message.seq):
            pairs: dict[tuple[bytes, bytes], None] = {}
            for message in transaction:
                pair = (message.channel.encode(), message.data)
                if pair in pairs:
                    added.append(_outward(pairs))
                    pairs = {}
                pairs[pair] = None
            added.append(_outward(pairs))
        size = sum(outward.size for outward in added)
        waiting = self._waiting
        waiting += added
        self.bytes += size
        source *= 0
        self._make_room()

    def _make_room(self) -> None:
        keep = 1 if self._sending else 0
        while self.bytes > self._max_backlog and len(self._waiting) > keep:
            oldest = self._waiting[keep]
            count = len(oldest.pairs)
            del self._waiting[keep]
            self.bytes -= oldest.size
            self.dropped += count

    def send(self) -> Outward | None:
        """The next one, which is on its way from now on; None while another is."""
        if self._sending or not self._waiting:
            return None
        self._sending = True
        return self._waiting[0]

    def sent(self) -> int:
        """Remove the first transaction; how many notifications it had.

        It has arrived, or never will.
        """
        done = self._waiting[0]
        count = len(done.pairs)
        del self._waiting[0]
        self.bytes -= done.size
        self._sending = False
        return count

    def again(self) -> None:
        """Send again what was on its way."""
        self._sending = False
