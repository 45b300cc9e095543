"""Topics: what no consumer works on, and what could not be written."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pynotify._procfs import command_line
from pynotify._table import duration
from pynotify.cli.doctor.finding import Finding, ok, problem, warning

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pynotify.topics import ChannelStats, ConsumerStats, TopicStats


def check(name: str, found: Sequence[TopicStats]) -> Iterator[Finding]:
    """Nothing where there are no topics."""
    findings = [finding for topic in found for finding in _check_topic(name, topic)]
    yield from findings
    if found and not findings:
        yield ok("topics", f"{len(found)}, and all are worked on", segment=name)


def _check_topic(name: str, stats: TopicStats) -> Iterator[Finding]:
    if stats.error is not None:
        advice = "See what is wrong with the disk of data_dir."
        yield problem("topics", f'"{stats.name}": {stats.error}', advice, segment=name)
    if stats.corrupt:
        text = f'"{stats.name}": {stats.corrupt:,} records on disk could not be read'
        if stats.durable:
            text += " (of the log, which all durable topics share, or its own)"
        advice = (
            "What they said is lost; see to that disk. "
            "`pynotify topics fsck --live DATA_DIR` says which files they are in."
        )
        yield problem("topics", text, advice, segment=name)
    if stats.depth and not stats.paused and not stats.channels:
        text = f'"{stats.name}" has {stats.depth:,} messages and no channel'
        yield warning("topics", text, "Its first channel gets them.", segment=name)
    for channel in stats.channels:
        yield from _check_channel(name, stats, channel)
        for consumer in channel.consumers:
            yield from _check_consumer(name, f"{stats.name}/{channel.name}", consumer)


def _check_channel(name: str, topic: TopicStats, channel: ChannelStats) -> Iterator[Finding]:
    path = f"{topic.name}/{channel.name}"
    age = channel.oldest_ready
    if not channel.depth or age is None:
        return
    text = f'"{path}" has {channel.depth:,} messages, the first is {duration(age)} old'
    if channel.paused:
        where = f"-n {name} --database {topic.database}"
        advice = f"pynotify topics unpause {topic.name} {channel.name} {where}"
        yield warning("topics", f"{text}: it is paused", advice, segment=name)
    elif not channel.consumers:
        yield warning("topics", f"{text}: it has no consumer", "Start one.", segment=name)


def _check_consumer(name: str, path: str, consumer: ConsumerStats) -> Iterator[Finding]:
    """One in a hundred may happen; more is a consumer that needs longer than it has."""
    late = consumer.timed_out
    if late * 100 < max(1, consumer.delivered):
        return
    process = command_line(consumer.pid) or "?"
    text = (
        f'"{path}": the consumer of process {consumer.pid} ({process}) let {late:,} of '
        f"{consumer.delivered:,} messages time out"
    )
    advice = (
        "They were delivered again. Give the consumer a longer msg_timeout or a smaller "
        "max_in_flight, or let it touch() what takes long."
    )
    yield warning("topics", text, advice, segment=name)
