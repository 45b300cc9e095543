"""FastStream's own cases of any broker, with ours: receiving, requests and connections.

tests/support/faststream_case.py says which are left out.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from receiving import PATIENCE
from requirement import require

try:
    import faststream  # noqa: F401
except ImportError as missing:
    require("faststream", str(missing))

from faststream import BaseMiddleware, Context, Depends, FastStream, TestApp
from faststream.exceptions import (
    StopConsume,
)
from pydantic import BaseModel

from faststream_case import MEMORY, REAL, Case, Heard, cases, in_loop, within
from pynotify.contrib.faststream import (
    PynotifyBroker,
)

BROKER = Context()


case = cases(REAL + MEMORY)
real = cases(REAL)


# ---- consume.py --------------------------------------------------------------------------------


@in_loop
async def test_multi_consume(case: Case) -> None:
    one, other, heard = case.broker(), case.broker(), Heard()

    @one.subscriber(**case.at("q"))
    @other.subscriber(**case.at("q1"))
    async def subscriber(m: Any) -> None:
        await heard.add(m)

    async with case.started(one, other), TestApp(FastStream(one, other)):
        await one.publish("hello", **case.at("q"))
        await other.publish("hallo", **case.at("q1"))
        assert sorted(await heard.upto(2)) == ["hallo", "hello"]


@pytest.mark.parametrize("receiver", [0, 1])
@in_loop
async def test_crossbroker_publisher(case: Case, receiver: int) -> None:
    """Also test_another_broker_publisher: what the publisher of one broker sends, each hears."""
    brokers, heard = [case.broker(), case.broker()], Heard()

    @brokers[0].subscriber(**case.at("q"))
    @brokers[1].publisher(**case.at("q1"))
    async def subscriber(m: Any) -> Any:
        return m

    @brokers[receiver].subscriber(**case.at("q1"))
    async def subscriber2(m: Any) -> None:
        await heard.add(m)

    async with case.started(*brokers), TestApp(FastStream(*brokers)):
        await brokers[0].publish("hello", **case.at("q"))
        assert await heard.upto(1) == ["hello"]


@in_loop
async def test_consume(case: Case) -> None:
    broker, event = case.broker(), asyncio.Event()

    @broker.subscriber(**case.at("q"))
    def subscriber(m: Any) -> None:
        event.set()

    async with case.started(broker):
        await broker.publish("hello", **case.at("q"))
        await within(event.wait())


@in_loop
async def test_consume_from_multi(case: Case) -> None:
    broker, heard = case.broker(), Heard()

    @broker.subscriber(**case.at("q"))
    @broker.subscriber(**case.at("q1"))
    async def subscriber(m: Any) -> None:
        await heard.add(m)

    async with case.started(broker):
        await broker.publish("1", **case.at("q"))
        await broker.publish("2", **case.at("q1"))
        assert sorted(await heard.upto(2)) == ["1", "2"]


@in_loop
async def test_consume_double(case: Case) -> None:
    broker, heard = case.broker(), Heard()

    @broker.subscriber(**case.at("q"))
    async def handler(m: Any) -> None:
        await heard.add(m)

    async with case.started(broker):
        await broker.publish("1", **case.at("q"))
        await broker.publish("2", **case.at("q"))
        assert await heard.upto(2) == ["1", "2"]


@in_loop
async def test_different_consume(case: Case) -> None:
    broker, heard = case.broker(), Heard()

    @broker.subscriber(**case.at("q"))
    async def handler(m: Any) -> None:
        await heard.add(("handler", m))

    @broker.subscriber(**case.at("q1"))
    async def handler2(m: Any) -> None:
        await heard.add(("handler2", m))

    async with case.started(broker):
        await broker.publish("1", **case.at("q"))
        await broker.publish("2", **case.at("q1"))
        assert sorted(await heard.upto(2)) == [("handler", "1"), ("handler2", "2")]


@in_loop
async def test_consume_with_filter(case: Case) -> None:
    broker, heard = case.broker(), Heard()
    sub = broker.subscriber(**case.at("q"))

    @sub(filter=lambda m: m.content_type == "application/json")
    async def handler(m: Any) -> None:
        await heard.add(("json", m))

    @sub
    async def handler2(m: Any) -> None:
        await heard.add(("text", m))

    async with case.started(broker):
        await broker.publish({"msg": "hello"}, **case.at("q"))
        await broker.publish("hello", **case.at("q"))
        assert await heard.upto(2) == [("json", {"msg": "hello"}), ("text", "hello")]


class Foo(BaseModel):
    x: int


def dependency() -> str:
    return "100"


@in_loop
async def test_consume_validate_false(case: Case) -> None:
    broker, heard = case.broker(apply_types=True, serializer=None), Heard()

    @broker.subscriber(**case.at("q"))
    async def handler(m: Foo, dep: int = Depends(dependency), broker: Any = BROKER) -> None:
        await heard.add((m, dep, broker))

    async with case.started(broker):
        await broker.publish({"x": 1}, **case.at("q"))
        assert await heard.upto(1) == [({"x": 1}, "100", broker)]


@in_loop
async def test_dynamic_sub(case: Case) -> None:
    broker, heard = case.broker(), Heard()
    async with case.started(broker):
        sub = broker.subscriber(**case.at("q"))
        sub(heard.add)
        await sub.start()
        await broker.publish("hello", **case.at("q"))
        assert await heard.upto(1) == ["hello"]
        await sub.stop()


@in_loop
async def test_get_one_conflicts_with_handler(case: Case) -> None:
    broker = case.broker()
    sub = broker.subscriber(**case.at("q"))

    @sub
    async def handler() -> None: ...

    async with case.started(broker):
        with pytest.raises(AssertionError):
            await sub.get_one(timeout=1e-24)


@in_loop
async def test_get_one(real: Case) -> None:
    broker = real.broker()
    sub = broker.subscriber(**real.at("q"))
    async with real.started(broker):
        waiting = asyncio.create_task(sub.get_one(timeout=PATIENCE))
        await broker.publish("test_message", **real.at("q"))
        message = await waiting
        assert message is not None
        assert await message.decode() == "test_message"


@in_loop
async def test_get_one_timeout(real: Case) -> None:
    broker = real.broker()
    sub = broker.subscriber(**real.at("q"))
    async with real.started(broker):
        assert await sub.get_one(timeout=1e-24) is None


@in_loop
async def test_stop_consume_exc(real: Case) -> None:
    broker, heard = real.broker(), Heard()
    sub = broker.subscriber(**real.at("q"))

    @sub
    async def handler(m: Any) -> None:
        await heard.add(m)
        raise StopConsume

    ends = broker.subscriber("ends")(heard.add)
    assert ends is not None
    async with real.started(broker):
        await broker.publish("hello", **real.at("q"))
        await heard.upto(1)
        while sub.running:
            await asyncio.sleep(0)
        await broker.publish("again", **real.at("q"))
        await broker.publish("over", "ends")
        assert await heard.upto(2) == ["hello", "over"]


@in_loop
async def test_iteration(real: Case) -> None:
    broker, expected = real.broker(), ["test_message_1", "test_message_2"]
    sub = broker.subscriber(**real.at("q"))
    async with real.started(broker):

        async def consume() -> list[Any]:
            found: list[Any] = []
            async for message in sub:
                found.append(await message.decode())
                if len(found) == len(expected):
                    break
            return found

        consuming = asyncio.create_task(consume())
        for each in expected:
            await broker.publish(each, **real.at("q"))
        assert await within(consuming) == [expected]


# ---- requests.py -------------------------------------------------------------------------------


class Doubling(BaseMiddleware):
    """A message is doubled twice on its way there, and twice on the way back."""

    async def consume_scope(self, call_next: Any, msg: Any) -> Any:
        msg.body = msg.body * 2
        return await call_next(msg)

    async def publish_scope(self, call_next: Any, cmd: Any) -> Any:
        cmd.body = cmd.body * 2
        return await call_next(cmd)


@in_loop
async def test_request_timeout(case: Case) -> None:
    broker = case.broker()

    @broker.subscriber(**case.at("q"))
    async def handler(msg: Any) -> str:
        await asyncio.sleep(0.01)
        return "Response"

    async with case.started(broker):
        with pytest.raises(TimeoutError):
            await broker.request(None, **case.at("q"), timeout=1e-24)


@pytest.mark.parametrize("of", ["broker", "publisher", "router"])
@in_loop
async def test_base_request(case: Case, of: str) -> None:
    """test_broker_base_request, test_publisher_base_request, test_router_publisher_request."""
    router = case.router()
    publisher = router.publisher(**case.at("q"))

    @router.subscriber(**case.at("q"))
    async def handler(msg: Any) -> str:
        return "Response"

    broker = case.broker(routers=[router])
    of_broker = broker.publisher(**case.at("q"))
    async with case.started(broker):
        if of == "broker":
            reply = await broker.request(None, **case.at("q"), correlation_id="1")
        else:
            asked = of_broker if of == "publisher" else publisher
            reply = await asked.request(None, correlation_id="1")
        assert (await reply.decode(), reply.correlation_id) == ("Response", "1")


@pytest.mark.parametrize("of", ["broker", "publisher", "router"])
@in_loop
async def test_request_respect_middleware(case: Case, of: str) -> None:
    """test_{broker,broker_publisher,router_publisher}_request_respect_middleware."""
    router = case.router(middlewares=[Doubling] if of == "router" else [])
    broker = case.broker(middlewares=[] if of == "router" else [Doubling])
    place = router if of == "router" else broker
    publisher = place.publisher(**case.at("q"))

    @place.subscriber(**case.at("q"))
    async def handler(msg: Any) -> Any:
        return msg

    broker.include_router(router)
    async with case.started(broker):
        if of == "broker":
            reply = await broker.request("x", **case.at("q"))
        else:
            reply = await publisher.request("x")
        # In memory the reply passes no publisher's middlewares.
        times = 8 if case.in_memory else 16
        assert await reply.decode() == "x" * times


# ---- connection.py -----------------------------------------------------------------------------


@in_loop
async def test_stop_before_start(segment_name: str) -> None:
    broker = PynotifyBroker(segment_name)
    assert broker._connection is None
    await broker.stop()
    assert not broker.running


@in_loop
async def test_connect(segment_name: str) -> None:
    broker = PynotifyBroker(segment_name, logger=None)
    await broker.connect()
    assert await broker.ping(timeout=PATIENCE)
    await broker.stop()
    assert not await broker.ping(timeout=PATIENCE)
