"""The exceptions, in one tree.

`str(error)` begins with PostgreSQL's message, letter for letter, where PostgreSQL has the
condition; what to do about it follows after a newline and is also `error.hint`.
`error.sqlstate` is PostgreSQL's SQLSTATE, or None where it has none.
"""

from __future__ import annotations

import errno
import os

from pynotify._ffi import ffi, lib
from pynotify._public import public

__all__ = [
    "ActiveTransaction",
    "ConnectionLost",
    "Error",
    "ForkedConnectionError",
    "InFailedTransaction",
    "InterfaceError",
    "InvalidChannelName",
    "InvalidPayload",
    "InvalidSavepoint",
    "InvalidTopicName",
    "LayoutMismatch",
    "LockTimeout",
    "MessageNotInFlight",
    "NoActiveTransaction",
    "NotOwner",
    "OperationalError",
    "OutOfOrderTransactionNesting",
    "PayloadDecodeError",
    "PayloadTooLong",
    "ProgrammingError",
    "QueueFull",
    "Rollback",
    "SegmentCorrupt",
    "SegmentFull",
    "SegmentNotFound",
    "SegmentUnlinked",
    "SyncFailed",
    "Timeout",
    "TooManyBackends",
    "TooManyChannels",
    "TooManyConsumers",
    "TooManyGenerations",
    "TooManyTopics",
    "TopicDeleted",
    "TopicFull",
]


class Error(Exception):
    """Base of every error that pynotify raises on purpose.

    `sqlstate` is the five characters PostgreSQL gives to the condition, or None.
    """

    sqlstate: str | None = None
    #: What to do when the place that raises the error has no better advice.
    _advice = ""

    def __init__(self, message: str = "", *, hint: str = "") -> None:
        hint = hint or ("" if "\n" in message else self._advice)
        # One argument, so that the error crosses process borders by pickle as it is.
        super().__init__(f"{message}\n{hint}" if hint else message)

    @property
    def hint(self) -> str | None:
        """What to do about it: the text after the first newline of `str(error)`."""
        return str(self).partition("\n")[2] or None


class InterfaceError(Error):
    """The object cannot be used: closed, another process's, or another user's."""

    _advice = "Open a new connection with pynotify.connect()."


class ForkedConnectionError(InterfaceError):
    """A connection was used in a child of the process that made it."""

    _advice = "Connect again in the child; pynotify.get() does that by itself."


class ProgrammingError(Error):
    """The call cannot be right, whatever the state of the segment."""


class InvalidChannelName(ProgrammingError):
    """The channel name is not 1 to `max_channel_name` bytes of UTF-8 without NUL."""

    sqlstate = "22023"
    _advice = "Use 1 to max_channel_name (63) bytes of UTF-8 without NUL."


class InvalidTopicName(ProgrammingError):
    """The name is not a topic or channel name as NSQ has them."""

    _advice = "Use 1 to 64 of . a-z A-Z 0-9 _ - and, if wanted, #ephemeral at the end."


class PayloadTooLong(ProgrammingError):
    """The payload has more bytes than the segment's `max_payload`."""

    sqlstate = "22023"
    _advice = "Send a reference instead, or create the segment with a larger max_payload."


class InvalidPayload(ProgrammingError):
    """The payload is not UTF-8 without NUL, and a bridge sends the channel on to PostgreSQL."""

    sqlstate = "22021"
    _advice = "Send it as an object of a PubSub, which makes text of it."


class ActiveTransaction(ProgrammingError):
    """The calling thread has a transaction open, and the call needs that it has none."""

    sqlstate = "25001"
    _advice = "Commit or roll back the transaction of this thread first."


class NoActiveTransaction(ProgrammingError):
    """The calling thread has no transaction open."""

    sqlstate = "25P01"
    _advice = "begin() first, or use 'with connection.transaction()'."


class InFailedTransaction(ProgrammingError):
    """An earlier error failed the transaction of the calling thread."""

    sqlstate = "25P02"
    _advice = "Roll back, to a savepoint from before the error or wholly."


class InvalidSavepoint(ProgrammingError):
    """The transaction has no savepoint of that name."""

    sqlstate = "3B001"
    _advice = "Name a savepoint that was set in this transaction and is still there."


class OutOfOrderTransactionNesting(ProgrammingError):
    """Transaction blocks were not left in the reverse order of entering."""

    _advice = "Leave the inner block first; do not share blocks between threads."


class PayloadDecodeError(ProgrammingError, ValueError):
    """`Notify.payload` of a payload that is not UTF-8."""

    _advice = "Read Notify.data, which is the payload as bytes."


class OperationalError(Error):
    """The state of the segment or the system forbids the call; the caller made no mistake."""


class QueueFull(OperationalError):
    """The notification queue has no room for the transaction."""

    sqlstate = "54000"
    _advice = "Let its listeners read, or create the segment with more queue_pages."


class TopicFull(OperationalError):
    """The topic has no room for the message."""

    sqlstate = "54000"
    _advice = "Let its consumers catch up, or give it more max_depth, topic_memory or a data_dir."


class TooManyBackends(OperationalError):
    """All backend slots of the segment are taken."""

    sqlstate = "53300"
    _advice = "Close connections, or create the segment with a larger max_backends."


class TooManyChannels(OperationalError):
    """The channel or subscription table of the segment is full."""

    sqlstate = "53200"
    _advice = "Unlisten, or create the segment with a larger max_channels and max_subscriptions."


class TooManyGenerations(OperationalError):
    """The segment has no room for another generation counter, or for its database."""

    sqlstate = "53200"
    _advice = "They are never removed: create the segment with a larger max_generations."


class TooManyTopics(OperationalError):
    """The segment has no room for another topic, channel of a topic, or consumer."""

    sqlstate = "53200"
    _advice = (
        "Delete some, or create the segment with larger max_topics, max_topic_channels or "
        "max_consumers."
    )


class TooManyConsumers(OperationalError):
    """The channel has as many consumers as its `max_consumers` allows."""

    sqlstate = "53300"
    _advice = "Wait for one of them to end, or make the channel with more max_consumers."


class LayoutMismatch(OperationalError):
    """The segment has another layout or other options than those asked for."""


class SegmentCorrupt(OperationalError):
    """A check of something read from the segment failed; the segment is poisoned."""

    _advice = "Stop its processes, pynotify.unlink() the segment and start again."


class SegmentNotFound(OperationalError):
    """There is no segment of that name."""

    _advice = "Open it with create=True."


class SegmentUnlinked(OperationalError):
    """The segment was unlinked while it was in use; unread messages are gone."""

    _advice = "Close this connection, connect again and listen again."


class SegmentFull(OperationalError):
    """No room in /dev/shm."""

    _advice = "Enlarge /dev/shm (docker run --shm-size), or create a smaller segment."


class LockTimeout(OperationalError):
    """The writer lock was not to be had in time; the message names its holder."""

    _advice = "See what the process that holds the lock is doing."


class MessageNotInFlight(OperationalError):
    """The message has been answered already, or timed out."""

    _advice = "Answer a message once; touch() one that takes longer than msg_timeout."


class NotOwner(OperationalError):
    """The message is in flight again, in another delivery than this one."""

    _advice = "It timed out and was delivered again: touch() what takes longer than msg_timeout."


class TopicDeleted(OperationalError):
    """The topic or channel was deleted."""

    _advice = "Make it again with connection.topic() and topic.channel()."


class SyncFailed(OperationalError):
    """The call has taken effect, but is not in the log or perhaps not on the disk."""

    sqlstate = "58030"
    _advice = "See to the disk of data_dir, and do not repeat the call."


class DataDirInUse(OperationalError):
    """The log of durable topics in `data_dir` is another segment's of the same name."""

    sqlstate = "55006"
    _advice = "End the processes of that segment, or give this one another name or data_dir."


class DiskFull(OperationalError):
    """The disk of `data_dir` has no room; nothing has happened."""

    sqlstate = "53100"
    _advice = "Make room on the disk of data_dir."


class ConnectionLost(OperationalError):
    """The connection under a PubSub was lost."""


class Timeout(Error, TimeoutError):
    """Nothing came in the time given."""


class Rollback(Exception):
    """Leave transaction blocks and undo them, as psycopg's `Rollback`.

    `Rollback(tx)` undoes every block up to and including `tx`, which swallows it;
    `Rollback()` means the innermost.
    """

    def __init__(self, transaction: object | None = None) -> None:
        super().__init__(transaction)
        self.transaction = transaction


class WouldWait(Exception):
    """Internal: the call would wait, which is forbidden.  `error` is raised in its place."""

    def __init__(self, error: Error) -> None:
        super().__init__(error)
        self.error = error


_WOULD_WAIT: dict[int, type[Error]] = {
    lib.PN_ELOCKBUSY: LockTimeout,
    lib.PN_EROOMBUSY: QueueFull,
}

_CLASSES: dict[int, type[Error]] = {
    lib.PN_EQUEUEFULL: QueueFull,
    lib.PN_ETOOBIG: QueueFull,
    lib.PN_ECHANNELNAME: InvalidChannelName,
    lib.PN_EPAYLOAD: PayloadTooLong,
    lib.PN_EENCODING: InvalidPayload,
    lib.PN_EBACKENDS: TooManyBackends,
    lib.PN_ECHANNELS: TooManyChannels,
    lib.PN_EGENERATIONS: TooManyGenerations,
    lib.PN_ELAYOUT: LayoutMismatch,
    lib.PN_ECORRUPT: SegmentCorrupt,
    lib.PN_EGONE: SegmentUnlinked,
    lib.PN_ELOCK: LockTimeout,
    lib.PN_EFORKED: ForkedConnectionError,
    lib.PN_ECLOSED: InterfaceError,
    lib.PN_EPREPARED: ProgrammingError,
    lib.PN_ESTALE: LayoutMismatch,
    lib.PN_EREAPED: OperationalError,
    lib.PN_ETOPICNAME: InvalidTopicName,
    lib.PN_ETOPICFULL: TopicFull,
    lib.PN_ENOTINFLIGHT: MessageNotInFlight,
    lib.PN_ENOTOWNER: NotOwner,
    lib.PN_ETOPICDELETED: TopicDeleted,
    lib.PN_ETOPICS: TooManyTopics,
    lib.PN_EBODY: ProgrammingError,
    lib.PN_EBODYLONG: PayloadTooLong,
    lib.PN_ECONSUMERS: TooManyConsumers,
    lib.PN_ETOPICOPTIONS: ProgrammingError,
    lib.PN_ESYNC: SyncFailed,
    lib.PN_EDATADIR: DataDirInUse,
    lib.PN_EDISKFULL: DiskFull,
    lib.PN_EUSER: InterfaceError,
    errno.ENOSPC: SegmentFull,
}


def native_error(result: int) -> Exception:
    """The exception for a negative result of the C API, called in the thread that got it."""
    message = ffi.string(lib.pn_error_message()).decode("utf-8", "replace")
    message = message or os.strerror(-result)
    if result == -errno.ENOMEM:
        return MemoryError(message)
    if result in (-errno.EACCES, -errno.EPERM):
        hint = "" if "\n" in message else "`pynotify doctor` says what this host does not allow."
        return OperationalError(message, hint=hint)
    if -result in _WOULD_WAIT:
        return WouldWait(_WOULD_WAIT[-result](message))
    return _CLASSES.get(-result, OperationalError)(message)


def check(result: int) -> int:
    """The result of a call of the C API; raises its exception when it is negative."""
    if result < 0:
        raise native_error(result)
    return result


public(*(globals()[name] for name in __all__))
