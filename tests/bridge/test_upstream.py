"""The bridge's connection by itself, driven step by step."""

from __future__ import annotations

import select
import time
from collections.abc import Callable
from typing import Any

import pytest

from pubsub.server import Server
from receiving import PATIENCE

pytest.importorskip("psycopg", reason="requires psycopg: it is not installed")

from pynotify.bridge import _upstream
from pynotify.bridge._upstream import Identity, Lost, Upstream

_STARTED = "SELECT extract(epoch FROM backend_start)::text FROM pg_stat_activity WHERE pid = %s"


def identity_of(conn: Any) -> Identity:
    pid = conn.info.backend_pid
    return Identity(pid, conn.execute(_STARTED, [pid]).fetchone()[0].encode())


def drive(upstream: Upstream, until: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not until():
        poll = select.poll()
        poll.register(upstream.fileno(), upstream.events)
        ready = poll.poll(max(0.0, deadline - time.monotonic()) * 1000)
        assert ready, "nothing comes"
        upstream.step(ready[0][1])


@pytest.fixture
def make(postgres: Server) -> Any:
    made: list[Upstream] = []

    def new(previous: Identity | None = None, dsn: str = postgres.dsn) -> Upstream:
        made.append(Upstream(dsn, previous=previous, clock=time.monotonic, on_ready=lambda: None))
        return made[-1]

    yield new
    for upstream in made:
        upstream.close()


def test_before_it_is_ready_the_earlier_backend_has_ended(make: Any, postgres: Server) -> None:
    """It may be in the middle of a commit, which would come as a stranger's."""
    import psycopg

    old = postgres.connect()
    upstream = make(identity_of(old))
    drive(upstream, lambda: upstream.ready)
    with postgres.connect() as conn:
        assert conn.execute(_STARTED, [old.info.backend_pid]).fetchone() is None
    with pytest.raises(psycopg.OperationalError):
        old.execute("SELECT 1")
    old.close()


def test_another_backend_of_that_pid_is_left_alone(make: Any, postgres: Server) -> None:
    with postgres.connect() as other:
        upstream = make(Identity(other.info.backend_pid, b"1700000000.5"))
        drive(upstream, lambda: upstream.ready)
        assert other.execute("SELECT 1").fetchone() == (1,)


def test_a_backend_that_does_not_end_is_a_loss(
    make: Any, postgres: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_upstream, "_TERMINATE_MS", b"0")
    import os
    import signal

    with postgres.connect() as old:
        previous = identity_of(old)
        os.kill(previous.pid, signal.SIGSTOP)
        try:
            upstream = make(previous)
            with pytest.raises(Lost, match=f"PID {previous.pid}"):
                drive(upstream, lambda: upstream.ready)
        finally:
            os.kill(previous.pid, signal.SIGCONT)


def test_statements_keep_their_order(make: Any) -> None:
    upstream = make()
    drive(upstream, lambda: upstream.ready)
    seen: list[Any] = []

    def keep(results: Any) -> None:
        seen.append([result.get_value(0, 0) for result in results])

    upstream.execute(b"SELECT 1; SELECT 2", None, keep)
    upstream.execute(b"SELECT $1::text", [b"x" * 100_000], keep)
    upstream.execute(b"SELECT 1/0", [], keep, lambda error: seen.append(error.sqlstate))
    upstream.execute(b"SELECT 3", [], keep)
    upstream.step(0)
    drive(upstream, lambda: upstream.idle)
    assert seen == [[b"1", b"2"], [b"x" * 100_000], "22012", [b"3"]]


def test_an_unexpected_error_is_a_loss(make: Any) -> None:
    upstream = make()
    drive(upstream, lambda: upstream.ready)
    upstream.execute(b"SELECT 1/0", [], lambda _: None)
    upstream.step(0)
    with pytest.raises(Lost, match="division by zero"):
        drive(upstream, lambda: upstream.idle)


def test_connecting_has_a_deadline(make: Any, postgres: Server) -> None:
    upstream = make(None, postgres.dsn + " connect_timeout=3")
    assert upstream.deadline is not None
    assert 0 < upstream.deadline - time.monotonic() <= 3
    upstream._clock = lambda: time.monotonic() + 3
    with pytest.raises(Lost, match="does not answer"):
        upstream.step(0)


def test_what_it_tells_libpq() -> None:
    text, seconds = _upstream.parameters("host=h keepalives_idle=5")
    assert b"keepalives_idle=5" in text
    assert b"tcp_user_timeout=60000" in text
    assert b"client_encoding=UTF8" in text
    assert seconds == 10
    assert _upstream.parameters("postgresql://h/d?connect_timeout=4")[1] == 4
