"""Headers of notifications: what goes along beside a payload, and changes nothing else.

The core's are in native/tests/commit/test_headers.c, chance in test_model.py.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from types import MappingProxyType
from typing import Any

import pytest

import pynotify
from pynotify._ffi import ffi, lib
from receiving import payloads
from sessions import Connect, EngineFactory, Sessions

TRACE = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}


def headed(messages: list[Any]) -> list[tuple[str, dict[str, str]]]:
    """The payload and the headers of each."""
    return [(message.payload, message.headers) for message in messages]


@pytest.fixture
def listening(conn: pynotify.Connection) -> pynotify.Connection:
    conn.listen("c")
    return conn


# ---- sending -------------------------------------------------------------------------------------


def test_they_arrive_with_their_payload(sessions: Sessions) -> None:
    listener, notifier = sessions(2)
    listener.listen("c")
    notifier.notify("c", "0")
    notifier.notify("c", "1", headers=TRACE)
    notifier.notify("c", headers={"é": "ü", "": ""})
    notifier.notify("c", b"3", headers={})
    notifier.notify("c", "4", headers=None)
    assert [(each.payload, each.headers) for each in listener.step("poll")] == [
        ("0", {}),
        ("1", TRACE),
        ("", {"é": "ü", "": ""}),
        ("3", {}),
        ("4", {}),
    ]


def test_of_many_each_has_them(listening: pynotify.Connection) -> None:
    assert listening.notify_many("c", ["1", "2", "1"], headers=TRACE) == 2
    assert listening.notify_many("c", ("3", "3"), dedup=False, headers=TRACE) == 2
    assert listening.notify_many("c", ["4"], headers=None) == 1
    assert listening.notify_many("c", [], headers=TRACE) == 0
    assert headed(listening.poll()) == [
        ("1", TRACE), ("2", TRACE), ("3", TRACE), ("3", TRACE), ("4", {}),
    ]  # fmt: skip


@pytest.mark.parametrize(
    "payload", ["ü", b"\xff", bytearray(b"x"), memoryview(b"y"), type("Text", (str,), {})("t")]
)
def test_with_payloads_of_any_type(listening: pynotify.Connection, payload: Any) -> None:
    listening.notify("c", payload, headers=TRACE)
    listening.notify(channel="c", payload=payload, headers=MappingProxyType(TRACE))
    listening.notify_many("c", [payload], headers=TRACE)
    data = payload.encode() if isinstance(payload, str) else bytes(payload)
    assert [(each.data, each.headers) for each in listening.poll()] == [(data, TRACE)] * 3


def test_in_a_transaction(listening: pynotify.Connection) -> None:
    """They are there when it commits, and undone with its savepoints."""
    with listening.transaction():
        listening.notify("c", "1", headers={"n": "1"})
        with listening.transaction():
            listening.notify("c", "2", headers={"n": "2"})
            listening.notify_many("c", ["3", "4"], headers={"n": "34"})
            raise pynotify.Rollback
        listening.notify("c", "5")
        with listening.transaction():
            listening.notify_many("c", ["6", "7"], headers={"n": "67"})
        assert listening.poll() == []
    assert headed(listening.poll()) == [
        ("1", {"n": "1"}), ("5", {}), ("6", {"n": "67"}), ("7", {"n": "67"}),
    ]  # fmt: skip


def test_a_duplicate_is_one_whatever_its_headers(listening: pynotify.Connection) -> None:
    """Else a program that is traced would send more than one that is not."""
    with listening.transaction():
        listening.notify("c", "1", headers={"n": "first"})
        listening.notify("c", "1", headers={"n": "second"})
        listening.notify("c", "1")
        listening.notify("c", "2")
        listening.notify("c", "2", headers={"n": "late"})
    assert headed(listening.poll()) == [("1", {"n": "first"}), ("2", {})]


@pytest.mark.parametrize(
    "headers", [{"k": 1}, {1: "v"}, {"k": None}, {"k": b"v"}, [("k", "v")], "k", 1, {b"k": "v"}]
)
def test_other_types(listening: pynotify.Connection, headers: Any) -> None:
    for call in (
        lambda: listening.notify("c", "x", headers=headers),
        lambda: listening.notify_many("c", ["x"], headers=headers),
    ):
        with pytest.raises(TypeError, match="header"):
            call()
        with listening.transaction(), pytest.raises(TypeError, match="header"):
            call()
    with pytest.raises(TypeError):
        listening.notify("c", "x", TRACE)  # type: ignore[call-arg]
    assert listening.poll() == []


def test_payloads_and_channels_are_judged_as_ever(listening: pynotify.Connection) -> None:
    with pytest.raises(pynotify.InvalidChannelName):
        listening.notify("", "x", headers=TRACE)
    with pytest.raises(pynotify.InvalidChannelName):
        listening.notify("a\0b", "x", headers=TRACE)
    with pytest.raises(pynotify.PayloadTooLong):
        listening.notify("c", "x" * 8000, headers=TRACE)
    with pytest.raises(TypeError, match="payload must be"):
        listening.notify("c", 1, headers=TRACE)  # type: ignore[arg-type]
    assert listening.poll() == []


def test_their_bound_is_their_own(listening: pynotify.Connection) -> None:
    """They do not count for max_payload."""
    most = {"k": "v" * (lib.PN_NOTIFY_HEADERS_MAX - len('{"k":""}'))}
    listening.notify("c", "x" * 7999, headers=most)
    (message,) = listening.poll()
    assert message.headers == most
    more = {"k": most["k"] + "v"}
    with pytest.raises(pynotify.PayloadTooLong, match="headers too long") as caught:
        listening.notify("c", "x", headers=more)
    assert caught.value.sqlstate == "22023"
    assert "They have 65536 bytes; a notification takes 65535." in str(caught.value)
    with pytest.raises(pynotify.PayloadTooLong), listening.transaction():
        listening.notify("c", "y")
        listening.notify("c", "x", headers=more)
    assert listening.poll() == []


def test_what_does_not_fit_the_queue(make_engine: EngineFactory, connect: Connect) -> None:
    engine = make_engine(queue_pages=64)
    conn = connect(to=engine)
    conn.listen("c")
    count, headers = 0, {"k": "v" * 60_000}
    with pytest.raises(pynotify.QueueFull):
        while True:
            conn.notify("c", "x", headers=headers)
            count += 1
    assert count == 8  # eight pages each
    assert headed(conn.poll()) == [("x", headers)] * count
    assert engine.check().ok


# ---- receiving -----------------------------------------------------------------------------------


def test_they_are_no_part_of_the_value(listening: pynotify.Connection) -> None:
    listening.notify("c", "x", headers=TRACE)
    (message,) = listening.poll()
    assert isinstance(message, pynotify.Notify)
    assert message == ("c", "x", listening.pid)
    assert message == pynotify.Notify("c", "x", listening.pid, headers={"other": "ones"})
    assert hash(message) == hash(("c", "x", listening.pid))
    assert [*message] == ["c", "x", listening.pid]
    assert repr(message) == f"Notify(channel='c', payload='x', pid={listening.pid})"
    assert (message.payload, message.payload) == ("x", "x")


def test_a_look_is_the_callers_own(listening: pynotify.Connection) -> None:
    listening.notify("c", "x", headers=TRACE)
    (message,) = listening.poll()
    message.headers["more"] = "changes nothing"
    assert message.headers == TRACE
    with pytest.raises(AttributeError):
        message.headers = {}  # type: ignore


def test_a_pickle_has_them(listening: pynotify.Connection) -> None:
    listening.notify("c", "x", headers=TRACE)
    (message,) = listening.poll()
    again = pickle.loads(pickle.dumps(message))
    assert (again, again.headers, again.pattern) == (message, TRACE, None)


def test_made_by_hand() -> None:
    assert pynotify.Notify("c", "x").headers == {}
    assert pynotify.Notify("c", "x", headers=None).headers == {}
    assert pynotify.Notify("c", "x", headers={}).headers == {}
    made = pynotify.Notify("c", "x", 1, 2, 3, 4, 5, "p", TRACE)
    assert (made.pattern, made.headers) == ("p", TRACE)
    for headers in ([1], 1, {"k": 1}, "text"):
        with pytest.raises(TypeError, match="header"):
            pynotify.Notify("c", "x", headers=headers)  # type: ignore[arg-type]


def test_by_a_pattern(conn: pynotify.Connection, connect: Connect) -> None:
    conn.listen_pattern("c*")
    other = connect()
    other.notify("c1", "1", headers=TRACE)
    other.notify("c2", "2")
    found = [(each.payload, each.pattern, each.headers) for each in conn.poll()]  # type: ignore
    assert found == [("1", "c*", TRACE), ("2", "c*", {})]


def test_in_a_subscription_and_a_handler(conn: pynotify.Connection, connect: Connect) -> None:
    seen: list[Any] = []
    conn.add_notify_handler(seen.append)
    with conn.subscribe("c") as sub:
        conn.listen("c")
        connect().notify("c", "x", headers=TRACE)
        assert headed(conn.poll()) == headed([sub.next(0)]) == headed(seen) == [("x", TRACE)]


@pytest.mark.parametrize("size", [3, 5_000], ids=["copied", "taken over"])
def test_in_a_batch(listening: pynotify.Connection, size: int) -> None:
    expected = []
    for number in range(20):
        headers = {"n": str(number)} if number % 3 == 1 else {}
        listening.notify("c", f"{number:0{size}}", headers=headers)
        expected.append((f"{number:0{size}}", headers))
    batch = listening.poll_batch()
    assert headed([*batch]) == expected
    assert [batch.headers(index) for index in range(-20, 0)] == [each for _, each in expected]
    again = pynotify.NotifyBatch.from_messages([*batch])
    assert headed([*again]) == expected
    assert headed([*pickle.loads(pickle.dumps(batch))]) == expected
    with pytest.raises(IndexError):
        batch.headers(20)
    # The memory that it had is used again, by a batch without any.
    del batch, again
    listening.notify_many("c", ["x" * size] * 20, dedup=False)
    batch = listening.poll_batch()
    assert [batch.headers(index) for index in range(len(batch))] == [{}] * 20
    assert headed([*pickle.loads(pickle.dumps(batch))]) == [("x" * size, {})] * 20


def test_some_of_many(listening: pynotify.Connection) -> None:
    """The column begins somewhere in what is read, which goes on in several pieces."""
    expected = []
    for number in range(5_000):
        headers = {"n": str(number)} if number > 100 and number % 7 == 0 else {}
        listening.notify("c", str(number), headers=headers)
        expected.append((str(number), headers))
    got = headed(listening.poll(max=50))
    got += headed(list(listening.notifies(timeout=0, stop_after=1_000)))
    assert got + headed(listening.poll()) == expected


@pytest.mark.parametrize(
    ("raw", "read"),
    [
        (b"no json", {}),
        (b"\xff", {}),
        (b"[1]", {}),
        (b'{"a":"b","c":1,"d":null}', {"a": "b"}),
        (b'{"\\ud800":"x"}', {"\ud800": "x"}),
    ],
)
def test_those_of_other_programs(
    listening: pynotify.Connection, raw: bytes, read: dict[str, str]
) -> None:
    """The core does not look into them; what is no JSON object of strings is left out."""
    kept = [ffi.from_buffer(b"c"), ffi.from_buffer(b"x"), ffi.new("uint32_t *", 1)]
    sent = ffi.new("pn_notify_in *")
    sent.channel, sent.payloads, sent.lens = kept
    sent.channel_len = sent.n = 1
    headers = ffi.from_buffer(raw)
    sent.headers, sent.headers_len = headers, len(raw)
    queued = ffi.new("uint64_t *")
    assert lib.pn_notify_headers(listening._handle.native, ffi.NULL, sent, queued) == 0
    (message,) = listening.poll()
    assert isinstance(message, pynotify.Notify)
    assert (message.headers, message.raw_headers) == (read, raw)


WITHOUT: dict[str, Callable[[pynotify.Connection], object]] = {
    "notify": lambda conn: conn.notify("c", "x"),
    "notify(headers={})": lambda conn: conn.notify("c", "x", headers={}),
    "notify_many": lambda conn: conn.notify_many("c", ["x"]),
}


@pytest.mark.parametrize("how", WITHOUT)
def test_without_any_nothing_is_larger(
    listening: pynotify.Connection, engine: pynotify.Engine, how: str
) -> None:
    """An entry is its 56 bytes, its channel and its payload."""
    before = engine.stat().head
    WITHOUT[how](listening)
    assert engine.stat().head - before == 64
    assert payloads(listening.poll()) == ["x"]
