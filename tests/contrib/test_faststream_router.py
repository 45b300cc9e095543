"""FastStream's own cases of any broker, with ours: routers and middlewares.

tests/support/faststream_case.py says which are left out.
"""

from __future__ import annotations

from typing import Any
from unittest.mock import MagicMock

import pytest

from requirement import require

try:
    import faststream  # noqa: F401
except ImportError as missing:
    require("faststream", str(missing))

from faststream import BaseMiddleware
from faststream.exceptions import (
    SkipMessage,
)
from faststream.middlewares import ExceptionMiddleware

from faststream_case import MEMORY, REAL, Case, Heard, cases, in_loop
from pynotify.contrib.faststream import (
    PynotifyBroker,
    PynotifyPublisher,
    PynotifyRoute,
    PynotifyRouter,
    TopicSub,
)

case = cases(REAL + MEMORY)
real = cases(REAL)
memory = cases(MEMORY)


# ---- router.py, include_router.py --------------------------------------------------------------


@in_loop
async def test_router_dynamic_objects(case: Case) -> None:
    nested, heard = case.router(), Heard()
    broker = case.broker(routers=[case.router(routers=[nested])])
    async with case.started(broker):
        sub = nested.subscriber(**case.at("q"))
        sub(heard.add)
        await sub.start()
        await broker.publish("Hi!", **case.at("q"))
        assert await heard.upto(1) == ["Hi!"]


@pytest.mark.parametrize(
    ("prefix", "included"), [("", ""), ("test_", ""), ("", "test_"), ("b_", "a_")]
)
@in_loop
async def test_prefix(case: Case, prefix: str, included: str) -> None:
    """test_{empty,not_empty}_prefix{,_publisher}, test_include_with_prefix,
    test_include_publisher_with_prefix, test_manual_publisher, test_router_in_init."""
    heard, router = Heard(), case.router(prefix=prefix)
    manual = router.publisher(**case.at("manual"))

    @router.subscriber(**case.at("q"))
    @router.publisher(**case.at("qresp"))
    async def subscriber(m: Any) -> str:
        await manual.publish("manual")
        return "hi"

    router.subscriber(**case.at("qresp"))(heard.add)
    broker = case.broker()
    broker.subscriber(**case.at(f"{included}{prefix}manual"))(heard.add)
    broker.include_router(router, prefix=included)
    async with case.started(broker):
        await broker.publish("hello", **case.at(f"{included}{prefix}q"))
        assert sorted(await heard.upto(2)) == ["hi", "manual"]


@in_loop
async def test_delayed_publishers(case: Case) -> None:
    """Also test_delayed_handlers."""
    heard = Heard()

    def response(m: Any) -> Any:
        return m

    route = PynotifyRoute(
        response, **case.at("q"), publishers=(PynotifyPublisher(**case.at("q1")),)
    )
    broker = case.broker(routers=[case.router(prefix="test_", handlers=[route])])
    broker.subscriber(**case.at("test_q1"))(heard.add)
    async with case.started(broker):
        await broker.publish("hello", **case.at("test_q"))
        assert await heard.upto(1) == ["hello"]


@in_loop
async def test_nested_routers(case: Case) -> None:
    """test_nested_routers_sub, test_nested_routers_pub."""
    core, router, heard = case.router(prefix="test1_"), case.router(prefix="test2_"), Heard()

    @router.subscriber(**case.at("q"))
    @router.publisher(**case.at("qresp"))
    async def subscriber(m: Any) -> str:
        await heard.add(m)
        return "hi"

    core.include_routers(router)
    broker = case.broker(routers=[core])
    broker.subscriber(**case.at("test1_test2_qresp"))(heard.add)
    async with case.started(broker):
        await broker.publish("hello", **case.at("test1_test2_q"))
        assert await heard.upto(2) == ["hello", "hi"]


def test_include_passes_producer_to_router(segment_name: str) -> None:
    one, other = PynotifyRouter(), PynotifyRouter()
    publishers = [each.publisher("l3") for each in (one, other)]
    assert publishers[0]._outer_config.producer is not publishers[1]._outer_config.producer
    PynotifyBroker(segment_name).include_routers(one, other)
    assert publishers[0]._outer_config.producer is publishers[1]._outer_config.producer


MAKE = [
    pytest.param(lambda place: place.subscriber("test"), id="subscriber"),
    pytest.param(lambda place: place.publisher(topic="test"), id="publisher"),
]


@pytest.mark.parametrize("make", MAKE)
def test_nested_router_middleware(segment_name: str, make: Any) -> None:
    """test_broker_middlewares, test_router_middlewares, test_include_router_with_middlewares."""
    broker = PynotifyBroker(segment_name, middlewares=(1,))
    outer, inner = PynotifyRouter(middlewares=[2]), PynotifyRouter(middlewares=[4])
    made = {each: make(each) for each in (broker, outer, inner)}
    outer.include_router(inner, middlewares=[3])
    broker.include_router(outer)
    found = [tuple(each._outer_config.broker_middlewares) for each in made.values()]
    assert found == [(1,), (1, 2), (1, 2, 3, 4)]


@pytest.mark.parametrize("make", MAKE)
@pytest.mark.parametrize(
    ("of_router", "include", "expected"),
    [
        (False, True, False),
        (True, True, True),
        (None, True, True),
        (False, False, False),
        (True, False, False),
        (None, False, False),
    ],
)
def test_router_include_in_schema(
    segment_name: str, make: Any, of_router: Any, include: bool, expected: bool
) -> None:
    router = PynotifyRouter(include_in_schema=of_router)
    made = make(router)
    PynotifyBroker(segment_name).include_router(router, include_in_schema=include)
    assert made.specification.include_in_schema is expected


def test_graceful_timeout(segment_name: str) -> None:
    outer, inner = PynotifyRouter(), PynotifyRouter()
    made = inner.subscriber("test")
    outer.include_router(inner)
    PynotifyBroker(segment_name, graceful_timeout=10).include_router(outer)
    assert made._outer_config.graceful_timeout == 10


def test_complex_router_prefix(segment_name: str) -> None:
    """Also test_simple_router_prefix, test_nested_router_prefix."""
    routers = [PynotifyRouter(prefix="1."), PynotifyRouter(), PynotifyRouter(prefix="5.")]
    made = [each.subscriber(topic="test") for each in routers]
    routers[1].include_router(routers[2], prefix="4.")
    routers[0].include_router(routers[1])
    PynotifyBroker(segment_name).include_router(routers[0])
    sources = [each.source for each in made]
    assert sources == [TopicSub("1.test"), TopicSub("1.test"), TopicSub("1.4.5.test")]


def test_idempotent_include_twice_on_same_broker(segment_name: str) -> None:
    router, broker = PynotifyRouter(), PynotifyBroker(segment_name)
    broker.include_router(router)
    broker.include_router(router)
    assert len(router.config.configs) == 2
    assert router.parent is broker


def test_reregister_on_include_in_different_brokers(segment_name: str) -> None:
    router, brokers = PynotifyRouter(), [PynotifyBroker(segment_name) for _ in range(2)]
    for each in brokers:
        each.include_router(router)
    assert len(router.config.configs) == 2
    assert router.parent is brokers[1]
    assert router not in brokers[0].routers


# ---- middlewares.py ----------------------------------------------------------------------------


def named(name: str, mock: MagicMock) -> type[BaseMiddleware]:
    class Named(BaseMiddleware):
        async def __aenter__(self) -> Any:
            mock.enter(name)
            return self

        async def __aexit__(self, *error: Any) -> None:
            mock.exit(name)

        async def consume_scope(self, call_next: Any, msg: Any) -> Any:
            mock.sub(name)
            return await call_next(msg)

        async def publish_scope(self, call_next: Any, cmd: Any) -> Any:
            mock.pub(name)
            return await call_next(cmd)

    return Named


def order(mock: MagicMock) -> list[str]:
    return [each.args[0] for each in mock.call_args_list]


@pytest.mark.parametrize("way", ["broker", "publisher", "router"])
@in_loop
async def test_middleware_order(memory: Case, way: str) -> None:
    """test_{broker,publisher,consume}_middleware_order, ..._with_{router_,}middleware_order."""
    mock = MagicMock()
    names = ["outer", "middle", "inner"]
    outer, middle, inner = (named(name, mock) for name in names)
    if way == "router":
        routers = [memory.router(middlewares=[middle]), memory.router(middlewares=[inner])]
        routers[0].include_router(routers[1])
        broker, place = memory.broker(middlewares=[outer], routers=routers[:1]), routers[1]
    else:
        broker = place = memory.broker(middlewares=[outer, middle, inner])
    publisher = place.publisher(**memory.at("q"))
    place.subscriber(**memory.at("q"))(Heard().add)
    async with memory.started(broker):
        if way == "broker":
            await broker.publish(None, **memory.at("q"))
        else:
            await publisher.publish(None)
    assert [order(mock.sub), order(mock.pub), order(mock.enter)] == [names, names, names]
    assert order(mock.exit) == names[::-1]


@in_loop
async def test_subscriber_middleware(case: Case) -> None:
    heard = Heard()

    class Tap(BaseMiddleware):
        async def consume_scope(self, call_next: Any, msg: Any) -> Any:
            await heard.add(("start", await msg.decode()))
            result = await call_next(msg)
            await heard.add("end")
            return result

    broker = case.broker(middlewares=(Tap,))

    @broker.subscriber(**case.at("q"))
    async def handler(m: Any) -> str:
        await heard.add(("inner", m))
        return "end"

    async with case.started(broker):
        await broker.publish("start", **case.at("q"))
        assert await heard.upto(3) == [("start", "start"), ("inner", "start"), "end"]


@in_loop
async def test_error_traceback(real: Case) -> None:
    heard = Heard()

    class Trace(BaseMiddleware):
        async def consume_scope(self, call_next: Any, msg: Any) -> Any:
            try:
                return await call_next(msg)
            except Exception as error:
                await heard.add(type(error))
                raise

    broker = real.broker(middlewares=(Trace,))

    @broker.subscriber(**real.at("q"))
    async def handler(m: Any) -> None:
        raise ValueError

    async with real.started(broker):
        await broker.publish("", **real.at("q"))
        assert await heard.upto(1) == [ValueError]


@in_loop
async def test_add_global_middleware(case: Case) -> None:
    """Also test_global_middleware."""
    heard = Heard()

    class Mid(BaseMiddleware):
        async def on_receive(self) -> None:
            await heard.add("start")

        async def after_processed(self, *arguments: Any, **options: Any) -> Any:
            await heard.add("end")
            return await super().after_processed(*arguments, **options)

    broker = case.broker()

    @broker.subscriber(**case.at("q"))
    async def handler(m: Any) -> str:
        return ""

    broker.add_middleware(Mid)  # it is for subscribers that are there, and for new ones

    @broker.subscriber(**case.at("q1"))
    async def handler2(m: Any) -> str:
        return ""

    async with case.started(broker):
        await broker.publish("", **case.at("q"))
        await broker.publish("", **case.at("q1"))
        assert sorted(await heard.upto(4)) == ["end", "end", "start", "start"]


class Twice(BaseMiddleware):
    async def publish_scope(self, call_next: Any, cmd: Any) -> Any:
        cmd.body *= 2
        return await call_next(cmd)


@in_loop
async def test_patch_publish(case: Case) -> None:
    broker, heard = case.broker(middlewares=(Twice,)), Heard()

    @broker.subscriber(**case.at("q"))
    async def handler(m: Any) -> Any:
        return m

    broker.subscriber("qr")(heard.add)
    async with case.started(broker):
        await broker.publish("r", **case.at("q"), reply_to="qr")
        assert await heard.upto(1) == ["rrrr"]


@in_loop
async def test_global_publisher_middleware(case: Case) -> None:
    broker, heard = case.broker(middlewares=(Twice,)), Heard()

    @broker.subscriber(**case.at("q"))
    @broker.publisher(**case.at("q1"))
    @broker.publisher(**case.at("q2"))
    async def handler(m: Any) -> Any:
        return m

    broker.subscriber(**case.at("q1"))(heard.add)
    broker.subscriber(**case.at("q2"))(heard.add)
    async with case.started(broker):
        await broker.publish("1", **case.at("q"))
        assert await heard.upto(2) == ["1111", "1111"]


def handling(**handlers: Any) -> ExceptionMiddleware:
    made = ExceptionMiddleware()
    for name, handler in handlers.items():
        made.add_handler({"zero": ZeroDivisionError, "value": ValueError}[name], publish=True)(
            handler
        )
    return made


@in_loop
async def test_exception_middleware_different_handler(case: Case) -> None:
    """Also test_exception_middleware_default_msg."""
    heard = Heard()
    middleware = handling(zero=lambda error: "zero", value=lambda error: "value")
    broker = case.broker(apply_types=True, middlewares=(middleware,))
    publisher = broker.publisher(**case.at("q2"))

    @broker.subscriber(**case.at("q"))
    @publisher
    async def subscriber1(m: Any) -> None:
        raise ZeroDivisionError

    @broker.subscriber(**case.at("q1"))
    @publisher
    async def subscriber2(m: Any) -> None:
        raise ValueError

    broker.subscriber(**case.at("q2"))(heard.add)
    async with case.started(broker):
        await broker.publish("", **case.at("q"))
        await broker.publish("", **case.at("q1"))
        assert sorted(await heard.upto(2)) == ["value", "zero"]


@pytest.mark.parametrize("raised", [SkipMessage, ValueError])
@in_loop
async def test_exception_middleware_skip_msg(real: Case, raised: type[Exception]) -> None:
    """Also test_exception_middleware_reraise: what a handler of errors raises publishes nothing."""
    heard, published = Heard(), Heard()

    async def skip(error: Exception) -> None:
        await heard.add("handled")
        raise raised

    broker = real.broker(middlewares=(handling(value=skip),))

    @broker.subscriber(**real.at("q"))
    @broker.publisher(**real.at("q1"))
    async def subscriber1(m: Any) -> None:
        raise ValueError

    broker.subscriber(**real.at("q1"))(published.add)
    async with real.started(broker):
        await broker.publish("", **real.at("q"))
        await heard.upto(1)
        await broker.publish("last", **real.at("q1"))
        assert await published.upto(1) == ["last"]


@in_loop
async def test_exception_middleware_decoder_error(real: Case) -> None:
    heard = Heard()

    async def decoder(msg: Any, original: Any) -> Any:
        raise ValueError

    broker = real.broker(middlewares=(handling(value=heard.add),), decoder=decoder)

    @broker.subscriber(**real.at("q"))
    async def subscriber1(m: Any) -> None:
        raise ZeroDivisionError

    async with real.started(broker):
        await broker.publish("", **real.at("q"))
        assert [type(error) for error in await heard.upto(1)] == [ValueError]
