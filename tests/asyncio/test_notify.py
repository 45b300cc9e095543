"""AsyncConnection mirrors Connection; sending, waiting for others, and sending at once."""

from __future__ import annotations

import asyncio
import inspect
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import NoReturn

import pytest

import pynotify
from locked import LockHolder
from receiving import PATIENCE, payloads
from sessions import Connect, EngineFactory
from tasks import PAGE, AsyncConnections, Counter, FullQueue, settled, turns, until, waiting_threads

PLAIN = {
    "connect",  # an `Opening`, which is a coroutine and a context
    "add_notify_handler",
    "fileno",
    "generation",
    "notifies",
    "notify_nowait",
    "remove_notify_handler",
    "subscribe",
    "topic",
    "transaction",
}


class NoExecutor(ThreadPoolExecutor):
    """Of a loop that has better things to do."""

    def submit(self, *_arguments: object, **_options: object) -> NoReturn:  # type: ignore[override]
        raise AssertionError("the executor is the program's")


def public(kind: type) -> set[str]:
    return {name for name in dir(kind) if not name.startswith("_")}


def test_it_mirrors_connection() -> None:
    """Coroutines are all but properties and those that need not wait."""
    more = {"add_listener", "connect", "notify_nowait", "remove_listener"}
    assert public(pynotify.AsyncConnection) == public(pynotify.Connection) | more
    for name in public(pynotify.AsyncConnection):
        member = inspect.getattr_static(pynotify.AsyncConnection, name)
        if isinstance(member, property):
            assert isinstance(inspect.getattr_static(pynotify.Connection, name), property)
        else:
            function = getattr(pynotify.AsyncConnection, name)
            assert inspect.iscoroutinefunction(function) != (name in PLAIN), name
            assert inspect.getdoc(function), name


def parameters(function: Callable[..., object]) -> list[tuple[str, object, object]]:
    """Without self and their types, which a function of C does not tell."""
    _, *found = inspect.signature(function).parameters.values()
    return [(parameter.name, parameter.kind, parameter.default) for parameter in found]


def test_the_arguments_are_the_same() -> None:
    for name in public(pynotify.Connection):
        ours = getattr(pynotify.AsyncConnection, name)
        theirs = getattr(pynotify.Connection, name)
        if callable(theirs):
            assert parameters(ours) == parameters(theirs), name
    for name in ("next", "start", "close"):
        ours = set(inspect.signature(getattr(pynotify.AsyncSubscription, name)).parameters)
        theirs = set(inspect.signature(getattr(pynotify.Subscription, name)).parameters)
        assert theirs - ours <= {"daemon"}, name
    assert public(pynotify.AsyncSubscription) == public(pynotify.Subscription)


async def test_connect_and_properties(kind: str, new_name: object) -> None:
    name = new_name()  # type: ignore[operator]
    connecting = pynotify.AsyncConnection.connect(name, database="d", queue_pages=64)
    async with await connecting as conn:
        assert isinstance(conn, pynotify.AsyncConnection)
        assert conn.pid == os.getpid()
        assert conn.database == "d"
        assert conn.closed is False
        assert conn.in_transaction is False
        with pynotify.open(name) as engine:
            stat = engine.stat()
            assert [(b.backend_id, b.database) for b in stat.backends] == [(conn.backend_id, "d")]
            assert stat.queue_pages == 64
    assert conn.closed
    await conn.close()
    with pynotify.open(name) as engine:
        assert engine.stat().backends == []
    with pytest.raises(pynotify.InterfaceError):
        await conn.notify("c")
    with pytest.raises(pynotify.InterfaceError):
        conn.transaction()


async def test_connect_says_what_is_wrong(segment_name: str) -> None:
    for options in ({"queue_pages": 1}, {"wakeup": "telephone"}):
        with pytest.raises(ValueError, match=r"queue_pages|wakeup"):
            await pynotify.AsyncConnection.connect(segment_name, **options)
    with pytest.raises(pynotify.ProgrammingError):
        await pynotify.AsyncConnection.connect("a/b")
    with pytest.raises(TypeError):
        await pynotify.AsyncConnection.connect(segment_name, color="red")


async def test_notify_reaches_other_kinds_of_connections(
    kind: str, aconnect: AsyncConnections, connect: Connect
) -> None:
    conn, listener = await aconnect(), connect()
    listener.listen("c")
    assert await conn.notify("c", "text") is None
    await conn.notify("c", b"\xff\0")
    await conn.notify("c", memoryview(bytearray(b"view")))
    await conn.notify("c")
    conn.notify_nowait("c", "nowait")
    assert await conn.notify_many("c", ["a", "b", "a"]) == 2
    assert await conn.notify_many("c", ("a", "a"), dedup=False) == 2
    assert await conn.notify_many("c", iter(["z"])) == 1
    data = [message.data for message in listener.poll()]
    assert data == [b"text", b"\xff\0", b"view", b"", b"nowait", *(b"a", b"b", b"a", b"a", b"z")]
    assert 0 <= await conn.queue_usage() < 1


async def test_bad_arguments(aconnect: AsyncConnections) -> None:
    conn = await aconnect()
    with pytest.raises(pynotify.InvalidChannelName):
        await conn.notify("")
    with pytest.raises(pynotify.PayloadTooLong):
        await conn.notify("c", "x" * 8000)
    with pytest.raises(TypeError):
        await conn.notify("c", None)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        await conn.notify(5)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        await conn.notify_many("c", "one payload")
    with pytest.raises(pynotify.InvalidChannelName):
        await conn.listen("good", "x" * 64)
    assert await conn.listening_channels() == frozenset()
    with pytest.raises(pynotify.InvalidChannelName):
        conn.notify_nowait("")


async def test_listening_channels(kind: str, aconnect: AsyncConnections) -> None:
    conn = await aconnect()
    await conn.listen("a", "b", "c")
    await conn.listen()
    assert await conn.listening_channels() == {"a", "b", "c"}
    await conn.unlisten("b", "unknown")
    await conn.unlisten()
    assert await conn.listening_channels() == {"a", "c"}
    await conn.unlisten_all()
    assert await conn.listening_channels() == frozenset()


# ---- while another process holds the writer lock -----------------------------------------------


async def test_calls_wait_for_the_lock_and_the_loop_goes_on(
    kind: str, aconnect: AsyncConnections, connect: Connect, lock_holder: LockHolder
) -> None:
    conn, listener = await aconnect(), connect()
    listener.listen("c")
    await conn.listen("other")
    lock_holder.hold()
    async with Counter() as counter, asyncio.TaskGroup() as group:
        work = [
            group.create_task(conn.notify("c", "1")),
            group.create_task(conn.notify_many("c", ["2", "3"])),
            group.create_task(conn.listen("d")),
            group.create_task(conn.unlisten("other")),
            group.create_task(conn.queue_usage()),
            group.create_task(_in_a_transaction(conn)),
        ]
        await counter.goes_on()
        assert await conn.poll() == []
        assert not any(task.done() for task in work)
        lock_holder.release()
    assert sorted(payloads(listener.poll())) == ["1", "2", "3", "4"]
    assert await conn.listening_channels() == {"d"}


async def test_headers_are_those_of_the_call(
    aconnect: AsyncConnections, connect: Connect, lock_holder: LockHolder
) -> None:
    """Whatever the program does to its own, while the call waits for the lock."""
    conn, listener = await aconnect(), connect()
    topic, channel = conn.topic("t"), listener.topic("t").channel("workers")
    listener.listen("c", "d", "e")
    await topic.publish("first")
    pubsub = pynotify.AsyncPubSub(conn)
    await pubsub.subscribe("other")
    headers = {"k": "v"}
    lock_holder.hold()
    async with asyncio.TaskGroup() as group:
        work = [
            group.create_task(conn.notify("c", "1", headers=headers)),
            group.create_task(conn.notify_many("d", ["2"], headers=headers)),
            group.create_task(pubsub.publish("e", "3", headers=headers)),
            group.create_task(pubsub.publish("e", bytes(20_000), headers=headers)),
            group.create_task(topic.publish("4", headers=headers)),
            group.create_task(topic.publish_many(["5"], headers=headers)),
        ]
        await turns(20)
        assert not any(task.done() for task in work)
        headers |= {"k": "too late", "n": 1}  # type: ignore[dict-item]
        lock_holder.release()
    heard = [message.headers for message in listener.poll()]  # type: ignore[union-attr]
    assert [each for each in heard if each] == [{"k": "v"}] * 4
    with channel.consumer(max_in_flight=3) as consumer:
        taken = [consumer.get(PATIENCE) for _ in range(3)]
        assert [message.headers for message in taken] == [{}, {"k": "v"}, {"k": "v"}]
    await pubsub.close()


async def _in_a_transaction(conn: pynotify.AsyncConnection) -> None:
    async with conn.transaction() as tx:
        await conn.notify("c", "4")
        await tx.prepare()


async def test_one_thread_waits_for_all_tasks(
    aconnect: AsyncConnections, lock_holder: LockHolder
) -> None:
    """And none of the loop's executor, which is for the program."""
    asyncio.get_running_loop().set_default_executor(NoExecutor())
    conn = await aconnect()
    lock_holder.hold()
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(conn.notify("c", str(number))) for number in range(1000)]
        await settled(tasks[-1])
        assert waiting_threads() == 1
        assert not any(task.done() for task in tasks)
        lock_holder.release()
    await conn.close()


@pytest.mark.full
async def test_the_lock_is_not_waited_for_without_end(
    aconnect: AsyncConnections, lock_holder: LockHolder
) -> None:
    conn = await aconnect()
    lock_holder.hold()
    first = asyncio.create_task(conn.notify("c"))
    await asyncio.sleep(1)
    second = asyncio.create_task(conn.listen("c"))
    with pytest.raises(pynotify.LockTimeout, match=str(lock_holder.pid)):
        await first
    assert not second.done()
    with pytest.raises(pynotify.LockTimeout, match=str(lock_holder.pid)):
        await second
    lock_holder.release()
    assert await conn.listening_channels() == frozenset()
    await conn.notify("c")


async def test_nowait_does_not_wait_for_the_lock(
    kind: str, aconnect: AsyncConnections, connect: Connect, lock_holder: LockHolder
) -> None:
    conn, listener = await aconnect(), connect()
    listener.listen("c")
    lock_holder.hold()
    with pytest.raises(pynotify.LockTimeout, match=str(lock_holder.pid)):
        conn.notify_nowait("c", "too early")
    async with conn.transaction():
        conn.notify_nowait("c", "in the transaction")
        lock_holder.release()
    conn.notify_nowait("c", "now")
    assert payloads(listener.poll()) == ["in the transaction", "now"]


async def test_nowait_in_a_callback(aconnect: AsyncConnections) -> None:
    """Where no task runs, and so none has a transaction."""
    conn = await aconnect()
    await conn.listen("c")
    async with conn.transaction():
        asyncio.get_running_loop().call_soon(conn.notify_nowait, "c", "called")
        await asyncio.sleep(0)
        await conn.notify("c", "in the transaction")
    assert payloads(await conn.poll()) == ["called", "in the transaction"]


async def test_the_lock_of_a_dead_process(
    aconnect: AsyncConnections, lock_holder: LockHolder
) -> None:
    """A waiting task goes on as soon as the holder is dead."""
    conn = await aconnect()
    await conn.listen("c")
    lock_holder.hold()
    task = asyncio.create_task(conn.notify("c", "x"))
    await settled(task)
    lock_holder.kill()
    await task
    assert payloads(await conn.poll()) == ["x"]


# ---- a full queue ------------------------------------------------------------------------------


async def test_nowait_does_not_wait_for_room(
    kind: str, aconnect: AsyncConnections, make_engine: EngineFactory, connect: Connect
) -> None:
    full = FullQueue(make_engine, connect, full_timeout=1000.0)
    conn = await aconnect(full.name)
    full.fill(conn)
    with pytest.raises(pynotify.QueueFull) as caught:
        conn.notify_nowait("c", PAGE)
    assert caught.value.sqlstate == "54000"
    assert full.make_room() == [str(number) for number in range(full.sent)]
    conn.notify_nowait("c", PAGE)


async def test_calls_wait_for_room_and_the_loop_goes_on(
    kind: str, aconnect: AsyncConnections, make_engine: EngineFactory, connect: Connect
) -> None:
    full = FullQueue(make_engine, connect, full_timeout=1000.0)
    conn = await aconnect(full.name)
    await conn.listen("d")
    full.fill(conn)
    async with Counter() as counter, asyncio.TaskGroup() as group:
        work = [
            group.create_task(conn.notify("c", f"1 {PAGE}")),
            group.create_task(conn.notify_many("c", [f"2 {PAGE}", f"3 {PAGE}"])),
            group.create_task(_with_listen(conn)),
        ]
        await counter.goes_on()
        assert await conn.poll() == []
        assert await conn.listening_channels() == {"d"}
        assert not any(task.done() for task in work)
        # Room is made while it is read, so what waits for it may come at its end already.
        received = full.make_room()
        assert received[: full.sent] == [str(number) for number in range(full.sent)]
    assert sorted([*received[full.sent :], *full.make_room()]) == ["1", "2", "3", "4"]
    assert await conn.listening_channels() == {"d", "e"}
    assert not conn.in_transaction


async def _with_listen(conn: pynotify.AsyncConnection) -> None:
    async with conn.transaction() as tx:
        await conn.notify("c", f"4 {PAGE}")
        await conn.listen("e")
        await tx.prepare()


async def test_one_call_waits_for_room_for_all_tasks(
    kind: str, aconnect: AsyncConnections, make_engine: EngineFactory, connect: Connect
) -> None:
    """In one thread, until a message is read; then all that fit are sent."""
    asyncio.get_running_loop().set_default_executor(NoExecutor())
    full = FullQueue(make_engine, connect, full_timeout=1000.0)
    conn = await aconnect(full.name)
    full.fill(conn)
    async with asyncio.TaskGroup() as group:
        for number in range(200):
            group.create_task(conn.notify("c", f"{number} {PAGE}"))
        await turns(20)
        assert waiting_threads() == 1
        heard: list[str] = []
        while len(heard) < full.sent + 200:
            heard += full.make_room()
            await turns(1)
    assert sorted(heard[full.sent :]) == sorted(str(number) for number in range(200))


async def test_closing_a_laggard_does_not_wait_for_the_senders_that_wait_for_it(
    kind: str, aconnect: AsyncConnections, make_engine: EngineFactory
) -> None:
    engine = make_engine(queue_pages=64, on_full="block", full_timeout=1000.0)
    name = make_engine.name_of(engine)
    conn, laggard = await aconnect(name), await aconnect(name)
    await laggard.listen("c")
    async with asyncio.TaskGroup() as group:
        for number in range(150):
            task = group.create_task(conn.notify("c", f"{number} {PAGE}"))
        await settled(task)
        await laggard.close()


async def test_nor_does_rolling_back_what_has_reserved_it(
    kind: str, aconnect: AsyncConnections, make_engine: EngineFactory
) -> None:
    engine = make_engine(queue_pages=64, on_full="block", full_timeout=1000.0)
    name = make_engine.name_of(engine)
    conn, preparer = await aconnect(name), await aconnect(name)
    await preparer.listen("c")
    async with asyncio.TaskGroup() as group, preparer.transaction() as tx:
        await preparer.notify_many("c", [f"{number} {PAGE}" for number in range(60)])
        await tx.prepare()
        for number in range(50):
            task = group.create_task(conn.notify("c", f"{number} {PAGE}"))
        await settled(task)
        raise pynotify.Rollback(tx)


async def test_senders_that_waited_long_enough_do_not_wait_again(
    aconnect: AsyncConnections, make_engine: EngineFactory, connect: Connect
) -> None:
    """Not one after the other: all have waited as long as the first."""
    full = FullQueue(make_engine, connect, full_timeout=0.5)
    conn = await aconnect(full.name)
    full.fill(conn)
    loop = asyncio.get_running_loop()
    began = loop.time()
    tasks = [asyncio.create_task(conn.notify("c", PAGE)) for _ in range(50)]
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(result) for result in results] == [pynotify.QueueFull] * 50
    assert loop.time() - began < 5


async def test_room_that_does_not_come(
    aconnect: AsyncConnections, make_engine: EngineFactory, connect: Connect
) -> None:
    """QueueFull, and the transaction is over."""
    full = FullQueue(make_engine, connect, full_timeout=0.05)
    conn = await aconnect(full.name)
    full.fill(conn)
    with pytest.raises(pynotify.QueueFull):
        await conn.notify("c", PAGE)
    with pytest.raises(pynotify.QueueFull):
        async with conn.transaction():
            await conn.notify("c", PAGE)
    await conn.begin()
    await conn.notify("c", PAGE)
    with pytest.raises(pynotify.QueueFull):
        await conn.commit()
    assert not conn.in_transaction
    with pytest.raises(pynotify.QueueFull):
        async with conn.transaction() as tx:
            await conn.notify("c", PAGE)
            await tx.prepare()
    full.make_room()
    await conn.notify("c", "now")
    assert full.make_room() == ["now"]


async def test_a_reader_in_the_same_loop_makes_room(
    aconnect: AsyncConnections, make_engine: EngineFactory
) -> None:
    """A laggard that is a task of the loop can read while the notifier waits for it."""
    engine = make_engine(queue_pages=64, on_full="block", full_timeout=1000.0)
    name = make_engine.name_of(engine)
    sender, laggard = await aconnect(name), await aconnect(name)
    await laggard.listen("c")

    async def send() -> None:
        for number in range(300):
            await sender.notify("c", f"{number} {PAGE}")

    heard = []
    async with asyncio.TaskGroup() as group:
        task = group.create_task(send())
        await until(lambda: laggard_is_behind(engine) or task.done(), "the queue is full")
        async for message in laggard.notifies(stop_after=300):
            heard.append(message.payload.partition(" ")[0])
    assert heard == [str(number) for number in range(300)]


def laggard_is_behind(engine: pynotify.Engine) -> bool:
    stat = engine.stat()
    return stat.head - stat.tail > 0.9 * 64 * 8192
