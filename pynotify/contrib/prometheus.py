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
from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily
from prometheus_client.registry import Collector

from pynotify._engine import Engine, check_name, segments
from pynotify._engine import open as open_segment
from pynotify._procfs import command_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from prometheus_client.metrics_core import Metric

    from pynotify._types import EngineStat

logger = logging.getLogger("pynotify")

_SEGMENT = ("segment",)
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


class PynotifyCollector(Collector):
    """Collects segments, given by name or as an `Engine`; without any, all of this user.

    A name is looked up for each scrape: a segment that was replaced counts as the new one.  One
    that cannot be read, because it vanished or otherwise, is `pynotify_up{segment} 0` and has no
    other figures.  `collect` never raises for the sake of a segment.  A bad name is a
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
        stats = self._stats()
        yield InfoMetricFamily("pynotify_build", "Version.", {"version": version("pynotify-ipc")})
        up = GaugeMetricFamily("pynotify_up", "1 when the segment could be read.", labels=_SEGMENT)
        for name, stat in stats.items():
            up.add_metric((name,), 0 if stat is None else 1)
        yield up
        present = [(name, stat) for name, stat in stats.items() if stat is not None]
        yield from _of_segments(present)
        yield from _of_backends(present)

    def _stats(self) -> dict[str, EngineStat | None]:
        wanted = self._segments
        if not wanted:
            try:
                wanted = {info.name: None for info in segments()}
            except Exception:
                logger.exception("could not list the segments")
        return {name: _stat(name, engine) for name, engine in wanted.items()}


def _stat(name: str, engine: Engine | None) -> EngineStat | None:
    try:
        if engine is not None:
            return engine.stat()
        with open_segment(name, create=False) as opened:
            return opened.stat()
    except Exception as error:  # one segment must not cost the figures of the others
        logger.info("no figures of segment %r: %s", name, error)
        return None


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
