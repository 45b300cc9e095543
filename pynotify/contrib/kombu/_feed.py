"""Where a kombu channel's messages come from: consumers of topics."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from pynotify.errors import InterfaceError, Timeout, TopicDeleted

if TYPE_CHECKING:
    from collections.abc import Callable

    from pynotify.contrib.kombu._session import Session
    from pynotify.topics import Consumer, Message

#: Of a consumer, when nothing else bounds it.
MOST = 65535


class Feed:
    """A consumer of one topic.  `held`: the delivery tags of what it has not acknowledged."""

    __slots__ = ("_level", "consumer", "held")

    def __init__(self, consumer: Consumer, level: int) -> None:
        self.consumer = consumer
        self.held: set[int] = set()
        self._level = -1
        self.set_level(level)

    def set_level(self, level: int) -> None:
        """How many messages it has at a time from now on."""
        level = min(level, MOST)
        if level == self._level:
            return
        with suppress(InterfaceError, TopicDeleted):  # its next `take` tells
            if len(self.held) + 1 < self._level > level:
                self.consumer.set_max_in_flight(0)  # what it has fetched ahead goes back
            self.consumer.set_max_in_flight(level)
            self._level = level

    def take(self) -> Message | None:
        """A message, if there is one."""
        try:
            return self.consumer.get(0)
        except Timeout:
            return None


class Held(NamedTuple):
    """A message that was delivered and not acknowledged; `counts` against the prefetch count."""

    message: Message
    feed: Feed
    counts: bool
    delivered: Any


class Source:
    """A consumer of kombu: a feed for each of its queue's topics, the urgent ones first."""

    __slots__ = ("callback", "feeds", "no_ack", "queue")

    def __init__(
        self,
        session: Session,
        queue: str,
        level: int,
        *,
        no_ack: bool = False,
        callback: Callable[[Any], object] | None = None,
    ) -> None:
        settings = session.settings
        last = queue == settings.dead_letter  # whose messages would come back to it
        self.queue, self.no_ack, self.callback = queue, no_ack, callback
        self.feeds: list[Feed] = []
        try:
            for channel in session.channels(queue):
                consumer = channel.consumer(
                    max_in_flight=MOST,
                    msg_timeout=settings.visibility_timeout,
                    max_msg_timeout=settings.visibility_timeout,
                    max_attempts=0 if last else settings.max_attempts,
                    dead_letter=None if last else session.dead_letter_topic,
                )
                self.feeds.append(Feed(consumer, level))
        except BaseException:
            self.close()
            raise

    def take(self) -> tuple[Message, Feed] | None:
        """The most urgent message there is."""
        for feed in self.feeds:
            message = feed.take()
            if message is not None:
                return message, feed
        return None

    def close(self) -> None:
        """Give back what is not acknowledged."""
        for feed in self.feeds:
            feed.consumer.close()
