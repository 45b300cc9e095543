"""From segments to objects.

1. Pieces wait for their last one by channel and sender, parts (_parts.py) by their object's number,
   too.  Plain payloads do not disturb them.
2. A malformed segment is counted, reported and skipped.  When it belongs to an object that has
   begun, that object can only come out wrong: it is given up, and the rest of its pieces skipped.
3. What others make us keep is bounded: `max_object` for each, `max_pending` for all together,
   MAX_SENDERS of them.  Beyond the latter two the one that has had no piece for longest is given
   up.  Of an object that was given up only a mark stays, as one of MAX_SENDERS, until its last
   piece has come: otherwise its rest would be taken for an object.  Parts need none: what begins
   in the middle was given up, or began before we listened, and is skipped.
4. Sizes are of the contents before base64, without the flag.
5. What a caller begins between begin() and undo() is undone as a whole, when an exception of a
   signal handler (Ctrl-C) came in between: what is about to be changed is noted first.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pynotify._log import logger
from pynotify.pubsub._arrays import ARRAY, decode
from pynotify.pubsub._format import BYTES, JSON, LAST, PART, PIECE, Malformed, Pieces, contents
from pynotify.pubsub._parts import Part, Parts

if TYPE_CHECKING:
    from collections.abc import Callable, Container

    from pynotify.pubsub._parts import Run

MAX_SENDERS: Final = 1024
#: Seconds after which the rest of an object is not to be expected any more.
LIFETIME: Final = 60.0
_SHOWN = 32


class Segment(NamedTuple):
    """One payload.  `sender` is its sender, among all that ever were; `pid` is what users see."""

    channel: str
    sender: Hashable
    pid: int
    data: bytes


class Key(NamedTuple):
    """An object that has begun."""

    channel: str
    sender: Hashable
    #: Of one in parts.
    number: int | None = None


class Arrived(NamedTuple):
    """An object, in one of these since it may be None."""

    obj: Any


@dataclass(frozen=True, slots=True)
class PubSubStats:
    """What one PubSub has received.

    `received` objects, `malformed` segments; `dropped`: objects given up, since they were too
    large, their sender went, or others needed the room.  `pending` objects have begun and not
    ended, and hold `pending_bytes`.
    """

    received: int
    malformed: int
    dropped: int
    pending: int
    pending_bytes: int


class _Unfinished:
    """`pieces` is None when the object was given up, and its last piece is still to come."""

    __slots__ = ("pid", "pieces", "touched")

    def __init__(self, pieces: Pieces | None, pid: int) -> None:
        self.pieces = pieces
        self.pid = pid
        self.touched = 0.0


class _Change:
    """An entry as it was."""

    __slots__ = ("_entry", "_key", "_pieces", "_state", "_touched")

    def __init__(self, key: Key, entry: _Unfinished | None) -> None:
        self._key = key
        self._entry = entry
        self._pieces = None if entry is None else entry.pieces
        self._touched = 0.0 if entry is None else entry.touched
        self._state = None if self._pieces is None else self._pieces.state()

    def undo(self, unfinished: OrderedDict[Key, _Unfinished]) -> None:
        """Put it there again as it was, or nothing if there was none."""
        entry = self._entry
        if entry is None:
            unfinished.pop(self._key, None)
            return
        entry.pieces, entry.touched = self._pieces, self._touched
        if self._pieces is not None and self._state is not None:
            self._pieces.restore(self._state)
        unfinished[self._key] = entry


class Assembler:
    """`lifetime`: seconds after which an object without new pieces is given up; None: never.

    `decode_json` makes an object of a container of JSON, and raises `Malformed`.
    """

    def __init__(
        self,
        *,
        max_object: int,
        max_pending: int,
        lifetime: float | None = None,
        max_senders: int = MAX_SENDERS,
        decode_json: Callable[[bytes], Any] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._max_object = max_object
        self._max_pending = max_pending
        self._max_senders = max_senders
        self._clock = clock
        self._decode_json = decode_json
        self.lifetime = lifetime
        #: Whose objects are given up after that.
        self.expires: Callable[[Hashable], bool] = lambda _: True
        #: The one that has had no piece for longest comes first.
        self._unfinished: OrderedDict[Key, _Unfinished] = OrderedDict()
        self._bytes = self._received = self._malformed = self._dropped = 0
        self.begin()

    def begin(self) -> None:
        """Whatever is done from here on can be undone."""
        self._before = self._bytes, self._received, self._malformed, self._dropped
        self._changes: list[_Change] = []

    def undo(self) -> None:
        """Leave nothing of what was done since begin(), but for the order of age.  Once."""
        for change in reversed(self._changes):
            change.undo(self._unfinished)
        self._bytes, self._received, self._malformed, self._dropped = self._before
        self._changes = []

    def _note(self, key: Key) -> _Unfinished | None:
        """Note an entry that is about to change; the entry."""
        entry = self._unfinished.get(key)
        self._changes += (_Change(key, entry),)
        return entry

    def stats(self) -> PubSubStats:
        """Counters since the beginning, and the present state."""
        self.expire()
        return self.counted()

    def counted(self) -> PubSubStats:
        """The same, and changes nothing."""
        pending = sum(entry.pieces is not None for entry in self._unfinished.values())
        return PubSubStats(self._received, self._malformed, self._dropped, pending, self._bytes)

    def take(self, segment: Segment) -> Arrived | None:
        """The object that this segment makes complete."""
        data = segment.data
        try:
            flag = data[:1]
            if flag in (PIECE, LAST):
                whole = self._take_piece(segment, last=flag == LAST)
            elif flag == PART:
                whole = self._take_part(segment, Part(data))
            elif self._is_too_large(len(data)):
                whole = None
                self._give_up(segment, f"has more than max_object ({self._max_object}) bytes")
            else:
                whole = data
            if whole is None:
                return None
            obj = self._object(whole) if data else None
        except Malformed as error:
            self._skip(segment, error)
            return None
        self._received += 1
        return Arrived(obj)

    def room(self) -> int:
        """Bytes up to which take_run() does what take() of one part after the other would do."""
        return self._max_pending + 1 - self._bytes

    def take_run(self, segment: Segment, run: Run) -> Arrived | None:
        """The object that these parts make complete; `segment` is the last of them."""
        try:
            if run.place == 0 and run.ends and not self._is_too_large(run.size):
                key = Key(segment.channel, segment.sender, run.number)
                if key not in self._unfinished:
                    obj = self._of_views(run.views)
                    self._received += 1
                    return Arrived(obj)
            whole = self._take_part(segment, run)
            if whole is None:
                return None
            obj = self._object(whole)
        except Malformed as error:
            self._skip(segment, error)
            return None
        self._received += 1
        return Arrived(obj)

    def _of_views(self, views: list[memoryview]) -> Any:
        """Bytes, which may be large, are copied once."""
        if views[0][0] == BYTES[0]:
            return b"".join((views[0][1:], *views[1:]))
        return self._object(b"".join(views))

    def _object(self, whole: bytes) -> Any:
        if whole[:1] == ARRAY:
            return decode(whole)
        if self._decode_json is not None and whole[:1] == JSON:
            return self._decode_json(whole)
        return contents(whole)

    def _skip(self, segment: Segment, error: Malformed) -> None:
        self._malformed += 1
        data = segment.data
        start = data[:_SHOWN]
        logger.warning(
            "PubSub: a malformed segment on channel %r from process %d was skipped: %s: %r%s",
            *(segment.channel, segment.pid, error, start),
            "..." if len(data) > len(start) else "",
        )

    def _is_too_large(self, size: int) -> bool:
        return size - 1 > self._max_object

    def _take_piece(self, segment: Segment, *, last: bool) -> bytes | None:
        """The whole container, when this was the last piece of it."""
        key = Key(segment.channel, segment.sender)
        entry = self._note(key)
        self._unfinished.pop(key, None)
        begun = entry is not None
        if entry is None:
            entry = _Unfinished(Pieces(), segment.pid)
        pieces = entry.pieces
        if pieces is not None:
            self._bytes -= len(pieces)
            try:
                pieces.add(segment.data[1:])
            except Malformed:
                if begun and not last:
                    self._keep(key, _Unfinished(None, segment.pid))
                raise
            if self._is_too_large(len(pieces)):
                self._give_up(segment, f"has more than max_object ({self._max_object}) bytes")
                pieces = entry.pieces = None
        if last:
            return None if pieces is None else pieces.whole()
        self._keep(key, entry)
        return None

    def _take_part(self, segment: Segment, part: Part | Run) -> bytes | None:
        """The whole container, when this was the last part of it, or has it."""
        key = Key(segment.channel, segment.sender, part.number)
        entry = self._note(key)
        self._unfinished.pop(key, None)
        if entry is not None and entry.pieces is not None:
            self._bytes -= len(entry.pieces)
        if part.size == 0:
            if entry is not None and entry.pieces is not None:
                self._give_up(segment, "could not be sent to its end")
            return None
        if entry is None and part.place != 0:
            return None
        if self._is_too_large(part.size):
            self._give_up(segment, f"has more than max_object ({self._max_object}) bytes")
            return None
        entry = entry or _Unfinished(Parts(), segment.pid)
        parts = entry.pieces
        if not isinstance(parts, Parts):
            return None  # the others needed the room
        parts.add_part(part)
        if part.ends:
            return parts.whole()
        self._keep(key, entry)
        return None

    def _keep(self, key: Key, entry: _Unfinished) -> None:
        """As the newest; the oldest go, when it is too much."""
        entry.touched = self._clock()
        self._unfinished[key] = entry
        if entry.pieces is not None:
            self._bytes += len(entry.pieces)
        if self._is_too_much():
            for oldest_key, oldest in list(self._unfinished.items()):
                channel = oldest_key.channel
                if oldest.pieces is not None:
                    self._note(oldest_key)
                    self._bytes -= len(oldest.pieces)
                    oldest.pieces = None
                    self._drop(f"on channel {channel!r}: max_pending is {self._max_pending} bytes")
                    if not self._is_too_much():
                        break
        while len(self._unfinished) > self._max_senders:
            self._forget(next(iter(self._unfinished)), f"more than {self._max_senders} senders")

    def _is_too_much(self) -> bool:
        # The flag of each does not count, as with max_object.
        return self._bytes - 1 > self._max_pending

    def _give_up(self, segment: Segment, why: str) -> None:
        self._drop(f"on channel {segment.channel!r} from process {segment.pid}: it {why}")

    def _drop(self, why: str) -> None:
        self._dropped += 1
        logger.warning("PubSub: an object was given up, %s", why)

    def _forget(self, key: Key, why: str) -> None:
        entry = self._note(key)
        assert entry is not None
        del self._unfinished[key]
        if entry.pieces is not None:
            self._bytes -= len(entry.pieces)
            self._drop(f"on channel {key.channel!r} from process {entry.pid}: {why}")

    # ---- senders that are gone ---------------------------------------------------------------

    def expire(self) -> None:
        """Give up what has had no piece for `lifetime`."""
        if self.lifetime is None:
            return
        since = self._clock() - self.lifetime
        for key, entry in list(self._unfinished.items()):
            if entry.touched > since:
                break
            if self._is_mortal(key):
                self._forget(key, f"no piece came for {self.lifetime:g} s")

    def due(self) -> float | None:
        """Seconds until expire() has something to do; None: it has nothing."""
        if self.lifetime is None:
            return None
        oldest = next((e for key, e in self._unfinished.items() if self._is_mortal(key)), None)
        if oldest is None:
            return None
        return max(0.0, oldest.touched + self.lifetime - self._clock())

    def _is_mortal(self, key: Key) -> bool:
        return key.number is not None or self.expires(key.sender)

    def senders(self) -> set[Hashable]:
        """The senders of objects that have not ended."""
        return {key.sender for key in self._unfinished}

    def senders_of_parts(self) -> dict[Hashable, int]:
        """The pids of those that are to send the rest of an object in parts."""
        items = self._unfinished.items()
        return {key.sender: entry.pid for key, entry in items if key.number is not None}

    def forget_senders(self, gone: Container[Hashable]) -> None:
        """They send nothing more."""
        for key in [key for key in self._unfinished if key.sender in gone]:
            self._forget(key, "its sender is gone")

    def forget_channel(self, channel: str) -> None:
        """Forget a channel that is not subscribed to any more."""
        for key in [key for key in self._unfinished if key.channel == channel]:
            self._forget(key, "unsubscribed")

    def forget_all(self, why: str) -> None:
        """Something may be missing of each."""
        for key in list(self._unfinished):
            self._forget(key, why)
