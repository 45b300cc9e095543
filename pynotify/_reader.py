"""Reading for one connection: what `native/python/batch.c` returns, stored and acknowledged."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pynotify._encoding import encode_channel
from pynotify._ffi import ffi, lib
from pynotify._hot import Batch
from pynotify._types import Gap, Notify
from pynotify.errors import ProgrammingError, check, native_error

if TYPE_CHECKING:
    from collections import deque
    from collections.abc import Callable, Iterator

    from pynotify._handle import Handle
    from pynotify._hot import Columns

    _Sink = list[Notify | Gap] | deque[Notify | Gap]

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
        self.batch = Batch(_gap)

    @property
    def busy(self) -> bool:
        """Whether a signal handler of Python has interrupted reading, and so must not read."""
        return self.batch.busy

    @property
    def pending(self) -> bool:
        """Whether the batch holds what is in no sink.

        Then an exception came in between, and reading goes on with that; or another thread is about
        to.
        """
        return self.batch.pending

    def read(self, sink: _Sink, limit: int, max_bytes: int = 0) -> bool:
        """Put up to `limit` messages into `sink`, 0: all that are owed.

        With `max_bytes` none is begun when those before it have so many.  Where messages or gaps
        are `pending` they come first, and gaps without regard to `limit`.  False: there was no
        more.
        """
        if self.batch.busy:
            raise ProgrammingError(INTERRUPTED, hint=INTERRUPTED_HINT)
        return self.batch.read(self._handle, sink, limit, max_bytes)

    def read_routed(
        self, sink: deque[tuple[Notify | Gap, int]], limit: int, max_bytes: int = 0
    ) -> list[Notify | Gap]:
        """The same with the routes by which they are owed; the messages, more when `pending`."""
        if self.batch.busy:
            raise ProgrammingError(INTERRUPTED, hint=INTERRUPTED_HINT)
        return self.batch.read_routed(self._handle, sink, limit, max_bytes)

    def read_columns(self, sink: list[Columns], limit: int) -> bool:
        """The same as `read`, left in columns: all messages, if any, in one element of `sink`.

        False: there are gaps among them, or a part was read already; `read` goes on.
        """
        if self.batch.busy:
            raise ProgrammingError(INTERRUPTED, hint=INTERRUPTED_HINT)
        return self.batch.read_columns(self._handle, sink, limit)

    def reset(self) -> None:
        """In the child of a fork: another thread may have been reading."""
        self.batch.busy = self.batch.pending = False

    def listening(self) -> frozenset[str]:
        """The channels that are listened to now."""
        return frozenset(self._names(lib.pn_conn_listening_names))

    def listening_patterns(self) -> tuple[str, ...]:
        """The patterns that are listened to now, in their order."""
        return tuple(self._names(lib.pn_conn_listening_patterns))

    def owes(self, channel: str, seq: int) -> bool:
        """Whether a message of that commit would be owed to LISTEN, if it were read now.

        Of a channel that is not UTF-8 the bytes are not known here: it counts as owed.
        """
        if "\\x" in channel:
            return True
        name = encode_channel(channel)
        return bool(check(lib.pn_conn_owes(self._handle.native, name, len(name), seq)))

    def _names(self, call: Callable[..., int]) -> Iterator[str]:
        room = 1024
        while True:
            names = ffi.new("char[]", room)
            size = call(self._handle.native, names, room)
            if size < 0:
                raise native_error(size)
            if size <= room:
                listed = ffi.buffer(names, size)[:].split(b"\0")[:-1]
                return (name.decode("utf-8", "backslashreplace") for name in listed)
            room = 2 * size


def _gap(missed_bytes: int, reason: int, channel: str | None) -> Gap:
    return Gap(missed_bytes, _REASONS[reason], of_channel=channel)
