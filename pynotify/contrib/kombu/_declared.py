"""What is declared in a segment: exchanges, queues and bindings, the same for all processes.

1. It is one JSON document, the body of the only message of a topic.  To change it a process takes
   that message, and in one transaction publishes the next document and finishes this one.  So one
   process at a time changes it, and what a killed process had taken is there for the others.
2. Readers peek, also while another process has it.  A generation counter, which is part of the same
   transaction, tells them whether what they have read is old: one load for each message published.
3. The first document is made by the process that has the only message of another topic, which has
   room for one.
4. A queue is in the document before its topic is made, and out of it before its topic is deleted.
   So a topic of ours that no queue in the document has is left over from a killed process.
"""

from __future__ import annotations

import json
import re
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, TypeVar

from pynotify.errors import MessageNotInFlight, NotOwner, Timeout, TopicDeleted, TopicFull

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Self

    from pynotify._connection import Connection
    from pynotify.topics import Channel

_T = TypeVar("_T")

#: The channel of each topic of ours.
CHANNEL = "kombu"
_LONGEST_NAME = 64
_FORBIDDEN = re.compile(r"[^.a-zA-Z0-9_-]")
_LOOK_AGAIN_S = 1.0


def topic_name(prefix: str, queue: str, level: int = 0) -> str:
    """The topic of a queue's messages of one priority; of a name that is no topic's, a digest."""
    stem = f"{prefix}..{level}." if level else f"{prefix}."
    fits = len(stem + queue) <= _LONGEST_NAME and queue[:1] not in ("", ".")
    if fits and not _FORBIDDEN.search(queue):
        return stem + queue
    digest = blake2b(queue.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
    readable = _FORBIDDEN.sub("_", queue)[: _LONGEST_NAME - len(stem) - len(digest) - 1]
    return f"{stem}{readable.lstrip('.')}.{digest}"


@dataclass
class Document:
    """Exchanges and queues by name, and (exchange, routing key, queue, arguments) of bindings."""

    exchanges: dict[str, dict[str, Any]] = field(default_factory=dict)
    queues: dict[str, dict[str, Any]] = field(default_factory=dict)
    bindings: list[tuple[str, str, str, Any]] = field(default_factory=list)

    @classmethod
    def parse(cls, body: bytes) -> Self:
        """The document of a message."""
        parsed = json.loads(body)
        bindings = [tuple(each) for each in parsed["bindings"]]
        return cls(parsed["exchanges"], parsed["queues"], bindings)

    def body(self) -> str:
        """The message of the document."""
        return json.dumps(
            {"exchanges": self.exchanges, "queues": self.queues, "bindings": self.bindings}
        )

    def has_binding(self, exchange: str, routing_key: str, queue: str) -> bool:
        """Whether a message of that routing key, or pattern, goes to the queue."""
        return any(each[:3] == (exchange, routing_key, queue) for each in self.bindings)

    def remove_queue(self, queue: str) -> bool:
        """Take the queue out, with its bindings; False: it was not there."""
        self.bindings = [each for each in self.bindings if each[2] != queue]
        return self.queues.pop(queue, None) is not None


@dataclass
class View(Document):
    """A document as it was read; `tables` and `routes` are what callers have made of it.

    `tables`: for an exchange what its type makes of the bindings.  `routes`: the queues of an
    exchange and a routing key.
    """

    generation: int = -1
    tables: dict[str, list[tuple[str, Any, str]]] = field(default_factory=dict)
    routes: dict[tuple[str, str], list[str]] = field(default_factory=dict)


class Declared:
    """The document of a segment's database, through one connection."""

    def __init__(self, connection: Connection, prefix: str, *, durable: bool) -> None:
        self._connection = connection
        self._prefix = prefix
        self._options: Any = {"durable": True} if durable else {}
        self._generation = connection.generation(f"{prefix}:declared")
        self._open()
        self._view = View()

    def _open(self) -> None:
        self._topic = self._connection.topic(f"{self._prefix}-declared", **self._options)
        self._channel: Channel = self._topic.channel(CHANNEL)

    def view(self) -> View:
        """What is declared now.  It is not to be changed."""
        view = self._view
        if view.generation != self._generation.value:
            generation = self._generation.value  # before it looks: it may see more, and never less
            messages = self._peek()
            view = View.parse(messages[0]) if messages else View()
            view.generation = generation
            self._view = view
        return view

    def _peek(self) -> list[bytes]:
        try:
            return [each.body for each in self._channel.peek(1)]
        except TopicDeleted:  # by `pynotify topics`
            self._open()
            return []

    def change(self, edit: Callable[[Document], _T | None]) -> _T | None:
        """Change it by `edit`, which returns None when it has nothing to change.

        It waits for others that change it.  `edit` may be called more than once.
        """
        while True:
            if not self._peek():
                self._make_first()
            with suppress(Timeout, TopicDeleted, MessageNotInFlight, NotOwner):
                return self._try_to_change(edit)

    def _try_to_change(self, edit: Callable[[Document], _T | None]) -> _T | None:
        with self._channel.consumer(max_attempts=0) as consumer:
            message = consumer.get(_LOOK_AGAIN_S)
            document = Document.parse(message.body)
            result = edit(document)
            if result is not None:
                with self._connection.transaction():
                    message.finish()
                    self._topic.publish(document.body())
                    self._generation.bump()
            return result  # an unchanged one goes back as the consumer closes

    def _make_first(self) -> None:
        one = self._connection.topic(f"{self._prefix}-first", max_depth=1, overflow="error")
        with suppress(TopicFull):
            one.publish("its consumer makes the first document")
        with one.channel(CHANNEL).consumer(max_attempts=0) as consumer:
            consumer.get(_LOOK_AGAIN_S)
            if not self._peek():
                with self._connection.transaction():
                    self._topic.publish(Document().body())
                    self._generation.bump()
