"""GW-PG3, GW-APG: the drivers' own tests of LISTEN and NOTIFY, unmodified, on a gateway.

psycopg 3 publishes no tests with its source distribution; psycopg2 and asyncpg do.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.conftest import NewGateway
from gateway.gateways import Running
from suites import fetch, run

pytestmark = pytest.mark.full


def test_psycopg2(gateway: Running, tmp_path: Path) -> None:
    done = run(
        fetch("psycopg2-binary", "2.9.13"),
        None,
        ["tests/test_notify.py"],
        tmp_path,
        # It wants LATIN1, and what is sent on a segment is UTF-8.
        "-k not set_client_encoding",
        PSYCOPG2_TESTDB="default",
        PSYCOPG2_TESTDB_HOST=str(gateway.path.parent),
        PSYCOPG2_TESTDB_PORT=str(gateway.port),
        PSYCOPG2_TESTDB_USER="me",
    )
    done.expect(passed=17)


def test_asyncpg(new_gateway: NewGateway, tmp_path: Path) -> None:
    gateway = new_gateway(maps={"postgres": "default"})
    done = run(
        fetch("asyncpg", "0.32.0"),
        None,
        # Those of log listeners are of what functions RAISE.
        ["tests/test_listeners.py::TestListeners"],
        tmp_path,
        PGHOST=str(gateway.path.parent),
        PGPORT=str(gateway.port),
        PGDATABASE="default",
        PGUSER="me",
    )
    done.expect(passed=4)
