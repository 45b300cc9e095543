"""The task that waits for a message is resumed by the loop's reader itself, where that is safe."""

from __future__ import annotations

import asyncio
import contextvars
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import pynotify
from pynotify._task_waiter import TaskWaiter, WaitTurn
from receiving import PATIENCE, payloads
from sessions import Connect
from tasks import DEBUG, AsyncConnections, loop_factory, settled, turns, until

Receive = Callable[[], Awaitable[Any]]

variable = contextvars.ContextVar("variable", default="no task's")


class OwnTask(asyncio.Task[Any]):
    """Of a program that overrides something of it."""


FACTORIES: dict[str, Any] = {
    "asyncio's tasks": None,
    "tasks of its own": lambda loop, coro, **options: OwnTask(coro, loop=loop, **options),
    "tasks in Python": lambda loop, coro, **options: asyncio.tasks._PyTask(  # type: ignore[attr-defined]
        coro, loop=loop, **options
    ),
}
if sys.version_info >= (3, 12):
    # uvloop hands factories an option that Python 3.13.0 does not know
    FACTORIES["eager tasks"] = lambda loop, coro, name=None, context=None, **_: (
        asyncio.eager_task_factory(loop, coro, name=name, context=context)
    )


@pytest.fixture(params=["notifies", "next"])
def how(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=FACTORIES)
def factory(request: pytest.FixtureRequest) -> str:
    return str(request.param)


async def receivers(aconnect: AsyncConnections, how: str, count: int) -> list[Receive]:
    """Of the channels "0", "1" ... on one connection, by notifies() or a subscription each."""
    conn = await aconnect()
    if how == "notifies":
        await conn.listen(*(str(number) for number in range(count)))
        return [conn.notifies().__anext__ for _ in range(count)]
    return [(await conn.subscribe(str(number))).next for number in range(count)]


async def returns(receive: Receive, then: Callable[[], object] = bool) -> Any:
    message = await receive()
    then()
    return message


def then_soon(
    loop: asyncio.AbstractEventLoop, read: Callable[..., Any], call: Callable[[], object]
) -> Callable[..., Any]:
    def reading(*arguments: Any) -> Any:
        result = read(*arguments)
        if arguments[0]:  # where what was read went
            loop.call_soon(call)
        return result

    return reading


def while_reading(conn: pynotify.AsyncConnection, call: Callable[[], object]) -> None:
    """It is called by the loop as soon as it can after a message was read."""
    loop, reader = asyncio.get_running_loop(), conn.link.receiver.reader
    for name in ("read", "read_routed"):
        setattr(reader, name, then_soon(loop, getattr(reader, name), call))


async def test_at_once_or_by_the_loop(
    kind: str, factory: str, aconnect: AsyncConnections, connect: Connect, how: str
) -> None:
    """In debug mode, and for tasks that are not asyncio's own, it is as with every future."""
    loop = asyncio.get_running_loop()
    (receive,) = await receivers(aconnect, how, 1)
    loop.set_task_factory(FACTORIES[factory])
    order: list[str] = []
    task = loop.create_task(returns(receive, lambda: order.append("received")))
    await settled(task)
    while_reading(aconnect._made[0], lambda: order.append("soon"))
    connect().notify("0", "x")
    assert payloads([await task]) == ["x"]
    await until(lambda: len(order) == 2, "the loop has gone on")
    at_once = factory in ("asyncio's tasks", "eager tasks") and not loop.get_debug()
    assert order == (["received", "soon"] if at_once else ["soon", "received"])


async def test_it_is_resumed_once(
    kind: str, aconnect: AsyncConnections, connect: Connect, how: str
) -> None:
    """And not again by the loop, while it waits for something else."""
    loop = asyncio.get_running_loop()
    errors: list[object] = []
    loop.set_exception_handler(lambda _loop, context: errors.append(context))
    (receive,) = await receivers(aconnect, how, 1)
    received, gate = asyncio.Event(), loop.create_future()

    async def wait() -> object:
        await returns(receive, received.set)
        return await gate

    task = asyncio.create_task(wait())
    await settled(task)
    connect().notify("0", "x")
    await received.wait()
    await settled(task)
    gate.set_result("through")
    assert await task == "through"
    assert errors == []


async def test_it_is_the_task_in_its_own_context(
    kind: str, aconnect: AsyncConnections, connect: Connect, how: str
) -> None:
    (receive,) = await receivers(aconnect, how, 1)

    async def wait() -> tuple[object, str]:
        variable.set("the task's")
        await receive()
        seen = variable.get()
        variable.set("changed")
        return asyncio.current_task(), seen

    context = contextvars.copy_context()
    task = asyncio.get_running_loop().create_task(wait(), context=context)
    await settled(task)
    connect().notify("0", "x")
    assert await task == (task, "the task's")
    assert context[variable] == "changed"
    assert variable.get() == "no task's"


async def test_several_in_one_turn(
    kind: str, aconnect: AsyncConnections, connect: Connect, how: str
) -> None:
    receive = await receivers(aconnect, how, 5)
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(returns(one)) for one in receive]
        await turns(20)
        other = connect()
        with other.transaction():
            for number in range(5):
                other.notify(str(number), str(number))
    assert sorted(payloads([task.result() for task in tasks])) == ["0", "1", "2", "3", "4"]


async def test_one_cancels_the_other_that_is_about_to_be_resumed(
    kind: str, aconnect: AsyncConnections, connect: Connect, how: str
) -> None:
    """In the same turn: it has its message in hand perhaps, and that is not lost."""
    errors: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))
    receive = await receivers(aconnect, how, 2)
    one = asyncio.create_task(returns(receive[0], lambda: second.cancel("because")))
    await settled(one)
    second = asyncio.create_task(returns(receive[1]))
    await settled(second)
    other = connect()
    with other.transaction():
        other.notify("0", "0")
        other.notify("1", "1")
    await one
    with pytest.raises(asyncio.CancelledError) as cancelled:
        await second
    assert second.cancelled()
    assert cancelled.value.args == ("because",)
    conn = aconnect._made[0]
    rest = await conn.poll() if how == "notifies" else [await receive[1]()]
    assert payloads(rest) == ["1"]
    assert errors == []


async def test_an_error_is_not_for_a_cancelled_task() -> None:
    waiter = TaskWaiter(WaitTurn(asyncio.get_running_loop()))
    waiter.cancel()
    waiter.fail(pynotify.InterfaceError("too late"))
    with pytest.raises(asyncio.CancelledError):
        await waiter


async def test_one_closes_the_connection(
    kind: str, aconnect: AsyncConnections, connect: Connect, how: str
) -> None:
    """In the turn of the reader: the others are told."""
    receive = await receivers(aconnect, how, 2)
    conn = aconnect._made[0]

    async def close() -> None:
        await receive[0]()
        await conn.close()

    one = asyncio.create_task(close())
    await settled(one)
    second = asyncio.create_task(returns(receive[1]))
    await settled(second)
    connect().notify("0", "0")
    await one
    with pytest.raises(pynotify.InterfaceError, match="closed"):
        await second


async def test_time_outs_of_asyncio(
    kind: str, aconnect: AsyncConnections, connect: Connect, how: str
) -> None:
    """The time is over in the turn in which the message is read: one of the two, never neither."""
    conn = await aconnect()
    await conn.listen("0")
    other = connect()
    subscription = await conn.subscribe("0")

    async def one() -> Any:
        async with asyncio.timeout(None) as timeout:
            while_reading(conn, lambda: timeout.reschedule(0))
            return await (conn.notifies().__anext__() if how == "notifies" else subscription.next())

    for number in range(20):
        task = asyncio.create_task(one())
        await settled(task)
        other.notify("0", str(number))
        heard = []
        try:
            heard.append(await task)
        except TimeoutError:
            heard += [m async for m in conn.notifies(timeout=0)] if how == "notifies" else []
            if how == "next":
                heard.append(await subscription.next(0))
        assert payloads(heard) == [str(number)]
        if how == "next":
            await conn.poll()
        for name in ("read", "read_routed"):
            delattr(conn.link.receiver.reader, name)


async def test_message_and_time_out_of_ours(aconnect: AsyncConnections, connect: Connect) -> None:
    other = connect()
    conn = await aconnect()
    subscription = await conn.subscribe("c")
    for number in range(50):
        asyncio.get_running_loop().call_later(0.002, other.notify, "c", str(number))
        try:
            message = await subscription.next(0.002)
        except pynotify.Timeout:
            message = await subscription.next(PATIENCE)
        assert payloads([message]) == [str(number)]


async def test_driven_by_hand(
    kind: str, aconnect: AsyncConnections, connect: Connect, how: str
) -> None:
    """What is yielded is a future: a callback that is no task's is called by the loop."""
    (receive,) = await receivers(aconnect, how, 1)
    work = returns(receive)
    future = work.send(None)
    assert asyncio.isfuture(future)
    order: list[str] = []
    future._asyncio_future_blocking = False
    future.add_done_callback(lambda _future: order.append("called back"))
    while_reading(aconnect._made[0], lambda: order.append("soon"))
    connect().notify("0", "x")
    await until(lambda: len(order) == 2, "the loop has gone on")
    assert order == ["soon", "called back"]
    with pytest.raises(StopIteration) as returned:
        work.send(None)
    assert payloads([returned.value.value]) == ["x"]


async def test_closing_a_generator_whose_task_was_cancelled(
    kind: str, aconnect: AsyncConnections, connect: Connect
) -> None:
    conn = await aconnect()
    await conn.listen("c")
    messages = conn.notifies()
    task = asyncio.create_task(returns(messages.__anext__))
    await settled(task)
    while_reading(conn, task.cancel)
    connect().notify("c", "x")
    heard = await asyncio.gather(task, return_exceptions=True)
    await messages.aclose()
    if isinstance(heard[0], asyncio.CancelledError):
        heard = await conn.poll()
    assert payloads(heard) == ["x"]


def test_a_task_that_ends_the_loop(
    kind: str, aconnect: AsyncConnections, connect: Connect, how: str
) -> None:
    """By SystemExit, as from any callback, and no task is forgotten."""
    loop = loop_factory(kind)()
    loop.set_debug(kind == DEBUG)
    tasks: list[asyncio.Task[Any]] = []

    def leave() -> None:
        raise SystemExit("at 1")

    async def begin() -> None:
        receive = await receivers(aconnect, how, 3)
        for number in range(3):
            then = leave if number == 1 else bool
            tasks.append(loop.create_task(returns(receive[number], then)))
            await settled(tasks[-1])

    async def end() -> None:
        await asyncio.wait(tasks)
        await aconnect.close()

    try:
        loop.run_until_complete(begin())
        other = connect()
        with other.transaction():
            for number in range(3):
                other.notify(str(number), str(number))
        watchdog = loop.call_later(PATIENCE, loop.stop)
        with pytest.raises(SystemExit, match="at 1"):
            loop.run_forever()
        watchdog.cancel()
        loop.run_until_complete(end())
    finally:
        loop.close()
    assert [str(task.exception()) for task in tasks] == ["None", "at 1", "None"]
    assert sorted(payloads([tasks[0].result(), tasks[2].result()])) == ["0", "2"]
