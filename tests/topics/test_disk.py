"""Topics on disk: what memory has no room for, and what survives a reboot."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

import pytest
from consuming import PATIENCE, bodies, numbered, take

import pynotify
from pynotify._ffi import lib
from pynotify.topics import Consumer, _message

SPAWN = multiprocessing.get_context("spawn")


class Reboot(Protocol):
    def __call__(self, topic_memory: int = 1 << 20) -> pynotify.Connection: ...


@pytest.fixture
def reboot(tmp_path: Path, new_name: Callable[[], str]) -> Iterator[Reboot]:
    """A connection, with a data_dir; called again, a new one, when all has gone but the files."""
    name = new_name()
    opened: list[pynotify.Connection] = []

    def make(topic_memory: int = 1 << 20) -> pynotify.Connection:
        for conn in opened:
            conn.close()
        opened.clear()
        pynotify.unlink(name, missing_ok=True)
        opened.append(pynotify.connect(name, data_dir=str(tmp_path), topic_memory=topic_memory))
        return opened[0]

    yield make
    for conn in opened:
        conn.close()


def test_what_has_no_room_in_memory_comes_back_in_order(
    reboot: Reboot,
) -> None:
    topic = reboot().topic("t")
    channel = topic.channel("ch")
    wanted = [f"{i:05}".encode() + b"x" * 500 for i in range(4000)]
    for body in wanted[:100]:
        topic.publish(body)
    topic.publish_many(wanted[100:])
    stats = topic.stats()
    assert stats.on_disk > 1000
    assert stats.unfinished == len(wanted)
    with channel.consumer(max_in_flight=50) as consumer:
        for body in wanted:
            message = consumer.get(PATIENCE)
            assert message.body == body
            message.finish()
    stats = topic.stats()
    assert (stats.on_disk, stats.unfinished, stats.corrupt, stats.error) == (0, 0, 0, None)


def test_what_could_not_be_synced_has_happened(
    reboot: Reboot, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`SyncFailed` is of what is done: the end of a `with` block does not do it again."""

    def unsynced(*arguments: object) -> int:
        return finish(*arguments) or -lib.PN_ESYNC

    conn = reboot()
    topic = conn.topic("t", durable=True, fsync="always")
    channel = topic.channel("ch")
    topic.publish_many(numbered(2))
    monkeypatch.setattr(Consumer, "finish_at_once", lambda *_: 0)  # else C calls it
    finish = _message._pn_message_finish
    monkeypatch.setattr(_message, "_pn_message_finish", unsynced)
    with channel.consumer() as consumer:
        with pytest.raises(pynotify.SyncFailed) as caught, consumer.get(PATIENCE):
            pass
        assert caught.value.sqlstate == "58030"
        with pytest.raises(pynotify.SyncFailed), consumer.get(PATIENCE) as message:
            message.finish()
    assert topic.stats().unfinished == 0


def test_max_depth_with_disk_bounds_memory_only(reboot: Reboot) -> None:
    topic = reboot().topic("t", max_depth=3)
    channel = topic.channel("ch")
    topic.publish_many(numbered(10))
    assert (topic.stats().on_disk, channel.stats().depth) == (7, 10)
    with channel.consumer() as consumer:
        messages = []
        for _ in range(10):
            message = consumer.get(PATIENCE)
            messages.append(message)
            message.finish()
    assert bodies(messages) == numbered(10)


def test_without_data_dir_too_much_is_topic_full(conn: pynotify.Connection) -> None:
    topic = conn.topic("t", max_depth=2)
    topic.publish_many(numbered(2))
    with pytest.raises(pynotify.TopicFull):
        topic.publish("one more")


def test_durable_topics_come_back(reboot: Reboot) -> None:
    """Bodies, headers, answers, attempts, what is deferred, channels, and what is paused."""
    topic = reboot().topic("t", durable=True, fsync="always")
    channel = topic.channel("ch")
    other = topic.channel("other")
    first, second, third = topic.publish_many(numbered(3), headers={"from": "shop"})
    later = topic.publish("later", delay=3600)
    with channel.consumer(max_in_flight=2) as consumer:
        one, two = take(consumer, 2)
        one.finish()
        two.requeue()
    other.pause()
    again = reboot()
    assert again.topics() == ["t"]
    topic = again.topic("t")
    assert topic.stats().durable
    assert sorted(topic.channels()) == ["ch", "other"]
    stats = topic.channel("other").stats()
    assert (stats.paused, stats.depth, stats.deferred) == (True, 3, 1)
    with topic.channel("ch").consumer(max_in_flight=3) as consumer:
        messages = take(consumer, 2)
        assert {message.id: message.attempts for message in messages} == {second: 2, third: 1}
        assert all(message.headers == {"from": "shop"} for message in messages)
        for message in messages:
            message.finish()
    assert topic.cancel(later)
    assert first not in {peeked.id for peeked in topic.channel("ch").peek(10)}
    assert topic.channel("ch").peek(10) == []


def test_what_is_cancelled_on_disk_is_gone_at_once(
    reboot: Reboot,
) -> None:
    conn = reboot()
    topic = conn.topic("t", max_depth=1, durable=True)
    topic.channel("ch")
    topic.publish("first")
    ids = [topic.publish(body, delay=3600) for body in ("a", "b", "c", "d")]
    topic.publish("last")
    assert topic.stats().on_disk == 5
    assert topic.cancel(ids[1])
    assert not topic.cancel(ids[1])
    assert (topic.stats().on_disk, topic.stats().unfinished) == (4, 5)
    with pytest.raises(ZeroDivisionError), conn.transaction():
        assert topic.cancel(ids[0])
        raise ZeroDivisionError
    assert topic.stats().on_disk == 4
    with conn.transaction():
        assert topic.cancel(ids[0])
        assert topic.cancel(ids[3])
        assert topic.stats().on_disk == 4
    assert topic.stats().on_disk == 2
    topic = reboot().topic("t")
    assert topic.stats().unfinished == 3
    assert [topic.cancel(each) for each in ids] == [False, False, True, False]
    with topic.channel("ch").consumer() as consumer:
        for body in (b"first", b"last"):
            message = consumer.get(PATIENCE)
            assert message.body == body
            message.finish()
    stats = topic.stats()
    assert (stats.on_disk, stats.unfinished, stats.corrupt) == (0, 0, 0)


def test_less_memory_than_before_changes_nothing_for_the_channels(reboot: Reboot) -> None:
    """What a channel had finished does not come again; attempts, headers and delays are kept."""
    topic = reboot().topic("t", durable=True)
    topic.channel("slow")
    fast = topic.channel("fast")
    wanted = [f"{i:04}".encode() + b"x" * 2000 for i in range(100)]
    topic.publish_many(wanted, headers={"from": "shop"})
    with fast.consumer() as consumer:
        for _ in wanted[:-2]:
            consumer.get(PATIENCE).finish()
        consumer.get(PATIENCE).requeue()
        consumer.get(PATIENCE).requeue(delay=3600)
    for _ in range(2):
        topic = reboot(64 << 10).topic("t")
        assert topic.stats().on_disk > 50
    topic.channel("late")
    with topic.channel("slow").consumer() as consumer:
        for body in wanted:
            message = consumer.get(PATIENCE)
            assert (message.body, message.attempts) == (body, 1)
            message.finish()
    with topic.channel("fast").consumer() as consumer:
        message = consumer.get(PATIENCE)
        assert (message.body, message.attempts) == (wanted[-2], 2)
        assert message.headers == {"from": "shop"}
        message.finish()
    assert (topic.stats().unfinished, topic.stats().on_disk) == (1, 0)
    assert topic.channel("fast").stats().deferred == 1
    assert topic.channel("late").stats().message_count == 0


def test_a_topic_that_is_not_durable_is_gone(reboot: Reboot) -> None:
    conn = reboot()
    conn.topic("kept", durable=True).publish("x")
    conn.topic("lost").publish("x")
    again = reboot()
    assert again.topics() == ["kept"]
    assert again.topic("kept").stats().depth == 1


def test_a_deleted_one_does_not_come_back(reboot: Reboot) -> None:
    conn = reboot()
    conn.topic("t", durable=True).publish("x")
    conn.topic("t").delete()
    conn.topic("still", durable=True)
    assert reboot().topics() == ["still"]


def test_a_transaction_comes_back_whole_or_not(reboot: Reboot) -> None:
    conn = reboot()
    topic = conn.topic("t", durable=True)
    channel = topic.channel("ch")
    topic.publish("answered")
    with channel.consumer() as consumer:
        message = consumer.get(PATIENCE)
        with conn.transaction():
            message.finish()
            topic.publish("in its place")
        with conn.transaction() as tx:
            topic.publish("never")
            raise pynotify.Rollback(tx)
    topic = reboot().topic("t")
    assert [peeked.body for peeked in topic.channel("ch").peek(10)] == [b"in its place"]


def work(name: str, data_dir: str, ready: multiprocessing.synchronize.Event) -> None:
    with pynotify.connect(name, data_dir=data_dir) as conn:
        topic = conn.topic("t", durable=True, fsync="none")
        with topic.channel("ch").consumer(max_in_flight=2) as consumer:
            topic.publish_many(numbered(3))
            consumer.get(PATIENCE).finish()
            consumer.get(PATIENCE)
            ready.set()
            signal.pause()


def test_killed_with_all_of_its_processes(tmp_path: Path, new_name: Callable[[], str]) -> None:
    """SIGKILL, then the segment goes: nothing that had returned is lost, without any fsync."""
    name = new_name()
    ready = SPAWN.Event()
    child = SPAWN.Process(target=work, args=(name, str(tmp_path), ready))
    child.start()
    assert ready.wait(PATIENCE)
    assert child.pid is not None
    os.kill(child.pid, signal.SIGKILL)
    child.join()
    pynotify.unlink(name)
    with (
        pynotify.connect(name, data_dir=str(tmp_path)) as conn,
        conn.topic("t").channel("ch").consumer(max_in_flight=2) as consumer,
    ):
        messages = take(consumer, 2)
        assert bodies(messages) == numbered(3)[1:]
        assert [message.attempts for message in messages] == [2, 1]


def test_durable_needs_a_directory(conn: pynotify.Connection) -> None:
    with pytest.raises(pynotify.Error, match="data_dir"):
        conn.topic("t", durable=True)
    assert conn.topics() == []
