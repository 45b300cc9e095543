"""`pynotify topics list`, `stats` and `peek`: change nothing."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from pynotify._engine import open as open_segment
from pynotify._table import duration, pairs, table, yes
from pynotify.cli import arguments
from pynotify.cli.terminal import decode
from pynotify.cli.topics.action import (
    Action,
    add_topic,
    attach,
    existing_channel,
    existing_topic,
    no_such_topic,
    peeked_as_json,
)
from pynotify.topics import ChannelStats, TopicStats

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Mapping, Sequence

_BODY_COLUMNS = 40


def _add_list(parser: argparse.ArgumentParser) -> None:
    arguments.add_segment_option(parser)
    arguments.add_database_filter(parser)
    arguments.add_json(parser, "a list of objects with all of TopicStats")


def _look(options: argparse.Namespace) -> list[TopicStats]:
    """Through the engine: no connection is made for it."""
    with open_segment(options.name, create=False) as engine:
        return engine.topics(options.database)


def _list(options: argparse.Namespace) -> int:
    found = _look(options)
    if options.json:
        arguments.print_json([dataclasses.asdict(stats) for stats in found])
    elif found:
        print("\n".join(topic_table(found)))
    return 0


def topic_table(
    found: Sequence[TopicStats], rates: Mapping[tuple[str, str], float] | None = None
) -> list[str]:
    """A row for each topic; with `rates`, messages a second by database and name."""
    headings = ["topic", "database", ">channels", ">depth", ">unfinished", ">messages", ">bytes"]
    return table(
        [*headings, *([] if rates is None else [">rate"]), "state"],
        [
            [
                stats.name,
                stats.database,
                len(stats.channels),
                f"{stats.depth:,}",
                f"{stats.unfinished:,}",
                f"{stats.message_count:,}",
                f"{stats.message_bytes:,}",
                *([] if rates is None else [_rate(rates.get((stats.database, stats.name)))]),
                _state(stats),
            ]
            for stats in found
        ],
    )


def _rate(speed: float | None) -> str:
    return "-" if speed is None else f"{speed:,.0f}/s"


def _state(stats: TopicStats | ChannelStats) -> str:
    words = ["paused"] * stats.paused + ["ephemeral"] * stats.ephemeral
    if isinstance(stats, TopicStats) and stats.durable:
        words.append("durable")
    return ", ".join(words)


def _add_stats(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("topic", metavar="TOPIC", nargs="?", help="a topic (default: all)")
    _add_list(parser)


def _stats(options: argparse.Namespace) -> int:
    found = _look(options)
    if options.topic is not None:
        found = [stats for stats in found if stats.name == options.topic]
        if not found:
            raise no_such_topic(options.topic)
    if options.json:
        arguments.print_json([dataclasses.asdict(stats) for stats in found])
    else:
        print("\n\n".join("\n".join(_page(stats)) for stats in found))
    return 0


def _page(stats: TopicStats) -> Iterator[str]:
    yield from pairs(_figures(stats))
    if stats.channels:
        yield ""
        yield from channel_table(stats.channels)
    settings = [
        [each.name, _or_dash(each.max_attempts), each.dead_letter or "-",
         "-" if each.msg_timeout is None else duration(each.msg_timeout)]
        for each in stats.channels
        if (each.max_attempts, each.dead_letter, each.msg_timeout) != (None, None, None)
    ]  # fmt: skip
    if settings:
        yield ""
        yield from table(["channel", ">max attempts", "dead letter", ">msg timeout"], settings)
    rows = [(channel.name, each) for channel in stats.channels for each in channel.consumers]
    if rows:
        yield ""
        yield from table(
            ["consumer", ">pid", ">in flight", ">level", ">delivered", ">finished", ">requeued",
             ">timed out"],
            [
                [name, each.pid, each.in_flight, f"{each.level} of {each.max_in_flight}",
                 f"{each.delivered:,}", f"{each.finished:,}", f"{each.requeued:,}",
                 f"{each.timed_out:,}"]
                for name, each in rows
            ],
        )  # fmt: skip


def _figures(stats: TopicStats) -> Iterator[tuple[str, str]]:
    bound = "" if stats.max_depth is None else f" of {stats.max_depth:,}"
    yield "topic", stats.name
    yield "database", stats.database
    yield "messages", f"{stats.message_count:,}, {stats.message_bytes:,} bytes"
    yield "unfinished", f"{stats.unfinished:,}{bound}, overflow {stats.overflow}"
    most = "" if stats.max_memory is None else f" of {stats.max_memory:,}"
    yield "memory", f"{stats.memory:,} bytes{most}"
    if stats.default_ttl is not None:
        yield "default ttl", duration(stats.default_ttl)
    yield "in the topic", f"{stats.depth:,}, {stats.deferred:,} deferred"
    yield "lost", f"{stats.dropped:,} dropped, {stats.expired:,} expired, {stats.corrupt:,} corrupt"
    if stats.durable or stats.on_disk:
        yield "on disk", f"{stats.on_disk:,}, fsync {stats.fsync}"
    if stats.disk_bytes or stats.max_disk_bytes is not None:
        most = "" if stats.max_disk_bytes is None else f" of {stats.max_disk_bytes:,}"
        yield "disk", f"{stats.disk_bytes:,} bytes{most}"
    yield "paused", yes(stats.paused)
    if stats.error is not None:
        yield "last error", stats.error


def channel_table(channels: list[ChannelStats]) -> list[str]:
    """A row for each channel.

    "oldest" is how long ago the first message in line was published; the latency is that of the
    last five to ten minutes.
    """
    return table(
        ["channel", ">depth", ">oldest", ">in flight", ">deferred", ">finished", ">requeued",
         ">timed out", ">dead", ">dropped", ">expired", ">p50", ">p99", "state"],
        [
            [channel.name, f"{channel.depth:,}", _oldest(channel), f"{channel.in_flight:,}",
             f"{channel.deferred:,}", f"{channel.finished:,}", f"{channel.requeued:,}",
             f"{channel.timed_out:,}", f"{channel.dead_lettered:,}", f"{channel.dropped:,}",
             f"{channel.expired:,}", _latency(channel, 0.5), _latency(channel, 0.99),
             _state(channel)]
            for channel in channels
        ],
    )  # fmt: skip


def _or_dash(number: int | None) -> str:
    return "-" if number is None else f"{number:,}"


def _oldest(channel: ChannelStats) -> str:
    return "-" if channel.oldest_ready is None else duration(channel.oldest_ready)


def _latency(channel: ChannelStats, quantile: float) -> str:
    if not channel.e2e:
        return "-"
    seconds = channel.e2e[quantile]
    for limit, factor, unit in ((1e-3, 1e6, "us"), (1.0, 1e3, "ms")):
        if seconds < limit:
            return f"{seconds * factor:.3g} {unit}"
    return duration(seconds)


def _add_peek(parser: argparse.ArgumentParser) -> None:
    add_topic(parser, channel="1")
    parser.add_argument(
        "--count", type=arguments.count, default=10, metavar="N", help="how many (default: 10)"
    )
    arguments.add_json(parser, "a list of objects")


def _peek(options: argparse.Namespace) -> int:
    with attach(options) as connection:
        topic = existing_topic(connection, options.topic)
        found = existing_channel(topic, options.channel).peek(options.count)
    if options.json:
        arguments.print_json([peeked_as_json(message) for message in found])
    elif found:
        rows = [
            [each.id, each.state.replace("_", " "), each.attempts,
             duration(each.due_in) if each.due_in else "", decode(each.body[:_BODY_COLUMNS])]
            for each in found
        ]  # fmt: skip
        print("\n".join(table(["id", "state", ">attempts", ">due in", "body"], rows)))
    return 0


ACTIONS = {
    "list": Action("list the topics", _add_list, _list),
    "stats": Action("show topics with their channels and consumers", _add_stats, _stats),
    "peek": Action("show the first messages of a channel", _add_peek, _peek),
}
