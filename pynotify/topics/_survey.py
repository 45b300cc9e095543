"""All topics of a segment, for who only looks at it: the commands and the exporter.

An Engine knows no topics of its own: they are looked at by a connection for each database that
anybody is connected to, and for "default".  It polls, so nothing is installed for it, and it is
closed again at once.
"""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pynotify.errors import Error, TopicDeleted

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pynotify._engine import Engine
    from pynotify.topics._stats import TopicStats
    from pynotify.topics._topic import Topic


@dataclass(frozen=True, slots=True)
class Surveyed:
    """A topic, and for each of its channels how old its oldest ready message is, in seconds."""

    database: str
    stats: TopicStats
    ages: dict[str, float]


def survey(engine: Engine, databases: Iterable[str]) -> list[Surveyed]:
    """By database and name; none of those that cannot be looked at."""
    found: list[Surveyed] = []
    for database in sorted({"default", *databases}):
        with suppress(Error), engine.connect(database, wakeup="poll") as connection:
            for name in connection.topics():
                with suppress(TopicDeleted):
                    found.append(_look_at(database, connection.topic(name)))
    return found


def _look_at(database: str, topic: Topic) -> Surveyed:
    stats = topic.stats()
    ages = {channel.name: age for channel in stats.channels for age in _ages(topic, channel.name)}
    return Surveyed(database, stats, ages)


def _ages(topic: Topic, channel: str) -> Iterator[float]:
    for message in topic.channel(channel).peek(1):
        if message.state == "ready":
            yield max(0.0, (time.time_ns() - message.published_ns) / 1e9)
