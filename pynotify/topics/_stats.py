"""What statistics and peeking hand out, and how it is read from the core's structs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from pynotify._ffi import ffi, lib
from pynotify.topics._options import FSYNC_NAMES, OVERFLOW_NAMES

if TYPE_CHECKING:
    from collections.abc import Callable

QUANTILES: Final = (0.5, 0.9, 0.99, 0.999)
_STATES = {
    lib.PN_MESSAGE_READY: "ready",
    lib.PN_MESSAGE_DEFERRED: "deferred",
    lib.PN_MESSAGE_IN_FLIGHT: "in_flight",
}


@dataclass(frozen=True, slots=True)
class ConsumerStats:
    """One consumer, as others see it; the counters are since it was made.

    `level`: how many messages it takes at a time now, less than `max_in_flight` while it backs
    off.  `sample_rate` in percent, None: all.
    """

    pid: int
    backend_id: int
    in_flight: int
    max_in_flight: int
    level: int
    sample_rate: int | None
    delivered: int
    finished: int
    requeued: int
    timed_out: int


@dataclass(frozen=True, slots=True)
class ChannelStats:
    """One channel.  `depth`, `in_flight` and `deferred` are now, the counters since it was made.

    `depth` counts what is ready, and neither what is in flight nor what is deferred;
    `message_count` what ever came; `dropped` what was never delivered: overflow of an ephemeral
    channel, messages that the topic's `overflow` dropped, those that every sampling consumer passed
    over, and those that were delivered `max_attempts` times without a dead-letter topic.
    `max_attempts`, `dead_letter`, `msg_timeout`: what its consumers get that do not say it
    themselves, None: the channel says nothing.
    `oldest_ready`: how many seconds ago the first message in line was published (a requeued one
    stands at the end again; deferred ones count from their publishing, too), None when none is
    ready.  `e2e` has seconds from publishing to finishing, over the last five to ten minutes, for
    0.5, 0.9, 0.99 and 0.999; empty before the first finish.
    """

    name: str
    depth: int
    in_flight: int
    deferred: int
    message_count: int
    requeued: int
    timed_out: int
    finished: int
    dead_lettered: int
    dropped: int
    expired: int
    paused: bool
    ephemeral: bool
    max_consumers: int
    max_attempts: int | None = None
    dead_letter: str | None = None
    msg_timeout: float | None = None
    #: Not compared: it is another one at each look.
    oldest_ready: float | None = field(default=None, compare=False)
    consumers: list[ConsumerStats] = field(default_factory=list)
    e2e: dict[float, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TopicStats:
    """One topic of a database.  The counters are since it was made.

    `depth`: messages in the topic's own queue, which no channel has yet, `deferred` of them
    deferred; `unfinished`: messages that some channel still has, each counted once;
    `message_count` and `message_bytes`: ever published; `dropped`: by its `overflow`, each counted
    once, and once in each of its channels; `corrupt`: records on disk that could
    not be read, of a durable topic also those of the log, which it shares; `error`: the last
    write error, or None; `on_disk`: messages; `default_ttl`: seconds to live of messages that are
    published without `ttl`; `memory`: bytes of the segment's `topic_memory` that it has, of
    `max_memory` that it may have; `disk_bytes`: what is on disk, of `max_disk_bytes`.
    """

    name: str
    database: str
    depth: int
    deferred: int
    unfinished: int
    message_count: int
    message_bytes: int
    paused: bool
    ephemeral: bool
    durable: bool
    fsync: str
    overflow: str
    max_depth: int | None
    default_ttl: float | None
    memory: int
    max_memory: int | None
    disk_bytes: int
    max_disk_bytes: int | None
    dropped: int
    expired: int
    on_disk: int
    corrupt: int
    error: str | None
    channels: list[ChannelStats] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class PeekedMessage:
    """A message as it lies in a channel.

    `state` is "ready", "deferred" or "in_flight"; `due_in`: seconds until a deferred one is
    ready, or one in flight times out, else 0; `published_ns` by CLOCK_REALTIME.
    """

    id: str
    state: str
    attempts: int
    due_in: float
    published_ns: int
    body: bytes


def all_rows(struct: str, fill: Callable[[Any, int], int]) -> list[Any]:
    """All rows of a function of the core that stores as many as there is room for."""
    room = 16
    while True:
        rows = ffi.new(f"{struct}[]", room)
        count = fill(rows, room)
        if count <= room:
            # With the array, which a row by itself would not keep.
            return [(rows, rows[i]) for i in range(count)]
        room = 2 * count


def text_of(field: Any) -> str:
    """A text of the core as a str."""
    return ffi.string(field).decode("utf-8", "replace")


def name_of(row: Any) -> str:
    """The name in a row of the core."""
    return text_of(row.name)


def consumer_stats(row: Any) -> ConsumerStats:
    """A pn_consumer_stats as a `ConsumerStats`."""
    return ConsumerStats(
        pid=row.pid,
        backend_id=row.backend_id,
        in_flight=row.in_flight,
        max_in_flight=row.max_in_flight,
        level=row.level,
        sample_rate=row.sample_rate or None,
        delivered=row.delivered,
        finished=row.finished,
        requeued=row.requeued,
        timed_out=row.timed_out,
    )


def channel_stats(
    row: Any, consumers: list[ConsumerStats], e2e: dict[float, float]
) -> ChannelStats:
    """A pn_topic_channel_stats as a `ChannelStats`."""
    return ChannelStats(
        name=name_of(row),
        depth=row.depth,
        in_flight=row.in_flight,
        deferred=row.deferred,
        message_count=row.message_count,
        requeued=row.requeued,
        timed_out=row.timed_out,
        finished=row.finished,
        dead_lettered=row.dead_lettered,
        dropped=row.dropped,
        expired=row.expired,
        paused=bool(row.paused),
        ephemeral=bool(row.ephemeral),
        max_consumers=row.max_consumers,
        max_attempts=None if row.max_attempts < 0 else row.max_attempts,
        dead_letter=text_of(row.dead_letter) or None,
        msg_timeout=row.msg_timeout_ns / 1e9 if row.msg_timeout_ns else None,
        oldest_ready=None if row.oldest_ready_ns < 0 else row.oldest_ready_ns / 1e9,
        consumers=consumers,
        e2e=e2e,
    )


def topic_stats(row: Any, channels: list[ChannelStats]) -> TopicStats:
    """A pn_topic_stats as a `TopicStats`."""
    return TopicStats(
        name=name_of(row),
        database=text_of(row.database),
        depth=row.depth,
        deferred=row.deferred,
        unfinished=row.unfinished + row.on_disk,
        message_count=row.message_count,
        message_bytes=row.message_bytes,
        paused=bool(row.paused),
        ephemeral=bool(row.ephemeral),
        durable=bool(row.durable),
        fsync=FSYNC_NAMES.get(row.fsync, "interval"),
        overflow=OVERFLOW_NAMES.get(row.overflow, "disk"),
        max_depth=row.max_depth or None,
        default_ttl=row.default_ttl_ns / 1e9 if row.default_ttl_ns else None,
        memory=row.memory,
        max_memory=row.max_memory or None,
        disk_bytes=row.disk_bytes,
        max_disk_bytes=row.max_disk_bytes or None,
        dropped=row.dropped,
        expired=row.expired,
        on_disk=row.on_disk,
        corrupt=row.corrupt,
        error=text_of(row.error) or None,
        channels=channels,
    )


def peeked(row: Any, body: bytes) -> PeekedMessage:
    """A pn_peeked as a `PeekedMessage`."""
    return PeekedMessage(
        id=f"{row.id:016x}",
        state=_STATES[row.state],
        attempts=row.attempts,
        due_in=row.due_in_ns / 1e9,
        published_ns=row.published_ns,
        body=body,
    )
