"""Connections by segment name: a new one, and the one that a process shares."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

from pynotify._engine import open as open_segment
from pynotify._segments import repeat_while_unlinked

if TYPE_CHECKING:
    from typing import Unpack

    from pynotify._connection import Connection
    from pynotify._options import OpenOptions


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
    """The connections of get()."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        # Re-entrant: a signal handler may call get() while its thread is in it.
        self.lock = threading.RLock()
        self.connections: dict[str, Connection] = {}


_shared = _Shared()


def get(
    name: str = "default",
    *,
    wakeup: str | int | None = None,
    **options: Unpack[OpenOptions],
) -> Connection:
    """The connection to `name` that this process shares; made when there is none.

    Safe to call after fork: the child gets one of its own.  After its `close()` the next call
    makes a new one.  `wakeup` and `options`, as of `connect`, count for the call that makes it: so
    they belong into one place, or into PYNOTIFY_NAME in the environment (`pynotify.open`).
    """
    with _shared.lock:
        connection = _shared.connections.get(name)
        if connection is None or connection.closed:
            made = connect(name, wakeup=wakeup, **options)
            connection = _shared.connections.get(name)  # made by a signal handler in between
            if connection is None or connection.closed:
                connection = _shared.connections[name] = made
            else:
                made.close()
        return connection


def close_shared(name: str) -> None:
    """Close the connection to `name` that this process shares, if there is one."""
    with _shared.lock:
        connection = _shared.connections.pop(name, None)
    if connection is not None:
        connection.close()


# The lock may be held at the moment of the fork by a thread that the child does
# not have, and the parent's connections are of no use there.
os.register_at_fork(after_in_child=_shared.reset)
