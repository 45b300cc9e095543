"""Reading for one connection: what `native/python/batch.c` returns, stored and acknowledged."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pynotify._batch import NotifyBatch
from pynotify._ffi import ffi, lib
from pynotify._hot import Batch
from pynotify._types import Gap, Notify
from pynotify.errors import ProgrammingError, native_error

if TYPE_CHECKING:
    from collections import deque

    from pynotify._handle import Handle

INTERRUPTED = "receiving from a signal handler that interrupted receiving"
INTERRUPTED_HINT = "Let the handler set a flag, and receive where the program goes on."

#: What is read ahead of its being asked for has no more payload than this, and one message.
AHEAD_BYTES = 1 << 20

_REASONS = {
    lib.PN_GAP_EVICTED: Gap.EVICTED,
    lib.PN_GAP_DAMAGED: Gap.DAMAGED,
    lib.PN_GAP_UPSTREAM: Gap.UPSTREAM,
}


class Reader:
    """Reads for one connection.  Not thread-safe: the connection holds its lock, which
    the same thread may hold twice.

    The handle stays an attribute of the connection, never a local variable here: the traceback
    of an error would keep the backend slot.
    """

    def __init__(self, handle: Handle) -> None:
        self._handle = handle
        self._batch = Batch(_gap)

    @property
    def busy(self) -> bool:
        """Whether a signal handler of Python has interrupted reading, and so must not read."""
        return self._batch.busy

    @property
    def pending(self) -> bool:
        """Whether the batch holds what was not stored.

        Then an exception of a signal handler (Ctrl-C) came in between; reading goes on with that.
        """
        return self._batch.pending

    def read(self, limit: int, max_bytes: int = 0) -> list[Notify | Gap]:
        """Up to `limit` messages, 0: all that are owed.  More when `pending`.

        With `max_bytes` none is begun when those before it have so many.
        """
        batch = self._batch
        if batch.busy:
            raise ProgrammingError(INTERRUPTED, hint=INTERRUPTED_HINT)
        messages = batch.read(self._handle, limit, max_bytes)
        batch.pending = False
        return messages

    def read_routed(
        self,
        limit: int,
        sink: deque[tuple[Notify | Gap, int]],
        max_bytes: int = 0,
    ) -> list[Notify | Gap]:
        """The same as `read`, and put into `sink` with the routes by which they are owed."""
        if self._batch.busy:
            raise ProgrammingError(INTERRUPTED, hint=INTERRUPTED_HINT)
        return self._batch.read_routed(self._handle, limit, max_bytes, sink)

    def read_columns(self, limit: int) -> NotifyBatch:
        """The same as `read`, left in columns."""
        batch = self._batch
        if batch.busy:
            raise ProgrammingError(INTERRUPTED, hint=INTERRUPTED_HINT)
        columns = batch.read_columns(self._handle, limit)
        if columns is None:
            return NotifyBatch.from_messages(self.read(limit))
        made = NotifyBatch(columns)
        batch.pending = False
        return made

    def reset(self) -> None:
        """In the child of a fork: another thread may have been reading."""
        self._batch.busy = self._batch.pending = False

    def listening(self) -> frozenset[str]:
        """The channels that are listened to now."""
        room = 1024
        while True:
            names = ffi.new("char[]", room)
            size = lib.pn_conn_listening_names(self._handle.native, names, room)
            if size < 0:
                raise native_error(size)
            if size <= room:
                listed = ffi.buffer(names, size)[:].split(b"\0")[:-1]
                return frozenset(name.decode("utf-8", "backslashreplace") for name in listed)
            room = 2 * size


def _gap(missed_bytes: int, reason: int, channel: str | None) -> Gap:
    return Gap(missed_bytes, _REASONS[reason], of_channel=channel)
