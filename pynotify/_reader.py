"""From the columns of a pn_batch to messages.

One call into C moves any number of messages.  The channel and the payload of each are made into
objects at once, since nearly every program wants them; the other columns are copied as they are,
and `Notify` looks its values up when asked.  That halves the time and the memory of a message.
"""

from __future__ import annotations

from itertools import repeat
from typing import TYPE_CHECKING, Any, cast

from pynotify._batch import NotifyBatch, split
from pynotify._ffi import ffi, lib
from pynotify._ownership import keep
from pynotify._types import Gap, Notify
from pynotify.errors import ProgrammingError, native_error

if TYPE_CHECKING:
    from collections import deque
    from collections.abc import Sequence

    from pynotify._handle import Handle

_pn_poll = lib.pn_poll

INTERRUPTED = "receiving from a signal handler that interrupted receiving"
INTERRUPTED_HINT = "Let the handler set a flag, and receive where the program goes on."

# Where they stand in a pn_batch, all of whose fields are as large; `n` is the first.
_CAP = ffi.offsetof("pn_batch", "cap") // 8
_DATA_CAP = ffi.offsetof("pn_batch", "data_cap") // 8
_GAPS = ffi.offsetof("pn_batch", "ngaps") // 8
_MAX_DATA = ffi.offsetof("pn_batch", "max_data") // 8
_RENAMED = ffi.offsetof("pn_batch", "nrenamed") // 8

#: What is read ahead of its being asked for has no more payload than this, and one message.
AHEAD_BYTES = 1 << 20

_REASONS = {
    lib.PN_GAP_EVICTED: Gap.EVICTED,
    lib.PN_GAP_DAMAGED: Gap.DAMAGED,
    lib.PN_GAP_UPSTREAM: Gap.UPSTREAM,
}

# Below this a list of a column is made faster than a copy of its memory with a view on it.
_FEW = 16


class Reader:
    """Reads for one connection.  Not thread-safe: the connection holds its lock, which
    the same thread may hold twice.

    The handle stays an attribute of the connection, never a local variable here: the traceback
    of an error would keep the backend slot.
    """

    def __init__(self, handle: Handle) -> None:
        self._handle = handle
        batch = lib.pn_batch_new()
        if not batch:
            raise MemoryError("no memory for receiving")
        self._batch: Any = ffi.gc(batch, lib.pn_batch_free)
        keep(self, self._batch)
        # A signal handler of Python can interrupt reading between any two steps, and read itself.
        self.busy = False
        #: What the batch holds has not been made into messages, because an exception of a signal
        #: handler (Ctrl-C) came in between; reading goes on with that.
        self.pending = False
        # By channel number of the connection.  A number that is used again is told by the batch
        # that has it for the first time; the others stand for what they did.
        self._channels: list[str] = []
        # Views on the batch itself, and on the columns as long as the core has not moved them to
        # a larger place: an access through cffi makes an object each time.
        self._shape = memoryview(ffi.buffer(batch)).cast("Q")
        self._capacity = self._data_capacity = 0
        self._origin: tuple[memoryview, ...] = ()
        self._channel = self._offset = self._data = self._routes = memoryview(b"")

    def read(self, limit: int, max_bytes: int = 0) -> list[Notify | Gap]:
        """Up to `limit` messages, 0: all that are owed.  More when `pending`.

        With `max_bytes` none is begun when those before it have so many.
        """
        if self.busy:
            raise ProgrammingError(INTERRUPTED, hint=INTERRUPTED_HINT)
        try:
            self.busy = True
            self._shape[_MAX_DATA] = max_bytes
            messages = self._messages(limit)
            if self._shape[_GAPS]:
                messages = _once(messages)
            self.pending = False
            return messages
        finally:
            self.busy = False

    def read_routed(
        self,
        limit: int,
        sink: deque[tuple[Notify | Gap, int]],
        max_bytes: int = 0,
    ) -> list[Notify | Gap]:
        """The same as `read`, and put into `sink` with the routes by which they are owed."""
        if self.busy:
            raise ProgrammingError(INTERRUPTED, hint=INTERRUPTED_HINT)
        try:
            self.busy = True
            self._shape[_MAX_DATA] = max_bytes
            messages = self._messages(limit)
            routed = zip(messages, self._routes_of(len(messages)), strict=True)
            # One step with the next: no call comes in between.
            sink += routed
            self.pending = False
            return messages
        finally:
            self.busy = False

    def read_columns(self, limit: int) -> NotifyBatch:
        """The same as `read`, left in columns."""
        if self.busy:
            raise ProgrammingError(INTERRUPTED, hint=INTERRUPTED_HINT)
        try:
            self.busy = True
            self._shape[_MAX_DATA] = 0
            batch = self._columns(limit)
            self.pending = False
            return batch
        finally:
            self.busy = False

    def reset(self) -> None:
        """In the child of a fork: another thread may have been reading."""
        self.busy = self.pending = False

    def listening(self) -> frozenset[str]:
        """The channels that are listened to now."""
        room = 1024
        while True:
            names = ffi.new("char[]", room)
            size = lib.pn_conn_listening_names(self._handle.native, names, room)
            if size < 0:
                raise native_error(size)
            if size <= room:
                return frozenset(map(_text, ffi.buffer(names, size)[:].split(b"\0")[:-1]))
            room = 2 * size

    def _messages(self, limit: int) -> list[Notify | Gap]:
        count = self._poll(limit)
        if self._shape[_GAPS]:
            return self._with_gaps(count)
        if count == 0:
            return []
        if count == 1:  # the waiting thread has only just got the processor: few steps
            number = self._channel[0]
            pid, seq, sent_ns, sender = self._origin
            row = ((pid[0],), (seq[0],), (sent_ns[0],), (sender[0],))
            return [Notify(self._channels[number], bytes(self._data[: self._offset[1]]), row, 0)]
        return self._many(count)

    def _many(self, count: int) -> list[Notify | Gap]:
        offsets = self._offset[: count + 1].tolist()
        names = self._channels
        channels = [names[number] for number in self._channel[:count].tolist()]
        payloads = split(bytes(self._data[: offsets[count]]), offsets)
        origin = [_copy(column, count) for column in self._origin]
        return list(map(Notify, channels, payloads, repeat(origin), range(count)))

    def _columns(self, limit: int) -> NotifyBatch:
        count = self._poll(limit)
        if self._shape[_GAPS]:
            return NotifyBatch.from_messages(_once(self._with_gaps(count)))
        if count == 0:
            return NotifyBatch.from_messages([])
        pid, seq, sent_ns, sender = self._origin
        numbers = self._channel[:count]
        return NotifyBatch(
            seq=bytes(seq[:count]),
            sent_ns=bytes(sent_ns[:count]),
            pid=bytes(pid[:count]),
            sender=bytes(sender[:count]),
            channel_index=bytes(numbers),
            offsets=bytes(self._offset[: count + 1]),
            blob=bytes(self._data[: self._offset[count]]),
            channels=self._channels[: max(numbers) + 1],
        )

    def _poll(self, limit: int) -> int:
        batch = self._batch
        if self.pending and (self._shape[0] or self._shape[_GAPS]):
            count = self._shape[0]
        else:
            # What it held has been returned: an exception before the call must not bring it back.
            self._shape[0] = self._shape[_GAPS] = 0
            self.pending = True
            count = _pn_poll(self._handle.native, batch, limit)
        shape = self._shape
        if count >= 0 and shape[_RENAMED]:
            self._learn()
        if count > 0:
            if shape[_CAP] != self._capacity or shape[_DATA_CAP] != self._data_capacity:
                self._view()
        elif count < 0:
            self.pending = False
            raise native_error(count)
        return count

    def _routes_of(self, count: int) -> bytes:
        """The routes of what _messages() returned."""
        if not self._shape[_GAPS]:
            return bytes(self._routes[:count])
        rows = self._gap_rows()
        routes = bytearray(self._routes[: count - len(rows)])
        for row in reversed(rows):
            routes.insert(row.before, row.routes)
        return bytes(routes)

    def _gap_rows(self) -> list[Any]:
        count = self._shape[_GAPS]
        return ffi.unpack(self._batch.gap, count) if count else []

    def _with_gaps(self, count: int) -> list[Notify | Gap]:
        messages = self._many(count) if count else []
        for row in reversed(self._gap_rows()):
            of = None if row.channel < 0 else self._channels[row.channel]
            gap = Gap(row.missed_bytes, _REASONS[row.reason], of_channel=of)
            messages.insert(row.before, gap)
        return messages

    def _view(self) -> None:
        batch = self._batch
        room = batch.cap
        self._origin = (
            memoryview(ffi.buffer(batch.pid, 4 * room)).cast("i"),
            memoryview(ffi.buffer(batch.seq, 8 * room)).cast("Q"),
            memoryview(ffi.buffer(batch.sent_ns, 8 * room)).cast("q"),
            memoryview(ffi.buffer(batch.sender, 8 * room)).cast("Q"),
        )
        self._channel = memoryview(ffi.buffer(batch.channel, 4 * room)).cast("I")
        self._routes = memoryview(ffi.buffer(batch.routes, room))
        self._offset = memoryview(ffi.buffer(batch.offset, 8 * (room + 1))).cast("Q")
        data = ffi.buffer(batch.data, batch.data_cap) if batch.data_cap else b""
        self._data = memoryview(data)
        self._capacity, self._data_capacity = room, batch.data_cap

    def _learn(self) -> None:
        """The names of what the batch brought for the first time; may be repeated."""
        batch = self._batch
        channels = self._channels
        length = ffi.new("size_t *")
        for number in ffi.unpack(batch.renamed, batch.nrenamed):
            handle = self._handle.native  # whose the name is, so it is held until it is copied
            try:
                name = lib.pn_conn_channel(handle, number, length)
                raw = ffi.buffer(name, length[0])[:] if name else b""
            finally:
                del handle
            if not raw:
                self._handle.check_usable()
            text = _text(raw)
            # Not append(): a signal handler of Python may have been here in between.
            if number >= len(channels):
                channels[len(channels) : number] = [""] * (number - len(channels))
            channels[number : number + 1] = [text]


def _text(name: bytes) -> str:
    return name.decode("utf-8", "backslashreplace")


def _once(messages: list[Notify | Gap]) -> list[Notify | Gap]:
    """Keep one of the gaps in several channels, where nothing lies between them."""
    kept: list[Notify | Gap] = []
    for message in messages:
        repeats = isinstance(message, Gap) and bool(kept) and message == kept[-1]
        if not (repeats and message.reason == Gap.UPSTREAM):  # type: ignore[union-attr]
            kept.append(message)
    return kept


def _copy(column: memoryview, count: int) -> Sequence[int]:
    if count < _FEW:
        return column[:count].tolist()
    copy: Sequence[int] = cast("Any", memoryview(bytes(column[:count]))).cast(column.format)
    return copy
