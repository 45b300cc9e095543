"""`pynotify bridge`."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import pynotify
from bridge.conftest import NewBridgeProcess
from cli.console import Running, run
from pubsub.server import Server
from receiving import wait_until


def test_a_session(
    new_bridge_process: NewBridgeProcess,
    engine: pynotify.Engine,
    engine_name: str,
    postgres: Server,
) -> None:
    """Started, listened through, notified through, ended."""
    bridge = new_bridge_process(engine_name, postgres, "orders,c d", "--channels", "more", "--both")
    before = engine.stat().subscriptions
    words = ("listen", "--name", engine_name, "orders", "more", "--count", "2", "--json")
    listener = Running(*words)
    try:
        wait_until(lambda: engine.stat().subscriptions == before + 2, "it listens")
        with pynotify.connect(engine_name) as conn, postgres.connect() as upstream:
            conn.listen("orders", "more", "c d", wait_upstream=True)
            upstream.execute('LISTEN "orders"')
            done = run("notify", "--name", engine_name, "orders", "from here")
            assert done.status == 0
            (note,) = upstream.notifies(stop_after=1)
            assert (note.channel, note.payload) == ("orders", "from here")
            upstream.execute("SELECT pg_notify('more', 'from there')")
            heard = [json.loads(listener.line()) for _ in range(2)]
            assert [h["payload"] for h in heard] == ["from here", "from there"]
            assert heard[1]["pid"] == upstream.info.backend_pid
        assert listener.finish().status == 0
    finally:
        listener.close()
    bridge.signal(signal.SIGTERM)
    done = bridge.finish()
    assert (done.status, done.out) == (0, "")


def test_ctrl_c(new_bridge_process: NewBridgeProcess, engine_name: str, postgres: Server) -> None:
    bridge = new_bridge_process(engine_name, postgres, "c")
    bridge.signal(signal.SIGINT)
    assert bridge.finish().status == 130


def test_a_service(engine_name: str, postgres: Server, tmp_path: Path) -> None:
    services = tmp_path / "services"
    services.write_text(f"[app]\nhost={postgres.directory}\nuser=postgres\ndbname=postgres\n")
    bridge = Running(
        "bridge", engine_name, "--channels", "c", PGSERVICEFILE=str(services), PGSERVICE="app"
    )
    try:
        assert bridge.line(err=True) == b"bridge of c runs"
        assert b"connected to" in bridge.line(err=True)
        bridge.signal(signal.SIGTERM)
        assert bridge.finish().status == 0
    finally:
        bridge.close()


def test_it_waits_for_a_server(engine_name: str, tmp_path: Path) -> None:
    bridge = Running("bridge", engine_name, "--channels", "c", PGHOST=str(tmp_path))
    try:
        assert bridge.line(err=True) == b"bridge of c runs"
        line = bridge.line(err=True)
        assert b"no connection to PostgreSQL" in line
        assert b"again in" in line
        bridge.signal(signal.SIGTERM)
        assert bridge.finish().status == 0
    finally:
        bridge.close()


def test_a_second_one(
    new_bridge_process: NewBridgeProcess, engine_name: str, postgres: Server
) -> None:
    first = new_bridge_process(engine_name, postgres, "c")
    done = run("bridge", engine_name, "--channels", "d", PGHOST=str(postgres.directory))
    assert done.status == 1
    assert f"PID {first.pid}" in done.err


@pytest.mark.parametrize("words", [[], ["NAME"], ["NAME", "--channels", ","]])
def test_wrong_usage(words: list[str]) -> None:
    assert run("bridge", *words).status == 2


def test_without_psycopg(new_name: Callable[[], str]) -> None:
    program = (
        "import sys; sys.modules['psycopg'] = None\n"
        "from pynotify.cli.main import main\n"
        f"sys.exit(main(['bridge', {new_name()!r}, '--channels', 'c']))"
    )
    with_c = Running(program, command=[sys.executable, "-c"])
    try:
        done = with_c.finish()
    finally:
        with_c.close()
    assert done.status == 1
    assert 'pip install "pynotify-ipc[postgres]"' in done.err
