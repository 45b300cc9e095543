"""Two looks at a segment, and how fast its counters went between them."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple

from pynotify._engine import open as open_segment
from pynotify.errors import Error

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pynotify._types import EngineStat, ListenedChannel
    from pynotify.topics import TopicStats

COUNTERS = (
    "commits",
    "notifications",
    "collapsed",
    "signals_sent",
    "signals_elided",
    "wakeups_useful",
    "wakeups_useless",
    "slot_writes",
)


class Sample(NamedTuple):
    """`at` is CLOCK_MONOTONIC in seconds; without `stat` there is an `error`."""

    at: float
    stat: EngineStat | None
    error: Error | None
    topics: Sequence[TopicStats] = ()
    channels: Sequence[ListenedChannel] = ()
    patterns: Sequence[ListenedChannel] = ()


def take(name: str, database: str | None = None) -> Sample:
    """Look.  Opened each time, as the segment of that name may be another one by now."""
    try:
        with open_segment(name, create=False) as engine:
            stat = engine.stat()
            topics = engine.topics(database)
            channels = engine.channels(database)
            patterns = engine.patterns(database)
    except Error as error:
        return Sample(time.monotonic(), None, error)
    return Sample(time.monotonic(), stat, None, topics, channels, patterns)


def channel_rates(before: Sample, now: Sample) -> dict[tuple[str, str], float]:
    """Notifications a second by database and channel; of those that were there before."""
    return _listened_rates(before.channels, now.channels, now.at - before.at)


def pattern_rates(before: Sample, now: Sample) -> dict[tuple[str, str], float]:
    """The same of patterns."""
    return _listened_rates(before.patterns, now.patterns, now.at - before.at)


def _listened_rates(
    before: Iterable[ListenedChannel], now: Iterable[ListenedChannel], seconds: float
) -> dict[tuple[str, str], float]:
    earlier = {(each.database, each.name): each for each in before}
    rates = {}
    for each in now:
        was = earlier.get((each.database, each.name))
        if was is not None and seconds > 0:
            counted = was.notifications if was.counted_from == each.counted_from else 0
            rates[each.database, each.name] = max(0, each.notifications - counted) / seconds
    return rates


def topic_rates(before: Sample, now: Sample) -> dict[tuple[str, str], float]:
    """Published messages a second by database and topic; of those that were there before."""
    seconds = now.at - before.at
    earlier = {(each.database, each.name): each.message_count for each in before.topics}
    return {
        (each.database, each.name): max(0, each.message_count - was) / seconds
        for each in now.topics
        if (was := earlier.get((each.database, each.name))) is not None and seconds > 0
    }


def rates(before: Sample, now: Sample) -> dict[str, float]:
    """Per second; since its creation when the segment is a new one, whose counters went back."""
    seconds = now.at - before.at
    if before.stat is None or now.stat is None or seconds <= 0:
        return dict.fromkeys(COUNTERS, 0.0)
    started_again = now.stat.commits < before.stat.commits
    return {
        name: (getattr(now.stat, name) - (0 if started_again else getattr(before.stat, name)))
        / seconds
        for name in COUNTERS
    }
