"""`pynotify topics`: look, publish, consume, pause, requeue; and others that show topics."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from dataclasses import asdict

import pytest
from console import Running, run

import pynotify
from receiving import PATIENCE, wait_until


def topics(name: str, *words: str, stdin: bytes = b"") -> list[str]:
    """What an action prints that must succeed."""
    done = run("topics", *words, "-n", name, stdin=stdin)
    assert (done.status, done.err) == (0, ""), words
    return done.out.splitlines()


@pytest.fixture
def topic(conn: pynotify.Connection) -> pynotify.Topic:
    return conn.topic("orders")


def test_help() -> None:
    done = run("topics", "--help")
    assert done.status == 0
    for action in ("list", "stats", "publish", "tail", "consume", "requeue", "pause", "empty"):
        assert f"\n  {action} " in done.out
    assert run("topics").status == 2
    done = run("topics", "frobnicate")
    assert (done.status, done.err.partition("\n")[0]) == (
        2, "pynotify topics: there is no action 'frobnicate'"
    )  # fmt: skip


def test_publish_and_consume(engine_name: str, topic: pynotify.Topic) -> None:
    (first,) = topics(engine_name, "publish", "orders", "hello", "--header", "a=b=c")
    second, third = topics(engine_name, "publish", "orders", "--lines", stdin=b"one\n\ntwo\n")
    (raw,) = topics(engine_name, "publish", "orders", stdin=b"\xff\n")
    assert len({first, second, third, raw}) == 4
    out = topics(engine_name, "consume", "orders", "billing", "--count", "2", "--json")
    found = [json.loads(line) for line in out]
    assert [(each["id"], each["body"], each["headers"]) for each in found] == [
        (first, "hello", {"a": "b=c"}), (second, "one", {})
    ]  # fmt: skip
    done = run("topics", "consume", "orders", "billing", "--timeout", "0.1", "-n", engine_name)
    assert (done.status, done.raw) == (0, b"two\n\xff\n\n")
    stats = topic.channel("billing").stats()
    assert (stats.finished, stats.depth, stats.in_flight) == (4, 0, 0)
    done = run("topics", "consume", "orders", "billing", "--timeout", "0", "--count", "1", "-n",
               engine_name)  # fmt: skip
    assert done.status == 1


def test_publish_with_times(engine_name: str, topic: pynotify.Topic) -> None:
    channel = topic.channel("c")
    topics(engine_name, "publish", "orders", "later", "--delay", "3600", "--ttl", "7200")
    (peeked,) = json.loads("".join(topics(engine_name, "peek", "orders", "c", "--json")))
    assert (peeked["state"], peeked["body"]) == ("deferred", "later")
    assert 3500 < peeked["due_in"] <= 3600
    assert [each.id for each in channel.peek()] == [peeked["id"]]
    _head, row = topics(engine_name, "peek", "orders", "c")
    assert row.split()[1:] == ["deferred", "0", "60", "min", "later"]


def test_list_and_stats(engine_name: str, topic: pynotify.Topic) -> None:
    topic.publish_many(["a", "bc"])
    with topic.channel("billing").consumer(max_in_flight=2) as consumer:
        consumer.get(PATIENCE).finish()
        (document,) = json.loads("\n".join(topics(engine_name, "stats", "orders", "--json")))
        expected = asdict(topic.stats())
        expected["channels"][0]["e2e"] = {
            str(key): value for key, value in expected["channels"][0]["e2e"].items()
        }
        assert document == expected
        head, row = topics(engine_name, "list")
        assert head.split()[:4] == ["topic", "database", "channels", "depth"]
        assert row.split() == ["orders", "default", "1", "0", "1", "2", "3"]
        lines = topics(engine_name, "stats")
        assert any(line.startswith("billing") and str(consumer.stats().pid) in line
                   for line in lines)  # fmt: skip
    assert json.loads("\n".join(topics(engine_name, "list", "--json")))[0]["name"] == "orders"


def test_all_databases_or_one(engine: pynotify.Engine, engine_name: str) -> None:
    """No connection is needed: neither theirs nor one's own."""
    for database in ("one", "two"):
        with engine.connect(database) as connection:
            connection.topic("orders").publish(database)
    assert [row.split()[:2] for row in topics(engine_name, "list")[1:]] == [
        ["orders", "one"], ["orders", "two"]
    ]  # fmt: skip
    assert topics(engine_name, "list", "--database", "two")[1].split()[:2] == ["orders", "two"]
    pages = topics(engine_name, "stats", "orders")
    assert [line.split()[1] for line in pages if line.startswith("database")] == ["one", "two"]
    for words in (["stat"], ["top", "--once", "--interval", "0.01"]):
        shown = run(*words, engine_name, "--database", "one").out
        assert "orders  one " in shown
        assert " two " not in shown
        document = json.loads(run(*words, engine_name, "--json").out)
        assert [each["database"] for each in document["topics"]] == ["one", "two"]
    assert engine.stat().backends == []


def test_pause_empty_delete(engine_name: str, topic: pynotify.Topic) -> None:
    channel = topic.channel("c")
    topics(engine_name, "pause", "orders", "c")
    topics(engine_name, "pause", "orders")
    assert (channel.stats().paused, topic.stats().paused) == (True, True)
    topic.publish("kept by the topic")
    topics(engine_name, "empty", "orders")
    assert topic.stats().depth == 0
    topics(engine_name, "unpause", "orders")
    topic.publish("x")
    topics(engine_name, "unpause", "orders", "c")
    topics(engine_name, "empty", "orders", "c")
    assert (channel.stats().depth, channel.stats().paused) == (0, False)
    topics(engine_name, "delete", "orders", "c")
    assert topic.channels() == []
    topics(engine_name, "delete", "orders")


def test_configure(engine_name: str, topic: pynotify.Topic) -> None:
    channel = topic.channel("c")
    topics(engine_name, "configure", "orders", "--default-ttl", "90", "--max-disk-bytes", "65536")
    topics(engine_name, "configure", "orders", "c", "--max-attempts", "0", "--dead-letter", "dead")
    assert (topic.stats().default_ttl, topic.stats().max_disk_bytes) == (90, 65536)
    assert (channel.stats().max_attempts, channel.stats().dead_letter) == (0, "dead")
    page = topics(engine_name, "stats", "orders")
    assert ["default", "ttl"] in [line.split()[:2] for line in page]
    assert ["disk", "0", "bytes", "of", "65,536"] in [line.split() for line in page]
    assert ["c", "0", "dead", "-"] in [line.split() for line in page]
    topics(engine_name, "configure", "orders", "c", "--msg-timeout", "7", "--unset", "dead-letter")
    assert (channel.stats().dead_letter, channel.stats().msg_timeout) == (None, 7)
    for words in (["orders"], ["orders", "--max-attempts", "1"],
                  ["orders", "c", "--default-ttl", "1"], ["orders", "other", "--max-attempts", "1"],
                  ["orders", "c", "--dead-letter", "orders"]):  # fmt: skip
        done = run("topics", "configure", *words, "-n", engine_name)
        assert (done.status, channel.stats().max_attempts) == (1, 0)
        assert "default-ttl" in done.err or "other" in done.err or "own dead-letter" in done.err


def test_what_does_not_exist_is_not_made(
    engine_name: str, conn: pynotify.Connection, topic: pynotify.Topic, new_name: Callable[[], str]
) -> None:
    for words in (["pause", "other"], ["stats", "other"], ["peek", "orders", "other"],
                  ["requeue", "orders", "other"], ["delete", "orders", "other"]):  # fmt: skip
        done = run("topics", *words, "-n", engine_name)
        assert done.status == 1
        assert '"other"' in done.err
    assert (conn.topics(), topic.channels()) == (["orders"], [])
    done = run("topics", "list", "-n", new_name())
    assert done.status == 1
    assert "does not exist" in done.err
    done = run("topics", "publish", "no good", "x", "-n", engine_name)
    assert (done.status, done.err.partition("\n")[0]) == (
        1, "pynotify topics: bad topic name 'no good'"
    )  # fmt: skip


def test_tail(engine_name: str, topic: pynotify.Topic, start: Callable[..., Running]) -> None:
    """It takes nothing from the others, and leaves nothing behind."""
    channel = topic.channel("billing")
    topic.publish("before")
    running = start("topics", "tail", "orders", "-n", engine_name)
    wait_until(lambda: len(topic.channels()) == 2, "it has a channel")
    topic.publish_many(["one", "two"])
    assert [running.line(), running.line()] == [b"one", b"two"]
    running.signal(signal.SIGTERM)
    assert running.finish().status == -signal.SIGTERM
    assert topic.channels() == ["billing"]
    assert channel.stats().depth == 3


def test_requeue(engine_name: str, conn: pynotify.Connection, topic: pynotify.Topic) -> None:
    topic.publish("x", headers={"a": "b"})
    topic.publish("y")
    with topic.channel("billing").consumer(max_in_flight=2, dead_letter="dead") as consumer:
        for _ in range(2):
            consumer.get(PATIENCE).dead_letter("no good")
    dead = conn.topic("dead").channel("look")
    assert topics(engine_name, "requeue", "dead", "look", "--count", "1") == ["1 published again"]
    assert topics(engine_name, "requeue", "dead", "look") == ["1 published again"]
    assert dead.stats().depth == 0
    with topic.channel("billing").consumer(max_in_flight=2) as consumer:
        first, second = consumer.get(PATIENCE), consumer.get(PATIENCE)
        assert [(each.body, each.headers) for each in (first, second)] == [
            (b"x", {"a": "b"}), (b"y", {})
        ]  # fmt: skip
        first.finish()
    done = run("topics", "requeue", "orders", "billing", "-n", engine_name)
    assert done.status == 1
    assert "no dead letter" in done.err
    assert topic.channel("billing").stats().depth == 1


def test_stat_top_and_doctor(engine_name: str, topic: pynotify.Topic) -> None:
    topic.publish("x")
    assert any(line.startswith("orders ") for line in run("stat", engine_name).out.splitlines())
    done = run("doctor", engine_name, "--interval", "0.01")
    assert '"orders" has 1 messages and no channel' in done.out
    channel = topic.channel("billing")
    channel.pause()
    done = run("doctor", engine_name, "--interval", "0.01")
    assert '"orders/billing" has 1 messages' in done.out
    assert f"unpause orders billing -n {engine_name} --database default" in done.out
    shown = run("top", engine_name, "--once", "--interval", "0.01").out.splitlines()
    assert any(line.split()[:4] == ["orders", "default", "1", "0"] for line in shown)
    channel.unpause()
    done = run("doctor", engine_name, "--interval", "0.01")
    assert "it has no consumer" in done.out
    channel.empty()
    assert "topics of" in run("doctor", engine_name, "--interval", "0.01").out
