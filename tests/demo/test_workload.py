"""The demonstration's input and the transactions that are made of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from pynotify.demo.ledger import Entry
from pynotify.demo.source import (
    MAX_PAYLOAD,
    Library,
    NoSourceError,
    SourceFile,
    find_library,
    read_lines,
)
from pynotify.demo.stage import listened_channels
from pynotify.demo.workload import Plan, plans

QUOTA = 3000


@pytest.fixture
def library(tmp_path: Path) -> Library:
    """Three modules whose lines repeat, within a file and between files."""
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").write_text("import os\n\n\nx = 1\n" * 5)
    (package / "part.py").write_text("".join(f"line {i % 40}\n" for i in range(100)))
    (tmp_path / "module.py").write_text("\n".join(f"y = {i}" for i in range(30)))
    (tmp_path / "empty.py").write_text("")
    installed = tmp_path / "site-packages"
    installed.mkdir()
    (installed / "other.py").write_text("not the library's\n")
    return find_library(tmp_path)


def test_a_channel_per_top_level_module_the_largest_first(library: Library) -> None:
    assert library.channels == ("package", "module", "empty")
    assert sorted(file.path.name for file in library.files if file.channel == 0) == [
        "__init__.py",
        "part.py",
    ]


def test_without_source_there_is_nothing_to_show(tmp_path: Path) -> None:
    with pytest.raises(NoSourceError):
        find_library(tmp_path)


def test_lines_are_bytes_and_fit_a_payload(tmp_path: Path) -> None:
    path = tmp_path / "long.py"
    path.write_bytes(b"\xff\n\n" + b"x" * (2 * MAX_PAYLOAD + 1) + b"\r\nend")
    long = b"x" * MAX_PAYLOAD
    assert read_lines(path) == [b"\xff", b"", long, long, b"x", b"end"]


def left_after_commit(plan: Plan) -> set[tuple[int, bytes]]:
    """By PostgreSQL's definition: what is left of what was not rolled back."""
    if plan.undone:
        return set()
    passages = [*plan.first, *([] if plan.nested_undone else plan.nested), *plan.last]
    return {(passage.channel, line) for passage in passages for line in passage.lines}


def test_plans_count_what_a_commit_leaves_and_reach_the_quota_exactly(library: Library) -> None:
    everything = list(plans(library.files, 0, QUOTA))
    for plan in everything:
        left = left_after_commit(plan)
        assert plan.committed.total() == len(left)
        for channel, count in plan.committed.items():
            assert count == sum(1 for where, _ in left if where == channel)
        assert plan.notified == plan.committed.total() + plan.collapsed + plan.rolled_back
    assert sum(plan.committed.total() for plan in everything) == QUOTA
    assert any(plan.undone for plan in everything)
    assert any(plan.nested_undone for plan in everything)
    assert any(plan.nested and not plan.nested_undone for plan in everything)
    assert sum(plan.collapsed for plan in everything) > 0
    assert len({plan.notified for plan in everything}) > 10


def test_plans_are_the_same_every_time(library: Library) -> None:
    first, second = (list(plans(library.files, 1, QUOTA)) for _ in range(2))
    assert first == second
    assert first != list(plans(library.files, 2, QUOTA))


def test_an_entry_of_the_ledger_survives_the_journey(library: Library) -> None:
    for plan in plans(library.files, 3, QUOTA):
        entry = Entry(3, plan.number, plan.collapsed, plan.rolled_back, plan.committed)
        kind, *words = entry.encode().split()
        assert (kind, Entry.decode(words)) == ("sent", entry)


@pytest.mark.parametrize("channels", [1, 7, 202])
def test_every_channel_has_a_listener_that_survives(channels: int) -> None:
    file = SourceFile(Path("x.py"), 0)
    lists = listened_channels(Library((file,), tuple(f"c{i}" for i in range(channels))))
    survivors = [set(numbers) for numbers in lists[1:]]
    assert set.union(*survivors) == set(range(channels))
    assert all(len(set(numbers)) == len(numbers) for numbers in lists)
    if channels > 7:
        assert all(len(numbers) > 1 for numbers in lists)
        shared = [c for c in range(channels) if sum(c in numbers for numbers in lists) > 1]
        assert len(shared) > channels // 2
