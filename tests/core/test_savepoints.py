"""Savepoints: X7, X8, X9, D5."""

from __future__ import annotations

import pytest

import pynotify
from receiving import pairs, payloads
from sessions import Sessions


@pytest.fixture
def listening(conn: pynotify.Connection) -> pynotify.Connection:
    conn.listen("c", "d")
    return conn


def test_release_keeps_the_work(sessions: Sessions) -> None:
    """X7: the parent has no list: the child's becomes the parent's."""
    listener, notifier = sessions(2)
    listener.listen("c")
    notifier.begin()
    notifier.savepoint("s")
    notifier.notify("c", "1")
    notifier.release("s")
    notifier.commit()
    assert listener.heard() == [("c", "1")]


def test_release_appends_what_the_parent_does_not_have(
    listening: pynotify.Connection,
) -> None:
    """X7: one by one, dropping those already in the parent."""
    listening.begin()
    listening.notify("c", "1")
    listening.notify("c", "2")
    listening.savepoint("s")
    for payload in ("3", "2", "4", "1", "3"):
        listening.notify("c", payload)
    listening.release("s")
    listening.notify("c", "5")
    listening.notify("c", "4")
    listening.commit()
    assert payloads(listening.poll()) == ["1", "2", "3", "4", "5"]


def test_release_concatenates_actions_in_order(conn: pynotify.Connection) -> None:
    """X7: so that `UNLISTEN *` of the child hits what the parent staged."""
    conn.begin()
    conn.listen("a")
    conn.savepoint("s")
    conn.unlisten_all()
    conn.listen("b")
    conn.release("s")
    conn.listen("c")
    conn.commit()
    assert conn.listening_channels() == {"b", "c"}


def test_rollback_to_discards_the_work(listening: pynotify.Connection) -> None:
    """X8: of all levels from the savepoint on."""
    listening.begin()
    listening.notify("c", "1")
    listening.savepoint("s")
    listening.notify("c", "2")
    listening.savepoint("t")
    listening.notify("c", "3")
    listening.unlisten("d")
    listening.rollback_to("s")
    listening.notify("c", "4")
    listening.commit()
    assert payloads(listening.poll()) == ["1", "4"]
    assert listening.listening_channels() == {"c", "d"}


def test_rollback_to_leaves_the_actions_of_before(listening: pynotify.Connection) -> None:
    """X8: what was listened to and unlistened before the savepoint."""
    listening.begin()
    listening.listen("e")
    listening.unlisten("d")
    listening.savepoint("s")
    listening.listen("d")
    listening.unlisten("e")
    listening.rollback_to("s")
    listening.commit()
    assert listening.listening_channels() == {"c", "e"}


def test_nothing_is_remembered_of_what_was_rolled_back(
    listening: pynotify.Connection,
) -> None:
    """X8: a later identical NOTIFY in the parent is sent, in its own place."""
    listening.begin()
    listening.savepoint("s")
    listening.notify("c", "x")
    listening.rollback_to("s")
    listening.notify("c", "y")
    listening.notify("c", "x")
    listening.commit()
    assert payloads(listening.poll()) == ["y", "x"]


def test_duplicates_across_levels_are_found_at_release(
    listening: pynotify.Connection,
) -> None:
    """D5: a child's duplicate of the parent's event vanishes whether released or rolled back."""
    for end in ("release", "rollback_to"):
        listening.begin()
        listening.notify("c", "x")
        listening.savepoint("s")
        listening.notify("c", "x")
        getattr(listening, end)("s")
        listening.commit()
        assert payloads(listening.poll()) == ["x"]


def test_any_depth(listening: pynotify.Connection) -> None:
    """X9."""
    depth = 300
    listening.begin()
    for level in range(depth):
        listening.savepoint(f"s{level}")
        listening.notify("c", str(level))
    listening.rollback_to("s200")
    for level in reversed(range(200)):
        listening.release(f"s{level}")
    listening.commit()
    assert payloads(listening.poll()) == [str(level) for level in range(200)]


def test_any_depth_of_blocks(listening: pynotify.Connection) -> None:
    """X9: with nested `with transaction()`."""

    def descend(level: int) -> None:
        with listening.transaction():
            listening.notify("c", str(level))
            if level < 60:
                descend(level + 1)
            if level == 30:
                raise pynotify.Rollback

    descend(0)
    assert payloads(listening.poll()) == [str(level) for level in range(30)]


def test_release_of_an_outer_savepoint_releases_the_inner_ones(
    listening: pynotify.Connection,
) -> None:
    listening.begin()
    listening.savepoint("s")
    listening.notify("c", "1")
    listening.savepoint("t")
    listening.notify("c", "2")
    listening.release("s")
    with pytest.raises(pynotify.InvalidSavepoint):
        listening.rollback_to("t")
    listening.rollback()


def test_savepoint_survives_rollback_to_it(listening: pynotify.Connection) -> None:
    """As in PostgreSQL: one can roll back to it again, those after it are gone."""
    listening.begin()
    listening.savepoint("s")
    for payload in ("1", "2", "3"):
        listening.savepoint("t")
        listening.notify("c", payload)
        listening.rollback_to("s")
    listening.notify("c", "4")
    listening.release("s")
    listening.commit()
    assert payloads(listening.poll()) == ["4"]


def test_same_name_twice_means_the_newer(listening: pynotify.Connection) -> None:
    """As in PostgreSQL: the older is shadowed until the newer is released."""
    listening.begin()
    listening.savepoint("s")
    listening.notify("c", "1")
    listening.savepoint("s")
    listening.notify("c", "2")
    listening.rollback_to("s")
    listening.release("s")
    listening.notify("c", "3")
    listening.rollback_to("s")
    listening.notify("c", "4")
    listening.commit()
    assert payloads(listening.poll()) == ["4"]


@pytest.mark.parametrize("method", ["release", "rollback_to"])
def test_unknown_savepoint(listening: pynotify.Connection, method: str) -> None:
    """3B001; it fails the transaction."""
    listening.begin()
    listening.notify("c", "x")
    with pytest.raises(pynotify.InvalidSavepoint) as caught:
        getattr(listening, method)("nope")
    assert str(caught.value).startswith('savepoint "nope" does not exist')
    assert caught.value.sqlstate == "3B001"
    with pytest.raises(pynotify.InFailedTransaction):
        listening.notify("c", "y")
    with pytest.raises(pynotify.InFailedTransaction):
        listening.commit()
    assert listening.poll() == []


def test_unknown_savepoint_fails_only_down_to_a_known_one(
    listening: pynotify.Connection,
) -> None:
    listening.begin()
    listening.notify("c", "1")
    listening.savepoint("s")
    with pytest.raises(pynotify.InvalidSavepoint):
        listening.rollback_to("nope")
    listening.rollback_to("s")
    listening.notify("c", "2")
    listening.commit()
    assert payloads(listening.poll()) == ["1", "2"]


def test_savepoints_end_with_their_transaction(listening: pynotify.Connection) -> None:
    listening.begin()
    listening.savepoint("s")
    listening.commit()
    listening.begin()
    with pytest.raises(pynotify.InvalidSavepoint):
        listening.rollback_to("s")
    listening.rollback()


def test_listen_in_a_savepoint_that_is_rolled_back(listening: pynotify.Connection) -> None:
    """X8 for actions: staged LISTEN and UNLISTEN are undone."""
    listening.begin()
    listening.savepoint("s")
    listening.listen("e")
    listening.unlisten("c")
    listening.rollback_to("s")
    listening.notify("c", "1")
    listening.notify("e", "2")
    listening.commit()
    assert pairs(listening.poll()) == [("c", "1")]
    assert listening.listening_channels() == {"c", "d"}


def test_savepoint_inside_a_block(listening: pynotify.Connection) -> None:
    """The explicit form works inside `with transaction()` as well."""
    with listening.transaction():
        listening.notify("c", "1")
        listening.savepoint("s")
        listening.notify("c", "2")
        listening.rollback_to("s")
        listening.notify("c", "3")
    assert payloads(listening.poll()) == ["1", "3"]


def test_many_duplicates_over_levels(listening: pynotify.Connection) -> None:
    """D4 with X7: the hash of the parent serves the merge."""
    listening.begin()
    for number in range(100):
        listening.notify("c", str(number))
    for level in range(5):
        listening.savepoint(f"s{level}")
        for number in range(50 * level, 50 * level + 100):
            listening.notify("c", str(number))
    listening.release("s0")
    listening.commit()
    assert payloads(listening.poll()) == [str(number) for number in range(300)]


def test_rollback_to_a_savepoint_outside_of_the_block(listening: pynotify.Connection) -> None:
    """It would undo what belongs to the block around it."""
    with pytest.raises(pynotify.InFailedTransaction), listening.transaction():
        listening.savepoint("outer")
        listening.notify("c", "before the block")
        with listening.transaction():
            listening.notify("c", "in the block")
            with pytest.raises(pynotify.OutOfOrderTransactionNesting, match="outer"):
                listening.rollback_to("outer")
            with pytest.raises(pynotify.InFailedTransaction):
                listening.notify("c", "after")
    assert listening.poll() == []
