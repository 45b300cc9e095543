"""What the calls of C do in a transaction, and what they leave to Python: the same as Python does.

Here a call that is left to Python is told by `left`, which has the names of the methods for that.
"""

from __future__ import annotations

import gc
import math
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import pynotify
from forgetting import assert_forgotten
from forking import in_child
from locked import LockHolder
from nomemory import without_memory_at
from pynotify._connection import Connection
from pynotify._hot import Pending
from pynotify.topics import Consumer, Topic
from pynotify.topics._message import BaseMessage, Message
from receiving import PATIENCE, bodies, payloads, wait_until
from sessions import EngineFactory, Worker
from waiting import Call

OTHERWISE: list[tuple[type, str]] = [
    (Connection, "_notify"),
    (Connection, "_notify_many"),
    (Topic, "_publish_otherwise"),
    (Topic, "_publish_many"),
    (BaseMessage, "_finish"),
    (Consumer, "_get_otherwise"),
]


@pytest.fixture
def left(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The calls that were left to Python so far."""
    names: list[str] = []

    def watch(owner: type, name: str) -> None:
        method = getattr(owner, name)

        def watched(self: Any, *arguments: Any, **named: Any) -> Any:
            names.append(name)
            return method(self, *arguments, **named)

        monkeypatch.setattr(owner, name, watched)

    for owner, name in OTHERWISE:
        watch(owner, name)
    return names


@pytest.mark.parametrize("durable", [False, True], ids=["memory", "durable"])
def test_what_is_plain_is_one_call(
    make_engine: EngineFactory, tmp_path: Path, left: list[str], durable: bool
) -> None:
    engine = make_engine(data_dir=tmp_path)
    with engine.connect() as conn, engine.connect() as other:
        other.listen("c")
        topic = conn.topic("t", durable=durable)
        consumer = topic.channel("k").consumer(max_in_flight=10)
        with conn.transaction():
            first = topic.publish("a")
            topic.publish(b"b", delay=0, ttl=3600)
            assert list(topic.publish_many(["c", b"d"], ttl=3600)) > [first]
            conn.notify("c", "1")
            conn.notify("c", b"2", headers={"k": "v"})
            assert conn.notify_many("c", ["3", "3", b"4"]) == 2
            assert conn.notify_many("c", ["3"]) == 0
        got = [consumer.get(PATIENCE) for _ in range(4)]
        assert [message.body for message in got] == [b"a", b"b", b"c", b"d"]
        assert got[0].id == first
        with conn.transaction() as block:
            for message in got[:2]:
                message.finish()
                assert message._answered is block._open
                assert message.answered and message.finished
        for message in got[2:]:
            message.finish()
            assert message.answered and message.finished
        topic.publish_many(("e", "f"), delay=3600)
        assert left == []
        assert payloads(other.poll()) == ["1", "2", "3", "4"]
        assert topic.channel("k").stats().finished == 4
        with pytest.raises(pynotify.Timeout):
            consumer.get(0)
        assert left == ["_get_otherwise"]


def test_beside_the_transaction_of_another_thread(
    conn: pynotify.Connection, left: list[str]
) -> None:
    """It is that thread's alone: what others do is committed at once."""
    conn.listen("c")
    topic = conn.topic("t")
    consumer = topic.channel("k").consumer(max_in_flight=10)
    begun, go = threading.Event(), threading.Event()

    def other() -> None:
        with conn.transaction():
            topic.publish("of the transaction")
            conn.notify("c", "of the transaction")
            begun.set()
            go.wait(PATIENCE)

    call = Call(other)
    assert begun.wait(PATIENCE)
    topic.publish("at once")
    topic.publish_many(["several", "at once"])
    conn.notify("c", "at once")
    conn.notify_many("c", ["several"])
    left.clear()
    got = [consumer.get(PATIENCE) for _ in range(3)]
    for message in got:
        message.finish()
        assert message._answered == 1
    assert left == ["_get_otherwise"] * 3
    assert payloads(conn.poll()) == ["at once", "several"]
    go.set()
    call.result()
    assert bodies(topic) == ["of the transaction"]
    assert payloads(conn.poll()) == ["of the transaction"]


def test_order_and_savepoints(conn: pynotify.Connection, left: list[str]) -> None:
    """Of what C adds and what Python adds, in turn."""
    topic = conn.topic("t")
    topic.channel("k")
    conn.listen("c")
    with conn.transaction():
        ids = [topic.publish("1"), topic.publish(bytearray(b"2")), topic.publish("3")]
        conn.savepoint("one")
        conn.notify("c", "never")
        topic.publish_many(["never", "never"])
        conn.rollback_to("one")
        ids += topic.publish_many(iter(["4"]))
        with pytest.raises(ZeroDivisionError), conn.transaction():
            topic.publish("never")
            conn.notify_many("c", ["never"])
            raise ZeroDivisionError
        with conn.transaction():
            ids += topic.publish_many(["5", "6"])
            conn.notify("c", "once")
        ids.append(topic.publish("7", headers={"k": "v"}))
        ids.append(topic.publish("8"))
        conn.release("one")
    assert ids == sorted(ids)
    assert len(left) == 3
    assert bodies(topic) == list("12345678")
    assert payloads(conn.poll()) == ["once"]


class Buffer(bytearray):
    pass


class Text(str):
    __slots__ = ()


@pytest.mark.parametrize(
    "body", [Buffer(b"x"), Text("x"), type("B", (bytes,), {})(b"x"), memoryview(b"x")]
)
def test_other_types_are_left_to_python(
    conn: pynotify.Connection, left: list[str], body: Any
) -> None:
    topic = conn.topic("t")
    topic.channel("k")
    conn.listen("c")
    with conn.transaction():
        topic.publish(body)
        topic.publish_many(["x", body])
        conn.notify("c", body)
        conn.notify_many("c", [body])
    assert len(left) == 4
    assert bodies(topic) == ["x"] * 3
    assert payloads(conn.poll()) == ["x"]


Within = Callable[[pynotify.Connection, Topic], object]

REFUSED: dict[str, Within] = {
    "no body": lambda _, topic: topic.publish(""),
    "too long": lambda _, topic: topic.publish("x" * (2 << 20)),
    "no text": lambda _, topic: topic.publish("\ud800"),
    "type": lambda _, topic: topic.publish(1),  # type: ignore[arg-type]
    "delay": lambda _, topic: topic.publish("x", delay=-1),
    "delay's type": lambda _, topic: topic.publish("x", delay="1"),  # type: ignore[arg-type]
    "ttl": lambda _, topic: topic.publish("x", ttl=0),
    "ttl nan": lambda _, topic: topic.publish("x", ttl=math.nan),
    "many: no body": lambda _, topic: topic.publish_many(["x", ""]),
    "many: too long": lambda _, topic: topic.publish_many(["x", "x" * (2 << 20)]),
    "many: no text": lambda _, topic: topic.publish_many(["x", "\ud800"]),
    "many: type": lambda _, topic: topic.publish_many(["x", 1]),  # type: ignore[list-item]
    "many: one": lambda _, topic: topic.publish_many("x"),
    "many: delay": lambda _, topic: topic.publish_many(["x"], delay=math.inf),
    "many: ttl": lambda _, topic: topic.publish_many(["x"], ttl=-1),
    "deleted": lambda conn, topic: conn.topic("gone").publish("x"),
    "channel": lambda conn, _: conn.notify("", "x"),
    "long channel": lambda conn, _: conn.notify("x" * 64, "x"),
    "payload": lambda conn, _: conn.notify("c", "x" * 8000),
    "payload's type": lambda conn, _: conn.notify("c", 1),  # type: ignore[arg-type]
    "headers": lambda conn, _: conn.notify("c", "x", headers={"k": "x" * 70_000}),
    "headers' type": lambda conn, _: conn.notify("c", "x", headers=1),  # type: ignore[arg-type]
    "payloads": lambda conn, _: conn.notify_many("c", ["x", "x" * 8000]),
}


def _said(call: Callable[[], object]) -> tuple[type[BaseException], str]:
    with pytest.raises(Exception) as caught:
        call()
    return caught.type, str(caught.value)


@pytest.mark.parametrize("how", REFUSED)
def test_what_is_refused(
    conn: pynotify.Connection, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """The class and the text are Python's, and so is what it does to the transaction."""
    topic = conn.topic("t")
    topic.channel("k")
    gone = conn.topic("gone")

    def attempt() -> tuple[object, bool]:
        conn.begin()
        try:
            said = _said(lambda: REFUSED[how](conn, topic))
            return said, conn._registry.current().failed  # type: ignore[union-attr]
        finally:
            conn.rollback()

    if how == "deleted":
        monkeypatch.setattr(type(conn), "topic", lambda *_: gone)
        gone.delete()
    by_c = attempt()
    # Where the caller's transaction is not to be found, C leaves everything to Python.
    for each in (conn, topic, gone):
        monkeypatch.setattr(each, "_owner", object)
    assert by_c == attempt()
    assert bodies(topic) == []


def test_a_transaction_that_takes_no_more(conn: pynotify.Connection) -> None:
    """Failed, prepared, being committed, or ended by close()."""
    topic = conn.topic("t")
    consumer = topic.channel("k").consumer()
    topic.publish("stays")
    message = consumer.get(PATIENCE)
    calls: list[Callable[[], object]] = [
        lambda: topic.publish("x"),
        lambda: topic.publish_many(["x"]),
        lambda: conn.notify("c", "x"),
        lambda: conn.notify("c", "x", headers={"k": "v"}),
        lambda: conn.notify("c", "x", headers={"k": 1}),  # type: ignore[dict-item]
        lambda: conn.notify_many("c", ["x"]),
        message.finish,
    ]
    for call in calls:
        with pytest.raises(pynotify.InFailedTransaction), conn.transaction():
            with pytest.raises(pynotify.ProgrammingError):
                topic.publish("")
            with pytest.raises(pynotify.InFailedTransaction):
                call()
        conn.begin()
        transaction = conn._registry.current()
        assert transaction is not None
        transaction.prepare()
        with pytest.raises(pynotify.ProgrammingError, match="is prepared"):
            call()
        conn.rollback()
        conn.begin()
        transaction = conn._registry.current()
        assert transaction is not None
        transaction.committing = True
        with pytest.raises(pynotify.ProgrammingError, match="being committed"):
            call()
        transaction.committing = False
        conn.rollback()
    assert not message.answered
    conn.begin()
    transaction = conn._registry.current()
    conn.close()
    conn._transactions[threading.get_ident()] = transaction  # type: ignore[index, assignment]
    for call in calls:
        with pytest.raises(pynotify.InterfaceError, match="closed"):
            call()
    conn._transactions.clear()  # type: ignore[attr-defined]


def test_an_answer_is_given_once(conn: pynotify.Connection) -> None:
    topic = conn.topic("t")
    consumer = topic.channel("k").consumer()
    topic.publish("a")
    message = consumer.get(PATIENCE)
    with pytest.raises(ZeroDivisionError), conn.transaction():
        message.finish()
        raise ZeroDivisionError
    with conn.transaction():
        message.finish()
        with pytest.raises(pynotify.MessageNotInFlight, match="in this transaction already"):
            message.finish()
        conn._registry.current().failed = False  # type: ignore[union-attr]
    assert topic.channel("k").stats().finished == 1
    with pytest.raises(pynotify.MessageNotInFlight), conn.transaction():
        message.finish()


def test_a_drained_consumer_in_a_transaction(conn: pynotify.Connection, left: list[str]) -> None:
    topic = conn.topic("t")
    consumer = topic.channel("k").consumer(max_in_flight=2)
    topic.publish_many(["a", "b"])
    first, second = consumer.get(PATIENCE), consumer.get(PATIENCE)
    assert not consumer.drain(0)
    with conn.transaction():
        first.finish()
    second.finish()
    assert left == ["_finish", "_finish"]
    assert consumer.drain(PATIENCE)


def test_a_finish_tells_a_drain_that_has_begun_meanwhile(
    make_engine: EngineFactory, nursery: Worker, tmp_path: Path
) -> None:
    """Of a durable topic: it is finished without the GIL."""
    engine = make_engine(data_dir=tmp_path)
    holder = LockHolder(nursery, make_engine.name_of(engine), tmp_path / "log")
    with engine.connect() as conn:
        topic = conn.topic("t", durable=True)
        consumer = topic.channel("k").consumer()
        topic.publish("a")
        message = consumer.get(PATIENCE)
        holder.hold()
        try:
            finishing = Call(message.finish)
            wait_until(
                lambda: any(
                    frame.f_code is Message.finish.__code__
                    for frame in sys._current_frames().values()
                ),
                "it is in C",
            )
            consumer.draining = True
            assert not finishing.ended
        finally:
            holder.release()
        finishing.result()
        assert message.finished
        assert not consumer._answered.empty()


# ---- whose the transaction is --------------------------------------------------------------------


def test_whose_it_is_is_asked_of_python(conn: pynotify.Connection, left: list[str]) -> None:
    """Where gevent has patched that, Python code answers, which may raise or say anything."""
    topic = conn.topic("t")
    consumer = topic.channel("k").consumer()
    topic.publish("a")
    message = consumer.get(PATIENCE)

    def raising() -> int:
        raise ZeroDivisionError

    things: list[tuple[Any, str, Callable[[], object]]] = [
        (topic, "_owner", lambda: topic.publish("x")),
        (topic, "_owner", lambda: topic.publish_many(["x"])),
        (conn, "_owner", lambda: conn.notify("c", "x")),
        (conn, "_owner", lambda: conn.notify("c", "x", headers={"k": "v"})),
        (conn, "_owner", lambda: conn.notify_many("c", ["x"])),
        (consumer, "owner", message.finish),
    ]
    with conn.transaction():
        for thing, name, call in things:
            asked = getattr(thing, name)
            setattr(thing, name, raising)
            with pytest.raises(ZeroDivisionError):
                call()
            setattr(thing, name, lambda: "not a number")
            left.clear()
            call()
            assert len(left) == 1
            setattr(thing, name, asked)
        raise pynotify.Rollback


def test_one_that_was_cleared_takes_nothing(conn: pynotify.Connection) -> None:
    """The collector may clear it before the __del__ of a program that uses it."""
    cleared = Pending.__new__(Pending)
    for name in ("_native", "failed", "prepared", "committing"):
        with pytest.raises(AttributeError):
            getattr(cleared, name)
    with pytest.raises(TypeError, match="cannot be deleted"):
        del cleared._native
    topic = conn.topic("t")
    owners: dict[Any, Any] = conn._transactions  # type: ignore[assignment]
    for found in (cleared, object()):
        owners[threading.get_ident()] = found
        for call in (lambda: topic.publish("x"), lambda: conn.notify("c", "x")):
            with pytest.raises(AttributeError):
                call()
        owners.clear()


# ---- waiting, closing ----------------------------------------------------------------------------


def test_other_threads_run_while_one_waits(
    conn: pynotify.Connection, lock_holder: LockHolder
) -> None:
    topic = conn.topic("t")
    consumer = topic.channel("k").consumer(max_in_flight=2)
    topic.publish("a")
    message = consumer.get(PATIENCE)

    def in_block(call: Callable[[], object]) -> None:
        with conn.transaction():
            call()

    lock_holder.hold()
    try:
        calls = [
            Call(in_block, lambda: topic.publish("b")),
            Call(in_block, lambda: topic.publish_many(["c"])),
            Call(in_block, message.finish),
            Call(topic.publish_many, ["d"]),
        ]
        wait_until(lambda: len(conn._transactions) == 3, "they have begun")
        for _ in range(100):
            assert sys.getswitchinterval() > 0  # this thread has the GIL
        assert not any(call.ended for call in calls)
    finally:
        lock_holder.release()
    for call in calls:
        call.result()
    assert sorted(bodies(topic)) == ["b", "c", "d"]
    assert topic.channel("k").stats().finished == 4


@pytest.mark.parametrize("durable", [False, True], ids=["memory", "durable"])
def test_closing_beside_calls(make_engine: EngineFactory, tmp_path: Path, durable: bool) -> None:
    """From another thread, at any place of them."""
    engine = make_engine(data_dir=tmp_path)

    def work(conn: pynotify.Connection, topic: Topic, consumer: Consumer) -> None:
        while True:
            with conn.transaction():
                topic.publish_many(["x"] * 20)
                topic.publish("x")
                conn.notify("c", "x")
            for _ in range(21):
                consumer.get(0).finish()
            topic.publish("x")
            message = consumer.get(0)
            with conn.transaction():
                message.finish()

    for _ in range(10):
        conn = engine.connect()
        topic = conn.topic("t", durable=durable)
        consumer = topic.channel("k").consumer(max_in_flight=100)
        topic.channel("k").empty()
        call = Call(work, conn, topic, consumer)
        wait_until(lambda topic=topic: topic.channel("k").stats().finished > 30, "it works")
        conn.close()
        with pytest.raises((pynotify.InterfaceError, pynotify.MessageNotInFlight)):
            call.result()
        del call, conn, topic, consumer
    assert engine.check().ok


def test_threads_that_get_of_a_durable_topic(make_engine: EngineFactory, tmp_path: Path) -> None:
    """Each message once, with its own body: the core hands out one at a time."""
    with make_engine(data_dir=tmp_path).connect() as conn:
        topic = conn.topic("t", durable=True, fsync="none")
        consumer = topic.channel("k").consumer(max_in_flight=100)
        sent = [f"{i}" * (i % 50 + 1) for i in range(3000)]

        def take() -> list[str]:
            found = []
            while True:
                try:
                    message = consumer.get(0)
                except pynotify.Timeout:
                    return found
                found.append(message.body.decode())
                message.finish()

        before = sys.getswitchinterval()
        sys.setswitchinterval(1e-6)
        try:
            topic.publish_many(sent)
            calls = [Call(take) for _ in range(4)]
            got = [body for call in calls for body in call.result()]
        finally:
            sys.setswitchinterval(before)
        assert sorted(got) == sorted(sent)
        assert topic.channel("k").stats().finished == len(sent)


# ---- memory --------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["publish", "publish_many", "notify", "notify_many"])
def test_no_memory_in_a_transaction(segment_name: str, engine: pynotify.Engine, how: str) -> None:
    """Once, or not at all and then it raises; the id of what was published may have no memory."""

    def all_places() -> list[str]:
        wrong: list[str] = []
        failures = 0
        with pynotify.connect(segment_name) as conn:
            topic = conn.topic("t")
            topic.channel("k")
            conn.listen("c")
            calls: dict[str, Callable[[str], object]] = {
                "publish": topic.publish,
                "publish_many": lambda text: topic.publish_many([text]),
                "notify": lambda text: conn.notify("c", text),
                "notify_many": lambda text: conn.notify_many("c", [text]),
            }
            for place in range(25):
                text = f"{place}"
                with conn.transaction():
                    _, failed = without_memory_at(place, lambda text=text: calls[how](text))
                    failures += failed
                got = bodies(topic) + payloads(conn.poll())
                if got != [text] and not (failed and got == []):
                    wrong.append(f"{place}: {failed}, {got}")
        return wrong if failures else ["no failure"]

    assert in_child(all_places) == []


def test_no_memory_for_getting_of_a_durable_topic(
    make_engine: EngineFactory, tmp_path: Path
) -> None:
    """What raises has put the message back in front, as if it had not been delivered."""
    engine = make_engine(data_dir=tmp_path)
    name = make_engine.name_of(engine)

    def all_places() -> list[str]:
        wrong: list[str] = []
        failures = 0
        with pynotify.connect(name) as conn:
            topic = conn.topic("t", durable=True, fsync="none")
            with topic.channel("k").consumer(max_in_flight=1) as consumer:
                for place in range(1, 40):
                    topic.publish_many([f"{place} first", f"{place} second"])
                    message, failed = without_memory_at(place, lambda: consumer.get(0))
                    failures += failed
                    got = []
                    for each in (message or consumer.get(0), None):
                        taken = each or consumer.get(0)
                        got.append((taken.body.decode(), taken.attempts))
                        taken.finish()
                    if got != [(f"{place} first", 1), (f"{place} second", 1)]:
                        wrong.append(f"{place}: {failed}, {got}")
        return wrong if failures > 3 else [f"only {failures} failures"]

    assert in_child(all_places) == []


def test_nothing_is_kept(conn: pynotify.Connection) -> None:
    topic = conn.topic("t")
    conn.listen("c")
    with topic.channel("k").consumer(max_in_flight=100) as consumer:

        def one(name: str) -> None:
            with conn.transaction():
                topic.publish(name)
                topic.publish_many([name, name.encode()], ttl=60)
                conn.notify("c", name)
                conn.notify_many("c", [name, f"{name}s"])
                with pytest.raises(TypeError):
                    topic.publish(1)  # type: ignore[arg-type]
                with pytest.raises(TypeError):
                    topic.publish_many([name, 1])  # type: ignore[list-item]
            with pytest.raises(pynotify.InFailedTransaction), conn.transaction():
                with pytest.raises(pynotify.ProgrammingError):
                    topic.publish("")
                with pytest.raises(pynotify.InFailedTransaction):
                    topic.publish(name)
            messages = [consumer.get(0) for _ in range(3)]
            with conn.transaction():
                for message in messages:
                    message.finish()
            conn.poll()

        assert_forgotten(one)
        gc.collect()
        before = [sys.getrefcount(thing) for thing in (topic, consumer, conn._handle, conn)]
        for _ in range(100):
            one("payload of its own")
        gc.collect()
        after = [sys.getrefcount(thing) for thing in (topic, consumer, conn._handle, conn)]
        assert after == before


def test_a_finish_that_is_not_synced_has_happened(
    make_engine: EngineFactory, tmp_path: Path
) -> None:
    """Of C's call: the end of a `with` block does not do it again."""
    seccomp = pytest.importorskip("seccomp")
    if not seccomp.supported():
        pytest.skip("the numbers of this machine's system calls are not known")
    engine = make_engine(data_dir=tmp_path)
    name = make_engine.name_of(engine)

    def unsynced() -> list[str]:
        told = []
        conn = pynotify.connect(name)
        topic = conn.topic("t", durable=True, fsync="always")
        consumer = topic.channel("k").consumer()
        topic.publish("a")
        message = consumer.get(PATIENCE)
        seccomp.refuse("fdatasync")
        try:
            with message:
                message.finish()
        except pynotify.SyncFailed:
            told.append("not synced")
        if message.answered and message.finished:
            told.append("finished")
        told.append(f"{topic.stats().unfinished} left")
        return told

    assert in_child(unsynced) == ["not synced", "finished", "0 left"]


def test_other_threads_run_while_a_durable_topic_is_waited_for(
    make_engine: EngineFactory, nursery: Worker, tmp_path: Path
) -> None:
    engine = make_engine(data_dir=tmp_path)
    holder = LockHolder(nursery, make_engine.name_of(engine), tmp_path / "log")
    with engine.connect() as conn:
        topic = conn.topic("t", durable=True)
        consumer = topic.channel("k").consumer(max_in_flight=1)
        topic.publish_many(["a", "b"])
        message = consumer.get(PATIENCE)
        holder.hold()
        try:
            finishing, getting = Call(message.finish), Call(consumer.get, PATIENCE)
            for _ in range(100):
                assert sys.getswitchinterval() > 0  # this thread has the GIL
            assert not (finishing.ended or getting.ended)
        finally:
            holder.release()
        finishing.result()
        assert getting.result().body == b"b"
        assert message.finished
