"""FastStream's own cases of any broker, with ours: publishing, parsers and codecs.

tests/support/faststream_case.py says which are left out.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any
from unittest.mock import MagicMock

import pytest

from receiving import PATIENCE
from requirement import require

try:
    import faststream  # noqa: F401
except ImportError as missing:
    require("faststream", str(missing))

from faststream import BaseMiddleware, Context, Response
from faststream._internal.parser import DefaultCodec
from faststream.response import ensure_response
from pydantic import BaseModel

from faststream_case import MEMORY, REAL, Case, Heard, cases, in_loop, within
from pynotify.contrib.faststream import (
    PynotifyPublishCommand,
    TopicSub,
)

MESSAGE = Context("message")


case = cases(REAL + MEMORY)
real = cases(REAL)
memory = cases(MEMORY)


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
