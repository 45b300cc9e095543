"""Drivers as they come from the package indices, unmodified, on a gateway."""

from __future__ import annotations

import asyncio
import json
import os
import select
import subprocess
import sys
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


def test_psql_without_a_database_is_told_which_there_are(gateway: Running) -> None:
    require("psql")
    command = ["psql", "-X", "-h", str(gateway.path.parent), "-p", str(gateway.port), "-U", "me"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert 'database "me" does not exist' in done.stderr
    assert 'it serves "default"' in done.stderr


@pytest.mark.parametrize("mode", ["simple", "extended", "prepared"])
def test_pgbench(
    engine: pynotify.Engine, new_gateway: NewGateway, connect: Connect, tmp_path: Path, mode: str
) -> None:
    require("pgbench")
    gateway, native = new_gateway(engine), connect(to=engine)
    script = tmp_path / "script.sql"
    script.write_text(
        "\\set n random(1, 100)\nSELECT pg_notify('a', (:n)::text || ' heard');\n"
        "BEGIN;\nNOTIFY b;\nCOMMIT;\nSELECT 1;\n"
    )
    native.listen("a", "b")
    command = ["pgbench", "-n", "-h", str(gateway.path.parent), "-p", str(gateway.port)]
    command += ["-U", "me", "-M", mode, "-c", "2", "-t", "50", "-f", str(script), "default"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "100/100" in done.stdout
    heard = receive(native, 200)
    assert sum(note.payload.endswith(" heard") for note in heard) == 100


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


# ---- pg8000, aiopg ------------------------------------------------------------------------------


def test_pg8000(gateway: Running) -> None:
    """By its own interface and by the DB API: all of it is the extended protocol."""
    require_module("pg8000")
    import pg8000.dbapi
    import pg8000.native

    where = {"database": "default", "unix_sock": str(gateway.path)}
    conn = pg8000.native.Connection("me", **where)
    conn.run("LISTEN a")
    conn.run("SELECT pg_notify(:channel, :payload)", channel="a", payload="1")
    prepared = conn.prepare("SELECT pg_notify('a', :payload)")
    for payload in ("2", "3"):
        prepared.run(payload=payload)
    prepared.close()
    assert [said[1:] for said in conn.notifications] == [("a", "1"), ("a", "2"), ("a", "3")]
    conn.close()
    other = pg8000.dbapi.connect("me", **where)
    cursor = other.cursor()
    cursor.execute("LISTEN a")
    other.commit()
    cursor.execute("SELECT pg_notify(%s, %s)", ("a", "never"))
    other.rollback()
    cursor.execute("NOTIFY a, 'committed'")
    other.commit()
    with pytest.raises(pg8000.dbapi.DatabaseError, match="INSERT is not supported"):
        cursor.execute("INSERT INTO t VALUES (1)")
    other.rollback()
    assert [payload for _pid, _channel, payload in other.notifications] == ["committed"]
    other.close()


def test_aiopg(gateway: Running) -> None:
    require_module("aiopg")
    import aiopg

    async def play() -> str:
        made = aiopg.create_pool(gateway.dsn)
        async with made as pool, pool.acquire() as conn, conn.cursor() as cursor:
            await cursor.execute("LISTEN a")
            await cursor.execute("NOTIFY a, 'x'")
            said = await asyncio.wait_for(conn.notifies.get(), PATIENCE)
            await cursor.execute("SELECT 1")
            assert await cursor.fetchone() == (1,)
            return str(said.payload)

    assert asyncio.run(play()) == "x"


# ---- psqlpy, broadcaster ------------------------------------------------------------------------


def test_psqlpy(gateway: Running) -> None:
    """A pool and a listener on Rust's tokio-postgres."""
    require_module("psqlpy")
    import psqlpy

    async def play() -> list[tuple[str, str]]:
        pool = psqlpy.ConnectionPool(
            host=str(gateway.path.parent), port=gateway.port, username="me", db_name="default"
        )
        heard: asyncio.Queue[tuple[str, str]] = asyncio.Queue()

        async def take(_conn: Any, payload: str, channel: str, _pid: int) -> None:
            heard.put_nowait((channel, payload))

        listener = pool.listener()
        await listener.add_callback(channel="a", callback=take)
        await listener.startup()
        listener.listen()
        conn = await pool.connection()
        # Its LISTEN is sent by a task: the first one that it hears says that it was.
        while heard.empty():
            await conn.execute("SELECT pg_notify('a', $1)", ["alone"])
            await asyncio.sleep(0)
        async with conn.transaction() as transaction:
            await transaction.execute("NOTIFY a, 'in a transaction'")
        with pytest.raises(psqlpy.exceptions.ConnectionExecuteError, match="does not exist"):
            await conn.execute("SELECT * FROM t")
        await conn.execute("NOTIFY a, 'end'")
        said = [("a", "")]
        while said[-1][1] != "end":
            said.append(await asyncio.wait_for(heard.get(), PATIENCE))
        await listener.shutdown()
        conn.close()
        pool.close()
        return said[1:]

    said = [payload for channel, payload in asyncio.run(play()) if channel == "a"]
    assert said[0] == "alone"
    assert [payload for payload in said if payload != "alone"] == ["in a transaction", "end"]


def test_broadcaster(gateway: Running) -> None:
    """Its backend of PostgreSQL, in two processes' places."""
    require_module("broadcaster")
    require_module("asyncpg")
    from broadcaster import Broadcast

    url = f"postgres://me@/default?host={gateway.path.parent}&port={gateway.port}"

    async def play() -> list[str]:
        async with (
            Broadcast(url) as one,
            Broadcast(url) as other,
            one.subscribe(channel="chat") as here,
            other.subscribe(channel="chat") as there,
        ):
            await one.publish(channel="chat", message="hello")
            events = [await asyncio.wait_for(each.get(), PATIENCE) for each in (here, there)]
            return [event.message for event in events]

    assert asyncio.run(play()) == ["hello", "hello"]


# ---- SQLAlchemy, Django -------------------------------------------------------------------------


@pytest.mark.parametrize("driver", ["psycopg", "psycopg2", "pg8000"])
def test_sqlalchemy(gateway: Running, psycopg: Any, driver: str) -> None:
    """What it asks of a new connection is answered; savepoints; its pool takes back and pings."""
    require_module("sqlalchemy")
    require_module(driver)
    import sqlalchemy

    where = f"host={gateway.path.parent}&port={gateway.port}"
    if driver == "pg8000":
        where = f"unix_sock={gateway.path}"
    engine = sqlalchemy.create_engine(
        f"postgresql+{driver}://me@/default?{where}", pool_pre_ping=True
    )
    notify = sqlalchemy.text("SELECT pg_notify('a', :payload)")
    with psycopg.connect(gateway.dsn, autocommit=True) as ear:
        ear.execute("LISTEN a")
        for _ in range(2):
            with engine.begin() as conn:
                conn.execute(notify, {"payload": "1"})
                undone = conn.begin_nested()
                conn.execute(notify, {"payload": "undone"})
                undone.rollback()
                with conn.begin_nested():
                    conn.execute(notify, {"payload": "2"})
        with engine.connect() as conn:
            conn.execute(notify, {"payload": "never"})
        with engine.begin() as conn:
            conn.execute(notify, {"payload": "end"})
        heard = [n.payload for n in ear.notifies(timeout=PATIENCE, stop_after=5)]
    engine.dispose()
    assert heard == ["1", "2", "1", "2", "end"]


def test_sqlalchemy_with_asyncpg(gateway: Running, psycopg: Any) -> None:
    require_module("sqlalchemy")
    require_module("asyncpg")
    import sqlalchemy
    from sqlalchemy.ext.asyncio import create_async_engine

    async def play() -> None:
        where = f"host={gateway.path.parent}&port={gateway.port}"
        engine = create_async_engine(f"postgresql+asyncpg://me@/default?{where}")
        async with engine.begin() as conn:
            notify = sqlalchemy.text("SELECT pg_notify('a', :payload)")
            await conn.execute(notify, {"payload": "x"})
        await engine.dispose()

    with psycopg.connect(gateway.dsn, autocommit=True) as ear:
        ear.execute("LISTEN a")
        asyncio.run(play())
        assert [n.payload for n in ear.notifies(timeout=PATIENCE, stop_after=1)] == ["x"]


DJANGO = """
import sys
import django
from django.conf import settings
host, port, patience = sys.argv[1:]
database = {"ENGINE": "django.db.backends.postgresql", "HOST": host, "PORT": port,
            "USER": "me", "NAME": "default"}
settings.configure(DATABASES={"default": database})
django.setup()
from django.db import connection, transaction
with connection.cursor() as cursor:
    cursor.execute("LISTEN a")
    with transaction.atomic():
        cursor.execute("SELECT pg_notify(%s, %s)", ["a", "outer"])
        try:
            with transaction.atomic():
                cursor.execute("NOTIFY a, 'undone'")
                raise LookupError
        except LookupError:
            pass
        transaction.on_commit(lambda: cursor.execute("NOTIFY a, 'after'"))
    heard = connection.connection.notifies(timeout=float(patience), stop_after=2)
    print([said.payload for said in heard])
connection.close()
"""


def test_django(gateway: Running) -> None:
    """Its database backend, in a process of its own: settings are made once."""
    require_module("django")
    require_module("psycopg")
    done = subprocess.run(
        [sys.executable, "-c", DJANGO, str(gateway.path.parent), str(gateway.port), str(PATIENCE)],
        capture_output=True,
        text=True,
        timeout=4 * PATIENCE,
        check=False,
    )
    assert done.stdout == "['outer', 'after']\n", done.stderr


# ---- JavaScript ---------------------------------------------------------------------------------

NODE_MODULES = Path(__file__).resolve().parents[1] / "pubsub" / "node" / "node_modules"
EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "gateway" / "listener.js"
PROGRAMS = Path(__file__).parent / "node"


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


@pytest.mark.parametrize(
    ("module", "expected"),
    [
        ("postgres", ["from postgres.js", "in a transaction", "end"]),
        ("pg-listen", [{"n": 1}, {"end": True}]),
    ],
)
def test_other_drivers_of_node(gateway: Running, module: str, expected: list[Any]) -> None:
    """postgres.js has a protocol of its own; pg-listen stands on node-postgres."""
    require("node")
    if not (NODE_MODULES / module).exists():
        require("node-postgres", "`make node-peer` installs it, with npm")
    done = subprocess.run(
        ["node", str(PROGRAMS / f"{module}.js"), str(gateway.path.parent), str(gateway.port)],
        env={**os.environ, "NODE_PATH": str(NODE_MODULES)},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == expected
