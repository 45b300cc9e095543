"""Connections by segment name: a new one, and the one that a process shares."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from pynotify._configured import variable
from pynotify._engine import open as open_segment
from pynotify._ffi import lib
from pynotify._handle import spell_wakeup, wakeup_signal
from pynotify._hot import finalizer
from pynotify._locks import RLock
from pynotify._options import SegmentOptions
from pynotify._public import public
from pynotify._segments import repeat_while_unlinked
from pynotify.errors import InterfaceError, LayoutMismatch, ProgrammingError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Unpack

    from pynotify._async_connection import AsyncConnection
    from pynotify._connection import Connection
    from pynotify._open_options import OpenOptions


def connect(
    name: str = "default",
    *,
    database: str = "default",
    latency_log: str | os.PathLike[str] | None = None,
    wakeup: str | int | None = None,
    latency_log_limit: int | None = None,
    application_name: str = "",
    **options: Unpack[OpenOptions],
) -> Connection:
    """Open the segment `name`, creating it if need be, and take a backend slot in it.

    `options` and errors as for `pynotify.open`, the others as for `Engine.connect`.
    """

    def make() -> Connection:
        with open_segment(name, **options) as engine:
            return engine.connect(
                database,
                latency_log,
                wakeup,
                latency_log_limit=latency_log_limit,
                application_name=application_name,
            )

    return repeat_while_unlinked(make)


class _Shared:
    """The connections of get(), and the signal that each was asked to be woken by."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        # Re-entrant: a signal handler may call get() while its thread is in it.
        self.lock = RLock()
        self.connections: dict[str, tuple[Connection, int]] = {}

    def find(self, name: str) -> tuple[Connection, int] | None:
        """The one of that name, unless it was closed."""
        found = self.connections.get(name)
        return None if found is None or found[0].closed else found


_shared = _Shared()


def get(
    name: str = "default",
    *,
    wakeup: str | int | None = None,
    **options: Unpack[OpenOptions],
) -> Connection:
    """The connection to `name` that this process shares; made when there is none.

    Safe to call after fork: the child gets one of its own.  After its `close()` the next call
    makes a new one.  `wakeup` and `options` are as of `connect`.  A call that finds the connection
    may leave them out.  Where it asks for others than the connection and its segment have,
    `ProgrammingError` (`wakeup`) and `LayoutMismatch` name them and both values; so they belong
    into one place, or into PYNOTIFY_NAME in the environment (`pynotify.open`).
    """
    signo = wakeup_signal(wakeup)
    with _shared.lock:
        found = _shared.find(name)
        if found is None:
            made = connect(name, wakeup=wakeup, **options)
            found = _shared.find(name)  # made by a signal handler in between
            if found is None:
                _shared.connections[name] = (made, signo)
                return made
            made.close()
        connection, has = found
        if wakeup is not None and signo != has:
            raise ProgrammingError(
                f'the connection to "{name}" that this process shares has '
                f"wakeup={spell_wakeup(has)}, not wakeup={spell_wakeup(signo)}",
                hint=f"Give the same wakeup to every get({name!r}), or leave it out of the later "
                f"ones; connect({name!r}, wakeup={spell_wakeup(signo)}) makes another connection.",
            )
        if options:
            _require_same(connection, name, options)
        return connection


def _require_same(connection: Connection, name: str, options: Mapping[str, object]) -> None:
    """Raise unless the segment of an open connection has these options."""
    wanted = SegmentOptions(options)
    try:
        differences = wanted.mismatches(connection.link.handle.options())
    except InterfaceError:  # another thread has closed it just now: so each method will say
        return
    if differences:
        raise LayoutMismatch(
            f'segment "{name}" was created with {"; ".join(differences)}, and this process has '
            "a connection to it",
            hint=f"Give the same options to every get({name!r}), in one place or in "
            f"{variable(name)} in the environment, or leave them out of the later ones. To have "
            "the new ones, end the processes that use the segment.",
        )


def is_gone(connection: Connection | AsyncConnection) -> bool:
    """Whether its segment was removed; of one that is closed that is not known: False."""
    try:
        return bool(lib.pn_engine_gone(connection.link.handle.engine()))
    except InterfaceError:
        return False


def created_at(connection: Connection) -> int:
    """When its segment was made, in ns: it tells segments of one name apart."""
    return int(lib.pn_engine_created_ns(connection.link.handle.engine()))


def get_present(name: str) -> Connection:
    """The connection that this process shares; made again if its segment was removed."""
    connection = get(name)
    if is_gone(connection):
        with _shared.lock:
            found = _shared.find(name)
            if found is not None and found[0] is connection:
                del _shared.connections[name]
        connection = get(name)
    return connection


def close_shared(name: str) -> None:
    """Close the connection to `name` that this process shares, if there is one."""
    with _shared.lock:
        found = _shared.connections.pop(name, None)
    if found is not None:
        found[0].close()


# The lock may be held at the moment of the fork by a thread that the child does
# not have, and the parent's connections are of no use there.
os.register_at_fork(after_in_child=finalizer(_shared.reset))


public(connect, get)
