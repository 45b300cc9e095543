"""Statistics of topics and channels, as the core has them."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from pynotify._ffi import ffi, lib
from pynotify.errors import TopicDeleted
from pynotify.topics._stats import (
    QUANTILES,
    ChannelStats,
    TopicStats,
    all_rows,
    channel_stats,
    consumer_stats,
    name_of,
    topic_stats,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from pynotify._link import Link

_QUANTILES = ffi.new("double[]", QUANTILES)


def topic_rows(link: Link) -> list[tuple[Any, Any]]:
    """A pn_topic_stats of each topic, and what keeps it."""
    return all_rows(
        "pn_topic_stats",
        lambda rows, room: link.transactions.run_at_once(lib.pn_topic_list, rows, room),
    )


def topic_names(link: Link) -> list[str]:
    """The names of the topics, sorted.  May be repeated."""
    return sorted(name_of(row) for _, row in topic_rows(link))


def channel_rows(link: Link, ref: int) -> list[tuple[Any, Any]]:
    """A pn_topic_channel_stats of each channel, and what keeps it."""
    return all_rows(
        "pn_topic_channel_stats",
        lambda rows, room: link.transactions.run_at_once(
            lib.pn_topic_channel_list, ref, rows, room
        ),
    )


def stats_of_topic(link: Link, ref: int) -> TopicStats:
    """The statistics of a topic and of its channels, by name.

    A channel that is deleted in between is left out.  May be repeated.
    """
    channels = []
    for _, each in channel_rows(link, ref):
        with suppress(TopicDeleted):
            channels.append(channel_as_seen_by(link, each))
    row = ffi.new("pn_topic_stats *")  # last: what a channel has counted, its topic has
    link.transactions.run_at_once(lib.pn_topic_stat, ref, row)
    return topic_stats(row, sorted(channels, key=lambda channel: channel.name))


def channel_as_seen_by(link: Link, row: Any) -> ChannelStats:
    """The statistics of a channel, with what the core keeps beside its row.  May be repeated."""
    consumers = partial(link.transactions.run_at_once, lib.pn_consumer_list, row.ref)
    e2e = partial(link.transactions.run_at_once, lib.pn_topic_channel_e2e, row.ref)
    return stats_of_channel(row, consumers, e2e)


def stats_of_channel(
    row: Any, list_consumers: Callable[[Any, int], int], quantiles: Callable[..., int]
) -> ChannelStats:
    """The two functions are of the core, with the channel as their first argument."""
    consumers = all_rows("pn_consumer_stats", list_consumers)
    seconds = ffi.new("double[]", len(QUANTILES))
    known = quantiles(_QUANTILES, len(QUANTILES), seconds)
    e2e = dict(zip(QUANTILES, ffi.unpack(seconds, len(QUANTILES)), strict=True)) if known else {}
    attached = sorted((consumer_stats(each) for _, each in consumers), key=lambda each: each.pid)
    return channel_stats(row, attached, e2e)
