"""What is called for every message, in C (native/python): values, references, memory, the GIL."""

from __future__ import annotations

import asyncio
import copy
import gc
import itertools
import math
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest

import pynotify
from forgetting import assert_forgotten
from forking import in_child
from locked import LockHolder
from nomemory import without_memory_at
from programs import ROOT, environment
from pynotify._ffi import lib
from pynotify._hot import AT_ONCE, AT_ONCE_BYTES, Inlet, Taker, wait
from pynotify.topics import Topic
from pynotify.topics._message import _EXPIRES
from receiving import PATIENCE, bodies, payloads, wait_until
from sessions import Connect, EngineFactory, Worker
from waiting import Call


@pytest.fixture
def message(conn: pynotify.Connection) -> pynotify.Notify:
    conn.listen("c")
    conn.notify("c", "text")
    (message,) = conn.poll()
    assert isinstance(message, pynotify.Notify)
    return message


# ---- a notification is a value -------------------------------------------------------------------


@pytest.mark.parametrize("name", ["channel", "payload", "data", "pid", "seq", "sent_ns", "new"])
def test_it_cannot_be_changed(message: pynotify.Notify, name: str) -> None:
    with pytest.raises(AttributeError):
        setattr(message, name, 1)
    with pytest.raises(AttributeError):
        delattr(message, name)


def test_it_has_no_subclass() -> None:
    with pytest.raises(TypeError, match="not an acceptable base type"):
        type("Sub", (pynotify.Notify,), {})


def test_it_is_in_no_cycle(message: pynotify.Notify) -> None:
    """It refers to a str, bytes and numbers, so the garbage collector need not know it."""
    assert not gc.is_tracked(message)
    text = type("Text", (str,), {})("c")
    text.cycle = made = pynotify.Notify(text, "x")
    assert type(made.channel) is str


@pytest.mark.parametrize(
    "make", [copy.copy, copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))]
)
def test_copies_are_equal(message: pynotify.Notify, make: Callable[[Any], Any]) -> None:
    made = make(message)
    for name in ("channel", "payload", "data", "pid", "seq", "sent_ns", "sender", "order"):
        assert getattr(made, name) == getattr(message, name), name
    assert made == message
    assert hash(made) == hash(message)


def test_it_compares_as_a_tuple() -> None:
    low, high = pynotify.Notify("c", "a", 1), pynotify.Notify("c", "b", 0)
    assert low < high and low <= high and high > low and high >= low and low != high
    assert low < ("c", "b", 0) and high >= ("c", "b", 0)
    assert low == ("c", "a", 1) and low != ("c", "a")
    assert sorted([high, low]) == [low, high]
    assert low not in ("c", ["c", "a", 1])
    with pytest.raises(TypeError):
        low < 1  # type: ignore[operator] # noqa: B015
    assert pynotify.Notify("c", b"\xff") == ("c", b"\xff", 0)


def test_it_unpacks_as_a_tuple(message: pynotify.Notify) -> None:
    channel, payload, pid = message
    assert (channel, payload, pid) == tuple(message) == message[:] == ("c", "text", message.pid)
    assert message[-1] == pid and len(message) == 3
    with pytest.raises(IndexError):
        message[3]
    match message:
        case pynotify.Notify("c", text, sender):
            assert (text, sender) == ("text", pid)
        case _:
            pytest.fail("it does not match")


def test_what_is_no_text(conn: pynotify.Connection) -> None:
    message = pynotify.Notify("c", b"\xff")
    for use in (lambda: message.payload, lambda: list(message), lambda: message[0]):
        with pytest.raises(pynotify.PayloadDecodeError, match="not valid UTF-8") as caught:
            use()
        assert isinstance(caught.value, ValueError)
    assert repr(message) == "Notify(channel='c', payload=b'\\xff', pid=0)"
    assert hash(message) == hash(("c", b"\xff", 0))


@pytest.mark.parametrize(
    "arguments", [(), ("c",), (b"c", "x"), ("c", 1), ("c", None), ("c", "x", "1")]
)
def test_other_arguments(arguments: tuple[Any, ...]) -> None:
    with pytest.raises(TypeError):
        pynotify.Notify(*arguments)


@pytest.mark.parametrize("name", ["pid", "seq", "sent_ns", "sender", "index"])
def test_numbers_that_it_cannot_have(name: str) -> None:
    given: dict[str, Any] = {name: 2**64}
    with pytest.raises(OverflowError):
        pynotify.Notify("c", "x", **given)
    if name in ("seq", "sender", "index"):
        with pytest.raises(OverflowError):
            pynotify.Notify("c", "x", **{name: -1})  # type: ignore[arg-type]
        made = pynotify.Notify("c", "x", **{name: 2**64 - 1})  # type: ignore[arg-type]
        assert pickle.loads(pickle.dumps(made)).order == made.order


# ---- arguments of notify() -----------------------------------------------------------------------


def test_arguments_by_name(conn: pynotify.Connection) -> None:
    conn.listen("c")
    conn.notify(channel="c", payload="1")
    conn.notify("c", payload=bytearray(b"2"))
    conn.notify(payload=memoryview(b"3"), channel="c")
    assert payloads(conn.poll()) == ["1", "2", "3"]
    for arguments, named in [
        ((), {}),
        (("c", "x", 1), {}),
        (("c",), {"channel": "c"}),
        ((), {"a": 1}),
    ]:
        with pytest.raises(TypeError, match=r"notify\(\)"):
            conn.notify(*arguments, **named)


def test_subclasses_of_str_and_bytes(conn: pynotify.Connection) -> None:
    """They are sent as what they hold, whatever else they say of themselves."""

    class Loud(str):
        def encode(self, *_: object) -> bytes:
            return b"LOUD"

    class Long(bytes):
        def __len__(self) -> int:
            return 99

    conn.listen("c")
    conn.notify(Loud("c"), "1")
    conn.notify("c", Long(b"2"))
    conn.notify("c", Loud("3"))
    with conn.transaction():
        conn.notify("c", Long(b"4"))
        conn.notify("c", Loud("5"))
    conn.notify_many("c", [Long(b"6"), Loud("7")])
    assert payloads(conn.poll()) == ["1", "2", "3", "4", "5", "6", "7"]


@pytest.mark.parametrize("channel", ["\ud800", "a\0b", "", "x" * 64])
def test_names_that_are_refused(conn: pynotify.Connection, channel: str) -> None:
    with pytest.raises(pynotify.InvalidChannelName):
        conn.notify(channel, "x")
    with pytest.raises(pynotify.InvalidChannelName):
        conn.notify_many(channel, ["x"])


# ---- arguments of notify_many() ------------------------------------------------------------------


MANY: dict[str, tuple[Any, list[str]]] = {
    "a list": (["a", b"b", "\u00fc", b"\xc3\xb6", ""], ["a", "b", "\u00fc", "\u00f6", ""]),
    "a tuple": (("a", "b"), ["a", "b"]),
    "other bytes": ([bytearray(b"a"), memoryview(b"b"), "c"], ["a", "b", "c"]),
    "a generator": ((str(i) for i in range(3)), ["0", "1", "2"]),
    "a subclass": (type("Two", (list,), {})(["a", "b"]), ["a", "b"]),
    "duplicates": (["a", b"a", "a"], ["a"]),
    "none": ([], []),
    "hundreds": ([f"{i % 300}" for i in range(700)], [str(i) for i in range(300)]),
    "so many that other threads run": (
        [f"{i:0500}" for i in range(2_000)],
        [f"{i:0500}" for i in range(2_000)],
    ),
}


@pytest.mark.parametrize("name", MANY)
def test_many(conn: pynotify.Connection, name: str) -> None:
    given, expected = MANY[name]
    conn.listen("c")
    assert conn.notify_many("c", given) == len(expected)
    assert payloads(conn.poll()) == expected


def filling_one_buffer(texts: list[str]) -> Iterator[bytearray | memoryview]:
    buffer = bytearray(8)
    for text in texts:
        buffer[: len(text)] = text.encode()
        yield memoryview(buffer)[: len(text)]


def test_many_out_of_one_buffer(conn: pynotify.Connection) -> None:
    """An iterator may fill it again for the next."""
    conn.listen("c")
    texts = ["a", "bc", "def"]
    assert conn.notify_many("c", filling_one_buffer(texts)) == 3
    with conn.transaction():
        assert conn.notify_many("c", filling_one_buffer(["gh", *texts])) == 4
    assert payloads(conn.poll()) == [*texts, "gh", *texts]
    topic = conn.topic("t")
    consumer = topic.channel("k").consumer(max_in_flight=len(texts))
    topic.publish_many(filling_one_buffer(texts))
    assert [consumer.get(0).body.decode() for _ in texts] == texts
    consumer.close()


def test_many_out_of_one_buffer_for_a_task(engine: pynotify.Engine) -> None:
    texts = ["a", "bc", "def"]

    async def send() -> None:
        async with await pynotify.AsyncConnection.connect(engine.name) as conn:
            await conn.listen("c")
            assert await conn.notify_many("c", filling_one_buffer(texts)) == 3
            assert payloads(await conn.poll()) == texts
            topic = conn.topic("t")
            async with topic.channel("k").consumer(max_in_flight=len(texts)) as consumer:
                with pytest.raises(pynotify.Timeout):
                    await consumer.get(0)  # the channel is there
                await topic.publish_many(filling_one_buffer(texts))
                assert [(await consumer.get(PATIENCE)).body.decode() for _ in texts] == texts

    asyncio.run(send())


def test_arguments_of_many_by_name(conn: pynotify.Connection) -> None:
    conn.listen("c")
    assert conn.notify_many(payloads=["x", "x"], channel="c", dedup=False) == 2
    assert conn.notify_many("c", ["y", "y"], dedup=1) == 1  # type: ignore[arg-type]
    assert payloads(conn.poll()) == ["x", "x", "y"]
    for arguments, named in [((), {}), (("c",), {}), (("c", [], True), {}), (("c", []), {"a": 1})]:
        with pytest.raises(TypeError, match=r"notify_many\(\)"):
            conn.notify_many(*arguments, **named)


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ("abc", TypeError),
        (b"abc", TypeError),
        (1, TypeError),
        (["a", 1], TypeError),
        (["a", "\ud800"], UnicodeEncodeError),
        (["a", "x" * 8000], pynotify.PayloadTooLong),
    ],
)
def test_of_many_that_are_refused_none_is_sent(
    conn: pynotify.Connection, given: Any, error: type[Exception]
) -> None:
    conn.listen("c")
    with pytest.raises(error):
        conn.notify_many("c", given)
    assert conn.poll() == []


def test_many_in_a_transaction_and_of_a_closed_connection(conn: pynotify.Connection) -> None:
    conn.listen("c")
    with conn.transaction():
        assert conn.notify_many("c", ["a", "b", "a"]) == 2
        assert conn.notify_many("c", ["b", "c"]) == 1
        assert conn.poll() == []
    assert payloads(conn.poll()) == ["a", "b", "c"]
    conn.close()
    with pytest.raises(pynotify.InterfaceError, match="closed"):
        conn.notify_many("c", ["a"])


# ---- publish() of topics -------------------------------------------------------------------------


def test_published_bodies_and_ids(conn: pynotify.Connection) -> None:
    topic = conn.topic("t")
    topic.channel("k")
    given = [b"a", "\u00fc", bytearray(b"c"), memoryview(b"d"), type("B", (bytes,), {})(b"e")]
    ids = [topic.publish(body) for body in given]
    ids += [topic.publish(body="f"), topic.publish("g", headers={"h": "i"}, ttl=60)]
    assert all(len(i) == 16 and i == f"{int(i, 16):016x}" for i in ids)
    assert len(set(ids)) == 7 and ids == sorted(ids)
    assert bodies(topic) == list("a\u00fccdefg")


def test_delay_and_ttl_are_taken_in_one_call_where_they_are_plain(
    conn: pynotify.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = conn.topic("t")
    channel = topic.channel("k")
    left = []
    otherwise = type(topic)._publish_otherwise

    def watched(self: Any, *arguments: Any) -> str:
        left.append(arguments[1:])
        return otherwise(self, *arguments)

    monkeypatch.setattr(type(topic), "_publish_otherwise", watched)
    plain: list[dict[str, Any]] = [
        {"delay": 3600},
        {"delay": 3600.5, "ttl": None},
        {"delay": 4e9, "ttl": 4e9},
        {"ttl": 2**31, "delay": 3600},
    ]
    for given in plain:
        topic.publish("a", **given)
    assert left == []
    others: list[dict[str, Any]] = [
        {"delay": 2**70},
        {"delay": 4e9 + 1},
        {"delay": type("F", (float,), {})(3600)},
        {"ttl": type("F", (float,), {})(3600), "delay": 3600},
        {"delay": 3600, "headers": {"h": "i"}},
    ]
    for given in others:
        topic.publish("a", **given)
    assert len(left) == len(others)
    assert channel.stats().deferred == len(plain) + len(others)
    wrong: list[tuple[dict[str, Any], type[Exception]]] = [
        ({"delay": -1}, ValueError),
        ({"delay": math.nan}, ValueError),
        ({"delay": math.inf}, ValueError),
        ({"delay": True}, TypeError),
        ({"delay": "1"}, TypeError),
        ({"ttl": 0}, ValueError),
        ({"ttl": 0.0}, ValueError),
        ({"ttl": -1}, ValueError),
    ]
    for given, error in wrong:
        with pytest.raises(error, match=next(iter(given))):
            topic.publish("a", **given)
    for body in (None, 1, np.zeros(3, "M8[s]")):
        for given in ({}, {"delay": 3600}):
            with pytest.raises(TypeError, match="body must be"):
                topic.publish(body, **given)  # type: ignore[arg-type]
    with pytest.raises(pynotify.ProgrammingError):
        topic.publish("", delay=3600)
    assert channel.stats().deferred == len(plain) + len(others)


def test_delay_and_ttl_mean_the_same_however_they_are_written(conn: pynotify.Connection) -> None:
    topic = conn.topic("t")
    own = type("F", (float,), {})  # which C leaves to Python
    with topic.channel("k").consumer() as consumer:
        for ttl in [1000, 1000.1, 12345.678901234567, 4e9, 3999999999]:
            for given in (ttl, own(ttl)):
                begin = time.monotonic_ns()
                topic.publish("a", ttl=given)
                end = time.monotonic_ns()
                message = consumer.get(5)
                since = message._fields[_EXPIRES] - round(ttl * 1_000_000_000)
                assert begin <= since <= end
                message.finish()
        topic.publish("due", delay=0.001)
        assert consumer.get(5).body == b"due"


class _Longer(bytes):
    def __len__(self) -> int:
        return 3000

    def __bool__(self) -> bool:
        return False


class _Encodes(str):
    __slots__ = ()

    def encode(self, *_: Any) -> bytes:
        return _Longer(b"abc")


@pytest.mark.parametrize("body", [_Longer(b"abc"), _Encodes("abc")], ids=["bytes", "str"])
def test_a_body_is_as_long_as_what_it_holds(conn: pynotify.Connection, body: Any) -> None:
    topic = conn.topic("t")
    topic.channel("k")
    for given in ({}, {"ttl": 60}, {"headers": {"h": "i"}}):
        topic.publish(body, **given)
    with conn.transaction():
        topic.publish(body)
    topic.publish_many([body])
    assert bodies(topic) == ["abc"] * 5


def test_bodies_that_are_refused(conn: pynotify.Connection) -> None:
    topic = conn.topic("t")
    topic.channel("k")
    for body, error in [
        (b"", pynotify.ProgrammingError),
        (b"x" * (2 << 20), pynotify.PayloadTooLong),
        ("\ud800", UnicodeEncodeError),
        (1, TypeError),
        (None, TypeError),
    ]:
        with pytest.raises(error):
            topic.publish(body)  # type: ignore[arg-type]
    wrong: list[tuple[tuple[Any, ...], dict[str, Any]]]
    wrong = [((), {}), (("a", 1), {}), (("a",), {"body": "b"}), (("a",), {"other": 1})]
    for arguments, named in wrong:
        with pytest.raises(TypeError, match=r"publish\(\)"):
            topic.publish(*arguments, **named)
    assert bodies(topic) == []
    topic.delete()
    with pytest.raises(pynotify.TopicDeleted):
        topic.publish("a")
    other = conn.topic("t")
    conn.close()
    with pytest.raises(pynotify.InterfaceError, match="closed"):
        other.publish("a")


def test_publishing_belongs_to_the_transaction(conn: pynotify.Connection) -> None:
    topic = conn.topic("t")
    topic.channel("k")
    with pytest.raises(ZeroDivisionError), conn.transaction():
        topic.publish("never")
        raise ZeroDivisionError
    with conn.transaction():
        topic.publish("then")
        assert topic.channel("k").stats().depth == 0
    assert bodies(topic) == ["then"]


def test_a_durable_topic_is_published_to_in_one_call(
    make_engine: EngineFactory,
    nursery: Worker,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Which comes back for signal handlers while it waits; one that raises ends it."""
    left = []
    otherwise = Topic._publish_otherwise

    def watched(self: Any, *arguments: Any) -> str:
        left.append(arguments[0])
        return otherwise(self, *arguments)

    monkeypatch.setattr(Topic, "_publish_otherwise", watched)
    engine = make_engine(data_dir=tmp_path)
    holder = LockHolder(nursery, make_engine.name_of(engine), tmp_path / "log")
    with engine.connect() as conn:
        topic = conn.topic("t", durable=True)
        assert not topic.in_memory
        channel = topic.channel("k")
        topic.publish("a")
        topic.publish("b", ttl=3600)
        topic.publish("later", delay=3600)
        assert left == []
        holder.hold()
        try:
            other = Call(topic.publish, "c")
            before = signal.signal(signal.SIGALRM, lambda *_: 1 / 0)
            try:
                with pytest.raises(ZeroDivisionError):
                    signal.setitimer(signal.ITIMER_REAL, 0.1)
                    topic.publish("never")
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
                signal.signal(signal.SIGALRM, before)
            assert not other.ended
        finally:
            holder.release()
        other.result()
        assert bodies(topic) == list("abc")
        assert channel.stats().deferred == 1


# ---- references and memory -----------------------------------------------------------------------


def test_nothing_is_kept(conn: pynotify.Connection, make_engine: EngineFactory) -> None:
    conn.listen("c")

    def one(name: str) -> None:
        conn.notify("c", name)
        (message,) = conn.poll()
        assert (list(message), hash(message), repr(message)) is not None
        conn.notify("c", name.encode())
        assert conn.notify_many("c", [name, name.encode(), f"{name}s"]) == 2
        assert conn.notify_many("c", [name] * 400, dedup=False) == 400
        batch = conn.poll_batch()
        assert (list(batch), batch.payloads(), batch.data(0)) is not None
        for wrong in (
            lambda: conn.notify("c", 1),
            lambda: conn.notify("x" * 64, name),
            lambda: conn.notify_many("c", [name, 1]),
            lambda: conn.notify_many("x" * 64, [name]),
        ):
            with pytest.raises((TypeError, pynotify.InvalidChannelName)):
                wrong()
        with pytest.raises(pynotify.PayloadDecodeError):
            assert pynotify.Notify(name, b"\xff").payload

    assert_forgotten(one)


def test_references_are_given_back(conn: pynotify.Connection) -> None:
    conn.listen("channel of its own")
    channel, payload = "channel of its own", "payload of its own"
    before = [sys.getrefcount(thing) for thing in (channel, payload, conn, conn._handle)]
    for _ in range(100):
        conn.notify(channel, payload)
        conn.notify(channel=channel, payload=payload)
        with pytest.raises(TypeError):
            conn.notify(channel, payload, payload)
        conn.notify_many(channel, [payload])
        with pytest.raises(TypeError):
            conn.notify_many(channel, [payload, 1])
        assert len(conn.poll()) == 3
    after = [sys.getrefcount(thing) for thing in (channel, payload, conn, conn._handle)]
    assert [new - old for old, new in zip(before, after, strict=True)] == [0, 0, 0, 0]


RECEIVE: dict[str, Callable[[pynotify.Connection], Any]] = {
    "poll": lambda conn: conn.poll(),
    "poll_batch": lambda conn: conn.poll_batch(),
}


def test_nothing_is_kept_of_what_is_published(
    conn: pynotify.Connection, make_engine: EngineFactory
) -> None:
    topic = conn.topic("t")
    topic.channel("k")

    def one(name: str) -> None:
        topic.publish(name)
        topic.publish(name.encode(), delay=0)
        topic.publish_many([name, name.encode()])
        with pytest.raises(TypeError):
            topic.publish(1)  # type: ignore[arg-type]
        with pytest.raises(pynotify.ProgrammingError):
            topic.publish("")
        assert len(bodies(topic)) == 4

    assert_forgotten(one)
    payload = "payload of its own"
    before = [sys.getrefcount(thing) for thing in (payload, topic, conn._handle)]
    for _ in range(100):
        topic.publish(payload)
        topic.publish(body=payload)
    after = [sys.getrefcount(thing) for thing in (payload, topic, conn._handle)]
    assert after == before


@pytest.mark.parametrize("headers", [None, {"k": "v"}], ids=["plain", "headers"])
@pytest.mark.parametrize("number", [2, 40], ids=["few", "many"])
@pytest.mark.parametrize("how", RECEIVE)
def test_no_memory_at_any_place(
    segment_name: str,
    engine: pynotify.Engine,
    how: str,
    number: int,
    headers: dict[str, str] | None,
) -> None:
    """Receiving raises MemoryError or not; nothing is lost, and nothing comes twice."""

    def all_places() -> list[str]:
        wrong: list[str] = []
        with pynotify.connect(segment_name) as conn:
            conn.listen("c")
            failures = 0
            for place in range(1, 80 + 2 * number):
                sent = [f"{place} {i}" for i in range(number)]
                conn.notify_many("c", sent, headers=headers)
                got, failed = without_memory_at(place, lambda: RECEIVE[how](conn))
                failures += failed
                got = list(got or []) + conn.poll()
                if payloads(got) != sent:
                    wrong.append(f"{place}: {got}")
            if failures < 3:
                wrong.append(f"only {failures} failures")
        return wrong

    assert in_child(all_places) == []


def test_large_payloads_are_not_kept(conn: pynotify.Connection) -> None:
    """Small ones are, one in each of CPython's arenas; these are in none."""
    conn.listen("c")
    conn.notify_many("c", [str(number) * 1000 for number in range(1000, 1400)])
    payloads = conn.poll_batch().payloads()
    assert len(payloads) == 400
    assert len({sys.getrefcount(payload) for payload in payloads}) == 1


@pytest.mark.parametrize(
    ("number", "size"), [(20_000, 10), (300, 5_000)], ids=["messages", "bytes"]
)
def test_a_large_backlog_is_taken_in_pieces(
    conn: pynotify.Connection, number: int, size: int
) -> None:
    """Between two calls of C other threads can have the GIL, and signal handlers run."""
    conn.listen("c")
    sent = [f"{i:0{size}}" for i in range(number)]
    assert conn.notify_many("c", sent) == number
    lengths: list[int] = []

    def look(frame: FrameType, event: str, called: Any) -> None:
        if event == "c_return" and called.__name__ in ("take", "read"):
            lengths.append(len(frame.f_locals["messages" if called.__name__ == "take" else "sink"]))

    sys.setprofile(look)
    try:
        got = conn.poll()
    finally:
        sys.setprofile(None)
    assert payloads(got) == sent
    pieces = [after - before for before, after in itertools.pairwise([0, *lengths])]
    assert max(pieces) <= min(AT_ONCE, AT_ONCE_BYTES // size + 1)
    assert sum(pieces) == number


def test_a_process_that_goes_on_sending_does_not_keep_poll(
    conn: pynotify.Connection, connect: Connect
) -> None:
    """Each piece is followed by another backlog."""
    other = connect()
    conn.listen("c")
    many = [str(i) for i in range(AT_ONCE)]
    other.notify_many("c", many)

    def look(_frame: FrameType, event: str, called: Any) -> None:
        if event == "c_return" and called.__name__ in ("take", "read"):
            other.notify_many("c", many)

    sys.setprofile(look)
    try:
        got = conn.poll()
    finally:
        sys.setprofile(None)
    assert payloads(got)[:AT_ONCE] == many
    assert len(got) <= 3 * AT_ONCE


def test_the_order_of_one_commit_in_several_reads(conn: pynotify.Connection) -> None:
    conn.listen("c")
    conn.notify_many("c", [str(i) for i in range(3 * AT_ONCE)])
    got = [*conn.poll(1), *conn.poll(2), *conn.poll()]
    orders = [message.order for message in got if isinstance(message, pynotify.Notify)]
    assert len({seq for seq, _ in orders}) == 1
    assert orders == sorted(set(orders))


@pytest.mark.parametrize("maximum", [1, 3, AT_ONCE, AT_ONCE + 1, 3 * AT_ONCE, 1 << 70, True])
def test_at_most(conn: pynotify.Connection, maximum: int) -> None:
    conn.listen("c")
    sent = [str(i) for i in range(4 * AT_ONCE)]
    conn.notify_many("c", sent)
    first = payloads(conn.poll(maximum))
    assert len(first) == min(maximum, len(sent))
    assert first + payloads(conn.poll()) == sent


def test_at_most_what_no_number_of_c_holds(conn: pynotify.Connection) -> None:
    conn.listen("c")
    for read in (conn.poll, conn.poll_batch):
        conn.notify_many("c", ["1", "2", "3"])
        assert len(read(2**64 + 1)) == 3


def test_what_poll_takes(conn: pynotify.Connection) -> None:
    receiver = conn.link.receiver
    for wrong in ((), ([],), ([], None, 1), ((), None)):
        with pytest.raises(TypeError, match=r"take\(\)"):
            receiver.take(*wrong)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="must not be negative"):
        conn.poll(-1)
    with pytest.raises(TypeError):
        conn.poll("1")  # type: ignore[arg-type]
    assert conn.poll(0) == conn.poll() == []
    unborn = Inlet.__new__(Inlet)
    assert unborn.take([], None) is False
    with pytest.raises(AttributeError, match="handle"):
        unborn.sleep(None, None, 0, 0)  # type: ignore[arg-type]
    assert (unborn.routed, unborn.interrupted) == (False, False)
    conn.close()
    for maximum in (None, 0, 1):
        with pytest.raises(pynotify.InterfaceError, match="closed"):
            conn.poll(maximum)


def test_an_interrupted_poll_is_gone_on_with(conn: pynotify.Connection) -> None:
    """What has been read by then comes first; `take` leaves that to `take_otherwise`."""
    conn.listen("c")
    conn.notify("c", "the name of a channel is read otherwise")
    conn.poll()
    conn.notify("c", "x")
    receiver = conn.link.receiver
    receiver.interrupted = True
    taken: list[pynotify.Notify | pynotify.Gap] = []
    assert receiver.take(taken, None) is False
    assert taken == []
    assert payloads(conn.poll()) == ["x"]
    assert not receiver.interrupted


SEND: dict[str, Callable[[pynotify.Connection, str], object]] = {
    "notify": lambda conn, text: conn.notify("c", text),
    "notify_many": lambda conn, text: conn.notify_many("c", [text]),
    "headers": lambda conn, text: conn.notify("c", text, headers={"k": text}),
}


@pytest.mark.parametrize("how", SEND)
def test_no_memory_for_sending(segment_name: str, engine: pynotify.Engine, how: str) -> None:
    """It is sent once, or not at all, and then it raises."""
    send = SEND[how]

    def all_places() -> list[str]:
        wrong: list[str] = []
        with pynotify.connect(segment_name) as conn:
            conn.listen("c")
            for place in range(1, 20):
                payload = f"ü {place}"
                _, failed = without_memory_at(place, lambda text=payload: send(conn, text))
                got = payloads(conn.poll())
                if got != ([] if failed else [payload]):
                    wrong.append(f"{place}: {failed}, {got}")
        return wrong

    assert in_child(all_places) == []


def test_no_memory_for_publishing(segment_name: str, engine: pynotify.Engine) -> None:
    """What raises may have been published: its id had no memory.  It is there once at most."""

    def all_places() -> list[str]:
        wrong: list[str] = []
        with pynotify.connect(segment_name) as conn:
            topic = conn.topic("t")
            topic.channel("k")
            for place in range(1, 12):
                body = f"{place}"
                _, failed = without_memory_at(place, lambda text=body: topic.publish(text))
                got = bodies(topic)
                if got != [body] and not (failed and got == []):
                    wrong.append(f"{place}: {failed}, {got}")
        return wrong

    assert in_child(all_places) == []


def test_no_memory_for_getting(segment_name: str, engine: pynotify.Engine) -> None:
    """What raises has put the message back in front, as if it had not been delivered."""

    def all_places() -> list[str]:
        wrong: list[str] = []
        failures = 0
        with pynotify.connect(segment_name) as conn:
            topic = conn.topic("t")
            with topic.channel("k").consumer(max_in_flight=1) as consumer:
                for place in range(1, 40):
                    topic.publish_many([f"{place} first", f"{place} second"], headers={"h": "i"})
                    message, failed = without_memory_at(place, lambda: consumer.get(0))
                    failures += failed
                    got = []
                    for each in (message or consumer.get(0), None):
                        taken = each or consumer.get(0)
                        got.append((taken.body, taken.attempts, taken.headers))
                        taken.finish()
                    expected = [f"{place} first".encode(), f"{place} second".encode()]
                    if got != [(body, 1, {"h": "i"}) for body in expected]:
                        wrong.append(f"{place}: {failed}, {got}")
        return wrong if failures > 3 else [f"only {failures} failures"]

    assert in_child(all_places) == []


def test_no_memory_for_finishing(segment_name: str, engine: pynotify.Engine) -> None:
    """What raises may have finished it; if not it can be finished again."""

    def all_places() -> list[str]:
        wrong: list[str] = []
        with pynotify.connect(segment_name) as conn:
            topic = conn.topic("t")
            with topic.channel("k").consumer() as consumer:
                for place in range(1, 12):
                    topic.publish("x")
                    message = consumer.get(0)
                    _, failed = without_memory_at(place, message.finish)
                    if not failed:
                        continue
                    try:
                        message.finish()
                    except pynotify.MessageNotInFlight:
                        wrong.append(f"{place}: finished, but not answered")
                if topic.channel("k").stats().finished != 11:
                    wrong.append(f"{topic.channel('k').stats()}")
        return wrong

    assert in_child(all_places) == []


def test_nothing_is_kept_of_what_is_got(conn: pynotify.Connection) -> None:
    topic = conn.topic("t")
    with topic.channel("k").consumer(max_in_flight=100) as consumer:

        def one(name: str) -> None:
            topic.publish(name)
            topic.publish(name, headers={name: name})
            for _ in range(2):
                message = consumer.get(0)
                assert (message.body, message.id, repr(message)) is not None
                message.finish()
                with pytest.raises(pynotify.MessageNotInFlight):
                    message.finish()
            with pytest.raises(pynotify.Timeout):
                consumer.get(0)

        assert_forgotten(one)
        before = [sys.getrefcount(thing) for thing in (topic, consumer, conn._handle)]
        for _ in range(100):
            topic.publish("x")
            consumer.get(0).finish()
        after = [sys.getrefcount(thing) for thing in (topic, consumer, conn._handle)]
        assert after == before


@pytest.mark.parametrize("durable", [False, True])
def test_what_is_taken_at_once(make_engine: EngineFactory, tmp_path: Path, durable: bool) -> None:
    """Not beside a transaction, and not what a drained consumer has."""
    with make_engine(data_dir=tmp_path).connect() as conn:
        topic = conn.topic("t", durable=durable)
        consumer = topic.channel("k").consumer(max_in_flight=2)
        found: list[tuple[tuple[int, ...], bytes, bytes]] = []
        assert consumer.take_at_once(found) is None
        for body in ("a", "b", "c", "d"):
            topic.publish(body)
        with conn.transaction():
            assert consumer.take_at_once(found) is False
        consumer.in_core = True
        assert consumer.take_at_once(found) is False
        consumer.in_core = False
        assert consumer.take_at_once(found) is True
        assert [body for _, body, _ in found] == [b"a"]
        message = consumer.get(0)
        for wrong in ((), (1, 2), ("a", "b", "c"), (-1, 0, 0), (1 << 64, 0, 0), (1, 1, 1)):
            assert not consumer.finish_at_once(wrong)  # type: ignore[arg-type]
        assert consumer.finish_at_once(message._fields) is True
        consumer.drain()
        assert consumer.take_at_once(found) is False
        consumer.close()
        assert consumer.take_at_once(found) is False
        with pytest.raises(TypeError, match="takes a list"):
            consumer.take_at_once(())  # type: ignore[arg-type]


def test_a_consumer_that_was_cleared_is_closed() -> None:
    """The collector may clear a consumer before the __del__ of a program that uses it."""
    cleared = Taker.__new__(Taker)
    with pytest.raises(AttributeError):
        assert cleared._handle
    with pytest.raises(TypeError, match="cannot be deleted"):
        del cleared._handle
    assert not cleared.take_at_once([])
    assert not cleared.finish_at_once((1, 2, 3))
    assert cleared.get_in_core(0) < 0


# ---- imported again ------------------------------------------------------------------------------

_AGAIN = """
import sys

import pynotify

before = pynotify.connect(sys.argv[1])
before.listen("c")
for _ in range(3):
    for name in [name for name in sys.modules if name.partition(".")[0] == "pynotify"]:
        del sys.modules[name]
    import pynotify
after = pynotify.connect(sys.argv[1])
after.listen("c")
after.notify("c", "1")
before.notify_many("c", ["2", "3"])
for conn in (before, after):
    messages = [*conn.notifies(timeout=0)]
    assert [message.payload for message in messages] == ["1", "2", "3"]
    assert all(type(message) is pynotify.Notify for message in messages)
    assert not conn.wait(0.001)
    conn.close()
print("once more")
"""


def test_imported_again(engine: pynotify.Engine) -> None:
    """By a program that forgets its modules; what was made before goes on."""
    command = [sys.executable, "-c", _AGAIN, engine.name]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("once more\n", "")


# ---- the GIL -------------------------------------------------------------------------------------


def test_other_threads_run_while_one_waits(
    conn: pynotify.Connection, lock_holder: LockHolder
) -> None:
    """What sends waits for the writer lock, and poll() for a LISTEN that waits for it."""
    conn.listen("c")
    topic = conn.topic("t")
    channel = topic.channel("k")
    consumer = channel.consumer()
    topic.publish("before")
    message = consumer.get(0)
    lock_holder.hold()
    try:
        sender, listener = Call(conn.notify, "c", "x"), Call(conn.listen, "d")
        many = Call(conn.notify_many, "c", ["x", "x"])
        publisher = Call(topic.publish, "body")
        finisher, getter = Call(message.finish), Call(consumer.get, PATIENCE)
        reader = Call(conn.poll)
        wait_until(lambda: not (sender.ended or listener.ended), "they have begun")
        for _ in range(100):
            assert sys.getswitchinterval() > 0  # this thread has the GIL
        assert not (sender.ended or many.ended or publisher.ended)
        assert not (finisher.ended or getter.ended)
    finally:
        lock_holder.release()
    sender.result(), listener.result()
    assert many.result() == 1
    assert len(publisher.result()) == 16
    finisher.result()
    assert getter.result().body == b"body"
    consumer.close()
    assert payloads(reader.result() + conn.poll()) == ["x", "x"]


def test_a_handle_that_was_cleared_is_closed(connect: Connect) -> None:
    """The collector may clear a connection before the __del__ of a program that uses it."""
    handle = connect()._handle
    cleared = type(handle).__new__(type(handle))
    with pytest.raises(AttributeError):
        assert cleared.native
    assert wait(cleared, 0) == -lib.PN_ECLOSED
    with pytest.raises(TypeError, match="cannot be deleted"):
        del handle.native
    assert handle.closed is False


# ---- references ----------------------------------------------------------------------------------


def test_no_call_leaves_references_behind(make_engine: EngineFactory) -> None:
    """Thousands of times each.  A debug build that the extension was compiled with counts all."""
    program = ROOT / "tests" / "core" / "references.py"
    command = [sys.executable, str(program), make_engine(max_payload=70_000).name]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("10 tried\n", "")
