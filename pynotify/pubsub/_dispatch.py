"""Handlers: what PubSub and AsyncPubSub have alike on the side of the receiver."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any, NamedTuple

from pynotify._encoding import decode_headers
from pynotify._locks import RLock
from pynotify._log import logger
from pynotify._types import Gap

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Handler = Callable[[Any], object]


class _Fields(NamedTuple):
    channel: str | None
    obj: Any
    pid: int | None


class Received(_Fields):
    """What iterating a PubSub yields; unpacks and compares as (channel, object, pid).

    For a `Gap` channel and pid are None.
    """

    #: The instance has its own when there are any; a tuple cannot have slots.
    _headers = b""

    def with_headers(self, data: bytes) -> Received:
        """It, with those headers; to be called before it is handed out."""
        self._headers = data
        return self

    @property
    def headers(self) -> dict[str, str]:
        """The headers that it was published with, str to str: a dict of the caller's own."""
        return decode_headers(self._headers)

    @property
    def raw_headers(self) -> bytes:
        """The same as bytes, as they were sent; empty: none."""
        return self._headers

    def _replace(self, **changes: Any) -> Received:
        found = super()._replace(**changes)
        return found.with_headers(self._headers) if self._headers else found

    __replace__ = _replace  # copy.replace(), since CPython 3.13


class _Added(NamedTuple):
    handler: Handler
    #: It takes what was received, and not only the object.
    received: bool


class Handlers:
    """The handlers of each channel, in the order in which they were added."""

    def __init__(self) -> None:
        self._handlers: defaultdict[str, tuple[_Added, ...]] = defaultdict(tuple)
        self.reset()

    def reset(self) -> None:
        """None is being added: in the child of a fork."""
        #: Of adding and removing.
        self._changing = RLock()

    def add(self, channel: str, handler: Handler, *, received: bool = False) -> None:
        """Add a handler of the channel."""
        if not callable(handler):
            raise TypeError(f"a handler must be callable, {handler!r} is not")
        added = _Added(handler, received)
        with self._changing:
            self._handlers[channel] += (added,)  # no call: no signal handler comes in between

    def remove(self, channel: str, handler: Handler) -> None:
        """Raises ValueError when it is not there."""
        every = self._handlers
        with self._changing:
            while True:
                handlers = every.get(channel, ())
                found = next((added for added in handlers if added.handler == handler), None)
                if found is None:
                    raise ValueError(f"{handler!r} is no handler of channel {channel!r}")
                left = tuple(added for added in handlers if added is not found)
                # No call comes in between: else a signal handler might have changed them.
                if channel in every and every[channel] is handlers:
                    if left:
                        every[channel] = left
                    else:
                        del every[channel]
                    return

    def of(self, received: Received) -> Sequence[tuple[Handler, Any]]:
        """The handlers to call, each with what it takes; a Gap goes to each, once."""
        found: tuple[_Added, ...] = ()
        if received.channel is not None:
            if received.channel not in self._handlers:
                return ()
            found = self._handlers.get(received.channel, ())
        elif isinstance(received.obj, Gap):
            for handlers in list(self._handlers.values()):
                known = [each.handler for each in found]
                found += tuple(each for each in handlers if each.handler not in known)
        else:
            return ()
        return [(each.handler, received if each.received else received.obj) for each in found]


def report(handler: Handler, received: Received) -> None:
    """Log the exception that is being handled."""
    logger.exception("PubSub: handler %r of channel %r raised", handler, received.channel)
