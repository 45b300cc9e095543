"""What PubSub and AsyncPubSub have alike: what they subscribe to, and what has come."""

from __future__ import annotations

import logging
import sys
import threading
from collections import deque
from typing import TYPE_CHECKING, Final

from pynotify._types import Gap
from pynotify.errors import ConnectionLost, InterfaceError, OperationalError
from pynotify.pubsub._assembly import Assembler
from pynotify.pubsub._dispatch import Handlers, Received

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable

    from pynotify.pubsub._assembly import PubSubStats, Segment
    from pynotify.pubsub._dispatch import Handler

logger = logging.getLogger("pynotify")

DEFAULT_BOUND: Final = 64 << 20
_FIRST_DELAY = 0.1
_LONGEST_DELAY = 5.0


class State:
    """Nothing here waits."""

    def __init__(self, *, max_object: int, max_pending: int) -> None:
        for name, value in (("max_object", max_object), ("max_pending", max_pending)):
            if value < 1:
                raise ValueError(f"{name} must be at least 1 byte, is {value}")
        self._assembler = Assembler(max_object=max_object, max_pending=max_pending)
        #: Of the assembler.
        self._assembling = threading.Lock()
        self._handlers = Handlers()
        #: What has come and was not handed out yet.
        self._ready: deque[Received] = deque()
        #: Those subscribed to, in order.
        self._channels: dict[str, None] = {}
        self._closed = False

    @property
    def channels(self) -> tuple[str, ...]:
        """What it is subscribed to."""
        return tuple(self._channels)

    @property
    def closed(self) -> bool:
        """Whether `close()` was called."""
        return self._closed

    def on(self, channel: str, handler: Handler) -> None:
        """Call `handler(obj)` for each object that comes on a channel one has subscribed to.

        It runs inside `run` and iteration.  `obj` is None for nothing and for JSON null, and a
        `Gap` where something may be missing.  A handler that raises is logged and stays.
        """
        self._handlers.add(channel, handler)

    def off(self, channel: str, handler: Handler) -> None:
        """Undo one `on`.  Raises ValueError when it is not there."""
        self._handlers.remove(channel, handler)

    def stats(self) -> PubSubStats:
        """What has been received since the beginning, and what is pending."""
        with self._assembling:
            return self._assembler.stats()

    def _check_open(self) -> None:
        if self._closed:
            raise InterfaceError("the PubSub is closed", hint="Make a new one.")

    def _unsubscribed(self, channel: str) -> None:
        self._channels.pop(channel, None)
        with self._assembling:
            self._assembler.forget_channel(channel)
            others = [received for received in self._ready if received.channel != channel]
            self._ready.clear()
            self._ready.extend(others)

    def _take_in(self, segments: Iterable[Segment | Gap], gone: set[Hashable]) -> None:
        """What has come, in order; `gone`: senders from which nothing more will come."""
        with self._assembling:
            for segment in segments:
                if isinstance(segment, Gap):
                    self._assembler.forget_all("something is missing")
                    self._ready.append(Received(None, segment, None))
                elif segment.channel in self._channels:
                    arrived = self._assembler.take(segment)
                    if arrived is not None:
                        self._ready.append(Received(segment.channel, arrived.obj, segment.pid))
            if gone:
                self._assembler.forget_senders(gone)
            self._assembler.expire()

    def _until_expiry(self, left: float | None) -> float | None:
        """How long to wait at most: `left` is the caller's time, None without limit."""
        with self._assembling:
            due = self._assembler.due()
        return left if due is None or (left is not None and left < due) else due

    def _senders(self) -> set[Hashable]:
        with self._assembling:
            return self._assembler.senders()

    def _awaiting(self) -> Callable[[], dict[Hashable, int]]:
        """For a transport, which must not keep this object."""
        assembling, assembler = self._assembling, self._assembler

        def senders_of_parts() -> dict[Hashable, int]:
            with assembling:
                return assembler.senders_of_parts()

        return senders_of_parts

    def _connected_again(self) -> None:
        """Messages sent while disconnected are lost; discard partial objects."""
        with self._assembling:
            self._assembler.forget_all("the connection was lost")
            self._ready.append(Received(None, Gap(0, "reconnected"), None))
        logger.warning("PubSub: connected again, listening to %s", ", ".join(self._channels))

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"{len(self._ready)} ready"
        return f"<pynotify.{type(self).__name__} of {', '.join(self._channels)} ({state})>"


def report_loss(error: ConnectionLost) -> None:
    """Log that the connection was lost."""
    logger.warning("PubSub: %s; connecting again", str(error).partition("\n")[0])


def report_failure(error: Exception) -> None:
    """Log that there is no new connection yet."""
    logger.warning("PubSub: could not connect: %s", str(error).strip().partition("\n")[0])


def transient() -> tuple[type[Exception], ...]:
    """What a function that makes connections may raise, and be asked again later."""
    psycopg = sys.modules.get("psycopg")
    errors = (OSError, OperationalError)
    return (*errors, psycopg.OperationalError) if psycopg is not None else errors


def unsent(error: ConnectionLost) -> ConnectionLost:
    """The error of publish(), when there will be another connection."""
    return ConnectionLost(
        str(error).partition("\n")[0],
        hint="The object may have been sent or not.  The next call connects again.",
    )


def delays() -> Iterable[float]:
    """Seconds between two attempts to connect."""
    delay = _FIRST_DELAY
    while True:
        yield delay
        delay = min(2 * delay, _LONGEST_DELAY)
