"""Handlers: what PubSub and AsyncPubSub have alike on the side of the receiver."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, NamedTuple

from pynotify._log import logger
from pynotify._types import Gap

if TYPE_CHECKING:
    from collections.abc import Callable

    Handler = Callable[[Any], object]


class Received(NamedTuple):
    """What iterating a PubSub yields.  For a `Gap` channel and pid are None."""

    channel: str | None
    obj: Any
    pid: int | None


class Handlers:
    """The handlers of each channel, in the order in which they were added."""

    def __init__(self) -> None:
        self._handlers: dict[str, list[Handler]] = {}
        #: Of adding and removing.
        self._changing = threading.RLock()

    def add(self, channel: str, handler: Handler) -> None:
        """Add a handler of the channel."""
        if not callable(handler):
            raise TypeError(f"a handler must be callable, {handler!r} is not")
        with self._changing:
            self._handlers.setdefault(channel, []).append(handler)

    def remove(self, channel: str, handler: Handler) -> None:
        """Raises ValueError when it is not there."""
        with self._changing:
            handlers = self._handlers.get(channel, [])
            if handler not in handlers:
                raise ValueError(f"{handler!r} is no handler of channel {channel!r}")
            handlers.remove(handler)
            if not handlers:
                del self._handlers[channel]

    def of(self, received: Received) -> list[Handler]:
        """The handlers to call; a Gap goes to each, once."""
        if received.channel is not None:
            return list(self._handlers.get(received.channel, ()))
        if not isinstance(received.obj, Gap):
            return []
        called: list[Handler] = []
        for handlers in list(self._handlers.values()):
            called += [handler for handler in handlers if handler not in called]
        return called


def report(handler: Handler, received: Received) -> None:
    """Log the exception that is being handled."""
    logger.exception("PubSub: handler %r of channel %r raised", handler, received.channel)
