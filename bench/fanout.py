"""One process to 10 and to 100 on one channel: every message to each of them."""

from __future__ import annotations

from bench.settings import Settings
from bench.throughput import against_pyzmq

TOPIC = "fanout"
UNIT = "deliveries/s"

_PAIRS = 7
# Listeners, messages of a pass, the bar.
_SIZES = ((10, 50_000, 2.0), (100, 10_000, 2.5))


def run(settings: Settings) -> None:
    """The bar is for single notifications alone."""
    for listeners, messages, bar in _SIZES:
        against_pyzmq(
            settings,
            TOPIC,
            UNIT,
            listeners=listeners,
            messages=messages,
            pairs=_PAIRS,
            bars=(bar, None),
        )
