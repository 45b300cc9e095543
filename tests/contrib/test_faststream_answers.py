"""FastStream: answers, batches and requests over a segment."""

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

from faststream import AckPolicy
from faststream.exceptions import (
    AckMessage,
    NackMessage,
    RejectMessage,
    SkipMessage,
)

from faststream_case import Case, Heard, in_loop, topics, until, within
from pynotify.contrib.faststream import (
    Connection,
    PynotifyBroker,
    PynotifyMessage,
    TestPynotifyBroker,
    TopicSub,
)


@pytest.fixture
def case(segment_name: str) -> Case:
    return Case(segment_name, "topic", in_memory=False)


# ---- requests ----------------------------------------------------------------------------------


@in_loop
async def test_requests_at_the_same_time(case: Case) -> None:
    broker = case.broker(apply_types=True)

    @broker.subscriber("square")
    @broker.subscriber(topic="square", max_workers=5)
    async def square(number: int) -> int:
        await asyncio.sleep(0)
        return number * number

    async with case.started(broker):
        asked = [
            broker.request(number, **({"channel": "square"} if number % 2 else {"topic": "square"}))
            for number in range(50)
        ]
        replies = [await reply.decode() for reply in await within(*asked)]
        assert replies == [number * number for number in range(50)]
        with pynotify.connect(case.segment) as conn:  # nothing listens for a reply any more
            assert set(conn.channels()) == {"square"}


@in_loop
async def test_a_request_in_a_transaction(case: Case) -> None:
    broker = case.broker()
    async with broker:
        connection = await broker.connect()
        async with connection.transaction():
            with pytest.raises(pynotify.ActiveTransaction):
                await broker.request("x", "unheard")
        with pytest.raises(TimeoutError):
            await broker.request("x", "unheard", timeout=0.0)


# ---- answers -----------------------------------------------------------------------------------

_GOOD, _AGAIN, _DEAD = "finished", "again", "dead"
ANSWERS = [
    (AckPolicy.ACK, None, _GOOD),
    (AckPolicy.ACK, ValueError(), _GOOD),
    (AckPolicy.ACK_FIRST, ValueError(), _GOOD),
    (AckPolicy.REJECT_ON_ERROR, None, _GOOD),
    (AckPolicy.REJECT_ON_ERROR, ValueError(), _DEAD),
    (AckPolicy.REJECT_ON_ERROR, AckMessage(), _GOOD),
    (AckPolicy.REJECT_ON_ERROR, NackMessage(delay=0.001), _AGAIN),
    (AckPolicy.NACK_ON_ERROR, None, _GOOD),
    (AckPolicy.NACK_ON_ERROR, ValueError(), _AGAIN),
    (AckPolicy.NACK_ON_ERROR, RejectMessage(reason="bad"), _DEAD),
    (AckPolicy.ACK, SkipMessage(), _AGAIN),
    (None, ValueError(), _DEAD),
]


@pytest.mark.parametrize("batch", [False, True])
@pytest.mark.parametrize(("policy", "error", "expected"), ANSWERS)
@in_loop
async def test_policies(
    case: Case, policy: AckPolicy | None, error: Exception | None, expected: str, batch: bool
) -> None:
    broker, heard = case.broker(apply_types=True), Heard()
    options = {} if policy is None else {"ack_policy": policy}

    @broker.subscriber(topic=TopicSub("mails", dead_letter="broken", batch=batch), **options)
    async def handler(m: Any, message: PynotifyMessage) -> None:
        await heard.add(message.attempts)
        if error is not None and message.attempts == 1:
            raise error

    async with case.started(broker):
        await broker.publish("x", topic="mails")
        assert await heard.upto(1 + (expected == _AGAIN)) == [1, 2][: len(heard.all)]
        await until(lambda: topics(case.segment)["mails"] == 0)
        assert topics(case.segment).get("broken", 0) == (expected == _DEAD)


@in_loop
async def test_the_policy_of_the_broker(case: Case) -> None:
    broker, heard = case.broker(ack_policy=AckPolicy.NACK_ON_ERROR, apply_types=True), Heard()

    @broker.subscriber(topic="mails")
    async def handler(m: str, message: PynotifyMessage) -> None:
        await heard.add(message.attempts)
        if message.attempts < 3:
            raise ValueError

    async with case.started(broker):
        await broker.publish("x", topic="mails")
        assert await heard.upto(3) == [1, 2, 3]


@in_loop
async def test_attempts_and_dead_letters(case: Case) -> None:
    broker, heard = case.broker(apply_types=True), Heard()

    @broker.subscriber(
        topic=TopicSub("mails", max_attempts=2, dead_letter="broken"),
        ack_policy=AckPolicy.NACK_ON_ERROR,
    )
    async def handler(m: str, message: PynotifyMessage) -> None:
        await heard.add(message.attempts)
        raise ValueError

    @broker.subscriber(topic="broken")
    async def broken(m: str, message: PynotifyMessage) -> None:
        headers = message.headers
        await heard.add((m, message.correlation_id, headers["dead-letter-topic"]))

    async with case.started(broker):
        await broker.publish("x", topic="mails", correlation_id="c")
        assert await heard.upto(3) == [1, 2, ("x", "c", "mails")]


@in_loop
async def test_answers_by_hand(case: Case) -> None:
    broker, heard = case.broker(apply_types=True), Heard()

    @broker.subscriber(topic=TopicSub("mails", dead_letter="broken"), ack_policy=AckPolicy.MANUAL)
    async def handler(m: str, message: PynotifyMessage) -> None:
        await {"ack": message.ack, "nack": message.nack, "reject": message.reject}[m]()
        await message.reject()  # the first answer counts
        if m == "nack" and message.attempts == 2:
            return
        await heard.add(m)

    async with case.started(broker):
        for each in ("reject", "ack"):
            await broker.publish(each, topic="mails")
        await heard.upto(2)
        assert topics(case.segment) == {"mails": 0, "broken": 1}
        await broker.publish("nack", topic="mails")
        await until(lambda: topics(case.segment) == {"mails": 0, "broken": 2})  # after 5 attempts


@in_loop
async def test_a_message_that_timed_out(case: Case) -> None:
    broker, heard, late = case.broker(apply_types=True), Heard(), asyncio.Event()

    @broker.subscriber(
        topic=TopicSub("mails", msg_timeout=0.2), max_workers=2, ack_policy=AckPolicy.MANUAL
    )
    async def handler(m: str, message: PynotifyMessage) -> None:
        if message.attempts == 1:
            await late.wait()
            with pytest.raises((pynotify.MessageNotInFlight, pynotify.NotOwner)):
                await message.ack()
            await heard.add("late")
            return
        await message.ack()
        await heard.add(message.attempts)
        late.set()

    async with case.started(broker):
        await broker.publish("x", topic="mails")
        attempts, last = await heard.upto(2)
        assert (attempts > 1, last) == (True, "late")


@pytest.mark.parametrize("ends", ["commit", "rollback"])
@in_loop
async def test_publish_and_acknowledge_in_one_transaction(case: Case, ends: str) -> None:
    broker, heard, hear = case.broker(apply_types=True), Heard(), asyncio.Event()
    broker.subscriber("sent")(heard.add)

    @broker.subscriber(topic=TopicSub("mails", dead_letter="broken"))
    async def handler(m: str, message: PynotifyMessage, connection: Connection) -> None:
        async with connection.transaction():
            await broker.publish(m, "sent")
            await broker.publish(m, topic="archive")
            await message.ack()
            if ends == "rollback":
                raise ValueError
        hear.set()

    async with case.started(broker):
        await broker.publish("x", topic="mails")
        if ends == "commit":
            assert await heard.upto(1) == ["x"]
            await within(hear.wait())
            assert topics(case.segment) == {"mails": 0, "archive": 1}
        else:
            await until(lambda: topics(case.segment).get("broken"))
            assert topics(case.segment) == {"mails": 0, "archive": 0, "broken": 1}
            assert not heard.all


@in_loop
async def test_an_answer_of_a_channels_message_does_nothing(case: Case) -> None:
    broker, heard = case.broker(apply_types=True), Heard()
    with pytest.warns(RuntimeWarning, match="ack_policy is for topics"):
        subscriber = broker.subscriber("news", ack_policy=AckPolicy.ACK)

    @subscriber
    async def handler(m: str, message: PynotifyMessage) -> None:
        await message.reject()
        await heard.add((m, message.attempts))

    async with case.started(broker):
        await broker.publish("x", "news")
        assert await heard.upto(1) == [("x", 1)]


# ---- batches -----------------------------------------------------------------------------------


@in_loop
async def test_batches(case: Case) -> None:
    sender, broker, heard = case.broker(), case.broker(apply_types=True), Heard()

    @broker.subscriber(topic=TopicSub("mails", batch=True, max_records=4))
    async def handler(many: list[Any], message: PynotifyMessage) -> None:
        await heard.add((many, [headers["correlation_id"] for headers in message.batch_headers]))

    async with sender:
        await sender.publish_batch(*range(5), topic="mails", correlation_id="a")
        ids = await sender.publish_batch("b", b"c", {"d": 1}, None, topic="mails", headers={"e": 1})
        assert ids == sorted(ids)
        assert await sender.publish_batch(topic="mails") == []
    async with case.started(broker):
        found = [each for many, _ in await heard.upto(3) for each in many]
        assert found == [*range(5), "b", b"c", {"d": 1}, b""]
        assert heard.all[0] == ([0, 1, 2, 3], ["a"] * 4)
        await until(lambda: topics(case.segment) == {"mails": 0})


@in_loop
async def test_a_batch_is_published_whole_or_not(case: Case) -> None:
    broker = case.broker()
    async with broker:
        connection = await broker.connect()
        connection.topic("mails", max_depth=2, overflow="error")
        for bodies in (("a", "b", "c"), ("a", b"b", {"c": 1})):
            with pytest.raises(pynotify.TopicFull):
                await broker.publish_batch(*bodies, topic="mails")
        assert topics(case.segment) == {"mails": 0}


@in_loop
async def test_a_batch_in_a_transaction(case: Case) -> None:
    broker = case.broker()
    async with broker:
        connection = await broker.connect()
        for expected in (0, 3):
            async with connection.transaction():
                await broker.publish_batch("a", b"b", {"c": 1}, topic="mails")
                if not expected:
                    raise pynotify.Rollback
            assert topics(case.segment) == {"mails": expected}


@in_loop
async def test_a_batch_in_memory(segment_name: str) -> None:
    broker = PynotifyBroker(segment_name, logger=None)

    @broker.subscriber(topic=TopicSub("mails", batch=True))
    async def handler(many: list[str]) -> None: ...

    async with TestPynotifyBroker(broker):
        await broker.publish("a", topic="mails")
        handler.mock.assert_called_once_with(["a"])
        await broker.publish_batch("b", "c", topic="mails")
        handler.mock.assert_called_with(["b", "c"])


# ---- without handlers --------------------------------------------------------------------------


@in_loop
async def test_get_one_acknowledges(case: Case) -> None:
    broker = case.broker()
    automatic = broker.subscriber(topic="mails")
    manual = broker.subscriber(topic=TopicSub("mails", "manual"), ack_policy=AckPolicy.MANUAL)
    batch = broker.subscriber(topic=TopicSub("mails", "batch", batch=True))
    async with case.started(broker):
        await broker.publish("x", topic="mails")
        for each in (automatic, manual, batch):
            message = await each.get_one(timeout=PATIENCE)
            assert message is not None
            assert await message.decode() == (["x"] if each is batch else "x")
        assert await manual.get_one(timeout=0.0) is None
    with pynotify.connect(case.segment) as conn:
        channels = [conn.topic("mails").channel(name) for name in ("workers", "manual", "batch")]
        assert [channel.stats().depth for channel in channels] == [0, 1, 0]
