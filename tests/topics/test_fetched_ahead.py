"""The deadline of a message runs from when the program gets it, not from when it was fetched."""

from __future__ import annotations

import time

import pytest
from consuming import PATIENCE

import pynotify

TIMEOUT = 2.0  # and a test is never more than half of it behind


@pytest.mark.full
def test_a_slow_handler_lets_nothing_time_out_that_waits_behind_it(
    topic: pynotify.Topic, channel: pynotify.Channel
) -> None:
    topic.publish_many(b"%d" % number for number in range(5))
    with channel.consumer(max_in_flight=5, msg_timeout=TIMEOUT) as slow:
        for number in range(5):
            with slow.get(PATIENCE) as message:
                assert (message.body, message.attempts) == (b"%d" % number, 1)
                time.sleep(TIMEOUT / 2)
            with channel.consumer() as other, pytest.raises(pynotify.Timeout):
                other.get(0)
    stats = channel.stats()
    assert (stats.finished, stats.timed_out, stats.dropped) == (5, 0, 0)


def test_touch_and_answers_count_from_the_same_moment(
    topic: pynotify.Topic, channel: pynotify.Channel
) -> None:
    topic.publish_many([b"first", b"second"])
    with channel.consumer(
        max_in_flight=2, msg_timeout=TIMEOUT, max_msg_timeout=TIMEOUT * 1.5
    ) as consumer:
        with consumer.get(PATIENCE):
            time.sleep(TIMEOUT / 2)
        second = consumer.get(PATIENCE)
        time.sleep(TIMEOUT / 2)
        second.touch()
        time.sleep(TIMEOUT / 4)
        second.finish()
    assert channel.stats().timed_out == 0


@pytest.mark.parametrize("touches", [False, True])
def test_what_a_hung_consumer_has_ahead_comes_to_others_uncounted(
    topic: pynotify.Topic, channel: pynotify.Channel, touches: bool
) -> None:
    """Also when it says of the one that it works on, again and again, that this takes longer."""
    topic.publish_many(b"%d" % number for number in range(10))
    with (
        channel.consumer(max_in_flight=10, msg_timeout=0.5) as hung,
        channel.consumer(max_in_flight=1, max_attempts=1) as other,
    ):
        held = hung.get(PATIENCE)  # and half of the others are fetched with it
        bodies = []
        until = time.monotonic() + PATIENCE
        while len(bodies) < 9 and time.monotonic() < until:
            if touches:
                held.touch()
            try:
                message = other.get(0.1)
            except pynotify.Timeout:
                continue
            assert message.attempts == 1 or message.body == held.body
            if message.body != held.body:
                bodies.append(message.body)
            message.finish()
        assert sorted(bodies) == [
            b"%d" % number for number in range(10) if number != int(held.body)
        ]
    assert channel.stats().dropped == 0
