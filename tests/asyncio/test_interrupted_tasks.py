"""Ctrl-C in the thread of an event loop, at every place of what its tasks and callbacks run.

It ends the task that it meets, and the loop; a program may run that again.  What was sent once is
received once, by a task that goes on or by the next call.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import threading
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest

import pynotify
from interrupting import WHOLE, At, at_places
from receiving import PATIENCE
from sessions import EngineFactory
from tasks import PAGE, turns

# A handler may also raise while a generator is closed, where Python ignores it.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


class Loop:
    """A loop, what its tasks use, and a connection of a thread that looks what there is."""

    def __init__(self, engine: pynotify.Engine, name: str) -> None:
        self.loop = asyncio.new_event_loop()
        self.conn = self.run(pynotify.AsyncConnection.connect(name))
        self.topic, self.achannel = self.run(self._new_topic())
        self.consumer = self.run(self._new_consumer())
        self.other = engine.connect()
        self.sender = self.other.topic("t")
        self.channel = self.sender.channel("c")
        self.others = self.channel.consumer(max_in_flight=8, max_attempts=0)

    async def _new_topic(self) -> tuple[pynotify.AsyncTopic, pynotify.AsyncChannel]:
        topic = self.conn.topic("t")
        return topic, topic.channel("c")

    async def _new_consumer(self) -> pynotify.AsyncConsumer:
        return await self.achannel.consumer(max_in_flight=8, max_attempts=0)

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self.loop.run_until_complete(asyncio.wait_for(work, PATIENCE))

    def interrupted(self, at: At, work: Coroutine[Any, Any, Any]) -> Any:
        """What `work` returns, also when another than its task was interrupted; None if not."""
        task = self.loop.create_task(work)
        at.attempt(lambda: self.loop.run_until_complete(task))
        self.go_on()
        if not task.done():
            with contextlib.suppress(KeyboardInterrupt):
                self.run(_end_of(task))
        return None if task.exception() else task.result()

    def go_on(self) -> None:
        """Do what the interrupted loop has left to do, a stop too."""
        for _ in range(3):
            with contextlib.suppress(KeyboardInterrupt):
                self.loop.call_soon(self.loop.stop)
                self.loop.run_forever()

    def left(self) -> list[bytes]:
        """Take and finish what is there; nothing is in flight."""
        found = []
        with contextlib.suppress(pynotify.Timeout):
            while True:
                message = self.others.get(0)
                found.append(message.body)
                message.finish()
        stats = self.channel.stats()
        assert (stats.depth, stats.in_flight, stats.deferred) == (0, 0, 0)
        return found

    def close(self) -> None:
        self.run(self.conn.close())
        self.other.close()
        self.loop.close()
        gc.collect()  # a task, its exception and the frames of that are a cycle


async def _end_of(task: asyncio.Task[Any]) -> None:
    await asyncio.wait([task])


@pytest.fixture
def ground(make_engine: EngineFactory) -> Iterator[Loop]:
    engine = make_engine()
    loop = Loop(engine, make_engine.name_of(engine))
    yield loop
    loop.close()
    assert engine.check().ok


GETTING: dict[str, Callable[[pynotify.AsyncConsumer], Coroutine[Any, Any, Any]]] = {
    "get": lambda consumer: consumer.get(PATIENCE),
    "get without a limit": lambda consumer: consumer.get(),
    "get(0)": lambda consumer: consumer.get(0),
    "anext": lambda consumer: consumer.__anext__(),
}


@pytest.mark.parametrize("whole", WHOLE)
@pytest.mark.parametrize("waits", [False, True], ids=["", "waiting"])
@pytest.mark.parametrize("how", GETTING)
def test_getting(ground: Loop, how: str, waits: bool, whole: bool) -> None:
    """The task has the message, or it is there for the next."""
    if waits and how == "get(0)":
        pytest.skip("it does not wait")

    def attempt(at: At) -> None:
        timer = threading.Timer(0.005 if waits else 0, ground.sender.publish, ["1"])
        timer.start()
        if not waits:
            timer.join()
        message = ground.interrupted(at, _awaiting(lambda: GETTING[how](ground.consumer)))
        timer.join()
        assert at.reached or message is not None
        if message is None:
            message = ground.run(ground.consumer.get(PATIENCE))
        assert (message.body, message.attempts) == (b"1", 1)
        ground.run(message.finish())
        assert not ground.consumer._waiters
        assert ground.left() == []

    at_places(attempt, whole=whole, exception=KeyboardInterrupt)


@pytest.mark.parametrize("whole", WHOLE)
def test_several_tasks_wait(ground: Loop, whole: bool) -> None:
    """Those that were not interrupted get what is there, in whichever callback it came."""

    def attempt(at: At) -> None:
        tasks = [ground.loop.create_task(ground.consumer.get(PATIENCE)) for _ in range(3)]
        ground.loop.run_until_complete(turns(3))
        ground.sender.publish_many(["1", "2", "3"])
        ground.interrupted(at, _all(tasks))
        with contextlib.suppress(KeyboardInterrupt):
            ground.run(_all(tasks))
        got = [task.result() for task in tasks if task.exception() is None]
        assert len(got) >= 2
        if len(got) == 2:
            got.append(ground.run(ground.consumer.get(PATIENCE)))
        assert sorted(message.body for message in got) == [b"1", b"2", b"3"]
        for message in got:
            assert message.attempts == 1
            ground.run(message.finish())
        assert ground.left() == []

    at_places(attempt, whole=whole, exception=KeyboardInterrupt)


async def _all(tasks: list[asyncio.Task[Any]]) -> None:
    await asyncio.wait(tasks)


@pytest.mark.parametrize("whole", WHOLE)
@pytest.mark.parametrize("good", [True, False], ids=["finishing", "failing"])
def test_run(ground: Loop, good: bool, whole: bool) -> None:
    """The message of the handler that was interrupted is finished, or goes back at once."""

    def attempt(at: At) -> None:
        ground.sender.publish("1")
        consumer = ground.achannel.consumer(max_in_flight=8, max_attempts=0)

        async def handler(message: pynotify.AsyncMessage) -> bool:
            await asyncio.sleep(0)
            consumer.draining = True
            return good

        async def run() -> None:
            await consumer.run(handler, (0.0, 0.0))

        ground.interrupted(at, run())
        ground.run(consumer.drain())  # what get() has left for the next call goes back
        found = []
        with contextlib.suppress(pynotify.Timeout):
            while True:
                found.append(ground.others.get(0))
        stats = ground.channel.stats()
        assert (stats.depth, stats.in_flight, stats.deferred) == (0, len(found), 0)
        for message in found:
            message.finish()
        if at.reached:
            assert len(found) < 2
        else:
            assert len(found) == (0 if good else 1)
        ground.run(consumer.close())

    at_places(attempt, whole=whole, exception=KeyboardInterrupt)


async def _in_block(conn: pynotify.AsyncConnection, message: pynotify.AsyncMessage) -> None:
    async with conn.transaction():
        await message.finish()
        await conn.topic("t").publish("2")


ANSWERS: dict[str, Callable[[Loop, pynotify.AsyncMessage], Coroutine[Any, Any, Any]]] = {
    "finish": lambda ground, message: message.finish(),
    "requeue": lambda ground, message: message.requeue(),
    "touch": lambda ground, message: message.touch(),
    "dead_letter": lambda ground, message: message.dead_letter(),
    "with": lambda ground, message: message.__aexit__(None, None, None),
    "in a transaction": lambda ground, message: _in_block(ground.conn, message),
    "publish": lambda ground, message: ground.topic.publish("2"),
    "publish_many": lambda ground, message: ground.topic.publish_many(["2"], headers={"a": "b"}),
    "cancel": lambda ground, message: ground.topic.cancel("0" * 16),
    "pause": lambda ground, message: ground.achannel.pause(),
    "stats": lambda ground, message: ground.topic.stats(),
    "drain": lambda ground, message: ground.consumer.drain(),
}


@pytest.mark.parametrize("whole", WHOLE)
@pytest.mark.parametrize("how", ANSWERS)
def test_answering(ground: Loop, how: str, whole: bool) -> None:
    """It has happened or not; no transaction is open, and the loop's thread may wait again."""

    def attempt(at: At) -> None:
        ground.sender.publish("1")
        consumer = ground.consumer = ground.run(ground._new_consumer())
        message = ground.run(consumer.get(PATIENCE))
        ground.interrupted(at, _awaiting(lambda: ANSWERS[how](ground, message)))
        ground.run(turns(2))  # the end of a task is told it by a callback
        assert not ground.conn._transactions
        assert not pynotify._ffi.lib.pn_set_never_wait(0)
        with contextlib.suppress(pynotify.MessageNotInFlight):
            ground.run(_released(message))
        ground.run(ground.achannel.unpause())
        ground.run(consumer.close())
        left = ground.left()
        if how == "in a transaction":
            assert left in ([b"1"], [b"2"]) if at.reached else left == [b"2"]
        elif how.startswith("publish"):
            assert left in ([b"1"], [b"1", b"2"]) if at.reached else len(left) == 2
        elif how in ("finish", "with", "dead_letter"):
            assert left in ([b"1"], []) if at.reached else left == []
        else:
            assert left == [b"1"]

    at_places(attempt, whole=whole, exception=KeyboardInterrupt)


async def _released(message: pynotify.AsyncMessage) -> None:
    message._consumer._left.append(message)
    message._consumer._release_left()


async def _awaiting(call: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    return await call()


# ---- subscriptions and PubSub --------------------------------------------------------------------

LARGE = "x" * 30_000
"""It takes several segments."""


@pytest.mark.parametrize("whole", WHOLE)
@pytest.mark.parametrize("waits", [False, True], ids=["", "waiting"])
@pytest.mark.parametrize("how", ["next", "notifies"])
def test_notifications(ground: Loop, how: str, waits: bool, whole: bool) -> None:
    """The task has the message, or it is there for the next."""

    async def listen() -> pynotify.AsyncSubscription:
        await ground.conn.listen("m")
        return await ground.conn.subscribe("s")

    async def rest() -> list[str]:
        await ground.conn.poll()
        return [(await sub.next(0)).payload for _ in range(sub.pending)]

    async def rest_of_main() -> list[str]:
        return [message.payload for message in await ground.conn.poll()]

    sub = ground.run(listen()) if how == "next" else None
    if sub is None:
        ground.run(ground.conn.listen("m"))

    def attempt(at: At) -> None:
        timer = threading.Timer(
            0.005 if waits else 0, ground.other.notify, ["s" if sub else "m", "1"]
        )
        timer.start()
        if not waits:
            timer.join()
        message = ground.interrupted(at, sub.next() if sub else _first_of(ground.conn))
        timer.join()
        left = ground.run(rest() if sub else rest_of_main())
        assert ([message.payload] if message else []) + left == ["1"]

    at_places(attempt, whole=whole, exception=KeyboardInterrupt)


async def _first_of(conn: pynotify.AsyncConnection) -> Any:
    return await anext(conn.notifies())


def test_a_gap(make_engine: EngineFactory) -> None:
    """It is made in Python: what was read with it is the waiting task's when the loop goes on."""
    engine = make_engine(queue_pages=64, on_full="drop-slowest")
    ground = Loop(engine, make_engine.name_of(engine))
    ground.run(ground.conn.listen("m"))

    def attempt(at: At) -> None:
        task = ground.loop.create_task(_first_of(ground.conn))
        ground.loop.run_until_complete(turns(3))
        for number in range(80):
            ground.other.notify("m", f"{number} {PAGE}")
        at.attempt(lambda: ground.loop.run_until_complete(task))
        ground.go_on()
        with contextlib.suppress(KeyboardInterrupt):
            ground.run(turns(20))  # not the timer of a sleeper, which would find it as well
        assert task.done()
        got = [task.result()] if task.exception() is None else []
        got += ground.run(ground.conn.poll())
        assert isinstance(got[0], pynotify.Gap)
        left = [int(message.payload.split()[0]) for message in got[1:]]
        assert left == list(range(80 - len(left), 80))

    assert at_places(attempt, whole=True, exception=KeyboardInterrupt) > 10
    ground.close()


async def _next_of(pubsub: pynotify.AsyncPubSub, got: list[Any]) -> None:
    async for received in pubsub:
        got.append(received.obj)
        if len(got) == 2:
            return


async def _rest_of(pubsub: pynotify.AsyncPubSub) -> list[Any]:
    found: list[Any] = []
    pubsub.on("a", found.append)
    while await pubsub.run(0):
        pass
    pubsub.off("a", found.append)
    return found


async def _new_pubsub(conn: pynotify.AsyncConnection) -> pynotify.AsyncPubSub:
    pubsub = pynotify.AsyncPubSub(conn)
    await pubsub.subscribe("a")
    return pubsub


@pytest.mark.parametrize("whole", WHOLE)
@pytest.mark.parametrize("waits", [False, True], ids=["", "waiting"])
@pytest.mark.parametrize("large", [False, True], ids=["small", "of several segments"])
def test_pubsub(ground: Loop, large: bool, waits: bool, whole: bool) -> None:
    """In order, each once."""
    objects = [LARGE + "1", "2"] if large else ["1", "2"]
    pubsub = ground.run(_new_pubsub(ground.conn))
    sender = pynotify.PubSub(ground.other)

    def send() -> None:
        for obj in objects:
            sender.publish("a", obj)

    def attempt(at: At) -> None:
        got: list[Any] = []
        timer = threading.Timer(0.005 if waits else 0, send)
        timer.start()
        if not waits:
            timer.join()
        ground.interrupted(at, _next_of(pubsub, got))
        timer.join()
        assert got + ground.run(_rest_of(pubsub)) == objects
        assert pubsub.stats().pending == pubsub.stats().dropped == 0

    at_places(attempt, whole=whole, exception=KeyboardInterrupt)
    ground.run(pubsub.close())
    sender.close()


@pytest.mark.parametrize("how", ["iterating", "topics"])
@pytest.mark.parametrize("large", [False, True], ids=["small", "of several segments"])
def test_cancelled_at_every_turn(ground: Loop, large: bool, how: str) -> None:
    """Sent before any turn and cancelled after any."""
    pubsub = ground.run(_new_pubsub(ground.conn))
    sender = pynotify.PubSub(ground.other)
    outcomes = set()

    async def get(got: list[Any]) -> None:
        if how == "topics":
            got.append((await ground.consumer.get()).body)
        else:
            await _next_of(pubsub, got)

    async def attempt(sent_at: int, cancelled_at: int) -> list[Any]:
        got: list[Any] = []
        task = asyncio.create_task(get(got))
        for turn in range(8):
            if turn == sent_at:
                if how == "topics":
                    ground.sender.publish("1")
                else:
                    sender.publish("a", LARGE if large else "1")
            if turn == cancelled_at:
                task.cancel()
            await turns(1)
        await asyncio.gather(task, return_exceptions=True)
        outcomes.add(len(got))
        return got

    for sent_at in range(8):
        for cancelled_at in range(8):
            got = ground.run(attempt(sent_at, cancelled_at))
            if how == "topics":
                if not got:
                    got = [ground.run(ground.consumer.get(PATIENCE)).body]
                ground.channel.empty()
                assert got == [b"1"]
            else:
                got += ground.run(_rest_of(pubsub))
                assert got == [LARGE if large else "1"]
    assert outcomes == {0, 1}
    ground.run(pubsub.close())
    sender.close()
