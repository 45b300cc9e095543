"""A message that was fetched ahead and expires before it is handed over leaves nothing behind."""

from __future__ import annotations

import time

import pytest

import pynotify


def test_get_goes_on_after_it(topic: pynotify.Topic, channel: pynotify.Channel) -> None:
    with channel.consumer(max_in_flight=10) as consumer:
        topic.publish(b"stays")
        topic.publish(b"expires", ttl=0.2)
        with consumer.get(5) as message:  # and the other one is fetched with it
            assert message.body == b"stays"
        time.sleep(0.25)
        for _ in range(3):
            with pytest.raises(pynotify.Timeout):
                consumer.get(0)
        topic.publish(b"next")
        with consumer.get(5) as message:
            assert message.body == b"next"
