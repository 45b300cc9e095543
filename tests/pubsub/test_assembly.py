"""What others can make a PubSub keep, and what becomes of objects that never end."""

from __future__ import annotations

import logging
from collections.abc import Hashable
from typing import Any

import pytest

from pynotify.pubsub._assembly import Assembler, Segment
from pynotify.pubsub._format import segments


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


class Listener:
    """An assembler whose clock is ours."""

    def __init__(self, **options: Any) -> None:
        self.clock = Clock()
        bounds: dict[str, Any] = {"max_object": 1 << 20, "max_pending": 1 << 20}
        self.assembler = Assembler(**(bounds | options), clock=self.clock)
        self.heard: list[Any] = []

    def hears(self, payload: bytes, sender: Hashable = 1, channel: str = "c") -> None:
        arrived = self.assembler.take(Segment(channel, sender, 42, payload))
        if arrived is not None:
            self.heard.append(arrived.obj)

    def counts(self) -> tuple[int, int, int, int]:
        """Malformed, dropped, pending, bytes."""
        stats = self.assembler.stats()
        return stats.malformed, stats.dropped, stats.pending, stats.pending_bytes


def pieces(text: str) -> list[bytes]:
    """At least three."""
    found = segments(text, 5)
    assert len(found) > 2
    return found


def test_senders_and_channels_interleave() -> None:
    listener = Listener()
    streams = [
        (sender, channel, pieces(f"object of {sender} on {channel}"))
        for sender in (1, 2, "three")
        for channel in ("a", "b")
    ]
    while any(rest for _, _, rest in streams):
        for sender, channel, rest in streams:
            if rest:
                listener.hears(rest.pop(0), sender, channel)
    assert sorted(listener.heard) == sorted(
        f"object of {sender} on {channel}" for sender in (1, 2, "three") for channel in ("a", "b")
    )
    assert listener.counts() == (0, 0, 0, 0)


def test_malformed_segments_are_reported_with_their_origin(
    caplog: pytest.LogCaptureFixture,
) -> None:
    Listener().hears(b"no such flag")
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "'c'" in record.getMessage() and "process 42" in record.getMessage()


@pytest.mark.parametrize("size", [99, 100, 101])
@pytest.mark.parametrize("plain", [True, False])
def test_max_object_counts_bytes_before_base64(size: int, plain: bool) -> None:
    listener = Listener(max_object=100)
    for segment in segments(b"x" * size, 1000 if plain else 10):
        listener.hears(segment)
    listener.hears(b"!next")
    fits = size <= 100
    assert listener.heard == ([b"x" * size] if fits else []) + ["next"]
    assert listener.counts() == (0, int(not fits), 0, 0)


def test_the_rest_of_what_was_too_large_is_skipped_silently() -> None:
    listener = Listener(max_object=100)
    for segment in segments("é" * 200, 10):
        listener.hears(segment)
    for segment in pieces("the next object"):
        listener.hears(segment)
    assert listener.heard == ["the next object"]
    assert listener.counts() == (0, 1, 0, 0)


def test_a_sender_that_never_ends_keeps_no_more_than_max_object() -> None:
    listener = Listener(max_object=100)
    for _ in range(1000):
        listener.hears(b"#AAAA")
        assert listener.counts()[3] <= 101


def test_max_pending_drops_the_sender_that_was_silent_for_longest() -> None:
    listener = Listener(max_pending=100)
    objects = {sender: segments(str(sender) * 60, 42) for sender in (1, 2, 3)}
    assert [len(found) for found in objects.values()] == [2 + 1] * 3
    for sender in (1, 2):
        listener.hears(objects[sender][0], sender)  # 30 bytes each
    listener.hears(objects[1][1], 1)
    listener.hears(objects[3][0], 3)
    assert listener.counts() == (0, 1, 2, 90)
    for sender in (2, 1, 3):
        for segment in objects[sender][1 if sender != 1 else 2 :]:
            listener.hears(segment, sender)
    assert listener.heard == ["1" * 60, "3" * 60]
    assert listener.counts() == (0, 1, 0, 0)


def test_an_object_of_max_object_fits_into_max_pending_alone() -> None:
    listener = Listener(max_object=3000, max_pending=3000)
    for segment in segments(bytes(3000), 100):
        listener.hears(segment)
    assert listener.heard == [bytes(3000)]


def test_senders_are_bounded() -> None:
    listener = Listener(max_senders=10)
    for sender in range(25):
        listener.hears(b"#AAAA", sender)
    assert listener.counts() == (0, 15, 10, 30)


def test_marks_of_what_was_given_up_are_bounded_too() -> None:
    listener = Listener(max_senders=10, max_object=1)
    for sender in range(25):
        listener.hears(b"#AAAA", sender)
    assert len(listener.assembler.senders()) == 10
    assert listener.counts() == (0, 25, 0, 0)


def test_objects_expire_when_no_piece_comes() -> None:
    listener = Listener(lifetime=60.0)
    first, *rest = pieces("of the sender that is slow")
    listener.hears(first, "slow")
    listener.hears(first, "dead")
    listener.clock.now += 59
    listener.hears(rest[0], "slow")
    listener.clock.now += 1
    assert listener.counts()[1:3] == (1, 1)
    for segment in rest[1:]:
        listener.hears(segment, "slow")
    assert listener.heard == ["of the sender that is slow"]


def test_a_waiting_reader_knows_when_the_next_expires() -> None:
    listener = Listener(lifetime=60.0)
    assert listener.assembler.due() is None
    listener.hears(b"#AAAA", 1)
    listener.clock.now += 20
    listener.hears(b"#AAAA", 2)
    assert listener.assembler.due() == 40.0


def test_a_reused_pid_begins_again_once_its_predecessor_is_known_to_be_gone() -> None:
    listener = Listener()
    listener.hears(pieces("never ended")[0], 4711)
    listener.assembler.forget_senders({4711})
    for segment in pieces("of the new one"):
        listener.hears(segment, 4711)
    assert listener.heard == ["of the new one"]
    assert listener.counts() == (0, 1, 0, 0)


def test_unsubscribing_forgets_the_channel_only() -> None:
    listener = Listener()
    for channel in ("a", "b"):
        listener.hears(pieces("on both channels")[0], channel=channel)
    listener.assembler.forget_channel("a")
    for segment in pieces("on both channels")[1:]:
        listener.hears(segment, channel="b")
    assert listener.heard == ["on both channels"]
