"""What the engine hands out: messages and figures.  Nothing here touches the segment."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from pynotify._hot import Notify
from pynotify._public import public

__all__ = ["BackendStat", "CheckReport", "EngineStat", "Gap", "Notify", "SegmentInfo"]


@dataclass(frozen=True, slots=True)
class Gap:
    """Messages are missing here, and for this `reason`.

    * `missed_bytes`: of payload when a subscription overflowed, else of the queue, for
      whichever channels the messages there were
    * `reason`: "overflow" when a subscription had more than its `maxlen`, "evicted" when the
      queue was full and this the slowest listener (`on_full="drop-slowest"`), "damaged" when
      pages in `data_dir` could not be read back, "upstream connection lost" when the bridge to
      PostgreSQL was away: then it is not known whether anything is missing at all; "array gone"
      in a PubSub when what a publisher had placed in shared memory is not there any more;
      "reconnected" in a PubSub, or an adapter, that has lost its connection, and has another
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
    ARRAY: ClassVar[str] = "array gone"

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
    `application_name`: what the connection is for, as its program says; of a client of the gateway
    its own name, and its process in brackets.
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
    application_name: str = ""


@dataclass(frozen=True, slots=True)
class ListenedChannel:
    """A channel that is listened to.

    `listeners` counts connections, bridges apart; `notifications` what was committed for it while
    it had a listener.  A segment forgets a channel without listeners when its table is full: then
    `notifications` begins at 0 again, and `counted_from` is another number than before.

    The same of a pattern: it is forgotten with its last listener, and its `notifications` are those
    on channels that matched; of a process that was killed while it committed they may be missing.
    """

    database: str
    name: str
    listeners: int
    notifications: int
    counted_from: int


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
    `log_records_dropped`: records that a latency log had no room for; `log_files_recycled`: files
    of latency logs that were removed to make room.  `channels` counts the entries of the channel
    table, `patterns` those among them that are patterns.
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
    log_records_dropped: int = 0
    log_files_recycled: int = 0
    patterns: int = 0


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
    `other_pid_namespace`: in use there, and `backends` counts its processes as one;
    `last_used`: when a connection was last opened or closed, or found dead, in seconds since the
    epoch.
    """

    name: str
    size: int
    created: float
    backends: int
    stale: bool
    other_pid_namespace: bool = False
    last_used: float = 0.0


public(BackendStat, CheckReport, EngineStat, Gap, ListenedChannel, Notify, SegmentInfo)
