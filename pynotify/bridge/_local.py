"""The segment's side of a bridge: what comes from upstream, which channels have listeners.

1. What has been read in one go is published in one local transaction for each of its senders in
   turn: PostgreSQL tells the order of notifications, not where its transactions begin and end.
2. What the segment has no room for is dropped and counted, or PostgreSQL's queue would fill up for
   all clients there; its channels are owed a `Gap`, which goes before anything else that comes.
"""

from __future__ import annotations

import time
from collections import deque
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Final

from pynotify._encoding import encode_channel
from pynotify._ffi import again, lib
from pynotify._log import logger
from pynotify._types import Gap, Notify
from pynotify.errors import (
    OperationalError,
    ProgrammingError,
    SegmentCorrupt,
    SegmentUnlinked,
    check,
    native_error,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pynotify._connection import Connection
    from pynotify._engine import Engine
    from pynotify._handle import Handle

    #: channel, payload, pid of the sender upstream
    Incoming = tuple[bytes, bytes, int]

_AT_ONCE: Final = 256
_QUIET: Final = 5.0  # seconds between two warnings


class LocalSide:
    """`both`: what is sent on the channels here is read, to be sent on."""

    def __init__(
        self, engine: Engine, database: str, channels: Sequence[str], *, both: bool
    ) -> None:
        self._channels = tuple(channels)
        self._connection = engine.connect(database)
        self._handle = self._connection.link.handle
        self._seen: int | None = None
        self._owed: dict[str, None] = {}
        self._came: deque[Notify | Gap] = deque()
        #: Notifications for which there was no room.
        self.dropped = 0
        self._warn_at = 0.0
        try:
            become_bridge(self._handle)
            if both:
                self._connection.listen(*channels)
        except BaseException:
            self._connection.close()
            raise

    @property
    def connection(self) -> Connection:
        """The bridge's backend."""
        return self._connection

    def fileno(self) -> int:
        """Readable when a listener may have come or gone, or a notification was sent."""
        return self._connection.fileno()

    # ---- listeners -----------------------------------------------------------------------------

    def changed(self) -> bool:
        """Whether heard() may have changed since the last time."""
        before = self._seen
        self._seen = lib.pn_heard(self._handle.engine())
        return before != self._seen

    def heard(self) -> set[str]:
        """The channels that have listeners here."""
        return {channel for channel in self._channels if self._is_heard(channel)}

    def _is_heard(self, channel: str) -> bool:
        name = encode_channel(channel)
        heard = again(lambda: int(lib.pn_channel_heard(self._handle.native, name, len(name))))
        return bool(check(heard))

    # ---- what goes upstream --------------------------------------------------------------------

    def receive(self) -> deque[Notify | Gap]:
        """What was sent here; it stays there until the caller has taken it out."""
        # A call made by `for`: Ctrl-C cannot come between reading and having it.
        for messages in map(self._connection.poll, (None,)):
            self._came += messages
        return self._came

    def of_others(self, came: Iterable[Notify | Gap]) -> list[Notify]:
        """What of it others than us have sent."""
        own = self._connection.backend_id
        messages: list[Notify] = []
        for message in came:
            if isinstance(message, Notify):
                if message.backend_id != own:
                    messages.append(message)
            elif message.reason != Gap.UPSTREAM:
                logger.error("bridge: %d bytes of the queue went nowhere", message.missed_bytes)
        return messages

    # ---- what comes from there -----------------------------------------------------------------

    def publish(self, incoming: Sequence[Incoming]) -> int:
        """How many of them were published; the others are dropped."""
        before = self.dropped
        for pid, group in groupby(incoming, itemgetter(2)):
            from_one = list(group)
            for start in range(0, len(from_one), _AT_ONCE):
                self._publish(pid, from_one[start : start + _AT_ONCE])
        return len(incoming) - (self.dropped - before)

    def _publish(self, pid: int, incoming: list[Incoming]) -> None:
        if self._owed and not self.pay():
            self._drop(incoming)
            return
        if self._try(pid, incoming) is None:
            return
        # All of it was too much, or one of them is more than this segment takes.
        for index, one in enumerate(incoming):
            error = self._try(pid, [one])
            if isinstance(error, OperationalError):
                self._drop(incoming[index:])
                break
            if error is not None:
                self._drop([one])
        self.pay()

    def _try(self, pid: int, incoming: list[Incoming]) -> Exception | None:
        """Why it was not possible."""
        try:
            self._send(pid, incoming)
        except (SegmentUnlinked, SegmentCorrupt):
            raise
        except (OperationalError, ProgrammingError) as error:
            self._warn(error)
            return error
        return None

    def _warn(self, error: Exception) -> None:
        now = time.monotonic()
        if now >= self._warn_at:
            self._warn_at = now + _QUIET
            text = str(error).partition("\n")[0]
            logger.warning("bridge: what comes from PostgreSQL is dropped: %s", text)

    def _send(self, pid: int, incoming: list[Incoming]) -> None:
        connection = self._connection
        runs = [
            (channel.decode(), [payload for _, payload, _ in run])
            for channel, run in groupby(incoming, itemgetter(0))
        ]
        lib.pn_conn_set_source(self._handle.native, pid)
        try:
            if len(runs) == 1:
                connection.notify_many(*runs[0], dedup=False)
            else:
                with connection.transaction():
                    for channel, payloads in runs:
                        connection.notify_many(channel, payloads, dedup=False)
        finally:
            lib.pn_conn_set_source(self._handle.native, 0)

    def _drop(self, incoming: Iterable[Incoming]) -> None:
        for channel, _, _ in incoming:
            self.dropped += 1
            self._owed[channel.decode()] = None

    def owe(self, channels: Iterable[str]) -> None:
        """Something may be missing of them: a Gap, before whatever comes next."""
        self._owed.update(dict.fromkeys(channels))

    @property
    def owes(self) -> bool:
        """A Gap that there was no room for."""
        return bool(self._owed)

    def pay(self) -> bool:
        """The Gaps that are owed; False: not now."""
        for channel in tuple(self._owed):
            name = encode_channel(channel)
            result = lib.pn_send_gap(self._handle.native, name, len(name))
            if result < 0:
                error = native_error(result)
                if isinstance(error, (SegmentUnlinked, SegmentCorrupt)):
                    raise error
                return False
            del self._owed[channel]
        return True

    def close(self) -> None:
        """Be no bridge any more."""
        self._connection.close()


def become_bridge(handle: Handle) -> None:
    """Make the backend the bridge of its database; `OperationalError` when there is one."""
    check(again(lambda: lib.pn_conn_bridge(handle.native)))
