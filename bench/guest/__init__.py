"""What it costs a program to have pynotify in it."""

from __future__ import annotations

from bench.guest import bursts, busy, wakeup
from bench.guest.wakeup import TOPIC
from bench.settings import Settings

__all__ = ["TOPIC", "run"]


def run(settings: Settings) -> None:
    wakeup.run(settings)
    busy.run(settings, TOPIC)
    bursts.run(settings, TOPIC)
