"""PubSub with a codec: models of msgspec and pydantic, or the program's own."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import numpy as np
import pytest

import pynotify
from programs import require_module
from pubsub.conftest import NewPubSub
from pubsub.objects import objects, take
from receiving import PATIENCE
from sessions import Connect


def model(kind: str) -> tuple[Any, Any]:
    """A model, and what makes one of it."""
    if kind == "own":
        return _Own(), complex
    require_module(kind.partition(".")[0])
    if kind == "msgspec":
        import msgspec

        point = msgspec.defstruct("Point", [("x", float), ("y", float)])
        return point, point
    import pydantic

    made: Any = pydantic.create_model("Point", x=(float, ...), y=(float, ...))
    return (pydantic.TypeAdapter(made) if kind == "pydantic.adapter" else made), (
        lambda x, y: made(x=x, y=y)
    )


class _Own:
    def encode(self, obj: complex) -> str:
        return json.dumps([obj.real, obj.imag])

    def decode(self, text: bytes) -> complex:
        real, imag = json.loads(text)
        return complex(real, imag)


KINDS = ["msgspec", "pydantic", "pydantic.adapter", "own"]


@pytest.mark.parametrize("kind", KINDS)
def test_models_arrive(connect: Connect, new_pubsub: NewPubSub, kind: str) -> None:
    codec, make = model(kind)
    sender, receiver = new_pubsub(connect(), codec=codec), new_pubsub(connect(), codec=codec)
    plain = new_pubsub(connect())
    for pubsub in (receiver, plain):
        pubsub.subscribe("c")
    sent = [make(1.0, 2.5), "text", b"bytes", None, make(0.0, 0.0)]
    for obj in sent:
        sender.publish("c", obj)
    sender.publish("c", np.zeros(3))
    received = objects(take(receiver, 6))
    assert received[:5] == sent
    assert type(received[0]) is type(sent[0])
    assert received[5].shape == (3,)
    others = objects(take(plain, 6))
    assert others[0] == ([1, 2.5] if kind == "own" else {"x": 1, "y": 2.5})


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_no_such_model(
    connect: Connect, new_pubsub: NewPubSub, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Refused where it is sent, if the library does, and malformed where it comes."""
    codec, make = model(kind)
    plain, receiver = new_pubsub(connect()), new_pubsub(connect(), codec=codec)
    receiver.subscribe("c")
    plain.publish("c", {"x": "no number"})
    plain.publish("c", {})
    receiver.publish("c", make(1.0, 1.0))
    assert objects(take(receiver, 1)) == [make(1.0, 1.0)]
    assert receiver.stats().malformed == 2
    assert "not what the codec takes" in caplog.text
    with pytest.raises(Exception, match=r".") as caught:
        receiver.publish("c", object())
    assert isinstance(caught.value, TypeError | ValueError | AttributeError)


def test_what_is_no_codec(connect: Connect) -> None:
    for wrong in (int, 3, _Own, object()):
        with pytest.raises(TypeError, match="codec must be"):
            pynotify.PubSub(connect(), codec=wrong)


def test_large_ones(connect: Connect, new_pubsub: NewPubSub) -> None:
    class Text:
        def encode(self, obj: dict[str, str]) -> bytes:
            return json.dumps(obj, ensure_ascii=False).encode()

        def decode(self, text: bytes) -> Any:
            return json.loads(text)

    sender = new_pubsub(connect(), codec=Text(), raw=True)
    receiver = new_pubsub(connect(), codec=Text())
    receiver.subscribe("c")
    sender.publish("c", {"k": "é" * 100_000})
    assert objects(take(receiver, 1)) == [{"k": "é" * 100_000}]


def test_tasks(engine: pynotify.Engine) -> None:
    async def make() -> pynotify.AsyncConnection:
        return await pynotify.AsyncConnection.connect(engine.name)

    async def play() -> Any:
        async with pynotify.AsyncPubSub(make, codec=_Own()) as ps:
            await ps.subscribe("c")
            await ps.publish("c", 1 + 2j)
            async with asyncio.timeout(PATIENCE):
                async for _, obj, _ in ps:
                    return obj

    assert asyncio.run(play()) == 1 + 2j
