"""What needs neither a server nor a segment: delays, and what waits to be sent."""

from __future__ import annotations

import pytest

import pynotify
from pynotify.bridge._outgoing import Backlog, Outward
from pynotify.bridge._retry import RetryDelay


def note(seq: int, payload: bytes, channel: str = "c") -> pynotify.Notify:
    return pynotify.Notify(channel, payload, pid=1, seq=seq)


# ---- delays --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("random", "share"), [(0.0, 0.5), (0.5, 0.75), (1.0, 1.0)])
def test_each_delay_is_twice_the_last_up_to_a_bound(random: float, share: float) -> None:
    backoff = RetryDelay(1, 10, lambda: random)
    bounds = [1, 2, 4, 8, 10, 10]
    assert [backoff.next() for _ in bounds] == [share * bound for bound in bounds]
    backoff.reset()
    assert backoff.next() == share


@pytest.mark.parametrize(("first", "longest"), [(0, 1), (-1, 1), (2, 1)])
def test_delays_that_cannot_be(first: float, longest: float) -> None:
    with pytest.raises(ValueError, match="does not hold"):
        RetryDelay(first, longest, lambda: 0.0)


# ---- what waits --------------------------------------------------------------------------------


def drain(outgoing: Backlog) -> list[list[bytes]]:
    found = []
    while (outward := outgoing.send()) is not None:
        assert outgoing.send() is None, "one at a time"
        found.append([payload for _, payload in outward.pairs])
        outgoing.sent()
    return found


def test_a_transaction_is_one_again() -> None:
    outgoing = Backlog(1000)
    outgoing.add([note(1, b"a"), note(1, b"b"), note(2, b"a"), note(3, b"c"), note(3, b"d")])
    assert drain(outgoing) == [[b"a", b"b"], [b"a"], [b"c", b"d"]]
    assert (len(outgoing), outgoing.bytes) == (0, 0)


def test_another_one_begins_before_what_would_collapse() -> None:
    outgoing = Backlog(1000)
    outgoing.add([note(1, b"a"), note(1, b"b"), note(1, b"a"), note(1, b"a"), note(1, b"b")])
    assert drain(outgoing) == [[b"a", b"b"], [b"a"], [b"a", b"b"]]


def test_the_same_on_other_channels_does_not_collapse() -> None:
    outgoing = Backlog(1000)
    outgoing.add([note(1, b"a"), note(1, b"a", "d")])
    assert drain(outgoing) == [[b"a", b"a"]]


def test_the_oldest_go_when_it_is_too_much() -> None:
    outgoing = Backlog(10)
    outgoing.add([note(1, b"xxxx"), note(1, b"yyyy"), note(2, b"bbbb")])
    assert (outgoing.dropped, outgoing.bytes) == (2, 5)
    outgoing.add([note(3, b"cccc"), note(4, b"dddd")])
    assert outgoing.dropped == 3
    assert drain(outgoing) == [[b"cccc"], [b"dddd"]]


def test_what_is_on_its_way_stays() -> None:
    outgoing = Backlog(10)
    outgoing.add([note(1, b"aaaa")])
    first = outgoing.send()
    outgoing.add([note(n, b"bbbb") for n in range(2, 9)])
    assert outgoing.dropped == 6
    outgoing.again()
    assert outgoing.send() == first
    outgoing.sent()
    assert drain(outgoing) == [[b"bbbb"]]


def test_how_arrays_are_written() -> None:
    pairs = [(b"c", b'a"b\\'), (b"d", b"{,}"), (b"e", b"")]
    values = Outward(pairs, 0).values
    assert values == [b'{"c","d","e"}', b'{"a\\"b\\\\","{,}",""}']
