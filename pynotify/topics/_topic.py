"""A topic: what is published there goes to each of its channels."""

from __future__ import annotations

import errno
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn
from weakref import WeakValueDictionary

from pynotify._encoding import join_payloads
from pynotify._ffi import again, ffi, lib
from pynotify.errors import TopicDeleted
from pynotify.topics._channel import AsyncChannel, Channel, channel_as_seen_by
from pynotify.topics._content import MessageIds, Outgoing, encode_body, parse_id
from pynotify.topics._options import channel_bound, encode_name, naming, topic_options
from pynotify.topics._stats import TopicStats, all_rows, name_of, topic_stats

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from typing_extensions import Buffer

    from pynotify._async_connection import AsyncConnection
    from pynotify._base import BaseConnection
    from pynotify._connection import Connection

_pn_topic_publish_body = lib.pn_topic_publish_body
_EINTR = -errno.EINTR


class BaseTopic:
    """Of threads and of tasks."""

    __slots__ = ("__weakref__", "_connection", "_made", "_name", "_ref")

    def __init__(self, connection: BaseConnection, name: str, ref: int) -> None:
        self._connection = connection
        self._name = name
        self._ref = ref
        #: The same object for the same channel, while somebody has it.
        self._made: WeakValueDictionary[int, Any] = WeakValueDictionary()

    @property
    def name(self) -> str:
        """Its name, which is one in the connection's database."""
        return self._name

    def _publish(
        self,
        body: str | Buffer,
        delay: float,
        ttl: float | None,
        headers: Mapping[str, str] | None,
    ) -> str:
        """May be repeated."""
        connection = self._connection
        data = connection._attempt(encode_body, body)
        message = connection._attempt(Outgoing, delay, ttl, headers)
        native = message.native
        native.body = content = ffi.from_buffer("char[]", data)
        native.body_len = len(content)
        number = ffi.new("uint64_t *")
        connection._run_deferred(lib.pn_topic_publish, self._ref, native, number)
        return f"{number[0]:016x}"

    def _publish_body(self, body: str | Buffer) -> str:
        """Nothing but the body, outside of a transaction, in as few steps as possible.

        May be repeated.
        """
        data = body if type(body) is bytes else encode_body(body)
        connection = self._connection
        number = _pn_topic_publish_body(connection._handle, self._ref, data, len(data))
        if number == _EINTR:
            number = again(
                lambda: _pn_topic_publish_body(connection._handle, self._ref, data, len(data))
            )
        if number < 0:
            connection._check(number)
        return f"{number:016x}"

    def _publish_many(
        self,
        bodies: Iterable[str | Buffer],
        delay: float,
        ttl: float | None,
        headers: Mapping[str, str] | None,
    ) -> MessageIds:
        """May be repeated."""
        connection = self._connection
        blob, lengths = connection._attempt(join_payloads, bodies)
        message = connection._attempt(Outgoing, delay, ttl, headers)
        if not lengths:
            connection._check_usable()
            return MessageIds(range(0))
        first = ffi.new("uint64_t *")
        connection._run_deferred(
            lib.pn_topic_publish_many,
            self._ref,
            ffi.from_buffer("char[]", blob),
            ffi.from_buffer("uint32_t[]", lengths),
            len(lengths),
            message.native,
            first,
        )
        return MessageIds(range(first[0], first[0] + len(lengths)))

    def _cancel(self, message_id: str) -> bool:
        """May be repeated."""
        connection = self._connection
        number = connection._attempt(parse_id, message_id)
        return bool(connection._run_deferred(lib.pn_topic_cancel, self._ref, number))

    def _set_paused(self, paused: bool) -> None:
        self._connection._run_at_once(lib.pn_topic_pause, self._ref, paused)

    def _empty(self) -> None:
        self._connection._run_at_once(lib.pn_topic_empty, self._ref)

    def _delete(self) -> None:
        self._connection._run_at_once(lib.pn_topic_delete, self._ref)

    def _stats(self) -> TopicStats:
        return stats_of_topic(self._connection, self._ref)

    def _channels(self) -> list[str]:
        return sorted(name_of(row) for _, row in channel_rows(self._connection, self._ref))

    def _channel_ref(self, name: str, max_consumers: int) -> int:
        encoded = encode_name(name, "channel")
        out = ffi.new("pn_ref *")
        bound = channel_bound(max_consumers)
        with naming(name, "channel"):
            self._connection._run_at_once(
                lib.pn_topic_channel_open, self._ref, encoded, len(encoded), bound, out
            )
        return int(out[0])

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, BaseTopic):
            return NotImplemented
        return (self._ref, self._connection) == (other._ref, other._connection)

    def __hash__(self) -> int:
        return hash(self._ref)

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"cannot pickle a {type(self).__name__}: it belongs to a connection of this process\n"
            "Pickle its name, and call topic() of a connection over there."
        )

    def __repr__(self) -> str:
        return f"<pynotify.{type(self).__name__} {self._name}>"


class Topic(BaseTopic):
    """Where messages are published, made by `Connection.topic`.

    Each of its channels gets every message.  As long as there is no channel, messages stay with the
    topic, for the first one.  Every method raises `TopicDeleted` when it was deleted.
    """

    __slots__ = ()
    _connection: Connection
    _made: WeakValueDictionary[int, Channel]

    def publish(
        self,
        body: str | Buffer,
        *,
        delay: float = 0.0,
        ttl: float | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> str:
        """Publish a message; its id, 16 hex digits.

        `body`: str (published as UTF-8) or bytes-like, 1 byte to the segment's `max_body`, else
        `ProgrammingError` or `PayloadTooLong`.  `delay`: seconds until anybody gets it; `ttl`:
        seconds after which nobody does any more; both from the commit on.  `headers`: str to str.
        Raises `TopicFull`, at commit inside a transaction; `SyncFailed` of a topic with
        `fsync="always"`: it is published, but not known to be on the disk.
        """
        if delay or ttl is not None or headers is not None or self._connection._transactions:
            return self._publish(body, delay, ttl, headers)
        # As _publish_body(), without the call.
        data = body if type(body) is bytes else encode_body(body)
        connection = self._connection
        number = _pn_topic_publish_body(connection._handle, self._ref, data, len(data))
        if number == _EINTR:
            return self._publish_body(data)
        if number < 0:
            connection._check(number)
        return f"{number:016x}"

    def publish_many(
        self,
        bodies: Iterable[str | Buffer],
        *,
        delay: float = 0.0,
        ttl: float | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Sequence[str]:
        """Publish any number of messages, all or none; their ids, made when they are looked at."""
        return self._publish_many(bodies, delay, ttl, headers)

    def cancel(self, message_id: str) -> bool:
        """Take back a message that is still deferred in all channels; whether it was.

        One that is on disk for want of memory is looked for in the topic's files, from the front.
        Raises ValueError when `message_id` is not 16 hex digits, and TopicFull when 2,048 messages
        of the segment that are on disk have been cancelled and not yet passed there; within
        `transaction`, its commit raises that.
        """
        return self._cancel(message_id)

    def channel(self, name: str, *, max_consumers: int = 0) -> Channel:
        """The channel of that name; made, at once, by who comes first.

        `max_consumers` bounds how many there may be, 0: no bound, or the one it was made with; who
        comes later and gives another is a `ProgrammingError`.  A name that ends in "#ephemeral"
        makes one that is deleted with its last consumer.
        """
        ref = self._channel_ref(name, max_consumers)
        return self._made.get(ref) or self._made.setdefault(ref, Channel(self, name, ref))

    def channels(self) -> list[str]:
        """The names of its channels, sorted."""
        return self._channels()

    def pause(self) -> None:
        """Hand nothing on to the channels; they go on with what they have."""
        self._set_paused(True)

    def unpause(self) -> None:
        """Undo `pause`."""
        self._set_paused(False)

    def empty(self) -> None:
        """Forget what the topic itself holds; not what its channels do."""
        self._empty()

    def delete(self) -> None:
        """Forget the topic and all its channels; who waits in `get()` raises `TopicDeleted`."""
        self._delete()

    def stats(self) -> TopicStats:
        """What it holds now and what went through it, and the same of its channels."""
        return self._stats()


class AsyncTopic(BaseTopic):
    """The same for tasks, made by `AsyncConnection.topic`."""

    __slots__ = ()
    _connection: AsyncConnection
    _made: WeakValueDictionary[int, AsyncChannel]

    async def publish(
        self,
        body: str | Buffer,
        *,
        delay: float = 0.0,
        ttl: float | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> str:
        """As `Topic.publish`."""
        connection = self._connection
        if delay or ttl is not None or headers is not None or connection._transactions:
            return await connection._patiently(partial(self._publish, body, delay, ttl, headers))
        return await connection._patiently(partial(self._publish_body, body))

    async def publish_many(
        self,
        bodies: Iterable[str | Buffer],
        *,
        delay: float = 0.0,
        ttl: float | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Sequence[str]:
        """As `Topic.publish_many`."""
        if not isinstance(bodies, (str, bytes, bytearray, memoryview)):
            bodies = list(bodies)  # to be gone through again, perhaps
        return await self._connection._patiently(
            partial(self._publish_many, bodies, delay, ttl, headers)
        )

    async def cancel(self, message_id: str) -> bool:
        """As `Topic.cancel`."""
        return await self._connection._patiently(partial(self._cancel, message_id))

    def channel(self, name: str, *, max_consumers: int = 0) -> AsyncChannel:
        """As `Topic.channel`.  It takes the writer lock."""
        ref = self._channel_ref(name, max_consumers)
        return self._made.get(ref) or self._made.setdefault(ref, AsyncChannel(self, name, ref))

    async def channels(self) -> list[str]:
        """As `Topic.channels`."""
        return await self._connection._patiently(self._channels)

    async def pause(self) -> None:
        """As `Topic.pause`."""
        await self._connection._patiently(partial(self._set_paused, True))

    async def unpause(self) -> None:
        """As `Topic.unpause`."""
        await self._connection._patiently(partial(self._set_paused, False))

    async def empty(self) -> None:
        """As `Topic.empty`."""
        await self._connection._patiently(self._empty)

    async def delete(self) -> None:
        """As `Topic.delete`."""
        await self._connection._patiently(self._delete)

    async def stats(self) -> TopicStats:
        """As `Topic.stats`."""
        return await self._connection._patiently(self._stats)


def topic_ref(connection: BaseConnection, name: str, given: Mapping[str, Any]) -> int:
    """Of the topic of that name, which is made if need be."""
    encoded = encode_name(name, "topic")
    options = topic_options(given)
    out = ffi.new("pn_ref *")
    with naming(name, "topic"):
        connection._run_at_once(lib.pn_topic_open, encoded, len(encoded), options, out)
        connection._log_notices()  # it may have read a log that is damaged
    return int(out[0])


def topic_rows(connection: BaseConnection) -> list[tuple[Any, Any]]:
    """A pn_topic_stats of each topic, and what keeps it."""
    return all_rows(
        "pn_topic_stats",
        lambda rows, room: connection._run_at_once(lib.pn_topic_list, rows, room),
    )


def topic_names(connection: BaseConnection) -> list[str]:
    """Sorted.  May be repeated."""
    return sorted(name_of(row) for _, row in topic_rows(connection))


def channel_rows(connection: BaseConnection, ref: int) -> list[tuple[Any, Any]]:
    """A pn_topic_channel_stats of each channel, and what keeps it."""
    return all_rows(
        "pn_topic_channel_stats",
        lambda rows, room: connection._run_at_once(lib.pn_topic_channel_list, ref, rows, room),
    )


def stats_of_topic(connection: BaseConnection, ref: int) -> TopicStats:
    """With its channels, by name; one that is deleted meanwhile is left out.  May be repeated."""
    channels = []
    for _, each in channel_rows(connection, ref):
        with suppress(TopicDeleted):
            channels.append(channel_as_seen_by(connection, each))
    row = ffi.new("pn_topic_stats *")  # last: what a channel has counted, its topic has
    connection._run_at_once(lib.pn_topic_stat, ref, row)
    return topic_stats(row, sorted(channels, key=lambda channel: channel.name))
