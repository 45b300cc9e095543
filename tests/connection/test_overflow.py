"""What a subscription does that has more messages than it may keep."""

from __future__ import annotations

import random

import pytest

import pynotify
from pynotify._inbox import Inbox
from pynotify._leader import ThreadWaiter
from receiving import drain, payloads, readable, shown, wait_until
from sessions import Connect, EngineFactory
from waiting import Call, await_waiting

Message = pynotify.Notify | pynotify.Gap
DROPPING = ["drop-oldest", "drop-newest"]


def send(conn: pynotify.Connection, *names: str) -> None:
    """And have them read, one after the other."""
    for name in names:
        conn.notify("c", name)
    conn.poll()


def test_drop_oldest(conn: pynotify.Connection) -> None:
    """The Gap stands before what is left."""
    sub = conn.subscribe("c", maxlen=2)
    send(conn, "1", "2", "3", "4", "5")
    assert (sub.pending, sub.dropped) == (2, 3)
    assert shown(drain(sub)) == [3, "4", "5"]
    send(conn, "6", "7", "8")
    assert shown([sub.next(0)]) == [1]
    send(conn, "9")
    assert shown(drain(sub)) == [1, "8", "9"]
    assert (sub.pending, sub.dropped) == (0, 5)


def test_drop_newest(conn: pynotify.Connection) -> None:
    """The Gap stands behind what was kept, and before what came when there was room again."""
    sub = conn.subscribe("c", maxlen=2, overflow="drop-newest")
    send(conn, "1", "2", "3", "4")
    assert shown([sub.next(0)]) == ["1"]
    send(conn, "5", "6")
    assert (sub.pending, sub.dropped) == (2, 3)
    assert shown(drain(sub)) == ["2", 2, "5", 1]


def test_gaps_of_other_reasons_stay_apart() -> None:
    """Those of one reason are joined: their bytes are added, how many messages is not known."""
    inbox = Inbox(1, "drop-oldest", None)
    inbox.open(0)
    reasons = pynotify.Gap.EVICTED, pynotify.Gap.DAMAGED
    for missed, reason in (1, 0), (2, 0), (4, 1), (8, 0), (16, 0):
        inbox.put(pynotify.Gap(missed, reasons[reason]))
    assert list(inbox.messages) == [
        pynotify.Gap(3, pynotify.Gap.EVICTED),
        pynotify.Gap(4, pynotify.Gap.DAMAGED),
        pynotify.Gap(24, pynotify.Gap.EVICTED),
    ]
    assert inbox.held == 0


@pytest.mark.parametrize("overflow", DROPPING)
def test_what_is_handed_over_again_is_there_once(overflow: str) -> None:
    """Ctrl-C may come between the hand-over and its note, and then the message comes again."""
    once, twice = Inbox(2, overflow, None), Inbox(2, overflow, None)
    messages: list[Message] = [pynotify.Notify("c", str(n), seq=n + 1) for n in range(4)]
    messages[2:2] = [pynotify.Gap(missed, pynotify.Gap.EVICTED) for missed in (1, 2)]
    for inbox in (once, twice):
        inbox.open(0)
        for message in messages:
            inbox.put(message)
            if inbox is twice:
                inbox.put(message)
        assert (inbox.held, inbox.dropped) == (2, 2)
    assert list(twice.messages) == list(once.messages)


@pytest.mark.parametrize("overflow", DROPPING)
def test_one_message(conn: pynotify.Connection, overflow: str) -> None:
    sub = conn.subscribe("c", maxlen=1, overflow=overflow)
    send(conn, "1", "2", "3")
    assert sub.pending == 1
    expected = [2, "3"] if overflow == "drop-oldest" else ["1", 2]
    assert shown(drain(sub)) == expected


def test_without_a_limit(conn: pynotify.Connection) -> None:
    for overflow in (*DROPPING, "block"):
        sub = conn.subscribe("c", maxlen=None, overflow=overflow)
        names = [str(number) for number in range(3000)]
        conn.notify_many("c", names)
        conn.poll()
        assert (sub.pending, sub.dropped) == (3000, 0)
        assert payloads(drain(sub)) == names
        sub.close()


def test_what_a_gap_says(conn: pynotify.Connection) -> None:
    sub = conn.subscribe("c", maxlen=1)
    send(conn, "a", "bcd", "\u20ac", "")
    gap = sub.next(0)
    assert isinstance(gap, pynotify.Gap)
    assert gap == pynotify.Gap(missed_bytes=1 + 3 + 3, reason="overflow", missed=3)
    assert gap.channel is None


@pytest.mark.parametrize("overflow", DROPPING)
@pytest.mark.parametrize("maxlen", [1, 2, 5])
def test_everything_is_there_or_in_a_gap(
    conn: pynotify.Connection, overflow: str, maxlen: int
) -> None:
    """At random: a Gap stands exactly where messages are missing, and counts exactly those."""
    rng = random.Random(f"{overflow} {maxlen}")
    sub = conn.subscribe("c", maxlen=maxlen, overflow=overflow)
    lengths: list[int] = []
    got: list[Message] = []
    for _ in range(400):
        for _ in range(rng.randrange(4)):
            payload = f"{len(lengths)}".ljust(rng.randrange(12), ".")
            lengths.append(len(payload))
            conn.notify("c", payload)
        if rng.random() < 0.5:
            conn.poll()
        for _ in range(rng.randrange(3)):
            if sub.pending:
                got.append(sub.next(0))
        assert sub.pending <= maxlen
    got += drain(sub)
    next_number = 0
    for message in got:
        if isinstance(message, pynotify.Gap):
            missing = range(next_number, next_number + (message.missed or 0))
            assert message.missed_bytes == sum(lengths[number] for number in missing)
            next_number = missing.stop
        else:
            assert int(message.payload.rstrip(".")) == next_number
            next_number += 1
    assert next_number == len(lengths)
    gaps = [m for m in got if isinstance(m, pynotify.Gap)]
    assert sub.dropped == sum(gap.missed or 0 for gap in gaps) > 0


def test_a_waiting_thread_needs_no_room(conn: pynotify.Connection, connect: Connect) -> None:
    """A burst is handed to the threads that wait for it, and only the rest has to be kept."""
    sub = conn.subscribe("c", maxlen=1)
    calls = [Call(sub.next) for _ in range(4)]
    await_waiting(conn, 4)
    connect().notify_many("c", ["1", "2", "3", "4", "5"])
    assert sorted(call.result().payload for call in calls) == ["1", "2", "3", "4"]
    assert (sub.pending, sub.dropped) == (1, 0)


def test_what_came_before_it_listened_takes_no_room(conn: pynotify.Connection) -> None:
    earlier = conn.subscribe("c")
    conn.notify_many("c", ["1", "2", "3"])
    sub = conn.subscribe("c", maxlen=1)
    conn.notify("c", "4")
    assert shown(drain(sub)) == ["4"]
    assert sub.dropped == 0
    assert earlier.pending == 4


def test_skipped_ones_take_no_room(conn: pynotify.Connection, connect: Connect) -> None:
    sub = conn.subscribe("c", maxlen=1, skip_self=True)
    conn.notify_many("c", ["1", "2", "3"])
    connect().notify("c", "4")
    assert shown(drain(sub)) == ["4"]
    assert sub.dropped == 0


def test_handlers_of_a_thread_get_gaps(conn: pynotify.Connection) -> None:
    sub = conn.subscribe("c", maxlen=1)
    send(conn, "1", "2")
    heard: list[Message] = []
    thread = sub.start(heard.append)
    wait_until(lambda: len(heard) == 2, "both have been handled")
    thread.stop()
    assert shown(heard) == [1, "2"]


class TestBlock:
    """A full subscription that blocks: no thread reads on this connection any more."""

    def test_nothing_is_dropped(self, conn: pynotify.Connection) -> None:
        names = [str(number) for number in range(50)]
        for maxlen in (1, 7):
            with conn.subscribe("c", maxlen=maxlen, overflow="block") as sub:
                conn.notify_many("c", names)
                conn.poll()
                assert sub.pending == maxlen
                assert payloads(drain(sub)) == names
                assert sub.dropped == 0

    def test_the_others_wait_for_it(
        self, conn: pynotify.Connection, engine: pynotify.Engine
    ) -> None:
        conn.listen("l")
        full, other = conn.subscribe("c", maxlen=2, overflow="block"), conn.subscribe("l")
        send(conn, "1", "2")
        conn.notify("l", "x")
        assert conn.poll() == []
        assert not conn.wait(0)
        assert drain(other) == []
        assert engine.stat().backends[0].lag_bytes > 0
        assert full.next(0).payload == "1"
        assert payloads(conn.poll()) == ["x"]
        assert payloads(drain(other)) == ["x"]
        assert payloads(drain(full)) == ["2"]

    def test_closing_it_lets_them_go_on(self, conn: pynotify.Connection) -> None:
        full, other = conn.subscribe("c", maxlen=1, overflow="block"), conn.subscribe("l")
        send(conn, "1", "2")
        conn.notify("l", "x")
        waiting = Call(other.next)
        await_waiting_or_stalled(conn)
        full.close()
        assert waiting.result().payload == "x"

    @pytest.mark.parametrize("how", ["wait", "next", "notifies"])
    def test_taking_one_lets_them_go_on(self, conn: pynotify.Connection, how: str) -> None:
        """At once: a thousand times within the time of a few slow timers."""
        conn.listen("l")
        full, other = conn.subscribe("c", maxlen=1, overflow="block"), conn.subscribe("l")
        receive = {
            "wait": lambda: conn.wait() and None,
            "next": other.next,
            "notifies": lambda: next(conn.notifies()),
        }[how]
        for number in range(100):
            conn.notify_many("c", [f"{number} a", f"{number} b"])
            conn.notify("l", "x")
            waiting = Call(receive)
            wait_until(lambda: full.pending == 1, "a thread has read")
            assert full.next(0).payload == f"{number} a"
            assert full.next().payload == f"{number} b"
            waiting.result()
            conn.poll()
            drain(other)

    def test_the_others_wait_for_it_no_longer_than_they_have_time(
        self, conn: pynotify.Connection, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        slept: list[int] = []
        sleep = ThreadWaiter.sleep

        def sleep_and_note(waiter: ThreadWaiter, timeout_ns: int) -> None:
            slept.append(timeout_ns)
            sleep(waiter, timeout_ns)

        monkeypatch.setattr(ThreadWaiter, "sleep", sleep_and_note)
        full = conn.subscribe("c", maxlen=1, overflow="block")
        send(conn, "1", "2")
        assert conn.poll() == []
        assert not conn.wait(0.01)
        assert slept
        assert max(slept) <= 10_000_000
        assert payloads(drain(full)) == ["1", "2"]

    def test_little_room_does_not_shorten_a_poll(self, conn: pynotify.Connection) -> None:
        """Everything owed is returned, as long as it is not for the full one."""
        conn.listen("l")
        sub = conn.subscribe("c", maxlen=1, overflow="block")
        names = [str(number) for number in range(100)]
        conn.notify_many("l", names)
        conn.notify("c", "x")
        assert payloads(conn.poll()) == names
        assert sub.pending == 1

    def test_a_sender_that_goes_on_does_not_keep_poll(
        self, conn: pynotify.Connection, connect: Connect
    ) -> None:
        """It returns what was there when it was called, however little room there is."""
        other = connect()
        conn.listen("l")
        full = conn.subscribe("c", maxlen=1, overflow="block")
        read = conn.link.receiver.reader.read_routed

        def sending(*arguments: object) -> object:
            other.notify("l", "more")
            return read(*arguments)  # type: ignore[arg-type]

        conn.link.receiver.reader.read_routed = sending  # type: ignore[method-assign, assignment]
        other.notify("l", "x")
        assert payloads(conn.poll())[0] == "x"
        assert full.pending == 0

    def test_the_queue_fills_behind_it(self, make_engine: EngineFactory, connect: Connect) -> None:
        """The sender notices, as of any listener that does not read."""
        engine = make_engine(queue_pages=64)
        conn, other = connect(to=engine), connect(to=engine)
        sub = conn.subscribe("c", maxlen=1, overflow="block")
        sent = 0
        with pytest.raises(pynotify.QueueFull, match=str(conn.pid)):
            while sent < 1000:
                other.notify("c", b"x" * 7000)
                sent += 1
                conn.poll()
        assert len(drain(sub)) == sent
        assert sub.dropped == 0
        other.notify("c", "fits again")

    def test_the_descriptor_is_quiet_meanwhile(
        self, conn: pynotify.Connection, connect: Connect
    ) -> None:
        other = connect()
        conn.listen("l")
        fd = conn.fileno()
        full = conn.subscribe("c", maxlen=1, overflow="block")
        other.notify_many("c", ["1", "2"])
        other.notify("l", "x")
        conn.poll()
        assert not readable(fd)
        other.notify("l", "y")
        assert not readable(fd)
        assert payloads(drain(full)) == ["1", "2"]
        assert readable(fd)
        assert payloads(conn.poll()) == ["x", "y"]
        assert not readable(fd)


def await_waiting_or_stalled(conn: pynotify.Connection) -> None:
    wait_until(
        lambda: conn.link.receiver._stalled is not None, "the leader sleeps as it must not read"
    )
