"""What `Connection` and `AsyncConnection` have in common: their parts, and properties.

A connection is composed of four parts: the handle (`_handle`), the receiver (`_receiver`), the
open transactions (`_registry`) and the sender (`_sender`).  Here and in the subclasses is what a
user calls; the parts do it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar

from pynotify._ffi import lib
from pynotify._finalizing import WeakSet, WeakValueDictionary
from pynotify._sender import Sender

if TYPE_CHECKING:
    from collections.abc import Callable

    from pynotify._handle import Handle
    from pynotify._receiver import NotifyHandler, Receiver
    from pynotify._registry import Transactions

_T = TypeVar("_T")
_R = TypeVar("_R", bound="Receiver")
_X = TypeVar("_X", bound="Transactions")


class Parts(Generic[_R, _X]):
    """What the children of a connection see of it; a `Link`."""

    __slots__ = ("__weakref__", "consumers", "handle", "receiver", "transactions")

    def __init__(self, handle: Handle, receiver: _R, transactions: _X) -> None:
        self.handle = handle
        self.receiver = receiver
        self.transactions = transactions
        self.consumers: WeakSet[Any] = WeakSet()


class BaseConnection:
    """The parts of a connection, and what says something about it."""

    def __init__(
        self, handle: Handle, receiver: Receiver, transactions: Transactions, parts: Parts[Any, Any]
    ) -> None:
        self._handle = handle
        #: What subscriptions, topics, PubSub and the bridge see of the connection.
        self.link = parts
        self._sender = Sender(handle, transactions)
        self._registry = transactions
        # These are the same objects for the connection's life.
        self._transactions = transactions.by_owner
        self._backlog = receiver.backlog
        self._handlers = receiver.handlers
        #: The same object for the same topic, as long as a reference to it exists.
        self._topics_made: WeakValueDictionary[int, Any] = WeakValueDictionary()

    @property
    def pid(self) -> int:
        """The process the connection belongs to; `Notify.pid` of what it sends."""
        return self._handle.pid

    @property
    def backend_id(self) -> int:
        """The slot in the backend array; `Notify.backend_id` of what the connection sends."""
        return self._handle.backend_id

    @property
    def database(self) -> str:
        """The name space the connection is in."""
        return self._handle.database

    @property
    def application_name(self) -> str:
        """What the connection is for, as `stat` and `top` show it: up to 63 bytes of UTF-8.

        Setting it takes the segment's lock for an instant.  Raises `LockTimeout`.
        """
        return self._handle.application_name

    @application_name.setter
    def application_name(self, name: str) -> None:
        """Set it: any text, of which the first 63 bytes are shown; "" for none."""
        self._handle.set_application_name(name)

    @property
    def closed(self) -> bool:
        """Whether `close()` was called."""
        return self._handle.closed

    @property
    def in_transaction(self) -> bool:
        """Whether the calling thread (in asyncio: task) has a transaction open, failed or not."""
        return self._registry.owner() in self._transactions

    def add_notify_handler(self, callback: NotifyHandler) -> None:
        """Call `callback(notify)` for every message, before it is returned.

        It runs inside `poll` and `notifies`, in their thread.  One that raises is removed, and
        the exception logged.
        """
        require_callable(callback)
        self._handlers.append(callback)

    def remove_notify_handler(self, callback: NotifyHandler) -> None:
        """Undo `add_notify_handler`.  Raises ValueError when the handler is not registered."""
        self._handlers.remove(callback)

    def _topic(self, ref: int, make: Callable[[], _T]) -> _T:
        """The object of the topic `ref`, made when there is none."""
        made = self._topics_made
        found: _T = made.get(ref) or made.setdefault(ref, make())
        return found

    def _give_up(self) -> Any:
        """Roll back everything and wake all waiters; the last references to what C has.

        None when it was closed before, or belongs to the parent of this process.
        """
        native = self._handle.close()
        if native is None:
            return None
        self._registry.abort_all()
        consumers = [consumer.give_up() for consumer in tuple(self.link.consumers)]
        lib.pn_conn_interrupt(native)
        self.link.receiver.discard()
        self._handle.let_engine_go()
        return consumers, native

    def __repr__(self) -> str:
        state = "closed" if self.closed else f"backend {self.backend_id}"
        kind = type(self).__name__
        return f"<pynotify.{kind} pid {self.pid} database {self.database!r} ({state})>"


def require_callable(callback: object) -> None:
    """Raise a TypeError unless `callback` can be called."""
    if not callable(callback):
        raise TypeError(f"callback must be callable, not {type(callback).__name__}")


def check_stop_after(stop_after: int | None) -> None:
    """Raise a ValueError when `stop_after` is negative."""
    if stop_after is not None and stop_after < 0:
        raise ValueError(f"stop_after must not be negative, is {stop_after}")
