"""`pynotify topics pause`, `unpause`, `empty` and `delete`: of a topic, or of one channel."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from pynotify.cli.topics.action import (
    Action,
    add_topic,
    attach,
    existing_channel,
    existing_topic,
)

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


_SUMMARIES = {
    "pause": "hand nothing on: a topic to its channels, a channel to its consumers",
    "unpause": "undo pause",
    "empty": "forget what a topic itself holds, or all messages of a channel",
    "delete": "forget a topic with all its channels, or one channel",
}

ACTIONS = {
    name: Action(summary, _add, partial(_change, name)) for name, summary in _SUMMARIES.items()
}
