"""GW-DIFF: the same bytes to a PostgreSQL and to a gateway, and the same answers.

What differs on purpose is named here, with its reason.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gateway.cases import CASES
from gateway.conftest import NewGateway
from gateway.wire import Answer, Client
from pubsub.server import Server

#: Hints that PostgreSQL does not have: what the gateway is, and which option is in the way.
INTENDED_HINTS = ("This is no database but a pynotify gateway", "It has 8000 bytes; max_payload")


def play(path: Path, steps: list[str | bytes]) -> list[list[Answer]]:
    with Client(path) as client:
        client.start()
        return [[_without_pid(answer, client) for answer in client.ask(step)] for step in steps]


def _without_pid(answer: Answer, client: Client) -> Answer:
    return tuple("own pid" if field == client.pid else _plain(field) for field in answer)


def _plain(field: Any) -> Any:
    if isinstance(field, dict) and field.get("H", "").startswith(INTENDED_HINTS):
        return {key: value for key, value in field.items() if key != "H"}
    return field


@pytest.mark.parametrize("name", CASES)
def test_answers_are_those_of_postgres(
    postgres: Server, new_gateway: NewGateway, name: str
) -> None:
    gateway = new_gateway(maps={"postgres": "default"})
    expected = play(postgres.directory / ".s.PGSQL.5432", CASES[name])
    assert play(gateway.path, CASES[name]) == expected
