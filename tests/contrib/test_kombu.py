"""The kombu transport: exchanges, queues, acknowledgements, prefetch and priorities."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest

import pynotify
from receiving import PATIENCE, wait_until
from requirement import require

try:
    import kombu
    from amqp.exceptions import NotFound, PreconditionFailed
    from kombu.asynchronous import Hub
    from kombu.exceptions import OperationalError
    from kombu.transport.virtual.base import NotEquivalentError
except ImportError as missing:
    require("kombu", str(missing))

from kombu_peer import JOBS, Peers, in_flight, ready, topics
from pynotify.contrib.kombu import _session
from pynotify.contrib.kombu._declared import topic_name

# ---- messages ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "options"),
    [
        ({"a": [1, None, "ü\0"]}, {}),
        (b"", {"serializer": "raw"}),
        ("x" * 100_000, {"compression": "zlib"}),
        ({"a": b"\0\xff"}, {"serializer": "pickle"}),
        (b"\0\1\2", {"content_type": "application/data", "content_encoding": "binary"}),
    ],
)
def test_bodies_and_properties(peers: Peers, body: Any, options: dict[str, Any]) -> None:
    peer = peers()
    peer.declare(JOBS)
    peer.publish(
        body, "jobs", headers={"h": "1"}, correlation_id="c", reply_to="r", priority=3, **options
    )
    peer.consume(JOBS)
    assert peer.drain(1) == [body]
    (message,) = peer.messages
    assert message.headers["h"] == "1"
    properties = message.properties
    assert (properties["correlation_id"], properties["reply_to"], properties["priority"]) == (
        "c",
        "r",
        3,
    )
    assert message.delivery_info == {"exchange": "", "routing_key": "jobs"}


def test_a_long_wait(peers: Peers) -> None:
    """Longer than poll(2) takes."""
    sender, receiver = peers(), peers()
    receiver.declare(JOBS)
    receiver.consume(JOBS)
    sender.publish("late", "jobs")
    receiver.connection.transport._wait(1e10)
    assert receiver.drain(1) == ["late"]


def test_what_is_acknowledged_is_gone_and_the_rest_comes_again_in_order(peers: Peers) -> None:
    first, second = peers(), peers()
    first.declare(JOBS)
    for number in range(4):
        first.publish(number, "jobs")
    first.consume(JOBS)
    assert first.drain(3) == [0, 1, 2]
    first.messages[1].ack()
    first.close()
    second.consume(JOBS)
    assert second.drain(3) == [0, 2, 3]
    assert [message.delivery_info.get("redelivered") for message in second.messages] == [
        True,
        True,
        None,
    ]


def test_multiple_acknowledges_all_before(peers: Peers) -> None:
    peer = peers()
    peer.declare(JOBS)
    for number in range(4):
        peer.publish(number, "jobs")
    peer.consume(JOBS)
    peer.drain(4)
    peer.messages[2].ack(multiple=True)
    assert in_flight(peers.segment, "jobs") == 1


def test_requeue_and_recover(peers: Peers) -> None:
    peer = peers()
    peer.declare(JOBS)
    peer.publish("x", "jobs")
    peer.publish("y", "jobs")
    peer.consume(JOBS)
    peer.drain(2)
    peer.messages[0].requeue()
    assert peer.drain(1) == ["x"]
    peer.channel.basic_recover(requeue=True)
    assert sorted(peer.drain(2)) == ["x", "y"]


def test_what_is_rejected_goes_to_the_dead_letters(peers: Peers) -> None:
    peer = peers(dead_letter="broken")
    peer.declare(JOBS)
    peer.publish("bad", "jobs")
    peer.consume(JOBS)
    peer.drain(1)
    peer.messages[0].reject()
    peer.consume(kombu.Queue("broken", no_declare=True))
    assert peer.drain(1) == ["bad"]


def test_what_is_rejected_is_dropped(peers: Peers) -> None:
    peer = peers()
    peer.declare(JOBS)
    peer.publish("bad", "jobs")
    peer.consume(JOBS)
    peer.drain(1)
    peer.messages[0].reject()
    peer.assert_nothing()
    assert topics(peers.segment)["kombu.jobs"].unfinished == 0


def test_too_many_attempts(peers: Peers) -> None:
    peer = peers(max_attempts=2, dead_letter="broken")
    peer.declare(JOBS)
    peer.publish("bad", "jobs")
    peer.consume(JOBS)
    for _ in range(2):
        peer.drain(1)
        peer.messages[-1].requeue()
    peer.assert_nothing()
    assert peer.channel.basic_get("broken").payload == "bad"


def test_acknowledged_too_late(peers: Peers, caplog: pytest.LogCaptureFixture) -> None:
    peer = peers(visibility_timeout=0.01)
    peer.declare(JOBS)
    peer.publish("x", "jobs")
    peer.consume(JOBS, prefetch_count=1)
    peer.drain(1)
    other = peers()
    other.consume(JOBS)
    other.drain(1)
    peer.messages[0].ack()
    assert "was acknowledged too late: " in caplog.text
    other.messages[0].ack()
    assert topics(peers.segment)["kombu.jobs"].unfinished == 0


def test_without_acknowledgements(peers: Peers) -> None:
    peer = peers()
    peer.declare(JOBS)
    for number in range(100):
        peer.publish(number, "jobs")
    peer.consume(JOBS, no_ack=True, prefetch_count=1)
    assert peer.drain(70) == list(range(70))
    peer.close()
    assert topics(peers.segment)["kombu.jobs"].unfinished == 30


def test_what_is_not_kombus(peers: Peers, caplog: pytest.LogCaptureFixture) -> None:
    peer = peers()
    peer.declare(JOBS)
    with pynotify.connect(peers.segment) as conn:
        conn.topic("kombu.jobs").publish("hello")
        conn.topic("kombu.jobs").publish(b"[]\0hello")
    peer.publish("x", "jobs")
    peer.consume(JOBS)
    assert peer.drain(1) == ["x"]
    assert [record.message[-14:] for record in caplog.records] == ["is not kombu's"] * 2
    assert topics(peers.segment)["kombu.jobs"].unfinished == 1


def test_too_long_a_message(peers: Peers) -> None:
    peer = peers()
    peer.declare(JOBS)
    with pytest.raises(pynotify.PayloadTooLong):
        peer.publish("x" * (1 << 20), "jobs")


def test_times_to_live(peers: Peers) -> None:
    short = kombu.Queue("short", message_ttl=0.001)
    peer = peers()
    peer.declare(JOBS, short)
    peer.publish("x", "jobs", expiration=0.001)
    peer.publish("y", "jobs", expiration=3600)
    peer.publish("z", "short")
    wait_until(lambda: ready(peers.segment) == 1, "two have expired")
    peer.consume(JOBS)
    assert peer.drain(1) == ["y"]
    peer.consume(short)
    peer.assert_nothing()


# ---- prefetch ----------------------------------------------------------------------------------


def test_prefetch_count(peers: Peers) -> None:
    """No more than that are the consumer's, also of what is fetched ahead."""
    peer, other = peers(), peers()
    peer.declare(JOBS)
    for number in range(20):
        peer.publish(number, "jobs")
    peer.consume(JOBS, prefetch_count=3)
    assert peer.drain(3) == [0, 1, 2]
    peer.assert_nothing()
    assert in_flight(peers.segment, "jobs") == 3
    other.consume(JOBS, prefetch_count=1)
    assert other.drain(1) == [3]
    peer.messages[0].ack()
    assert peer.drain(1) == [4]
    peer.assert_nothing()
    peer.channel.basic_qos(prefetch_count=5)
    assert peer.drain(2) == [5, 6]
    peer.assert_nothing()
    peer.channel.basic_qos(prefetch_count=1)
    for message in peer.messages[1:-1]:
        message.ack()
    peer.assert_nothing()
    assert in_flight(peers.segment, "jobs") == 2
    peer.channel.basic_qos(prefetch_count=0)
    assert peer.drain(13) == list(range(7, 20))


def test_several_queues_share_the_prefetch_count(peers: Peers) -> None:
    queues = [kombu.Queue(name) for name in "abc"]
    peer = peers()
    peer.declare(*queues)
    for queue in queues:
        for number in range(5):
            peer.publish(f"{queue.name}{number}", queue.name)
    peer.consume(*queues, prefetch_count=4)
    assert len(peer.drain(4)) == 4
    peer.assert_nothing()
    assert sum(in_flight(peers.segment, queue.name) for queue in queues) == 4
    peer.messages[0].ack()
    assert len(peer.drain(1)) == 1
    peer.assert_nothing()
    while len(peer.got) < 15:
        peer.messages[len(peer.got) - 4].ack()
        peer.drain(1)
    assert sorted(peer.got) == sorted(f"{name}{number}" for name in "abc" for number in range(5))


def test_a_second_queue_takes_back_what_the_first_fetched_ahead(peers: Peers) -> None:
    other = kombu.Queue("other")
    peer = peers()
    peer.declare(JOBS, other)
    for number in range(10):
        peer.publish(number, "jobs")
    peer.publish("o", "other")
    consumer = peer.consume(JOBS, prefetch_count=4)
    peer.drain(1)
    assert in_flight(peers.segment, "jobs") == 4
    consumer.add_queue(other)
    consumer.consume()
    assert in_flight(peers.segment, "jobs") == 1
    assert set(peer.drain(3)) >= {"o"}
    peer.assert_nothing()


def test_a_cancelled_consumers_messages_count(peers: Peers) -> None:
    peer = peers()
    peer.declare(JOBS)
    for number in range(5):
        peer.publish(number, "jobs")
    consumer = peer.consume(JOBS, prefetch_count=2)
    assert peer.drain(2) == [0, 1]
    consumer.cancel()
    peer.consume(JOBS)
    peer.assert_nothing()
    peer.messages[0].ack()
    assert peer.drain(1) == [2]
    peer.messages[1].ack()
    assert peer.drain(1) == [3]
    assert topics(peers.segment)["kombu.jobs"].unfinished == 3


# ---- priorities --------------------------------------------------------------------------------


def test_priorities(peers: Peers) -> None:
    queue = kombu.Queue("urgent", max_priority=5)
    peer = peers()
    peer.declare(queue)
    for body, priority in (("a", 0), ("b", 5), ("c", 2), ("d", None), ("e", 9), ("f", 2)):
        peer.publish(body, "urgent", priority=priority)
    assert peer.channel.queue_declare("urgent", passive=True).message_count == 6
    peer.consume(queue, prefetch_count=10)
    assert peer.drain(2) == ["b", "e"]
    peer.publish("g", "urgent", priority=4)
    assert peer.drain(5) == ["g", "c", "f", "a", "d"]
    peer.messages[0].requeue()
    peer.messages[3].requeue()
    assert peer.drain(2) == ["b", "c"]
    for message in peer.messages:
        if not message.acknowledged:
            message.ack()
    assert all(topic.unfinished == 0 for topic in topics(peers.segment).values())
    peer.publish("x", "urgent", priority=5)
    assert peer.channel.queue_purge("urgent") == 1
    peer.channel.queue_delete("urgent")
    assert topics(peers.segment) == {}


def test_a_queue_without_priorities_is_one_line(peers: Peers) -> None:
    peer = peers()
    peer.declare(JOBS)
    peer.publish("a", "jobs", priority=0)
    peer.publish("b", "jobs", priority=9)
    peer.consume(JOBS)
    assert peer.drain(2) == ["a", "b"]


# ---- exchanges ---------------------------------------------------------------------------------


def test_another_connection_knows_the_bindings_at_once(peers: Peers) -> None:
    """Its view of them is older than they are."""
    publisher, consumer = peers(), peers()
    direct, news = kombu.Exchange("d"), kombu.Exchange("n", "topic")
    publisher.publish("lost", "x", "d")
    consumer.declare(
        kombu.Queue("one", direct, "x"),
        kombu.Queue("two", direct, "x"),
        kombu.Queue("three", direct, "y"),
        kombu.Queue("sport", news, "sport.#"),
        kombu.Queue("goals", news, "*.goal"),
    )
    publisher.publish("1", "x", "d")
    publisher.publish("2", "sport.goal", "n")
    publisher.publish("3", "sport.a.b", "n")
    publisher.publish("4", "unknown", "n")
    found = {
        queue: [
            message.payload
            for _ in range(3)
            if (message := consumer.channel.basic_get(queue, no_ack=True))
        ]
        for queue in ("one", "two", "three", "sport", "goals")
    }
    assert found == {"one": ["1"], "two": ["1"], "three": [], "sport": ["2", "3"], "goals": ["2"]}
    bindings = set(publisher.channel.list_bindings())
    assert bindings >= {("one", "d", "x"), ("goals", "n", "*.goal")}
    consumer.channel.queue_unbind("two", "d", "x")
    consumer.channel.queue_delete("one")
    publisher.publish("5", "x", "d")
    assert consumer.channel.basic_get("two") is None
    assert topics(peers.segment).keys() == {
        f"kombu.{name}" for name in ("two", "three", "sport", "goals")
    }
    consumer.channel.exchange_delete("n")
    publisher.publish("6", "sport.goal", "n")
    assert consumer.channel.basic_get("goals") is None


def test_fanout_is_all_or_none(peers: Peers) -> None:
    everyone = kombu.Exchange("all", "fanout")
    small = kombu.Queue(
        "small", everyone, max_length=1, queue_arguments={"x-overflow": "reject-publish"}
    )
    peer = peers()
    peer.declare(small, *(kombu.Queue(f"large{number}", everyone) for number in range(6)))
    peer.publish("1", "", "all")
    with pytest.raises(pynotify.TopicFull):
        peer.publish("2", "", "all")
    assert [topic.unfinished for topic in topics(peers.segment).values()] == [1] * 7


def test_unequal_declarations_are_refused(peers: Peers) -> None:
    peer, other = peers(), peers()
    peer.declare(kombu.Queue("q", kombu.Exchange("e", "topic")))
    with pytest.raises(PreconditionFailed, match="inequivalent arg 'arguments' for queue 'q'"):
        other.declare(kombu.Queue("q", max_priority=3))
    with pytest.raises(NotEquivalentError):
        other.declare(kombu.Queue("r", kombu.Exchange("e", "fanout")))
    with pytest.raises(NotFound, match=f"no queue 'r' in segment '{peers.segment}'"):
        other.channel.queue_declare("r", passive=True)
    with pytest.raises(NotFound, match="no exchange 'f'"):
        other.channel.exchange_declare("f", passive=True)
    with pytest.raises(NotFound):
        other.channel.basic_consume("r", False, print, "tag")


def test_a_topic_that_has_other_options(peers: Peers) -> None:
    with pynotify.connect(peers.segment) as conn:
        conn.topic("kombu.q", overflow="drop-new")
        peer = peers(prefix="others")
        conn.topic("others.q", overflow="drop-new")
        with pytest.raises(PreconditionFailed, match="overflow"):
            peer.declare(kombu.Queue("q", max_length=3))


def test_where_nothing_is_bound(peers: Peers) -> None:
    """What has no queue is dropped, as RabbitMQ does it, or goes to the deadletter_queue."""
    peer = peers()
    peer.publish("x", "nowhere")
    peer.publish("x", "nowhere", "neither")
    assert topics(peers.segment) == {}
    caught = peers(deadletter_queue="lost")
    with pytest.warns(UserWarning, match="No queues bound to exchange"):
        caught.publish("x", "nowhere", "neither")
    assert caught.channel.basic_get("lost").payload == "x"


# ---- queues ------------------------------------------------------------------------------------


def test_auto_delete_with_the_last_consumer(peers: Peers) -> None:
    queue = kombu.Queue("temporary", auto_delete=True)
    peer, other = peers(), peers()
    peer.declare(queue)
    peer.publish("x", "temporary")
    with kombu.Connection(peer.connection.as_uri()) as third:
        channel = third.channel()
        assert channel.basic_get("temporary", no_ack=True).payload == "x"
        channel.close()
    assert peer.declared() == {"temporary"}, "basic_get is no consumer"
    peer.consume(queue)
    consumer = other.consume(queue)
    peer.close()
    assert other.declared() == {"temporary"}
    other.publish("y", "temporary")
    other.drain(1)
    consumer.cancel()
    assert other.declared() == {"temporary"}, "a message of it is not acknowledged"
    other.messages[0].ack()
    assert (other.declared(), topics(peers.segment)) == (set(), {})


def test_an_exclusive_queue_ends_with_its_connection(peers: Peers) -> None:
    peer, other = peers(), peers()
    peer.declare(kombu.Queue("mine", kombu.Exchange("e"), "k", exclusive=True), JOBS)
    peer.close()
    assert (other.declared(), topics(peers.segment).keys()) == ({"jobs"}, {"kombu.jobs"})
    assert list(other.channel.list_bindings()) == []


def test_an_expired_queue_is_removed_by_the_next_that_connects(
    peers: Peers, monkeypatch: pytest.MonkeyPatch
) -> None:
    peer = peers()
    peer.declare(kombu.Queue("short", expires=60), kombu.Queue("long", expires=3600))
    assert peers().declared() == {"short", "long"}
    busy = kombu.Queue("busy", expires=60)
    peer.declare(busy)
    consumer = peer.consume(busy)
    clock = SimpleNamespace(time=lambda: time.time() + 100)
    monkeypatch.setattr(_session, "time", clock)
    assert peers().declared() == {"busy", "long"}
    consumer.cancel()
    assert peers().declared() == {"busy", "long"}
    clock.time = lambda: time.time() + 200
    assert peers().declared() == {"long"}


def test_purge_leaves_what_is_in_flight(peers: Peers) -> None:
    peer = peers()
    peer.declare(JOBS)
    for number in range(10):
        peer.publish(number, "jobs")
    peer.consume(JOBS, prefetch_count=2)
    peer.drain(2)
    assert peer.channel.queue_purge("jobs") == 8
    peer.messages[0].ack()
    peer.messages[1].requeue()
    assert peer.drain(1) == [1]


def test_delete_and_its_conditions(peers: Peers) -> None:
    peer, other = peers(), peers()
    peer.declare(JOBS)
    peer.publish("x", "jobs")
    other.publish("y", "jobs")
    peer.channel.queue_delete("jobs", if_empty=True)
    assert peer.declared() == {"jobs"}
    consumer = peer.consume(JOBS)
    other.channel.queue_delete("jobs", if_unused=True)
    assert peer.declared() == {"jobs"}
    consumer.cancel()
    other.channel.queue_delete("jobs")
    peer.channel.queue_delete("jobs")
    peer.publish("z", "jobs")
    assert topics(peers.segment) == {}
    other.declare(JOBS)
    peer.publish("a", "jobs")
    other.consume(JOBS)
    assert other.drain(1) == ["a"]


def test_a_queue_that_was_deleted_and_made_again(peers: Peers) -> None:
    peer, other = peers(), peers()
    peer.declare(JOBS)
    other.channel.queue_delete("jobs")
    other.declare(JOBS)
    other.publish("x", "jobs")
    assert peer.channel.queue_declare("jobs", passive=True).message_count == 1
    peer.consume(JOBS)
    assert peer.drain(1) == ["x"]


def test_one_process_deletes_what_another_uses(peers: Peers) -> None:
    """Each half of a deletion meets what the other process does in between."""
    peer = peers()
    peer.declare(JOBS)
    session = peer.channel.session
    row = session.row("jobs")
    session._delete_topics({"kombu.jobs"})
    assert topics(peers.segment).keys() == {"kombu.jobs"}, "it was declared again"
    session.declared.change(lambda document: document.remove_queue("jobs"))
    session.forget("jobs", row)
    with pytest.raises(pynotify.TopicDeleted):
        session._topic("jobs", row, 0)
    assert topics(peers.segment) == {}, "it was taken out, and made again by a publisher"


def test_a_queue_is_deleted_under_its_consumer(peers: Peers) -> None:
    """Celery's worker connects again after that, and declares it."""
    peer, other = peers(), peers()
    peer.declare(JOBS)
    peer.consume(JOBS)
    other.channel.queue_delete("jobs")
    with pytest.raises(peer.connection.recoverable_connection_errors, match="was deleted"):
        peer.connection.drain_events(timeout=PATIENCE)


def test_bounds_of_a_queue(peers: Peers) -> None:
    peer = peers()
    peer.declare(kombu.Queue("two", max_length=2), kombu.Queue("small", max_length_bytes=1))
    for number in range(3):
        peer.publish(number, "two")
        peer.publish("x" * 3000, "small")
    assert [peer.channel.basic_get("two").payload for _ in range(2)] == [1, 2]
    assert peer.channel.queue_declare("small", passive=True).message_count == 1


def test_names_of_topics() -> None:
    names = [
        "celery",
        ".",
        "a.b-c_D",
        "celery@host.pidbox",
        "",
        ".5.x",
        "ü" * 99,
        "x" * 58,
        "x" * 59,
    ]
    found = {topic_name("kombu", name, level) for name in names for level in (0, 5)}
    assert len(found) == 2 * len(names)
    assert {"kombu.celery", "kombu..5.celery", "kombu.a.b-c_D", f"kombu.{'x' * 58}"} <= found
    assert max(map(len, found)) == 64
    assert any(name.startswith("kombu.celery_host.pidbox.") for name in found)


def test_any_name_is_a_queues(peers: Peers) -> None:
    peer = peers()
    for name in ("celery@host.celery.pidbox", "." * 3, "ü x\0", "y" * 200):
        peer.declare(kombu.Queue(name))
        peer.publish(name, name)
        assert peer.channel.basic_get(name, no_ack=True).payload == name


# ---- connections -------------------------------------------------------------------------------


def test_databases_and_prefixes_are_apart(peers: Peers) -> None:
    all_peers = [peers(), peers("other"), peers(prefix="mine"), peers(database="third")]
    for number, peer in enumerate(all_peers):
        peer.declare(JOBS)
        peer.publish(number, "jobs")
    assert [peer.channel.basic_get("jobs").payload for peer in all_peers] == [0, 1, 2, 3]


def test_options_of_the_segment(peers: Peers) -> None:
    peer = peers(max_body=5000, max_retries=3)
    peer.declare(JOBS)
    with pytest.raises(pynotify.PayloadTooLong):
        peer.publish("x" * 5000, "jobs")
    wrong = kombu.Connection(peer.connection.as_uri(), transport_options={"max_body": 6000})
    with pytest.raises(OperationalError, match="max_body"):
        wrong.ensure_connection(max_retries=1, interval_start=0)


def test_an_unlinked_segment_is_connected_to_again(peers: Peers) -> None:
    peer = peers()
    peer.declare(JOBS)
    pynotify.unlink(peers.segment, force=True)
    with kombu.Connection(peer.connection.as_uri()) as again:
        queue = again.SimpleQueue("jobs")
        queue.put("x")
        assert queue.get(timeout=PATIENCE).payload == "x"
        queue.close()
    retrying = peer.connection.ensure(
        producer := kombu.Producer(peer.channel), producer.publish, max_retries=2
    )
    retrying("y", routing_key="jobs", declare=[JOBS])
    assert peer.connection.default_channel.basic_get("jobs").payload in ("x", "y")


def test_waiting_without_consumers(peers: Peers) -> None:
    peers().assert_nothing()


def test_a_connection_that_waits_does_not_look_around(
    peers: Peers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It sleeps on the descriptors, until a message comes."""
    peer, other = peers(), peers()
    peer.declare(JOBS)
    peer.consume(JOBS, prefetch_count=1)
    transport = peer.connection.transport
    waits: list[float | None] = []
    wait = transport._wait

    def counted(timeout: float | None) -> None:
        waits.append(timeout)
        if len(waits) == 3:
            other.publish("x", "jobs")
        wait(None if len(waits) >= 3 else 0.01)

    monkeypatch.setattr(transport, "_wait", counted)
    assert peer.drain(1) == ["x"]
    assert len(waits) <= 5
    peer.assert_nothing()
    other.publish("y", "jobs")
    peer.assert_nothing()
    transport._poll.poll(0)
    assert transport._poll.poll(0) == [], "what may not be delivered does not wake it"
    peer.messages[0].ack()
    assert peer.drain(1) == ["y"]


def test_an_event_loop(peers: Peers) -> None:
    """Consumers that come, go, and are bounded, while kombu's hub runs."""
    peer, hub = peers(), Hub()
    try:
        peer.declare(JOBS, kombu.Queue("more"))
        consumer = peer.consume(JOBS, prefetch_count=2)
        peer.connection.register_with_event_loop(hub)
        for number in range(5):
            peer.publish(number, "jobs")

        def run_until(count: int) -> None:
            while len(peer.got) < count:
                hub.run_once()

        run_until(2)
        assert peer.got == [0, 1]
        consumer.add_queue(kombu.Queue("more"))
        consumer.consume()
        for number in range(2, 5):
            peer.messages[number - 2].ack()
            run_until(number + 1)
        peer.publish("more", "more")
        peer.messages[3].ack()
        run_until(6)
        assert peer.got == [0, 1, 2, 3, 4, "more"]
        consumer.cancel()
        assert len(hub.readers) == 0
    finally:
        peer.close()
        hub.close()


def test_the_default_wake_up_is_not_celerys(peers: Peers) -> None:
    peer = peers()
    peer.declare(JOBS)
    with pynotify.open(peers.segment) as segment:
        (backend,) = segment.stat().backends
        assert backend.wakeup not in (10, "poll")
