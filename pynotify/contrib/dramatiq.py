"""dramatiq: a broker on topics of a segment.

```
broker = PynotifyBroker("app")
dramatiq.set_broker(broker)

@dramatiq.actor
def mail(to: str) -> None: ...
```

`dramatiq module` runs the actors.  A queue is a topic.  A message is acknowledged when its actor
has returned, or has failed for good; that of a worker which is killed comes to another one at once.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, TypeVar

from dramatiq import Broker, Consumer, Message, MessageProxy
from dramatiq.common import xq_name
from dramatiq.errors import ConnectionClosed, DecodeError, QueueJoinTimeout, QueueNotFound

from pynotify._connect import connect
from pynotify._segments import check_name
from pynotify.contrib._own import PerProcess
from pynotify.errors import (
    InterfaceError,
    MessageNotInFlight,
    NotOwner,
    SegmentUnlinked,
    Timeout,
    TopicDeleted,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Unpack

    from dramatiq.middleware import Middleware

    from pynotify import topics
    from pynotify._connection import Connection
    from pynotify._open_options import OpenOptions

__all__ = ["PynotifyBroker"]

_T = TypeVar("_T")

_CHANNEL = "workers"
_MOST_IN_FLIGHT = 65535
_LOOK_AGAIN_S = 0.05
_LOST = (SegmentUnlinked, TopicDeleted, InterfaceError)


class PynotifyBroker(Broker):
    """The broker.  Each process connects when it uses it, so it may be made before a fork.

    `prefix`: how the names of the topics begin.  `dead_message_ttl`: milliseconds for which a
    message that failed for good is kept, in the topic of `QUEUE.XQ`.  `task_timeout`: seconds after
    which a message that is not acknowledged goes to another worker, though its worker lives.
    `durable`: messages survive a reboot; it needs `data_dir`.  `wakeup` and `options` as of
    `pynotify.connect`.

    A delayed message waits in its topic, and not in a worker; so there are no delay queues.
    """

    def __init__(
        self,
        segment: str = "default",
        *,
        middleware: list[Middleware] | None = None,
        prefix: str = "dramatiq",
        dead_message_ttl: int = 7 * 86_400_000,
        task_timeout: float = 86400.0,
        durable: bool = False,
        wakeup: str | int | None = None,
        **options: Unpack[OpenOptions],
    ) -> None:
        super().__init__(middleware)
        check_name(segment)
        self.queues: set[str] = set()
        self._task_timeout = task_timeout
        self._session = PerProcess(
            lambda: _Session(
                connect(segment, wakeup=wakeup, **options), prefix, durable, dead_message_ttl / 1000
            ),
            lambda session: not session.connection.closed,
        )

    def close(self) -> None:
        """Give the connection up; what is not acknowledged goes to other workers."""
        session = self._session.take()
        if session is not None:
            session.connection.close()

    # ---- queues --------------------------------------------------------------------------

    def declare_queue(self, queue_name: str) -> None:
        """Make a queue, unless it was declared; its topic is made when a process uses it."""
        if queue_name in self.queues:
            return
        self.emit_before("declare_queue", queue_name)
        self.queues.add(queue_name)
        self.emit_after("declare_queue", queue_name)

    def get_declared_queues(self) -> set[str]:
        """The names of the queues that were declared in this process."""
        return set(self.queues)

    def flush(self, queue_name: str) -> None:
        """Drop a queue's messages, but for those that workers have.  Raises `QueueNotFound`."""
        self._on_topic(queue_name, lambda topic: topic.channel(_CHANNEL).empty())

    def flush_all(self) -> None:
        """Drop the messages of all queues, but for those that workers have."""
        for queue_name in list(self.queues):
            self.flush(queue_name)

    def join(self, queue_name: str, *, timeout: int | None = None) -> None:
        """Wait until a queue is empty and its messages are done, for at most `timeout` ms.

        It looks every 50 ms, and is meant for tests.  Raises `QueueNotFound`, `QueueJoinTimeout`.
        """
        deadline = None if timeout is None else time.monotonic() + timeout / 1000
        while self._on_topic(queue_name, lambda topic: topic.stats().unfinished):
            if deadline is not None and time.monotonic() >= deadline:
                raise QueueJoinTimeout(queue_name)
            time.sleep(_LOOK_AGAIN_S)

    def _on_topic(self, queue_name: str, act: Callable[[topics.Topic], _T]) -> _T:
        """Do something with a queue's topic, which is made when there is none.

        Raises `QueueNotFound`, and `ConnectionClosed` when the segment was removed: then the next
        call connects again.
        """
        if queue_name not in self.queues:
            raise QueueNotFound(queue_name)
        try:
            session = self._session.get()
            try:
                return act(session.topic(queue_name))
            except TopicDeleted:  # by `pynotify topics delete`
                session.forget(queue_name)
                return act(session.topic(queue_name))
        except SegmentUnlinked as error:
            self.close()
            raise ConnectionClosed(str(error)) from error
        except (TopicDeleted, InterfaceError) as error:
            raise ConnectionClosed(str(error)) from error

    # ---- messages ------------------------------------------------------------------------

    def enqueue(self, message: Message[Any], *, delay: int | None = None) -> Message[Any]:
        """Publish a message, to be delivered after `delay` ms.

        Raises `QueueNotFound`, `pynotify.TopicFull`, `pynotify.PayloadTooLong`, and
        `ConnectionClosed` when the segment was removed: the next call connects again.
        """
        if message.queue_name not in self.queues:
            raise QueueNotFound(message.queue_name)
        self.emit_before("enqueue", message, delay)
        body, seconds = message.encode(), (delay or 0) / 1000
        self._on_topic(message.queue_name, lambda topic: topic.publish(body, delay=seconds))
        self.emit_after("enqueue", message, delay)
        return message

    def consume(self, queue_name: str, prefetch: int = 1, timeout: int = 30000) -> Consumer:
        """A consumer, which has at most `prefetch` messages, and waits `timeout` ms for one.

        Raises `QueueNotFound`, `ConnectionClosed`.
        """

        def open_consumer(topic: topics.Topic) -> topics.Consumer:
            return topic.channel(_CHANNEL).consumer(
                max_in_flight=min(max(prefetch, 1), _MOST_IN_FLIGHT),
                msg_timeout=self._task_timeout,
                max_msg_timeout=self._task_timeout,
                max_attempts=0,  # how often an actor is tried again, dramatiq knows
                dead_letter=self._session.get().dead_topic(queue_name).name,
            )

        return _Consumer(self, self._on_topic(queue_name, open_consumer), timeout / 1000)


class _Session:
    """A process's connection, and its topics."""

    def __init__(self, connection: Connection, prefix: str, durable: bool, dead_ttl: float) -> None:
        self.connection = connection
        self._prefix, self._dead_ttl = prefix, dead_ttl
        self._options: dict[str, Any] = {"durable": True} if durable else {}
        self._topics: dict[str, topics.Topic] = {}

    def topic(self, queue_name: str) -> topics.Topic:
        """The topic of a queue, with the workers' channel."""
        topic = self._topics.get(queue_name)
        if topic is None:
            topic = self.connection.topic(f"{self._prefix}.{queue_name}", **self._options)
            topic.channel(_CHANNEL)
            self._topics[queue_name] = topic
        return topic

    def dead_topic(self, queue_name: str) -> topics.Topic:
        """The topic of a queue's dead letters."""
        topic = self.topic(xq_name(queue_name))
        topic.configure(default_ttl=self._dead_ttl)
        return topic

    def forget(self, queue_name: str) -> None:
        """Its topics were deleted."""
        self._topics.pop(queue_name, None)
        self._topics.pop(xq_name(queue_name), None)


class _Consumer(Consumer):
    """A consumer of a topic for dramatiq's consumer thread."""

    def __init__(self, broker: PynotifyBroker, consumer: topics.Consumer, timeout: float) -> None:
        self._broker, self._consumer, self._timeout = broker, consumer, timeout

    def __next__(self) -> MessageProxy | None:
        try:
            message = self._consumer.get(self._timeout)
        except Timeout:
            return None
        except _LOST as error:  # dramatiq consumes again in a second
            raise ConnectionClosed(str(error)) from error
        try:
            return _Proxy(message)
        except DecodeError:
            self._broker.logger.exception("Failed to decode message %s.", message.id)
            message.dead_letter("not a message of dramatiq")
            return None

    def ack(self, message: MessageProxy) -> None:
        """The message is done."""
        self._answer(message, lambda taken: taken.finish())

    def nack(self, message: MessageProxy) -> None:
        """Give it up: it goes to the dead letters."""
        self._answer(message, lambda taken: taken.dead_letter("rejected"))

    def _answer(self, message: Any, answer: Any) -> None:
        try:
            answer(message.taken)
        except (MessageNotInFlight, NotOwner, *_LOST) as error:
            # Its consumer was closed, or it took longer than task_timeout: another worker has it.
            reason = str(error).partition("\n")[0]
            self._broker.logger.warning("Message %s was late: %s", message.message_id, reason)

    def requeue(self, messages: Iterable[MessageProxy]) -> None:
        """Nothing: `close()` gives back what is not answered, to where it was."""

    def close(self) -> None:
        """Give back what is not answered."""
        self._consumer.close()


class _Proxy(MessageProxy):
    """A message of dramatiq, with that of the topic."""

    def __init__(self, taken: topics.Message) -> None:
        super().__init__(Message.decode(taken.body))
        self.taken = taken
