"""FastStream's own test cases of any broker, under their names, with ours.

They are `tests/brokers/base` of its repository, which no distribution of it carries; so they are
written again here, each for a channel and a topic, over a segment and in memory.  Left out are:

    address.py                names are no patterns here
    option_surface.py         which options FastStream's own brokers have in common
    fastapi.py                there is no router for FastAPI
    driver_annotations.py     there is no table of annotations
    of connection.py          arguments that are a server's address
    of testclient.py          tombstones, which are Kafka's; Mocks that FastStream puts in the
                              places of its own methods
    of publish_command.py     keys, which are Kafka's
    of middlewares.py         ExceptionMiddleware's own dictionaries
"""

from __future__ import annotations

import asyncio
import gc
import json
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any
from unittest.mock import MagicMock, call

import pytest

from receiving import PATIENCE
from requirement import require

try:
    from faststream import BaseMiddleware, Context, Depends, FastStream, Response, TestApp
    from faststream._internal.parser import DefaultCodec
    from faststream.exceptions import (
        FeatureNotSupportedException,
        SetupError,
        SkipMessage,
        StopConsume,
    )
    from faststream.middlewares import ExceptionMiddleware
    from faststream.response import ensure_response
    from pydantic import BaseModel
except ImportError as missing:
    require("faststream", str(missing))

from faststream_case import Case, Heard, in_loop, within
from pynotify.contrib.faststream import (
    PynotifyBroker,
    PynotifyPublishCommand,
    PynotifyPublisher,
    PynotifyRoute,
    PynotifyRouter,
    TestPynotifyBroker,
    TopicSub,
)

REAL = [pytest.param((by, False), id=by) for by in ("channel", "topic")]
MEMORY = [pytest.param((by, True), id=f"{by}-in-memory") for by in ("channel", "topic")]


BROKER, MESSAGE = Context(), Context("message")


@pytest.fixture(params=REAL + MEMORY)
def case(request: pytest.FixtureRequest, segment_name: str) -> Case:
    by, in_memory = request.param
    return Case(segment_name, by, in_memory=in_memory)


@pytest.fixture(params=REAL)
def real(request: pytest.FixtureRequest, segment_name: str) -> Case:
    return Case(segment_name, request.param[0], in_memory=False)


@pytest.fixture(params=MEMORY)
def memory(request: pytest.FixtureRequest, segment_name: str) -> Case:
    return Case(segment_name, request.param[0], in_memory=True)


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


# ---- publish.py --------------------------------------------------------------------------------


class SimpleModel(BaseModel):
    r: str


@dataclass
class SimpleDataclass:
    r: str


NOW = datetime.now(UTC)
DATA, MODEL = SimpleDataclass(r="hello!"), SimpleModel(r="hello!")
SERIALIZED = {
    "str->str": ("hello", str, "hello"),
    "bytes->bytes": (b"hello", bytes, b"hello"),
    "int->int": (1, int, 1),
    "float->float": (1.0, float, 1.0),
    "int->float": (1, float, 1.0),
    "bool->bool": (False, bool, False),
    "dict->dict": ({"m": 1}, dict[str, int], {"m": 1}),
    "list->list": ([1, 2, 3], list[int], [1, 2, 3]),
    "datetime->datetime": (NOW, datetime, NOW),
    "bytes->dataclass": (json.dumps(asdict(DATA)).encode(), SimpleDataclass, DATA),
    "dataclass->dataclass": (DATA, SimpleDataclass, DATA),
    "dataclass->dict": (DATA, dict, {"r": "hello!"}),
    "dict->dataclass": ({"r": "hello!"}, SimpleDataclass, DATA),
    "bytes->model": (MODEL.model_dump_json().encode(), SimpleModel, MODEL),
    "model->model": (MODEL, SimpleModel, MODEL),
    "model->dict": (MODEL, dict, {"r": "hello!"}),
    "dict->model": ({"r": "hello!"}, SimpleModel, MODEL),
}


@pytest.mark.parametrize("kind", SERIALIZED)
@in_loop
async def test_serialize(case: Case, kind: str) -> None:
    message, message_type, expected = SERIALIZED[kind]
    broker, heard = case.broker(apply_types=True), Heard()

    async def handler(m: Any) -> None:
        await heard.add(m)

    handler.__annotations__["m"] = message_type
    broker.subscriber(**case.at("q"))(handler)
    async with case.started(broker):
        await broker.publish(message, **case.at("q"))
        assert await heard.upto(1) == [expected]


@in_loop
async def test_response(case: Case) -> None:
    broker, heard = case.broker(apply_types=True), Heard()

    @broker.subscriber(**case.at("q"))
    @broker.publisher(**case.at("q1"))
    async def m() -> Response:
        return Response(1, headers={"custom": "1"}, correlation_id="1")

    @broker.subscriber(**case.at("q1"))
    async def m_next(msg: Any = MESSAGE) -> None:
        await heard.add((msg.body, msg.headers["custom"], msg.correlation_id))

    async with case.started(broker):
        await broker.publish(None, **case.at("q"))
        assert await heard.upto(1) == [(b"1", "1", "1")]


@in_loop
async def test_unwrap_dict(case: Case) -> None:
    broker, heard = case.broker(apply_types=True), Heard()

    @broker.subscriber(**case.at("q"))
    async def m(a: int, b: int) -> None:
        await heard.add((a, b))

    async with case.started(broker):
        await broker.publish({"a": 1, "b": 1.0}, **case.at("q"))
        assert await heard.upto(1) == [(1, 1)]


@in_loop
async def test_unwrap_list(case: Case) -> None:
    broker, heard = case.broker(apply_types=True), Heard()

    @broker.subscriber(**case.at("q"))
    async def m(a: int, b: int, *args: tuple[int, ...]) -> None:
        await heard.add((a, b, args))

    async with case.started(broker):
        await broker.publish([1, 2.0, 3.0, 4.0], **case.at("q"))
        assert await heard.upto(1) == [(1, 2, (3, 4))]


@in_loop
async def test_base_publisher(case: Case) -> None:
    broker, heard = case.broker(apply_types=True), Heard()

    @broker.subscriber(**case.at("q"))
    @broker.publisher(**case.at("qresp"))
    async def m() -> str:
        return ""

    broker.subscriber(**case.at("qresp"))(heard.add)
    async with case.started(broker):
        await broker.publish("", **case.at("q"))
        assert await heard.upto(1) == [""]


@in_loop
async def test_publisher_object(case: Case) -> None:
    broker, heard = case.broker(apply_types=True), Heard()
    publisher = broker.publisher(**case.at("qresp"))

    @publisher
    @broker.subscriber(**case.at("q"))
    async def m() -> str:
        return ""

    broker.subscriber(**case.at("qresp"))(heard.add)
    async with case.started(broker):
        await broker.publish("", **case.at("q"))
        assert await heard.upto(1) == [""]


@in_loop
async def test_publish_manual(case: Case) -> None:
    broker, heard = case.broker(apply_types=True), Heard()
    publisher = broker.publisher(**case.at("qresp"))

    @broker.subscriber(**case.at("q"))
    async def m() -> None:
        await publisher.publish("")

    broker.subscriber(**case.at("qresp"))(heard.add)
    async with case.started(broker):
        await broker.publish("", **case.at("q"))
        assert await heard.upto(1) == [""]


@in_loop
async def test_multiple_publishers(case: Case) -> None:
    broker, heard = case.broker(apply_types=True), Heard()

    @broker.publisher(**case.at("qresp2"))
    @broker.subscriber(**case.at("q"))
    @broker.publisher(**case.at("qresp"))
    async def m() -> str:
        return ""

    @broker.subscriber(**case.at("qresp"))
    async def resp(msg: Any) -> None:
        await heard.add(("resp1", msg))

    @broker.subscriber(**case.at("qresp2"))
    async def resp2(msg: Any) -> None:
        await heard.add(("resp2", msg))

    async with case.started(broker):
        await broker.publish("", **case.at("q"))
        assert sorted(await heard.upto(2)) == [("resp1", ""), ("resp2", "")]


@in_loop
async def test_reusable_publishers(case: Case) -> None:
    broker, heard = case.broker(apply_types=True), Heard()
    publisher = broker.publisher(**case.at("qresp"))

    @publisher
    @broker.subscriber(**case.at("q"))
    async def m() -> str:
        return "1"

    @publisher
    @broker.subscriber(**case.at("q2"))
    async def m2() -> str:
        return "2"

    broker.subscriber(**case.at("qresp"))(heard.add)
    async with case.started(broker):
        await broker.publish("", **case.at("q"))
        await broker.publish("", **case.at("q2"))
        assert sorted(await heard.upto(2)) == ["1", "2"]


@in_loop
async def test_reply_to(case: Case) -> None:
    broker, heard = case.broker(apply_types=True), Heard()
    broker.subscriber("qreply")(heard.add)

    @broker.subscriber(**case.at("q"))
    async def handler(m: Any) -> Any:
        return m

    async with case.started(broker):
        await broker.publish("Hello!", **case.at("q"), reply_to="qreply")
        assert await heard.upto(1) == ["Hello!"]


@in_loop
async def test_no_reply(case: Case) -> None:
    broker, heard, done = case.broker(apply_types=True), Heard(), asyncio.Event()

    class Mid(BaseMiddleware):
        async def after_processed(self, *arguments: Any, **options: Any) -> Any:
            done.set()
            return await super().after_processed(*arguments, **options)

    broker.add_middleware(Mid)
    broker.subscriber("qreply")(heard.add)

    @broker.subscriber(**case.at("q"), no_reply=True)
    async def handler(m: Any) -> Any:
        return m

    async with case.started(broker):
        await broker.publish("Hello!", **case.at("q"), reply_to="qreply")
        await within(done.wait())
    assert not heard.all


@in_loop
async def test_publisher_after_connect(case: Case) -> None:
    broker = case.broker()
    async with case.started(broker):
        await broker.publisher(**case.at("q")).publish(None)


@in_loop
async def test_publisher_after_start(case: Case) -> None:
    broker, heard = case.broker(apply_types=True), Heard()
    broker.subscriber(**case.at("q"))(heard.add)
    async with case.started(broker):
        await broker.publisher(**case.at("q")).publish("Hello!")
        assert await heard.upto(1) == ["Hello!"]


# ---- publish_command.py ------------------------------------------------------------------------


def command_of(returned: Any, *, batch: bool = False) -> PynotifyPublishCommand:
    return PynotifyPublishCommand.from_cmd(
        ensure_response(returned).as_publish_command(), batch=batch
    )


def test_simple_response() -> None:
    assert command_of(1).body == 1


def test_base_response_class() -> None:
    command = command_of(Response(body=1, headers={"1": 1}))
    assert (command.body, command.headers) == (1, {"1": 1})


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (None, ()),
        ((), ()),
        ("123", ("123",)),
        ("", ("",)),
        (b"", (b"",)),
        ([1, 2, 3], (1, 2, 3)),
        ([0, 1, 2], (0, 1, 2)),
    ],
)
def test_batch_response(data: Any, expected: Any) -> None:
    assert command_of(data, batch=True).batch_bodies == expected


def test_batch_bodies_setter() -> None:
    command = command_of(None, batch=True)
    command.batch_bodies = (1, 2, 3)
    assert command.batch_bodies == (1, 2, 3)
    assert (command.body, command.extra_bodies) == (1, (2, 3))


def test_batch_bodies_empty_setter() -> None:
    command = command_of((1, 2, 3), batch=True)
    command.batch_bodies = ()
    assert (command.batch_bodies, command.body, command.extra_bodies) == ((), None, ())


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


# ---- parser.py ---------------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["local", "global", "router"])
@pytest.mark.parametrize("which", ["parser", "decoder"])
@in_loop
async def test_local_parser(case: Case, place: str, which: str) -> None:
    """test_{local,global}_parser, test_{local,global}_sync_decoder, test_router_parser."""
    mock, heard = MagicMock(), Heard()

    async def custom_parser(msg: Any, original: Any) -> Any:
        msg = await original(msg)
        mock(msg.body)
        return msg

    def custom_decoder(msg: Any) -> Any:
        mock(msg.body)
        return msg.body

    custom: dict[str, Any] = {which: custom_parser if which == "parser" else custom_decoder}
    router = case.router(**(custom if place == "router" else {}))
    subscriber = router.subscriber(**case.at("q"), **(custom if place == "local" else {}))
    subscriber(heard.add)
    broker = case.broker(routers=[router], **(custom if place == "global" else {}))
    async with case.started(broker):
        await broker.publish(b"hello", **case.at("q"))
        assert await heard.upto(1) == [b"hello"]
    mock.assert_called_once_with(b"hello")


@in_loop
async def test_local_parser_no_share_between_subscribers(case: Case) -> None:
    broker, mock, heard = case.broker(), MagicMock(), Heard()

    async def custom_parser(msg: Any, original: Any) -> Any:
        msg = await original(msg)
        mock(msg.body)
        return msg

    @broker.subscriber(**case.at("q"), parser=custom_parser)
    @broker.subscriber(**case.at("q1"))
    async def handle(m: Any) -> None:
        await heard.add(m)

    async with case.started(broker):
        await broker.publish(b"hello", **case.at("q"))
        await broker.publish(b"hello", **case.at("q1"))
        await heard.upto(2)
    mock.assert_called_once_with(b"hello")


@in_loop
async def test_local_parser_no_share_between_handlers(case: Case) -> None:
    broker, mock, heard = case.broker(), MagicMock(), Heard()
    sub = broker.subscriber(**case.at("q"))

    async def custom_parser(msg: Any, original: Any) -> Any:
        msg = await original(msg)
        mock(msg.body)
        return msg

    @sub(filter=lambda m: m.content_type == "application/json")
    async def handle(m: Any) -> None:
        await heard.add("json")

    @sub(parser=custom_parser)
    async def handle2(m: Any) -> None:
        await heard.add("bytes")

    async with case.started(broker):
        await broker.publish({"msg": "hello"}, **case.at("q"))
        await broker.publish(b"hello", **case.at("q"))
        assert await heard.upto(2) == ["json", "bytes"]
    assert mock.call_count == 1


@pytest.mark.parametrize("way", ["iterator", "get_one"])
@in_loop
async def test_respect_decoder(real: Case, way: str) -> None:
    """test_iterator_respect_decoder, test_get_one_respect_decoder."""
    broker, mock = real.broker(), MagicMock()

    async def custom_decoder(msg: Any, original: Any) -> Any:
        mock()
        return await original(msg)

    sub = broker.subscriber(**real.at("q"), decoder=custom_decoder)
    async with real.started(broker):
        await broker.publish(b"hello", **real.at("q"))
        message = await (sub.get_one(timeout=PATIENCE) if way == "get_one" else anext(aiter(sub)))
        assert message is not None
        mock.assert_not_called()
        assert await message.decode() == b"hello"
        mock.assert_called_once()


@in_loop
async def test_router_parser_override(case: Case) -> None:
    mock, heard = MagicMock(), Heard()

    async def of_router(msg: Any, original: Any) -> Any:  # pragma: no cover
        mock()
        return await original(msg)

    async def parser(msg: Any, original: Any) -> Any:
        mock.parser()
        return await original(msg)

    async def decoder(msg: Any, original: Any) -> Any:
        mock.decoder()
        return await original(msg)

    router = case.router(parser=of_router, decoder=of_router)
    router.subscriber(**case.at("q"), parser=parser, decoder=decoder)(heard.add)
    broker = case.broker(routers=[router])
    async with case.started(broker):
        await broker.publish("hello", **case.at("q"))
        await heard.upto(1)
    assert not mock.called
    mock.parser.assert_called_once()
    mock.decoder.assert_called_once()


# ---- codec.py ----------------------------------------------------------------------------------


class TrackingCodec(DefaultCodec):
    def __init__(self) -> None:
        self.called: list[str] = []

    async def encode(self, msg: Any, serializer: Any = None) -> Any:
        self.called.append("encode")
        return await super().encode(msg, serializer)

    async def decode(self, msg: Any) -> Any:
        self.called.append("decode")
        return await super().decode(msg)


class BatchCodec(TrackingCodec):
    async def encode_batch(self, msgs: Any, serializer: Any = None) -> Any:
        self.called.append("encode_batch")
        return [await DefaultCodec.encode(self, each, serializer) for each in msgs]

    async def decode_batch(self, msg: Any) -> list[Any]:
        self.called.append("decode_batch")
        return [each.decode() for each in msg.body]


@pytest.mark.parametrize("place", ["subscriber", "broker"])
@in_loop
async def test_codec_decode_called(case: Case, place: str) -> None:
    """Also test_broker_level_codec, test_codec_encode_called."""
    codec, heard = TrackingCodec(), Heard()
    broker = case.broker(**({"codec": codec} if place == "broker" else {}))
    options = {"codec": codec} if place == "subscriber" else {}
    broker.subscriber(**case.at("q"), **options)(heard.add)
    async with case.started(broker):
        await broker.publish({"key": "value"}, **case.at("q"))
        assert await heard.upto(1) == [{"key": "value"}]
    assert codec.called == (["encode", "decode"] if place == "broker" else ["decode"])


@in_loop
async def test_codec_not_set_uses_default(case: Case) -> None:
    broker, heard = case.broker(), Heard()
    broker.subscriber(**case.at("q"))(heard.add)
    async with case.started(broker):
        await broker.publish({"key": "value"}, **case.at("q"))
        assert await heard.upto(1) == [{"key": "value"}]


@in_loop
async def test_codec_and_decoder_conflict_raises(case: Case) -> None:
    broker = case.broker()

    async def decoder(msg: Any, original: Any) -> Any: ...

    broker.subscriber(**case.at("q"), codec=DefaultCodec(), decoder=decoder)(Heard().add)
    with pytest.raises(ValueError, match="codec"):
        async with case.started(broker):
            pass


@pytest.mark.parametrize("in_memory", [False, True])
@in_loop
async def test_batch_codec_decode_batch_called(segment_name: str, in_memory: bool) -> None:
    """Also test_batch_codec_encode_batch_called."""
    case, codec, heard = Case(segment_name, "topic", in_memory=in_memory), BatchCodec(), Heard()
    broker = case.broker(codec=codec)
    broker.subscriber(topic=TopicSub("q", batch=True))(heard.add)
    async with case.started(broker):
        await broker.publish_batch("a", "b", "c", topic="q")
        assert await heard.upto(1) == [["a", "b", "c"]]
    assert codec.called == ["encode_batch", "decode_batch"]


@in_loop
async def test_batch_codec_without_batch_proto_raises(memory: Case) -> None:
    broker = memory.broker(codec=DefaultCodec())
    broker.subscriber(topic=TopicSub("q", batch=True))(Heard().add)
    with pytest.raises(ValueError, match="BatchCodecProto"):
        async with memory.started(broker):
            pass


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
    heard = Heard()

    async def skip(error: Exception) -> None:
        await heard.add("handled")
        raise raised

    broker = real.broker(middlewares=(handling(value=skip),))

    @broker.subscriber(**real.at("q"))
    @broker.publisher(**real.at("q1"))
    async def subscriber1(m: Any) -> None:
        raise ValueError

    broker.subscriber(**real.at("q1"))(heard.add)
    async with real.started(broker):
        await broker.publish("", **real.at("q"))
        await heard.upto(1)
        await broker.publish("last", **real.at("q1"))
        assert await heard.upto(2) == ["handled", "last"]


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


# ---- testclient.py -----------------------------------------------------------------------------


@in_loop
async def test_correct_clean_fake_subscribers(memory: Case) -> None:
    """Also test_fake_subscribers_deregistered_without_gc."""
    broker = memory.broker()
    broker.subscriber(**memory.at("test"))(Heard().add)
    publishers = [broker.publisher(**memory.at(name)) for name in ("test", "test2")]
    for _ in range(2):
        async with memory.started(broker):
            gc.collect()
            assert len(broker.subscribers) == 2
        assert len(broker.subscribers) == 1
    assert publishers


@in_loop
async def test_publisher_with_subscriber__mock(memory: Case) -> None:
    """Also test_subscriber_mock, test_publisher_mock."""
    broker = memory.broker()
    publisher, alone = (broker.publisher(**memory.at(name)) for name in ("qresp", "qalone"))

    @publisher
    @alone
    @broker.subscriber(**memory.at("q"))
    async def m(msg: Any) -> str:
        return "response"

    @broker.subscriber(**memory.at("qresp"))
    async def handler_response(msg: Any) -> None: ...

    async with memory.started(broker):
        await broker.publish("hello", **memory.at("q"))
        m.mock.assert_called_once_with("hello")
        for each in (publisher, alone, handler_response):
            each.mock.assert_called_once_with("response")


@in_loop
async def test_manual_publisher_mock(memory: Case) -> None:
    broker = memory.broker()
    publisher = broker.publisher(**memory.at("qresp"))

    @broker.subscriber(**memory.at("q"))
    async def m(msg: Any) -> None:
        await publisher.publish("response")

    async with memory.started(broker):
        await broker.publish("hello", **memory.at("q"))
        publisher.mock.assert_called_with("response")


@pytest.mark.parametrize("where", ["handler", "parser"])
@in_loop
async def test_exception_raises(memory: Case, where: str) -> None:
    """Also test_parser_exception_raises."""
    broker = memory.broker()

    def fail(msg: Any) -> Any:
        raise ValueError(where)

    async def good(msg: Any) -> None: ...

    options = {"parser": fail} if where == "parser" else {}
    broker.subscriber(**memory.at("q"), **options)(fail if where == "handler" else good)
    async with memory.started(broker):
        with pytest.raises(ValueError, match=where):
            await broker.publish("hello", **memory.at("q"))


@in_loop
async def test_broker_gets_patched_attrs_within_cm(segment_name: str) -> None:
    broker = PynotifyBroker(segment_name, logger=None)
    await broker.start()
    producer, session = broker.config.producer, broker.config.broker_config.session
    async with TestPynotifyBroker(broker):
        assert broker.config.producer is not producer
        assert await broker.ping()
    assert broker.config.producer is producer
    assert broker.config.broker_config.session is session
    assert await broker.ping()
    await broker.stop()


@in_loop
async def test_broker_with_real_patches_publishers_and_subscribers(real: Case) -> None:
    """Also test_broker_with_real_doesnt_get_patched, ..._with_real_stops_fake_subscribers."""
    broker = real.broker()
    publisher = broker.publisher(**real.at("q1"))

    @broker.subscriber(**real.at("q"))
    async def m(msg: Any) -> None:
        await publisher.publish(f"response: {msg}")

    client = TestPynotifyBroker(broker, with_real=True, connect_only=False)
    async with client:
        (fake,) = client._fake_subscribers
        await broker.publish("hello", **real.at("q"))
        await m.wait_call(PATIENCE)
        m.mock.assert_called_once_with("hello")
        while not publisher.mock.called:
            await asyncio.sleep(0)
        assert publisher.mock.call_args == call("response: hello")
    assert not fake.running


class ModelA(BaseModel):
    param1: int


class ModelB(BaseModel):
    param2: int


@in_loop
async def test_publisher_response_with_model(memory: Case) -> None:
    broker = memory.broker(apply_types=True)
    publisher = broker.publisher(**memory.at("qresp"))

    @broker.subscriber(**memory.at("q"))
    @publisher
    async def m(msg: ModelA) -> ModelB:
        return ModelB(param2=msg.param1)

    async with memory.started(broker):
        await broker.publish(ModelA(param1=1), **memory.at("q"))
        publisher.mock.assert_called_once_with({"param2": 1})
        reply = await broker.request(ModelA(param1=1), **memory.at("q"))
        assert json.loads(reply.body) == {"param2": 1}


@in_loop
async def test_subscriber_assertion_checks_body_fields_and_context(memory: Case) -> None:
    """Also test_publisher_assert_called_once_with and its neighbours."""
    broker = memory.broker(apply_types=True)
    publisher = broker.publisher(**memory.at("q2"))

    @broker.subscriber(**memory.at("q"))
    async def handle(body: ModelA) -> None:
        await publisher.publish(body, headers={"key": "other"}, correlation_id="other")

    async with memory.started(broker):
        with pytest.raises(AssertionError, match="`handle` was not called"):
            await handle.assert_called_once_with("hello")
        await broker.publish(
            ModelA(param1=1), **memory.at("q"), headers={"key": "value"}, correlation_id="cid"
        )
        await handle.assert_called_once_with(
            {"param1": 1},
            headers={"key": "value"},
            correlation_id="cid",
            context={"broker": broker, "message.correlation_id": "cid"},
        )
        await publisher.assert_called_once_with(
            {"param1": 1}, headers={"key": "other"}, correlation_id="other"
        )
        with pytest.raises(AssertionError, match=r"(?s)body:.*headers:"):
            await handle.assert_called_once_with({"param1": 2}, headers={"key": "wrong"})
    with pytest.raises(SetupError, match="is not under a test broker"):
        publisher.mock.assert_not_called()


@in_loop
async def test_batches_are_for_topics(memory: Case) -> None:
    broker = memory.broker()
    async with memory.started(broker):
        with pytest.raises((TypeError, FeatureNotSupportedException)):
            await broker.publish_batch("a", channel="q")  # type: ignore[call-arg]
