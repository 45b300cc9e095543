"""A channel of kombu: its exchanges and queues are those of the segment."""

from __future__ import annotations

import warnings
from contextlib import suppress
from itertools import count
from typing import TYPE_CHECKING, Any

from amqp.exceptions import RecoverableConnectionError
from amqp.protocol import queue_declare_ok_t
from kombu.transport import base, virtual
from kombu.transport.virtual.base import (
    NOT_EQUIVALENT_FMT,
    UNDELIVERABLE_FMT,
    NotEquivalentError,
    UndeliverableWarning,
)
from kombu.utils.uuid import uuid

from pynotify._locks import RLock
from pynotify._log import logger
from pynotify.contrib.kombu._feed import MOST, Feed, Held, Source
from pynotify.contrib.kombu._wire import decoded, encoded, expiration
from pynotify.errors import (
    Error,
    ForkedConnectionError,
    InterfaceError,
    MessageNotInFlight,
    NotOwner,
    TopicDeleted,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pynotify.contrib.kombu._declared import Document, View
    from pynotify.contrib.kombu._session import Session
    from pynotify.topics import Message


class QoS:
    """What a channel's consumers have not acknowledged, and how much that may be."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self.prefetch_count = 0
        self.held: dict[int, Held] = {}
        #: The tags of those that count against `prefetch_count`.
        self._counted: set[int] = set()

    @property
    def counted(self) -> int:
        """How many messages count against the prefetch count."""
        return len(self._counted)

    def can_consume(self) -> bool:
        """Whether consumers may get a message."""
        return not self.prefetch_count or self.counted < self.prefetch_count

    def can_consume_max_estimate(self) -> int | None:
        """How many messages more consumers may get, None: no limit."""
        return max(self.prefetch_count - self.counted, 0) if self.prefetch_count else None

    def add(self, delivery_tag: int, held: Held) -> None:
        """Note a message that is delivered now."""
        held.feed.held.add(delivery_tag)
        self.held[delivery_tag] = held
        if held.counts:
            self._counted.add(delivery_tag)

    def get(self, delivery_tag: int) -> Any:
        """The message of a tag, as it was delivered.  Raises KeyError."""
        return self.held[delivery_tag].delivered

    def _answer(self, delivery_tag: int, answer: Callable[[Message], object]) -> None:
        held = self.held.pop(delivery_tag, None)
        if held is None:
            return
        self._counted.discard(delivery_tag)
        try:
            answer(held.message)
        except ForkedConnectionError:
            raise
        except (InterfaceError, MessageNotInFlight, NotOwner, TopicDeleted) as late:
            # It went back with its consumer, was purged, or took longer than visibility_timeout.
            reason = str(late).partition("\n")[0]
            logger.warning("message %s was acknowledged too late: %s", held.message.id, reason)
        finally:
            held.feed.held.discard(delivery_tag)
            self._channel.answered(held.feed)

    def ack(self, delivery_tag: int, multiple: bool = False) -> None:
        """The message is done; `multiple`: and all that were delivered before it."""
        tags = [tag for tag in list(self.held) if tag < delivery_tag] if multiple else []
        for tag in [*tags, delivery_tag]:
            self._answer(tag, lambda message: message.finish())

    def reject(self, delivery_tag: int, requeue: bool = False) -> None:
        """Put it to the end of the queue, or give it up: it goes to `dead_letter`."""
        if requeue:
            self._answer(delivery_tag, lambda message: message.requeue())
        else:
            self._answer(delivery_tag, lambda message: message.dead_letter("rejected"))

    def restore_unacked(self) -> list[Any]:
        """Put all messages to the end of their queues."""
        for tag in list(self.held):
            self.reject(tag, requeue=True)
        return []

    def restore_unacked_once(self, stderr: Any = None) -> None:
        """Nothing: closing the consumers gives their messages back, to where they were."""

    def restore_visible(self, *_: Any, **__: Any) -> None:
        """Nothing: the core does it when a process dies, or when visibility_timeout is over."""


class Channel(virtual.Channel):  # type: ignore[misc]
    """A channel over a segment."""

    QoS = QoS
    supports_fanout = True

    def __init__(self, connection: Any, **options: Any) -> None:
        super().__init__(connection, **options)
        self._tags = count(1)
        #: By consumer tag.
        self._sources: dict[str, Source] = {}
        #: Of basic_get, by queue.
        self._getters: dict[str, Source] = {}
        #: Of consumers that were cancelled, until what they have is acknowledged.
        self._leaving: dict[Feed, str] = {}
        self._settling = RLock()

    @property
    def session(self) -> Session:
        """What the transport has in this process."""
        session: Session = self.connection.session
        return session

    # ---- exchanges -----------------------------------------------------------------------

    def exchange_declare(  # noqa: PLR0917, AMQP's
        self,
        exchange: str | None = None,
        type: str | None = "direct",
        durable: bool = False,
        auto_delete: bool = False,
        arguments: Any = None,
        nowait: bool = False,
        passive: bool = False,
    ) -> None:
        """Make an exchange, or see that it is there as it is asked for."""
        type = type or "direct"
        exchange = exchange or f"amq.{type}"
        row = {
            "type": type,
            "durable": bool(durable),
            "auto_delete": bool(auto_delete),
            "arguments": arguments or {},
        }

        def edit(document: Document) -> bool | None:
            return (
                None
                if exchange in document.exchanges
                else not document.exchanges.update({exchange: row})
            )

        there = self.session.view().exchanges.get(exchange)
        if there is None and passive:
            raise self.session.not_found("exchange", exchange)
        if there is None:
            self.session.declared.change(edit)
            there = self.session.view().exchanges.get(exchange, row)
        if not passive and not self.typeof(exchange).equivalent(there, exchange, *row.values()):
            raise NotEquivalentError(
                NOT_EQUIVALENT_FMT.format(exchange, self.session.settings.database)
            )

    def exchange_delete(self, exchange: str, if_unused: bool = False, nowait: bool = False) -> None:
        """Take an exchange out, with its bindings."""

        def edit(document: Document) -> bool | None:
            bound = [each for each in document.bindings if each[0] == exchange]
            if exchange not in document.exchanges or (if_unused and bound):
                return None
            del document.exchanges[exchange]
            document.bindings = [each for each in document.bindings if each[0] != exchange]
            return True

        self.session.declared.change(edit)

    def typeof(self, exchange: str, default: str = "direct") -> Any:
        """What implements the type of an exchange."""
        row = self.session.view().exchanges.get(exchange, {"type": default})
        return self.exchange_types[row["type"]]

    def get_exchanges(self) -> list[str]:
        """The names of all exchanges."""
        return list(self.session.view().exchanges)

    def get_table(self, exchange: str) -> list[tuple[str, Any, str]]:
        """The bindings of an exchange."""
        return self._table(self.session.view(), exchange)

    def _table(self, view: View, exchange: str) -> list[tuple[str, Any, str]]:
        table = view.tables.get(exchange)
        if table is None:
            prepare = self.typeof(exchange).prepare_bind
            table = view.tables[exchange] = [
                prepare(queue, exchange, key, arguments)
                for source, key, queue, arguments in view.bindings
                if source == exchange
            ]
        return table

    def list_bindings(self) -> Iterable[tuple[str, str, str]]:
        """Queue, exchange and routing key of all bindings."""
        return [(queue, source, key) for source, key, queue, _ in self.session.view().bindings]

    def queue_bind(
        self, queue: str, exchange: str | None = None, routing_key: str = "",
        arguments: Any = None, **_: Any,
    ) -> None:  # fmt: skip
        """Have an exchange put messages of a routing key into a queue."""
        exchange = exchange or "amq.direct"
        key = routing_key or ""

        def edit(document: Document) -> bool | None:
            if document.has_binding(exchange, key, queue):
                return None
            document.bindings.append((exchange, key, queue, arguments))
            return True

        if not self.session.view().has_binding(exchange, key, queue):
            self.session.declared.change(edit)

    def queue_unbind(
        self, queue: str, exchange: str | None = None, routing_key: str = "",
        arguments: Any = None, **_: Any,
    ) -> None:  # fmt: skip
        """Undo `queue_bind`."""
        bound = (exchange or "amq.direct", routing_key or "", queue)

        def edit(document: Document) -> bool | None:
            if not document.has_binding(*bound):
                return None
            document.bindings = [each for each in document.bindings if tuple(each[:3]) != bound]
            return True

        self.session.declared.change(edit)

    # ---- queues --------------------------------------------------------------------------

    def queue_declare(  # noqa: PLR0917, AMQP's
        self,
        queue: str | None = None,
        passive: bool = False,
        durable: bool = False,
        exclusive: bool = False,
        auto_delete: bool = False,
        nowait: bool = False,
        arguments: Any = None,
        **_: Any,
    ) -> Any:
        """Make a queue, or see that it is there as it is asked for."""
        queue = queue or f"amq.gen-{uuid()}"
        if passive:
            self.session.row(queue)
        else:
            self._new_queue(
                queue,
                durable=durable,
                exclusive=exclusive,
                auto_delete=auto_delete,
                arguments=arguments,
            )
        return queue_declare_ok_t(queue, self._size(queue), self.session.consumers(queue))

    def prepare_queue_arguments(self, arguments: Any, **options: Any) -> Any:
        """The arguments of RabbitMQ."""
        return base.to_rabbitmq_queue_arguments(arguments, **options)

    def queue_delete(
        self, queue: str, if_unused: bool = False, if_empty: bool = False, **_: Any
    ) -> None:
        """Take a queue out, with its bindings and messages."""
        if queue not in self.session.view().queues:
            return
        if if_empty and self._size(queue):
            return
        if if_unused and self.session.consumers(queue):
            return
        self.session.delete(queue)

    def _new_queue(self, queue: str, **options: Any) -> None:
        flags = ("durable", "exclusive", "auto_delete")
        row = {name: bool(options.get(name)) for name in flags}
        self.session.declare(queue, {**row, "arguments": dict(options.get("arguments") or {})})

    def _has_queue(self, queue: str, **_: Any) -> bool:
        return queue in self.session.view().queues

    def _size(self, queue: str) -> int:
        return self.session.size(queue)

    def _purge(self, queue: str) -> int:
        return self.session.purge(queue)

    def _delete(self, queue: str, *_: Any, **__: Any) -> None:
        self.session.delete(queue)

    # ---- publishing ----------------------------------------------------------------------

    def basic_publish(
        self, message: dict[str, Any], exchange: str, routing_key: str, **_: Any
    ) -> None:
        """Put a message into the queues that it goes to, all or none."""
        message["properties"]["delivery_info"].update(exchange=exchange, routing_key=routing_key)
        self._publish(self._routes(exchange, routing_key), message)

    def _routes(self, exchange: str, routing_key: str) -> list[str]:
        view = self.session.view()
        queues = view.routes.get((exchange, routing_key))
        if queues is None:
            if not exchange:
                queues = [routing_key] if routing_key in view.queues else []
            else:
                table = self._table(view, exchange)
                queues = list(self.typeof(exchange).lookup(table, exchange, routing_key, None))
            view.routes[(exchange, routing_key)] = queues
        if not queues and self.deadletter_queue:
            text = UNDELIVERABLE_FMT.format(exchange=exchange, routing_key=routing_key)
            warnings.warn(UndeliverableWarning(text), stacklevel=4)
            if self.deadletter_queue not in view.queues:
                self._new_queue(self.deadletter_queue)
            queues = [self.deadletter_queue]
        return queues

    def _publish(self, queues: list[str], message: dict[str, Any]) -> None:
        priority = self._get_message_priority(message)
        self.session.publish(queues, encoded(message), priority, expiration(message))

    def _put(self, queue: str, message: dict[str, Any], **_: Any) -> None:
        self._publish([queue], message)

    def _put_fanout(
        self, exchange: str, message: dict[str, Any], routing_key: str, **_: Any
    ) -> None:
        self._publish(self._routes(exchange, routing_key), message)

    # ---- consuming -----------------------------------------------------------------------

    def basic_qos(
        self, prefetch_size: int = 0, prefetch_count: int = 0, apply_global: bool = False
    ) -> None:
        """How many messages this channel's consumers may have unacknowledged, 0: no limit."""
        self.qos.prefetch_count = prefetch_count or 0
        self._settle()

    def basic_consume(
        self,
        queue: str,
        no_ack: bool = False,
        callback: Any = None,
        consumer_tag: str | None = None,
        **_: Any,
    ) -> str:
        """Consume a queue: `callback` gets its messages in `drain_events`."""
        tag = consumer_tag or uuid()
        self.connection.claim()
        self.connection.declare_dead_letter(self)
        source = Source(self.session, queue, 0, no_ack=no_ack, callback=callback)
        self._consumers.add(tag)
        self._tag_to_queue[tag] = queue
        self._sources[tag] = source
        self._settle()
        self.session.consumed(queue)
        self.connection.watch(self, source)
        return tag

    def basic_cancel(self, consumer_tag: str) -> None:
        """End a consumer.  What it has not acknowledged can be acknowledged still."""
        source = self._sources.pop(consumer_tag, None)
        self._consumers.discard(consumer_tag)
        self._tag_to_queue.pop(consumer_tag, None)
        if source is None or not self.connection.is_ours:
            return
        self.connection.unwatch(source)
        for feed in source.feeds:
            if feed.held:
                feed.consumer.drain(0)
                self._leaving[feed] = source.queue
            else:
                feed.consumer.close()
        self._settle()
        self.session.released(source.queue)

    def basic_get(self, queue: str, no_ack: bool = False, **_: Any) -> Any:
        """The next message of a queue, None: there is none."""
        self.connection.claim()
        getter = self._getters.get(queue)
        if getter is None:
            getter = self._getters[queue] = Source(self.session, queue, 0)
        for feed in getter.feeds:
            feed.set_level(len(feed.held) + 1)
            try:
                message = feed.take()
            except TopicDeleted:
                self._getters.pop(queue).close()
                return None
            finally:
                feed.set_level(len(feed.held))
            if message is not None:
                return self._delivered(message, feed, no_ack=no_ack, counts=False)
        return None

    def deliver(self, source: Source) -> bool:
        """Give the next message of a consumer to its callback; False: it gets none.

        What the prefetch count allows is the level of its feeds.  The look in vain is what makes
        their descriptors quiet.
        """
        try:
            taken = source.take()
        except TopicDeleted as error:
            text = f"the queue {source.queue!r} was deleted while it was consumed"
            raise RecoverableConnectionError(text) from error
        if taken is None:
            return False
        message = self._delivered(*taken, no_ack=source.no_ack, counts=not source.no_ack)
        if message is not None and source.callback is not None:
            source.callback(message)
        return True

    def _delivered(self, message: Message, feed: Feed, *, no_ack: bool, counts: bool) -> Any:
        tag = next(self._tags)
        try:
            delivered = self.Message(decoded(message, tag), channel=self)
        except (ValueError, KeyError, TypeError, AttributeError):
            logger.exception("message %s of %r is not kombu's", message.id, feed.consumer)
            message.dead_letter("not a message of kombu")
            return None
        if no_ack:
            with suppress(MessageNotInFlight, NotOwner, TopicDeleted):  # the queue was deleted
                message.finish()
        else:
            self.qos.add(tag, Held(message, feed, counts, delivered))
            if counts and self._bounds_several:
                self._settle()
        return delivered

    @property
    def _bounds_several(self) -> bool:
        return bool(self.qos.prefetch_count) and len(self._bounded()) + len(self._leaving) > 1

    def _bounded(self) -> list[Feed]:
        sources = list(self._sources.values())
        return [feed for source in sources if not source.no_ack for feed in source.feeds]

    def _settle(self) -> None:
        """Let no feed have what the prefetch count does not allow.

        A single one may fetch as much ahead; of several, which share it, each takes one at a time.
        """
        with self._settling:
            feeds, qos = self._bounded(), self.qos
            for feed in feeds:
                if not qos.prefetch_count:
                    level = MOST
                elif len(feeds) == 1:
                    level = max(qos.prefetch_count - (qos.counted - len(feed.held)), 0)
                else:
                    level = len(feed.held) + qos.can_consume()
                feed.set_level(level)
            for source in list(self._sources.values()):
                if source.no_ack:
                    for feed in source.feeds:
                        feed.set_level(MOST)

    def answered(self, feed: Feed) -> None:
        """A message of a feed was answered."""
        if self._bounds_several:
            self._settle()
        if not feed.held and feed in self._leaving:
            queue = self._leaving.pop(feed)
            feed.consumer.close()
            if self.connection is not None:
                self.session.released(queue)

    def basic_ack(self, delivery_tag: int, multiple: bool = False) -> None:
        """The message is done; `multiple`: and all that were delivered before it."""
        self.qos.ack(delivery_tag, multiple)

    def drain_events(self, timeout: float | None = None, callback: Any = None) -> None:
        """Wait for a message of any channel of the connection."""
        self.connection.drain_events(self.connection, timeout=timeout)

    def close(self) -> None:
        """End the consumers.  What is not acknowledged goes back to where it was."""
        if self.closed:
            return
        if self.connection is not None and self.connection.is_ours:
            for tag in list(self._sources):
                with suppress(Error):  # the segment may be gone
                    self.basic_cancel(tag)
            self._close_others()
        super().close()

    def _close_others(self) -> None:
        leaving, self._leaving = self._leaving, {}
        getters, self._getters = self._getters, {}
        for feed in leaving:
            feed.consumer.close()
        for getter in getters.values():
            getter.close()
        for queue in {*leaving.values(), *getters}:
            with suppress(Error):
                self.session.released(queue)

    def abandon(self) -> None:
        """Forget everything, in a forked child: it is the parent's."""
        self._sources, self._getters, self._leaving = {}, {}, {}
        self._consumers.clear()
        self._qos = None
