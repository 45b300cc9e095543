"""Connection.subscribe: many listeners that share a backend slot.

How threads wait is in test_leader.py, what overflow drops in test_overflow.py.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable

import pytest

import pynotify
from interrupting import At
from receiving import PATIENCE, drain, pairs, payloads, wait_until
from sessions import Connect, EngineFactory
from waiting import Call, await_waiting


class TestOpening:
    def test_any_number_share_a_slot_and_an_entry_for_each_channel(
        self, conn: pynotify.Connection, engine: pynotify.Engine
    ) -> None:
        subs = [conn.subscribe(f"c{number % 10}") for number in range(100)]
        stat = engine.stat()
        assert [backend.channels for backend in stat.backends] == [10]
        assert stat.subscriptions == 10
        conn.notify("c3", "x")
        heard = [payloads(drain(sub)) for sub in subs]
        assert heard == [["x"] if number % 10 == 3 else [] for number in range(100)]
        for sub in subs:
            sub.close()
        assert engine.stat().subscriptions == 0

    def test_listens_when_it_returns(self, conn: pynotify.Connection, connect: Connect) -> None:
        """Nothing older, everything later."""
        other = connect()
        other.notify("c", "older")
        sub = conn.subscribe("c")
        other.notify("c", "later")
        assert payloads(drain(sub)) == ["later"]

    @pytest.mark.parametrize("read", [False, True], ids=["unread", "read for others"])
    @pytest.mark.parametrize("by", ["subscribe", "listen"])
    def test_nothing_older_on_a_channel_that_is_there_already(
        self, conn: pynotify.Connection, by: str, read: bool
    ) -> None:
        """The older messages stay for those that listened."""
        first = conn.subscribe("c" if by == "subscribe" else "other")
        if by == "listen":
            conn.listen("c")
        conn.notify_many("c", ["1", "2"])
        if read:
            assert conn.wait(0) is (by == "listen")
        second = conn.subscribe("c")
        conn.notify("c", "3")
        assert payloads(drain(second)) == ["3"]
        assert payloads(drain(first) if by == "subscribe" else conn.poll()) == ["1", "2", "3"]

    def test_everything_later_though_others_read_while_it_opens(
        self, conn: pynotify.Connection, connect: Connect
    ) -> None:
        """What it gets is the end of what was sent, without a hole."""
        other = connect()
        stop = threading.Event()
        sent = 0

        def read() -> None:
            while not stop.is_set():
                conn.wait(0)

        def send() -> None:
            nonlocal sent
            while not stop.is_set():
                with contextlib.suppress(pynotify.QueueFull):  # the reader gets few turns
                    other.notify("c", str(sent))
                    sent += 1
                if sent % 16 == 0:
                    time.sleep(0)  # a turn of 5 ms would be 40,000 messages, for each of them

        def subscribe_amid() -> pynotify.Subscription:
            before = sent
            while sent == before:
                time.sleep(0)
            return conn.subscribe("c", maxlen=None)

        earlier = conn.subscribe("c", maxlen=1)
        reader, sender = Call(read), Call(send)
        subs = [subscribe_amid() for _ in range(100)]
        stop.set()
        sender.result()
        reader.result()
        conn.poll()
        assert earlier.dropped == sent - 1
        for sub in subs:
            numbers = [int(payload) for payload in payloads(drain(sub))]
            assert numbers == list(range(sent - len(numbers), sent))

    def test_refused_in_a_transaction(
        self, conn: pynotify.Connection, engine: pynotify.Engine
    ) -> None:
        with conn.transaction(), pytest.raises(pynotify.ActiveTransaction) as caught:
            conn.subscribe("c")
        assert caught.value.sqlstate == "25001"
        conn.begin()
        with pytest.raises(pynotify.ActiveTransaction):
            conn.subscribe("c")
        assert Call(conn.subscribe, "c").result().channels == ("c",)  # another thread has none
        conn.rollback()
        assert engine.stat().subscriptions == 1

    @pytest.mark.parametrize("name", ["", "x" * 64, "nul\0", "\ud800"])
    def test_bad_names(self, conn: pynotify.Connection, name: str) -> None:
        """None of its channels is listened to then, and nothing of it is left."""
        good = conn.subscribe("good")
        with pytest.raises(pynotify.InvalidChannelName):
            conn.subscribe("new", name, "good")
        conn.notify_many("new", ["x"])
        conn.notify_many("good", ["x"])
        assert payloads(drain(good)) == ["x"]
        good.close()
        conn.listen("new")
        assert conn.poll() == []

    def test_bad_arguments(self, conn: pynotify.Connection, engine: pynotify.Engine) -> None:
        with pytest.raises(TypeError):
            conn.subscribe()
        with pytest.raises(TypeError):
            conn.subscribe(b"c")  # type: ignore[arg-type]
        for maxlen in (0, -1):
            with pytest.raises(ValueError):
                conn.subscribe("c", maxlen=maxlen)
        with pytest.raises(TypeError):
            conn.subscribe("c", maxlen="1")  # type: ignore[arg-type]
        with pytest.raises(ValueError):
            conn.subscribe("c", overflow="drop")
        with pytest.raises(TypeError):
            conn.subscribe("c", 1024)  # type: ignore[arg-type]
        assert engine.stat().subscriptions == 0

    def test_a_full_table(self, make_engine: EngineFactory, connect: Connect) -> None:
        """Nothing of the failed one is left, and there is room for others afterwards."""
        conn = connect(to=make_engine(max_channels=2))
        first = conn.subscribe("1")
        with pytest.raises(pynotify.TooManyChannels):
            conn.subscribe("2", "3")
        second = conn.subscribe("2", "1")
        conn.notify("1", "x")
        conn.notify("2", "y")
        assert payloads(drain(first)) == ["x"]
        assert payloads(drain(second)) == ["x", "y"]

    def test_what_it_says_of_itself(self, conn: pynotify.Connection) -> None:
        sub = conn.subscribe("a", "b", "a")
        assert sub.channels == ("a", "b")
        assert (sub.pending, sub.dropped, sub.closed) == (0, 0, False)
        assert repr(sub) == "<pynotify.Subscription to a, b (0 pending, 0 dropped)>"
        conn.notify_many("a", ["1", "2"])
        assert sub.next(0).payload == "1"
        assert sub.pending == 1
        sub.close()
        assert (sub.pending, sub.closed) == (0, True)
        assert "closed" in repr(sub)
        sub.close()

    def test_forgotten_without_closing(
        self, conn: pynotify.Connection, engine: pynotify.Engine
    ) -> None:
        """It holds no other up, and the next one clears it away."""
        conn.listen("c")
        conn.subscribe("full", maxlen=1, overflow="block")
        conn.notify_many("full", ["1", "2", "3"])
        conn.notify("c", "x")
        assert payloads(conn.poll()) == ["x"]
        conn.subscribe("c").close()
        assert engine.stat().subscriptions == 1


class TestWhoGetsWhat:
    def test_each_subscription_everything_of_its_channels(
        self, conn: pynotify.Connection, connect: Connect
    ) -> None:
        """In the order of the commits, across channels."""
        other = connect()
        ab, b, again = conn.subscribe("a", "b"), conn.subscribe("b"), conn.subscribe("b")
        with other.transaction():
            other.notify("b", "1")
            other.notify("a", "2")
        other.notify("b", "3")
        other.notify("c", "4")
        assert pairs(drain(ab)) == [("b", "1"), ("a", "2"), ("b", "3")]
        assert pairs(drain(b)) == pairs(drain(again)) == [("b", "1"), ("b", "3")]

    def test_a_message_is_the_same_as_by_poll(
        self, conn: pynotify.Connection, connect: Connect
    ) -> None:
        other = connect()
        sub = conn.subscribe("c")
        conn.listen("c")
        other.notify("c", b"\xff")
        message = sub.next()
        (polled,) = conn.poll()
        assert message == polled
        assert (message.data, message.backend_id) == (b"\xff", other.backend_id)
        assert (message.seq, message.sent_ns) == (polled.seq, polled.sent_ns)

    def test_listen_feeds_poll_and_subscribe_its_own(self, conn: pynotify.Connection) -> None:
        """A channel in both goes to both, each message once."""
        sub = conn.subscribe("s", "both")
        conn.listen("l", "both")
        for channel in ("s", "l", "both"):
            conn.notify(channel, channel)
        assert payloads(conn.poll()) == ["l", "both"]
        assert payloads(drain(sub)) == ["s", "both"]
        assert conn.poll() == []
        assert conn.listening_channels() == {"l", "both"}

    def test_poll_feeds_all(self, conn: pynotify.Connection) -> None:
        subs = [conn.subscribe("c") for _ in range(3)]
        conn.notify("c", "x")
        assert conn.poll() == []
        assert [sub.pending for sub in subs] == [1, 1, 1]
        assert [sub.next().payload for sub in subs] == ["x"] * 3

    def test_any_next_feeds_all(self, conn: pynotify.Connection) -> None:
        conn.listen("c")
        one, two = conn.subscribe("c", "d"), conn.subscribe("d")
        conn.notify("c", "x")
        conn.notify("d", "y")
        assert two.next(0).payload == "y"
        assert one.pending == 2
        assert payloads(conn.poll()) == ["x"]
        assert payloads(drain(one)) == ["x", "y"]

    def test_poll_batch_with_subscriptions(self, conn: pynotify.Connection) -> None:
        conn.listen("c")
        sub = conn.subscribe("c")
        conn.notify_many("c", ["1", "2", "3"])
        assert conn.poll_batch(max=2).payloads() == [b"1", b"2"]
        assert conn.poll_batch().payloads() == [b"3"]
        assert payloads(drain(sub)) == ["1", "2", "3"]

    def test_notifies_with_subscriptions(self, conn: pynotify.Connection) -> None:
        conn.listen("c")
        sub = conn.subscribe("c", "d")
        for number in range(3):
            conn.notify("c", f"c{number}")
            conn.notify("d", f"d{number}")
        assert payloads(conn.notifies(timeout=0)) == ["c0", "c1", "c2"]
        assert payloads(drain(sub)) == ["c0", "d0", "c1", "d1", "c2", "d2"]

    def test_skip_self_is_by_connection_not_by_pid(
        self, conn: pynotify.Connection, connect: Connect
    ) -> None:
        other = connect()
        assert other.pid == conn.pid
        skipping, all_ = conn.subscribe("c", skip_self=True), conn.subscribe("c")
        theirs = other.subscribe("c", skip_self=True)
        conn.notify("c", "ours")
        other.notify("c", "theirs")
        with conn.transaction():
            conn.notify("c", "ours again")
        assert payloads(drain(skipping)) == ["theirs"]
        assert payloads(drain(all_)) == ["ours", "theirs", "ours again"]
        assert payloads(drain(theirs)) == ["ours", "ours again"]

    def test_handlers_are_for_poll_and_notifies(self, conn: pynotify.Connection) -> None:
        calls: list[str] = []
        conn.add_notify_handler(lambda message: calls.append(message.payload))
        sub = conn.subscribe("s", "both")
        conn.listen("both")
        conn.notify("s", "1")
        conn.notify("both", "2")
        assert payloads(drain(sub)) == ["1", "2"]
        assert calls == []
        assert payloads(conn.poll()) == ["2"]
        conn.notify("both", "3")
        assert payloads(conn.notifies(timeout=0)) == ["3"]
        assert calls == ["2", "3"]

    def test_a_database_of_its_own(self, conn: pynotify.Connection, connect: Connect) -> None:
        sub = conn.subscribe("c")
        connect(database="other").notify("c", "x")
        assert drain(sub) == []


class TestClosing:
    def test_the_others_go_on(self, conn: pynotify.Connection, engine: pynotify.Engine) -> None:
        one, two = conn.subscribe("c", "d"), conn.subscribe("c")
        conn.listen("d")
        one.close()
        conn.notify("c", "x")
        conn.notify("d", "y")
        assert payloads(drain(two)) == ["x"]
        assert payloads(conn.poll()) == ["y"]
        two.close()
        assert engine.stat().subscriptions == 1
        assert conn.listening_channels() == {"d"}

    def test_unread_messages_are_gone(self, conn: pynotify.Connection) -> None:
        with conn.subscribe("c") as sub:
            conn.notify_many("c", ["1", "2"])
            assert sub.next().payload == "1"
        with conn.subscribe("c") as sub:
            assert drain(sub) == []
        conn.listen("c")
        assert conn.poll() == []

    def test_inside_a_transaction(self, conn: pynotify.Connection) -> None:
        """It is not a part of it, and is not undone."""
        sub = conn.subscribe("c")
        with conn.transaction():
            conn.notify("c", "x")
            sub.close()
            raise pynotify.Rollback
        assert sub.closed
        with pytest.raises(pynotify.InterfaceError):
            sub.next(0)

    def test_next_raises_and_iterating_ends(self, conn: pynotify.Connection) -> None:
        sub = conn.subscribe("c")
        conn.notify("c", "unread")
        sub.close()
        for timeout in (None, 0, 1):
            with pytest.raises(pynotify.InterfaceError):
                sub.next(timeout)
        assert list(sub) == []
        with pytest.raises(pynotify.InterfaceError):
            sub.start(print)

    def test_closing_the_connection(self, conn: pynotify.Connection) -> None:
        sub = conn.subscribe("c")
        conn.notify("c", "unread")
        conn.close()
        assert sub.closed
        for use in (lambda: sub.next(0), lambda: list(sub), lambda: sub.start(print)):
            with pytest.raises(pynotify.InterfaceError):
                use()
        with pytest.raises(pynotify.InterfaceError):
            conn.subscribe("d")
        sub.close()

    def test_unlisten_all_leaves_them_alone(self, conn: pynotify.Connection) -> None:
        sub = conn.subscribe("s", "both")
        conn.listen("l", "both")
        conn.unlisten_all()
        for channel in ("s", "l", "both"):
            conn.notify(channel, channel)
        assert conn.poll() == []
        assert payloads(drain(sub)) == ["s", "both"]

    def test_unlisten_leaves_them_alone(self, conn: pynotify.Connection) -> None:
        sub = conn.subscribe("c")
        conn.unlisten("c")
        conn.notify("c", "x")
        assert payloads(drain(sub)) == ["x"]


@pytest.fixture(params=["unread", "read for others"])
def look(request: pytest.FixtureRequest, conn: pynotify.Connection) -> Callable[[], None]:
    """Has what was sent been read for all when LISTEN and UNLISTEN come, or not yet?"""
    reader = conn.subscribe("c")

    def look() -> None:
        if request.param == "read for others":
            Call(reader.next, 0).result()

    return look


class TestListenWhileSubscribed:
    """That another reads the channel changes nothing for LISTEN and UNLISTEN."""

    def test_listen_starts_at_its_own_commit(
        self, conn: pynotify.Connection, connect: Connect, look: Callable[[], None]
    ) -> None:
        other = connect()
        other.notify("c", "1")
        look()
        with conn.transaction():
            conn.listen("c")
            other.notify("c", "2")
        other.notify("c", "3")
        assert payloads(conn.poll()) == ["3"]

    def test_a_transaction_that_listens_hears_itself(
        self, conn: pynotify.Connection, look: Callable[[], None]
    ) -> None:
        conn.notify("c", "1")
        look()
        with conn.transaction():
            conn.notify("c", "2")
            conn.listen("c")
        assert payloads(conn.poll()) == ["2"]

    def test_what_was_not_returned_when_unlisten_commits_is_gone(
        self, conn: pynotify.Connection, look: Callable[[], None]
    ) -> None:
        sub = conn.subscribe("c")
        conn.listen("c", "d")
        conn.notify("c", "1")
        conn.notify("d", "2")
        look()
        conn.unlisten("c")
        conn.notify("c", "3")
        assert payloads(conn.poll()) == ["2"]
        assert payloads(drain(sub)) == ["1", "3"]

    def test_a_later_listen_brings_nothing_back(
        self, conn: pynotify.Connection, look: Callable[[], None]
    ) -> None:
        conn.listen("c")
        conn.notify("c", "1")
        look()
        conn.unlisten("c")
        conn.notify("c", "2")
        conn.listen("c")
        conn.notify("c", "3")
        assert payloads(conn.poll()) == ["3"]

    def test_unlisten_and_listen_in_one_transaction_leave_no_gap(
        self, conn: pynotify.Connection, connect: Connect, look: Callable[[], None]
    ) -> None:
        other = connect()
        conn.listen("c")
        other.notify("c", "1")
        look()
        with conn.transaction():
            conn.unlisten("c")
            other.notify("c", "2")
            conn.listen("c")
        other.notify("c", "3")
        assert payloads(conn.poll()) == ["1", "2", "3"]

    def test_undone_with_its_savepoint(
        self, conn: pynotify.Connection, look: Callable[[], None]
    ) -> None:
        conn.listen("c")
        conn.notify("c", "1")
        look()
        with conn.transaction():
            with conn.transaction():
                conn.unlisten("c")
                conn.listen("d")
                raise pynotify.Rollback
            conn.notify("c", "2")
            conn.notify("d", "lost")
        assert payloads(conn.poll()) == ["1", "2"]
        assert conn.listening_channels() == {"c"}

    def test_prepared(
        self, conn: pynotify.Connection, connect: Connect, look: Callable[[], None]
    ) -> None:
        """Nothing begins or ends before the commit."""
        other = connect()
        conn.listen("c", "d")
        other.notify("c", "1")
        with conn.transaction() as tx:
            conn.unlisten("c")
            conn.listen("e")
            tx.prepare()
            assert Call(conn.poll, 1).result()[0].payload == "1"
            other.notify("c", "2")
            other.notify("d", "3")
            other.notify("e", "4")
            look()
        other.notify("c", "5")
        other.notify("e", "6")
        assert payloads(conn.poll()) == ["3", "6"]

    def test_a_message_in_the_hands_of_another_thread(
        self, conn: pynotify.Connection, engine: pynotify.Engine, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It has been read, and UNLISTEN commits before it is put where poll() takes from."""
        other = conn.subscribe("other")
        conn.listen("c")
        conn.notify("c", "x")
        reading, go_on = threading.Event(), threading.Event()
        distribute = conn.link.receiver.inboxes.distribute

        def slowly() -> None:
            reading.set()
            assert go_on.wait(PATIENCE)
            distribute()

        monkeypatch.setattr(conn.link.receiver.inboxes, "distribute", slowly)
        reader = Call(conn.wait, 0)
        assert reading.wait(PATIENCE)
        unlistener = Call(conn.unlisten, "c")
        wait_until(lambda: engine.stat().subscriptions == 1, "the UNLISTEN has committed")
        go_on.set()
        assert reader.result() is True
        unlistener.result()
        assert conn.poll() == []
        assert not other.closed


class TestNext:
    def test_timeouts(self, conn: pynotify.Connection) -> None:
        sub = conn.subscribe("a", "b")
        for timeout in (0, -1, 0.01):
            with pytest.raises(pynotify.Timeout, match="a, b") as caught:
                sub.next(timeout)
            assert isinstance(caught.value, TimeoutError)
        conn.notify_many("a", ["1", "2", "3"])
        assert [sub.next(timeout).payload for timeout in (0, 0.01, None)] == ["1", "2", "3"]

    @pytest.mark.parametrize("timeout", [float("nan"), "1"])
    def test_bad_timeouts(self, conn: pynotify.Connection, timeout: object) -> None:
        with pytest.raises((ValueError, TypeError)):
            conn.subscribe("c").next(timeout)  # type: ignore[arg-type]

    def test_waits_for_another_process_or_thread(
        self, conn: pynotify.Connection, connect: Connect
    ) -> None:
        other = connect()
        sub = conn.subscribe("c")
        for timeout in (None, PATIENCE):
            call = Call(sub.next, timeout)
            await_waiting(conn, 1)
            other.notify("c", "x")
            assert call.result().payload == "x"

    def test_refused_in_a_transaction(self, conn: pynotify.Connection) -> None:
        """Of this thread: another one receives meanwhile."""
        sub = conn.subscribe("c")
        conn.notify("c", "1")
        with conn.transaction():
            conn.notify("c", "2")
            for timeout in (None, 0):
                with pytest.raises(pynotify.ActiveTransaction):
                    sub.next(timeout)
            with pytest.raises(pynotify.ActiveTransaction):
                next(sub)
            assert conn.poll() == []
            assert Call(sub.next).result().payload == "1"
        assert payloads(drain(sub)) == ["2"]

    def test_iterating(self, conn: pynotify.Connection) -> None:
        heard = []
        with conn.subscribe("c") as sub:
            conn.notify_many("c", ["1", "2", "3"])
            for message in sub:
                heard.append(message.payload)
                if message.payload == "2":
                    break
            assert next(sub).payload == "3"
        assert heard == ["1", "2"]

    def test_closing_in_the_loop_ends_it(self, conn: pynotify.Connection) -> None:
        sub = conn.subscribe("c")
        conn.notify_many("c", ["1", "2"])
        heard = []
        for message in sub:
            heard.append(message.payload)
            sub.close()
        assert heard == ["1"]


class TestStart:
    """`start()`: a thread that calls a handler; redis users know it as run_in_thread."""

    def test_every_message_in_order(self, conn: pynotify.Connection) -> None:
        sub = conn.subscribe("one", "two")
        heard: list[str] = []
        thread = sub.start(lambda message: heard.append(message.payload))
        assert thread.name == "pynotify-one-two"
        assert thread.daemon
        for number in range(100):
            conn.notify("one" if number % 2 else "two", str(number))
        wait_until(lambda: len(heard) == 100, "everything has been handled")
        assert heard == [str(number) for number in range(100)]
        thread.stop()
        assert not thread.is_alive()
        assert not sub.closed

    def test_not_a_daemon(self, conn: pynotify.Connection) -> None:
        thread = conn.subscribe("c").start(print, daemon=False)
        assert not thread.daemon
        thread.stop()

    def test_a_handler_that_raises(
        self, conn: pynotify.Connection, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Logged, and the thread goes on."""
        sub = conn.subscribe("c")
        heard: list[str] = []

        def handler(message: pynotify.Notify) -> None:
            heard.append(message.payload)
            raise ZeroDivisionError(message.payload)

        with caplog.at_level(logging.ERROR, logger="pynotify"):
            thread = sub.start(handler)
            conn.notify_many("c", ["1", "2"])
            wait_until(lambda: len(caplog.records) == 2, "both have been logged")
            thread.stop()
        assert heard == ["1", "2"]
        assert [type(record.exc_info[1]) for record in caplog.records] == [ZeroDivisionError] * 2

    def test_on_error(self, conn: pynotify.Connection, caplog: pytest.LogCaptureFixture) -> None:
        """Instead of the log."""
        sub = conn.subscribe("c")
        errors: list[Exception] = []
        with caplog.at_level(logging.ERROR, logger="pynotify"):
            thread = sub.start(lambda message: 1 / int(message.payload), on_error=errors.append)
            conn.notify_many("c", ["0", "1", "x"])
            wait_until(lambda: len(errors) == 2, "both errors have been reported")
            thread.stop()
        assert [type(error) for error in errors] == [ZeroDivisionError, ValueError]
        assert caplog.records == []

    def test_stopped_while_it_waits(self, conn: pynotify.Connection) -> None:
        sub = conn.subscribe("c")
        first, second = sub.start(print), sub.start(print)
        await_waiting(conn, 2)
        for thread in (second, first):
            thread.stop(PATIENCE)
            assert not thread.is_alive()
            thread.stop()
        conn.notify("c", "x")
        assert payloads(drain(sub)) == ["x"]

    def test_stopped_at_once(self, conn: pynotify.Connection) -> None:
        sub = conn.subscribe("c")
        for _ in range(200):
            thread = sub.start(print)
            thread.stop(PATIENCE)
            assert not thread.is_alive()

    def test_stopped_by_its_handler(self, conn: pynotify.Connection) -> None:
        """The message is finished, the next one is for another consumer."""
        sub = conn.subscribe("c")
        heard: list[str] = []

        def handler(message: pynotify.Notify) -> None:
            thread.stop()
            heard.append(message.payload)

        go = threading.Event()
        thread = sub.start(lambda message: go.wait(PATIENCE) and handler(message))
        conn.notify_many("c", ["1", "2"])
        go.set()
        thread.join(PATIENCE)
        assert not thread.is_alive()
        assert heard == ["1"]
        assert payloads(drain(sub)) == ["2"]

    def test_stop_finishes_the_message(self, conn: pynotify.Connection) -> None:
        sub = conn.subscribe("c")
        begun, go, done = threading.Event(), threading.Event(), threading.Event()

        def handler(_message: pynotify.Notify) -> None:
            begun.set()
            assert go.wait(PATIENCE)
            done.set()

        thread = sub.start(handler)
        conn.notify_many("c", ["1", "2"])
        assert begun.wait(PATIENCE)
        thread.stop(timeout=0.01)
        assert thread.is_alive()
        go.set()
        thread.stop()
        assert done.is_set()
        assert payloads(drain(sub)) == ["2"]

    @pytest.mark.parametrize("what", ["subscription", "connection"])
    def test_ends_quietly_when_closed(
        self, conn: pynotify.Connection, what: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        sub = conn.subscribe("c")
        threads = [sub.start(print) for _ in range(3)]
        await_waiting(conn, 3)
        (sub if what == "subscription" else conn).close()
        for thread in threads:
            thread.join(PATIENCE)
            assert not thread.is_alive()
        assert caplog.records == []

    def test_several_share_the_work(self, conn: pynotify.Connection) -> None:
        sub = conn.subscribe("c")
        heard: list[tuple[int, str]] = []
        threads = [
            sub.start(lambda message: heard.append((threading.get_ident(), message.payload)))
            for _ in range(3)
        ]
        for number in range(30):
            conn.notify("c", str(number))
            wait_until(lambda number=number: len(heard) > number, "it has been handled")
        assert {payload for _, payload in heard} == {str(number) for number in range(30)}
        assert len({ident for ident, _ in heard}) == 3
        for thread in threads:
            thread.stop()


class TestChannelsThatComeAndGo:
    def test_everything_later_and_nothing_older(
        self, conn: pynotify.Connection, connect: Connect
    ) -> None:
        other = connect()
        sub, same = conn.subscribe("a"), conn.subscribe("b")
        other.notify("b", "before")
        sub.add("b", "c", "a")
        assert sub.channels == ("a", "b", "c")
        for channel in ("a", "b", "c"):
            other.notify(channel, f"on {channel}")
        assert payloads(drain(sub)) == ["on a", "on b", "on c"]
        assert payloads(drain(same)) == ["before", "on b"]

    def test_discarded_ones_are_heard_no_more(
        self, conn: pynotify.Connection, engine: pynotify.Engine
    ) -> None:
        """Nor is what is unread; others of the connection go on, and it is given up with them."""
        sub, same = conn.subscribe("a", "b"), conn.subscribe("b")
        for channel in ("b", "a", "b"):
            conn.notify(channel, f"on {channel}")
        conn.poll()
        assert sub.pending == 3
        sub.discard("b", "never heard of")
        assert (sub.channels, sub.pending) == (("a",), 1)
        conn.notify_many("b", ["later"])
        assert payloads(drain(sub)) == ["on a"]
        assert payloads(drain(same)) == ["on b", "on b", "later"]
        assert engine.stat().subscriptions == 2
        same.close()
        assert engine.stat().subscriptions == 1

    def test_what_was_not_read_when_it_was_discarded_does_not_come_back(
        self, conn: pynotify.Connection, connect: Connect
    ) -> None:
        other = connect()
        sub = conn.subscribe("a", "b")
        other.notify("b", "old")
        sub.discard("b")
        sub.add("b")
        other.notify("b", "new")
        assert payloads(drain(sub)) == ["new"]

    def test_without_channels_it_stays_open(
        self, conn: pynotify.Connection, engine: pynotify.Engine
    ) -> None:
        sub = conn.subscribe("a")
        sub.discard("a")
        assert (sub.channels, sub.closed, engine.stat().subscriptions) == ((), False, 0)
        with pytest.raises(pynotify.Timeout):
            sub.next(0)
        call = Call(sub.next, PATIENCE)
        await_waiting(conn, 1)
        sub.add("b")
        conn.notify("b", "x")
        assert call.result().payload == "x"
        sub.close()
        assert engine.stat().subscriptions == 0

    @pytest.mark.parametrize("name", ["", "x" * 64])
    def test_none_is_added_when_one_is_refused(
        self, conn: pynotify.Connection, engine: pynotify.Engine, name: str
    ) -> None:
        sub = conn.subscribe("a")
        with pytest.raises(pynotify.InvalidChannelName):
            sub.add("b", name)
        assert sub.channels == ("a",)
        conn.notify("b", "x")
        conn.notify("a", "y")
        assert payloads(drain(sub)) == ["y"]
        sub.add("b")
        conn.notify("b", "z")
        assert payloads(drain(sub)) == ["z"]
        sub.close()
        assert engine.stat().subscriptions == 0

    def test_a_full_table_of_channels(self, make_engine: EngineFactory, connect: Connect) -> None:
        conn = connect(to=make_engine(max_channels=2))
        sub = conn.subscribe("1")
        with pytest.raises(pynotify.TooManyChannels):
            sub.add("2", "3")
        sub.add("2")
        conn.notify("2", "x")
        assert payloads(drain(sub)) == ["x"]

    def test_where_it_is_refused(self, conn: pynotify.Connection) -> None:
        sub = conn.subscribe("a")
        with conn.transaction():
            for change in (sub.add, sub.discard):
                with pytest.raises(pynotify.ActiveTransaction):
                    change("b")
        sub.close()
        for change in (sub.add, sub.discard):
            with pytest.raises(pynotify.InterfaceError, match="closed"):
                change("b")

    def test_a_full_one_that_blocks_makes_room(self, conn: pynotify.Connection) -> None:
        sub = conn.subscribe("a", "b", maxlen=2, overflow="block")
        other = conn.subscribe("c")
        conn.notify_many("a", ["1", "2"])
        conn.notify("b", "3")
        conn.notify("c", "x")
        conn.poll()
        assert sub.pending == 2
        sub.discard("a")
        assert payloads(drain(other)) == ["x"]
        assert payloads(drain(sub)) == ["3"]

    def test_a_thread_that_waits_hears_the_new_one(
        self, conn: pynotify.Connection, connect: Connect
    ) -> None:
        other = connect()
        sub = conn.subscribe("a")
        call = Call(sub.next, PATIENCE)
        await_waiting(conn, 1)
        sub.add("b")
        other.notify("b", "x")
        assert call.result().payload == "x"

    def test_while_another_process_sends(self, make_engine: EngineFactory) -> None:
        """What is heard of a channel is without a hole from where it was added to its end."""
        engine = make_engine(on_full="block")  # on a busy machine the sender is faster
        conn, other, stop = engine.connect(), engine.connect(), threading.Event()
        sent = 0

        def send() -> None:
            nonlocal sent
            while not stop.is_set():
                other.notify("b", str(sent))
                sent += 1

        sub = conn.subscribe("a", maxlen=None)
        sender = Call(send)
        for _ in range(100):
            sub.add("b")
            heard = [int(sub.next(PATIENCE).payload) for _ in range(3)]
            assert heard == list(range(heard[0], heard[0] + 3))
            sub.discard("b")
            assert sub.pending == 0
        stop.set()
        conn.close()  # the sender may wait for it
        sender.result()
        other.close()

    def test_interrupted_at_every_place(
        self, conn: pynotify.Connection, engine: pynotify.Engine, connect: Connect
    ) -> None:
        """An exception of a signal handler: it may be done again, and nothing is left half done."""
        other = connect()
        sub = conn.subscribe("a")
        for change, heard in ((sub.add, ["x", "y"]), (sub.discard, ["y"])):
            for place in range(1, 1000):
                at = At(place)
                at.attempt(lambda change=change: change("b"))
                change("b")
                other.notify("b", "x")
                other.notify("a", "y")
                assert payloads(drain(sub)) == heard, (change, place)
                assert engine.stat().subscriptions == len(heard), (change, place)
                (sub.add if heard == ["y"] else sub.discard)("b")
                if not at.reached:
                    break
            assert place > 5


@pytest.mark.parametrize("interrupted", ["by a handler", "in itself"])
def test_closing_in_the_middle_of_a_call_waits_for_no_thread_that_subscribes(
    conn: pynotify.Connection,
    engine: pynotify.Engine,
    monkeypatch: pytest.MonkeyPatch,
    interrupted: str,
) -> None:
    """It might need what the interrupted call holds; it stops listening when it has subscribed."""
    closing = conn.subscribe("closing")
    receiver = conn.link.receiver
    at_it, go_on = threading.Event(), threading.Event()
    subscribe = type(receiver)._subscribe

    def gated(self: object, *arguments: object) -> None:
        at_it.set()
        if interrupted == "in itself":  # as a signal handler there would
            closing.close()
        else:
            assert go_on.wait(PATIENCE)
        subscribe(self, *arguments)

    heard = conn.subscribe("heard")
    closed = threading.Event()

    def close(_message: object) -> None:
        closing.close()
        closed.set()

    running = heard.start(close)
    monkeypatch.setattr(type(receiver), "_subscribe", gated)
    subscribing = Call(conn.subscribe, "new")
    assert at_it.wait(PATIENCE)
    if interrupted == "by a handler":
        conn.notify("heard", "")
        assert closed.wait(PATIENCE)
        assert closing.closed
        assert {each.name for each in engine.channels()} == {"closing", "heard"}
        go_on.set()
    subscribing.result()
    assert {each.name for each in engine.channels()} == {"heard", "new"}
    running.stop()
