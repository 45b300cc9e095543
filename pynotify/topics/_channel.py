"""A channel of a topic: a queue that shares its messages out among consumers."""

from __future__ import annotations

import importlib
from functools import partial
from typing import TYPE_CHECKING, NoReturn

from pynotify._ffi import ffi, lib
from pynotify.topics._consumer import Consumer
from pynotify.topics._options import ConsumerOptions
from pynotify.topics._stats import (
    QUANTILES,
    ChannelStats,
    PeekedMessage,
    all_rows,
    channel_stats,
    consumer_stats,
    peeked,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from pynotify._async_connection import AsyncConnection
    from pynotify._base import BaseConnection
    from pynotify._connection import Connection
    from pynotify.topics._async_consumer import AsyncConsumer
    from pynotify.topics._topic import AsyncTopic, BaseTopic, Topic

_QUANTILES = ffi.new("double[]", QUANTILES)


class BaseChannel:
    """Of threads and of tasks."""

    __slots__ = ("__weakref__", "_connection", "_name", "_ref", "_topic")

    def __init__(self, topic: BaseTopic, name: str, ref: int) -> None:
        self._topic = topic
        self._connection: BaseConnection = topic._connection
        self._name = name
        self._ref = ref

    @property
    def name(self) -> str:
        """Its name, which is one within the topic."""
        return self._name

    @property
    def topic(self) -> BaseTopic:
        """What it is a channel of."""
        return self._topic

    @property
    def _path(self) -> str:
        return f"{self._topic._name}/{self._name}"

    def _set_paused(self, paused: bool) -> None:
        self._connection._run_at_once(lib.pn_topic_channel_pause, self._ref, paused)

    def _empty(self) -> None:
        self._connection._run_at_once(lib.pn_topic_channel_empty, self._ref)

    def _delete(self) -> None:
        self._connection._run_at_once(lib.pn_topic_channel_delete, self._ref)

    def _stats(self) -> ChannelStats:
        row = ffi.new("pn_topic_channel_stats *")
        self._connection._run_at_once(lib.pn_topic_channel_stat, self._ref, row)
        return channel_as_seen_by(self._connection, row)

    def _peek(self, n: int) -> list[PeekedMessage]:
        if n < 0:
            raise ValueError(f"n must not be negative, is {n}")
        if n == 0:
            self._connection._check_usable()
            return []
        rows = ffi.new("pn_peeked[]", n)
        length = 0
        while True:
            bodies = ffi.new("uint8_t[]", max(n * length, 1))
            count = self._connection._run_at_once(
                lib.pn_topic_channel_peek, self._ref, rows, n, bodies, length
            )
            longest = max((rows[i].body_len for i in range(count)), default=0)
            if longest <= length:
                break
            length = longest
        data = memoryview(ffi.buffer(bodies))
        return [
            peeked(rows[i], bytes(data[i * length : i * length + rows[i].body_len]))
            for i in range(count)
        ]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, BaseChannel):
            return NotImplemented
        return (self._ref, self._connection) == (other._ref, other._connection)

    def __hash__(self) -> int:
        return hash(self._ref)

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"cannot pickle a {type(self).__name__}: it belongs to a connection of this process\n"
            "Pickle the names, and call topic() and channel() of a connection over there."
        )

    def __repr__(self) -> str:
        return f"<pynotify.{type(self).__name__} {self._path}>"


class Channel(BaseChannel):
    """A queue of its topic's messages, each of which one of its consumers gets.

    Made by `Topic.channel`.  Every method raises `TopicDeleted` when it was deleted; those that
    change something act at once, also inside a transaction.
    """

    __slots__ = ()
    _connection: Connection
    _topic: Topic

    def consumer(
        self,
        *,
        max_in_flight: int = 1,
        msg_timeout: float = 60.0,
        max_msg_timeout: float = 900.0,
        max_attempts: int = 5,
        sample_rate: int | None = None,
        dead_letter: str | None = None,
    ) -> Consumer:
        """Take part in the work, from now on.

        `max_in_flight`: how many unanswered messages at a time.  What is not answered within
        `msg_timeout` seconds is delivered again; `Message.touch` extends that, to
        `max_msg_timeout` after the delivery.  What goes back after its `max_attempts`th delivery
        (0: no limit) becomes a message of the topic `dead_letter`, or without one is dropped.
        `sample_rate`: only so many percent of the messages, 1 to 99.  Raises `TooManyConsumers`
        when the channel has its `max_consumers`.
        """
        options = ConsumerOptions(
            max_in_flight=max_in_flight,
            msg_timeout=msg_timeout,
            max_msg_timeout=max_msg_timeout,
            max_attempts=max_attempts,
            sample_rate=sample_rate,
            dead_letter=dead_letter,
        )
        return Consumer(self, options)

    def pause(self) -> None:
        """Deliver nothing more; messages still come in, and those in flight can be answered."""
        self._set_paused(True)

    def unpause(self) -> None:
        """Undo `pause`."""
        self._set_paused(False)

    def empty(self) -> None:
        """Forget all messages, those in flight and deferred ones, too."""
        self._empty()

    def delete(self) -> None:
        """Forget the channel; who waits in `get()` raises `TopicDeleted`."""
        self._delete()

    def stats(self) -> ChannelStats:
        """What it holds now, and what went through it."""
        return self._stats()

    def peek(self, n: int = 10) -> list[PeekedMessage]:
        """The first `n` messages, ready ones before deferred ones and those in flight."""
        return self._peek(n)


class AsyncChannel(BaseChannel):
    """The same for tasks, made by `AsyncTopic.channel`."""

    __slots__ = ()
    _connection: AsyncConnection
    _topic: AsyncTopic

    def consumer(
        self,
        *,
        max_in_flight: int = 1,
        msg_timeout: float = 60.0,
        max_msg_timeout: float = 900.0,
        max_attempts: int = 5,
        sample_rate: int | None = None,
        dead_letter: str | None = None,
    ) -> AsyncConsumer:
        """As `Channel.consumer`; it takes part from `async with` (or `await`, or `get`) on."""
        options = ConsumerOptions(
            max_in_flight=max_in_flight,
            msg_timeout=msg_timeout,
            max_msg_timeout=max_msg_timeout,
            max_attempts=max_attempts,
            sample_rate=sample_rate,
            dead_letter=dead_letter,
        )
        # asyncio takes longer to import than all the rest.
        found = importlib.import_module("pynotify.topics._async_consumer")
        made: AsyncConsumer = found.AsyncConsumer(self, options)
        return made

    async def pause(self) -> None:
        """As `Channel.pause`."""
        await self._connection._patiently(partial(self._set_paused, True))

    async def unpause(self) -> None:
        """As `Channel.unpause`."""
        await self._connection._patiently(partial(self._set_paused, False))

    async def empty(self) -> None:
        """As `Channel.empty`."""
        await self._connection._patiently(self._empty)

    async def delete(self) -> None:
        """As `Channel.delete`."""
        await self._connection._patiently(self._delete)

    async def stats(self) -> ChannelStats:
        """As `Channel.stats`."""
        return await self._connection._patiently(self._stats)

    async def peek(self, n: int = 10) -> list[PeekedMessage]:
        """As `Channel.peek`."""
        return await self._connection._patiently(partial(self._peek, n))


def channel_as_seen_by(connection: BaseConnection, row: Any) -> ChannelStats:
    """With what the core keeps beside its row.  May be repeated."""
    consumers = partial(connection._run_at_once, lib.pn_consumer_list, row.ref)
    e2e = partial(connection._run_at_once, lib.pn_topic_channel_e2e, row.ref)
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
