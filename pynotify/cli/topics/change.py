"""`pynotify topics pause`, `unpause`, `empty`, `delete`, `configure`: a topic, or one channel."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from pynotify.cli import arguments
from pynotify.cli.topics.action import (
    Action,
    add_topic,
    attach,
    existing_channel,
    existing_topic,
)
from pynotify.errors import ProgrammingError

if TYPE_CHECKING:
    import argparse


def _add(parser: argparse.ArgumentParser) -> None:
    add_topic(parser, channel="?")


def _change(what: str, options: argparse.Namespace) -> int:
    with attach(options) as connection:
        topic = existing_topic(connection, options.topic)
        if options.channel is None:
            getattr(topic, what)()
        else:
            getattr(existing_channel(topic, options.channel), what)()
    return 0


_TOPICS = ("default_ttl", "max_memory", "max_disk_bytes")
_CHANNELS = ("max_attempts", "dead_letter", "msg_timeout")


def _add_settings(parser: argparse.ArgumentParser) -> None:
    seconds = arguments.positive_seconds
    parser.add_argument(
        "--default-ttl", type=seconds, metavar="S", help="topic: of messages without a ttl"
    )
    parser.add_argument(
        "--max-memory", type=arguments.size, metavar="BYTES", help="topic: of topic_memory"
    )
    parser.add_argument(
        "--max-disk-bytes", type=arguments.size, metavar="BYTES", help="topic: on disk"
    )
    parser.add_argument(
        "--max-attempts", type=int, metavar="N", help="channel: deliveries, 0: no limit"
    )
    parser.add_argument("--dead-letter", metavar="NAME", help="channel: topic of dead letters")
    parser.add_argument("--msg-timeout", type=seconds, metavar="S", help="channel: for an answer")
    parser.add_argument(
        "--unset",
        action="append",
        default=[],
        choices=[name.replace("_", "-") for name in _TOPICS + _CHANNELS],
        help="take one of these back (repeatable)",
    )
    add_topic(parser, channel="?")


def _configure(options: argparse.Namespace) -> int:
    unset = [name.replace("-", "_") for name in options.unset]
    given: dict[str, Any] = {
        name: getattr(options, name)
        for name in _TOPICS + _CHANNELS
        if getattr(options, name) is not None
    }
    given.update(dict.fromkeys(unset))
    hint = (
        "Of a channel max-attempts, dead-letter and msg-timeout are set, "
        "of a topic default-ttl, max-memory and max-disk-bytes."
    )
    for name in given:
        if name in (_TOPICS if options.channel else _CHANNELS):
            raise ProgrammingError(f"{name.replace('_', '-')} is set elsewhere", hint=hint)
    if not given:
        raise ProgrammingError("there is nothing to set", hint=hint)
    with attach(options) as connection:
        topic = existing_topic(connection, options.topic)
        if options.channel is None:
            topic.configure(**given)
        else:
            existing_channel(topic, options.channel).configure(**given)
    return 0


_SUMMARIES = {
    "pause": "hand nothing on: a topic to its channels, a channel to its consumers",
    "unpause": "undo pause",
    "empty": "forget what a topic itself holds, or all messages of a channel",
    "delete": "forget a topic with all its channels, or one channel",
}

ACTIONS = {
    name: Action(summary, _add, partial(_change, name)) for name, summary in _SUMMARIES.items()
} | {
    "configure": Action(
        "set what messages and consumers get that do not say it themselves",
        _add_settings,
        _configure,
    )
}
