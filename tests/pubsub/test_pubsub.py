"""PubSub over a pynotify connection and over PostgreSQL alike."""

from __future__ import annotations

import logging
import threading
from typing import Any

import pytest

import pynotify
from pubsub.conftest import NewConnection, NewPubSub
from pubsub.objects import objects, random_objects, take
from pubsub.vectors import HEARD, USUAL, Heard, Sent, as_received, each
from receiving import PATIENCE
from waiting import Call


@pytest.fixture
def sender(new_connection: NewConnection, new_pubsub: NewPubSub) -> pynotify.PubSub:
    return new_pubsub(new_connection())


@pytest.fixture
def listener(new_connection: NewConnection, new_pubsub: NewPubSub, channel: str) -> pynotify.PubSub:
    pubsub = new_pubsub(new_connection())
    pubsub.subscribe(channel)
    return pubsub


def notify(connection: Any, channel: str, payload: bytes) -> None:
    """Without PubSub."""
    if isinstance(connection, pynotify.Connection):
        connection.notify(channel, payload)
    else:
        connection.execute("SELECT pg_notify(%s, %s)", (channel, payload.decode()))


@each(USUAL)
def test_the_vectors_arrive(
    sender: pynotify.PubSub, listener: pynotify.PubSub, channel: str, row: Sent
) -> None:
    sender.publish(channel, row.obj)
    sender.publish(channel, "end")
    (received, end) = take(listener, 2)
    assert received.obj == as_received(row.obj)
    assert (received.channel, end.obj) == (channel, "end")
    assert listener.stats() == pynotify.PubSubStats(2, 0, 0, 0, 0)


@each([row for row in HEARD if row.malformed])
def test_malformed_segments_are_skipped(
    new_connection: NewConnection, listener: pynotify.PubSub, channel: str, row: Heard
) -> None:
    raw = new_connection()
    for payload in row.payloads:
        notify(raw, channel, payload)
    notify(raw, channel, b"!end")
    assert objects(take(listener, len(row.objects) + 1)) == [*row.objects, "end"]
    assert listener.stats().malformed == row.malformed


def test_a_thousand_random_objects_arrive_in_order(
    sender: pynotify.PubSub, listener: pynotify.PubSub, channel: str
) -> None:
    sent = random_objects(1000)
    for batch in range(0, len(sent), 100):  # so that the ring need not hold all of them
        for obj in sent[batch : batch + 100]:
            sender.publish(channel, obj)
        assert objects(take(listener, 100)) == sent[batch : batch + 100]


def test_nothing_and_null_are_none_to_the_receiver(
    sender: pynotify.PubSub, listener: pynotify.PubSub, channel: str
) -> None:
    sender.publish(channel)
    sender.publish(channel, None)
    assert objects(take(listener, 2)) == [None, None]


def test_senders_interleave_segment_by_segment(
    new_connection: NewConnection, listener: pynotify.PubSub, channel: str
) -> None:
    first, second = new_connection(), new_connection()
    for payload, raw in [
        (b"#IcOp", first), (b"#IWFi", second), (b"#IcOp", first), (b"!plain", first),
        (b"$Y2Rl", second), (b"$IcOp", first),
    ]:  # fmt: skip
        notify(raw, channel, payload)
    assert objects(take(listener, 3)) == ["plain", "abcde", "é!é!é"]


def test_a_subscriber_after_a_sender_that_went_in_the_middle_is_not_disturbed(
    new_connection: NewConnection, listener: pynotify.PubSub, channel: str
) -> None:
    """Over pynotify: the same slot, in the same process."""
    first = new_connection()
    notify(first, channel, b"#IcOp")
    first.close()
    second = new_connection()
    notify(second, channel, b"#IWFi")
    notify(second, channel, b"$Y2Rl")
    assert objects(take(listener, 1)) == ["abcde"]
    assert listener.stats().pending == 1


def test_channels_do_not_mix(
    new_connection: NewConnection, listener: pynotify.PubSub, channel: str
) -> None:
    other = f"{channel[:60]}-2"
    listener.subscribe(other)
    raw = new_connection()
    for payload, name in [(b"#IcOp", channel), (b"#IWFi", other), (b"$Y2Rl", other),
                          (b"$IcOp", channel)]:  # fmt: skip
        notify(raw, name, payload)
    assert [item[:2] for item in take(listener, 2)] == [(other, "abcde"), (channel, "é!é")]


def test_handlers_get_objects_and_survive_their_errors(
    sender: pynotify.PubSub,
    listener: pynotify.PubSub,
    channel: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    heard: list[Any] = []

    def fragile(obj: Any) -> None:
        heard.append(obj)
        raise LookupError("of the test")

    listener.on(channel, fragile)
    listener.on(channel, heard.append)
    listener.on("another", heard.append)
    sender.publish(channel, 1)
    sender.publish(channel, 2)
    take(listener, 2)
    assert heard == [1, 1, 2, 2]
    assert [record.levelno for record in caplog.records] == [logging.ERROR] * 2
    listener.off(channel, fragile)
    with pytest.raises(ValueError, match="no handler"):
        listener.off(channel, fragile)
    sender.publish(channel, 3)
    take(listener, 1)
    assert heard[4:] == [3]


def test_unsubscribed_is_what_was_not_handed_out(
    sender: pynotify.PubSub, listener: pynotify.PubSub, channel: str
) -> None:
    other = f"{channel[:60]}-2"
    listener.subscribe(other)
    sender.publish(other, 1)
    sender.publish(channel, 2)
    listener.unsubscribe(other, "never subscribed")
    sender.publish(other, 3)
    sender.publish(channel, 4)
    assert objects(take(listener, 2)) == [2, 4]
    listener.subscribe(other)
    sender.publish(other, 5)
    assert objects(take(listener, 1)) == [5]


def test_skip_self_is_by_connection(
    new_connection: NewConnection, new_pubsub: NewPubSub, sender: pynotify.PubSub, channel: str
) -> None:
    pubsub = new_pubsub(new_connection(), skip_self=True)
    pubsub.subscribe(channel)
    pubsub.publish(channel, "own")
    sender.publish(channel, "another's")
    assert objects(take(pubsub, 1)) == ["another's"]


def test_two_share_a_connection(
    new_connection: NewConnection, new_pubsub: NewPubSub, channel: str
) -> None:
    other = f"{channel[:60]}-2"
    connection = new_connection()
    first, second = new_pubsub(connection), new_pubsub(connection)
    first.subscribe(channel)
    second.subscribe(channel, other)
    first.publish(channel, bytes(10_000))
    second.publish(other, "x")
    assert objects(take(second, 2)) == [bytes(10_000), "x"]
    assert objects(take(first, 1)) == [bytes(10_000)]
    second.close()
    first.publish(channel, "still there")
    assert objects(take(first, 1)) == ["still there"]


def test_the_connection_itself_stays_usable(
    new_connection: NewConnection, new_pubsub: NewPubSub, channel: str
) -> None:
    connection = new_connection()
    with new_pubsub(connection) as pubsub:
        pubsub.subscribe(channel)
        pubsub.publish(channel, "x")
        assert objects(take(pubsub, 1)) == ["x"]
    with pytest.raises(pynotify.InterfaceError, match="closed"):
        pubsub.publish(channel, "x")
    assert not connection.closed
    notify(connection, channel, b"!x")


def test_leaving_the_loop_loses_nothing(
    sender: pynotify.PubSub, listener: pynotify.PubSub, channel: str
) -> None:
    for number in range(3):
        sender.publish(channel, number)
    heard = []
    while len(heard) < 3:
        for _, obj, _ in listener:
            heard.append(obj)
            break
    assert heard == [0, 1, 2]


def test_run_0_takes_what_is_there(
    new_connection: NewConnection, new_pubsub: NewPubSub, channel: str
) -> None:
    """Over PostgreSQL one's own notifications are there when the statement has ended."""
    pubsub = new_pubsub(new_connection())
    pubsub.subscribe(channel)
    assert pubsub.run(0) == 0
    pubsub.publish(channel, 1)
    pubsub.publish(channel, bytes(20_000))
    assert pubsub.run(0) == 2
    assert pubsub.run(0) == 0


def test_threads_publish_and_receive_over_one_connection(
    new_connection: NewConnection, new_pubsub: NewPubSub, channel: str
) -> None:
    """Their objects do not mix, though they come from one sender."""
    pubsub = new_pubsub(new_connection())
    pubsub.subscribe(channel)
    sent = [f"{number}:" + "é" * 6000 for number in range(40)]
    receiver = Call(lambda: objects(take(pubsub, len(sent))))
    threads = [
        threading.Thread(target=lambda part=sent[i::4]: [pubsub.publish(channel, o) for o in part])
        for i in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(receiver.result()) == sorted(sent)


def test_two_threads_receive_each_object_once(
    sender: pynotify.PubSub, listener: pynotify.PubSub, channel: str
) -> None:
    sent = [f"{number}:" + "é" * 6000 for number in range(30)]
    heard: list[Any] = []
    enough = threading.Event()

    def hear() -> None:
        for _, obj, _ in listener:
            heard.append(obj)
            if len(heard) == len(sent):
                enough.set()

    calls = [Call(hear) for _ in range(2)]
    for obj in sent:
        sender.publish(channel, obj)
    assert enough.wait(PATIENCE)
    listener.close()
    assert [call.result() for call in calls] == [None, None]
    assert sorted(heard) == sorted(sent)


def test_close_ends_run_in_another_thread(listener: pynotify.PubSub) -> None:
    call = Call(listener.run)
    listener.close()
    assert call.result() == 0
    listener.close()


def test_max_object_is_the_receivers(
    new_connection: NewConnection, new_pubsub: NewPubSub, sender: pynotify.PubSub, channel: str
) -> None:
    listener = new_pubsub(new_connection(), max_object=10_000)
    listener.subscribe(channel)
    for obj in (bytes(10_001), bytes(10_000), "x" * 7000):
        sender.publish(channel, obj)
    assert objects(take(listener, 2)) == [bytes(10_000), "x" * 7000]
    assert listener.stats().dropped == 1


@pytest.mark.parametrize("name", ["", "a\0b", "\ud800", "x" * 64])
def test_bad_channels_are_refused(sender: pynotify.PubSub, name: str) -> None:
    with pytest.raises(pynotify.InvalidChannelName):
        sender.subscribe(name)
    with pytest.raises(pynotify.InvalidChannelName):
        sender.publish(name, "x")
    assert sender.channels == ()


@pytest.mark.parametrize("name", ['12+"34', "UPPER lower", "канал", "x" * 63, "'; SELECT 1; --"])
def test_any_other_name_will_do(
    sender: pynotify.PubSub, new_connection: NewConnection, new_pubsub: NewPubSub, name: str
) -> None:
    listener = new_pubsub(new_connection())
    listener.subscribe(name)
    sender.publish(name, "x")
    assert take(listener, 1)[0][:2] == (name, "x")


@pytest.mark.parametrize("option", ["max_object", "max_pending", "interval"])
def test_bounds_are_positive(new_connection: NewConnection, option: str) -> None:
    with pytest.raises(ValueError, match=option):
        pynotify.PubSub(new_connection(), **{option: 0})


def test_handlers_are_callable(listener: pynotify.PubSub, channel: str) -> None:
    with pytest.raises(TypeError, match="callable"):
        listener.on(channel, "handler")


def test_connections_of_other_kinds_are_refused() -> None:
    with pytest.raises(TypeError, match="AsyncPubSub"):
        pynotify.PubSub(object())
