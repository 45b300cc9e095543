"""`pynotify stat`: counters and present state of a segment, and a row for each backend."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pynotify._engine import open as open_segment
from pynotify._table import pairs
from pynotify.cli import arguments
from pynotify.cli.backends import as_json, backend_table, of_database, queue_line
from pynotify.cli.channels import channel_table
from pynotify.cli.topics.look import topic_table

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from pynotify._types import EngineStat


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the command."""
    arguments.add_segment(parser)
    arguments.add_database_filter(parser)
    arguments.add_json(parser, "an object with all of EngineStat, channels, patterns and topics")


def run(options: argparse.Namespace) -> int:
    """Show it."""
    with open_segment(options.name, create=False) as engine:
        stat = of_database(engine.stat(), options.database)
        topics = engine.topics(options.database)
        channels = engine.channels(options.database)
        patterns = engine.patterns(options.database)
    if options.json:
        arguments.print_json({"name": options.name, **as_json(stat, topics, channels, patterns)})
        return 0
    print("\n".join(pairs(_figures(options.name, stat))))
    if stat.backends:
        print("", *backend_table(stat.backends), sep="\n")
    if channels:
        print("", *channel_table(channels), sep="\n")
    if patterns:
        print("", *channel_table(patterns, heading="PATTERN"), sep="\n")
    if topics:
        print("", *topic_table(topics), sep="\n")
    return 0


def _figures(name: str, stat: EngineStat) -> Iterator[tuple[str, str]]:
    yield "segment", name
    yield "queue", queue_line(stat)
    known = f"{stat.channels - stat.patterns:,} known, "
    if stat.patterns:
        known += f"{stat.patterns:,} patterns, "
    yield "channels", f"{known}{stat.subscriptions:,} subscriptions"
    yield "commits", f"{stat.commits:,}"
    yield "notifications", f"{stat.notifications:,} and {stat.collapsed:,} collapsed"
    yield (
        "signals",
        f"{stat.signals_sent:,} sent, {stat.signals_elided:,} elided, "
        f"{stat.signals_unsent:,} not to be sent",
    )
    yield "wake-ups", f"{stat.wakeups_useful:,} useful, {stat.wakeups_useless:,} useless"
    yield "slot writes", f"{stat.slot_writes:,}"
    yield "handler", f"{stat.handler_reinstalls:,} times installed again"
    yield "recoveries", f"{stat.recoveries:,}"
    if stat.log_records_dropped or stat.log_files_recycled:
        dropped, recycled = stat.log_records_dropped, stat.log_files_recycled
        yield "latency logs", f"{dropped:,} records dropped, {recycled:,} files recycled"
