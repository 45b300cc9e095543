"""Drivers as they come from the package indices, unmodified, on a gateway."""

from __future__ import annotations

import asyncio
import json
import os
import select
import subprocess
from pathlib import Path
from typing import Any

import pytest

import pynotify
from gateway.conftest import NewGateway
from gateway.gateways import Running
from programs import require_module
from receiving import PATIENCE, receive
from requirement import require
from sessions import Connect


@pytest.fixture
def psycopg() -> Any:
    require_module("psycopg")
    import psycopg

    return psycopg


# ---- psql ---------------------------------------------------------------------------------------


def psql(gateway: Running, *arguments: str, **more: Any) -> subprocess.CompletedProcess[str]:
    require("psql")
    command = ["psql", "-X", "-d", gateway.dsn, *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=PATIENCE, check=False, **more
    )


def test_psql_hears_itself(gateway: Running) -> None:
    done = psql(gateway, "-c", "LISTEN a; NOTIFY a, 'hello'")
    assert done.returncode == 0, done.stderr
    expected = 'Asynchronous notification "a" with payload "hello" received from server process'
    assert expected in done.stdout


def test_psql_s_exit_status_and_hint(gateway: Running) -> None:
    assert psql(gateway, "-c", "SELECT 1").returncode == 0
    done = psql(gateway, "-c", "CREATE TABLE t (i int)")
    assert done.returncode == 1
    assert "CREATE is not supported" in done.stderr
    assert "This is no database" in done.stderr
    done = psql(gateway, "-v", "ON_ERROR_STOP=1", "-f", "-", input="SELECT 1;\nfoo;\nSELECT 2;\n")
    assert done.returncode == 3


def test_psql_s_own_queries_find_an_empty_catalogue(gateway: Running) -> None:
    done = psql(gateway, "-f", "-", input="\\d\n\\dt\n\\l\n\\du\n\\df\nSELECT 1 AS still;\n")
    assert "still" in done.stdout
    assert done.stderr.count("ERROR") == 0, done.stderr


# ---- psycopg ------------------------------------------------------------------------------------


def test_psycopg_listens_and_notifies(gateway: Running, psycopg: Any) -> None:
    with psycopg.connect(gateway.dsn, autocommit=True) as conn:
        conn.execute("LISTEN a")
        with psycopg.connect(gateway.dsn, autocommit=True) as other:
            other.execute("SELECT pg_notify(%s, %s)", ("a", "from the other"))
        notification = next(conn.notifies(timeout=PATIENCE))
        assert notification.payload == "from the other"
        assert notification.pid != conn.info.backend_pid


def test_psycopg_transactions(gateway: Running, psycopg: Any) -> None:
    with psycopg.connect(gateway.dsn) as conn, psycopg.connect(gateway.dsn, autocommit=True) as ear:
        ear.execute("LISTEN a")
        with conn.transaction():
            conn.execute("NOTIFY a, '1'")
            with pytest.raises(psycopg.errors.DivisionByZero), conn.transaction():
                conn.execute("NOTIFY a, 'undone'")
                conn.execute("SELECT 1/0")
            with conn.transaction():
                conn.execute("NOTIFY a, '2'")
        conn.rollback()
        with pytest.raises(psycopg.errors.FeatureNotSupported, match="INSERT is not supported"):
            conn.execute("INSERT INTO t VALUES (1)")
        conn.rollback()
        conn.execute("NOTIFY a, '3'")
        conn.commit()
        heard = ear.notifies(timeout=PATIENCE, stop_after=3)
        assert [n.payload for n in heard] == ["1", "2", "3"]


def test_psycopg_pipeline_and_prepared_statements(gateway: Running, psycopg: Any) -> None:
    with psycopg.connect(gateway.dsn, autocommit=True) as conn:
        conn.execute("LISTEN a")
        for i in range(8):  # from the sixth on prepared
            conn.execute("SELECT pg_notify('a', %s)", (str(i),))
        with conn.pipeline():
            for i in range(8, 12):
                conn.execute("SELECT pg_notify('a', %s)", (str(i),), binary=True)
        heard = [n.payload for n in conn.notifies(timeout=PATIENCE, stop_after=12)]
        assert heard == [str(i) for i in range(12)]
        conn.execute("DEALLOCATE ALL")
        assert conn.execute("SELECT %s::int4 + 1", (41,)).fetchone() == (42,)


def test_psycopg_async(gateway: Running, psycopg: Any) -> None:
    async def play() -> list[str]:
        async with await psycopg.AsyncConnection.connect(gateway.dsn, autocommit=True) as conn:
            await conn.execute("LISTEN a")
            await conn.execute("NOTIFY a, 'x'")
            return [n.payload async for n in conn.notifies(timeout=PATIENCE, stop_after=1)]

    assert asyncio.run(play()) == ["x"]


def test_psycopg_cancels(gateway: Running, psycopg: Any) -> None:
    with psycopg.connect(gateway.dsn, autocommit=True) as conn:
        pgconn = conn.pgconn
        pgconn.send_query(b"SELECT pg_sleep(3600)")
        pgconn.get_cancel().cancel()
        select.select([pgconn.socket], [], [], PATIENCE)
        result = pgconn.get_result()
        assert result.error_field(psycopg.pq.DiagnosticField.SQLSTATE) == b"57014"
        assert pgconn.get_result() is None


def test_psycopg2(gateway: Running) -> None:
    require_module("psycopg2")
    import psycopg2

    conn = psycopg2.connect(gateway.dsn)
    try:
        conn.autocommit = True
        cursor = conn.cursor()
        cursor.execute("LISTEN a")
        cursor.execute("SELECT pg_notify(%s, %s)", ("a", "it's"))
        conn.poll()
        assert [(n.channel, n.payload) for n in conn.notifies] == [("a", "it's")]
        conn.reset()
    finally:
        conn.close()


# ---- asyncpg ------------------------------------------------------------------------------------


def test_asyncpg(engine: pynotify.Engine, new_gateway: NewGateway, connect: Connect) -> None:
    require_module("asyncpg")
    import asyncpg

    gateway, native = new_gateway(engine), connect(to=engine)
    native.listen("b")

    async def play() -> list[tuple[int, str, str]]:
        conn = await asyncpg.connect(
            host=str(gateway.path.parent), port=gateway.port, user="me", database="default"
        )
        heard: asyncio.Queue[tuple[int, str, str]] = asyncio.Queue()
        await conn.add_listener("a", lambda _c, *said: heard.put_nowait(said))
        await conn.execute("SELECT pg_notify($1, $2)", "a", "1")
        async with conn.transaction():
            await conn.execute("NOTIFY a, '2'")
            assert await conn.fetchval("SELECT 5") == 5
            async with conn.transaction():
                await conn.execute("NOTIFY b, 'to the process'")
        native.notify("a", "3")
        said = [await asyncio.wait_for(heard.get(), PATIENCE) for _ in range(3)]
        await conn.reset()
        await conn.close()
        return said

    said = asyncio.run(play())
    assert [payload for _pid, _channel, payload in said] == ["1", "2", "3"]
    assert said[2][0] == os.getpid()
    assert [n.payload for n in receive(native, 1)] == ["to the process"]


# ---- node-postgres ------------------------------------------------------------------------------

NODE_MODULES = Path(__file__).resolve().parents[1] / "pubsub" / "node" / "node_modules"
EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "gateway" / "listener.js"


def test_node_postgres(engine: pynotify.Engine, new_gateway: NewGateway, connect: Connect) -> None:
    require("node")
    if not (NODE_MODULES / "pg").exists():
        require("node-postgres", "`make node-peer` installs it, with npm")
    gateway, native = new_gateway(engine), connect(to=engine)
    native.listen("a")
    node = subprocess.Popen(
        ["node", str(EXAMPLE), str(gateway.path.parent), "a", str(gateway.port)],
        env={**os.environ, "NODE_PATH": str(NODE_MODULES)},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        (heard,) = receive(native, 1)
        assert heard.payload == "from node"
        native.notify("a", "end")
        said = [json.loads(line) for line in node.communicate(timeout=PATIENCE)[0].splitlines()]
    finally:
        node.kill()
        node.wait()
    assert said == [["a", "from node", heard.pid], ["a", "end", os.getpid()]]
