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

from importlib.metadata import version
from typing import TYPE_CHECKING, NamedTuple

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily
from prometheus_client.registry import Collector

from pynotify._engine import Engine
from pynotify._engine import open as open_segment
from pynotify._log import logger
from pynotify._procfs import command_name
from pynotify._segments import check_name, segments
from pynotify.contrib import _figures
from pynotify.errors import InterfaceError, LockTimeout

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from prometheus_client.metrics_core import Metric

    from pynotify._types import EngineStat, ListenedChannel
    from pynotify.gateway import Gateway
    from pynotify.topics import ChannelStats, TopicStats

_SEGMENT = ("segment",)
#: Seconds for the writer lock, far less than any scrape_timeout: it is free in microseconds.
_PATIENCE = 1.0
_BACKEND = ("segment", "pid", "backend", "database", "comm")

_TOPIC = ("segment", "database", "topic")
_CHANNEL = (*_TOPIC, "channel")


class PynotifyCollector(Collector):
    """Collects segments, given by name or as an `Engine`; without any, all of this user.

    A name is looked up for each scrape: a segment that was replaced counts as the new one.  One
    that cannot be read, because it vanished or otherwise, is `pynotify_up{segment} 0` and has no
    other figures, but `pynotify_lock_stuck{segment, pid, comm} 1` if a process has held its writer
    lock for a second.  `collect` never raises for the sake of a segment.  A bad name is a
    `ProgrammingError` at once.  A segment in which more than `max_channels` are listened to has
    no figures of channels, for each is a time series: `pynotify_channels_left_out` counts them.
    The same holds of patterns.
    """

    def __init__(self, *of: str | Engine, max_channels: int = 200) -> None:
        self._max_channels = max_channels
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
        yield from _of_listened(looks, self._max_channels)
        yield from _of_patterns(looks, self._max_channels)
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


class GatewayCollector(Collector):
    """Collects what a `pynotify.gateway.Gateway` of this process has done.

    Nothing is there when the gateway is closed.
    """

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    def describe(self) -> Iterable[Metric]:
        """Nothing, so that registering does not collect."""
        return []

    def collect(self) -> Iterable[Metric]:
        """One metric family after the other."""
        try:
            stat = self._gateway.stat()
        except InterfaceError:  # it is closed
            return
        for kind, families in (
            (CounterMetricFamily, _figures.GATEWAY_COUNTERS),
            (GaugeMetricFamily, _figures.GATEWAY_GAUGES),
        ):
            for name, attribute, text in families:
                family = kind(name, text, labels=_SEGMENT)
                family.add_metric((self._gateway.name,), getattr(stat, attribute))
                yield family


class _Look(NamedTuple):
    """Without `stat` the segment could not be read; `stuck` held its lock then, or is 0."""

    stat: EngineStat | None = None
    topics: Sequence[TopicStats] = ()
    channels: Sequence[ListenedChannel] = ()
    patterns: Sequence[ListenedChannel] = ()
    stuck: int = 0


def _look(name: str, engine: Engine | None) -> _Look:
    try:
        if engine is None:
            with open_segment(name, create=False) as opened:
                return _look(name, opened)
        try:
            return _Look(
                engine.stat(timeout=_PATIENCE),
                engine.topics(timeout=_PATIENCE),
                engine.channels(timeout=_PATIENCE),
                engine.patterns(timeout=_PATIENCE),
            )
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
    for name, attribute, text in _figures.COUNTERS:
        counter = CounterMetricFamily(name, text, labels=_SEGMENT)
        for segment, stat in stats:
            counter.add_metric((segment,), getattr(stat, attribute))
        yield counter
    for name, attribute, text in _figures.GAUGES:
        gauge = GaugeMetricFamily(name, text, labels=_SEGMENT)
        for segment, stat in stats:
            gauge.add_metric((segment,), getattr(stat, attribute))
        yield gauge
    backends = GaugeMetricFamily("pynotify_backends", "Connections.", labels=_SEGMENT)
    for segment, stat in stats:
        backends.add_metric((segment,), len(stat.backends))
    yield backends


def _of_listened(looks: Mapping[str, _Look], limit: int) -> Iterable[Metric]:
    labels = ("segment", "database", "channel")
    listeners = GaugeMetricFamily(
        "pynotify_channel_listeners", "Connections that listen, bridges apart.", labels=labels
    )
    heard = CounterMetricFamily(
        "pynotify_channel_notifications",
        "Notifications of the channel while it had a listener.",
        labels=labels,
    )
    left_out = GaugeMetricFamily(
        "pynotify_channels_left_out",
        "Channels without figures, as there are too many in the segment.",
        labels=_SEGMENT,
    )
    for name, look in looks.items():
        shown = look.channels if len(look.channels) <= limit else ()
        left_out.add_metric((name,), len(look.channels) - len(shown))
        for each in shown:
            listeners.add_metric((name, each.database, each.name), each.listeners)
            heard.add_metric((name, each.database, each.name), each.notifications)
    yield from (listeners, heard, left_out)


def _of_patterns(looks: Mapping[str, _Look], limit: int) -> Iterable[Metric]:
    """Nothing when none is listened to."""
    labels = ("segment", "database", "pattern")
    listeners = GaugeMetricFamily(
        "pynotify_pattern_listeners", "Connections that listen to the pattern.", labels=labels
    )
    heard = CounterMetricFamily(
        "pynotify_pattern_notifications",
        "Notifications on channels that matched the pattern.",
        labels=labels,
    )
    for name, look in looks.items():
        for each in look.patterns if len(look.patterns) <= limit else ():
            listeners.add_metric((name, each.database, each.name), each.listeners)
            heard.add_metric((name, each.database, each.name), each.notifications)
    if listeners.samples:
        yield from (listeners, heard)


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
    yield from _families(_TOPIC, rows, _figures.TOPIC_COUNTERS, _figures.TOPIC_GAUGES)


def _of_channels(topics: Sequence[tuple[str, TopicStats]]) -> Iterable[Metric]:
    rows = [
        ((name, topic.database, topic.name, channel.name), channel)
        for name, topic in topics
        for channel in topic.channels
    ]
    yield from _families(_CHANNEL, rows, _figures.CHANNEL_COUNTERS, _figures.CHANNEL_GAUGES)
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
    for name, attribute, text in _figures.BACKEND_GAUGES:
        gauge = GaugeMetricFamily(name, text, labels=_BACKEND)
        for labels, backend in rows:
            gauge.add_metric(labels, getattr(backend, attribute))
        yield gauge
