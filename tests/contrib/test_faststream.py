"""FastStream: what is of this broker; test_faststream_base.py has what is of all of them."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import pynotify
from programs import ROOT, environment
from receiving import PATIENCE, wait_until
from requirement import require

try:
    from faststream import AckPolicy, FastStream
    from faststream.exceptions import (
        AckMessage,
        IncorrectState,
        NackMessage,
        RejectMessage,
        SetupError,
    )
    from faststream.specification import AsyncAPI
except ImportError as missing:
    require("faststream", str(missing))

from faststream_case import Case, Heard, in_loop, within
from pynotify import AsyncConsumer, AsyncPubSub
from pynotify.contrib.faststream import (
    ChannelMessage,
    Connection,
    PynotifyBroker,
    PynotifyMessage,
    PynotifyResponse,
    PynotifyRouter,
    TestPynotifyBroker,
    TopicMessage,
    TopicSub,
    _subscriber,
)


@pytest.fixture
def case(segment_name: str) -> Case:
    return Case(segment_name, "topic", in_memory=False)


def topics(segment: str) -> dict[str, int]:
    """How many messages of each topic are not finished."""
    with pynotify.open(segment) as engine:
        return {topic.name: topic.unfinished for topic in engine.topics()}


async def until(condition: Any) -> None:
    async with asyncio.timeout(PATIENCE):
        while not condition():
            await asyncio.sleep(0)


# ---- channels and topics -----------------------------------------------------------------------


@in_loop
async def test_each_subscriber_of_a_channel_gets_each_message(case: Case) -> None:
    brokers, heard = [case.broker(), case.broker()], Heard()
    for broker in brokers:
        for _ in range(2):
            broker.subscriber("news")(heard.add)
    async with case.started(*brokers):
        await brokers[0].publish("hello", "news")
        assert await heard.upto(4) == ["hello"] * 4


@in_loop
async def test_a_message_of_a_topic_goes_to_one_subscriber_of_each_channel(case: Case) -> None:
    brokers, heard = [case.broker(), case.broker()], {"a": Heard(), "b": Heard()}
    for broker in brokers:
        for channel, each in heard.items():
            broker.subscriber(topic=TopicSub("mails", channel=channel))(each.add)
    async with case.started(*brokers):
        for number in range(20):
            await brokers[0].publish(number, topic="mails")
        for each in heard.values():
            assert sorted(await each.upto(20)) == list(range(20))


@in_loop
async def test_one_subscriber_of_each_channel_in_memory(segment_name: str) -> None:
    broker, heard = PynotifyBroker(segment_name, logger=None), {"a": Heard(), "b": Heard()}
    for channel in ("a", "a", "b"):
        broker.subscriber(topic=TopicSub("mails", channel=channel))(heard[channel].add)
    async with TestPynotifyBroker(broker):
        await broker.publish("1", topic="mails")
        await broker.publish_batch("2", "3", topic="mails")
    assert [each.all for each in heard.values()] == [["1", "2", "3"]] * 2


@in_loop
async def test_messages_wait_for_a_subscriber(case: Case) -> None:
    sender, broker, heard = case.broker(), case.broker(), Heard()
    broker.subscriber(topic="mails")(heard.add)
    async with sender:
        first = await sender.publish("1", topic="mails")
        assert first is not None
        assert first < str(await sender.publish("2", topic="mails"))
        assert await sender.publish("nothing hears it", "news") is None
    async with case.started(broker):
        assert await heard.upto(2) == ["1", "2"]


@in_loop
async def test_delay_and_ttl(case: Case) -> None:
    broker = case.broker()

    @broker.subscriber("asked")
    @broker.publisher(topic="later")
    async def asked(m: Any) -> Any:
        return PynotifyResponse(m, delay=3600.0, ttl=7200.0)

    async with case.started(broker):
        await broker.publish("x", topic="mails", delay=3600.0)
        await broker.publisher(topic="mails").publish("x", ttl=3600.0)
        await broker.publish("x", "asked")
        with pynotify.open(case.segment) as engine:
            await until(lambda: len(engine.topics()) == 2)
        with pynotify.connect(case.segment) as conn:
            mails, later = (conn.topic(name).channel("c").peek(9) for name in ("mails", "later"))
        found = [(message.body, message.state) for message in (*mails, *later)]
        assert found == [(b"x", "ready"), (b"x", "deferred"), (b"x", "deferred")]
        for wrong in ({"delay": 1.0}, {"ttl": 1.0}):
            with pytest.raises(SetupError, match="are for topics"):
                await broker.publish("x", "news", **wrong)


@in_loop
async def test_large_bodies(case: Case) -> None:
    broker, heard = case.broker(), Heard()
    body = os.urandom(5_000_000)
    broker.subscriber("pictures")(heard.add)
    async with case.started(broker):
        sending = asyncio.create_task(broker.publish(body, "pictures"))
        assert await heard.upto(1) == [body]
        await sending
        with pytest.raises(pynotify.PayloadTooLong):
            await broker.publish(body, topic="pictures")


@pytest.mark.parametrize("by", ["channel", "topic"])
@in_loop
async def test_a_handler_that_waits_does_not_fill_the_queue(segment_name: str, by: str) -> None:
    case = Case(segment_name, by, in_memory=False)
    broker, go, heard = case.broker(queue_pages=64), asyncio.Event(), Heard()

    @broker.subscriber(**case.at("q"))
    async def handler(m: str) -> None:
        await go.wait()
        await heard.add(m)

    async with case.started(broker):
        await broker.publish("0", **case.at("q"))
        for number in range(1, 201):  # a payload fills a page
            await broker.publish(str(number) + " " * 5000, "q")
        go.set()
        found = [m.strip() for m in await heard.upto(201 if by == "channel" else 1)]
    assert found == [str(number) for number in range(len(found))]


@in_loop
async def test_too_many_wait_for_a_handler(case: Case, caplog: pytest.LogCaptureFixture) -> None:
    broker, go, heard = case.broker(max_pending=2), asyncio.Event(), Heard()

    @broker.subscriber("news")
    async def handler(m: Any) -> None:
        await heard.add(m)
        await go.wait()

    async with case.started(broker):
        await broker.publish(0, "news")
        await heard.upto(1)
        for number in range(1, 5):
            await broker.publish(number, "news")
        await until(lambda: len(caplog.messages) == 2)
        go.set()
        assert await heard.upto(3) == [0, 3, 4]
    assert caplog.messages[0].endswith("channel 'news' was dropped: 2 wait for its handler")


@in_loop
async def test_what_is_lost_is_logged(case: Case, caplog: pytest.LogCaptureFixture) -> None:
    options = {"queue_pages": 64, "on_full": "drop-slowest"}
    broker, heard = case.broker(**options), Heard()
    broker.subscriber("news")(heard.add)
    async with case.started(broker):
        with pynotify.connect(case.segment) as conn:
            for _ in range(200):  # the loop does not run meanwhile
                conn.notify("news", " " * 5000)
        await until(lambda: any("were lost" in each for each in caplog.messages))
        await broker.publish("on", "news")
        await until(lambda: "on" in heard.all)


@pytest.mark.parametrize("by", ["channel", "topic"])
@in_loop
async def test_workers_handle_at_the_same_time(segment_name: str, by: str) -> None:
    case = Case(segment_name, by, in_memory=False)
    broker, together = case.broker(), asyncio.Barrier(4)

    @broker.subscriber(**case.at("q"), max_workers=4)
    async def handler(m: Any) -> None:
        await together.wait()

    async with case.started(broker):
        for _ in range(3):
            await broker.publish("x", **case.at("q"))
        await until(lambda: together.n_waiting == 3)
        await broker.publish("x", **case.at("q"))
        await until(lambda: together.n_waiting == 0)


# ---- what a message carries --------------------------------------------------------------------


@pytest.mark.parametrize("by", ["channel", "topic"])
@in_loop
async def test_headers(segment_name: str, by: str) -> None:
    case = Case(segment_name, by, in_memory=False)
    broker, heard = case.broker(apply_types=True), Heard()
    publisher = broker.publisher(**case.at("q"), headers={"a": 1, "b": "2"}, reply_to="replies")

    @broker.subscriber(**case.at("q"), no_reply=True)
    async def handler(m: str, message: PynotifyMessage) -> None:
        await heard.add((message, message.reply_to))

    async with case.started(broker):
        await publisher.publish("grün", headers={"b": "ü"}, correlation_id="c")
        await broker.publish("", **case.at("q"))
        (first, reply_to), (second, none) = await heard.upto(2)
    assert (first.body, first.correlation_id, reply_to) == ("grün".encode(), "c", "replies")
    assert first.headers == {
        "a": "1",
        "b": "ü",
        "content-type": "text/plain",
        "correlation_id": "c",
        "reply_to": "replies",
    }
    assert (second.body, none) == (b"", "")
    assert second.headers.keys() == {"content-type", "correlation_id"}
    assert len(second.correlation_id) == 36
    assert first.raw_message.destination == "q"
    assert isinstance(first.raw_message, TopicMessage if by == "topic" else ChannelMessage)


OTHERS = {
    "text": ("hallo", "hallo"),
    "bytes": (b"\0\1", b"\0\1"),
    "json": ({"a": [1, None]}, {"a": [1, None]}),
    "nothing": (None, b""),
    "a head that is none": (b"\0FastStream\1\0\0\0\2[]x", b"\0FastStream\1\0\0\0\2[]x"),
    "a head without an end": (b"\0FastStream\1\xff\0\0\0{}", b"\0FastStream\1\xff\0\0\0{}"),
    "a head of no text": (b"\0FastStream\1\0\0\0\1\xff", b"\0FastStream\1\0\0\0\1\xff"),
}


@pytest.mark.parametrize("what", OTHERS)
@in_loop
async def test_what_other_programs_send_on_a_channel(case: Case, what: str) -> None:
    sent, expected = OTHERS[what]
    broker, heard = case.broker(), Heard()
    broker.subscriber("news")(heard.add)
    async with case.started(broker):
        with pynotify.connect(case.segment) as conn, pynotify.PubSub(conn) as pubsub:
            pubsub.publish("news", sent)
        assert await heard.upto(1) == [expected]


@in_loop
async def test_what_other_programs_publish_to_a_topic(case: Case) -> None:
    broker, heard = case.broker(), Heard()
    broker.subscriber(topic="mails")(heard.add)
    async with case.started(broker):
        with pynotify.connect(case.segment) as conn:
            topic = conn.topic("mails")
            topic.publish('{"a": 1}')
            topic.publish("1", headers={"content-type": "text/plain"})
        assert await heard.upto(2) == [{"a": 1}, "1"]


@in_loop
async def test_what_other_programs_get(case: Case) -> None:
    broker = case.broker()
    with pynotify.connect(case.segment) as conn, pynotify.PubSub(conn) as pubsub:
        pubsub.subscribe("news")
        async with broker:
            await broker.publish({"a": 1}, "news", correlation_id="c")
            await broker.publish({"a": 1}, topic="mails", correlation_id="c")
        with conn.topic("mails").channel("c").consumer() as consumer:
            message = consumer.get(PATIENCE)
            assert message.body == b'{"a":1}'
            headers = {"content-type": "application/json", "correlation_id": "c"}
            assert message.headers == headers
            message.finish()
        _, obj, _ = next(iter(pubsub))
    assert obj.startswith(b"\0FastStream\1")
    end = 16 + int.from_bytes(obj[12:16], "big")
    assert json.loads(obj[16:end]) == headers
    assert obj[end:] == b'{"a":1}'


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
                await broker.request("x", "nobody")
        with pytest.raises(TimeoutError):
            await broker.request("x", "nobody", timeout=0.0)


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
        topic=TopicSub("mails", msg_timeout=0.05), max_workers=2, ack_policy=AckPolicy.MANUAL
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
        assert await heard.upto(2) == [2, "late"]


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


# ---- its life ----------------------------------------------------------------------------------


@in_loop
async def test_stop_waits_for_handlers(case: Case) -> None:
    broker, heard, go = case.broker(), Heard(), asyncio.Event()

    @broker.subscriber(topic="mails")
    async def handler(m: Any) -> None:
        await heard.add("begun")
        await go.wait()
        await heard.add("done")

    async with case.started(broker):
        await broker.publish("1", topic="mails")
        await broker.publish("2", topic="mails")
        await heard.upto(1)
        stopping = asyncio.create_task(broker.stop())
        await until(lambda: not broker.subscribers[0].running)
        go.set()
        await stopping
    assert heard.all == ["begun", "done"]
    assert topics(case.segment) == {"mails": 1}


@in_loop
async def test_what_takes_longer_goes_to_others(case: Case) -> None:
    slow, other = case.broker(graceful_timeout=0.01), case.broker(apply_types=True)
    heard = Heard()

    @slow.subscriber(topic="mails")
    async def never(m: Any) -> None:
        await heard.add("begun")
        await asyncio.Event().wait()

    @other.subscriber(topic="mails")
    async def handler(m: str, message: PynotifyMessage) -> None:
        await heard.add((m, message.attempts))

    async with slow:
        await slow.start()
        await slow.publish("x", topic="mails")
        await heard.upto(1)
        async with case.started(other):
            await slow.stop()
            assert await heard.upto(2) == ["begun", ("x", 2)]


@in_loop
async def test_it_may_be_started_again(case: Case) -> None:
    broker, heard = case.broker(), Heard()
    subscriber = broker.subscriber(topic="mails")
    subscriber(heard.add)
    for number in range(3):
        with pytest.raises(IncorrectState, match="not connected"):
            await broker.publish("x", topic="mails")
        with pytest.raises(IncorrectState, match="not connected"):
            await broker.publish("x", "news")
        async with case.started(broker):
            await subscriber.start()  # once more is the same as once
            await broker.publish(number, topic="mails")
            await heard.upto(number + 1)
    assert heard.all == [0, 1, 2]
    with pynotify.open(case.segment) as engine:
        assert not engine.stat().backends


@in_loop
async def test_a_topic_that_is_deleted_is_made_again(case: Case) -> None:
    broker, heard = case.broker(), Heard()
    broker.subscriber(topic="mails", max_workers=3)(heard.add)
    async with case.started(broker):
        await broker.publish("1", topic="mails")
        await heard.upto(1)
        with pynotify.connect(case.segment) as conn:
            conn.topic("mails").delete()
        await broker.publish("2", topic="mails")
        assert await heard.upto(2) == ["1", "2"]


@pytest.mark.parametrize("by", ["channel", "topic"])
@in_loop
async def test_an_error_of_the_segment_is_logged_and_tried_again(
    segment_name: str, by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = Case(segment_name, by, in_memory=False)
    monkeypatch.setattr(_subscriber, "_FIRST_PAUSE_S", 0.001)
    logged: list[str] = []

    class Logger:
        def log(self, level: int, message: Any, /, **_: Any) -> None:
            logged.append(str(message))

    failures = iter([pynotify.LockTimeout("no lock in time")])
    kind, name = (AsyncConsumer, "__anext__") if by == "topic" else (AsyncPubSub, "__aiter__")
    real = getattr(kind, name)

    def failing_once(self: Any) -> Any:
        for failure in failures:
            raise failure
        return real(self)

    monkeypatch.setattr(kind, name, failing_once)
    broker, heard = case.broker(logger=Logger()), Heard()
    broker.subscriber(**case.at("q"))(heard.add)
    async with case.started(broker):
        await until(lambda: "no lock in time; the next attempt is in 0.001 s" in logged)
        await broker.publish("x", **case.at("q"))
        assert await heard.upto(1) == ["x"]


@in_loop
async def test_ping(case: Case) -> None:
    broker = case.broker()
    assert not await broker.ping()
    async with case.started(broker):
        assert await broker.ping()
        pynotify.unlink(case.segment, force=True)
        assert not await broker.ping()
    assert not await broker.ping()


@in_loop
async def test_durable(case: Case, tmp_path: Path) -> None:
    broker, heard = case.broker(durable=True, data_dir=tmp_path), Heard()
    async with broker:
        await broker.publish("x", topic="mails")
    pynotify.unlink(case.segment)
    broker.subscriber(topic="mails")(heard.add)
    async with case.started(broker):
        assert await heard.upto(1) == ["x"]
        await (await broker.connect()).topic("mails").delete()


# ---- declarations ------------------------------------------------------------------------------


def test_what_is_declared_wrongly(segment_name: str) -> None:
    broker = PynotifyBroker(segment_name)
    for wrong in ({}, {"channel": "a", "topic": "b"}):
        for declare in (broker.subscriber, broker.publisher):
            with pytest.raises(SetupError, match="either a channel or a topic"):
                declare(**wrong)
    with pytest.raises(SetupError, match="max_workers"):
        broker.subscriber("a", max_workers=0)
    with pytest.raises(SetupError, match="PynotifyRouter can be included"):
        broker.include_router(object())  # type: ignore[arg-type]
    with pytest.raises(pynotify.ProgrammingError, match="bad segment name"):
        PynotifyBroker("a/b")


@in_loop
async def test_names_that_a_segment_does_not_take(case: Case) -> None:
    broker = case.broker()
    async with broker:
        with pytest.raises(pynotify.InvalidTopicName):
            await broker.publish("x", topic="a b")
        with pytest.raises(pynotify.InvalidChannelName):
            await broker.publish("x", "a" * 256)
        with pytest.raises(pynotify.InvalidTopicName):
            await broker.subscriber(topic="a b").start()
        await broker.publish("x", "{a}*" * 60)  # no pattern, and as long as it may be


def test_asyncapi(segment_name: str) -> None:
    broker, router = PynotifyBroker(segment_name, description="ours"), PynotifyRouter("r.")

    @router.subscriber(topic=TopicSub("mails", "audit"), description="heard")
    @router.publisher("sent", title="Sent")
    async def mail(number: int) -> str: ...

    broker.include_router(router)
    for version in ("2.6.0", "3.0.0"):
        schema = json.loads(AsyncAPI(broker, schema_version=version).to_specification().to_json())
        (server,) = schema["servers"].values()
        assert (server["protocol"], server["description"]) == ("pynotify", "ours")
        assert segment_name in json.dumps(server)
        assert schema["channels"].keys() == {"r.mails:Mail", "Sent"}
    assert schema["channels"]["r.mails:Mail"]["address"] == "r.mails"
    assert schema["channels"]["Sent"]["address"] == "r.sent"


# ---- workers -----------------------------------------------------------------------------------

MAILS = 300


def lines(path: Path) -> list[list[str]]:
    return [line.split() for line in path.read_text().splitlines()] if path.exists() else []


def test_four_workers_of_which_one_is_killed(segment_name: str, tmp_path: Path) -> None:
    """The example's, by FastStream's own command; each mail is sent, that of the killed again."""
    journal, folder = tmp_path / "journal", ROOT / "examples" / "adapters"
    env = {
        **environment(),
        "SEGMENT": segment_name,
        "JOURNAL": str(journal),
        "PYTHONPATH": f"{folder}:{ROOT}",
    }
    workers = [
        subprocess.Popen(
            [sys.executable, "-m", "faststream", "run", "faststream_app:app"],
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        for _ in range(4)
    ]
    try:
        with pynotify.open(segment_name, max_channel_name=255) as segment:

            def ready() -> bool:
                channels = [each for topic in segment.topics() for each in topic.channels]
                heard = {each.name: each.listeners for each in segment.channels()}
                return sum(len(each.consumers) for each in channels) == 4 == heard.get("who")

            wait_until(ready, "four workers listen", 3 * PATIENCE)
        assert asyncio.run(ask(segment_name)) == {worker.pid for worker in workers}
        subprocess.run(
            [sys.executable, folder / "faststream_app.py", str(MAILS)], env=env, check=True
        )
        wait_until(lambda: len(lines(journal)) > MAILS // 10, "some are sent")
        os.killpg(workers[0].pid, signal.SIGKILL)
        wait_until(
            lambda: {line[1] for line in lines(journal)} == set(map(str, range(MAILS))),
            "all are sent",
        )
        wait_until(lambda: topics(segment_name)["mails"] == 0, "all are done")
        assert topics(segment_name) == {"mails": 0}
        assert len({line[0] for line in lines(journal)}) > 1  # others went on
        for worker in workers[1:]:
            worker.terminate()
            assert worker.wait(PATIENCE) == 0
    finally:
        for worker in workers:
            if worker.poll() is None:
                os.killpg(worker.pid, signal.SIGKILL)
            worker.communicate()
        with pynotify.open(segment_name) as segment:
            wait_until(lambda: not segment.stat().backends, "their slots are free")


async def ask(segment: str) -> set[int]:
    """The processes that answer: the first reply to each request counts."""
    broker, heard = PynotifyBroker(segment, logger=None), Heard()
    broker.subscriber("answers")(heard.add)
    async with broker:
        await broker.start()
        await broker.publish(None, "who", reply_to="answers")
        return set(await heard.upto(4))


def test_an_application_runs(segment_name: str) -> None:
    broker, heard = PynotifyBroker(segment_name, logger=None), []
    app = FastStream(broker, logger=None)

    @broker.subscriber(topic="mails")
    async def handler(m: str) -> None:
        heard.append(m)
        app.exit()

    @app.after_startup
    async def publish() -> None:
        await broker.publish("x", topic="mails")

    asyncio.run(app.run())
    assert heard == ["x"]
