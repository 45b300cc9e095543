"""Topics: what nobody works on, and what could not be written."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pynotify._engine import open as open_segment
from pynotify.cli.doctor.finding import Finding, ok, problem, warning
from pynotify.cli.table import duration
from pynotify.topics._survey import survey

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pynotify._types import EngineStat
    from pynotify.topics import ChannelStats
    from pynotify.topics._survey import Surveyed


def check(name: str, stat: EngineStat) -> Iterator[Finding]:
    """Nothing where there are no topics."""
    with open_segment(name, create=False) as engine:
        found = survey(engine, [backend.database for backend in stat.backends])
    findings = [finding for topic in found for finding in _check_topic(name, topic)]
    yield from findings
    if found and not findings:
        yield ok("topics", f"{len(found)}, and all are worked on", segment=name)


def _check_topic(name: str, topic: Surveyed) -> Iterator[Finding]:
    stats = topic.stats
    if stats.error is not None:
        advice = "See what is wrong with the disk of data_dir."
        yield problem("topics", f'"{stats.name}": {stats.error}', advice, segment=name)
    if stats.depth and not stats.paused and not stats.channels:
        text = f'"{stats.name}" has {stats.depth:,} messages and no channel'
        yield warning("topics", text, "Its first channel gets them.", segment=name)
    for channel in stats.channels:
        yield from _check_channel(name, topic, channel)


def _check_channel(name: str, topic: Surveyed, channel: ChannelStats) -> Iterator[Finding]:
    path = f"{topic.stats.name}/{channel.name}"
    age = topic.ages.get(channel.name)
    if not channel.depth or age is None:
        return
    text = f'"{path}" has {channel.depth:,} messages, the first is {duration(age)} old'
    if channel.paused:
        advice = f"pynotify topics unpause {topic.stats.name} {channel.name} -n {name}"
        yield warning("topics", f"{text}: it is paused", advice, segment=name)
    elif not channel.consumers:
        yield warning("topics", f"{text}: it has no consumer", "Start one.", segment=name)
