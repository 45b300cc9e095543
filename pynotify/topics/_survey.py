"""All topics of a segment, for callers that only look: `Engine.topics`, the commands, the exporter.

The core lists them through the engine, so no backend slot is taken, nothing is changed and no
process is signalled.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from pynotify._ffi import lib
from pynotify.errors import TopicDeleted
from pynotify.topics._rows import stats_of_channel
from pynotify.topics._stats import all_rows, name_of, text_of, topic_stats

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from pynotify.topics._stats import ChannelStats, TopicStats


def survey(call: Callable[..., int], database: str | None) -> list[TopicStats]:
    """The statistics of all topics of one database, or of all databases, by database and name.

    `call` calls a function of the core with the engine before the arguments, and raises what it
    returns.  What is deleted in between is left out.
    """
    found = []
    for _, row in all_rows("pn_topic_stats", partial(call, lib.pn_engine_topics)):
        if database is None or text_of(row.database) == database:
            with suppress(TopicDeleted):
                found.append(topic_stats(row, _channels(call, row.ref)))
    return sorted(found, key=lambda stats: (stats.database, stats.name))


def _channels(call: Callable[..., int], topic: int) -> list[ChannelStats]:
    rows = all_rows("pn_topic_channel_stats", partial(call, lib.pn_engine_topic_channels, topic))
    found = []
    for _, row in sorted(rows, key=lambda each: name_of(each[1])):
        with suppress(TopicDeleted):
            found.append(_channel(call, row))
    return found


def _channel(call: Callable[..., int], row: Any) -> ChannelStats:
    consumers = partial(call, lib.pn_engine_consumers, row.ref)
    e2e = partial(call, lib.pn_engine_topic_channel_e2e, row.ref)
    return stats_of_channel(row, consumers, e2e)
