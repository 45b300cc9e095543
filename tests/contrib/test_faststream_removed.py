"""FastStream: a broker outlives its segment, which was removed and made again."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import pynotify
from receiving import PATIENCE
from requirement import require

try:
    import faststream  # noqa: F401
except ImportError as missing:
    require("faststream", str(missing))

from faststream_case import REAL, Case, Heard, cases, in_loop, until, within
from pynotify.contrib.faststream import PynotifyBroker

case = cases(REAL)


@in_loop
async def test_a_segment_that_is_removed(case: Case, caplog: pytest.LogCaptureFixture) -> None:
    """Subscribers and publishers of two processes go on with the next one."""
    broker, other, heard = case.broker(), case.broker(), Heard()

    @broker.subscriber(**case.at("q"), max_workers=2)
    async def handle(m: Any) -> None:
        await (await broker.connect()).listeners("it is the one to the new segment")
        await heard.add(m)

    without_handlers = broker.subscriber(**case.at("r"))
    async with case.started(broker, other):
        connection = await broker.connect()
        pynotify.unlink(case.segment, force=True)
        pynotify.open(case.segment).close()
        taking = asyncio.create_task(without_handlers.get_one(timeout=PATIENCE))
        await until(lambda: broker._connection is not connection)
        for number in range(1, 3):
            await until_sent(other, number, heard, **case.at("q"))
        pynotify.unlink(case.segment, force=True)
        await until_sent(other, 3, heard, **case.at("q"))
        while not taking.done():
            await other.publish("x", **case.at("r"))
            await asyncio.sleep(0.002)
        assert (await taking).body == b"x"
    assert sorted(set(heard.all)) == [1, 2, 3]
    assert "what was in it is lost" in caplog.text
    if case.by == "channel":
        assert "messages of 'q' were lost (reconnected)" in caplog.text


async def until_sent(broker: PynotifyBroker, m: Any, heard: Heard, **at: str) -> None:
    """Publish it until it was heard: what the subscribers of another process have lost is lost."""
    async with asyncio.timeout(PATIENCE):
        while m not in heard.all:
            await broker.publish(m, **at)
            await asyncio.sleep(0.002)


@in_loop
async def test_a_segment_that_is_removed_in_a_handler(
    case: Case, caplog: pytest.LogCaptureFixture
) -> None:
    """What it works on is gone; it goes on with what comes next, without a pause."""
    broker, heard = case.broker(), Heard()

    @broker.subscriber(**case.at("q"))
    async def handle(m: Any) -> None:
        if m == "first":
            pynotify.unlink(case.segment, force=True)
            await broker.publish("second", **case.at("q"))
        await heard.add(m)

    async with case.started(broker):
        await broker.publish("first", **case.at("q"))
        if case.by == "channel":
            await until_sent(broker, "second", heard, **case.at("q"))
        assert (await heard.upto(2))[:2] == ["first", "second"]
    assert "the next attempt" not in caplog.text


@in_loop
async def test_a_request_whose_segment_is_removed(case: Case) -> None:
    """Its answer will not come, so it does not wait for it."""
    broker, at_work, over = case.broker(), asyncio.Event(), asyncio.Event()

    @broker.subscriber(**case.at("q"))
    async def handle(m: Any) -> str:
        at_work.set()
        await over.wait()
        return "too late"

    async with case.started(broker):
        asking = asyncio.create_task(broker.request("x", **case.at("q"), timeout=None))
        await within(at_work.wait())
        pynotify.unlink(case.segment, force=True)
        with pytest.raises(pynotify.ConnectionLost):
            await within(asking)
        over.set()
