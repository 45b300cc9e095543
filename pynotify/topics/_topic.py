"""A topic: what is published there goes to each of its channels."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from pynotify._encoding import kept_headers, kept_payload, kept_payloads
from pynotify._ffi import ffi, lib
from pynotify.topics._base_topic import BaseTopic
from pynotify.topics._channel import AsyncChannel, Channel
from pynotify.topics._content import MessageIds
from pynotify.topics._options import (
    OMITTED,
    UNCHANGED,
    ChannelOptions,
    encode_name,
    naming,
    topic_options,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from typing_extensions import Buffer

    from pynotify._finalizing import WeakValueDictionary
    from pynotify._link import Link, TaskLink, ThreadLink
    from pynotify.topics._stats import TopicStats


class Topic(BaseTopic):
    """Where messages are published, made by `Connection.topic`.

    Each of its channels gets every message.  As long as there is no channel, messages stay with the
    topic, for the first one.  Every method raises `TopicDeleted` when it was deleted.
    """

    __slots__ = ()
    _link: ThreadLink
    _made: WeakValueDictionary[int, Channel]

    def publish_many(
        self,
        bodies: Iterable[str | Buffer],
        *,
        delay: float = 0.0,
        ttl: float | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Sequence[str]:
        """Publish any number of messages, all or none, and return their ids.

        The ids are a lazy sequence: each is made when it is looked at.  Arguments and errors are
        those of `publish`.
        """
        if headers is None:
            numbers = self.publish_at_once(bodies, delay, ttl)
            if numbers is not None:
                return MessageIds(numbers)
        return self._publish_many(bodies, delay, ttl, headers)

    def cancel(self, message_id: str) -> bool:
        """Take back a message that is still deferred in all channels, and return whether it was.

        One that is on disk for want of memory is looked for in the topic's files, from the front.
        Raises ValueError when `message_id` is not 16 hex digits, and `TopicFull` when 2,048
        messages of the segment that are on disk have been cancelled and not yet passed there;
        within a `transaction`, its commit raises that.  With a channel that rests it is a
        transaction itself, and raises `QueueFull` where others do.
        """
        return self._cancelling(message_id)()

    def channel(
        self,
        name: str,
        *,
        max_consumers: int = 0,
        max_attempts: int | None = OMITTED,
        dead_letter: str | None = OMITTED,
        msg_timeout: float | None = OMITTED,
    ) -> Channel:
        """The channel of that name, created at once on first use.

        `max_consumers` bounds how many consumers it may have, 0: no bound, or the one it was made
        with.  `max_attempts`, `dead_letter`, `msg_timeout`: what its consumers get that do not say
        it themselves, as `configure` of the channel sets it.  Other values later are a
        `ProgrammingError`.  A name that ends in "#ephemeral" makes a channel that is deleted with
        its last consumer.  Raises `InvalidTopicName`, `TopicDeleted`.
        """
        options = ChannelOptions(
            max_attempts=max_attempts, dead_letter=dead_letter, msg_timeout=msg_timeout
        )
        ref = self._channel_ref(name, max_consumers, options)
        return self._made.get(ref) or self._made.setdefault(
            ref, Channel(self, self._link, name, ref)
        )

    def channels(self) -> list[str]:
        """The names of the topic's channels, sorted."""
        return self._channels()

    def configure(
        self,
        *,
        default_ttl: float | None = UNCHANGED,
        max_memory: int | None = UNCHANGED,
        max_disk_bytes: int | None = UNCHANGED,
    ) -> None:
        """Change what may be changed of a topic that is there; what is left out stays.

        `default_ttl`: seconds to live of messages that are published without `ttl` from now on,
        None: for ever.  `max_memory`: bytes of the segment's `topic_memory` that the topic may
        have, from 4,096; what it has more is not taken away; None: as its share allows.
        `max_disk_bytes`: the same of what has no room there and is in `data_dir`, None: as the
        disk allows.  All that is given is set, or none.
        """
        self._configure(
            {
                "default_ttl": default_ttl,
                "max_memory": max_memory,
                "max_disk_bytes": max_disk_bytes,
            }
        )

    def pause(self) -> None:
        """Hand no message on to the channels; they go on with the messages they have."""
        self._set_paused(True)

    def unpause(self) -> None:
        """Undo `pause`."""
        self._set_paused(False)

    def empty(self) -> None:
        """Discard the messages that the topic itself holds, and not those of its channels."""
        self._empty()

    def delete(self) -> None:
        """Delete the topic and all its channels; waiting calls of `get` raise `TopicDeleted`."""
        self._delete()

    def stats(self) -> TopicStats:
        """What the topic holds now and what went through it, with the same of its channels."""
        return self._stats()


class AsyncTopic(BaseTopic):
    """The same for tasks, made by `AsyncConnection.topic`."""

    __slots__ = ()
    _link: TaskLink
    _made: WeakValueDictionary[int, AsyncChannel]

    async def publish(  # type: ignore[override]
        self,
        body: str | Buffer,
        *,
        delay: float = 0.0,
        ttl: float | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> str:
        """Publish a message and return its id, 16 hex digits.

        `body`: str (published as UTF-8) or bytes-like, 1 byte to the segment's `max_body`, else
        `ProgrammingError` or `PayloadTooLong`.  `delay`: seconds before it is delivered; `ttl`:
        seconds after which it no longer is; both from the commit on.  `headers`: str to str.
        Raises `TopicFull`, at commit inside a transaction; `SyncFailed` of a topic with
        `fsync="always"`: the message is published, but not known to be on the disk.
        """
        link = self._link
        body = kept_payload(body)  # the call may be repeated
        if delay or ttl is not None or headers is not None or self._open:
            kept = kept_headers(headers)
            return await link.off_loop.retry(partial(self._publish, body, delay, ttl, kept))
        return await link.off_loop.retry(partial(self._publish_body, body))

    async def publish_many(
        self,
        bodies: Iterable[str | Buffer],
        *,
        delay: float = 0.0,
        ttl: float | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Sequence[str]:
        """Publish any number of messages, all or none, and return their ids.

        The ids are a lazy sequence: each is made when it is looked at.  Arguments and errors are
        those of `publish`.
        """
        bodies = kept_payloads(bodies)  # the call may be repeated
        kept = kept_headers(headers)
        return await self._link.off_loop.retry(
            partial(self._publish_many, bodies, delay, ttl, kept)
        )

    async def cancel(self, message_id: str) -> bool:
        """Take back a message that is still deferred in all channels, and return whether it was.

        One that is on disk for want of memory is looked for in the topic's files, from the front.
        Raises ValueError when `message_id` is not 16 hex digits, and `TopicFull` when 2,048
        messages of the segment that are on disk have been cancelled and not yet passed there;
        within a `transaction`, its commit raises that.  With a channel that rests it is a
        transaction itself, and raises `QueueFull` where others do.
        """
        return await self._link.off_loop.retry(self._cancelling(message_id))

    def channel(
        self,
        name: str,
        *,
        max_consumers: int = 0,
        max_attempts: int | None = OMITTED,
        dead_letter: str | None = OMITTED,
        msg_timeout: float | None = OMITTED,
    ) -> AsyncChannel:
        """The channel of that name, created at once on first use.

        `max_consumers` bounds how many consumers it may have, 0: no bound, or the one it was made
        with.  `max_attempts`, `dead_letter`, `msg_timeout`: what its consumers get that do not say
        it themselves, as `configure` of the channel sets it.  Other values later are a
        `ProgrammingError`.  A name that ends in "#ephemeral" makes a channel that is deleted with
        its last consumer.  Raises `InvalidTopicName`, `TopicDeleted`.
        It takes the writer lock.
        """
        options = ChannelOptions(
            max_attempts=max_attempts, dead_letter=dead_letter, msg_timeout=msg_timeout
        )
        ref = self._channel_ref(name, max_consumers, options)
        return self._made.get(ref) or self._made.setdefault(
            ref, AsyncChannel(self, self._link, name, ref)
        )

    async def channels(self) -> list[str]:
        """The names of the topic's channels, sorted."""
        return await self._link.off_loop.retry(self._channels)

    async def configure(
        self,
        *,
        default_ttl: float | None = UNCHANGED,
        max_memory: int | None = UNCHANGED,
        max_disk_bytes: int | None = UNCHANGED,
    ) -> None:
        """Change what may be changed of a topic that is there; what is left out stays.

        `default_ttl`: seconds to live of messages that are published without `ttl` from now on,
        None: for ever.  `max_memory`: bytes of the segment's `topic_memory` that the topic may
        have, from 4,096; what it has more is not taken away; None: as its share allows.
        `max_disk_bytes`: the same of what has no room there and is in `data_dir`, None: as the
        disk allows.  All that is given is set, or none.
        """
        given = {
            "default_ttl": default_ttl,
            "max_memory": max_memory,
            "max_disk_bytes": max_disk_bytes,
        }
        await self._link.off_loop.retry(partial(self._configure, given))

    async def pause(self) -> None:
        """Hand no message on to the channels; they go on with the messages they have."""
        await self._link.off_loop.retry(partial(self._set_paused, True))

    async def unpause(self) -> None:
        """Undo `pause`."""
        await self._link.off_loop.retry(partial(self._set_paused, False))

    async def empty(self) -> None:
        """Discard the messages that the topic itself holds, and not those of its channels."""
        await self._link.off_loop.retry(self._empty)

    async def delete(self) -> None:
        """Delete the topic and all its channels; waiting calls of `get` raise `TopicDeleted`."""
        await self._link.off_loop.retry(self._delete)

    async def stats(self) -> TopicStats:
        """What the topic holds now and what went through it, with the same of its channels."""
        return await self._link.off_loop.retry(self._stats)


def topic_ref(link: Link, name: str, given: Mapping[str, Any]) -> int:
    """The core's reference to the topic of that name, which is created if need be."""
    encoded = encode_name(name, "topic")
    options = topic_options(given)
    out = ffi.new("pn_ref *")
    with naming(name, "topic"):
        link.transactions.run_at_once(lib.pn_topic_open, encoded, len(encoded), options, out)
        link.handle.log_notices()  # it may have read a log that is damaged
    return int(out[0])
