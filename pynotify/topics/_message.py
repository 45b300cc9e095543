"""A message in the hands of a consumer, and how it is answered."""

from __future__ import annotations

import errno
import math
import struct
import time
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NoReturn, Protocol

from pynotify._encoding import decode_headers
from pynotify._ffi import again, ffi, lib
from pynotify.errors import MessageNotInFlight, NotOwner, SyncFailed

if TYPE_CHECKING:
    from collections.abc import Hashable
    from types import TracebackType
    from typing import Self

    from pynotify._handle import Handle
    from pynotify._link import Link, TaskLink
    from pynotify._transaction import OpenTransaction

_pn_message_finish = lib.pn_message_finish
_FINISHED = lib.PN_ANSWER_FINISH
_NOT_SYNCED = -lib.PN_ESYNC
_EINTR = -errno.EINTR

#: A pn_message_out, whose fields one call of this makes into numbers: through cffi, each costs
#: as much as all of them here.
FIELDS: Final = struct.Struct("@QQIIqqQQQQ")
_ID, _DELIVERY, _TAG, _ATTEMPTS, _PUBLISHED, _EXPIRES = range(6)

_NO_REASON: Final = "given up"
_LONGEST_NS: Final = 4_000_000_000_000_000_000


class Holder(Protocol):
    """A consumer, as its messages see it."""

    #: drain() was called.
    draining: bool
    #: The C connection, and the open transactions.
    handle: Handle
    open_transactions: dict[Hashable, OpenTransaction]

    @property
    def link(self) -> Link:
        """The connection of the consumer."""

    def answer_given(self) -> None:
        """Tell drain() that a message was answered."""

    def finish_at_once(self, fields: tuple[int, ...], /) -> OpenTransaction | bool:
        """Finish the message, perhaps in the transaction returned; False: it did not."""


class TaskHolder(Holder, Protocol):
    """A consumer of tasks."""

    @property
    def link(self) -> TaskLink:
        """The connection of the consumer."""


class BaseMessage:
    """A message in flight: what `Message` and `AsyncMessage` have in common."""

    __slots__ = ("_answered", "_consumer", "_fields", "_headers", "body")

    # Made for every message: it may do no more than assign.
    def __init__(
        self, consumer: Holder, fields: tuple[int, ...], body: bytes, headers: bytes
    ) -> None:
        self._consumer = consumer
        self._fields = fields
        self._headers: bytes | dict[str, str] = headers
        #: How it was answered, 0: not yet; or the transaction in which it was.
        self._answered: OpenTransaction | int = 0
        #: What was published, as bytes.
        self.body = body

    @property
    def id(self) -> str:
        """The message's id: 16 hex digits, the same in every channel and every delivery."""
        return f"{self._fields[_ID]:016x}"

    @property
    def attempts(self) -> int:
        """How often the message was delivered, this time included."""
        return self._fields[_ATTEMPTS]

    @property
    def published_ns(self) -> int:
        """CLOCK_REALTIME when the message was published, in nanoseconds."""
        return self._fields[_PUBLISHED]

    @property
    def expires_in(self) -> float | None:
        """Seconds until the message's ttl is over, negative afterwards; None without a ttl."""
        expires = self._fields[_EXPIRES]
        return (expires - time.monotonic_ns()) / 1e9 if expires else None

    @property
    def headers(self) -> dict[str, str]:
        """The headers that the message was published with; a dead letter has more."""
        if isinstance(self._headers, bytes):
            self._headers = decode_headers(self._headers)
        return self._headers

    def _answer(self, answer: int, delay_ns: int = 0, reason: bytes | None = None) -> None:
        """Answer the delivery, in the caller's transaction if there is one.  May be repeated."""
        transactions, fields = self._consumer.link.transactions, self._fields
        if answer == lib.PN_ANSWER_TOUCH:
            transactions.run_at_once(lib.pn_message_answer, *self.address, answer, 0, ffi.NULL, 0)
            return
        transaction = transactions.current()
        try:
            transactions.run_deferred(
                lib.pn_message_answer,
                fields[_DELIVERY],
                fields[_TAG],
                fields[_ID],
                answer,
                delay_ns,
                ffi.NULL if reason is None else reason,
                0 if reason is None else len(reason),
            )
        except SyncFailed:
            self._set_answered(answer)
            raise
        self._answered = transaction or answer
        if transaction is None:
            self._consumer.answer_given()

    def _set_answered(self, answer: int) -> None:
        self._answered = answer
        self._consumer.answer_given()

    @property
    def answered(self) -> bool:
        """Whether the message was answered, even if the transaction of the answer is still open."""
        return bool(self._answered)

    @property
    def finished(self) -> bool:
        """True once `finish` was called, even if its transaction is still open."""
        return self._answered == _FINISHED or not isinstance(self._answered, int)

    @property
    def address(self) -> tuple[Any, int, int, int]:
        """How the core's answers name the delivery."""
        return address_of(self._fields)

    def _finish_alone(self) -> None:
        """Finish outside of a transaction, in as few steps as possible.  May be repeated."""
        consumer, fields = self._consumer, self._fields
        handle = consumer.handle
        result = _pn_message_finish(handle.native, fields[_DELIVERY], fields[_TAG], fields[_ID])
        if result == _EINTR:
            address = fields[_DELIVERY], fields[_TAG], fields[_ID]
            result = again(lambda: _pn_message_finish(handle.native, *address))
        if result:
            if result == _NOT_SYNCED:
                self._set_answered(_FINISHED)
            handle.check(result)
        self._answered = _FINISHED
        if consumer.draining:
            consumer.answer_given()

    def _finish(self) -> None:
        if self._consumer.open_transactions:
            self._answer(lib.PN_ANSWER_FINISH)
        else:
            self._finish_alone()

    def _requeue(self, delay: float | None) -> None:
        self._answer(lib.PN_ANSWER_REQUEUE, _delay_ns(delay))

    def _touch(self) -> None:
        self._answer(lib.PN_ANSWER_TOUCH)

    def _dead_letter(self, reason: str | None) -> None:
        if reason is not None and not isinstance(reason, str):
            raise TypeError(f"reason must be a str or None, not {type(reason).__name__}")
        encoded = str.encode(reason or _NO_REASON, "utf-8", "replace")
        self._answer(lib.PN_ANSWER_DEAD_LETTER, 0, encoded)

    def _answer_outside(self, answer: int) -> None:
        """Answer outside of the caller's transaction, if there is one.  May be repeated."""
        try:
            self._consumer.handle.run(lib.pn_message_answer, *self.address, answer, 0, ffi.NULL, 0)
        except SyncFailed:
            self._set_answered(answer)
            raise
        self._set_answered(answer)

    def _leave(self, *, good: bool) -> None:
        """The end of a `with` block: what the program has not answered is answered now.

        May be repeated.
        """
        answered = self._answered
        if isinstance(answered, int):
            if answered:
                return
        elif not answered.ended:
            return  # it stands or falls with its transaction
        try:
            if good:
                self._finish()
            else:
                # The exception is on its way to undo a transaction around us.
                self._answer_outside(lib.PN_ANSWER_REQUEUE)
        except (MessageNotInFlight, NotOwner):
            if good and not answered:
                raise

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"cannot pickle a {type(self).__name__}: it is in flight with a consumer of this "
            "process\nPickle its body, or requeue it for another process."
        )

    def __repr__(self) -> str:
        return f"<pynotify.{type(self).__name__} {self.id} attempt {self.attempts}>"


class Message(BaseMessage):
    """A message that a `Consumer` got.  It is answered once: finished, requeued, or given up.

    As a `with` block it is finished when the block ends, and requeued when it raises.  Every
    method raises `MessageNotInFlight` when it was answered already or has timed out,
    `NotOwner` when it is in flight again, and `TopicDeleted`.  In a transaction of the calling
    thread `finish`, `requeue` and `dead_letter` take effect when that commits.
    """

    __slots__ = ()

    def finish(self) -> None:
        """Answer that the message is done, for this channel."""
        try:
            done = self._consumer.finish_at_once(self._fields)
        except SyncFailed:
            self._set_answered(_FINISHED)
            raise
        if done is True:
            self._answered = _FINISHED
        elif done:
            self._answered = done
        else:
            self._finish()

    def requeue(self, delay: float | None = None) -> None:
        """Have the message delivered again after `delay` seconds.

        At most 3,600; None or 0: at once.  When this was the last of the consumer's `max_attempts`
        it becomes a dead letter instead.
        """
        self._requeue(delay)

    def touch(self) -> None:
        """Extend the time-out: to `msg_timeout` from now on.

        At most to `max_msg_timeout` after the delivery.  This takes effect at once, also in a
        transaction.
        """
        self._touch()

    def dead_letter(self, reason: str | None = None) -> None:
        """Give the message up: move it to the `dead_letter` topic, or without one drop it.

        `reason` ("given up") is the header dead-letter-reason there.
        """
        self._dead_letter(reason)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._leave(good=exc is None)


class AsyncMessage(BaseMessage):
    """The same for tasks, with `await` and `async with`."""

    __slots__ = ()
    _consumer: TaskHolder

    async def finish(self) -> None:
        """Answer that the message is done, for this channel."""
        await self._consumer.link.off_loop.retry(self._finish)

    async def requeue(self, delay: float | None = None) -> None:
        """Have the message delivered again after `delay` seconds.

        At most 3,600; None or 0: at once.  When this was the last of the consumer's `max_attempts`
        it becomes a dead letter instead.
        """
        await self._consumer.link.off_loop.retry(partial(self._requeue, delay))

    async def touch(self) -> None:
        """Extend the time-out: to `msg_timeout` from now on.

        At most to `max_msg_timeout` after the delivery.  This takes effect at once, also in a
        transaction.
        """
        await self._consumer.link.off_loop.retry(self._touch)

    async def dead_letter(self, reason: str | None = None) -> None:
        """Give the message up: move it to the `dead_letter` topic, or without one drop it.

        `reason` ("given up") is the header dead-letter-reason there.
        """
        await self._consumer.link.off_loop.retry(partial(self._dead_letter, reason))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._consumer.link.off_loop.retry(partial(self._leave, good=exc is None))


def address_of(fields: tuple[int, ...]) -> tuple[Any, int, int, int]:
    """How the core's answers name the delivery that has these fields."""
    return ffi.NULL, fields[_DELIVERY], fields[_TAG], fields[_ID]


def _delay_ns(delay: float | None) -> int:
    """The delay of a requeue in nanoseconds; the core bounds it."""
    if delay is None:
        return 0
    if math.isnan(delay):
        raise ValueError("delay must be a number of seconds, not NaN")
    return int(max(0.0, min(delay * 1e9, _LONGEST_NS)))
