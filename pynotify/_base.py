"""What a connection is to threads and to tasks alike.

`Connection` adds how threads wait, `AsyncConnection` how tasks do; everything else is here,
once.  Who owns a transaction is asked of the subclass: a thread, or a task.

Ownership: see `_ownership`.  A closed connection has the handle CLOSED.

Receiving and sending share nothing: receivers take `_receiving`, senders take no lock.

Waiting.  With pn_set_never_wait() on, a method that would have to wait raises `WouldWait`, and
has done nothing: it can be called again where waiting is allowed.  Methods that say "may be
repeated" keep that promise, and do not ask who calls them.

Signals.  A call of the core that waits comes back in between, -EINTR, having done nothing, and is
made again; between the two Python runs its signal handlers, which may raise.  The handle is looked
up anew each time.  What waits for room outside of a transaction is done in one instead, which
keeps its place in the meantime.
"""

from __future__ import annotations

import errno
import logging
import math
import os
import time
import weakref
from collections import deque
from threading import RLock
from typing import TYPE_CHECKING, Any, TypeVar

from pynotify._batch import NotifyBatch
from pynotify._encoding import channel_cache, encode_channel, encode_payload, join_payloads
from pynotify._ffi import again, ffi, lib
from pynotify._inbox import Inbox, Inboxes
from pynotify._ownership import CLOSED, keep, let_go
from pynotify._reader import INTERRUPTED, INTERRUPTED_HINT, Reader
from pynotify._transaction import FAILED, OpenTransaction
from pynotify._types import Gap, Notify
from pynotify.errors import (
    ActiveTransaction,
    ForkedConnectionError,
    InFailedTransaction,
    InterfaceError,
    NoActiveTransaction,
    ProgrammingError,
    SyncFailed,
    WouldWait,
    native_error,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Sequence

    from typing_extensions import Buffer

    from pynotify._encoding import Payloads
    from pynotify._engine import Engine
    from pynotify.topics._base_consumer import BaseConsumer

    NotifyHandler = Callable[[Notify], object]

_T = TypeVar("_T")

logger = logging.getLogger("pynotify")

# Globals, because looking an attribute up on the extension module costs as much as a branch.
_pn_notify_cstr = lib.pn_notify_cstr
_NOTICE = lib.PN_NOTICE
_NOTICE_BYTES = 1024
_EINTR = -errno.EINTR
_NO_LIMIT = 1 << 62


class _Process:
    """What os.getpid() says, without the system call: it is asked all the time."""

    def __init__(self) -> None:
        self.refresh()

    def refresh(self) -> None:
        self.pid = os.getpid()


process = _Process()
#: All connections of the process, for the child of a fork: what they have read is not its own,
#: and a lock that another thread held at the fork is never released there.
_connections: weakref.WeakSet[BaseConnection] = weakref.WeakSet()


def _forget_parent() -> None:
    process.refresh()
    for connection in _connections:
        connection._reset_in_child()


os.register_at_fork(after_in_child=_forget_parent)


class BaseConnection:
    """Of threads and of tasks."""

    def __init__(self, engine: Engine, handle: Any, database: str) -> None:
        self._handle = handle
        # Keeps the mapping, also when the user closes his Engine.
        self._engine_handle = engine._usable()
        keep(self, handle, self._engine_handle)
        self._database = database
        self._pid: int = lib.pn_conn_pid(handle)
        self._backend_id: int = lib.pn_conn_backend_id(handle)
        self._reader = Reader()
        # Re-entrant, so that a signal handler of Python that interrupted a receiver does not hang.
        self._receiving = RLock()
        self._inboxes = Inboxes()
        self._backlog = self._inboxes.main.messages
        #: A thread is putting what it read where it belongs.
        self._feeding = False
        #: An exception of a signal handler came in between; whoever comes next goes on with it.
        self._loose_ends = False
        #: fileno() was called.
        self._watched = False
        #: The descriptor is kept quiet until a full subscription has room again.
        self._hushed = False
        #: Subscriptions exist: what is read has to be put where it belongs.
        self._routed = False
        self._subscribing = RLock()
        #: SUBSCRIBEd channels that no subscription has any more.
        self._stale: set[str] = set()
        self._handlers: list[NotifyHandler] = []
        self._consumers: weakref.WeakSet[BaseConsumer[Any]] = weakref.WeakSet()
        #: The same object for the same topic, while somebody has it.
        self._topics_made: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
        #: The open transaction of each owner that has one.
        self._transactions: dict[Hashable, OpenTransaction] = {}
        _connections.add(self)
        self._log_notices()

    def _reset_in_child(self) -> None:
        """After a fork."""
        self._inboxes.clear()
        self._reader.reset()
        self._receiving, self._subscribing = RLock(), RLock()
        self._feeding = False
        for consumer in tuple(self._consumers):
            consumer._reset_in_child()

    def _owner(self) -> Hashable:
        """To whom a transaction belongs that is begun now."""
        raise NotImplementedError

    def _watch_owner(self, owner: Hashable) -> None:
        """See to it that its transaction is rolled back when it ends."""
        raise NotImplementedError

    # ---- sending -------------------------------------------------------------------------

    def _notify(self, channel: str, payload: str | Buffer = "") -> None:
        """Send a notification; outside a transaction it is committed at once.

        `channel`: 1 to 63 bytes of UTF-8 without NUL, else `InvalidChannelName`.  `payload`:
        str (sent as UTF-8) or bytes-like, at most 7999 bytes, else `PayloadTooLong`; both
        limits are options of the segment.  Raises `QueueFull`, at commit inside a transaction.
        """
        if self._transactions:
            transaction = self._transactions.get(self._owner())
            if transaction is not None:
                transaction.notify(channel, payload)
                return
        try:
            name = channel_cache[channel] if type(channel) is str else encode_channel(channel)
        except KeyError:
            name = encode_channel(channel)
        if type(payload) is bytes:
            data = payload
        elif type(payload) is str:
            data = payload.encode()
        else:
            data = encode_payload(payload)
        result = _pn_notify_cstr(self._handle, name, data, len(data))
        if result == _EINTR:
            self._on_its_own(lambda transaction: transaction.notify(channel, data))
        elif result:
            self._check(result)

    def _send_many(self, channel: str, payloads: Payloads, dedup: bool) -> int:
        """A transaction of its own.  May be repeated."""
        name = encode_channel(channel)
        blob, lengths = join_payloads(payloads)
        queued, lens = ffi.new("uint64_t *"), ffi.from_buffer("uint32_t[]", lengths)
        joined = name, len(name), blob, lens, len(lengths), dedup, queued
        result = lib.pn_notify_many(self._handle, ffi.NULL, *joined)
        if result != _EINTR:
            self._check(result)
            return int(queued[0])
        left: list[int] = []
        self._on_its_own(lambda tx: left.append(tx.notify_joined(name, blob, lengths, dedup=dedup)))
        return left[0]

    def _queue_usage(self) -> float:
        """May be repeated."""
        self._check_usable()
        out = ffi.new("double *")
        self._check(again(lambda: lib.pn_queue_usage(self._engine(), out)))
        return float(out[0])

    # ---- listening -----------------------------------------------------------------------

    def _listening_channels(self) -> frozenset[str]:
        self._check_usable()
        with self._receiving:
            return self._reader.listening(self)

    def _on_its_own(self, action: Callable[[OpenTransaction], None]) -> None:
        """In a transaction of its own.  May be repeated."""
        self._check_usable()
        transaction = OpenTransaction(self, None)
        try:
            action(transaction)
            self._finish(transaction)
        finally:
            transaction.abort()

    # ---- transactions --------------------------------------------------------------------

    @property
    def in_transaction(self) -> bool:
        """Whether the calling thread (in asyncio: task) has a transaction open, failed or not."""
        return self._owner() in self._transactions

    def _open_transaction(self) -> OpenTransaction | None:
        """That of the caller.  Raises when the connection cannot be used."""
        self._check_usable()
        # asyncio may ask the kernel for the pid before it says who the task is
        return self._transactions.get(self._owner()) if self._transactions else None

    def _required(self, command: str) -> OpenTransaction:
        transaction = self._open_transaction()
        if transaction is None:
            self._check_usable()  # it may have been closed since
            raise NoActiveTransaction(f"{command} can only be used in transaction blocks")
        return transaction

    def _explicit(self, action: str) -> OpenTransaction:
        """The caller's transaction, for commit() and rollback()."""
        transaction = self._open_transaction()
        if transaction is None:
            self._check_usable()
            raise NoActiveTransaction("there is no transaction in progress")
        if transaction.blocks:
            raise ProgrammingError(
                f"{action}() cannot be used inside a transaction block",
                hint="Leave the block, by an exception (pynotify.Rollback) to undo it.",
            )
        return transaction

    def _begin_explicitly(self) -> None:
        transaction = self._open_transaction()
        if transaction is not None:
            if transaction.failed:
                raise InFailedTransaction(FAILED)
            raise ActiveTransaction("there is already a transaction in progress")
        self._begin()

    def _savepoint(self, name: str) -> None:
        if not isinstance(name, str):
            raise TypeError(f"savepoint name must be a str, not {type(name).__name__}")
        self._required("SAVEPOINT").savepoint(name)

    def _release(self, name: str) -> None:
        transaction = self._required("RELEASE SAVEPOINT")
        transaction.require_usable()
        transaction.release(transaction.find_savepoint(name))

    def _rollback_to(self, name: str) -> None:
        transaction = self._required("ROLLBACK TO SAVEPOINT")
        transaction.require_unprepared()
        transaction.roll_back_to(transaction.find_savepoint(name))
        transaction.savepoint(name)

    def _begin(self) -> OpenTransaction:
        owner = self._owner()
        transaction = OpenTransaction(self, owner)
        self._watch_owner(owner)
        self._transactions[owner] = transaction
        if self._handle is CLOSED:  # meanwhile, and close() may not have seen this one
            self._roll_back(transaction)
            self._check_usable()
        return transaction

    def _commit(self, transaction: OpenTransaction, *, stays_open: bool = False) -> None:
        """Afterwards nothing is open, also when this raises; may be repeated.

        With `stays_open` it is, when a signal handler has raised before it was committed.
        """
        try:
            self._finish(transaction, stays_open=stays_open)
        except WouldWait:
            raise
        except BaseException:
            if transaction.ended or not stays_open:
                self._roll_back(transaction)
            raise
        self._transactions.pop(transaction.owner, None)

    def _roll_back(self, transaction: OpenTransaction) -> None:
        self._transactions.pop(transaction.owner, None)
        transaction.abort()

    def _owner_ended(self, owner: Hashable) -> None:
        transaction = self._transactions.pop(owner, None)
        if transaction is not None:
            transaction.abort()

    def _finish(self, transaction: OpenTransaction, *, stays_open: bool = False) -> None:
        try:
            result = transaction.commit(stays_open=stays_open)
            if result:
                self._check(result)
        except SyncFailed:  # it has been committed
            if transaction.unlistens:
                self._forget_unlistened()
            raise
        if transaction.unlistens:
            self._forget_unlistened()

    def _forget_unlistened(self) -> None:
        """What has been read ahead on channels that are not listened to any more is not owed."""
        with self._receiving:  # another thread may have read, and not put it there yet
            self._recover()
            if self._backlog:
                listening = self._reader.listening(self)
                messages: list[Notify | Gap] = []
                self._inboxes.main.take(messages, None)
                self._backlog.extend(
                    message
                    for message in messages
                    if isinstance(message, Gap) or message.channel in listening
                )

    def _refuse_transaction(self, what: str) -> None:
        if self._open_transaction() is not None:
            raise ActiveTransaction(f"{what}() cannot be used inside a transaction")

    # ---- topics: pn_...(connection, transaction or not, ...) ------------------------------

    def _run_deferred(self, call: Callable[..., int], *arguments: Any) -> int:
        """In the transaction of the caller, or outside of one.  May be repeated."""
        transaction = self._open_transaction()
        if transaction is not None:
            return transaction.add(call, arguments)
        return self._run_outside(call, ffi.NULL, *arguments)

    def _run_at_once(self, call: Callable[..., int], *arguments: Any) -> int:
        """What is no part of a transaction, but not done in a failed one.  May be repeated."""
        transaction = self._open_transaction()
        if transaction is not None:
            transaction.require_unfailed()
        return self._run_outside(call, *arguments)

    def _run_outside(self, call: Callable[..., int], *arguments: Any) -> int:
        """May be repeated."""
        result = call(self._handle, *arguments)
        if result == _EINTR:
            result = again(lambda: call(self._handle, *arguments))
        return self._check(result)

    def _attempt(self, encode: Callable[..., _T], *values: Any) -> _T:
        """A bad value fails the transaction of the caller."""
        transaction = self._open_transaction()
        if transaction is None:
            return encode(*values)
        transaction.require_usable()
        return transaction.attempt(encode, *values)

    # ---- receiving -----------------------------------------------------------------------

    def _read(self, limit: int) -> list[Notify | Gap]:
        """What poll() returns, up to `limit` messages, 0: all.  `_receiving` is taken here."""
        messages: list[Notify | Gap] = []
        try:
            with self._receiving:
                if self._routed or self._backlog or self._loose_ends:
                    self._read_both(messages, limit)
                else:
                    messages = self._reader.read(self, limit)
        except BaseException:
            self._loose_ends = True
            self._give_back(messages)
            raise
        return messages

    def _read_both(self, messages: list[Notify | Gap], limit: int) -> None:
        """Append what has been read already, and then what is there to read."""
        if self._routed:
            self._feed(post=False)  # most of it is taken out again
        else:
            self._recover()
        self._check_usable()
        self._inboxes.main.take(messages, limit or None)
        if not self._routed and (not limit or len(messages) < limit):
            messages += self._reader.read(self, limit and limit - len(messages))
        self._post()

    def _feed(self, limit: int = 0, *, post: bool = True, max_bytes: int = 0) -> bool:
        """Read for everybody, up to `limit` messages, 0: all; `_receiving` is held.

        With `max_bytes` not many more bytes of payload than that.

        False: a full subscription forbids it.
        """
        if self._feeding:
            raise ProgrammingError(INTERRUPTED, hint=INTERRUPTED_HINT)
        inboxes = self._inboxes
        room = None
        try:
            self._feeding = True
            if self._loose_ends:
                self._finish_reading()
            if inboxes.blocking:
                room = self._read_what_fits(limit, max_bytes)
            else:
                self._reader.read_routed(self, limit, inboxes.arrived, max_bytes)
                inboxes.distribute()
        except BaseException:
            # Ctrl-C: what was read is not only ours.
            self._loose_ends = True
            self._ask_others()
            self._finish_reading()
            raise
        finally:
            self._feeding = False
        if self._watched and room == 0:
            self._hushed = True
            self._check(lib.pn_conn_hush(self._handle))
        if post and self._watched:
            self._post()
        return room != 0

    def _read_what_fits(self, limit: int, max_bytes: int) -> int | None:
        """As much of it as no subscription is too full for; what room was left."""
        inboxes = self._inboxes
        # Little room takes many turns; who goes on sending meanwhile must not keep us here.
        began = time.monotonic_ns()
        room = inboxes.room()
        while room != 0:
            count = min(limit or _NO_LIMIT, room or _NO_LIMIT)
            messages = self._reader.read_routed(self, count, inboxes.arrived, max_bytes)
            inboxes.distribute()
            room = inboxes.room()
            if len(messages) < count or len(messages) == limit:
                break
            if isinstance(messages[-1], Gap) or messages[-1].sent_ns >= began:
                break
            limit = limit and limit - len(messages)
        return room

    def _finish_reading(self) -> None:
        if self._reader.pending:
            self._reader.read_routed(self, 0, self._inboxes.arrived)
        if self._inboxes.arrived:
            self._inboxes.distribute()
        self._loose_ends = False

    def _recover(self) -> None:
        """Put where it belongs what an exception of a signal handler (Ctrl-C) left behind."""
        if self._loose_ends and not (self._feeding or self._reader.busy):
            self._finish_reading()

    def _ask_others(self) -> None:
        """Let who waits in the core come and go on with the loose ends."""

    def _give_back(self, messages: Sequence[Notify | Gap]) -> None:
        """An exception keeps them from being returned."""
        with self._receiving:
            self._recover()
            if messages:
                self._backlog.extendleft(reversed(messages))
                self._inboxes.main.wake_all()
                self._post()

    def _room_made(self) -> None:
        """Something was taken out of a subscription that may have been full."""
        if self._hushed:
            self._hushed = False
            lib.pn_conn_post(self._handle)

    def _post(self) -> None:
        """The core knows nothing of what stays in the backlog; who watches the descriptor must."""
        if self._watched and self._backlog:
            lib.pn_conn_post(self._handle)

    def _poll(self, limit: int) -> list[Notify | Gap]:
        messages = self._read(limit)
        if self._handlers:
            # The call is inside: Ctrl-C can come at its first step, and nothing has been returned.
            try:
                self._run_handlers(messages)
            except BaseException:
                self._give_back(messages)
                raise
        return messages

    def _poll_batch(self, limit: int) -> NotifyBatch:
        messages: list[Notify | Gap] = []
        batch: NotifyBatch | None = None
        try:
            with self._receiving:
                if self._backlog or self._routed or self._loose_ends:
                    messages = self._read(limit)
                    batch = NotifyBatch.from_messages(messages)
                else:
                    batch = self._reader.read_columns(self, limit)
            if self._handlers:
                self._run_handlers(batch.in_order())
        except BaseException:
            self._loose_ends = True
            self._give_back(messages or ([] if batch is None else batch.in_order()))
            raise
        return batch

    def _run_handlers(self, messages: Sequence[Notify | Gap]) -> None:
        """Whoever calls it gives them back when it raises."""
        for message in messages:
            if isinstance(message, Notify):
                for handler in tuple(self._handlers):
                    self._run_handler(handler, message)

    def _run_handler(self, handler: NotifyHandler, message: Notify) -> None:
        try:
            handler(message)
        except Exception:
            logger.exception("notify handler %r raised and was removed", handler)
            if handler in self._handlers:
                self._handlers.remove(handler)

    def add_notify_handler(self, callback: NotifyHandler) -> None:
        """Call `callback(notify)` for every message, before it is returned.

        It runs inside `poll` and `notifies`, in their thread.  One that raises is removed, and
        the exception logged.
        """
        require_callable(callback)
        self._handlers.append(callback)

    def remove_notify_handler(self, callback: NotifyHandler) -> None:
        """Undo `add_notify_handler`.  Raises ValueError when it is not there."""
        self._handlers.remove(callback)

    # ---- subscriptions -------------------------------------------------------------------

    def _subscribe(self, inbox: Inbox, channels: Iterable[str]) -> None:
        """SUBSCRIBE, committed at once.  May be repeated."""
        names = tuple(dict.fromkeys(channels))
        with self._subscribing:
            with self._receiving:
                self._stale.update(self._inboxes.sweep())
                fresh = self._inboxes.add(inbox, names)
                self._routed = True
            try:
                self._on_its_own(lambda transaction: transaction.subscribe(fresh))
                since = ffi.new("uint64_t *")
                self._check(again(lambda: lib.pn_commit_seq(self._engine(), since)))
            except BaseException as error:
                with self._receiving:
                    unused = self._inboxes.remove(inbox)
                    # A name that is refused cannot be UNSUBSCRIBEd either, and nothing has begun.
                    if not isinstance(error, (ProgrammingError, TypeError)):
                        self._stale.update(unused)
                    self._routed = bool(self._inboxes.all or self._stale)
                raise
            with self._receiving:
                self._stale.difference_update(names)
                inbox.open(int(since[0]))

    def _unsubscribe(self, inbox: Inbox) -> None:
        """May be repeated; the inbox gets nothing more in any case."""
        with self._subscribing:
            with self._receiving:
                inbox.close()
                self._stale.update(self._inboxes.sweep())
            if self._handle is CLOSED or process.pid != self._pid:
                return
            if self._stale:
                try:
                    self._on_its_own(lambda transaction: transaction.unsubscribe(self._stale))
                except InterfaceError:
                    if self._handle is CLOSED:  # meanwhile
                        return
                    raise
            with self._receiving:
                self._recover()
                self._stale.clear()
                self._routed = bool(self._inboxes.all)

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
        return self._handle is CLOSED

    def _give_up(self) -> Any:
        """Roll back everything and wake everybody; the last references to what C has.

        None when it was closed before, or belongs to the parent of this process.
        """
        if process.pid != self._pid:
            return None
        let_go(self)
        handle, self._handle = self._handle, CLOSED
        if handle is CLOSED:
            return None
        while self._transactions:
            self._transactions.popitem()[1].abort()
        consumers = [consumer._give_up() for consumer in tuple(self._consumers)]
        lib.pn_conn_interrupt(handle)
        with self._receiving:
            self._reader.reset()
            # Not emptied: a signal handler that closes may have interrupted who goes through it.
            self._inboxes.arrived = deque()
            self._backlog.clear()
            self._inboxes.main.wake_all()
            for inbox in tuple(self._inboxes.all):
                inbox.close()
        self._engine_handle = None
        return consumers, handle

    def __repr__(self) -> str:
        state = "closed" if self.closed else f"backend {self._backend_id}"
        kind = type(self).__name__
        return f"<pynotify.{kind} pid {self._pid} database {self._database!r} ({state})>"

    def _check_usable(self) -> None:
        if self._handle is CLOSED:
            raise InterfaceError("the connection is closed")
        if process.pid != self._pid:
            raise ForkedConnectionError(
                f"this connection belongs to the process with PID {self._pid}, we are PID "
                f"{process.pid}"
            )

    def _engine(self) -> Any:
        """The handle of the engine, which lives as long as the connection is open."""
        handle = self._engine_handle
        if handle is None:
            self._check_usable()
        return handle

    def _check(self, result: int) -> int:
        """The result without its notice bit, the notices logged; raises when negative."""
        if result < 0:
            raise native_error(result)
        if result & _NOTICE:
            self._log_notices()
        return result & ~_NOTICE

    def _log_notices(self) -> None:
        text = ffi.new("char[]", _NOTICE_BYTES)
        while lib.pn_conn_notice(self._handle, text, _NOTICE_BYTES) > 0:
            logger.warning("%s", ffi.string(text).decode("utf-8", "replace"))


def require_callable(callback: object) -> None:
    if not callable(callback):
        raise TypeError(f"callback must be callable, not {type(callback).__name__}")


def limit_of(maximum: int) -> int:
    """The `max` of pn_poll(), where 0 would mean all; -1 when nothing is wanted."""
    if maximum < 0:
        raise ValueError(f"max must not be negative, is {maximum}")
    return maximum or -1


def nanoseconds(timeout: float | None) -> int:
    """The `timeout_ns` of pn_wait()."""
    if timeout is None:
        return -1
    if math.isnan(timeout):
        raise ValueError("timeout must be a number of seconds, not NaN")
    # A bound below 2**63 ns: three decades, after which wait() says False.
    return int(min(max(timeout, 0.0), 1e9) * 1_000_000_000)
