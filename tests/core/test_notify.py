"""NOTIFY, its limits and duplicates, and the Notify object: C4, C5, E1, E3, D1 to D5, Q1."""

from __future__ import annotations

import subprocess
import sys
import time
from array import array

import numpy
import pytest

import pynotify
from receiving import PATIENCE, pairs, payloads
from sessions import Connect, EngineFactory, Sessions


@pytest.fixture
def listening(conn: pynotify.Connection) -> pynotify.Connection:
    conn.listen("c")
    return conn


def test_payload_defaults_to_empty(listening: pynotify.Connection) -> None:
    """C4: omitted = ''."""
    assert listening.notify("c") is None
    assert listening.poll() == [("c", "", listening.pid)]


def test_nothing_is_sent_until_commit(sessions: Sessions) -> None:
    """C4."""
    listener, notifier = sessions(2)
    listener.listen("c")
    notifier.begin()
    notifier.notify("c", "x")
    assert listener.heard() == []
    notifier.commit()
    assert listener.heard() == [("c", "x")]


def test_computed_arguments(listening: pynotify.Connection) -> None:
    """C5: pg_notify's arguments are values, so are ours; its NULL payload is '' here."""
    for number in range(3):
        listening.notify("".join(["c"]), f"{number}")
    listening.notify("c", "")
    assert payloads(listening.poll()) == ["0", "1", "2", ""]


@pytest.mark.parametrize("payload", [None, 7, 1.5, ["x"], object()])
def test_payload_of_another_type(listening: pynotify.Connection, payload: object) -> None:
    """`None` as payload is a TypeError, and so is whatever is neither str nor bytes-like."""
    with pytest.raises(TypeError):
        listening.notify("c", payload)
    with pytest.raises(TypeError):
        listening.notify_many("c", ["good", payload])
    assert listening.poll() == []


@pytest.mark.parametrize(
    "payload",
    [b"bytes", bytearray(b"bytes"), memoryview(b"bytes"), array("B", b"bytes"), "bytes"],
)
def test_payload_may_be_str_or_bytes_like(listening: pynotify.Connection, payload: object) -> None:
    listening.notify("c", payload)
    (message,) = listening.poll()
    assert (message.data, message.payload) == (b"bytes", "bytes")


@pytest.mark.parametrize("payload", [b"\0", b"a\0b\0", bytes(range(256)), b"\xff" * 7999])
def test_payload_is_any_bytes(listening: pynotify.Connection, payload: bytes) -> None:
    """NUL included."""
    listening.notify("c", payload)
    assert listening.poll()[0].data == payload


def test_payload_of_7999_bytes(listening: pynotify.Connection) -> None:
    """E3: bytes, not characters."""
    longest = ["x" * 7999, "é" * 3999 + "x"]
    for payload in longest:
        listening.notify("c", payload)
    assert payloads(listening.poll()) == longest


@pytest.mark.parametrize("payload", ["x" * 8000, "é" * 4000, b"x" * 8000, "x" * 1_000_000])
def test_payload_of_more_than_7999_bytes(
    listening: pynotify.Connection, payload: str | bytes
) -> None:
    """E3."""
    with pytest.raises(pynotify.PayloadTooLong) as caught:
        listening.notify("c", payload)
    assert str(caught.value).startswith("payload string too long")
    assert caught.value.sqlstate == "22023"
    assert listening.poll() == []


def test_limits_are_checked_when_notify_is_called(listening: pynotify.Connection) -> None:
    """1.2: at NOTIFY time, not at commit, so that the error fails the transaction at once."""
    listening.begin()
    with pytest.raises(pynotify.PayloadTooLong):
        listening.notify("c", "x" * 8000)
    with pytest.raises(pynotify.InFailedTransaction):
        listening.notify("c", "x")
    listening.rollback()


@pytest.mark.parametrize("size", [8000, 8192, 100_000, 1 << 20])
def test_larger_payloads_where_the_segment_allows_them(
    make_engine: EngineFactory, connect: Connect, size: int
) -> None:
    """`max_payload` may be raised to 1 MiB and beyond."""
    conn = connect(to=make_engine(max_payload=size))
    conn.listen("c")
    payload = bytes(number % 251 for number in range(size))
    conn.notify("c", "small")
    conn.notify("c", payload)
    conn.notify("c", "small again")
    assert [message.data for message in conn.poll()] == [b"small", payload, b"small again"]
    with pytest.raises(pynotify.PayloadTooLong):
        conn.notify("c", payload + b"x")


def test_entries_of_all_sizes_survive_page_boundaries(
    make_engine: EngineFactory, connect: Connect
) -> None:
    """Q1: an entry does not cross a page; all sizes around the fractions of a page arrive."""
    conn = connect(to=make_engine(queue_pages=64))
    conn.listen("c")
    sizes = [part + delta for part in (1, 2048, 2700, 4000, 7900) for delta in range(0, 96, 5)]
    for size in sizes:
        conn.notify("c", bytes([size % 256]) * size)
        conn.notify("c", b"")
        assert [message.data for message in conn.poll()] == [bytes([size % 256]) * size, b""]


def test_duplicates_collapse_within_a_transaction(listening: pynotify.Connection) -> None:
    """D1, D2, D3: equal channel and payload bytes; the first keeps its place."""
    listening.listen("d")
    with listening.transaction():
        for channel, payload in [
            ("c", "x"), ("d", "x"), ("c", ""), ("c", "x"), ("c", b"x"), ("d", "y"), ("c", ""),
        ]:  # fmt: skip
            listening.notify(channel, payload)
    assert pairs(listening.poll()) == [("c", "x"), ("d", "x"), ("c", ""), ("d", "y")]


def test_duplicates_of_other_transactions_do_not_collapse(
    listening: pynotify.Connection,
) -> None:
    """D1: never across transactions."""
    for _ in range(2):
        with listening.transaction():
            listening.notify("c", "x")
            listening.notify("c", "x")
    listening.notify("c", "x")
    assert payloads(listening.poll()) == ["x", "x", "x"]


def test_payloads_that_differ_by_nul_are_different(listening: pynotify.Connection) -> None:
    """D2: identity is all bytes."""
    distinct = [b"", b"\0", b"\0\0", b"x", b"x\0", b"\0x"]
    with listening.transaction():
        for payload in distinct * 2:
            listening.notify("c", payload)
    assert [message.data for message in listening.poll()] == distinct


def test_channel_and_payload_are_not_run_together(listening: pynotify.Connection) -> None:
    """D2: ("ab", "c") is not ("a", "bc")."""
    listening.listen("ab", "a")
    with listening.transaction():
        listening.notify("ab", "c")
        listening.notify("a", "bc")
        listening.notify("ab", "c")
    assert pairs(listening.poll()) == [("ab", "c"), ("a", "bc")]


@pytest.mark.parametrize("distinct", [1, 15, 16, 17, 18, 100, 5000])
def test_duplicates_collapse_on_both_sides_of_the_hashing_threshold(
    listening: pynotify.Connection, distinct: int
) -> None:
    """D4: PostgreSQL scans up to 16 events and hashes from the 17th on."""
    numbers = [str(number) for number in range(distinct)]
    with listening.transaction():
        for number in numbers:
            listening.notify("c", number)
        for number in reversed(numbers):
            listening.notify("c", number)
    assert payloads(listening.poll()) == numbers


def test_duplicate_of_the_parent_keeps_the_parents_place(
    listening: pynotify.Connection,
) -> None:
    """D5, X7: found at RELEASE; the order is the parent's."""
    with listening.transaction():
        listening.notify("c", "1")
        with listening.transaction():
            listening.notify("c", "2")
            listening.notify("c", "1")
        listening.notify("c", "2")
        listening.notify("c", "3")
    assert payloads(listening.poll()) == ["1", "2", "3"]


def test_notify_many(engine: pynotify.Engine, listening: pynotify.Connection) -> None:
    """One transaction; returns the number queued."""
    before = engine.stat()
    assert listening.notify_many("c", ["a", b"b", bytearray(b"a"), memoryview(b"d")]) == 3
    after = engine.stat()
    assert after.commits == before.commits + 1
    assert after.notifications == before.notifications + 3
    messages = listening.poll()
    assert payloads(messages) == ["a", "b", "d"]
    assert len({message.seq for message in messages}) == 1


def test_notify_many_keeps_duplicates_when_told(listening: pynotify.Connection) -> None:
    assert listening.notify_many("c", ["a", "a", "b", "a"], dedup=False) == 4
    assert payloads(listening.poll()) == ["a", "a", "b", "a"]


def test_notify_many_takes_any_iterable(listening: pynotify.Connection) -> None:
    assert listening.notify_many("c", (str(number) for number in range(1000))) == 1000
    assert payloads(listening.poll()) == [str(number) for number in range(1000)]
    assert listening.notify_many("c", []) == 0
    assert listening.notify_many("c", iter(())) == 0
    assert listening.poll() == []


def test_notify_many_is_all_or_nothing(listening: pynotify.Connection) -> None:
    with pytest.raises(pynotify.PayloadTooLong):
        listening.notify_many("c", ["a", "x" * 8000, "b"])
    with pytest.raises(pynotify.InvalidChannelName):
        listening.notify_many("", ["a"])
    assert listening.poll() == []
    assert not listening.in_transaction


def test_notify_many_joins_a_transaction(listening: pynotify.Connection) -> None:
    """In a transaction it joins it, and returns how many are left after collapsing."""
    with listening.transaction():
        listening.notify("c", "a")
        assert listening.notify_many("c", ["a", "b", "b"]) == 1
        listening.notify("c", "c")
        assert listening.poll() == []
    messages = listening.poll()
    assert payloads(messages) == ["a", "b", "c"]
    assert len({message.seq for message in messages}) == 1


def test_notify_many_is_rolled_back(listening: pynotify.Connection) -> None:
    with listening.transaction():
        listening.notify_many("c", ["a", "b"])
        raise pynotify.Rollback
    assert listening.poll() == []


def test_notify_many_counts_what_is_not_heard(conn: pynotify.Connection) -> None:
    """It counts them "heard or not"."""
    assert conn.notify_many("unheard", ["a", "b", "a"]) == 2


def test_notify_is_a_tuple(listening: pynotify.Connection) -> None:
    """It unpacks, compares and hashes as (channel, payload, pid)."""
    listening.notify("c", "x")
    (message,) = listening.poll()
    channel, payload, pid = message
    assert (channel, payload, pid) == ("c", "x", listening.pid)
    assert message == ("c", "x", listening.pid)
    assert message != ("c", "y", listening.pid)
    assert hash(message) == hash(("c", "x", listening.pid))
    assert (message.channel, message.payload, message.pid) == ("c", "x", listening.pid)
    assert "c" in repr(message)
    assert "x" in repr(message)


def test_notifies_of_equal_content_are_equal(listening: pynotify.Connection) -> None:
    listening.notify("c", "x")
    listening.notify("c", "x")
    first, second = listening.poll()
    assert first == second
    assert len({first, second}) == 1
    assert first.seq != second.seq


COMPARING = """
import sys, pynotify

conn = pynotify.connect(sys.argv[1])
conn.listen("c")
for payload in (b"\\xff", "x", b"\\xff"):
    conn.notify("c", payload)
odd, text, same = conn.poll()
assert odd != text and text != odd and odd == same and len({odd, text, same}) == 2
assert odd != ("c", "x", odd.pid) and odd == ("c", b"\\xff", odd.pid)
assert sorted([odd, text]) == [text, odd]
"""


def test_comparing_warns_of_no_bytes(engine: pynotify.Engine) -> None:
    """`python -bb` forbids comparing text with bytes, and some tests of others run with it."""
    command = [sys.executable, "-bb", "-P", "-c", COMPARING, engine.name]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=3 * PATIENCE, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_notify_has_more_than_the_tuple(listening: pynotify.Connection) -> None:
    before = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
    listening.notify("c", "é")
    (message,) = listening.poll()
    after = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
    assert message.data == "é".encode()
    assert before <= message.sent_ns <= after
    assert message.backend_id == listening.backend_id
    assert isinstance(message.seq, int)


class TestPayloadThatIsNotText:
    DATA = b"\xff\xfe\0"

    @pytest.fixture
    def message(self, listening: pynotify.Connection) -> pynotify.Notify:
        listening.notify("c", self.DATA)
        return listening.poll()[0]

    def test_only_reading_it_raises(self, message: pynotify.Notify) -> None:
        assert message.data == self.DATA
        assert message.channel == "c"
        with pytest.raises(pynotify.PayloadDecodeError) as caught:
            _ = message.payload
        assert isinstance(caught.value, ValueError)
        assert isinstance(caught.value, pynotify.ProgrammingError)

    def test_repr_never_raises(self, message: pynotify.Notify) -> None:
        assert "c" in repr(message)

    def test_unpacking_raises(self, message: pynotify.Notify) -> None:
        with pytest.raises(pynotify.PayloadDecodeError):
            _channel, _payload, _pid = message

    def test_equality_and_hash_use_data(
        self, message: pynotify.Notify, listening: pynotify.Connection
    ) -> None:
        listening.notify("c", self.DATA)
        listening.notify("c", self.DATA + b"!")
        same, other = listening.poll()
        assert message == same
        assert hash(message) == hash(same)
        assert message != other
        assert message != ("c", "", message.pid)


def test_sqlstate_and_text_of_every_limit(listening: pynotify.Connection) -> None:
    """E1 to E3: letter for letter at the beginning; after a newline, and in `hint`, what to do."""
    cases = [
        (("", "x"), pynotify.InvalidChannelName, "channel name cannot be empty"),
        (("x" * 64, "x"), pynotify.InvalidChannelName, "channel name too long"),
        (("c", "x" * 8000), pynotify.PayloadTooLong, "payload string too long"),
    ]
    for arguments, kind, text in cases:
        with pytest.raises(kind) as caught:
            listening.notify(*arguments)
        error = caught.value
        assert str(error).split("\n")[0] == text
        assert error.sqlstate == "22023"
        assert error.hint, "an error says what to do about it"
        assert error.hint in str(error)


class Folding(str):
    """Compares as it likes."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, str) and self.lower() == other.lower()

    def __hash__(self) -> int:
        return hash(self.lower())


def test_a_str_of_another_class_is_its_characters(conn: pynotify.Connection) -> None:
    """C5: names are compared byte for byte, however the program compares its objects."""
    conn.listen("folding", "FOLDING")
    conn.notify("folding", "1")
    conn.notify(Folding("FOLDING"), "2")
    conn.notify_many(Folding("FOLDING"), ["3"])
    assert pairs(conn.poll()) == [("folding", "1"), ("FOLDING", "2"), ("FOLDING", "3")]


def test_arrays_are_their_bytes(listening: pynotify.Connection) -> None:
    """Whatever their shape, and none of them shifts the others."""
    numbers = numpy.array([1, 2, 3], "uint32")
    several = [numpy.zeros((3, 0)), numbers, numpy.array(7, "uint8"), numpy.uint8(8), b"end"]
    for payload in several:
        listening.notify("c", payload)
    one_by_one = [message.data for message in listening.poll()]
    assert listening.notify_many("c", several) == len(several)
    assert [message.data for message in listening.poll()] == one_by_one
    assert one_by_one == [b"", numbers.tobytes(), b"\7", b"\x08", b"end"]


def test_what_is_in_no_buffer_fails_no_transaction(listening: pynotify.Connection) -> None:
    times = numpy.array(["2026-01-01"], "datetime64[s]")
    with listening.transaction():
        with pytest.raises(TypeError):
            listening.notify("c", times)
        with pytest.raises(TypeError):
            listening.notify_many("c", [b"", times])
        listening.notify("c", "goes on")
    assert payloads(listening.poll()) == ["goes on"]


def test_a_handler_must_be_callable(conn: pynotify.Connection) -> None:
    with pytest.raises(TypeError, match="callable"):
        conn.add_notify_handler(None)  # type: ignore[arg-type]
