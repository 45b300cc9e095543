"""GW-ISO, GW-RND: schedules of several clients, as on a PostgreSQL."""

from __future__ import annotations

import pytest

from gateway.conftest import NewGateway
from gateway.schedules import PERMUTATIONS, Schedule, permutation, play, random_schedule
from pubsub.server import Server


def compare(postgres: Server, new_gateway: NewGateway, names: str, schedule: Schedule) -> None:
    gateway = new_gateway(maps={"postgres": "default"})
    answers, heard = play(gateway.path, names, schedule)
    count = sum(map(len, heard.values()))
    expected = play(postgres.directory / ".s.PGSQL.5432", names, schedule, count)
    for step, answer, wanted in zip(schedule, answers, expected[0], strict=True):
        assert answer == wanted, step
    assert heard == expected[1]


@pytest.mark.parametrize("name", PERMUTATIONS)
def test_permutations_of_postgres_isolation_tests(
    postgres: Server, new_gateway: NewGateway, name: str
) -> None:
    compare(postgres, new_gateway, "nlms", permutation(name))


@pytest.mark.parametrize("seed", range(20))
def test_random_schedules(postgres: Server, new_gateway: NewGateway, seed: int) -> None:
    compare(postgres, new_gateway, "wxyz", random_schedule(seed, "wxyz", 60))


@pytest.mark.full
@pytest.mark.parametrize("seed", range(1000, 1300))
def test_more_random_schedules(postgres: Server, new_gateway: NewGateway, seed: int) -> None:
    compare(postgres, new_gateway, "wxyz", random_schedule(seed, "wxyz", 120))
