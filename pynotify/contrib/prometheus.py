"""The figures of segments as Prometheus metrics.

```
registry = CollectorRegistry(auto_describe=False)
registry.register(PynotifyCollector("app"))
```

All state is in shared memory, so one process sees all workers.  With prometheus_client's
multiprocess mode, which ignores custom collectors, give it a registry and a port of its own, or
run `pynotify exporter`.
"""

from __future__ import annotations

import logging
from importlib.metadata import version
from typing import TYPE_CHECKING, NamedTuple

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily
from prometheus_client.registry import Collector

from pynotify._engine import Engine
from pynotify._engine import open as open_segment
from pynotify._procfs import command_name
from pynotify._segments import check_name, segments
from pynotify.errors import LockTimeout

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from prometheus_client.metrics_core import Metric

    from pynotify._types import EngineStat
    from pynotify.topics import ChannelStats, TopicStats

logger = logging.getLogger("pynotify")

_SEGMENT = ("segment",)
#: Seconds for the writer lock, far less than any scrape_timeout: it is free in microseconds.
_PATIENCE = 1.0
_BACKEND = ("segment", "pid", "backend", "database", "comm")

#: Metric (counters get "_total"), attribute of EngineStat, help.
_COUNTERS = (
    ("pynotify_commits", "commits", "Transactions with an effect."),
    (
        "pynotify_notifications_committed",
        "notifications",
        "Notifications left after collapsing duplicates, heard or not.",
    ),
    (
        "pynotify_notifications_collapsed",
        "collapsed",
        "Notifications left out as duplicates within their transaction.",
    ),
    ("pynotify_wakeups_sent", "signals_sent", "Signals sent to wake a listener."),
    (
        "pynotify_wakeups_suppressed",
        "signals_elided",
        "Signals not sent because the listener was awake or already signalled.",
    ),
    (
        "pynotify_wakeups_unsent",
        "signals_unsent",
        "Signals that could not be sent; their listeners wake up late.",
    ),
    ("pynotify_wakeups_useful", "wakeups_useful", "Wake-ups after which something was found."),
    ("pynotify_wakeups_useless", "wakeups_useless", "Wake-ups after which nothing was found."),
    ("pynotify_slot_writes", "slot_writes", "Writes to other backends' slots."),
    ("pynotify_recoveries", "recoveries", "Repairs after a process died in a commit."),
    ("pynotify_evictions", "evictions", "Times that the slowest listener lost its place."),
    ("pynotify_spilled_pages", "spilled_pages", "Pages of 8 KiB written to files."),
    (
        "pynotify_handler_reinstalls",
        "handler_reinstalls",
        "Signal handlers found replaced and installed again.",
    ),
)
_GAUGES = (
    ("pynotify_queue_usage_ratio", "queue_usage", "Part of the queue in use, 0 to 1."),
    ("pynotify_queue_pages", "queue_pages", "Pages of 8 KiB in the shared ring."),
    ("pynotify_max_queue_pages", "max_queue_pages", "The same with those that may go to files."),
    ("pynotify_channels", "channels", "Channels in the channel table."),
    ("pynotify_subscriptions", "subscriptions", "Pairs of a backend and a channel."),
)
#: The same of BackendStat.
_BACKEND_GAUGES = (
    (
        "pynotify_backend_lag_bytes",
        "lag_bytes",
        "Bytes of the queue from the first entry the backend still has to read to its head.",
    ),
    ("pynotify_backend_asleep", "asleep", "1 when the backend sleeps until it is woken."),
    ("pynotify_backend_channels", "channels", "Channels that the backend listens to."),
    (
        "pynotify_backend_in_transaction",
        "in_transaction",
        "1 when the backend has a transaction open.",
    ),
)
_TOPIC = ("segment", "database", "topic")
_CHANNEL = (*_TOPIC, "channel")
#: The same of TopicStats.
_TOPIC_COUNTERS = (
    ("pynotify_topic_messages", "message_count", "Messages published."),
    ("pynotify_topic_message_bytes", "message_bytes", "Bytes of their bodies."),
    ("pynotify_topic_dropped", "dropped", "Messages that the topic's bounds dropped."),
    ("pynotify_topic_expired", "expired", "Messages that expired in the topic."),
    ("pynotify_topic_corrupt", "corrupt", "Records on disk that could not be read."),
)
_TOPIC_GAUGES = (
    ("pynotify_topic_depth", "depth", "Messages that no channel has yet."),
    ("pynotify_topic_unfinished", "unfinished", "Messages that some channel still has."),
    ("pynotify_topic_paused", "paused", "1 when the topic is paused."),
    ("pynotify_topic_memory_bytes", "memory", "Bytes of topic_memory that it has."),
    ("pynotify_topic_max_memory_bytes", "max_memory", "Bytes of topic_memory that it may have."),
    ("pynotify_topic_disk_bytes", "disk_bytes", "Bytes on disk of what has no room in memory."),
    ("pynotify_topic_max_disk_bytes", "max_disk_bytes", "Bytes on disk that it may have."),
    ("pynotify_topic_default_ttl_seconds", "default_ttl", "Set for messages without a ttl."),
)
#: And of ChannelStats.
_CHANNEL_COUNTERS = (
    ("pynotify_topic_channel_messages", "message_count", "Messages that came."),
    ("pynotify_topic_channel_finished", "finished", "Messages finished."),
    ("pynotify_topic_channel_requeued", "requeued", "Times a consumer requeued one."),
    ("pynotify_topic_channel_timed_out", "timed_out", "Deliveries that timed out."),
    ("pynotify_topic_channel_dead_lettered", "dead_lettered", "Messages given up."),
    ("pynotify_topic_channel_dropped", "dropped", "Messages that were never delivered."),
    ("pynotify_topic_channel_expired", "expired", "Messages that expired."),
)
_CHANNEL_GAUGES = (
    ("pynotify_topic_channel_depth", "depth", "Messages ready."),
    ("pynotify_topic_channel_in_flight", "in_flight", "Messages in flight."),
    ("pynotify_topic_channel_deferred", "deferred", "Messages deferred."),
    ("pynotify_topic_channel_paused", "paused", "1 when the channel is paused."),
    ("pynotify_topic_channel_max_attempts", "max_attempts", "Set for its consumers, 0: no limit."),
    ("pynotify_topic_channel_msg_timeout_seconds", "msg_timeout", "Set for its consumers."),
)


class PynotifyCollector(Collector):
    """Collects segments, given by name or as an `Engine`; without any, all of this user.

    A name is looked up for each scrape: a segment that was replaced counts as the new one.  One
    that cannot be read, because it vanished or otherwise, is `pynotify_up{segment} 0` and has no
    other figures, but `pynotify_lock_stuck{segment, pid, comm} 1` if a process has held its writer
    lock for a second.  `collect` never raises for the sake of a segment.  A bad name is a
    `ProgrammingError` at once.
    """

    def __init__(self, *of: str | Engine) -> None:
        self._segments: dict[str, Engine | None] = {}
        for each in of:
            if isinstance(each, Engine):
                self._segments[each.name] = each
            else:
                check_name(each)
                self._segments[each] = None

    def describe(self) -> Iterable[Metric]:
        """Nothing, so that registering does not collect."""
        return []

    def collect(self) -> Iterable[Metric]:
        """One metric family after the other."""
        looks = self._looks()
        stats = {name: look.stat for name, look in looks.items()}
        yield InfoMetricFamily("pynotify_build", "Version.", {"version": version("pynotify-ipc")})
        up = GaugeMetricFamily("pynotify_up", "1 when the segment could be read.", labels=_SEGMENT)
        for name, stat in stats.items():
            up.add_metric((name,), 0 if stat is None else 1)
        yield up
        yield from _of_stuck(looks)
        present = [(name, stat) for name, stat in stats.items() if stat is not None]
        yield from _of_segments(present)
        yield from _of_backends(present)
        topics = [(name, topic) for name, look in looks.items() for topic in look.topics]
        if topics:
            yield from _of_topics(topics)
            yield from _of_channels(topics)

    def _looks(self) -> dict[str, _Look]:
        wanted = self._segments
        if not wanted:
            try:
                wanted = {info.name: None for info in segments()}
            except Exception:
                logger.exception("could not list the segments")
        return {name: _look(name, engine) for name, engine in wanted.items()}


class _Look(NamedTuple):
    """Without `stat` the segment could not be read; `stuck` held its lock then, or is 0."""

    stat: EngineStat | None = None
    topics: Sequence[TopicStats] = ()
    stuck: int = 0


def _look(name: str, engine: Engine | None) -> _Look:
    try:
        if engine is None:
            with open_segment(name, create=False) as opened:
                return _look(name, opened)
        try:
            return _Look(engine.stat(timeout=_PATIENCE), engine.topics(timeout=_PATIENCE))
        except LockTimeout as error:
            logger.info("no figures of segment %r: %s", name, error)
            return _Look(stuck=engine.lock_holder())
    except Exception as error:  # one segment must not cost the figures of the others
        logger.info("no figures of segment %r: %s", name, error)
        return _Look()


def _of_stuck(looks: Mapping[str, _Look]) -> Iterable[Metric]:
    """Nothing when none is: a pid is a label, and there is none to say 0 of."""
    stuck = GaugeMetricFamily(
        "pynotify_lock_stuck",
        "1 when this process held the writer lock and did not give it back.",
        labels=("segment", "pid", "comm"),
    )
    for name, look in looks.items():
        if look.stuck:
            stuck.add_metric((name, str(look.stuck), command_name(look.stuck) or ""), 1)
    if stuck.samples:
        yield stuck


def _of_segments(stats: Sequence[tuple[str, EngineStat]]) -> Iterable[Metric]:
    for name, attribute, text in _COUNTERS:
        counter = CounterMetricFamily(name, text, labels=_SEGMENT)
        for segment, stat in stats:
            counter.add_metric((segment,), getattr(stat, attribute))
        yield counter
    for name, attribute, text in _GAUGES:
        gauge = GaugeMetricFamily(name, text, labels=_SEGMENT)
        for segment, stat in stats:
            gauge.add_metric((segment,), getattr(stat, attribute))
        yield gauge
    backends = GaugeMetricFamily("pynotify_backends", "Connections.", labels=_SEGMENT)
    for segment, stat in stats:
        backends.add_metric((segment,), len(stat.backends))
    yield backends


def _families(
    labels: Sequence[str],
    rows: Sequence[tuple[tuple[str, ...], TopicStats | ChannelStats]],
    counters: Sequence[tuple[str, str, str]],
    gauges: Sequence[tuple[str, str, str]],
) -> Iterable[Metric]:
    for kind, families in ((CounterMetricFamily, counters), (GaugeMetricFamily, gauges)):
        for name, attribute, text in families:
            family = kind(name, text, labels=labels)
            for values, stats in rows:
                value = getattr(stats, attribute)
                if value is not None:
                    family.add_metric(values, value)
            yield family


def _of_topics(topics: Sequence[tuple[str, TopicStats]]) -> Iterable[Metric]:
    rows = [((name, topic.database, topic.name), topic) for name, topic in topics]
    yield from _families(_TOPIC, rows, _TOPIC_COUNTERS, _TOPIC_GAUGES)


def _of_channels(topics: Sequence[tuple[str, TopicStats]]) -> Iterable[Metric]:
    rows = [
        ((name, topic.database, topic.name, channel.name), channel)
        for name, topic in topics
        for channel in topic.channels
    ]
    yield from _families(_CHANNEL, rows, _CHANNEL_COUNTERS, _CHANNEL_GAUGES)
    consumers = GaugeMetricFamily(
        "pynotify_topic_channel_consumers", "Consumers attached.", labels=_CHANNEL
    )
    latency = GaugeMetricFamily(
        "pynotify_topic_channel_e2e_seconds",
        "From publishing to finishing, over the last five to ten minutes.",
        labels=(*_CHANNEL, "quantile"),
    )
    age = GaugeMetricFamily(
        "pynotify_topic_channel_oldest_seconds",
        "How long ago the first ready message was published.",
        labels=_CHANNEL,
    )
    dead = GaugeMetricFamily(
        "pynotify_topic_channel_dead_letter",
        "1: the channel gives its dead letters to that topic.",
        labels=(*_CHANNEL, "dead_letter"),
    )
    for labels, channel in rows:
        if channel.dead_letter is not None:
            dead.add_metric((*labels, channel.dead_letter), 1)
        consumers.add_metric(labels, len(channel.consumers))
        if channel.oldest_ready is not None:
            age.add_metric(labels, channel.oldest_ready)
        for quantile, seconds in channel.e2e.items():
            latency.add_metric((*labels, str(quantile)), seconds)
    yield from (consumers, latency, age, dead)


def _of_backends(stats: Sequence[tuple[str, EngineStat]]) -> Iterable[Metric]:
    rows = [
        (
            (
                segment,
                str(backend.pid),
                str(backend.backend_id),
                backend.database,
                command_name(backend.pid) or "",
            ),
            backend,
        )
        for segment, stat in stats
        for backend in stat.backends
    ]
    for name, attribute, text in _BACKEND_GAUGES:
        gauge = GaugeMetricFamily(name, text, labels=_BACKEND)
        for labels, backend in rows:
            gauge.add_metric(labels, getattr(backend, attribute))
        yield gauge
