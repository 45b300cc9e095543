"""A connection: one backend slot, used by any number of threads.

Ownership.  The C connection is freed by the destructor of its handle, that is when the last
reference goes.  A thread in the middle of a C call holds one, so close() cannot free anything
under it, and the hot path needs no lock and no counter.  For the same reason no method that
raises keeps a handle in a local variable.

Receiving and sending share nothing: receivers take `_receiving`, senders take no lock.
What has been read ahead for notifies() waits in `_backlog`, from which every receiver takes
first.  Nothing is read ahead while another thread sleeps or somebody watches `fileno()`: both
are told only of what the core has unread.
"""

from __future__ import annotations

import errno
import logging
import math
import os
import threading
import time
import weakref
from collections import deque
from threading import get_ident
from typing import TYPE_CHECKING, Any

from pynotify._batch import NotifyBatch
from pynotify._encoding import channel_cache, encode_channel, encode_payload, join_payloads
from pynotify._ffi import ffi, lib
from pynotify._reader import Reader
from pynotify._transaction import FAILED, OpenTransaction, Transaction
from pynotify._types import Gap, Notify
from pynotify.errors import (
    ActiveTransaction,
    ForkedConnectionError,
    InFailedTransaction,
    InterfaceError,
    NoActiveTransaction,
    ProgrammingError,
    native_error,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from types import TracebackType
    from typing import Self

    from typing_extensions import Buffer

    from pynotify._encoding import Payloads
    from pynotify._engine import Engine

    NotifyHandler = Callable[[Notify], object]

logger = logging.getLogger("pynotify")

# Globals, because looking an attribute up on the extension module costs as much as a branch.
_pn_notify_cstr = lib.pn_notify_cstr
_pn_wait = lib.pn_wait
_NOTICE = lib.PN_NOTICE

_READ_AHEAD = 256  # messages that notifies() takes at a time
_NOTICE_BYTES = 1024


class _Process:
    """What os.getpid() says, without the system call: it is asked all the time."""

    def __init__(self) -> None:
        self.refresh()

    def refresh(self) -> None:
        self.pid = os.getpid()


_process = _Process()
#: All connections of the process, for the child of a fork: what they have read ahead is not its.
_connections: weakref.WeakSet[Connection] = weakref.WeakSet()


def _forget_parent() -> None:
    _process.refresh()
    for connection in _connections:
        connection._backlog.clear()


os.register_at_fork(after_in_child=_forget_parent)


class Connection:
    """One backend: it listens, notifies and receives.  Made by `pynotify.connect`.

    Thread-safe.  A transaction belongs to the thread that began it; another thread's `notify`
    is a transaction of its own.  A connection cannot be used in a forked child
    (`ForkedConnectionError`; `pynotify.get` connects again there).  The semantics are
    PostgreSQL's.  After `close()` every method raises `InterfaceError`, after a forced
    `unlink` of the segment `SegmentUnlinked`.
    """

    def __init__(self, engine: Engine, handle: Any, database: str) -> None:
        self._handle = ffi.gc(handle, lib.pn_conn_close)
        # Keeps the mapping, also when the user closes his Engine.
        self._engine_handle = engine._handle
        self._database = database
        self._pid: int = lib.pn_conn_pid(handle)
        self._backend_id: int = lib.pn_conn_backend_id(handle)
        self._reader = Reader()
        # Re-entrant, so that a signal handler of Python that interrupted a receiver does not hang.
        self._receiving = threading.RLock()
        self._backlog: deque[Notify | Gap] = deque()
        self._handlers: list[NotifyHandler] = []
        #: Threads in wait().
        self._waiting: set[int] = set()
        #: fileno() was called.
        self._watched = False
        #: The open transaction of each thread that has one.
        self._transactions: dict[int, OpenTransaction] = {}
        self._thread = threading.local()
        _connections.add(self)

    # ---- sending -------------------------------------------------------------------------

    def notify(self, channel: str, payload: str | Buffer = "") -> None:
        """Send a notification; outside a transaction it is committed at once.

        `channel`: 1 to 63 bytes of UTF-8 without NUL, else `InvalidChannelName`.  `payload`:
        str (sent as UTF-8) or bytes-like, at most 7999 bytes, else `PayloadTooLong`; both
        limits are options of the segment.  Raises `QueueFull`, at commit inside a transaction.
        """
        if self._transactions:
            transaction = self._transactions.get(get_ident())
            if transaction is not None:
                transaction.notify(channel, payload)
                return
        try:
            name = channel_cache[channel]
        except (KeyError, TypeError):
            name = encode_channel(channel)
        if type(payload) is bytes:
            data = payload
        elif type(payload) is str:
            data = payload.encode()
        else:
            data = encode_payload(payload)
        try:
            result = _pn_notify_cstr(self._handle, name, data, len(data))
        except TypeError:  # the handle is None: cheaper to find out here than to ask each time
            self._check_usable()
            raise
        if result:
            self._check(result)

    def notify_many(self, channel: str, payloads: Payloads, *, dedup: bool = True) -> int:
        """Send any number of notifications on one channel, all or none.

        Outside a transaction they are one of their own.  `dedup=False` keeps duplicates among
        them.  Returns how many are left after collapsing, heard or not.  Errors as `notify`.
        """
        transaction = self._open_transaction()
        if transaction is not None:
            return transaction.notify_many(channel, payloads, dedup=dedup)
        name = encode_channel(channel)
        blob, lengths = join_payloads(payloads)
        queued = ffi.new("uint64_t *")
        self._check(
            lib.pn_notify_many(
                self._handle,
                ffi.NULL,
                name,
                len(name),
                blob,
                ffi.from_buffer("uint32_t[]", lengths),
                len(lengths),
                dedup,
                queued,
            )
        )
        return int(queued[0])

    def queue_usage(self) -> float:
        """How full the queue is, 0 to 1, after advancing its tail (pg_notification_queue_usage)."""
        self._check_usable()
        out = ffi.new("double *")
        self._check(lib.pn_queue_usage(self._engine_handle, out))
        return float(out[0])

    # ---- listening -----------------------------------------------------------------------

    def listen(self, *channels: str) -> None:
        """Listen, from the commit on.  All or none; outside a transaction committed at once.

        Raises `InvalidChannelName`, and at commit `TooManyChannels`.
        """
        if channels:
            self._in_transaction(lambda transaction: transaction.listen(channels))

    def unlisten(self, *channels: str) -> None:
        """Stop listening, from the commit on; what was not returned by then never will be.

        Channels that are not listened to are no error.
        """
        if channels:
            self._in_transaction(lambda transaction: transaction.unlisten(channels))

    def unlisten_all(self) -> None:
        """Stop listening to all channels, from the commit on (UNLISTEN *)."""
        self._in_transaction(OpenTransaction.unlisten_all)

    def listening_channels(self) -> frozenset[str]:
        """The channels of the committed LISTENs (pg_listening_channels)."""
        self._check_usable()
        with self._receiving:
            return self._reader.listening(self)

    def _in_transaction(self, action: Callable[[OpenTransaction], None]) -> None:
        """Do it in the thread's transaction, or else in one of its own."""
        transaction = self._open_transaction()
        if transaction is not None:
            action(transaction)
            return
        transaction = OpenTransaction(self)
        try:
            action(transaction)
            self._finish(transaction)
        finally:
            transaction.abort()

    # ---- transactions --------------------------------------------------------------------

    @property
    def in_transaction(self) -> bool:
        """Whether the calling thread has a transaction open, failed or not."""
        return get_ident() in self._transactions

    def transaction(self) -> Transaction:
        """A block: `with conn.transaction() as tx`; inside another transaction a savepoint."""
        self._check_usable()
        return Transaction(self)

    def begin(self) -> None:
        """Open a transaction of the calling thread.  Raises `ActiveTransaction` inside one."""
        transaction = self._open_transaction()
        if transaction is not None:
            if transaction.failed:
                raise InFailedTransaction(FAILED)
            raise ActiveTransaction("there is already a transaction in progress")
        self._begin()

    def commit(self) -> None:
        """Commit what `begin()` opened; afterwards nothing is open, also when this raises.

        Raises `QueueFull`, `TooManyChannels`, `LockTimeout`; `InFailedTransaction` when an
        error failed the transaction, which is then rolled back; `NoActiveTransaction` outside
        of one, and `ProgrammingError` inside a `with transaction()` block.
        """
        self._commit(self._explicit("commit"))

    def rollback(self) -> None:
        """Undo what `begin()` opened.  Raises as `commit` when there is nothing to roll back."""
        self._roll_back(self._explicit("rollback"))

    def savepoint(self, name: str) -> None:
        """Set a savepoint.  One of the same name is hidden until this one is released."""
        if not isinstance(name, str):
            raise TypeError(f"savepoint name must be a str, not {type(name).__name__}")
        self._required("SAVEPOINT").savepoint(name)

    def release(self, name: str) -> None:
        """End the savepoint and those set after it, keeping the work since.

        Raises `InvalidSavepoint`, and in a failed transaction `InFailedTransaction`.
        """
        transaction = self._required("RELEASE SAVEPOINT")
        transaction.require_usable()
        transaction.release(transaction.find_savepoint(name))

    def rollback_to(self, name: str) -> None:
        """Undo the work since the savepoint; it stays, those set after it end.

        Makes a failed transaction usable again.  Raises `InvalidSavepoint`.
        """
        transaction = self._required("ROLLBACK TO SAVEPOINT")
        transaction.require_unprepared()
        transaction.roll_back_to(transaction.find_savepoint(name))
        transaction.savepoint(name)

    def _open_transaction(self) -> OpenTransaction | None:
        """That of the calling thread.  Raises when the connection cannot be used."""
        self._check_usable()
        return self._transactions.get(get_ident())

    def _required(self, command: str) -> OpenTransaction:
        transaction = self._open_transaction()
        if transaction is None:
            raise NoActiveTransaction(f"{command} can only be used in transaction blocks")
        return transaction

    def _explicit(self, action: str) -> OpenTransaction:
        """The calling thread's transaction, for commit() and rollback()."""
        transaction = self._open_transaction()
        if transaction is None:
            raise NoActiveTransaction("there is no transaction in progress")
        if transaction.blocks:
            raise ProgrammingError(
                f"{action}() cannot be used inside a transaction block",
                hint="Leave the block, by an exception (pynotify.Rollback) to undo it.",
            )
        return transaction

    def _begin(self) -> OpenTransaction:
        transaction = OpenTransaction(self)
        ident = get_ident()
        if not hasattr(self._thread, "guard"):
            self._thread.guard = _ThreadGuard(self, ident)
        self._transactions[ident] = transaction
        return transaction

    def _commit(self, transaction: OpenTransaction) -> None:
        self._transactions.pop(get_ident(), None)
        self._finish(transaction)

    def _roll_back(self, transaction: OpenTransaction) -> None:
        self._transactions.pop(get_ident(), None)
        transaction.abort()

    def _finish(self, transaction: OpenTransaction) -> None:
        result = transaction.commit()
        if result:
            self._check(result)
        if transaction.unlistens and self._backlog:
            self._forget_unlistened()

    def _forget_unlistened(self) -> None:
        """What has been read ahead on channels that are not listened to any more is not owed."""
        with self._receiving:
            listening = self._reader.listening(self)
            self._backlog.extend(
                message
                for message in self._take(None)
                if isinstance(message, Gap) or message.channel in listening
            )

    # ---- receiving -----------------------------------------------------------------------

    def poll(self, max: int | None = None) -> list[Notify | Gap]:
        """Everything owed that was committed before the call, at most `max`.  Never blocks.

        Empty while the calling thread has a transaction open.
        """
        if self._transactions and self._open_transaction() is not None:
            return []
        limit = 0 if max is None else _limit(max)
        if limit < 0:
            self._check_usable()
            return []
        with self._receiving:
            if self._backlog:
                messages = self._read_backlog(limit)
            else:
                messages = self._reader.read(self, limit)
        if self._handlers:
            self._run_handlers(messages)
        return messages

    def poll_batch(self, max: int | None = None) -> NotifyBatch:
        """The same as `poll`, as columns: no object per message."""
        if self._open_transaction() is not None:
            return NotifyBatch.from_messages([])
        limit = 0 if max is None else _limit(max)
        if limit < 0:
            return NotifyBatch.from_messages([])
        with self._receiving:
            if self._backlog:
                batch = NotifyBatch.from_messages(self._read_backlog(limit))
            else:
                batch = self._reader.read_columns(self, limit)
        if self._handlers:
            self._run_handlers(list(batch))
        return batch

    def wait(self, timeout: float | None = None) -> bool:
        """Sleep until there may be something to read, and say whether there may be.

        `timeout` in seconds: None blocks, 0 looks once.  Delivers nothing.  Other threads run
        meanwhile, and Python's signal handlers, whose exceptions (Ctrl-C) are raised here.
        Raises `ActiveTransaction` while the calling thread has a transaction open.
        """
        if self._transactions:
            self._refuse_transaction("wait")
        remaining = _nanoseconds(timeout)
        deadline = time.monotonic_ns() + remaining if remaining > 0 else 0
        ident = get_ident()
        try:
            # In one step, or what is read ahead between the two would find nobody to wake.
            with self._receiving:
                self._waiting.add(ident)
                if self._backlog:
                    self._check_usable()
                    return True
            while True:
                result = _pn_wait(self._handle, remaining)
                if result >= 0:
                    break
                if result != -errno.EINTR:
                    self._check_usable()  # another thread may have closed it, which woke us
                    raise native_error(result)
                # Python's handlers have run by now.  The sign hides whether there is a notice.
                self._log_notices()
                if deadline:
                    remaining = max(0, deadline - time.monotonic_ns())
        except TypeError:
            self._check_usable()
            raise
        finally:
            self._waiting.discard(ident)
        if result & _NOTICE:
            self._log_notices()
        return bool(result & ~_NOTICE)

    def notifies(
        self, *, timeout: float | None = None, stop_after: int | None = None
    ) -> Generator[Notify | Gap]:
        """Receive for ever, or until nothing came for `timeout` seconds (0: drain).

        `stop_after` ends it after exactly that many.  Leaving the loop loses nothing.  Raises
        `ActiveTransaction` while the calling thread has a transaction open.
        """
        self._check_usable()
        self._refuse_transaction("notifies")
        _nanoseconds(timeout)
        if stop_after is not None and stop_after < 0:
            raise ValueError(f"stop_after must not be negative, is {stop_after}")
        return self._notifies(timeout, stop_after)

    def _notifies(self, timeout: float | None, stop_after: int | None) -> Generator[Notify | Gap]:
        left = -1 if stop_after is None else stop_after
        # These three are the same objects for the connection's life.
        backlog, transactions, handlers = self._backlog, self._transactions, self._handlers
        take = backlog.popleft
        message: Notify | Gap | None
        while left:
            # What has been read ahead already, as long as nothing is out of the ordinary.
            while backlog and left:
                if transactions or handlers:
                    break
                try:
                    message = take()
                except IndexError:  # another thread was faster
                    break
                left -= 1
                yield message
            if not left:
                return
            message = self._next(timeout, _READ_AHEAD if left < 0 else min(left, _READ_AHEAD))
            if message is None:
                return
            left -= 1
            yield message

    def _next(self, timeout: float | None, ahead: int) -> Notify | Gap | None:
        """The next message, and up to `ahead` may be read; None when none came in time.

        It waits first and reads then.  wait() costs little when something is there, and only a
        slot that a read has left awake may linger in it; a read in vain puts the slot to sleep,
        and every message would cost its sender a signal.
        """
        deadline = None
        while True:
            if self._transactions or _process.pid != self._pid:
                self._refuse_transaction("notifies")
            if not self._backlog:
                if timeout is not None and deadline is None:
                    deadline = time.monotonic() + timeout
                if not self.wait(None if deadline is None else deadline - time.monotonic()):
                    return None
                with self._receiving:
                    if not self._backlog:
                        alone = not (self._watched or self._waiting)
                        self._backlog.extend(self._reader.read(self, ahead if alone else 1))
            try:
                message = self._backlog.popleft()
            except IndexError:  # none, or another thread was faster
                continue
            if self._handlers:
                self._run_handlers([message])
            return message

    def add_notify_handler(self, callback: NotifyHandler) -> None:
        """Call `callback(notify)` for every message, before it is returned.

        It runs inside `poll` and `notifies`, in their thread.  One that raises is removed, and
        the exception logged.
        """
        self._handlers.append(callback)

    def remove_notify_handler(self, callback: NotifyHandler) -> None:
        """Undo `add_notify_handler`.  Raises ValueError when it is not there."""
        self._handlers.remove(callback)

    def fileno(self) -> int:
        """A descriptor for event loops, constant: readable iff `poll` may return something."""
        self._check_usable()
        self._watched = True
        descriptor = self._check(lib.pn_fileno(self._handle))
        if self._backlog:  # left behind by notifies(): the core knows nothing of it
            lib.pn_conn_post(self._handle)
        return descriptor

    def _read_backlog(self, limit: int) -> list[Notify | Gap]:
        """The backlog first, then what the core still has, `limit` in all (0: everything)."""
        self._check_usable()
        room = limit - len(self._backlog)
        fresh = self._reader.read(self, room if limit else 0) if room > 0 or not limit else []
        return self._take(limit or None) + fresh

    def _take(self, count: int | None) -> list[Notify | Gap]:
        """From the backlog; notifies() in another thread may be taking from it as well."""
        messages: list[Notify | Gap] = []
        try:
            while count is None or len(messages) < count:
                messages.append(self._backlog.popleft())
        except IndexError:
            pass
        return messages

    def _run_handlers(self, messages: list[Notify | Gap]) -> None:
        try:
            for message in messages:
                if isinstance(message, Notify):
                    for handler in tuple(self._handlers):
                        self._run_handler(handler, message)
        except BaseException:
            # Ctrl-C: nothing has been returned, so nothing may be lost.
            self._backlog.extendleft(reversed(messages))
            raise

    def _run_handler(self, handler: NotifyHandler, message: Notify) -> None:
        try:
            handler(message)
        except Exception:
            logger.exception("notify handler %r raised and was removed", handler)
            if handler in self._handlers:
                self._handlers.remove(handler)

    def _refuse_transaction(self, what: str) -> None:
        if self._open_transaction() is not None:
            raise ActiveTransaction(f"{what}() cannot be used inside a transaction")

    # ---- the connection itself -----------------------------------------------------------

    @property
    def pid(self) -> int:
        """The process it belongs to; `Notify.pid` of what it sends."""
        return self._pid

    @property
    def backend_id(self) -> int:
        """Its slot in the backend array; `Notify.backend_id` of what it sends."""
        return self._backend_id

    @property
    def database(self) -> str:
        """The name space it is in."""
        return self._database

    @property
    def closed(self) -> bool:
        """Whether `close()` was called."""
        return self._handle is None

    def close(self) -> None:
        """Roll back all transactions and free the backend slot.

        Threads in `wait()` are woken and raise `InterfaceError`.  Closing twice is allowed; in
        a forked child it does nothing, the connection is the parent's.
        """
        if _process.pid != self._pid:
            return
        handle, self._handle = self._handle, None
        if handle is None:
            return
        while self._transactions:
            self._transactions.popitem()[1].abort()
        lib.pn_conn_interrupt(handle)
        self._backlog.clear()
        del handle
        self._engine_handle = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "closed" if self.closed else f"backend {self._backend_id}"
        return f"<pynotify.Connection pid {self._pid} database {self._database!r} ({state})>"

    def _check_usable(self) -> None:
        if self._handle is None:
            raise InterfaceError("the connection is closed")
        if _process.pid != self._pid:
            raise ForkedConnectionError(
                f"connection of process {self._pid} used in process {_process.pid}"
            )

    def _check(self, result: int) -> int:
        """The result without its notice bit, the notices logged; raises when negative."""
        if result < 0:
            raise native_error(result)
        if result & _NOTICE:
            self._log_notices()
        return result & ~_NOTICE

    def _log_notices(self) -> None:
        text = ffi.new("char[]", _NOTICE_BYTES)
        while self._handle is not None:
            if lib.pn_conn_notice(self._handle, text, _NOTICE_BYTES) <= 0:
                break
            logger.warning("%s", ffi.string(text).decode("utf-8", "replace"))

    def _thread_ended(self, ident: int) -> None:
        transaction = self._transactions.pop(ident, None)
        if transaction is not None:
            transaction.abort()


class _ThreadGuard:
    """Lives in a thread's local data, and rolls its transaction back when the thread ends."""

    __slots__ = ("_connection", "_ident")

    def __init__(self, connection: Connection, ident: int) -> None:
        self._connection = weakref.ref(connection)
        self._ident = ident

    def __del__(self) -> None:
        connection = self._connection()
        if connection is not None:
            connection._thread_ended(self._ident)


def _limit(maximum: int) -> int:
    """The `max` of pn_poll(), where 0 would mean all; -1 when nothing is wanted."""
    if maximum < 0:
        raise ValueError(f"max must not be negative, is {maximum}")
    return maximum or -1


def _nanoseconds(timeout: float | None) -> int:
    """The `timeout_ns` of pn_wait()."""
    if timeout is None:
        return -1
    if math.isnan(timeout):
        raise ValueError("timeout must be a number of seconds, not NaN")
    # A bound below 2**63 ns: three decades, after which wait() says False.
    return int(min(max(timeout, 0.0), 1e9) * 1_000_000_000)
