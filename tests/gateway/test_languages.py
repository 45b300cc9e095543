"""GW-GO, -JDBC, -PHP, -RB: other languages' drivers as the distribution has them, on a gateway.

Each program listens, notifies with a parameter, in a transaction that is rolled back and in one
that is committed, meets an error, and prints what it has heard.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest

from gateway.conftest import NewGateway
from gateway.test_processes import free_port
from requirement import require

pytestmark = pytest.mark.full

PROGRAMS = Path(__file__).parent / "languages"
GO = Path("/usr/share/gocode")
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
    # Go takes the distribution's packages, and fetches nothing.
    go = {"GO111MODULE": "off", "GOPATH": str(GO), "GOCACHE": str(tmp_path), "GOFLAGS": ""}
    done = subprocess.run(
        [*driver.command, str(PROGRAMS / driver.program), host, str(gateway.port)],
        env={**os.environ, **go},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == ["42P01", "alone", "in a transaction", "end"], done.stderr
