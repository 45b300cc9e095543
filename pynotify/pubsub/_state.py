"""What PubSub and AsyncPubSub have alike: what they subscribe to, and what has come."""

from __future__ import annotations

import sys
from collections import deque
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from pynotify._inbox import take_out
from pynotify._locks import RLock
from pynotify._log import logger
from pynotify._process import reset_after_fork
from pynotify._reader import INTERRUPTED, INTERRUPTED_HINT
from pynotify._types import Gap, Notify
from pynotify.errors import ConnectionLost, InterfaceError, OperationalError, ProgrammingError
from pynotify.pubsub._arrays import Reference, is_array
from pynotify.pubsub._assembly import Assembler, Segment
from pynotify.pubsub._codec import codec_of, decoder, encoded
from pynotify.pubsub._dispatch import Handlers, Received
from pynotify.pubsub._format import PART
from pynotify.pubsub._parts import run_of

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable

    from pynotify.pubsub._arrays import Place
    from pynotify.pubsub._assembly import PubSubStats
    from pynotify.pubsub._dispatch import Handler

_T = TypeVar("_T")

DEFAULT_BOUND: Final = 64 << 20
_FIRST_DELAY = 0.1
_LONGEST_DELAY = 5.0


class _Came(deque["Notify | Gap | Segment"]):
    """`done` of the first are in `_ready`, or in the assembler, already."""

    __slots__ = ("done",)

    def __init__(self) -> None:
        super().__init__()
        self.done = 0


class _OneByOne:
    """Calls that threads make one by one, and a signal handler not inside of another."""

    __slots__ = ("_lock", "_under_way")

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """None is under way: in the child of a fork."""
        self._lock = RLock()
        self._under_way = False

    def call(self, do: Callable[..., _T], *arguments: Any) -> _T:
        """Make it."""
        with self._lock:
            if self._under_way:
                raise ProgrammingError(INTERRUPTED, hint=INTERRUPTED_HINT)
            try:
                self._under_way = True
                return do(*arguments)
            finally:
                self._under_way = False

    def interrupted(self) -> bool:
        """Whether this is a signal handler that has interrupted one."""
        with self._lock:
            return self._under_way

    def refuse(self) -> None:
        """Raise in such a handler."""
        self.call(_nothing)


def _nothing() -> None:
    """What refuse() does otherwise."""


class State:
    """Nothing here waits."""

    def __init__(self, *, max_object: int, max_pending: int, codec: Any) -> None:
        for name, value in (("max_object", max_object), ("max_pending", max_pending)):
            if value < 1:
                raise ValueError(f"{name} must be at least 1 byte, is {value}")
        self._codec = codec_of(codec)
        self._assembler = Assembler(
            max_object=max_object, max_pending=max_pending, decode_json=decoder(self._codec)
        )
        #: What looks at the assembler, or changes it.
        self._assembling = _OneByOne()
        self._handlers = Handlers()
        #: What the transport has received; it stays until an object was made of it.
        self._came = _Came()
        #: What has come and was not handed out yet.
        self._ready: deque[Received] = deque()
        #: What finds the array of a reference; None: it is gone.
        self._attach: Callable[[Reference], Any] = no_array
        #: What is told the oldest commit of which a reference is left.
        self._settled: Callable[[int | None], None] = nothing_held
        #: The commits of references in `_ready`, and of those whose arrays are just looked for.
        self._unresolved: dict[Place, int] = {}
        #: What was in `_ready` on a channel that was left, and may have references there.
        self._dropped: list[Received] = []
        #: References whose arrays were gone.
        self._arrays_gone = 0
        #: Those subscribed to, in order.
        self._channels: dict[str, None] = {}
        self._closed = False
        reset_after_fork(self)

    def reset_in_child(self) -> None:
        """Make locks that no thread of the parent has: close() takes them."""
        self._assembling.reset()
        self._handlers.reset()

    @property
    def channels(self) -> tuple[str, ...]:
        """What it is subscribed to."""
        return tuple(self._channels)

    @property
    def closed(self) -> bool:
        """Whether `close()` was called."""
        return self._closed

    def on(self, channel: str, handler: Handler, *, received: bool = False) -> None:
        """Call `handler(obj)` for each object that comes on a channel one has subscribed to.

        It runs inside `run` and iteration.  `obj` is None for nothing and for JSON null, and a
        `Gap` where something may be missing.  With `received` it is called with what iterating
        yields, which has the headers.  A handler that raises is logged and stays.
        """
        self._handlers.add(channel, handler, received=received)

    def off(self, channel: str, handler: Handler) -> None:
        """Undo one `on`.  Raises ValueError when it is not there."""
        self._handlers.remove(channel, handler)

    def stats(self) -> PubSubStats:
        """What has been received since the beginning, and what is pending."""
        if self._assembling.interrupted():
            found = self._assembler.counted()
        else:
            found = self._change(self._assembler.stats)
        gone = self._arrays_gone
        return replace(found, received=found.received - gone, dropped=found.dropped + gone)

    def _encoded(self, obj: Any) -> Any:
        return obj if is_array(obj) else encoded(self._codec, obj)

    def _check_open(self) -> None:
        if self._closed:
            raise InterfaceError("the PubSub is closed", hint="Make a new one.")

    def _unsubscribed(self, channel: str) -> None:
        self._channels.pop(channel, None)
        self._change(self._assembler.forget_channel, channel)
        self._assembling.call(self._drop_ready, channel)

    def _drop_ready(self, channel: str) -> None:
        take_out(self._ready, channel, self._dropped)
        self._forget_dropped()

    def _forget_dropped(self) -> None:
        """Nothing waits for their arrays.  What Ctrl-C leaves of it, the next receiver does."""
        left = [each.obj for each in list(self._ready)]
        kept = {obj.place for obj in left if isinstance(obj, Reference)}
        while self._dropped:
            obj = self._dropped[-1].obj
            if isinstance(obj, Reference) and obj.place not in kept:
                self._unresolved.pop(obj.place, None)
            del self._dropped[-1]

    def _change(self, change: Callable[..., _T], *arguments: Any) -> _T:
        """Change the assembler.

        With an exception of a signal handler (Ctrl-C) it is changed or not.
        """
        result: _T = self._assembling.call(self._changed, change, *arguments)
        return result

    def _changed(self, change: Callable[..., _T], *arguments: Any) -> _T:
        self._assembler.begin()
        try:
            result = change(*arguments)
        except BaseException:
            self._assembler.undo()
            raise
        self._assembler.begin()  # what was noted need not be kept
        return result

    def _take_in(self, gone: set[Hashable]) -> None:
        """Make objects of what came, in order; `gone`: senders from which nothing more will come.

        Ctrl-C leaves what was not taken in, and the next caller does.
        """
        self._assembling.call(self._assemble_all)
        if gone:
            self._change(self._assembler.forget_senders, gone)
        self._change(self._assembler.expire)

    def _assemble_all(self) -> None:
        came, ready, assembler = self._came, self._ready, self._assembler
        if self._dropped:
            self._forget_dropped()
        while True:
            while came.done:
                del came[0]
                came.done -= 1  # no call: Ctrl-C cannot come before it
            if not came:
                break
            assembler.begin()
            try:
                received, taken = self._assembled(came)
                # From here on no call comes in between.
                if received is not None:
                    ready += (received,)
                came.done = taken
            except BaseException:
                assembler.undo()
                raise
        assembler.begin()  # what was noted need not be kept

    def _first(self) -> Received | None:
        """Take what is next; None: another thread or task was faster."""
        try:
            # A call made by `for`: Ctrl-C cannot come between taking and having it.
            for received in map(deque.popleft, (self._ready,)):
                return received
        except IndexError:
            pass
        return None

    def _assembled(self, came: _Came) -> tuple[Received | None, int]:
        """What the first in `came` makes complete, and how many of them that took."""
        message = came[0]
        if isinstance(message, Gap):
            self._assembler.forget_all("something is missing")
            return Received(None, message, None), 1
        if message.channel not in self._channels:
            return None, 1
        run, taken = None, 1
        if message.data[:1] == PART:
            run = run_of(came, self._assembler.room())
        if run is not None:
            message, taken = run.last, len(run.views)
        commit, headers = 0, b""
        if isinstance(message, Notify):
            commit, headers = message.seq, message.raw_headers
            message = Segment(message.channel, message.sender, message.pid, message.data)
        assembler = self._assembler
        arrived = assembler.take(message) if run is None else assembler.take_run(message, run)
        if arrived is None:
            return None, taken
        obj = arrived.obj
        if isinstance(obj, Reference):
            obj = obj._replace(commit=commit)
            self._unresolved[obj.place] = commit
        received = Received(message.channel, obj, message.pid)
        return received.with_headers(headers) if headers else received, taken

    def _oldest(self) -> int | None:
        """The commit of the oldest reference whose array was not looked for; None: there is none.

        Copied in one step: other threads look for theirs meanwhile.
        """
        return min(list(self._unresolved.values()), default=None)

    def _resolved(self, received: Received, reference: Reference) -> Received:
        """With the array in the place of the reference, or a Gap when it is gone."""
        array = self._attach(reference)
        if array is not None:
            return received._replace(obj=array)
        logger.warning(
            "PubSub: an object was given up, on channel %r from process %d: the array is gone",
            *(received.channel, received.pid),
        )
        gap = Gap(reference.layout.size, Gap.ARRAY, 1, of_channel=received.channel)
        return Received(None, gap, None)

    def _until_expiry(self, left: float | None) -> float | None:
        """How long to wait at most: `left` is the caller's time, None without limit."""
        due = self._assembling.call(self._assembler.due)
        return left if due is None or (left is not None and left < due) else due

    def _senders(self) -> set[Hashable]:
        return self._assembling.call(self._assembler.senders)

    def _awaiting(self) -> Callable[[], dict[Hashable, int]]:
        """For a transport, which must not keep this object."""
        return partial(self._assembling.call, self._assembler.senders_of_parts)

    def _forget_came(self) -> None:
        # Not emptied: a signal handler that closes may have interrupted a look through it.
        self._came = _Came()

    def _forget_commits(self) -> None:
        self._forget_came()  # of the former connection, whose commits are no longer counted
        self._unresolved.clear()

    def _connected_again(self) -> None:
        """Messages sent while disconnected are lost; discard partial objects."""
        self._assembling.call(self._forget_commits)
        self._change(self._assembler.forget_all, "the connection was lost")
        self._ready.append(Received(None, Gap(0, "reconnected"), None))
        logger.warning("PubSub: connected again, listening to %s", ", ".join(self._channels))

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"{len(self._ready)} ready"
        return f"<pynotify.{type(self).__name__} of {', '.join(self._channels)} ({state})>"


def nothing_held(oldest: int | None) -> None:
    """Where there are no references."""


def no_array(reference: Reference) -> None:
    """Where no shared memory reaches."""


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
