"""Shared generation counters: one load tells a process that what it has cached is old."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, NoReturn

from pynotify._encoding import encode_channel
from pynotify._ffi import again, ffi, lib
from pynotify._hot import Counter
from pynotify._ownership import keep
from pynotify._public import public
from pynotify.errors import InvalidChannelName

if TYPE_CHECKING:
    from pynotify._link import Link, TaskLink


class _Counter(Counter):
    """A counter, apart from waiting."""

    __slots__ = ("__weakref__", "_handle", "_link", "_name", "_transactions")

    def __init__(self, link: Link, name: str) -> None:
        encoded = _encode(name)
        handle = link.handle
        handle.check_usable()
        out = ffi.new("uint32_t *")
        # A reference of its own, so that the value can be read when the connection is closed.
        keep(self, handle.engine())
        self._read_from(handle.engine())
        asked = encoded, len(encoded), out
        handle.check(again(lambda: lib.pn_generation(handle.native, *asked)))
        self._link = link
        self._handle, self._transactions = handle, link.transactions
        self._index = int(out[0])
        self._name = name

    @property
    def name(self) -> str:
        """The counter's name in the connection's database."""
        return self._name

    def _bump_in_transaction(self) -> bool:
        """False when no transaction is open."""
        transaction = self._transactions.current()
        if transaction is None:
            return False
        transaction.bump(self._index)
        return True

    def _bump_on_its_own(self) -> None:
        """Bump in a transaction of its own.  May be repeated."""
        result = lib.pn_bump(self._handle.native, self._index)
        if result == -errno.EINTR:
            self._transactions.on_its_own(lambda transaction: transaction.bump(self._index))
        elif result:
            self._handle.check(result)

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"cannot pickle a {type(self).__name__}: it belongs to a connection of this process\n"
            "Pickle its name, and call generation() of a connection over there."
        )

    def __repr__(self) -> str:
        return f"<pynotify.{type(self).__name__} {self._name!r} value {self.value}>"


class Generation(_Counter):
    """A counter in shared memory, made by `Connection.generation`.

    `bump()` belongs to a transaction and takes effect when that commits, together with its
    notifications.  After a notification is received, `value` is at least what its transaction set;
    after that value is read, the next `poll()` finds the notifications of the transaction.
    """

    __slots__ = ()

    def bump(self) -> None:
        """Add one, at commit; outside a transaction that is at once.  Every bump counts.

        Undone with its transaction or savepoint.  Raises `QueueFull`, at commit inside a
        transaction, and what `Connection.notify` raises of the state of connection and segment.
        """
        if not self._bump_in_transaction():
            self._bump_on_its_own()


class AsyncGeneration(_Counter):
    """A counter in shared memory, for tasks; made by `AsyncConnection.generation`."""

    __slots__ = ()
    _link: TaskLink

    def __init__(self, link: TaskLink, name: str) -> None:
        super().__init__(link, name)

    async def bump(self) -> None:
        """Add one, at commit; outside a transaction that is at once.  Every bump counts.

        Undone with its transaction or savepoint.  Raises `QueueFull`, at commit inside a
        transaction, and what `AsyncConnection.notify` raises of the state of connection and
        segment.
        """
        if not self._bump_in_transaction():
            await self._link.off_loop.retry(self._bump_on_its_own)


def _encode(name: str) -> bytes:
    """A counter's name follows the rule for channels."""
    if not isinstance(name, str):
        raise TypeError(f"counter name must be a str, not {type(name).__name__}")
    try:
        return encode_channel(name)
    except InvalidChannelName as error:
        text = str(error).replace("channel name", "counter name", 1)
        raise InvalidChannelName(text) from error


public(AsyncGeneration, Generation)
