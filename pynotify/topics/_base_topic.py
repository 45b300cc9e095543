"""A topic, apart from waiting."""

from __future__ import annotations

import errno
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

from pynotify._encoding import join_payloads
from pynotify._ffi import again, ffi, lib
from pynotify._finalizing import WeakValueDictionary
from pynotify._hot import Publisher
from pynotify.topics._content import MessageIds, MessageIn, encode_body, parse_id
from pynotify.topics._options import (
    ChannelOptions,
    channel_bound,
    encode_name,
    naming,
    topic_options,
)
from pynotify.topics._rows import channel_rows, stats_of_topic
from pynotify.topics._stats import TopicStats, name_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from typing_extensions import Buffer

    from pynotify._link import Link

_pn_topic_publish_body = lib.pn_topic_publish_body
_EINTR = -errno.EINTR


class BaseTopic(Publisher):
    """A topic of one database: what `Topic` and `AsyncTopic` have in common."""

    __slots__ = ("__weakref__", "_link", "_made", "_name")

    def __init__(self, link: Link, name: str, ref: int) -> None:
        self._link = link
        self._handle, self._open = link.handle, link.transactions.by_owner
        self._owner = link.transactions.owner
        self._name = name
        self._ref = ref
        row = ffi.new("pn_topic_stats *")
        link.transactions.run_at_once(lib.pn_topic_stat, ref, row)
        self.in_memory = not row.durable
        #: The same object for the same channel, as long as a reference to it exists.
        self._made: WeakValueDictionary[int, Any] = WeakValueDictionary()

    @property
    def name(self) -> str:
        """The topic's name in the connection's database."""
        return self._name

    def _publish_otherwise(
        self,
        body: str | Buffer,
        delay: float,
        ttl: float | None,
        headers: Mapping[str, str] | None,
    ) -> str:
        """What `publish` is where it is out of the ordinary."""
        if delay or ttl is not None or headers is not None or self._open:
            return self._publish(body, delay, ttl, headers)
        return self._publish_body(body)

    def _publish(
        self,
        body: str | Buffer,
        delay: float,
        ttl: float | None,
        headers: Mapping[str, str] | None,
    ) -> str:
        """Publish in the caller's transaction, if there is one.  May be repeated."""
        transactions = self._link.transactions
        message = transactions.attempt(MessageIn.of_one, body, delay, ttl, headers)
        number = ffi.new("uint64_t *")
        transactions.run_deferred(lib.pn_topic_publish, self._ref, message.native, number)
        return f"{number[0]:016x}"

    def _publish_body(self, body: str | Buffer) -> str:
        """Publish just a body, outside of a transaction, in few steps.  May be repeated."""
        data = body if type(body) is bytes else encode_body(body)
        handle = self._handle
        number = _pn_topic_publish_body(handle.native, self._ref, data, len(data))
        if number == _EINTR:
            asked = self._ref, data, len(data)
            number = again(lambda: _pn_topic_publish_body(handle.native, *asked))
        if number < 0:
            handle.check(number)
        return f"{number:016x}"

    def _publish_many(
        self,
        bodies: Iterable[str | Buffer],
        delay: float,
        ttl: float | None,
        headers: Mapping[str, str] | None,
    ) -> MessageIds:
        """Publish several bodies, all or none.  May be repeated."""
        transactions = self._link.transactions
        blob, lengths = transactions.attempt(join_payloads, bodies)
        message = transactions.attempt(MessageIn, delay, ttl, headers)
        if not lengths:
            self._handle.check_usable()
            return MessageIds(range(0))
        first = ffi.new("uint64_t *")
        transactions.run_deferred(
            lib.pn_topic_publish_many,
            self._ref,
            ffi.from_buffer("char[]", blob),
            ffi.from_buffer("uint32_t[]", lengths),
            len(lengths),
            message.native,
            first,
        )
        return MessageIds(range(first[0], first[0] + len(lengths)))

    def _cancelling(self, message_id: str) -> Callable[[], bool]:
        """The call that takes a deferred message back, in the caller's transaction or alone.

        It may be repeated; alone, also in another thread.
        """
        transactions = self._link.transactions
        number = transactions.attempt(parse_id, message_id)
        within = transactions.current() is not None
        return partial(self._cancel_within if within else self._cancel_alone, number)

    def _cancel_within(self, number: int) -> bool:
        return bool(self._link.transactions.run_deferred(lib.pn_topic_cancel, self._ref, number))

    def _cancel_alone(self, number: int) -> bool:
        transactions = self._link.transactions
        result = lib.pn_topic_cancel(transactions.handle.native, ffi.NULL, self._ref, number)
        if result != _EINTR:
            return bool(transactions.handle.check(result))
        ended = ffi.new("size_t *")  # it may fall due while the commit waits for room
        transactions.on_its_own(lambda alone: alone.cancel(self._ref, number, ended))
        return bool(ended[0])

    def _set_paused(self, paused: bool) -> None:
        self._link.transactions.run_at_once(lib.pn_topic_pause, self._ref, paused)

    def _empty(self) -> None:
        self._link.transactions.run_at_once(lib.pn_topic_empty, self._ref)

    def _delete(self) -> None:
        self._link.transactions.run_at_once(lib.pn_topic_delete, self._ref)

    def _stats(self) -> TopicStats:
        return stats_of_topic(self._link, self._ref)

    def _channels(self) -> list[str]:
        return sorted(name_of(row) for _, row in channel_rows(self._link, self._ref))

    def _channel_ref(self, name: str, max_consumers: int, options: ChannelOptions) -> int:
        encoded = encode_name(name, "channel")
        out = ffi.new("pn_ref *")
        bound = channel_bound(max_consumers)
        dead_letter = options.native.dead_letter_len != 0
        bad_name = options.naming() if dead_letter else naming(name, "channel")
        with bad_name:
            self._link.transactions.run_at_once(
                lib.pn_topic_channel_open_with,
                self._ref,
                encoded,
                len(encoded),
                bound,
                options.native,
                out,
            )
        return int(out[0])

    def _configure(self, given: Mapping[str, Any]) -> None:
        options = topic_options(given)
        self._link.transactions.run_at_once(lib.pn_topic_configure, self._ref, options)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, BaseTopic):
            return NotImplemented
        return (self._ref, self._link) == (other._ref, other._link)

    def __hash__(self) -> int:
        return hash(self._ref)

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"cannot pickle a {type(self).__name__}: it belongs to a connection of this process\n"
            "Pickle its name, and call topic() of a connection over there."
        )

    def __repr__(self) -> str:
        return f"<pynotify.{type(self).__name__} {self._name}>"
