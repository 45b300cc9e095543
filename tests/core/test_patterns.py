"""listen_pattern(): what it hears, once, by which pattern, and what it shares with channels.

The table of the segment is in native/tests/commit/test_pattern.c, chance in test_model.py.
"""

from __future__ import annotations

import pickle
import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import pynotify
from forking import in_child
from globs import fits
from pynotify._ffi import lib
from receiving import PATIENCE, drain, payloads, readable, receive, wait_until
from sessions import Connect, EngineFactory, NewWorker, RemoteSession


def heard(messages: list[pynotify.Notify | pynotify.Gap]) -> list[tuple[str, str | None]]:
    """The channel and the pattern of each."""
    assert all(isinstance(message, pynotify.Notify) for message in messages)
    return [(message.channel, message.pattern) for message in messages]  # type: ignore


def heard_by(sub: pynotify.Subscription) -> list[tuple[str, str | None]]:
    return heard(drain(sub))


@pytest.fixture
def other(connect: Connect) -> pynotify.Connection:
    return connect()


class TestMatching:
    def test_once_by_the_first_that_was_listened_to(
        self, conn: pynotify.Connection, other: pynotify.Connection
    ) -> None:
        conn.listen_pattern("orders.*", "*.eu")
        conn.listen_pattern("*")
        for channel in ("orders.eu", "users.eu", "users"):
            other.notify(channel)
        assert heard(conn.poll()) == [
            ("orders.eu", "orders.*"),
            ("users.eu", "*.eu"),
            ("users", "*"),
        ]
        assert conn.listening_patterns() == ("orders.*", "*.eu", "*")
        assert conn.listening_channels() == frozenset()

    def test_by_its_channel_first(
        self, conn: pynotify.Connection, other: pynotify.Connection
    ) -> None:
        conn.listen_pattern("c*")
        conn.listen("c1")
        other.notify("c1")
        assert heard(conn.poll()) == [("c1", None)]

    def test_characters_and_not_bytes(
        self, conn: pynotify.Connection, other: pynotify.Connection
    ) -> None:
        conn.listen_pattern("é?", "[à-ö]")
        for channel in ("éü", "éüü", "é", "z"):
            other.notify(channel)
        assert heard(conn.poll()) == [("éü", "é?"), ("é", "[à-ö]")]

    def test_as_regular_expressions_say(self) -> None:
        chance = random.Random(1)
        of_names = ["a", "b", "c", "-", "]", "*", "\\", "é", "€", "🐘"]
        of_patterns = [*of_names, "*", "*", "?", "[", "]", "^", "[a-b]", "[^é]", "[€-🐘]"]
        both = set()
        for _ in range(4_000):
            pattern = "".join(chance.choices(of_patterns, k=chance.randrange(8)))
            name = "".join(chance.choices(of_names, k=chance.randrange(8)))
            encoded, text = pattern.encode(), name.encode()
            found = lib.pn_pattern_matches(encoded, len(encoded), text, len(text))
            assert found == fits(pattern, name), (pattern, name)
            both.add(found)
        assert both == {0, 1}

    def test_a_channel_with_a_star_is_none(
        self, conn: pynotify.Connection, other: pynotify.Connection
    ) -> None:
        conn.listen("a*")
        other.listen_pattern("a*")
        conn.notify("a*", "literal")
        conn.notify("ab", "not")
        assert heard(conn.poll()) == [("a*", None)]
        assert heard(other.poll()) == [("a*", "a*"), ("ab", "a*")]
        conn.unlisten_pattern("a*")
        other.unlisten("a*")
        conn.notify("a*")
        assert (len(conn.poll()), len(other.poll())) == (1, 1)

    @pytest.mark.parametrize("pattern", ["", "x" * 64, "\ud800", "a\0b"])
    def test_what_cannot_be_one(self, conn: pynotify.Connection, pattern: str) -> None:
        with pytest.raises(pynotify.InvalidChannelName, match="pattern name") as caught:
            conn.listen_pattern("good", pattern)
        assert caught.value.sqlstate == "22023"
        assert conn.listening_patterns() == ()
        with pytest.raises(TypeError, match="pattern must be a str"):
            conn.listen_pattern(b"a*")  # type: ignore[arg-type]


class TestNotify:
    def test_it_is_no_part_of_the_tuple(
        self, conn: pynotify.Connection, other: pynotify.Connection
    ) -> None:
        conn.listen_pattern("c*")
        other.notify("c1", "x")
        (message,) = conn.poll()
        assert isinstance(message, pynotify.Notify)
        assert message == ("c1", "x", other.pid)
        assert message == pynotify.Notify("c1", "x", other.pid)
        assert hash(message) == hash(("c1", "x", other.pid))
        assert len(message) == 3
        assert [*message] == ["c1", "x", other.pid]
        again = pickle.loads(pickle.dumps(message))
        assert (again, again.pattern, again.seq) == (message, "c*", message.seq)
        with pytest.raises(AttributeError):
            message.pattern = "d"  # type: ignore[misc]

    def test_made_by_hand(self) -> None:
        assert pynotify.Notify("c", "x").pattern is None
        assert pynotify.Notify("c", "x", 1, 2, 3, 4, 5, "p").pattern == "p"
        assert pynotify.Notify("c", "x", pattern=None).pattern is None
        with pytest.raises(TypeError, match="pattern"):
            pynotify.Notify("c", "x", pattern=b"p")  # type: ignore[arg-type]

    def test_in_a_batch(self, conn: pynotify.Connection, other: pynotify.Connection) -> None:
        conn.listen_pattern("c*")
        conn.listen("d")
        for channel in ("c1", "d", "c2"):
            other.notify(channel, channel)
        batch = conn.poll_batch()
        names = [batch.channels[index] for index in batch.channel_index]
        patterns = [batch.channels[i] if i >= 0 else None for i in batch.pattern_index]
        assert names == ["c1", "d", "c2"]
        assert patterns == ["c*", None, "c*"]
        assert heard([*batch]) == [*zip(names, patterns, strict=True)]
        again = pynotify.NotifyBatch.from_messages([*batch])
        assert heard([*again]) == heard([*batch])
        assert heard([*pickle.loads(pickle.dumps(batch))]) == heard([*batch])

    def test_a_batch_without_any(self, conn: pynotify.Connection) -> None:
        conn.listen("d")
        for size in (1, 70_000):
            conn.notify_many("d", [b"x" * (size // 10), b"y"])
            batch = conn.poll_batch()
            assert [*batch.pattern_index] == [-1, -1]
            assert heard([*pickle.loads(pickle.dumps(batch))]) == [("d", None)] * 2
        assert [*pynotify.NotifyBatch.from_messages([*batch]).pattern_index] == [-1, -1]

    def test_some_of_many(self, conn: pynotify.Connection, other: pynotify.Connection) -> None:
        """The column begins somewhere in the batch, and grows."""
        conn.listen("d")
        conn.listen_pattern("c*")
        for turn in range(2):
            expected = []
            for number in range(300):
                by_pattern = number % 3 == 1 and number > 100 * turn
                other.notify("c" if by_pattern else "d", str(number))
                expected.append("c*" if by_pattern else None)
            assert [pattern for _, pattern in heard(conn.poll())] == expected

    @pytest.mark.parametrize("size", [1, 70_000], ids=["copied", "taken over"])
    def test_a_batch_keeps_its_names(
        self, conn: pynotify.Connection, other: pynotify.Connection, size: int
    ) -> None:
        conn.listen_pattern("c*")
        batches = []
        for number in range(5):
            other.notify(f"c{number}", b"x" * (size // 10))
            other.notify_many(f"c{number}", [b"y" * (size // 10)] * 12, dedup=False)
            batches.append(conn.poll_batch())
        for number, batch in enumerate(batches):
            assert heard([*batch]) == [(f"c{number}", "c*")] * 13

    def test_many_channels_that_are_not_listened_to(
        self, conn: pynotify.Connection, other: pynotify.Connection
    ) -> None:
        conn.listen_pattern("c*")
        for turn in range(20):
            names = [f"c{turn}.{number}" for number in range(50)]
            for name in names:
                other.notify(name)
            assert heard(conn.poll()) == [(name, "c*") for name in names]


class TestTransactions:
    def test_from_its_commit_on(
        self, conn: pynotify.Connection, other: pynotify.Connection
    ) -> None:
        with conn.transaction():
            conn.listen_pattern("c*")
            conn.notify("c1", "own")
            other.notify("c1", "before")
            assert conn.listening_patterns() == ()
        other.notify("c1", "after")
        assert payloads(conn.poll()) == ["own", "after"]

    def test_rolled_back(self, conn: pynotify.Connection, other: pynotify.Connection) -> None:
        conn.listen_pattern("a*")
        with conn.transaction():
            conn.unlisten_pattern("a*")
            raise pynotify.Rollback
        with conn.transaction(), conn.transaction():
            conn.listen_pattern("b*")
            raise pynotify.Rollback
        assert conn.listening_patterns() == ("a*",)
        other.notify("a1")
        other.notify("b1")
        assert heard(conn.poll()) == [("a1", "a*")]

    def test_unlisten_all(self, conn: pynotify.Connection, other: pynotify.Connection) -> None:
        conn.listen("c")
        conn.listen_pattern("c*")
        with conn.subscribe(patterns=["c*"]) as sub:
            conn.unlisten_all()
            assert conn.listening_patterns() == ()
            other.notify("c")
            assert conn.poll() == []
            assert heard_by(sub) == [("c", "c*")]

    def test_what_is_unread_goes_with_the_last_that_it_is_for(
        self, conn: pynotify.Connection, other: pynotify.Connection
    ) -> None:
        conn.listen_pattern("c*", "*1")
        other.notify("c1", "x")
        conn.unlisten_pattern("c*")
        assert heard(conn.poll()) == [("c1", "*1")]
        other.notify("c1", "y")
        conn.unlisten_pattern("*1")
        assert conn.poll() == []

    def test_prepare(self, conn: pynotify.Connection, other: pynotify.Connection) -> None:
        with conn.transaction() as tx:
            conn.listen_pattern("c*")
            tx.prepare()
            with pytest.raises(pynotify.ProgrammingError):
                conn.listen_pattern("d*")
        other.notify("c1")
        assert heard(conn.poll()) == [("c1", "c*")]

    def test_the_table_is_full(self, make_engine: EngineFactory, connect: Connect) -> None:
        engine = make_engine(max_channels=2)
        conn = connect(to=engine)
        conn.listen("c")
        conn.listen_pattern("a*")
        with pytest.raises(pynotify.TooManyChannels) as caught:
            conn.listen_pattern("b*")
        assert caught.value.sqlstate == "53200"
        assert "max_channels is 2" in str(caught.value)
        assert "a pattern counts as a channel" in str(caught.value)
        conn.unlisten_pattern("a*")
        conn.listen_pattern("b*")
        assert (engine.stat().channels, engine.stat().patterns) == (2, 1)


class TestReadAhead:
    """notifies() and handlers: what was read and not returned yet when an UNLISTEN commits."""

    def ahead(self, conn: pynotify.Connection) -> Any:
        stream = conn.notifies(timeout=0)
        next(stream)
        return stream

    def test_it_stays_for_another_pattern(
        self, conn: pynotify.Connection, other: pynotify.Connection
    ) -> None:
        conn.listen("c1")
        conn.listen_pattern("c*")
        other.notify("c1", "1")
        other.notify("c1", "2")
        stream = self.ahead(conn)
        conn.unlisten("c1")
        assert payloads([*stream]) == ["2"]

    def test_it_goes_with_the_last(
        self, conn: pynotify.Connection, other: pynotify.Connection
    ) -> None:
        conn.listen_pattern("c*")
        for number in "123":
            other.notify("c1", number)
        stream = self.ahead(conn)
        conn.listen_pattern("*1")  # it came too late for what was read
        conn.unlisten_pattern("c*")
        other.notify("c1", "4")
        assert payloads([*stream]) == ["4"]

    def test_a_handler_that_unlistens(
        self, conn: pynotify.Connection, other: pynotify.Connection
    ) -> None:
        conn.listen_pattern("c*", "*2")
        for channel in ("c1", "c2", "c3"):
            other.notify(channel)
        conn.add_notify_handler(lambda message: conn.unlisten_pattern("c*"))
        assert [channel for channel, _ in heard(conn.poll())] == ["c1", "c2"]


class TestSubscriptions:
    def test_each_by_what_it_has(
        self, conn: pynotify.Connection, other: pynotify.Connection
    ) -> None:
        conn.listen_pattern("?2")
        mixed = conn.subscribe("c1", patterns=["c*", "*2"])
        all_of_them = conn.subscribe(patterns=["*"])
        plain = conn.subscribe("c2")
        for channel in ("c1", "c2", "x2", "y"):
            other.notify(channel)
        assert heard_by(mixed) == [("c1", None), ("c2", "c*"), ("x2", "*2")]
        assert heard_by(all_of_them) == [("c1", "*"), ("c2", "*"), ("x2", "*"), ("y", "*")]
        assert heard_by(plain) == [("c2", None)]
        assert heard(conn.poll()) == [("c2", "?2"), ("x2", "?2")]
        assert (mixed.channels, mixed.patterns) == (("c1",), ("c*", "*2"))
        assert "c1, c*, *2" in repr(mixed)
        for sub in (mixed, all_of_them, plain):
            sub.close()
        assert other.patterns() == {"?2": 1}

    def test_a_listened_pattern_says_nothing_of_a_subscription_to_the_channel(
        self, conn: pynotify.Connection, other: pynotify.Connection
    ) -> None:
        conn.listen_pattern("c*")
        with conn.subscribe("c1") as sub:
            other.notify("c1")
            assert heard_by(sub) == [("c1", None)]
            assert heard(conn.poll()) == [("c1", "c*")]

    def test_from_its_return_on(
        self, conn: pynotify.Connection, other: pynotify.Connection
    ) -> None:
        with conn.subscribe(patterns=["c*"]) as first:
            other.notify("c1", "1")
            with conn.subscribe(patterns=["c*", "*1"]) as second:
                other.notify("c2", "2")
                assert heard_by(second) == [("c2", "c*")]
                assert heard_by(first) == [("c1", "c*"), ("c2", "c*")]

    def test_add_and_discard(self, conn: pynotify.Connection, other: pynotify.Connection) -> None:
        with conn.subscribe("c1") as sub, conn.subscribe(patterns=["*"]) as rest:
            other.notify("c9", "before")
            sub.add(patterns=["?9", "c*"])
            other.notify("c9")
            other.notify("c1")
            assert len(heard_by(rest)) == 3  # reads for both
            sub.discard("c1")  # a pattern of its is for that as well
            assert heard_by(sub) == [("c9", "?9"), ("c1", None)]
            other.notify("c1")
            other.notify("x9")
            heard_by(rest)
            sub.discard(patterns=["c*"])
            assert heard_by(sub) == [("x9", "?9")]
            sub.add(patterns=["?9"])
            assert sub.patterns == ("?9",)

    def test_what_cannot_be_subscribed_to(self, conn: pynotify.Connection) -> None:
        for patterns, error in (
            ([""], pynotify.InvalidChannelName),
            (["\ud800"], pynotify.InvalidChannelName),
            ([b"a"], TypeError),
            ("a*", TypeError),
            ([], TypeError),
        ):
            with pytest.raises(error):
                conn.subscribe(patterns=patterns)  # type: ignore[arg-type]
        assert conn.patterns() == {}

    def test_threads(self, conn: pynotify.Connection, other: pynotify.Connection) -> None:
        came = threading.Semaphore(0)
        with conn.subscribe(patterns=["c*"]) as sub:
            thread = sub.start(lambda message: came.release())
            assert thread.name == "pynotify-c*"
            other.notify("c1")
            assert came.acquire(timeout=PATIENCE)
            thread.stop()

    def test_skip_self(self, conn: pynotify.Connection, other: pynotify.Connection) -> None:
        conn.listen_pattern("c*")
        with conn.subscribe(patterns=["c*"], skip_self=True) as sub:
            conn.notify("c1", "own")
            other.notify("c2", "other")
            assert heard_by(sub) == [("c2", "c*")]
            assert len(conn.poll()) == 2


class TestProcesses:
    def test_a_sleeper_is_woken_only_for_what_matches(
        self, conn: pynotify.Connection, other: pynotify.Connection, engine: pynotify.Engine
    ) -> None:
        conn.listen_pattern("c*")
        fd = conn.fileno()
        other.notify("d")
        assert engine.stat().slot_writes == 0
        other.notify("c1")
        assert readable(fd, PATIENCE)
        assert heard(conn.poll()) == [("c1", "c*")]

    def test_of_another_process(
        self, conn: pynotify.Connection, engine_name: str, remote: Callable[..., RemoteSession]
    ) -> None:
        session = remote(engine_name)
        session.listen_pattern("c*")
        assert conn.patterns() == {"c*": 1}
        conn.notify("c1", "x")
        (message,) = session.poll()
        assert (message.channel, message.pattern) == ("c1", "c*")
        session.close()
        assert conn.patterns() == {}

    def test_a_killed_listener_leaves_none(
        self, conn: pynotify.Connection, engine_name: str, new_worker: NewWorker
    ) -> None:
        worker = new_worker()
        session = RemoteSession(worker, engine_name)
        session.listen_pattern(*(f"p{number}*" for number in range(50)))
        worker.kill()
        wait_until(lambda: conn.patterns() == {}, "the patterns went with the slot")

    def test_in_a_forked_child(
        self, conn: pynotify.Connection, other: pynotify.Connection, engine: pynotify.Engine
    ) -> None:
        conn.listen_pattern("c*")

        def child() -> list[tuple[str, str | None]]:
            with pytest.raises(pynotify.ForkedConnectionError):
                conn.listening_patterns()
            with pytest.raises(pynotify.ForkedConnectionError):
                conn.listen_pattern("d*")
            with engine.connect() as own:
                own.listen_pattern("d*")
                own.notify("d1")
                return heard(own.poll())

        assert in_child(child) == [("d1", "d*")]
        other.notify("c1")
        assert heard(conn.poll()) == [("c1", "c*")]

    def test_a_backlog_in_files(
        self, make_engine: EngineFactory, connect: Connect, tmp_path: Path
    ) -> None:
        engine = make_engine(queue_pages=64, max_queue_pages=1000, data_dir=str(tmp_path))
        slow, sender = connect(to=engine), connect(to=engine)
        slow.listen_pattern("c*")
        for number in range(200):
            sender.notify(f"c{number % 7}", f"{number:<7900}")
            sender.notify(f"d{number % 7}", "not for it")
        assert engine.stat().spilled_pages > 0
        messages = slow.poll()
        assert [int(message.payload) for message in messages] == [*range(200)]  # type: ignore
        assert {pattern for _, pattern in heard(messages)} == {"c*"}

    def test_the_slowest_gets_a_gap(self, make_engine: EngineFactory, connect: Connect) -> None:
        engine = make_engine(queue_pages=64, on_full="drop-slowest")
        slow, sender = connect(to=engine), connect(to=engine)
        slow.listen_pattern("c*")
        for number in range(100):
            sender.notify("c1", f"{number:<7900}")
        gap, *messages = slow.poll()
        assert isinstance(gap, pynotify.Gap)
        assert 0 < len(messages) < 100

    def test_statistics(
        self, conn: pynotify.Connection, other: pynotify.Connection, engine: pynotify.Engine
    ) -> None:
        conn.listen("c1")
        conn.listen_pattern("c*")
        other.listen_pattern("c*", "d*")
        other.notify("c1")
        other.notify("c2")
        (first, second) = engine.patterns()
        assert (first.name, first.listeners, first.notifications) == ("c*", 2, 2)
        assert (second.name, second.listeners, second.notifications) == ("d*", 1, 0)
        assert [each.name for each in engine.channels()] == ["c1"]
        assert engine.patterns(prefix="d") == [second]
        assert engine.patterns("elsewhere") == []
        assert engine.stat().patterns == 2
        assert other.patterns() == {"c*": 2, "d*": 1}
        assert other.channels() == {"c1": 1}
        assert other.listeners("c2") == 0
        assert sorted(backend.channels for backend in engine.stat().backends) == [2, 2]


def test_wait_and_notifies(conn: pynotify.Connection, other: pynotify.Connection) -> None:
    conn.listen_pattern("c*")
    assert conn.wait(0) is False
    other.notify("c1", "x")
    assert conn.wait(PATIENCE) is True
    (message,) = receive(conn, 1)
    assert message.pattern == "c*"
