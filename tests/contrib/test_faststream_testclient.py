"""FastStream's own cases of any broker, with ours: brokers in memory.

tests/support/faststream_case.py says which are left out.
"""

from __future__ import annotations

import asyncio
import gc
import json
from typing import Any
from unittest.mock import call

import pytest

from receiving import PATIENCE
from requirement import require

try:
    import faststream  # noqa: F401
except ImportError as missing:
    require("faststream", str(missing))

from faststream.exceptions import (
    FeatureNotSupportedException,
    SetupError,
)
from pydantic import BaseModel

from faststream_case import MEMORY, REAL, Case, Heard, cases, in_loop
from pynotify.contrib.faststream import (
    PynotifyBroker,
    TestPynotifyBroker,
)

real = cases(REAL)
memory = cases(MEMORY)


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
