"""What a consumer is to threads and to tasks alike; how they wait is theirs.

Ownership is as that of a connection: the C consumer is freed, and what it has in flight goes back,
when the last reference to its handle goes.  A closed one has the handle CLOSED_CONSUMER.

What the core hands out is in `_out` until it is made into a message, and then in a variable, from
which it is returned.  An exception of a signal handler (Ctrl-C) may come at every call: then it is
released, that is given back as if it had never been delivered.
"""

from __future__ import annotations

import errno
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeVar

from pynotify._ffi import again, ffi, lib
from pynotify._hot import Taker
from pynotify._log import logger
from pynotify._ownership import CLOSED_CONSUMER, adopt, keep, let_go
from pynotify._process import reset_after_fork
from pynotify._reader import INTERRUPTED, INTERRUPTED_HINT
from pynotify.errors import (
    InterfaceError,
    LockTimeout,
    MessageNotInFlight,
    NotOwner,
    ProgrammingError,
    TopicFull,
    check,
    native_error,
)
from pynotify.topics._backoff import Backoff, Outcome
from pynotify.topics._message import FIELDS, BaseMessage, address_of
from pynotify.topics._options import whole
from pynotify.topics._stats import ConsumerStats, consumer_stats

if TYPE_CHECKING:
    from collections.abc import Hashable

    from pynotify._handle import Handle
    from pynotify._link import Link
    from pynotify._transaction import OpenTransaction
    from pynotify.topics._base_channel import BaseChannel
    from pynotify.topics._options import ConsumerOptions

_M = TypeVar("_M", bound=BaseMessage)

_EINTR = -errno.EINTR
_unpack = FIELDS.unpack_from
_buffer = ffi.buffer


class BaseConsumer(Taker, Generic[_M]):
    """A consumer, apart from waiting; `_M` is its class of messages."""

    _message: type[_M]
    handle: Handle
    open_transactions: dict[Hashable, OpenTransaction]

    def __init__(
        self, channel: BaseChannel, link: Link, ref: int, options: ConsumerOptions
    ) -> None:
        self._channel = channel
        self._ref = ref
        self._path = f"{channel.topic.name}/{channel.name}"
        #: Its connection, and three parts of it that each message needs.
        self.link = link
        self.handle, self.open_transactions = link.handle, link.transactions.by_owner
        self.owner = link.transactions.owner
        self.in_memory, self.draining = channel.topic.in_memory, False
        self._options = options
        self._handle = CLOSED_CONSUMER
        self._out = ffi.new("pn_message_out *")
        self._raw = memoryview(_buffer(self._out))
        #: Its id, 0: nothing that has to be made into a message or released.
        self._pending = self._raw.cast("Q")
        #: Something was answered while it drains.  A Condition would stay locked after a Ctrl-C in
        #: its `__enter__`, which is Python code.
        self._answered: SimpleQueue[None] = SimpleQueue()
        self._backoff: Backoff | None = None
        #: How many it takes at a time: as run() has it, as the program has it, and both together;
        #: -1: as many as it was made for.
        self._run_level = self._most = self._level = -1
        reset_after_fork(self)

    def _open(self) -> None:
        """Attach the consumer to its channel.  May be repeated."""
        out = ffi.new("pn_consumer **")
        try:
            with self._options.naming():
                self.link.transactions.run_at_once(
                    lib.pn_consumer_open, self._ref, self._options.native, out
                )
            self._handle = adopt(out, lib.pn_consumer_drop)
        except BaseException:
            self._handle = CLOSED_CONSUMER
            lib.pn_consumer_drop(out, CLOSED_CONSUMER)
            raise
        keep(self, self._handle)
        self.link.consumers.add(self)
        if self.handle.closed:  # close() may not have seen this consumer
            self.give_up()
            self.handle.check_usable()

    @property
    def channel(self) -> BaseChannel:
        """The channel whose messages the consumer gets."""
        return self._channel

    @property
    def max_in_flight(self) -> int:
        """How many messages the consumer may have in flight at a time."""
        return self._options.max_in_flight if self._most < 0 else self._most

    @property
    def closed(self) -> bool:
        """Whether the consumer was closed, by `close()` or with its connection."""
        return self._handle is CLOSED_CONSUMER

    def _take(self, timeout_ns: int) -> _M | None:
        """The next message; None: the time is over, or Python's signal handlers have to run.

        Only one thread at a time may call it; a signal handler may have interrupted it here.
        """
        pending = self._pending
        if pending[0]:
            raise ProgrammingError(INTERRUPTED, hint=INTERRUPTED_HINT)
        handle = self._handle  # whose the body is, so it is held until that is copied
        inside = self.in_core
        try:
            self.in_core = True
            result = self.get_in_core(timeout_ns)
            while result == _EINTR and not timeout_ns:  # it waits for the lock
                result = self.get_in_core(0)
            if result == 1:
                fields = _unpack(self._raw)
                out = self._out
                body = _buffer(out.body, fields[7])[:]
                headers = _buffer(out.headers, fields[9])[:] if fields[9] else b""
                message = self._message(self, fields, body, headers)
                pending[0] = 0
                return message
        except BaseException:
            lib.pn_forget_wait()
            self._release_pending()
            raise
        finally:
            self.in_core = inside
            del handle
        if result and result != _EINTR:
            self._refuse(result)
        return None

    def _release_pending(self) -> None:
        """Give back what was taken and cannot be returned; else its time-out brings it back."""
        if not self._pending[0]:
            return
        fields = _unpack(self._raw)
        self._pending[0] = 0
        self._give_back(address_of(fields))

    def _give_back(self, address: tuple[Any, int, int, int]) -> None:
        """Put a message back in front, as if it had not been delivered: an exception is on its way.

        When the core refuses it its time-out brings it back, or it is back already.
        """
        if not self.handle.is_foreign:
            release = *address, lib.PN_ANSWER_RELEASE, 0, ffi.NULL, 0
            again(lambda: lib.pn_message_answer(self.handle.native, *release))

    def _refuse(self, result: int) -> NoReturn:
        error = native_error(result)  # first: it is the thread's last one
        if result == -lib.PN_ECLOSED:
            self._check_open()
        raise error

    def _check_open(self) -> None:
        self.handle.check_usable()
        if self._handle is CLOSED_CONSUMER:
            raise InterfaceError("the consumer is closed", hint="Make another one.")
        if self.draining:
            raise InterfaceError("the consumer is drained", hint="Make another one.")

    def _is_over(self) -> bool:
        """Whether it was drained or closed, and gets nothing any more."""
        return self.draining or self._handle is CLOSED_CONSUMER

    # ---- draining and closing ------------------------------------------------------------

    def _stop_taking(self) -> None:
        """Take no more messages.  May be repeated."""
        self.handle.check_usable()
        if self._handle is CLOSED_CONSUMER:
            self._check_open()
        self.draining = True
        check(again(lambda: lib.pn_consumer_pause(self._handle, 0)))
        lib.pn_consumer_interrupt(self._handle)
        self._wake()

    def answer_given(self) -> None:
        """Tell drain() that a message was answered."""
        if self.draining and self._answered.empty():
            self._answered.put(None)

    def _wake(self) -> None:
        """Wake every thread or task of this consumer that waits in Python."""
        raise NotImplementedError

    def reset_in_child(self) -> None:
        """Make new locks, in the child of a fork, and forget what a thread was taking."""
        self._answered = SimpleQueue()
        self._pending[0], self.in_core = 0, False

    def give_up(self) -> Any:
        """Close; the last reference to the C consumer.

        None in a forked child, or when it was closed before.
        """
        if self.handle.is_foreign:
            return None
        let_go(self)
        handle, self._handle = self._handle, CLOSED_CONSUMER
        if handle is CLOSED_CONSUMER:
            return None
        lib.pn_consumer_interrupt(handle)
        self.link.consumers.discard(self)
        self._wake()
        self.answer_given()
        return handle

    # ---- statistics ----------------------------------------------------------------------

    def _stats(self) -> ConsumerStats:
        """The statistics of the consumer.  May be repeated."""
        self.handle.check_usable()
        if self._handle is CLOSED_CONSUMER:
            self._check_open()
        row = ffi.new("pn_consumer_stats *")
        check(again(lambda: lib.pn_consumer_stat(self._handle, row)))
        return consumer_stats(row)

    # ---- run() ---------------------------------------------------------------------------

    def _begin_backing_off(self, backoff: tuple[float, float]) -> Backoff:
        """The back-off that all threads and tasks which run this consumer share."""
        if self._backoff is None:
            self._backoff = Backoff(*backoff)
        return self._backoff

    def _set_level(self, level: int) -> None:
        """How many messages run() takes at a time, -1: `max_in_flight`.  May be repeated."""
        self._run_level = level
        if not self._is_over():
            self._apply_levels()

    def _set_max_in_flight(self, max_in_flight: int) -> None:
        """How many messages it takes at a time from now on.  May be repeated."""
        most = whole("max_in_flight", max_in_flight, 0, self._options.max_in_flight)
        self._check_open()
        self._most = most
        self._apply_levels()

    def _apply_levels(self) -> None:
        run, most = self._run_level, self._most
        level = max(run, most) if run < 0 or most < 0 else min(run, most)
        if level == self._level:
            return
        result = again(lambda: lib.pn_consumer_pause(self._handle, level))
        if result < 0 and result != -lib.PN_ECLOSED:
            raise native_error(result)
        self._level = level

    def _failed(self, message: _M, error: BaseException | None) -> float:
        """Log the failure; for how long the message is put off."""
        assert self._backoff is not None
        delay = self._backoff.delay(message.attempts)
        logger.error(
            "%r: the handler %s at attempt %d of message %s, which is requeued for %g s",
            self,
            "returned False" if error is None else f"raised {type(error).__name__}",
            message.attempts,
            message.id,
            delay,
            exc_info=error,
        )
        return delay

    def _outcome(self, message: _M, good: bool) -> Outcome:
        """The outcome for a message that its handler has answered, or that was answered for it."""
        if not good:
            return Outcome.FAILURE
        return Outcome.SUCCESS if message.finished else Outcome.NEUTRAL

    def _not_answered(self, message: _M, error: TopicFull | LockTimeout) -> None:
        """Log that the message is in flight until its time-out, which brings it back."""
        logger.error(
            "%r: message %s could not be answered, and comes again after its time-out: %s",
            self,
            message.id,
            str(error).partition("\n")[0],
        )

    def _took_nothing(self, error: TopicFull | LockTimeout) -> Outcome:
        logger.error("%r: it could not take a message: %s", self, str(error).partition("\n")[0])
        return Outcome.FAILURE

    def _too_late(self, message: _M, error: MessageNotInFlight | NotOwner) -> None:
        if self.closed:
            logger.warning(
                "%r: closed during the handler of message %s, which went back to the queue; "
                "drain() ends run() and lets the handler finish",
                self,
                message.id,
            )
            return
        logger.warning(
            "%r: the handler took too long for message %s: %s",
            self,
            message.id,
            str(error).partition("\n")[0],
        )

    def __repr__(self) -> str:
        state = " (closed)" if self.closed else " (drained)" if self.draining else ""
        return f"<pynotify.{type(self).__name__} of {self._path}{state}>"
