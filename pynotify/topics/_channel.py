"""A channel of a topic: a queue that shares its messages out among consumers."""

from __future__ import annotations

import importlib
from functools import partial
from typing import TYPE_CHECKING

from pynotify.topics._base_channel import BaseChannel
from pynotify.topics._consumer import Consumer
from pynotify.topics._options import CHANNELS, UNCHANGED, ChannelOptions, ConsumerOptions

if TYPE_CHECKING:
    from pynotify._link import TaskLink, ThreadLink
    from pynotify.topics._async_consumer import AsyncConsumer
    from pynotify.topics._stats import ChannelStats, PeekedMessage


class Channel(BaseChannel):
    """A queue of its topic's messages, each of which one of its consumers gets.

    Made by `Topic.channel`.  Every method raises `TopicDeleted` when it was deleted; those that
    change something act at once, also inside a transaction.
    """

    __slots__ = ()
    _link: ThreadLink

    def consumer(
        self,
        *,
        max_in_flight: int = 1,
        msg_timeout: float = CHANNELS,
        max_msg_timeout: float = 900.0,
        max_attempts: int = CHANNELS,
        sample_rate: int | None = None,
        dead_letter: str | None = CHANNELS,
    ) -> Consumer:
        """Make a consumer of the channel.  It takes part at once.

        `max_in_flight`: how many unanswered messages at a time.  What is not answered within
        `msg_timeout` seconds is delivered again; `Message.touch` extends that, to `max_msg_timeout`
        after the delivery.  What goes back after its `max_attempts`th delivery (0: no limit)
        becomes a message of the topic `dead_letter`, or without one is dropped.  `sample_rate`:
        only so many percent of the messages, 1 to 99.  `msg_timeout`, `max_attempts` and
        `dead_letter` are those that the channel is set to (`configure`), or 60 s, 5 and None.
        Raises `TooManyConsumers` when the channel has its `max_consumers`.
        """
        options = ConsumerOptions(
            max_in_flight=max_in_flight,
            msg_timeout=msg_timeout,
            max_msg_timeout=max_msg_timeout,
            max_attempts=max_attempts,
            sample_rate=sample_rate,
            dead_letter=dead_letter,
        )
        return Consumer(self, self._link, self._ref, options)

    def configure(
        self,
        *,
        max_attempts: int | None = UNCHANGED,
        dead_letter: str | None = UNCHANGED,
        msg_timeout: float | None = UNCHANGED,
    ) -> None:
        """Set what consumers of the channel get that do not say it themselves.

        What is left out stays; None: the channel says nothing.  `max_attempts` (0: no limit) and
        `dead_letter` count at once, also for consumers that are there and for messages of a process
        that was killed; `msg_timeout`, in seconds, for consumers that are made from now on.
        All of it is set or nothing.  Raises `ProgrammingError` when dead letters would come back to
        this channel's topic by what channels are set to, `InvalidTopicName`, ValueError.
        """
        options = ChannelOptions(
            max_attempts=max_attempts, dead_letter=dead_letter, msg_timeout=msg_timeout
        )
        self._configure(options)

    def pause(self) -> None:
        """Deliver no message; new ones still come in, and those in flight can be answered."""
        self._set_paused(True)

    def unpause(self) -> None:
        """Undo `pause`."""
        self._set_paused(False)

    def empty(self) -> None:
        """Discard all messages, those in flight and deferred ones, too."""
        self._empty()

    def delete(self) -> None:
        """Delete the channel; waiting calls of `get` raise `TopicDeleted`."""
        self._delete()

    def stats(self) -> ChannelStats:
        """What the channel holds now, and what went through it."""
        return self._stats()

    def peek(self, n: int = 10) -> list[PeekedMessage]:
        """The first `n` messages, without changing anything.

        Ready messages come before deferred ones, and those before the ones in flight.
        """
        return self._peek(n)


class AsyncChannel(BaseChannel):
    """The same for tasks, made by `AsyncTopic.channel`."""

    __slots__ = ()
    _link: TaskLink

    def consumer(
        self,
        *,
        max_in_flight: int = 1,
        msg_timeout: float = CHANNELS,
        max_msg_timeout: float = 900.0,
        max_attempts: int = CHANNELS,
        sample_rate: int | None = None,
        dead_letter: str | None = CHANNELS,
    ) -> AsyncConsumer:
        """Make a consumer of the channel.  It takes part from `async with`, `await` or `get` on.

        `max_in_flight`: how many unanswered messages at a time.  What is not answered within
        `msg_timeout` seconds is delivered again; `AsyncMessage.touch` extends that, to
        `max_msg_timeout` after the delivery.  What goes back after its `max_attempts`th delivery
        (0: no limit) becomes a message of the topic `dead_letter`, or without one is dropped.
        `sample_rate`: only so many percent of the messages, 1 to 99.  `msg_timeout`,
        `max_attempts` and `dead_letter` are those that the channel is set to (`configure`), or
        60 s, 5 and None.  Raises `TooManyConsumers` when the channel has its `max_consumers`.
        """
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
        made: AsyncConsumer = found.AsyncConsumer(self, self._link, self._ref, options)
        return made

    async def configure(
        self,
        *,
        max_attempts: int | None = UNCHANGED,
        dead_letter: str | None = UNCHANGED,
        msg_timeout: float | None = UNCHANGED,
    ) -> None:
        """Set what consumers of the channel get that do not say it themselves.

        What is left out stays; None: the channel says nothing.  `max_attempts` (0: no limit) and
        `dead_letter` count at once, also for consumers that are there and for messages of a process
        that was killed; `msg_timeout`, in seconds, for consumers that are made from now on.
        All of it is set or nothing.  Raises `ProgrammingError` when dead letters would come back to
        this channel's topic by what channels are set to, `InvalidTopicName`, ValueError.
        """
        options = ChannelOptions(
            max_attempts=max_attempts, dead_letter=dead_letter, msg_timeout=msg_timeout
        )
        await self._link.off_loop.retry(partial(self._configure, options))

    async def pause(self) -> None:
        """Deliver no message; new ones still come in, and those in flight can be answered."""
        await self._link.off_loop.retry(partial(self._set_paused, True))

    async def unpause(self) -> None:
        """Undo `pause`."""
        await self._link.off_loop.retry(partial(self._set_paused, False))

    async def empty(self) -> None:
        """Discard all messages, those in flight and deferred ones, too."""
        await self._link.off_loop.retry(self._empty)

    async def delete(self) -> None:
        """Delete the channel; waiting calls of `get` raise `TopicDeleted`."""
        await self._link.off_loop.retry(self._delete)

    async def stats(self) -> ChannelStats:
        """What the channel holds now, and what went through it."""
        return await self._link.off_loop.retry(self._stats)

    async def peek(self, n: int = 10) -> list[PeekedMessage]:
        """The first `n` messages, without changing anything.

        Ready messages come before deferred ones, and those before the ones in flight.
        """
        return await self._link.off_loop.retry(partial(self._peek, n))
