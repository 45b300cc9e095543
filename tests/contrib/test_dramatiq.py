"""dramatiq: actors on topics, run by workers of which one is killed."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import pynotify
from receiving import PATIENCE, wait_until
from requirement import require
from task_workers import four_workers

try:
    import dramatiq
    from dramatiq.errors import ConnectionClosed, QueueJoinTimeout, QueueNotFound
except ImportError as missing:
    require("dramatiq", str(missing))

from pynotify.contrib.dramatiq import PynotifyBroker


@pytest.fixture
def broker(segment_name: str) -> Iterator[PynotifyBroker]:
    made = PynotifyBroker(segment_name)
    made.declare_queue("default")
    yield made
    made.close()


def message(number: int = 0, queue: str = "default") -> dramatiq.Message[Any]:
    return dramatiq.Message(
        queue_name=queue, actor_name="work", args=(number,), kwargs={}, options={}
    )


def taken(consumer: Any) -> Any:
    found = next(consumer)
    assert found is not None
    return found


def unfinished(segment_name: str) -> dict[str, int]:
    with pynotify.open(segment_name) as segment:
        return {topic.name: topic.unfinished for topic in segment.topics()}


def test_actors_run(broker: PynotifyBroker) -> None:
    ran = []
    dramatiq.set_broker(broker)

    @dramatiq.actor
    def work(number: int) -> None:
        ran.append(number)

    worker = dramatiq.Worker(broker, worker_threads=1, worker_timeout=100)
    worker.start()
    try:
        for number in range(20):
            work.send(number)
        broker.join("default", timeout=int(PATIENCE * 1000))
    finally:
        worker.stop()
    assert ran == list(range(20))


def test_acknowledged_and_given_up(broker: PynotifyBroker, segment_name: str) -> None:
    for number in range(3):
        broker.enqueue(message(number))
    consumer = broker.consume("default", prefetch=3)
    messages = [taken(consumer) for _ in range(3)]
    assert [each.args for each in messages] == [(0,), (1,), (2,)]
    consumer.ack(messages[0])
    consumer.nack(messages[1])
    assert unfinished(segment_name) == {"dramatiq.default": 1, "dramatiq.default.XQ": 1}
    consumer.close()
    again = broker.consume("default")
    assert taken(again).args == (2,)  # what is not answered comes again
    again.close()
    with pynotify.connect(segment_name) as conn:
        (dead,) = conn.topic("dramatiq.default.XQ").channel("workers").peek(1)
        assert dramatiq.Message.decode(dead.body).args == (1,)
        assert conn.topic("dramatiq.default.XQ").stats().default_ttl == 7 * 86400


def test_a_consumer_has_at_most_what_it_may_prefetch(broker: PynotifyBroker) -> None:
    for number in range(3):
        broker.enqueue(message(number))
    consumer = broker.consume("default", prefetch=2, timeout=1)
    messages = [taken(consumer) for _ in range(2)]
    assert next(consumer) is None
    other = broker.consume("default")
    assert taken(other).args == (2,)
    consumer.ack(messages[0])
    broker.enqueue(message(3))
    assert taken(consumer).args == (3,)
    consumer.close()
    other.close()


def test_a_delayed_message_waits_in_the_topic(broker: PynotifyBroker, segment_name: str) -> None:
    broker.enqueue(message(1), delay=3_600_000)
    broker.enqueue(message(2))
    consumer = broker.consume("default", timeout=1)
    consumer.ack(taken(consumer))
    assert next(consumer) is None
    with pynotify.open(segment_name) as segment:
        (topic,) = [each for each in segment.topics() if not each.name.endswith("XQ")]
        assert [channel.deferred for channel in topic.channels] == [1]
    broker.flush("default")
    broker.join("default", timeout=0)
    consumer.close()


def test_what_is_no_message_of_dramatiq(broker: PynotifyBroker, segment_name: str) -> None:
    with pynotify.connect(segment_name) as conn:
        conn.topic("dramatiq.default").publish(b"wrong")
    broker.enqueue(message(1))
    consumer = broker.consume("default")
    assert next(consumer) is None
    assert taken(consumer).args == (1,)
    assert unfinished(segment_name)["dramatiq.default.XQ"] == 1
    consumer.close()


def test_acknowledged_too_late(broker: PynotifyBroker, caplog: pytest.LogCaptureFixture) -> None:
    """By another consumer than the message's, as after a restart of dramatiq's thread."""
    broker.enqueue(message(1))
    consumer = broker.consume("default")
    late = taken(consumer)
    consumer.close()
    with caplog.at_level(logging.WARNING):
        consumer.ack(late)
    assert f"Message {late.message_id} was late: " in caplog.text
    again = broker.consume("default")
    assert taken(again).args == (1,)
    again.close()


def test_queues_that_were_not_declared(broker: PynotifyBroker) -> None:
    with pytest.raises(QueueNotFound):
        broker.enqueue(message(queue="other"))
    with pytest.raises(QueueNotFound):
        broker.consume("other")
    with pytest.raises(QueueNotFound):
        broker.join("other")


def test_join_ends(broker: PynotifyBroker) -> None:
    broker.enqueue(message())
    with pytest.raises(QueueJoinTimeout):
        broker.join("default", timeout=1)
    broker.flush_all()
    broker.join("default")


def test_a_segment_that_was_removed(broker: PynotifyBroker, segment_name: str) -> None:
    broker.enqueue(message(1))
    pynotify.unlink(segment_name, force=True)
    with pytest.raises(ConnectionClosed, match="unlinked"):
        broker.enqueue(message(2))
    broker.enqueue(message(3))  # in a new one
    consumer = broker.consume("default")
    assert taken(consumer).args == (3,)
    pynotify.unlink(segment_name, force=True)
    with pytest.raises(ConnectionClosed):
        next(consumer)
    consumer.close()
    broker.close()


def test_a_topic_that_was_deleted(broker: PynotifyBroker, segment_name: str) -> None:
    broker.enqueue(message(1))
    consumer = broker.consume("default")
    with pynotify.connect(segment_name) as conn:
        conn.topic("dramatiq.default").delete()
    with pytest.raises(ConnectionClosed):
        next(consumer)
    consumer.close()
    broker.enqueue(message(2))
    again = broker.consume("default")
    assert taken(again).args == (2,)
    again.close()


def test_a_forked_child_connects_itself(broker: PynotifyBroker) -> None:
    """The parent's consumer goes on; what the child does and how it ends is not its matter."""
    consumer = broker.consume("default")
    child = os.fork()
    if child == 0:
        try:
            broker.enqueue(message(os.getpid()))
            broker.close()
        finally:
            os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    found = taken(consumer)
    assert found.args == (child,)
    consumer.ack(found)
    broker.join("default", timeout=0)
    consumer.close()


def test_four_workers_of_which_one_is_killed(segment_name: str, tmp_path: Path) -> None:
    """The example's, by dramatiq's own command; each task is run, that of the killed one again."""
    command = ["dramatiq", "dramatiq_tasks", "--processes", "1", "--threads", "2"]
    with four_workers(
        *command, sender="dramatiq_tasks.py", segment_name=segment_name, tmp_path=tmp_path
    ) as workers:
        workers.send()
        workers.kill_one_when_some_are_run()
        wait_until(lambda: unfinished(segment_name)["dramatiq.default"] == 0, "all are done")
        assert workers.all_are_run()
        workers.processes[1].send_signal(signal.SIGTERM)
        assert workers.processes[1].wait(PATIENCE) == 0
