"""GW-GO, -JDBC, -PHP, -RB: other languages' drivers as the distribution has them, on a gateway.

Each program listens, notifies with a parameter, in a transaction that is rolled back and in one
that is committed, meets an error, and prints what it has heard.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import pynotify
from gateway.conftest import NewGateway, NewGatewayProcess
from gateway.gateways import GatewayProcess
from gateway.soak import GO, go_settings, play
from gateway.test_drivers import NODE_MODULES
from gateway.test_processes import free_port
from pynotify.gateway import Gateway
from receiving import wait_until
from requirement import require
from sessions import Connect
from waiting import Call

pytestmark = pytest.mark.full

PROGRAMS = Path(__file__).parent / "languages"
JDBC = Path("/usr/share/java/postgresql.jar")


class Driver(NamedTuple):
    """`package` is Debian's; `probe` succeeds where it is installed."""

    package: str
    probe: list[str]
    command: list[str]
    program: str
    by_tcp: bool = False


DRIVERS = {
    "PHP, pgsql": Driver(
        "php-pgsql", ["php", "-r", "exit(extension_loaded('pgsql') ? 0 : 1);"], ["php"], "pg.php"
    ),
    "PHP, PDO": Driver(
        "php-pgsql",
        ["php", "-r", "exit(in_array('pgsql', PDO::getAvailableDrivers()) ? 0 : 1);"],
        ["php"],
        "pdo.php",
    ),
    "Ruby, pg": Driver("ruby-pg", ["ruby", "-rpg", "-e", ""], ["ruby"], "pg.rb"),
    "Go, lib/pq": Driver(
        "golang-github-lib-pq-dev",
        ["test", "-d", str(GO / "src" / "github.com" / "lib" / "pq")],
        ["go", "run"],
        "libpq.go",
    ),
    "Go, pgx": Driver(
        "golang-github-jackc-pgx-v4-dev",
        ["test", "-d", str(GO / "src" / "github.com" / "jackc" / "pgx" / "v4")],
        ["go", "run"],
        "pgx.go",
    ),
    "Java, pgjdbc": Driver(
        "libpostgresql-jdbc-java",
        ["test", "-e", str(JDBC)],
        ["java", "-cp", str(JDBC)],
        "Jdbc.java",
        by_tcp=True,  # it has no Unix sockets
    ),
}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", DRIVERS)
def test_language(new_gateway: NewGateway, name: str, tmp_path: Path) -> None:
    driver = DRIVERS[name]
    require("javac" if driver.by_tcp else driver.command[0])
    if subprocess.run(driver.probe, capture_output=True, check=False).returncode != 0:
        require(driver.package, "not installed")
    gateway = new_gateway(tcp=True, port=free_port()) if driver.by_tcp else new_gateway()
    host = "127.0.0.1" if driver.by_tcp else str(gateway.path.parent)
    done = subprocess.run(
        [*driver.command, str(PROGRAMS / driver.program), host, str(gateway.port)],
        env={**os.environ, **go_settings(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == ["42P01", "alone", "in a transaction", "end"], done.stderr


# ---- GW-STOP ------------------------------------------------------------------------------------


@contextlib.contextmanager
def started(command: list[str], gateway: GatewayProcess, tmp_path: Path) -> Iterator[Any]:
    port = gateway.path.suffix[1:]
    process = subprocess.Popen(
        [*command, str(gateway.directory), port],
        env={**os.environ, **go_settings(tmp_path), "NODE_PATH": str(NODE_MODULES)},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.mark.timeout(300)
@pytest.mark.parametrize("language", ["go", "js"])
def test_a_listener_connects_again_when_the_gateway_was_restarted(
    engine: pynotify.Engine,
    new_gateway_process: NewGatewayProcess,
    connect: Connect,
    tmp_path: Path,
    language: str,
) -> None:
    """lib/pq's and pg-listen's: told by 57P01, they try until there is one."""
    if language == "go":
        require("go")
        if not (GO / "src" / "github.com" / "lib" / "pq").exists():
            require("golang-github-lib-pq-dev", "not installed")
        # `go run` would be killed, and not what it runs.
        binary, source = tmp_path / "reconnect", PROGRAMS / "reconnect.go"
        build = ["go", "build", "-o", str(binary), str(source)]
        subprocess.run(build, env={**os.environ, **go_settings(tmp_path)}, check=True)
        command = [str(binary)]
    else:
        require("node")
        if not (NODE_MODULES / "pg-listen").exists():
            require("node-postgres", "`make node-peer` installs it, with npm")
        command = ["node", str(PROGRAMS / "reconnect.js")]
    native, gateway = connect(), new_gateway_process(engine)
    with started(command, gateway, tmp_path) as program:
        assert program.stdout.readline() == "listening\n"
        native.notify("a", '"before"')
        assert program.stdout.readline() == '"before"\n'
        assert gateway.end() == 0
        with Gateway(engine.name, directory=gateway.directory) as heir:
            running = Call(heir.run)
            try:
                assert program.stdout.readline() == "again\n"
                wait_until(lambda: engine.channels(prefix="a"), "it listens again")
                native.notify("a", '"end"')
                # pg-listen says "again" of each time that it tries
                assert next(line for line in program.stdout if line != "again\n") == '"end"\n'
            finally:
                heir.stop()
                running.result()


# ---- GW-SOAK ------------------------------------------------------------------------------------


@pytest.mark.timeout(300)
def test_clients_in_five_languages_of_which_some_are_killed() -> None:
    """In small; `python -m gateway.soak` plays an hour."""
    verdict = play(15, seed=1)
    assert verdict.problems == []
    assert len(verdict.kills) > 2
    assert verdict.received > 1000
