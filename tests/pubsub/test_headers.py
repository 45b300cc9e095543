"""Headers of objects: they go along beside what is published, whatever it goes as."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import pickle
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest

import pynotify
from bridge.conftest import NewBridge, new_bridge
from programs import require_module
from pubsub.arrays import frame, in_queue
from pubsub.conftest import NewPubSub
from pubsub.objects import take
from pubsub.server import Server
from pynotify._ffi import lib
from pynotify._headers import Taken
from pynotify.pubsub import Received
from receiving import PATIENCE
from sessions import Connect, EngineFactory
from waiting import Call

__all__ = ["new_bridge"]

TRACE = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "ü": ""}
LONG = bytes(20_000)
LARGE = bytes(range(256)) * 8_000
"""Of several transactions, where the queue is small."""


def headed(received: list[Received]) -> list[tuple[Any, dict[str, str]]]:
    """The object and the headers of each."""
    return [(each.obj, each.headers) for each in received]


@pytest.fixture
def small(make_engine: EngineFactory) -> pynotify.Engine:
    return make_engine(queue_pages=64)  # 512 KiB


@pytest.fixture
def sender(connect: Connect, new_pubsub: NewPubSub) -> pynotify.PubSub:
    return new_pubsub(connect())


@pytest.fixture
def listener(connect: Connect, new_pubsub: NewPubSub) -> pynotify.PubSub:
    found = new_pubsub(connect())
    found.subscribe("c")
    return found


# ---- sending -------------------------------------------------------------------------------------


@pytest.mark.parametrize("raw", [False, True], ids=["", "raw"])
def test_they_arrive_with_their_object(
    connect: Connect, new_pubsub: NewPubSub, listener: pynotify.PubSub, raw: bool
) -> None:
    """Of one segment and of several."""
    sender = new_pubsub(connect(), raw=raw)
    sent = [None, "plain", "é", b"", LONG, {"k": "v" * 20_000}, "x" * 20_000]
    for number, obj in enumerate(sent):
        sender.publish("c", obj, headers={"n": str(number)})
        sender.publish("c", obj)
        sender.publish("c", obj, headers=MappingProxyType(TRACE))
    sender.publish("c", headers=TRACE)
    expected: list[tuple[Any, dict[str, str]]] = []
    for number, obj in enumerate(sent):
        expected += [(obj, {"n": str(number)}), (obj, {}), (obj, TRACE)]
    assert headed(take(listener, len(expected) + 1)) == [*expected, (None, TRACE)]
    assert listener.stats() == pynotify.PubSubStats(len(expected) + 1, 0, 0, 0, 0)


def test_a_large_object_has_them(
    small: pynotify.Engine, connect: Connect, new_pubsub: NewPubSub
) -> None:
    """It comes in parts, of several transactions, of which the last one has them."""
    conn = connect(to=small)
    sender, listener = new_pubsub(connect(to=small)), new_pubsub(conn)
    listener.subscribe("c")
    parts = conn.subscribe("c")

    def publish() -> None:
        sender.publish("c", LARGE, headers=TRACE)
        sender.publish("c", LARGE)
        sender.publish("c", LARGE, headers={"k": "v"})

    sending = Call(publish)
    expected = [(LARGE, TRACE), (LARGE, {}), (LARGE, {"k": "v"})]
    assert headed(take(listener, 3)) == expected
    sending.result()
    notes: list[Any] = []
    with contextlib.suppress(pynotify.Timeout):
        while True:
            notes.append(parts.next(0))
    assert len({note.seq for note in notes}) > 3 * 3
    assert [note.headers for note in notes if note.headers] == [TRACE, {"k": "v"}]


@pytest.mark.parametrize("count", [10, 1 << 17], ids=["in the queue", "shared"])
def test_an_array_has_them(sender: pynotify.PubSub, listener: pynotify.PubSub, count: int) -> None:
    sender.publish("c", frame(1, count), headers=TRACE)
    sender.publish("c", frame(2, count))
    first, second = take(listener, 2)
    assert in_queue(first.obj) == (count == 10)
    assert (first.obj[0], first.headers) == (1, TRACE)
    assert (second.obj[0], second.headers) == (2, {})


def test_an_array_in_parts_has_them(
    small: pynotify.Engine, connect: Connect, new_pubsub: NewPubSub
) -> None:
    sender = new_pubsub(connect(to=small), max_shared=0)
    listener = new_pubsub(connect(to=small))
    listener.subscribe("c")
    sending = Call(lambda: sender.publish("c", frame(3), headers=TRACE))
    (received,) = take(listener, 1)
    sending.result()
    assert in_queue(received.obj)
    assert np.array_equal(received.obj, frame(3))
    assert received.headers == TRACE


def test_in_a_transaction(
    connect: Connect, new_pubsub: NewPubSub, listener: pynotify.PubSub
) -> None:
    """Equal objects stay two, each with its own; savepoints undo both."""
    conn = connect()
    sender = new_pubsub(conn)
    with conn.transaction():
        sender.publish("c", LONG, headers={"n": "1"})
        sender.publish("c", LONG, headers={"n": "2"})
        sender.publish("c", "x", headers={"n": "3"})
        sender.publish("c", "x", headers={"n": "4"})
        with conn.transaction():
            sender.publish("c", LONG, headers={"n": "undone"})
            raise pynotify.Rollback
        sender.publish("c", LARGE, headers={"n": "5"})
        assert listener.run(0) == 0
    assert headed(take(listener, 5)) == [
        (LONG, {"n": "1"}), (LONG, {"n": "2"}), ("x", {"n": "3"}), ("x", {"n": "4"}),
        (LARGE, {"n": "5"}),
    ]  # fmt: skip


@pytest.mark.parametrize("obj", ["x", LONG], ids=["one segment", "several"])
def test_an_object_is_one_transaction_that_is_as_large(
    connect: Connect, engine: pynotify.Engine, sender: pynotify.PubSub, obj: Any
) -> None:
    """Whatever its segments, the headers take room once."""
    conn = connect()
    conn.listen("c")
    most = {"k": "v" * 60_000}
    sizes = []
    for headers in (None, most):
        before = engine.stat()
        sender.publish("c", obj, headers=headers)
        after = engine.stat()
        assert after.commits - before.commits == 1
        sizes.append(after.head - before.head)
    without, with_headers = sizes
    assert 60_000 <= with_headers - without < 60_000 + 2 * 8_192
    notes = [note for note in conn.poll() if isinstance(note, pynotify.Notify)]
    half = len(notes) // 2
    assert [note.data for note in notes[:half]] == [note.data for note in notes[half:]]
    assert [bool(note.headers) for note in notes] == [False] * (len(notes) - 1) + [True]


@pytest.mark.parametrize("obj", ["x", LONG, frame(1)], ids=["one segment", "several", "array"])
@pytest.mark.parametrize(
    "headers", [{"k": 1}, {1: "v"}, {"k": None}, {"k": b"v"}, [("k", "v")], "k", 1, {b"k": "v"}]
)
def test_other_types(
    connect: Connect, new_pubsub: NewPubSub, listener: pynotify.PubSub, headers: Any, obj: Any
) -> None:
    conn = connect()
    sender = new_pubsub(conn)
    with pytest.raises(TypeError, match="header"):
        sender.publish("c", obj, headers=headers)
    with conn.transaction(), pytest.raises(TypeError, match="header"):
        sender.publish("c", obj, headers=headers)
    with pytest.raises(TypeError):
        sender.publish("c", obj, TRACE)  # type: ignore[misc]
    for nothing in (None, {}, MappingProxyType({})):
        sender.publish("c", "end", headers=nothing)
    assert headed(take(listener, 3)) == [("end", {})] * 3


def test_too_many_are_refused_before_anything_goes(
    small: pynotify.Engine, connect: Connect, new_pubsub: NewPubSub
) -> None:
    """The error is the core's, whose bound it is."""
    conn = connect(to=small)
    sender, listener = new_pubsub(conn), new_pubsub(connect(to=small))
    listener.subscribe("c")
    most = {"k": "v" * (lib.PN_NOTIFY_HEADERS_MAX - len('{"k":""}'))}
    more = {"k": most["k"] + "v"}
    texts = set()
    for obj in ("x", LONG, LARGE, frame(1)):
        commits = small.stat().commits
        with pytest.raises(pynotify.PayloadTooLong, match="headers too long") as caught:
            sender.publish("c", obj, headers=more)
        texts.add(str(caught.value))
        assert small.stat().commits == commits
    with pytest.raises(pynotify.PayloadTooLong) as caught:
        conn.notify("c", "x", headers=more)
    assert texts == {str(caught.value)}
    sending = Call(lambda: sender.publish("c", LARGE, headers=most))
    assert headed(take(listener, 1)) == [(LARGE, most)]
    sending.result()


def test_a_codec_that_fails_sends_nothing(
    connect: Connect, new_pubsub: NewPubSub, listener: pynotify.PubSub
) -> None:
    """One that fails to read makes a malformed segment, whose headers go with it."""

    class Strange:
        def encode(self, obj: Any) -> str:
            if obj == ["refused"]:
                raise ValueError("of the test")
            return "[1]"

        def decode(self, text: bytes) -> Any:
            raise LookupError("of the test")

    conn = connect()
    sender = new_pubsub(conn, codec=Strange())
    sender.subscribe("c")
    with pytest.raises(ValueError, match="of the test"):
        sender.publish("c", ["refused"], headers=TRACE)
    sender.publish("c", [1], headers=TRACE)
    sender.publish("c", "end")
    assert headed(take(listener, 2)) == [([1], TRACE), ("end", {})]
    assert headed(take(sender, 1)) == [("end", {})]
    assert sender.stats().malformed == 1


def test_a_malformed_segment_takes_its_headers_with_it(
    connect: Connect, listener: pynotify.PubSub
) -> None:
    conn = connect()
    conn.notify("c", b"$no base64!", headers={"n": "malformed"})
    conn.notify("c", b"#IWFi", headers={"n": "not the last"})
    conn.notify("c", b"$Y2Rl")
    conn.notify("c", b"#IWFi")
    conn.notify("c", b"$Y2Rl", headers={"n": "the last"})
    assert headed(take(listener, 2)) == [("abcde", {}), ("abcde", {"n": "the last"})]
    assert listener.stats().malformed == 1


# ---- receiving -----------------------------------------------------------------------------------


def test_they_are_no_part_of_the_value(sender: pynotify.PubSub, listener: pynotify.PubSub) -> None:
    sender.publish("c", {"a": 1}, headers=TRACE)
    (received,) = take(listener, 1)
    channel, obj, pid = received
    assert (channel, obj) == ("c", {"a": 1})
    assert received == Received("c", {"a": 1}, pid) == ("c", {"a": 1}, pid)
    assert repr(received) == f"Received(channel='c', obj={{'a': 1}}, pid={pid})"
    assert len(received) == 3
    received.headers["more"] = "changes nothing"
    assert received.headers == TRACE
    with pytest.raises(AttributeError):
        received.headers = {}  # type: ignore[misc]
    assert Received("c", 1, 2).headers == {}
    assert received._replace(obj=7).headers == TRACE
    assert received.__replace__(obj=7).headers == TRACE  # copy.replace(), since CPython 3.13


def test_a_pickle_has_them(sender: pynotify.PubSub, listener: pynotify.PubSub) -> None:
    for headers in (TRACE, None):
        sender.publish("c", [1], headers=headers)
        (received,) = take(listener, 1)
        for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
            again = pickle.loads(pickle.dumps(received, protocol))
            assert type(again) is Received
            assert (again, again.headers) == (received, headers or {})
        assert copy.deepcopy(received).headers == copy.copy(received).headers == (headers or {})


def test_a_handler_may_ask_for_them(
    sender: pynotify.PubSub, listener: pynotify.PubSub, caplog: pytest.LogCaptureFixture
) -> None:
    whole: list[Any] = []
    plain: list[Any] = []

    def failing(received: Received) -> None:
        raise LookupError(received.headers["ü"])

    listener.on("c", whole.append, received=True)
    listener.on("c", plain.append)
    listener.on("c", failing, received=True)
    sender.publish("c", [1], headers=TRACE)
    take(listener, 1)
    assert headed(whole) == [([1], TRACE)]
    assert isinstance(whole[0], Received)
    assert plain == [[1]]
    assert len(caplog.records) == 1
    for handler in (whole.append, failing):
        listener.off("c", handler)
    with pytest.raises(ValueError, match="no handler"):
        listener.off("c", failing)
    sender.publish("c", [2], headers=TRACE)
    take(listener, 1)
    assert (len(whole), plain) == (1, [[1], [2]])


def test_a_gap_goes_to_a_handler_once(
    make_engine: EngineFactory, connect: Connect, new_pubsub: NewPubSub
) -> None:
    engine = make_engine(on_full="drop-slowest", queue_pages=64)
    slow, sender = new_pubsub(connect(to=engine)), connect(to=engine)
    seen: list[Any] = []
    for channel in ("c", "d"):
        slow.subscribe(channel)
        slow.on(channel, seen.append, received=True)
    for _ in range(100):
        sender.notify("d", "!" + "x" * 7000)
    slow.run(0)
    (gap,) = [each for each in seen if isinstance(each.obj, pynotify.Gap)]
    assert (gap.channel, gap.pid, gap.headers) == (None, None, {})


def test_between_two_that_share_a_connection(connect: Connect, new_pubsub: NewPubSub) -> None:
    conn = connect()
    first, second = new_pubsub(conn), new_pubsub(conn)
    second.subscribe("c")
    with conn.subscribe("c") as raw:
        first.publish("c", "x", headers=TRACE)
        assert headed(take(second, 1)) == [("x", TRACE)]
        note = raw.next(0)
        assert isinstance(note, pynotify.Notify)
        assert note.headers == TRACE


# ---- tasks ---------------------------------------------------------------------------------------


async def atake(pubsub: pynotify.AsyncPubSub, count: int) -> list[Received]:
    found: list[Received] = []
    async with asyncio.timeout(PATIENCE):
        async for received in pubsub:
            found.append(received)
            if len(found) == count:
                break
    return found


def test_tasks(small: pynotify.Engine) -> None:
    """All kinds: one segment, several, shared, in parts; also what changes while it is sent."""
    sent: list[Any] = ["x", LONG, frame(4), LARGE]

    async def make() -> pynotify.AsyncConnection:
        return await pynotify.AsyncConnection.connect(small.name)

    async def play() -> list[Received]:
        async with pynotify.AsyncPubSub(make) as sender, pynotify.AsyncPubSub(make) as ps:
            await ps.subscribe("c")

            async def publish() -> None:
                for number, obj in enumerate(sent):
                    headers = {"n": str(number)}
                    publishing = asyncio.ensure_future(sender.publish("c", obj, headers=headers))
                    await asyncio.sleep(0)  # it has begun
                    headers["n"] = headers["more"] = "too late"
                    await publishing

            async with asyncio.TaskGroup() as group:
                group.create_task(publish())
                received = group.create_task(atake(ps, len(sent)))
            return received.result()

    found = asyncio.run(play())
    assert [each.headers for each in found] == [{"n": str(number)} for number in range(4)]
    assert [found[0].obj, found[1].obj, found[3].obj] == ["x", LONG, LARGE]
    assert np.array_equal(found[2].obj, sent[2])


def test_tasks_in_a_transaction_and_with_handlers(engine: pynotify.Engine) -> None:
    async def play() -> None:
        seen: list[Any] = []

        async def handle(received: Received) -> None:
            await asyncio.sleep(0)
            seen.append(received)

        async with (
            await pynotify.AsyncConnection.connect(engine.name) as conn,
            pynotify.AsyncPubSub(conn) as pubsub,
        ):
            await pubsub.subscribe("c")
            pubsub.on("c", handle, received=True)
            with pytest.raises(TypeError, match="header"):
                await pubsub.publish("c", "x", headers={"k": 1})  # type: ignore[dict-item]
            commits = engine.stat().commits
            await pubsub.publish("d", LONG, headers=TRACE)
            assert engine.stat().commits - commits == 1
            async with conn.transaction():
                await pubsub.publish("c", LONG, headers=TRACE)
                await pubsub.publish("c", LONG)
            assert await pubsub.run(0) == 2
        assert headed(seen) == [(LONG, TRACE), (LONG, {})]

    asyncio.run(play())


# ---- PostgreSQL ----------------------------------------------------------------------------------


def test_over_postgres_they_are_an_error(postgres: Server) -> None:
    """NOTIFY has no place for them, and what a program says must not vanish."""
    with postgres.connect() as conn, pynotify.PubSub(conn) as pubsub:
        pubsub.subscribe("headers")
        for obj in ("x", LONG):
            with pytest.raises(pynotify.ProgrammingError, match="has no headers") as caught:
                pubsub.publish("headers", obj, headers=TRACE)
        assert "Put what they say into the object" in str(caught.value)
        pubsub.publish("headers", "y", headers={})
        pubsub.publish("headers", "z", headers=Taken(TRACE, optional=True))
        assert headed(take(pubsub, 2)) == [("y", {}), ("z", {})]


def test_over_postgres_with_tasks(postgres: Server) -> None:
    import psycopg

    async def play() -> None:
        async with (
            await psycopg.AsyncConnection.connect(postgres.dsn, autocommit=True) as conn,
            pynotify.AsyncPubSub(conn) as pubsub,
        ):
            await pubsub.subscribe("headers")
            with pytest.raises(pynotify.ProgrammingError, match="has no headers"):
                await pubsub.publish("headers", "x", headers=TRACE)
            await pubsub.publish("headers", "y", headers=Taken(TRACE, optional=True))
            assert headed(await atake(pubsub, 1)) == [("y", {})]

    asyncio.run(play())


def test_on_a_channel_that_goes_upstream_they_stay_here(
    new_bridge: NewBridge,
    engine: pynotify.Engine,
    connect: Connect,
    new_pubsub: NewPubSub,
    postgres: Server,
) -> None:
    """Listeners there get the object alone; a publisher need not know of the bridge."""
    sender, here = new_pubsub(connect()), new_pubsub(connect())
    here.subscribe("headers-upstream")
    bridge = new_bridge(engine.name, postgres, "headers-upstream", both=True)
    bridge.await_listening("headers-upstream")
    with postgres.connect() as conn, pynotify.PubSub(conn) as there:
        there.subscribe("headers-upstream")
        for obj in ("x", LONG):
            sender.publish("headers-upstream", obj, headers=TRACE)
            assert headed(take(here, 1)) == [(obj, TRACE)]
            assert headed(take(there, 1)) == [(obj, {})]
        sender.publish("headers-upstream", frame(1, 10), headers=TRACE)
        (received,) = take(here, 1)
        assert (type(received.obj), received.headers) == (bytes, TRACE)
        there.publish("headers-upstream", "back")
        assert headed(take(here, 1)) == [("back", {})]


def test_a_trace_ends_over_postgres(postgres: Server) -> None:
    """It breaks no program that is traced; headers of the program's own are no context."""
    require_module("opentelemetry.sdk")
    from opentelemetry.sdk.trace import TracerProvider

    from pynotify.contrib.opentelemetry import Telemetry

    telemetry = Telemetry(tracer_provider=TracerProvider())

    async def play() -> list[Received]:
        import psycopg

        async with (
            await psycopg.AsyncConnection.connect(postgres.dsn, autocommit=True) as conn,
            pynotify.AsyncPubSub(conn) as pubsub,
        ):
            await pubsub.subscribe("traced")
            await telemetry.publish_object_async(pubsub, "traced", LONG)
            return await atake(pubsub, 1)

    with postgres.connect() as conn, pynotify.PubSub(conn) as pubsub:
        pubsub.subscribe("traced")
        telemetry.publish_object(pubsub, "traced", LONG)
        with pytest.raises(pynotify.ProgrammingError, match="has no headers"):
            telemetry.publish_object(pubsub, "traced", "x", headers={"k": "v"})
        assert headed(take(pubsub, 1)) == headed(asyncio.run(play())) == [(LONG, {})]
