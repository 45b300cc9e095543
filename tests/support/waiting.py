"""Threads of a test that wait: calls that are made elsewhere, and how many have got to waiting."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pynotify
from receiving import PATIENCE, wait_until


class Call:
    """`function(*arguments)` in a thread of its own."""

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self._function = function
        self._arguments = arguments
        self._value: Any = None
        self._error: BaseException | None = None
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            self._value = self._function(*self._arguments)
        except BaseException as error:
            self._error = error

    @property
    def ended(self) -> bool:
        return not self.thread.is_alive()

    def error(self, timeout: float = PATIENCE) -> BaseException | None:
        """What it raised."""
        self.thread.join(timeout)
        if not self.ended:
            raise TimeoutError(f"the thread did not end within {timeout} s")
        return self._error

    def result(self, timeout: float = PATIENCE) -> Any:
        """What it returned; raises what it raised."""
        error = self.error(timeout)
        if error is not None:
            raise error
        return self._value


def await_waiting(conn: pynotify.Connection, threads: int) -> None:
    """Until one thread sleeps in the core and the others behind it."""
    election = conn.link.receiver.election

    def waiting() -> bool:
        leader = election.leader
        asleep = leader is not None and leader.in_core
        return asleep and len(election.followers) == threads - 1

    wait_until(waiting, f"{threads} threads wait")
