"""The PostgreSQL that the tests start: it answers, is killed, comes back, and leaves nothing."""

from __future__ import annotations

import shutil
import signal

import pytest

from programs import ROOT, Program, require_module
from pubsub.server import Server, lives
from receiving import PATIENCE, readable, wait_until
from requirement import require


def test_it_answers_on_its_socket_only(postgres: Server) -> None:
    with postgres.connect() as conn:
        assert conn.info.host == str(postgres.directory)
        assert conn.execute("SHOW listen_addresses").fetchone() == ("",)
        assert conn.execute("SHOW server_encoding").fetchone() == ("UTF8",)


def test_killed_it_comes_back(own_postgres: Server) -> None:
    import psycopg

    lost = own_postgres.connect()
    own_postgres.kill()
    with pytest.raises(psycopg.OperationalError):
        lost.execute("SELECT 1")
    lost.close()
    own_postgres.start()
    with own_postgres.connect() as conn:
        assert conn.execute("SELECT 1").fetchone() == (1,)


def test_it_ends_with_the_tests_that_started_it() -> None:
    program = """
import sys
sys.path[:0] = sys.argv[1:]
from pubsub.server import running_server
running = running_server()
server = running.__enter__()
print(server.pid, server.directory, flush=True)
sys.stdin.read()
"""
    require("postgres")
    require_module("psycopg")
    with Program("-c", program, str(ROOT / "tests"), str(ROOT / "tests" / "support")) as tests:
        pid, directory = tests.lines(1)[0].split()
        tests.kill()
    wait_until(lambda: not lives(int(pid)), "the postmaster is gone")
    shutil.rmtree(directory)


def test_paused_it_keeps_its_connections(own_postgres: Server) -> None:
    with own_postgres.connect() as conn:
        own_postgres.pause()
        conn.pgconn.send_query(b"SELECT 1")
        own_postgres.resume()
        while conn.pgconn.is_busy():
            assert readable(conn.fileno(), PATIENCE)
            conn.pgconn.consume_input()
        result = conn.pgconn.get_result()
        assert result is not None and result.get_value(0, 0) == b"1"
        while conn.pgconn.get_result():
            pass
    own_postgres.stop(signal.SIGINT)
    assert not own_postgres.running
