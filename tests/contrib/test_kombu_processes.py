"""The kombu transport in several processes: forked, killed, and changing what is declared."""

from __future__ import annotations

import os
import random
import signal
from typing import Any

import pytest

import pynotify
from forking import ChildFailed, ForkedChild
from receiving import wait_until
from requirement import require

try:
    import kombu
except ImportError as missing:
    require("kombu", str(missing))

from kombu_peer import JOBS, Peer, Peers, topics
from pynotify.contrib.kombu._declared import topic_name


def test_a_forked_child_publishes_and_leaves_the_parents_consumers_alone(peers: Peers) -> None:
    peer = peers()
    peer.declare(JOBS)
    peer.publish("before", "jobs")
    hub = kombu.asynchronous.Hub()
    consumer = peer.consume(JOBS, prefetch_count=3)
    peer.drain(1)
    peer.connection.register_with_event_loop(hub)

    def child() -> Any:
        peer.publish("child", "jobs")
        with pytest.raises(pynotify.ForkedConnectionError):
            peer.messages[0].ack()
        consumer.cancel()
        peer.connection.close()
        return True

    try:
        assert ForkedChild(child).result()
        assert len(hub.readers) == 1, "the child has not touched it"
        while len(peer.got) < 2:
            hub.run_once()
        peer.publish("parent", "jobs")
        while len(peer.got) < 3:
            hub.run_once()
        assert peer.got == ["before", "child", "parent"]
        peer.messages[0].ack()
    finally:
        peer.close()
        hub.close()


def test_a_forked_child_consumes_with_consumers_of_its_own(peers: Peers) -> None:
    peer = peers()
    peer.declare(JOBS)
    peer.consume(JOBS, prefetch_count=1)
    peer.publish("parent's", "jobs")
    peer.drain(1)

    def child() -> Any:
        peer.publish("child's", "jobs")
        peer.got.clear()
        peer.consume(JOBS)
        peer.drain(1)
        peer.messages[-1].ack()
        peer.connection.close()
        return peer.got

    assert ForkedChild(child).result() == ["child's"]
    peer.messages[0].ack()
    assert topics(peers.segment)["kombu.jobs"].unfinished == 0


def test_a_connection_that_was_closed_in_the_child_is_made_again(peers: Peers) -> None:
    """What Celery's pools do after they forked."""
    peer = peers()
    peer.declare(JOBS)

    def child() -> Any:
        peer.connection.collect()
        with kombu.Connection(peer.connection.as_uri()) as connection:
            kombu.Producer(connection).publish("x", routing_key="jobs")
        return peer.connection.default_channel.basic_get("jobs", no_ack=True).payload

    assert ForkedChild(child).result() == "x"
    peer.publish("y", "jobs")
    assert peer.channel.basic_get("jobs", no_ack=True).payload == "y"


def killed(ready: Any) -> None:
    """A process that calls `ready` and is killed then."""

    def child() -> None:
        ready()
        os.kill(os.getpid(), signal.SIGKILL)

    assert ForkedChild(child).join() == -signal.SIGKILL


def test_the_messages_of_a_killed_consumer_come_again(peers: Peers) -> None:
    peer = peers()
    peer.declare(JOBS)
    for number in range(3):
        peer.publish(number, "jobs")

    def take() -> None:
        mine = Peer(peers.segment)
        mine.consume(JOBS)
        mine.drain(2)

    killed(take)
    peer.consume(JOBS)
    assert peer.drain(3) == [0, 1, 2]
    assert [bool(each.delivery_info.get("redelivered")) for each in peer.messages] == [
        True,
        True,
        False,
    ]


def test_queues_of_killed_processes(peers: Peers) -> None:
    """What is for one process only, or has had its last consumer, is removed by the next one."""
    peer = peers()
    exchange = kombu.Exchange("e", "fanout")
    kept = kombu.Queue("kept", exchange, auto_delete=True)

    def declare() -> None:
        mine = Peer(peers.segment)
        queues = [
            kombu.Queue("exclusive", exchange, exclusive=True),
            kombu.Queue("consumed", exchange, auto_delete=True),
            kombu.Queue("reply", exchange, auto_delete=True, expires=3600),
            kombu.Queue("lasting", exchange, expires=3600),
            kept,
        ]
        mine.declare(*queues)
        mine.consume(queues[1])
        mine.publish("x", "", "e")

    killed(declare)
    assert len(peer.declared()) == 5
    other = peers()
    assert other.declared() == {"lasting", "kept"}
    assert topics(peers.segment).keys() == {"kombu.lasting", "kombu.kept"}
    peer.consume(kept)
    assert peer.drain(1) == ["x"]


def test_a_topic_of_no_queue_is_removed(peers: Peers) -> None:
    """It is left by a process that was killed while it deleted a queue."""
    peer = peers()
    peer.declare(JOBS)
    with pynotify.connect(peers.segment) as conn:
        for name in ("kombu.gone", "kombu..3.gone", "kombus.own", "other"):
            conn.topic(name).publish("x")
        peers()
        assert set(conn.topics()) >= {"kombu.jobs", "kombus.own", "other"}
        assert not {"kombu.gone", "kombu..3.gone"} & set(conn.topics())


def outcome(child: ForkedChild) -> Any:
    """What it returned, or how it failed."""
    try:
        return child.result()
    except ChildFailed as failure:
        return failure


NAMES = ("a", "b", "c")


def change_at_random(segment: str, seed: int, steps: int) -> int:
    """Declare, bind, delete and publish; how often what was declared is used."""
    choose = random.Random(seed)
    peer = Peer(segment)
    exchange = kombu.Exchange("e")
    used = 0
    for step in range(steps):
        queue = kombu.Queue(choose.choice(NAMES), exchange, choose.choice("xy"), max_priority=1)
        try:
            match choose.randrange(4):
                case 0 | 1:
                    peer.declare(queue)
                    peer.publish(step, queue.routing_key, "e", priority=choose.randrange(2))
                case 2:
                    message = peer.channel.basic_get(queue.name, no_ack=True)
                    used += message is not None
                case 3:
                    peer.channel.queue_delete(queue.name)
        except peer.connection.channel_errors:
            pass  # another one has deleted it
    peer.close()
    return used


def test_processes_that_declare_and_delete_the_same_while_one_is_killed(peers: Peers) -> None:
    """What is declared stays whole, and topics are of the queues that there are."""
    peer = peers()
    peer.declare(kombu.Queue("stays", kombu.Exchange("e"), "x"))
    victim = ForkedChild(lambda: change_at_random(peers.segment, 0, 1_000_000))
    children = [
        ForkedChild(lambda seed=seed: change_at_random(peers.segment, seed, 150))
        for seed in (1, 2, 3)
    ]
    generation = peer.channel.session.declared._generation
    start = generation.value
    try:
        wait_until(lambda: generation.value > start + 50, "they change it")
    finally:
        os.kill(victim.pid, signal.SIGKILL)
        assert victim.join() == -signal.SIGKILL
        used = [outcome(child) for child in children]
    assert [each for each in used if not isinstance(each, int)] == []
    assert sum(used) > 0
    last = peers()
    rows = last.channel.session.view().queues
    assert rows.keys() <= {*NAMES, "stays"}
    assert rows.keys() >= {"stays"}
    expected = {
        topic_name("kombu", name, level) for name in {*rows} - {"stays"} for level in (0, 1)
    }
    assert topics(peers.segment).keys() <= expected | {"kombu.stays"}
    with pynotify.open(peers.segment) as segment:
        (document,) = [topic for topic in segment.topics() if topic.name == "kombu-declared"]
        assert document.unfinished == 1
        assert segment.check().ok
    last.publish("x", "x", "e")
    assert last.channel.basic_get("stays", no_ack=True) is not None


def test_the_first_declarations_of_many_processes(peers: Peers) -> None:
    """The process that makes the document does not undo what others have put there."""

    def declare(number: int) -> bool:
        mine = Peer(peers.segment)
        mine.declare(kombu.Queue(f"q{number}", kombu.Exchange("e"), "k"))
        mine.close()
        return True

    children = [ForkedChild(lambda number=number: declare(number)) for number in range(6)]
    assert [outcome(child) for child in children] == [True] * 6
    peer = peers()
    assert peer.declared() == {f"q{number}" for number in range(6)}
    assert len(set(peer.channel.list_bindings())) == 6
