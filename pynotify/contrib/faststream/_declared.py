"""What subscribers and publishers are declared with."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

from faststream.exceptions import SetupError

__all__ = ["TopicSub", "destination_of"]


@dataclass(frozen=True, slots=True)
class TopicSub:
    """A topic and one of its channels, whose consumers share its messages out.

    `channel`: each channel of a topic gets every message, and gives it to one of its consumers.
    `max_in_flight`: unanswered messages that a process has at a time (None: as many as its
    `max_workers`, or `max_records`, use).  `msg_timeout`: seconds after which a message that is not
    answered goes to another process, though its own lives.  `max_attempts`: how often a message is
    delivered (0: no limit), after which it goes to the topic `dead_letter`, if there is one.
    `batch`: the handler gets a list, of what is there, at most `max_records`.
    """

    topic: str
    channel: str = "workers"
    max_in_flight: int | None = None
    msg_timeout: float = 86400.0
    max_attempts: int = 5
    dead_letter: str | None = None
    batch: bool = False
    max_records: int = 10

    @classmethod
    def of(cls, topic: str | TopicSub) -> TopicSub:
        """A name stands for a topic with the defaults."""
        return cls(topic) if isinstance(topic, str) else topic

    def with_prefix(self, prefix: str) -> Self:
        """The same with a router's prefix before the topic's name."""
        return replace(self, topic=prefix + self.topic)


def destination_of(channel: str | None, topic: str | None) -> tuple[str, bool]:
    """The name, and whether it is that of a topic.  Raises SetupError unless one is given."""
    if topic is not None and channel is None:
        return topic, True
    if channel is not None and topic is None:
        return channel, False
    raise SetupError("give either a channel or a topic")
