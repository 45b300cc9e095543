"""What the engine hands out: messages and figures.  Nothing here touches the segment."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import total_ordering
from typing import TYPE_CHECKING, Any, ClassVar

from pynotify.errors import PayloadDecodeError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import TypeAlias

    #: Columns of pid, seq, sent_ns and sender.
    Origin: TypeAlias = Sequence[Sequence[int]]


@total_ordering
class Notify:
    """One notification, as psycopg's `Notify`: unpacks and compares as (channel, payload, pid).

    * `channel`: str
    * `payload`: str; `data`: the same as bytes
    * `pid`, `backend_id`: the sender's process and backend slot
    * `seq`: commit sequence number, one per commit, common to all databases
    * `sent_ns`: CLOCK_MONOTONIC at the sender's commit, nanoseconds

    Treat it as a value: it hashes by its contents.
    """

    __slots__ = ("_index", "_origin", "channel", "data")
    __match_args__ = ("channel", "payload", "pid")

    # Called by map() for every message: it may do no more than assign.
    def __init__(self, channel: str, data: bytes, origin: Origin, index: int) -> None:
        self.channel = channel
        self.data = data
        # The columns of all messages that were read together, and which of them this is.
        self._origin = origin
        self._index = index

    @property
    def pid(self) -> int:
        """The sender's process."""
        return self._origin[0][self._index]

    @property
    def seq(self) -> int:
        """Commit sequence number."""
        return self._origin[1][self._index]

    @property
    def sent_ns(self) -> int:
        """CLOCK_MONOTONIC at the sender's commit, nanoseconds."""
        return self._origin[2][self._index]

    @property
    def backend_id(self) -> int:
        """The sender's backend slot."""
        return self._origin[3][self._index] & 0xFFFFFFFF

    @property
    def sender(self) -> int:
        """The sender's connection: its slot and which claim of it; never used again."""
        return self._origin[3][self._index]

    @property
    def order(self) -> tuple[int, int]:
        """Sorts the messages that one connection has read in the order of their commits."""
        return self._origin[1][self._index], self._index

    @property
    def payload(self) -> str:
        """The payload as text.

        Raises `PayloadDecodeError`, which is also a ValueError, when it is not UTF-8.
        """
        try:
            return self.data.decode()
        except UnicodeDecodeError as error:
            raise PayloadDecodeError(f"payload is not valid UTF-8: {error.reason}") from error

    def _key(self) -> tuple[str, str | bytes, int]:
        try:
            return (self.channel, self.data.decode(), self.pid)
        except UnicodeDecodeError:
            return (self.channel, self.data, self.pid)

    def __iter__(self) -> Iterator[Any]:
        return iter((self.channel, self.payload, self.pid))

    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> Any:
        return (self.channel, self.payload, self.pid)[index]

    def _bytes(self) -> tuple[str, bytes, int]:
        """Compares as `_key`: UTF-8 sorts as its characters do."""
        return (self.channel, self.data, self.pid)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Notify):
            return self._bytes() == other._bytes()
        if isinstance(other, tuple):
            key = self._key()
            if len(other) == 3 and isinstance(key[1], bytes) and isinstance(other[1], str):
                return False  # to compare the two is a warning with `python -b`
            return key == other
        return NotImplemented

    def __lt__(self, other: object) -> bool:
        if isinstance(other, Notify):
            return self._bytes() < other._bytes()
        if isinstance(other, tuple):
            return self._key() < other
        return NotImplemented

    def __hash__(self) -> int:
        return hash(self._key())

    def __reduce__(self) -> tuple[Any, ...]:
        origin = ((self.pid,), (self.seq,), (self.sent_ns,), (self.sender,))
        return (Notify, (self.channel, self.data, origin, 0))

    def __repr__(self) -> str:
        channel, payload, pid = self._key()
        return f"Notify(channel={channel!r}, payload={payload!r}, pid={pid})"


@dataclass(frozen=True, slots=True)
class Gap:
    """Messages are missing here, and for this `reason`.

    * `missed_bytes`: of payload when a subscription overflowed, else of the queue, for
      whichever channels the messages there were
    * `reason`: "overflow" when a subscription had more than its `maxlen`, "evicted" when the
      queue was full and this the slowest listener (`on_full="drop-slowest"`), "damaged" when
      pages in `data_dir` could not be read back, "upstream connection lost" when the bridge to
      PostgreSQL was away: then it is not known whether anything is missing at all
    * `missed`: how many messages, None when that is not known
    """

    missed_bytes: int
    reason: str
    missed: int | None = None
    #: The channel in which it stands, when it stands in one.
    of_channel: str | None = field(default=None, repr=False, compare=False)

    OVERFLOW: ClassVar[str] = "overflow"
    EVICTED: ClassVar[str] = "evicted"
    DAMAGED: ClassVar[str] = "damaged"
    UPSTREAM: ClassVar[str] = "upstream connection lost"

    def grown(self, lost: int) -> Gap:
        """One more message, of `lost` bytes."""
        return Gap(self.missed_bytes + lost, self.reason, (self.missed or 0) + 1)

    def joined(self, other: Gap) -> Gap:
        """This one and the next, between which nothing was delivered."""
        return Gap(self.missed_bytes + other.missed_bytes, self.reason)

    @property
    def channel(self) -> None:
        """None: a gap belongs to no channel, and so is told from a `Notify`."""
        return None


@dataclass(frozen=True, slots=True)
class BackendStat:
    """One connection, as others see it.

    `channels` is a count; `lag_bytes` counts from the first entry it still has to read to the
    head of the queue, 0 when it is quiet.  `wakeup` is the number of its signal, or "poll";
    `bridge` is "one way" or "both ways" of a bridge to PostgreSQL, else None.
    """

    backend_id: int
    pid: int
    database: str
    channels: int
    lag_bytes: int
    asleep: bool
    in_transaction: bool
    wakeup: int | str
    bridge: str | None = None


@dataclass(frozen=True, slots=True)
class EngineStat:
    """Counters since the segment was created, and its present state.

    `commits` counts transactions with an effect, `notifications` those left after collapsing
    duplicates, heard or not, `slot_writes` writes to other backends' slots, `wakeups_useless`
    wake-ups after which nothing was found.  `head`, `tail` and `mem_tail` are queue positions in
    bytes; what lies between `tail` and `mem_tail` is in files.  `evictions` counts how often the
    slowest listener lost its place, `spilled_pages` what was ever written to files;
    `tail_holder_pid` is None when no backend pins the tail; `generations` counts the shared
    counters that exist.  `signals_unsent` counts signals that could not be sent (no descriptor was
    left, or the kernel refused): those listeners received late, by their slow timer.
    """

    commits: int
    notifications: int
    collapsed: int
    signals_sent: int
    signals_elided: int
    signals_unsent: int
    wakeups_useful: int
    wakeups_useless: int
    slot_writes: int
    handler_reinstalls: int
    recoveries: int
    evictions: int
    spilled_pages: int
    queue_usage: float
    queue_pages: int
    max_queue_pages: int
    head: int
    tail: int
    mem_tail: int
    tail_holder_pid: int | None
    channels: int
    subscriptions: int
    generations: int
    backends: list[BackendStat]


@dataclass(frozen=True, slots=True)
class CheckReport:
    """Which invariants of the segment do not hold, a sentence each."""

    problems: list[str]

    @property
    def ok(self) -> bool:
        """True when there are no problems."""
        return not self.problems


@dataclass(frozen=True, slots=True)
class SegmentInfo:
    """One segment of this user.

    `size` in bytes; `created` in seconds since the epoch; `backends`: live backends;
    `stale`: of an earlier boot or another layout, so that it can only be replaced;
    `other_pid_namespace`: in use there, and `backends` counts its processes as one.
    """

    name: str
    size: int
    created: float
    backends: int
    stale: bool
    other_pid_namespace: bool = False
