"""What topics and channels are set to for messages and consumers that do not say it themselves."""

from __future__ import annotations

import math
import os
import signal
from typing import TYPE_CHECKING, Any

import pytest
from consuming import SOON

import pynotify
from receiving import PATIENCE, wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from sessions import EngineFactory


def settings(channel: pynotify.Channel) -> tuple[int | None, str | None, float | None]:
    stats = channel.stats()
    return stats.max_attempts, stats.dead_letter, stats.msg_timeout


def test_a_channel_is_set_and_set_otherwise(
    topic: pynotify.Topic, channel: pynotify.Channel
) -> None:
    assert settings(channel) == (None, None, None)
    channel.configure(max_attempts=3)
    channel.configure(dead_letter="dead", msg_timeout=1.5)
    assert settings(channel) == (3, "dead", 1.5)
    channel.configure()
    assert settings(channel) == (3, "dead", 1.5)
    channel.configure(dead_letter=None, max_attempts=0)
    assert settings(channel) == (0, None, 1.5)
    made = topic.channel("made", max_attempts=2, dead_letter="dead", msg_timeout=3)
    assert settings(made) == (2, "dead", 3.0)
    assert topic.channel("made", max_attempts=2) is topic.channel("made") is made
    for other in ({"max_attempts": 3}, {"dead_letter": None}, {"msg_timeout": 4.0}):
        with pytest.raises(pynotify.ProgrammingError, match="another") as caught:
            topic.channel("made", **other)
        assert "configure" in (caught.value.hint or "")


@pytest.mark.parametrize(
    "bad",
    [
        {"max_attempts": -1},
        {"max_attempts": 65536},
        {"msg_timeout": 0.0},
        {"msg_timeout": math.inf},
    ],
)
def test_bad_values_change_nothing(channel: pynotify.Channel, bad: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(bad))):
        channel.configure(**{"dead_letter": "dead", **bad})
    with pytest.raises(pynotify.InvalidTopicName, match="dead letter topic name 'no good'"):
        channel.configure(max_attempts=1, dead_letter="no good")
    with pytest.raises(TypeError):
        channel.configure(dead_letter=7)  # type: ignore[arg-type]
    assert settings(channel) == (None, None, None)


def test_a_consumers_own_value_wins(
    conn: pynotify.Connection, topic: pynotify.Topic, channel: pynotify.Channel
) -> None:
    channel.configure(max_attempts=1, dead_letter="dead")
    topic.publish("1")
    with channel.consumer() as consumer:
        consumer.get(PATIENCE).requeue()
    assert [each.body for each in conn.topic("dead").channel("c").peek()] == [b"1"]
    topic.publish("2")
    with channel.consumer(max_attempts=2, dead_letter=None) as consumer:
        consumer.get(PATIENCE).requeue()
        consumer.get(PATIENCE).requeue()
    assert (channel.stats().dead_lettered, channel.stats().dropped) == (1, 1)


def test_without_settings_five_attempts_are_made(
    topic: pynotify.Topic, channel: pynotify.Channel
) -> None:
    topic.publish("x")
    with channel.consumer() as consumer:
        for attempt in range(1, 6):
            message = consumer.get(PATIENCE)
            assert message.attempts == attempt
            message.requeue()
    assert channel.stats().dropped == 1


def test_what_a_killed_consumer_had_is_a_dead_letter_by_its_channel(
    conn: pynotify.Connection, topic: pynotify.Topic, channel: pynotify.Channel, engine_name: str
) -> None:
    topic.publish("poison")
    channel.configure(max_attempts=1, dead_letter="dead")
    child = os.fork()
    if child == 0:
        mine = pynotify.connect(engine_name)
        mine.topic("orders").channel("billing").consumer().get(PATIENCE)
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    assert channel.stats().dead_lettered == 1
    with conn.topic("dead").channel("c").consumer() as consumer:
        letter = consumer.get(PATIENCE)
        assert (letter.body, letter.headers["dead-letter-reason"]) == (b"poison", "max_attempts")
        letter.finish()


def test_dead_letters_do_not_come_back(conn: pynotify.Connection) -> None:
    a, b = conn.topic("a").channel("c"), conn.topic("b").channel("c")
    with pytest.raises(pynotify.ProgrammingError, match='"a" cannot be its own dead-letter topic'):
        a.configure(dead_letter="a")
    a.configure(dead_letter="b")
    with pytest.raises(pynotify.ProgrammingError, match="would come back") as caught:
        b.configure(dead_letter="a", max_attempts=1)
    assert "another topic" in (caught.value.hint or "")
    with pytest.raises(pynotify.ProgrammingError, match="would come back"):
        b.consumer(dead_letter="a")
    assert settings(b) == (None, None, None)


def test_default_ttl(conn: pynotify.Connection) -> None:
    topic = conn.topic("t", default_ttl=60)
    with topic.channel("c").consumer() as consumer:
        for ttl, long in ((None, False), (3600, True)):
            topic.publish("x", ttl=ttl)
            message = consumer.get(PATIENCE)
            expires = message.expires_in
            assert expires is not None
            assert (expires > 60) is long
            message.finish()
        topic.configure(default_ttl=SOON)
        topic.publish("gone")
        wait_until(lambda: topic.channel("c").stats().expired == 1, "it has expired")
        with pytest.raises(pynotify.Timeout):
            consumer.get(0)
        topic.configure(default_ttl=None)
        assert topic.stats().default_ttl is None
        topic.publish("stays")
        assert consumer.get(PATIENCE).body == b"stays"
    assert conn.topic("t") is conn.topic("t", default_ttl=None)
    with pytest.raises(pynotify.ProgrammingError, match="another default_ttl"):
        conn.topic("t", default_ttl=5)
    for bad in (0, -1, math.inf):
        with pytest.raises(ValueError, match="default_ttl"):
            topic.configure(default_ttl=bad)


def test_max_memory_is_of_one_topic(conn: pynotify.Connection) -> None:
    topic = conn.topic("bound", max_memory=65536, overflow="error")
    with pytest.raises(pynotify.TopicFull, match="max_memory is 65536 bytes, ") as caught:
        for number in range(1000):
            topic.publish(f"{number}")
    assert "raise the bound" in (caught.value.hint or "")
    stats = topic.stats()
    assert (stats.max_memory, stats.memory <= 65536) == (65536, True)
    conn.topic("other").publish_many(f"{number}" for number in range(1000))
    topic.configure(max_memory=None)
    topic.publish("at once")
    assert topic.stats().max_memory is None
    with pytest.raises(pynotify.ProgrammingError, match="another max_memory"):
        conn.topic("bound", max_memory=65536)
    for bad in (0, 4095):
        with pytest.raises(ValueError, match="max_memory"):
            topic.configure(max_memory=bad, default_ttl=1)
    assert topic.stats().default_ttl is None


def test_max_disk_bytes_is_of_one_topic(
    make_engine: EngineFactory, tmp_path: Path, new_name: Any
) -> None:
    name = new_name()
    with pynotify.connect(name, data_dir=str(tmp_path)) as conn:
        topic = conn.topic("t", max_memory=8192, max_disk_bytes=4096)
        channel = topic.channel("c")
        accepted = 0
        with pytest.raises(pynotify.TopicFull, match=r'topic "t" .* is 4096 bytes, 4') as caught:
            for accepted in range(1000):
                topic.publish(f"{accepted:04}")
        assert "this takes 100 more" in str(caught.value)
        assert "raise the bound" in (caught.value.hint or "")
        stats = topic.stats()
        assert (stats.max_disk_bytes, stats.disk_bytes) == (4096, 4000)
        for refused in (
            lambda: topic.publish("more"),
            lambda: topic.publish_many(["more", "and more"]),
            lambda: publish_in_transaction(conn, topic),
        ):
            with pytest.raises(pynotify.TopicFull, match="max_disk_bytes"):
                refused()
            assert topic.stats() == stats
        topic.configure(max_disk_bytes=8192)
        topic.publish(f"{accepted:04}")
        assert topic.stats().disk_bytes == 4100
        with channel.consumer() as consumer:
            for number in range(accepted + 1):
                with consumer.get(PATIENCE) as message:
                    assert message.body == f"{number:04}".encode()
        assert topic.stats().disk_bytes == 0
        topic.configure(max_disk_bytes=None)
        assert topic.stats().max_disk_bytes is None
        with pytest.raises(pynotify.ProgrammingError, match="another max_disk_bytes"):
            conn.topic("t", max_disk_bytes=4096)
        for bad in (0, 4095):
            with pytest.raises(ValueError, match="max_disk_bytes"):
                topic.configure(max_disk_bytes=bad, default_ttl=1)
    pynotify.unlink(name)


def publish_in_transaction(conn: pynotify.Connection, topic: pynotify.Topic) -> None:
    with conn.transaction():
        topic.publish("more")


def test_they_come_back_with_a_durable_topic(
    make_engine: EngineFactory, tmp_path: Path, new_name: Any
) -> None:
    name = new_name()
    with pynotify.connect(name, data_dir=str(tmp_path)) as conn:
        topic = conn.topic("t", durable=True, default_ttl=5, max_disk_bytes=5000)
        topic.channel("c", dead_letter="dead").configure(max_attempts=7)
    pynotify.unlink(name)
    with pynotify.connect(name, data_dir=str(tmp_path)) as conn:
        topic = conn.topic("t")
        assert (topic.stats().default_ttl, topic.stats().max_disk_bytes) == (5, 5000)
        assert settings(topic.channel("c")) == (7, "dead", None)
    pynotify.unlink(name)
