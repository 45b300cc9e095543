"""A process under test that listens and waits; its functions are called by `sessions.Worker`."""

from __future__ import annotations

from multiprocessing.connection import Connection as Pipe
from typing import Any

import pynotify
from receiving import payloads, receive

_held: list[pynotify.Connection] = []


def listen(name: str, **options: Any) -> None:
    """On the channel "c"."""
    _held.append(pynotify.connect(name, **options))
    _held[0].listen("c")


def hear(count: int) -> list[str]:
    """Wait until so many messages have come."""
    return payloads(receive(_held[0], count))


def hear_by_itself(name: str, count: int, pipe: Pipe) -> None:
    """For a child process: its pid and what it heard go into the pipe."""
    with pynotify.get(name) as conn:
        conn.listen("c")
        pipe.send((conn.pid, payloads(receive(conn, count))))
