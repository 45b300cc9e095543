"""Shared generation counters: one load tells a process that what it has cached is old."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, NoReturn

from pynotify._encoding import encode_channel
from pynotify._ffi import again, ffi, lib
from pynotify._ownership import keep
from pynotify.errors import InvalidChannelName

if TYPE_CHECKING:
    from pynotify._async_connection import AsyncConnection
    from pynotify._base import BaseConnection

_pn_generation_value = lib.pn_generation_value


class _Counter:
    """What both have in common: everything but waiting."""

    __slots__ = ("__weakref__", "_engine_handle", "_index", "_name", "_of")

    def __init__(self, connection: BaseConnection, name: str) -> None:
        encoded = _encode(name)
        connection._check_usable()
        out = ffi.new("uint32_t *")
        # Of its own, so that the value can be read when the connection is closed.
        self._engine_handle = connection._engine()
        keep(self, self._engine_handle)
        asked = encoded, len(encoded), out
        connection._check(again(lambda: lib.pn_generation(connection._handle, *asked)))
        self._of = connection
        self._index = int(out[0])
        self._name = name

    @property
    def name(self) -> str:
        """Its name, which is one in the connection's database."""
        return self._name

    @property
    def value(self) -> int:
        """How often it was bumped: one load from shared memory.

        It can be read by any thread, in a forked child, and after the connection was closed.
        """
        return _pn_generation_value(self._engine_handle, self._index)

    def _bump_in_transaction(self) -> bool:
        """False: there is none."""
        transaction = self._of._open_transaction()
        if transaction is None:
            return False
        transaction.bump(self._index)
        return True

    def _bump_on_its_own(self) -> None:
        """A transaction of its own.  May be repeated."""
        connection = self._of
        result = lib.pn_bump(connection._handle, self._index)
        if result == -errno.EINTR:
            connection._on_its_own(lambda transaction: transaction.bump(self._index))
        elif result:
            connection._check(result)

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
    notifications.  Whoever was returned a notification of a transaction reads at least the value
    that its bumps made; whoever has read that value finds its notifications in the next `poll()`.
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
    """The same for tasks, made by `AsyncConnection.generation`."""

    __slots__ = ("_connection",)

    def __init__(self, connection: AsyncConnection, name: str) -> None:
        super().__init__(connection, name)
        self._connection = connection

    async def bump(self) -> None:
        """As `Generation.bump`."""
        if not self._bump_in_transaction():
            await self._connection._patiently(self._bump_on_its_own)


def _encode(name: str) -> bytes:
    """A counter's name follows the rule for channels."""
    if not isinstance(name, str):
        raise TypeError(f"counter name must be a str, not {type(name).__name__}")
    try:
        return encode_channel(name)
    except InvalidChannelName as error:
        text = str(error).replace("channel name", "counter name", 1)
        raise InvalidChannelName(text) from error
