"""The helper that skips, or fails, for what is missing; and that no catalogue ID is forgotten."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from requirement import ENVIRONMENT, missing, require

TESTS = Path(__file__).parents[1]


def catalogue() -> list[str]:
    """PostgreSQL's behaviour, as numbered in the catalogue that the suite is written after."""
    numbers = {
        "C": [1, 2, 3, 4, 5, 6, 7, 9],
        "E": range(1, 6),
        "X": [*range(1, 10), 13],
        "D": range(1, 6),
        "O": [1, 2, 3, 4, 5, 8],
        "T": [1, 2, 3, 4, 6],
        "Q": [1, 2, 3, 4, 5, 6, 9],
    }
    single = [f"{letter}{number}" for letter, some in numbers.items() for number in some]
    return [*single, "T-RACE-1", "T-RACE-2", "T-GROW", "T-FULL"]


def test_what_is_there_is_no_reason_to_skip() -> None:
    require("sh")


def test_missing_is_skipped_with_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ENVIRONMENT, raising=False)
    with pytest.raises(pytest.skip.Exception, match="requires no-such-program: "):
        require("no-such-program")
    with pytest.raises(pytest.skip.Exception, match="requires thing: it is away"):
        require("thing", "it is away")


def test_missing_is_a_failure_where_it_is_demanded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENVIRONMENT, "another, no-such-program")
    with pytest.raises(pytest.fail.Exception, match="no-such-program"):
        require("no-such-program")


def test_names_are_found_in_reasons() -> None:
    reasons = ["Skipped: requires root: why", "Skipped: requires java: x", "requires root: y"]
    assert missing([*reasons, "Skipped: another reason"]) == ["java", "root"]


@pytest.mark.parametrize("name", catalogue())
def test_every_behaviour_is_named_by_a_test_of_it(name: str) -> None:
    wanted = re.compile(rf"(?<![\w-]){name}(?![\w-])")
    files = [path for path in TESTS.rglob("test_*.py") if path != Path(__file__)]
    assert any(wanted.search(path.read_text()) for path in files)


@pytest.mark.parametrize(
    ("prefix", "count", "file"),
    [("T-ISO", 13, "test_isolation"), ("T-REG", 11, "test_regress"), ("T-PG3", 11, "test_psycopg")],
)
def test_every_ported_test_is_there(prefix: str, count: int, file: str) -> None:
    text = (TESTS / "core" / f"{file}.py").read_text()
    named = {int(number) for number in re.findall(rf"{prefix}-(\d+)", text)}
    for first, last in re.findall(rf"{prefix}-(\d+) to {prefix}-(\d+)", text):
        named.update(range(int(first), int(last) + 1))
    assert named == set(range(1, count + 1))
