"""A channel, apart from waiting."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from pynotify._ffi import ffi, lib
from pynotify.topics._rows import channel_as_seen_by
from pynotify.topics._stats import ChannelStats, PeekedMessage, peeked

if TYPE_CHECKING:
    from pynotify._link import Link
    from pynotify.topics._base_topic import BaseTopic
    from pynotify.topics._options import ChannelOptions


class BaseChannel:
    """A channel of a topic: what `Channel` and `AsyncChannel` have in common."""

    __slots__ = ("__weakref__", "_link", "_name", "_ref", "_topic")

    def __init__(self, topic: BaseTopic, link: Link, name: str, ref: int) -> None:
        self._topic = topic
        self._link = link
        self._name = name
        self._ref = ref

    @property
    def name(self) -> str:
        """The channel's name within its topic."""
        return self._name

    @property
    def topic(self) -> BaseTopic:
        """The topic whose channel this is."""
        return self._topic

    @property
    def _path(self) -> str:
        return f"{self._topic.name}/{self._name}"

    def _set_paused(self, paused: bool) -> None:
        self._link.transactions.run_at_once(lib.pn_topic_channel_pause, self._ref, paused)

    def _configure(self, options: ChannelOptions) -> None:
        with options.naming():
            self._link.transactions.run_at_once(
                lib.pn_topic_channel_configure, self._ref, options.native
            )

    def _empty(self) -> None:
        self._link.transactions.run_at_once(lib.pn_topic_channel_empty, self._ref)

    def _delete(self) -> None:
        self._link.transactions.run_at_once(lib.pn_topic_channel_delete, self._ref)

    def _stats(self) -> ChannelStats:
        row = ffi.new("pn_topic_channel_stats *")
        self._link.transactions.run_at_once(lib.pn_topic_channel_stat, self._ref, row)
        return channel_as_seen_by(self._link, row)

    def _peek(self, n: int) -> list[PeekedMessage]:
        if n < 0:
            raise ValueError(f"n must not be negative, is {n}")
        if n == 0:
            self._link.handle.check_usable()
            return []
        rows = ffi.new("pn_peeked[]", n)
        length = 0
        while True:
            bodies = ffi.new("uint8_t[]", max(n * length, 1))
            count = self._link.transactions.run_at_once(
                lib.pn_topic_channel_peek, self._ref, rows, n, bodies, length
            )
            longest = max((rows[i].body_len for i in range(count)), default=0)
            if longest <= length:
                break
            length = longest
        data = memoryview(ffi.buffer(bodies))
        return [
            peeked(rows[i], bytes(data[i * length : i * length + rows[i].body_len]))
            for i in range(count)
        ]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, BaseChannel):
            return NotImplemented
        return (self._ref, self._link) == (other._ref, other._link)

    def __hash__(self) -> int:
        return hash(self._ref)

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"cannot pickle a {type(self).__name__}: it belongs to a connection of this process\n"
            "Pickle the names, and call topic() and channel() of a connection over there."
        )

    def __repr__(self) -> str:
        return f"<pynotify.{type(self).__name__} {self._path}>"
