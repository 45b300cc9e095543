"""`Engine.topics`: what one sees of topics without a connection."""

from __future__ import annotations

import pytest
from consuming import numbered

import pynotify
from receiving import PATIENCE, wait_until
from sessions import EngineFactory


def test_databases_without_a_connection(
    engine: pynotify.Engine,
) -> None:
    assert engine.topics() == []
    for database in ("two", "one"):
        with engine.connect(database) as connection:
            for name in ("orders", "jobs"):
                connection.topic(name).publish(database)
    before = engine.stat()
    assert before.backends == []
    found = engine.topics()
    assert [(topic.database, topic.name, topic.depth) for topic in found] == [
        ("one", "jobs", 1), ("one", "orders", 1), ("two", "jobs", 1), ("two", "orders", 1)
    ]  # fmt: skip
    assert engine.topics("two") == found[2:]
    assert engine.topics("three") == []
    assert engine.stat() == before


def test_the_same_as_through_a_connection(
    engine: pynotify.Engine, topic: pynotify.Topic, channel: pynotify.Channel
) -> None:
    topic.channel("another").pause()
    topic.publish_many(numbered(4))
    topic.publish("later", delay=3600)
    with channel.consumer(max_in_flight=3) as consumer:
        consumer.get(PATIENCE).finish()
        consumer.get(PATIENCE)
        (found,) = engine.topics()
        assert found == topic.stats()
        assert [each.name for each in found.channels] == ["another", "billing"]
        billing = found.channels[1]
        assert billing.consumers == [consumer.stats()]
        assert set(billing.e2e) == {0.5, 0.9, 0.99, 0.999}


def test_every_slot_may_be_taken(make_engine: EngineFactory) -> None:
    engine = make_engine(max_backends=1)
    with engine.connect() as connection:
        connection.topic("orders").publish("x")
        with pytest.raises(pynotify.TooManyBackends):
            engine.connect()
        assert [topic.name for topic in engine.topics()] == ["orders"]


def test_what_is_due_counts_though_no_consumer_comes(
    engine: pynotify.Engine, topic: pynotify.Topic, channel: pynotify.Channel
) -> None:
    topic.publish("soon", delay=0.001)

    def depths() -> tuple[int, int]:
        ((seen,),) = (each.channels for each in engine.topics())
        return seen.depth, seen.deferred

    wait_until(lambda: depths() == (1, 0), "it is due")


def test_how_old_the_first_in_line_is(
    engine: pynotify.Engine, topic: pynotify.Topic, channel: pynotify.Channel
) -> None:
    def seen() -> list[float | None]:
        ((looked_at,),) = (each.channels for each in engine.topics())
        return [looked_at.oldest_ready, channel.stats().oldest_ready]

    assert seen() == [None, None]
    topic.publish("x")
    first, second = seen()
    assert first is not None and second is not None
    assert 0 <= first <= second < PATIENCE
    with channel.consumer() as consumer:
        consumer.get(PATIENCE)
        assert seen() == [None, None]


def test_a_closed_engine_does_not_look(engine: pynotify.Engine) -> None:
    closed = pynotify.open(engine.name)
    closed.close()
    with pytest.raises(pynotify.InterfaceError):
        closed.topics()
