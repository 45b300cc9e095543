"""How the threads that wait on one connection share its one sleep in the core."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import pynotify
from forking import in_child
from pynotify import _leader, _reader, _thread_receiver
from pynotify._inbox import MainInbox
from receiving import PATIENCE, payloads, readable, wait_until
from sessions import Connect, RemoteSession
from waiting import Call, await_waiting


class Counts:
    """How often a thread came out of the core, how often one out of its sleep, how many reads."""

    core = followers = reads = 0


@pytest.fixture
def counts(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counts]:
    counted = Counts()

    def count(where: Any, name: str, attribute: str) -> None:
        function = getattr(where, name)

        def counting(*arguments: Any) -> Any:
            result = function(*arguments)
            setattr(counted, attribute, getattr(counted, attribute) + 1)
            return result

        monkeypatch.setattr(where, name, counting)

    count(_thread_receiver, "wait_in_core", "core")
    count(_leader.ThreadWaiter, "sleep", "followers")
    for name in ("read", "read_routed", "read_columns"):
        count(_reader.Reader, name, "reads")
    return counted


def subscribe_each(
    conn: pynotify.Connection, number: int
) -> tuple[list[pynotify.Subscription], list[Call]]:
    """Subscriptions to "0", "1" ..., and for each a thread that waits; the first one leads."""
    subs = [conn.subscribe(str(i)) for i in range(number)]
    calls = []
    for i, sub in enumerate(subs, 1):
        calls.append(Call(sub.next))
        await_waiting(conn, i)
    return subs, calls


class TestWhoIsWoken:
    def test_only_the_thread_it_is_for(
        self, conn: pynotify.Connection, connect: Connect, counts: Counts
    ) -> None:
        """The leader reads for a follower, and sleeps on; all others sleep on anyway."""
        other = connect()
        _subs, calls = subscribe_each(conn, 20)
        other.notify("13", "x")
        assert calls[13].result().payload == "x"
        await_waiting(conn, 19)
        assert (counts.core, counts.followers, counts.reads) == (1, 1, 1)
        assert [call.ended for call in calls] == [i == 13 for i in range(20)]
        conn.close()
        for call in calls:
            call.error()

    def test_the_leader_alone_and_its_successor(
        self, conn: pynotify.Connection, connect: Connect, counts: Counts
    ) -> None:
        other = connect()
        _subs, calls = subscribe_each(conn, 20)
        other.notify("0", "x")
        assert calls[0].result().payload == "x"
        await_waiting(conn, 19)
        assert (counts.core, counts.followers, counts.reads) == (1, 1, 1)
        conn.close()
        for call in calls:
            call.error()

    def test_a_burst_for_a_hundred_costs_one_signal_and_one_read(
        self,
        conn: pynotify.Connection,
        engine: pynotify.Engine,
        engine_name: str,
        remote: Callable[..., RemoteSession],
        counts: Counts,
    ) -> None:
        other = remote(engine_name)
        heard: list[str] = []
        threads = [
            conn.subscribe(str(i)).start(lambda message: heard.append(message.payload))
            for i in range(100)
        ]
        for burst in range(1, 4):
            await_waiting(conn, 100)
            before, reads = engine.stat(), counts.reads
            other.begin()
            for i in range(100):
                other.notify(str(i), f"{burst} {i}")
            other.commit()
            wait_until(lambda burst=burst: len(heard) == 100 * burst, "each thread has its own")
            await_waiting(conn, 100)
            after = engine.stat()
            assert after.signals_sent - before.signals_sent == 1
            assert after.wakeups_useful - before.wakeups_useful == 1
            assert after.wakeups_useless == before.wakeups_useless
            assert counts.reads - reads == 1
        assert len(set(heard)) == 300
        for thread in threads:
            thread.stop()

    def test_every_thread_in_wait_looks(self, conn: pynotify.Connection, connect: Connect) -> None:
        """wait() delivers nothing, so no thread takes the message from the others."""
        conn.listen("c")
        sub = conn.subscribe("s")
        calls = [Call(conn.wait) for _ in range(5)]
        receiver = Call(sub.next)
        await_waiting(conn, 6)
        connect().notify("c", "x")
        assert [call.result() for call in calls] == [True] * 5
        assert not receiver.ended
        assert payloads(conn.poll()) == ["x"]
        connect().notify("s", "y")
        assert receiver.result().payload == "y"

    def test_a_thread_that_leaves_meanwhile_costs_no_other_its_turn(self) -> None:
        """Waking all, while those that are woken take themselves out."""
        inbox = MainInbox()

        class Waiter:
            message = None
            woken = False

            def wake(self) -> None:
                self.woken = True
                inbox.waiters.remove(self)

        waiters = [Waiter() for _ in range(4)]
        inbox.waiters.extend(waiters)
        inbox.wake_all()
        assert all(waiter.woken for waiter in waiters)

    def test_a_look_does_not_take_the_wake_up(
        self, conn: pynotify.Connection, connect: Connect
    ) -> None:
        """A thread reads for the leader, and looks again before the leader is out of the core."""
        other = connect()
        one, two = conn.subscribe("1"), conn.subscribe("2")
        began = time.monotonic()
        for look in (lambda: two.next(0), lambda: conn.wait(0), conn.poll) * 10:
            call = Call(one.next)
            await_waiting(conn, 1)
            other.notify("1", "x")
            while not call.ended:
                try:
                    look()
                except pynotify.Timeout:
                    continue
            assert call.result().payload == "x"
        assert time.monotonic() - began < PATIENCE / 2

    def test_the_descriptor_is_quiet_after_a_kick(
        self, conn: pynotify.Connection, connect: Connect
    ) -> None:
        """A thread waits, a loop watches the descriptor and reads for it."""
        other, fd = connect(), conn.fileno()
        sub = conn.subscribe("s")
        for number in range(50):
            call = Call(sub.next)
            await_waiting(conn, 1)
            other.notify("s", str(number))
            while not call.ended:
                conn.poll()
            conn.poll()
            assert not readable(fd)


class TestTakingOver:
    def test_when_the_leaders_time_is_over(
        self, conn: pynotify.Connection, connect: Connect
    ) -> None:
        one, two = conn.subscribe("1"), conn.subscribe("2")
        leader = Call(one.next, 0.1)
        await_waiting(conn, 1)
        follower = Call(two.next)
        assert isinstance(leader.error(), pynotify.Timeout)
        await_waiting(conn, 1)
        connect().notify("2", "x")
        assert follower.result().payload == "x"

    def test_when_the_leaders_subscription_is_closed(
        self, conn: pynotify.Connection, connect: Connect
    ) -> None:
        subs, calls = subscribe_each(conn, 3)
        subs[0].close()
        assert isinstance(calls[0].error(), pynotify.InterfaceError)
        await_waiting(conn, 2)
        connect().notify("2", "x")
        assert calls[2].result().payload == "x"
        subs[1].close()
        assert isinstance(calls[1].error(), pynotify.InterfaceError)

    def test_wait_hands_over_to_subscriptions(
        self, conn: pynotify.Connection, connect: Connect
    ) -> None:
        conn.listen("c")
        sub = conn.subscribe("s")
        leader = Call(conn.wait)
        await_waiting(conn, 1)
        follower = Call(sub.next)
        await_waiting(conn, 2)
        connect().notify("c", "x")
        assert leader.result() is True
        await_waiting(conn, 1)
        connect().notify("s", "y")
        assert follower.result().payload == "y"

    def test_many_that_come_and_go(self, conn: pynotify.Connection, connect: Connect) -> None:
        """A thread that is called to lead and gives up calls the next: no timer is waited for."""
        other, stop = connect(), threading.Event()
        conn.listen("c")
        subs = [conn.subscribe("nothing") for _ in range(6)]
        steady = conn.subscribe("steady")

        def come_and_go(sub: pynotify.Subscription, seed: int) -> None:
            rng = random.Random(seed)
            while not stop.is_set():
                try:
                    sub.next(rng.random() / 500)
                except pynotify.Timeout:
                    conn.wait(rng.random() / 1000)

        calls = [Call(come_and_go, sub, seed) for seed, sub in enumerate(subs)]
        began = time.monotonic()
        for number in range(300):
            other.notify("steady", str(number))
            assert steady.next(PATIENCE).payload == str(number)
        assert time.monotonic() - began < PATIENCE
        stop.set()
        for call in calls:
            call.result()
        assert conn.link.receiver.election.leader is None
        assert not conn.link.receiver.election.occupied

    def test_subscribing_while_a_thread_sleeps(
        self, conn: pynotify.Connection, connect: Connect
    ) -> None:
        """It was alone until then, and reads for all from now on; and is alone again after."""
        other = connect()
        conn.listen("c")
        sleeper = Call(conn.wait)
        await_waiting(conn, 1)
        sub = conn.subscribe("s")
        for number in range(3):
            follower = Call(sub.next)
            await_waiting(conn, 2)
            other.notify("s", str(number))
            assert follower.result().payload == str(number)
        assert not sleeper.ended
        sub.close()
        other.notify("c", "x")
        assert sleeper.result() is True
        assert payloads(conn.poll()) == ["x"]


class TestTogether:
    def test_first_come_first_served(self, conn: pynotify.Connection, connect: Connect) -> None:
        """Several threads on one subscription: each message goes to the longest waiting."""
        other = connect()
        sub = conn.subscribe("c")
        calls = []
        for number in range(6):
            calls.append(Call(sub.next, 0.2 if number == 2 else None))
            await_waiting(conn, number + 1)
        assert isinstance(calls.pop(2).error(), pynotify.Timeout)
        for number in range(4):
            other.notify("c", str(number))
        assert [calls[number].result().payload for number in range(4)] == ["0", "1", "2", "3"]
        calls.append(Call(sub.next))
        await_waiting(conn, 2)
        other.notify_many("c", ["4", "5"])
        assert [calls[number].result().payload for number in (4, 5)] == ["4", "5"]

    def test_all_ways_of_receiving_at_once(
        self, conn: pynotify.Connection, connect: Connect
    ) -> None:
        """Each gets what is its own; poll() and notifies() share what was LISTENed for."""
        other, total = connect(), 300
        conn.listen("l")
        subs = [conn.subscribe("s", "l", maxlen=None) for _ in range(3)]
        heard: list[str] = []

        def poll() -> None:
            while conn.wait():
                got = payloads(conn.poll(max=1))
                heard.extend(got)
                if "end" in got:
                    return

        def iterate() -> None:
            for message in conn.notifies():
                heard.append(message.payload)
                if message.payload == "end":
                    return

        def receive(sub: pynotify.Subscription) -> list[str]:
            return [sub.next(PATIENCE).payload for _ in range(2 * total)]

        main = [Call(poll), Call(iterate), Call(poll)]
        calls = [Call(receive, sub) for sub in subs]
        for number in range(total):
            other.notify("l", f"l{number}")
            other.notify("s", f"s{number}")
        for call in calls:
            assert call.result() == [f"{channel}{i}" for i in range(total) for channel in "ls"]
        for sub in subs:
            sub.close()
        for _ in main:
            other.notify("l", "end")
        for call in main:
            call.result()
        expected = [f"l{number}" for number in range(total)]
        assert sorted(set(heard) - {"end"}) == sorted(expected)
        assert len(heard) == total + 3

    def test_without_signals(self, connect: Connect) -> None:
        conn, other = connect(wakeup="poll"), connect()
        _subs, calls = subscribe_each(conn, 3)
        for number in (1, 0, 2):
            other.notify(str(number), "x")
            assert calls[number].result().payload == "x"


class TestEnds:
    @pytest.mark.parametrize("leaders", [True, False], ids=["leading", "following"])
    def test_closing_a_subscription_wakes_its_own(
        self, conn: pynotify.Connection, connect: Connect, leaders: bool
    ) -> None:
        closing, staying = conn.subscribe("c"), conn.subscribe("s")
        order = [closing] * 3 + [staying]
        calls = []
        for number, sub in enumerate(order if leaders else reversed(order), 1):
            calls.append((sub, Call(sub.next)))
            await_waiting(conn, number)
        closing.close()
        for sub, call in calls:
            if sub is closing:
                assert isinstance(call.error(), pynotify.InterfaceError)
        connect().notify("s", "x")
        (call,) = (call for sub, call in calls if sub is staying)
        assert call.result().payload == "x"

    def test_closing_ends_a_loop_in_another_thread(self, conn: pynotify.Connection) -> None:
        sub = conn.subscribe("c")
        call = Call(list, sub)
        await_waiting(conn, 1)
        sub.close()
        assert call.result() == []

    def test_closing_the_connection_wakes_all(self, conn: pynotify.Connection) -> None:
        conn.listen("c")
        sub = conn.subscribe("s")
        calls = [
            Call(function)
            for function in (sub.next, conn.wait, sub.next, lambda: next(conn.notifies()))
        ]
        await_waiting(conn, 4)
        conn.close()
        assert [type(call.error()) for call in calls] == [pynotify.InterfaceError] * 4

    def test_unlinking_by_force_wakes_all(self, segment_name: str) -> None:
        with pynotify.connect(segment_name) as conn:
            conn.listen("c")
            sub = conn.subscribe("s")
            calls = [Call(function) for function in (sub.next, conn.wait, sub.next, sub.next)]
            errors: list[Exception] = []
            thread = sub.start(print, on_error=errors.append)
            await_waiting(conn, 5)
            pynotify.unlink(segment_name, force=True)
            assert [type(call.error()) for call in calls] == [pynotify.SegmentUnlinked] * 4
            thread.join(PATIENCE)
            assert [type(error) for error in errors] == [pynotify.SegmentUnlinked]
            with pytest.raises(pynotify.SegmentUnlinked):
                sub.next(0)


def refused(conn: pynotify.Connection, sub: pynotify.Subscription) -> list[str]:
    """What does not raise ForkedConnectionError, by name."""
    uses: dict[str, Callable[[], object]] = {
        "next": sub.next,
        "next(0)": lambda: sub.next(0),
        "next(1)": lambda: sub.next(1),
        "iterating": lambda: next(sub),
        "start": lambda: sub.start(print),
        "subscribe": lambda: conn.subscribe("d"),
        "wait": conn.wait,
        "wait(0)": lambda: conn.wait(0),
        "poll": conn.poll,
        "poll_batch": conn.poll_batch,
        "notifies": lambda: list(conn.notifies(timeout=0)),
        "listen": lambda: conn.listen("d"),
        "unlisten": lambda: conn.unlisten("l"),
        "listening_channels": conn.listening_channels,
        "fileno": conn.fileno,
        "notify": lambda: conn.notify("c", "from the child"),
    }
    others = []
    for name, use in uses.items():
        try:
            use()
        except pynotify.ForkedConnectionError:
            continue
        except BaseException as error:
            others.append(f"{name}: {error!r}")
        else:
            others.append(name)
    sub.close()
    conn.close()
    return others


class TestFork:
    def test_with_threads_that_wait(self, conn: pynotify.Connection, connect: Connect) -> None:
        """The child can use nothing of it, and hangs nowhere; the parent does not notice."""
        other = connect()
        conn.listen("l")
        subs, calls = subscribe_each(conn, 3)
        other.notify_many("0", ["unread", "unread too"])
        assert calls[0].result().payload == "unread"
        assert in_child(lambda: refused(conn, subs[0])) == []
        assert subs[0].next().payload == "unread too"
        for number in (1, 2):
            other.notify(str(number), "x")
            assert calls[number].result().payload == "x"

    @pytest.mark.parametrize("lock", ["lock", "_subscribing"])
    def test_while_another_thread_holds_a_lock(self, conn: pynotify.Connection, lock: str) -> None:
        sub = conn.subscribe("c")
        held, go_on = threading.Event(), threading.Event()

        def hold() -> None:
            with getattr(conn.link.receiver, lock):
                held.set()
                assert go_on.wait(PATIENCE)

        holder = Call(hold)
        assert held.wait(PATIENCE)
        try:
            assert in_child(lambda: refused(conn, sub)) == []
        finally:
            go_on.set()
            holder.result()
        conn.notify("c", "x")
        assert sub.next(0).payload == "x"

    def test_while_another_thread_reads(
        self, conn: pynotify.Connection, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        sub = conn.subscribe("c")
        conn.notify("c", "x")
        reading, go_on = threading.Event(), threading.Event()
        read = _reader.Reader.read_routed

        def slowly(*arguments: Any) -> Any:
            result = read(*arguments)
            reading.set()
            assert go_on.wait(PATIENCE)
            return result

        monkeypatch.setattr(_reader.Reader, "read_routed", slowly)
        reader = Call(sub.next)
        assert reading.wait(PATIENCE)
        try:
            assert in_child(lambda: go_on.set() or refused(conn, sub)) == []
        finally:
            go_on.set()
        assert reader.result().payload == "x"

    def test_a_thread_of_the_parent_is_stopped_in_vain(self, conn: pynotify.Connection) -> None:
        """In the child it does not run, and stop() returns."""
        thread = conn.subscribe("c").start(print)
        await_waiting(conn, 1)
        assert in_child(thread.stop) is None
        assert thread.is_alive()
        thread.stop()


@pytest.mark.parametrize("deadline", [0, 1], ids=["at boot", "just after"])
def test_a_deadline_that_has_passed_ends_the_wait(conn: pynotify.Connection, deadline: int) -> None:
    """Whichever it is: only -1 is none."""
    election = conn._receiver.election
    waiter = _leader.ThreadWaiter(election)
    asked: list[int] = []

    def look(_waiter: _leader.ThreadWaiter, timeout_ns: int) -> bool:
        asked.append(timeout_ns)
        return True

    try:
        election.enter(waiter)
        assert not election.wait(waiter, deadline, look)
    finally:
        election.leave(waiter, [])
    assert asked == []
