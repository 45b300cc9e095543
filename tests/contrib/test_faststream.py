"""FastStream: channels and topics of a segment, the life of a broker, and its workers."""

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
    import faststream  # noqa: F401
except ImportError as missing:
    require("faststream", str(missing))

from faststream import FastStream
from faststream.exceptions import (
    IncorrectState,
    SetupError,
)
from faststream.specification import AsyncAPI

from faststream_case import Case, Heard, in_loop, topics, until
from pynotify import AsyncConsumer, AsyncPubSub
from pynotify.contrib.faststream import (
    ChannelMessage,
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
        with pynotify.connect(case.segment) as conn:  # it stops all the same
            conn.topic("mails").delete()


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


@pytest.mark.parametrize("reads", [False, True], ids=["at-once", "while-it-reads"])
@in_loop
async def test_an_error_while_it_stops(
    case: Case, monkeypatch: pytest.MonkeyPatch, reads: bool
) -> None:
    close, failures = AsyncPubSub.close, iter([pynotify.LockTimeout("no lock in time")])

    async def failing_once(self: Any) -> None:
        for failure in failures:
            raise failure
        await close(self)

    monkeypatch.setattr(AsyncPubSub, "close", failing_once)
    broker, heard = case.broker(), Heard()
    broker.subscriber("news")(heard.add)
    await broker.start()
    if reads:
        await broker.publish("x", "news")
        assert await heard.upto(1) == ["x"]
    with pytest.raises(ExceptionGroup, match="Failed to stop subscribers"):
        await broker.stop()
    assert asyncio.all_tasks() == {asyncio.current_task()}
    with pynotify.open(case.segment) as engine:
        assert not engine.stat().backends


@in_loop
async def test_ping(case: Case) -> None:
    broker, heard = case.broker(), Heard()
    broker.subscriber("news")(heard.add)
    broker.subscriber(topic="mails")(heard.add)
    assert not await broker.ping()
    async with case.started(broker):
        assert await broker.ping()
        pynotify.unlink(case.segment, force=True)
        with pynotify.connect(case.segment, max_backends=1):
            assert not await broker.ping()
        pynotify.unlink(case.segment)
        assert await broker.ping()
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
    with (tmp_path / "log").open("w") as log:
        workers = [
            subprocess.Popen(
                [sys.executable, "-m", "faststream", "run", "faststream_app:app"],
                env=env,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
            for _ in range(4)
        ]
    try:
        with pynotify.open(segment_name, max_channel_name=255) as segment:

            def ready() -> bool:
                channels = [each for topic in segment.topics() for each in topic.channels]
                heard = {each.name: each.listeners for each in segment.channels()}
                return sum(len(each.consumers) for each in channels) == 4 == heard.get("pid")

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
            worker.wait()
        with pynotify.open(segment_name) as segment:
            wait_until(lambda: not segment.stat().backends, "their slots are free")


async def ask(segment: str) -> set[int]:
    """The processes that answer: the first reply to each request counts."""
    broker, heard = PynotifyBroker(segment, logger=None), Heard()
    broker.subscriber("answers")(heard.add)
    async with broker:
        await broker.start()
        await broker.publish(None, "pid", reply_to="answers")
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
