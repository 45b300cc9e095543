"""The channels or patterns that are listened to, as a table: by how many, and what came of late."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pynotify._table import table

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pynotify._types import ListenedChannel

_SHOWN = 20


def channel_table(
    channels: Sequence[ListenedChannel],
    rates: Mapping[tuple[str, str], float] | None = None,
    heading: str = "CHANNEL",
) -> list[str]:
    """Headings and a line for each of the busiest: by notifications a second, and in all."""

    def rate(channel: ListenedChannel) -> float | None:
        return None if rates is None else rates.get((channel.database, channel.name))

    def busy(channel: ListenedChannel) -> tuple[float, int]:
        return -(rate(channel) or 0.0), -channel.notifications

    shown = sorted(channels, key=busy)[:_SHOWN]
    headings = [heading, "DATABASE", ">LISTENERS", ">NOTIFICATIONS"]
    rows = [[each.name, each.database, each.listeners, f"{each.notifications:,}"] for each in shown]
    if rates is not None:
        headings.append(">RATE")
        for each, row in zip(shown, rows, strict=True):
            speed = rate(each)
            row.append("-" if speed is None else f"{speed:,.0f}/s")
    lines = table(headings, rows)
    left_out = len(channels) - len(shown)
    return lines if not left_out else [*lines, f"... {left_out:,} more: --json has all"]
