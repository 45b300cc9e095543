"""The figures of `live`, for Prometheus."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from typing import Any

from spark_jobs.errors import CannotRunError
from spark_jobs.figures.histogram import QUANTILES, SCALE
from spark_jobs.figures.merge import KEYS

Rows = Sequence[dict[str, Any]]

_LABELS = tuple(name for name in KEYS if name != "boot_id")


class _Figures:
    """A collector; the rows are replaced as one, so that a scrape sees those of one refresh."""

    def __init__(self, core: Any) -> None:
        self._core = core
        self.rows: Rows = ()

    def describe(self) -> list[Any]:
        """Nothing, so that registering does not collect."""
        return []

    def collect(self) -> Iterator[Any]:
        """Quantiles in seconds, and how many messages they are of."""
        rows = self.rows
        seconds = self._core.GaugeMetricFamily(
            "pynotify_latency_seconds",
            "Commit to hand-over, of what came of late.",
            labels=(*_LABELS, "quantile"),
        )
        count = self._core.GaugeMetricFamily(
            "pynotify_latency_messages", "How many messages that is of.", labels=_LABELS
        )
        for row in rows:
            labels = [str(row[name]) for name in _LABELS]
            count.add_metric(labels, row["n"])
            for name, share in QUANTILES.items():
                seconds.add_metric([*labels, str(share / SCALE)], row[name] / 1e9)
        yield from (seconds, count)


def exporting(port: int | None) -> Callable[[Rows], None]:
    """What is to be called with the rows of each refresh; with a `port` they are served there."""
    if port is None:
        return lambda rows: None
    try:
        client = import_module("prometheus_client")
    except ImportError:
        raise CannotRunError(
            "--prometheus needs the package prometheus-client: "
            'pip install "pynotify-ipc[prometheus]"'
        ) from None
    figures = _Figures(import_module("prometheus_client.core"))
    registry = client.CollectorRegistry(auto_describe=False)
    registry.register(figures)
    server, _thread = client.start_http_server(port, addr="127.0.0.1", registry=registry)
    print(f"metrics are at 127.0.0.1:{server.server_address[1]}/metrics", file=sys.stderr)

    def serve(rows: Rows) -> None:
        figures.rows = rows

    return serve
