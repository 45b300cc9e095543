"""Bridges in tests: in a thread of the test, or in a process of their own that may be killed."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pynotify
import pynotify.bridge
from cli.console import Running
from pubsub.server import Server
from receiving import PATIENCE, wait_until
from waiting import Call

FAST = {"first_delay": 0.01, "longest_delay": 0.05}
APPLICATION = "pynotify bridge"


class Bridge:
    """One that runs in a thread."""

    def __init__(self, name: str, server: Server, *channels: str, **options: Any) -> None:
        self.it = pynotify.bridge.PostgresBridge(
            name, channels=channels, conninfo=server.dsn, **{**FAST, **options}
        )
        self._running = Call(self.it.run)

    def stats(self) -> pynotify.bridge.BridgeStats:
        return self.it.stats()

    def await_listening(self, *channels: str) -> None:
        """Upstream to these, and to no others."""
        wait_until(lambda: self.stats().listening == set(channels), f"it listens to {channels}")

    def await_connections(self, count: int) -> None:
        wait_until(lambda: self.stats().connections >= count, f"{count} connections")

    def await_loss(self) -> None:
        wait_until(lambda: self.stats().upstream_pid is None, "it has noticed the loss")

    def close(self) -> None:
        self.it.stop()
        self._running.result()
        self.it.close()


class BridgeProcess(Running):
    """`pynotify bridge`, connected when this returns."""

    def __init__(self, name: str, server: Server, channels: str, *words: str) -> None:
        super().__init__(
            "bridge", name, "--channels", channels, *words,
            PGHOST=str(server.directory), PGUSER="postgres", PGDATABASE="postgres",
        )  # fmt: skip
        self.await_line(b"connected")

    def await_line(self, word: bytes) -> bytes:
        """On its standard error."""
        while word not in (line := self.line(err=True)):
            assert line, "it ended"
        return line


def lines_of(server: Server, query: str) -> list[Any]:
    with server.connect() as conn:
        return list(conn.execute(query).fetchall())


def bridges_on(server: Server) -> int:
    """How many connections of bridges the server has."""
    query = "SELECT 1 FROM pg_stat_activity WHERE application_name = %s"
    with server.connect() as conn:
        return len(conn.execute(query, [APPLICATION]).fetchall())


@contextlib.contextmanager
def listening(server: Server, *channels: str) -> Iterator[Any]:
    """A psycopg connection that listens."""
    with server.connect() as conn:
        for channel in channels:
            conn.execute(f'LISTEN "{channel}"')
        yield conn


def hear(conn: Any, count: int) -> list[str]:
    """Payloads of the next notifications of a psycopg connection."""
    heard = [n.payload for n in conn.notifies(timeout=PATIENCE, stop_after=count)]
    assert len(heard) >= count, heard
    return heard


def hear_nothing_but(conn: Any, channel: str) -> None:
    """It has heard nothing more up to now: what is sent now comes next."""
    conn.execute("SELECT pg_notify(%s, 'the end')", [channel])
    assert hear(conn, 1) == ["the end"]


def take(conn: pynotify.Connection, count: int) -> list[str]:
    """Payloads, and the reasons of gaps, of what comes next; nothing may come after it."""
    found = list(conn.notifies(timeout=PATIENCE, stop_after=count))
    assert len(found) == count, found
    found += conn.poll()
    return [m.payload if isinstance(m, pynotify.Notify) else f"({m.reason})" for m in found]


GAP = f"({pynotify.Gap.UPSTREAM})"
