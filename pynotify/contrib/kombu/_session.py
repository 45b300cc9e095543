"""What a kombu connection has in one process: a connection to the segment, and the queues there.

A queue is a topic with one channel, or one for each priority.  A queue for the time being (it is
exclusive, goes with its last consumer, or expires) is removed by its process, or, when that was
killed, by the next one that connects or declares such a queue.
"""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from amqp.exceptions import NotFound, PreconditionFailed
from kombu.exceptions import ChannelError

from pynotify._connect import connect
from pynotify._log import logger
from pynotify._open_options import OpenOptions
from pynotify.contrib.kombu._declared import CHANNEL, Declared, topic_name
from pynotify.errors import Error, ProgrammingError, TooManyTopics, TopicDeleted

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pynotify.contrib.kombu._declared import Document
    from pynotify.topics import Channel, Topic

_HIGHEST_PRIORITY = 9
_SMALLEST_MEMORY = 4096
_OVERFLOW = {"drop-head": "drop-oldest", "reject-publish": "error"}
_TRIES = 10


@dataclass(frozen=True)
class Settings:
    """How to connect, and what holds for all queues; the fields are transport options."""

    segment: str
    database: str
    wakeup: str | int | None = None
    prefix: str = "kombu"
    durable: bool = False
    visibility_timeout: float = 10 * 365 * 86400.0
    max_attempts: int = 0
    dead_letter: str | None = None
    options: OpenOptions = field(default_factory=OpenOptions)

    @classmethod
    def of(cls, given: Mapping[str, Any], hostname: str, virtual_host: str) -> Settings:
        """The settings in `transport_options`, where options of others stand as well."""
        own = {name: given[name] for name in cls.__dataclass_fields__ if name in given}
        own.pop("options", None)
        of_segment: Any = {
            name: given[name] for name in OpenOptions.__annotations__ if name in given
        }
        defaults = {
            "segment": hostname or "default",
            "database": virtual_host.strip("/") or "default",
            # SIGUSR1 is the soft time limit of Celery's children, and dumps stacks in its parent.
            "wakeup": signal.SIGRTMIN + 4,
        }
        return cls(**{**defaults, **own, "options": of_segment})


def is_temporary(row: Mapping[str, Any]) -> bool:
    """Whether the queue goes by itself at some time."""
    return bool(row["auto_delete"] or row["exclusive"] or "x-expires" in row["arguments"])


def levels_of(row: Mapping[str, Any]) -> int:
    """How many priorities the queue has."""
    highest = int(row["arguments"].get("x-max-priority") or 0)
    return min(max(highest, 0), _HIGHEST_PRIORITY) + 1


def _topic_options(row: Mapping[str, Any], *, durable: bool) -> dict[str, Any]:
    """The options of the queue's topics."""
    arguments = row["arguments"]
    options: dict[str, Any] = {}
    if durable and row["durable"] and not is_temporary(row):
        options["durable"] = True
    bounds = [name for name in ("x-max-length", "x-max-length-bytes") if arguments.get(name)]
    if bounds or is_temporary(row):
        options["overflow"] = _OVERFLOW[arguments.get("x-overflow") or "drop-head"]
    if "x-max-length" in bounds:
        options["max_depth"] = int(arguments["x-max-length"])
    if "x-max-length-bytes" in bounds:
        options["max_memory"] = max(int(arguments["x-max-length-bytes"]), _SMALLEST_MEMORY)
    if arguments.get("x-message-ttl") is not None:
        options["default_ttl"] = max(int(arguments["x-message-ttl"]), 1) / 1000
    return options


def _started(pid: int) -> str | None:
    """When the process was started, in ticks; None: it is not there any more."""
    try:
        text = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return None
    return None if text[0] in (b"Z", b"X") else text[19].decode()


def _is_alive(owner: str) -> bool:
    pid, _, started = owner.partition(":")
    return _started(int(pid)) == started.partition(":")[0]


def _names(prefix: str, rows: Mapping[str, Mapping[str, Any]]) -> set[str]:
    """The topics of queues."""
    return {
        topic_name(prefix, queue, level)
        for queue, row in rows.items()
        for level in range(levels_of(row))
    }


def _deleted(queues: Iterable[str]) -> TopicDeleted:
    return TopicDeleted(f"the queues {', '.join(queues)} are deleted again and again")


def _put(topic: Topic, body: bytes, ttl: float | None) -> None:
    if ttl is None:
        topic.publish(body)
    else:
        topic.publish(body, ttl=ttl)


class Session:
    """A connection to the segment, of one process."""

    def __init__(self, settings: Settings, number: int) -> None:
        self.settings = settings
        self.connection = connect(
            settings.segment,
            database=settings.database,
            wakeup=settings.wakeup,
            **settings.options,
        )
        self.pid = os.getpid()
        #: The process, and which of its sessions.
        self._owner = f"{self.pid}:{_started(self.pid)}:{number}"
        self.declared = Declared(self.connection, settings.prefix, durable=settings.durable)
        self.view = self.declared.view
        self._topics: dict[str, Topic] = {}
        self.remove_leftovers()

    @property
    def usable(self) -> bool:
        """Whether it is this process's, and was not closed."""
        return self.pid == os.getpid() and not self.connection.closed

    def close(self) -> None:
        """Remove the exclusive queues, and give the connection up."""
        if self.usable:
            with suppress(Error):
                for queue, row in list(self.view().queues.items()):
                    if row["exclusive"] and row["owner"] == self._owner:
                        self.delete(queue)
        self.connection.close()

    @property
    def dead_letter_topic(self) -> str | None:
        """The topic of the queue `dead_letter`."""
        queue = self.settings.dead_letter
        return None if queue is None else topic_name(self.settings.prefix, queue)

    # ---- queues --------------------------------------------------------------------------

    def row(self, queue: str) -> dict[str, Any]:
        """What is declared of a queue.  Raises `NotFound`."""
        try:
            return self.view().queues[queue]
        except KeyError:
            raise self.not_found("queue", queue) from None

    def not_found(self, what: str, name: str) -> NotFound:
        """AMQP's error for something that was not declared."""
        return NotFound(f"NOT_FOUND - no {what} {name!r} in segment {self.settings.segment!r}")

    def declare(self, queue: str, row: dict[str, Any]) -> None:
        """Make a queue, or see that it is there as it is asked for."""

        def edit(document: Document) -> bool | None:
            if queue in document.queues:
                return None
            document.queues[queue] = {
                **row,
                "owner": self._owner,
                "since": time.time(),
                "consumed": False,
            }
            return True

        there = self.view().queues.get(queue)
        if there is None:
            if is_temporary(row):
                self.remove_leftovers()
            self.declared.change(edit)
            there = self.row(queue)
        for name, value in row.items():
            if there[name] != value:
                raise PreconditionFailed(
                    f"PRECONDITION_FAILED - inequivalent arg {name!r} for queue {queue!r} in "
                    f"segment {self.settings.segment!r}: received {value!r}, current is "
                    f"{there[name]!r}"
                )
        self.topics(queue)

    def topics(self, queue: str) -> list[Topic]:
        """The topics of a queue, that of the highest priority first."""
        row = self.row(queue)
        return [self._topic(queue, row, level) for level in range(levels_of(row) - 1, -1, -1)]

    def _topic(self, queue: str, row: Mapping[str, Any], level: int) -> Topic:
        name = topic_name(self.settings.prefix, queue, level)
        topic = self._topics.get(name)
        if topic is None:
            topic = self._open(queue, name, row)
            topic.channel(CHANNEL)
            if queue not in self.view().queues:  # it was deleted meanwhile, and made by us
                self._delete_topics({name})
                raise TopicDeleted(f"the queue {queue!r} was deleted")
            self._topics[name] = topic
        return topic

    def _open(self, queue: str, name: str, row: Mapping[str, Any]) -> Topic:
        options = _topic_options(row, durable=self.settings.durable)
        try:
            return self.connection.topic(name, **options)
        except TooManyTopics:
            if not self.remove_leftovers():
                raise
            return self.connection.topic(name, **options)
        except ProgrammingError as error:
            text = f"PRECONDITION_FAILED - queue {queue!r}: {error}"
            raise PreconditionFailed(text) from error

    def channels(self, queue: str) -> list[Channel]:
        """The channels of a queue's topics, that of the highest priority first."""
        for _ in range(_TRIES):
            row = self.row(queue)
            try:
                return [topic.channel(CHANNEL) for topic in self.topics(queue)]
            except TopicDeleted:  # what is cached here was, and perhaps it was made again
                self.forget(queue, row)
        raise _deleted([queue])

    def size(self, queue: str) -> int:
        """How many messages are ready."""
        return sum(channel.stats().depth for channel in self.channels(queue))

    def consumers(self, queue: str) -> int:
        """How many consumers it has, in all processes."""
        return max(len(channel.stats().consumers) for channel in self.channels(queue))

    def consumed(self, queue: str) -> None:
        """Note that it has a consumer: one that goes with its last consumer goes from now on."""

        def edit(document: Document) -> bool | None:
            row = document.queues.get(queue)
            if row is None or row["consumed"]:
                return None
            row["consumed"] = True
            return True

        row = self.row(queue)
        if row["auto_delete"] and not row["consumed"]:
            self.declared.change(edit)

    def released(self, queue: str) -> None:
        """Note that a consumer of it has gone."""

        def edit(document: Document) -> bool | None:
            row = document.queues.get(queue)
            if row is None or self.consumers(queue):
                return None
            if row["auto_delete"] and row["consumed"]:
                return document.remove_queue(queue)
            row["since"] = time.time()
            return True

        row = self.view().queues.get(queue)
        if row is None or not (row["auto_delete"] or "x-expires" in row["arguments"]):
            return
        with suppress(TopicDeleted, ChannelError):  # another process has removed it
            if not self.consumers(queue) and self.declared.change(edit):
                self._delete_topics(_names(self.settings.prefix, {queue: row}))  # if it is out

    def delete(self, queue: str) -> None:
        """Take the queue out, with its bindings and messages."""
        row = self.view().queues.get(queue)
        if row is not None:
            self.declared.change(lambda document: document.remove_queue(queue) or None)
            self.forget(queue, row)
            self._delete_topics(_names(self.settings.prefix, {queue: row}))

    def _delete_topics(self, names: set[str]) -> None:
        """Delete topics, but for those of queues that are declared again by now."""

        def edit(document: Document) -> None:
            left = names.intersection(self.connection.topics())
            for name in left - _names(self.settings.prefix, document.queues):
                with suppress(TopicDeleted):
                    self.connection.topic(name).delete()

        self.declared.change(edit)

    def forget(self, queue: str, row: Mapping[str, Any]) -> None:
        """Its topics were deleted: take them up again when it is used."""
        for name in _names(self.settings.prefix, {queue: row}):
            self._topics.pop(name, None)

    def purge(self, queue: str) -> int:
        """Take out what is ready, and return how much it was."""
        purged = 0
        for channel in self.channels(queue):
            with channel.consumer(max_in_flight=1000) as consumer:
                for _ in range(channel.stats().depth):
                    try:
                        message = consumer.get(0)
                    except TimeoutError:
                        break
                    message.finish()
                    purged += 1
        return purged

    # ---- publishing ----------------------------------------------------------------------

    def publish(self, queues: Iterable[str], body: bytes, priority: int, ttl: float | None) -> None:
        """Put a message into queues, all or none.  One that was deleted meanwhile is left out."""
        for _ in range(_TRIES):
            rows = self.view().queues
            there = [queue for queue in queues if queue in rows]
            try:
                topics = [self._topic_for(queue, rows[queue], priority) for queue in there]
                if len(topics) == 1:
                    _put(topics[0], body, ttl)
                elif topics:
                    with self.connection.transaction():
                        for topic in topics:
                            _put(topic, body, ttl)
            except TopicDeleted:
                for queue in there:
                    self.forget(queue, rows[queue])
            else:
                return
        raise _deleted(queues)

    def _topic_for(self, queue: str, row: Mapping[str, Any], priority: int) -> Topic:
        return self._topic(queue, row, min(priority, levels_of(row) - 1) if priority > 0 else 0)

    # ---- what killed processes left ------------------------------------------------------

    def remove_leftovers(self) -> bool:
        """Remove queues whose time is over, and topics of no queue; whether there were any."""

        def edit(document: Document) -> list[str] | None:
            rows = document.queues
            over = [queue for queue in left if queue in rows and self._is_over(queue, rows[queue])]
            for queue in over:
                document.remove_queue(queue)
            return over or None

        prefix = self.settings.prefix
        # Before the queues, which are declared first.
        ours = {name for name in self.connection.topics() if name.startswith(f"{prefix}.")}
        rows = self.view().queues
        left = [queue for queue, row in rows.items() if self._is_over(queue, row)]
        if left and (over := self.declared.change(edit)):
            logger.debug("%s: the queues %s were left over", self.settings.segment, over)
        topics = ours - _names(prefix, self.view().queues)
        if topics:
            self._delete_topics(topics)
        return bool(topics)

    def _is_over(self, queue: str, row: Mapping[str, Any]) -> bool:
        if not is_temporary(row):
            return False
        gone = not _is_alive(row["owner"])
        if row["exclusive"] and gone:
            return True
        try:
            if self.consumers(queue):
                return False
        except (TopicDeleted, ChannelError):
            return False  # another process removes it
        over = row["auto_delete"] and row["consumed"]
        expires = row["arguments"].get("x-expires")
        if expires is not None:
            # Of a reply queue there is only the one reader, which declared it.
            over = over or (row["auto_delete"] and gone)
            over = over or time.time() - row["since"] > expires / 1000
        return bool(over)
