"""poll, poll_batch, wait, notifies, handlers and the descriptor."""

from __future__ import annotations

import logging
import os
import pickle
import select
import signal
import threading
import time
from collections.abc import Callable

import numpy
import pytest

import pynotify
from pynotify._hot import Columns
from receiving import PATIENCE, payloads, readable
from sessions import Connect, EngineFactory, NewWorker

RECEIVE: dict[str, Callable[[pynotify.Connection], list[str]]] = {
    "poll": lambda conn: payloads(conn.poll()),
    "poll_batch": lambda conn: [data.decode() for data in conn.poll_batch().payloads()],
    "notifies": lambda conn: payloads(conn.notifies(timeout=0)),
}


@pytest.fixture
def listening(conn: pynotify.Connection) -> pynotify.Connection:
    conn.listen("c")
    return conn


class TestPoll:
    def test_never_blocks(self, listening: pynotify.Connection) -> None:
        assert listening.poll() == []
        assert listening.poll(max=10) == []

    def test_max(self, listening: pynotify.Connection) -> None:
        listening.notify_many("c", [str(number) for number in range(10)])
        assert payloads(listening.poll(max=3)) == ["0", "1", "2"]
        assert payloads(listening.poll(max=1)) == ["3"]
        assert payloads(listening.poll(max=100)) == ["4", "5", "6", "7", "8", "9"]

    def test_without_listening(self, conn: pynotify.Connection) -> None:
        conn.notify("c", "x")
        assert conn.poll() == []

    def test_returns_a_list_of_notify(self, listening: pynotify.Connection) -> None:
        listening.notify("c")
        messages = listening.poll()
        assert isinstance(messages, list)
        assert isinstance(messages[0], pynotify.Notify)


class TestBatch:
    def test_columns(self, listening: pynotify.Connection) -> None:
        listening.listen("d")
        with listening.transaction():
            listening.notify("c", "one")
            listening.notify("d", b"\xff\0")
        listening.notify("c", "")
        batch = listening.poll_batch()
        assert len(batch) == 3
        for column in (batch.seq, batch.sent_ns, batch.pid, batch.backend_id, batch.channel_index):
            assert isinstance(column, numpy.ndarray)
            assert column.shape == (3,)
        assert batch.seq[0] == batch.seq[1] < batch.seq[2]
        assert batch.pid.tolist() == [listening.pid] * 3
        assert batch.backend_id.tolist() == [listening.backend_id] * 3
        assert [batch.channels[index] for index in batch.channel_index] == ["c", "d", "c"]
        assert batch.payloads() == [b"one", b"\xff\0", b""]
        assert isinstance(batch.data(1), memoryview)
        assert bytes(batch.data(1)) == b"\xff\0"
        assert batch.gaps == []

    def test_iterates_as_notify(self, listening: pynotify.Connection) -> None:
        listening.notify_many("c", ["a", "b"])
        batch = listening.poll_batch()
        messages = list(batch)
        assert payloads(messages) == ["a", "b"]
        assert all(isinstance(message, pynotify.Notify) for message in messages)
        assert [message.seq for message in messages] == batch.seq.tolist()
        assert [message.sent_ns for message in messages] == batch.sent_ns.tolist()

    def test_max_and_empty(self, listening: pynotify.Connection) -> None:
        assert len(listening.poll_batch()) == 0
        assert listening.poll_batch().payloads() == []
        listening.notify_many("c", ["a", "b", "c"])
        assert listening.poll_batch(max=2).payloads() == [b"a", b"b"]
        assert listening.poll_batch().payloads() == [b"c"]

    def test_data_lives_as_long_as_the_batch(self, listening: pynotify.Connection) -> None:
        """Later batches do not overwrite it, nor does closing the connection."""
        listening.notify("c", "first")
        batch = listening.poll_batch()
        view = batch.data(0)
        for number in range(50):
            listening.notify("c", f"later {number}" * 100)
            listening.poll_batch()
        listening.close()
        assert bytes(view) == b"first"
        assert batch.payloads() == [b"first"]

    @pytest.mark.parametrize("count", [3, 3_000])
    def test_it_has_its_memory_alone(self, listening: pynotify.Connection, count: int) -> None:
        """That of a large batch is used again when nothing refers to it any more, not before."""
        sent = [f"{number:04}".encode() * 25 for number in range(count)]
        for _ in range(3):
            listening.notify_many("c", sent)
            first = listening.poll_batch()
            listening.notify_many("c", sent[::-1])
            second = listening.poll_batch()
            view, seq = first.data(1), second.seq
            assert first.payloads() == sent
            del first
            assert bytes(view) == sent[1]
            last = seq.tolist()
            del second
            listening.notify_many("c", sent)
            third = listening.poll_batch()
            assert bytes(view) == sent[1]
            assert seq.tolist() == last
            assert [message.data for message in third] == third.payloads() == sent

    @pytest.mark.parametrize("count", [0, 3, 3_000])
    def test_it_can_be_pickled(self, listening: pynotify.Connection, count: int) -> None:
        listening.notify_many("c", [f"{number:04}" * 25 for number in range(count)])
        batch = listening.poll_batch()
        again = pickle.loads(pickle.dumps(batch))
        assert again.payloads() == batch.payloads()
        assert list(again) == list(batch)
        assert again.seq.tolist() == batch.seq.tolist()
        assert again.channels == batch.channels

    def test_the_order_goes_on_over_batches(self, listening: pynotify.Connection) -> None:
        """Also within one commit."""
        listening.notify_many("c", [f"{number:04}" * 25 for number in range(5_000)])
        batches = [listening.poll_batch(max=2_000) for _ in range(3)]
        orders = [message.order for batch in batches for message in batch]
        assert len(orders) == 5_000
        assert orders == sorted(set(orders))

    def test_columns_that_do_not_fit(self) -> None:
        offsets, numbers = bytes(8) + b"\1" + bytes(7), bytes(4)
        columns = (bytes(8), bytes(8), numbers, bytes(8), numbers, numbers)
        good = (*columns, offsets, b"h", offsets, b"x")
        assert Columns(*good, ["c"], 0).payloads() == [b"x"]
        for number, column in enumerate(good):
            bad = [*good]
            bad[number] = column + b"y"
            with pytest.raises(ValueError, match="do not fit"):
                Columns(*bad, ["c"], 0)
        for offsets in (b"", bytes(8), b"\1" + bytes(15), b"\1" + bytes(7) + bytes(8)):
            with pytest.raises(ValueError, match="do not fit"):
                Columns(*columns, b"", b"", offsets, b"x", ["c"], 0)
            if offsets:  # without, no message has headers
                with pytest.raises(ValueError, match="do not fit"):
                    Columns(*columns, offsets, b"h", *good[-2:], ["c"], 0)
        with pytest.raises(ValueError, match="do not fit"):
            Columns(*good, [b"c"], 0)  # type: ignore[list-item]
        with pytest.raises(IndexError):
            Columns(*good, [], 0).messages()

    def test_index_out_of_range(self, listening: pynotify.Connection) -> None:
        listening.notify("c", "x")
        batch = listening.poll_batch()
        with pytest.raises(IndexError):
            batch.data(1)

    def test_nothing_inside_a_transaction(self, listening: pynotify.Connection) -> None:
        listening.notify("c", "x")
        with listening.transaction():
            assert len(listening.poll_batch()) == 0
        assert listening.poll_batch().payloads() == [b"x"]


class TestWait:
    def test_zero_looks_once(self, listening: pynotify.Connection) -> None:
        assert listening.wait(0) is False
        listening.notify("c")
        assert listening.wait(0) is True

    def test_timeout(self, listening: pynotify.Connection) -> None:
        began = time.monotonic()
        assert listening.wait(0.05) is False
        assert 0.045 <= time.monotonic() - began < PATIENCE

    def test_it_delivers_nothing(self, listening: pynotify.Connection) -> None:
        listening.notify("c", "x")
        for _ in range(3):
            assert listening.wait(PATIENCE) is True
        assert payloads(listening.poll()) == ["x"]
        assert listening.wait(0) is False

    def test_it_raises_in_a_transaction(self, listening: pynotify.Connection) -> None:
        with listening.transaction():
            for timeout in (0, 0.1, None):
                with pytest.raises(pynotify.ActiveTransaction) as caught:
                    listening.wait(timeout)
            assert caught.value.sqlstate == "25001"
            with pytest.raises(pynotify.ActiveTransaction):
                list(listening.notifies(timeout=0))

    def test_it_releases_the_gil(self, listening: pynotify.Connection, connect: Connect) -> None:
        other = connect()
        thread = threading.Thread(target=lambda: other.notify("c", "x"))
        thread.start()
        assert listening.wait(PATIENCE) is True
        thread.join()

    def test_without_limit(self, listening: pynotify.Connection, connect: Connect) -> None:
        other = connect()
        timer = threading.Timer(0.05, other.notify, ["c", "x"])
        timer.start()
        assert listening.wait() is True
        timer.join()

    @pytest.mark.parametrize("timeout", [float("nan"), "1"])
    def test_bad_timeouts(self, listening: pynotify.Connection, timeout: object) -> None:
        with pytest.raises((ValueError, TypeError)):
            listening.wait(timeout)

    def test_again_readable_after_a_partial_poll(self, listening: pynotify.Connection) -> None:
        """A partial batch leaves the fd readable: nothing would ever wake it otherwise."""
        listening.notify_many("c", ["1", "2", "3"])
        for expected in ("1", "2", "3"):
            assert readable(listening.fileno())
            assert listening.wait(0)
            assert payloads(listening.poll(max=1)) == [expected]
        assert not listening.wait(0)


class TestDescriptor:
    def test_constant(self, listening: pynotify.Connection) -> None:
        fd = listening.fileno()
        listening.notify("c")
        listening.poll()
        listening.listen("d")
        assert listening.fileno() == fd
        assert isinstance(fd, int)

    def test_one_per_connection(self, connect: Connect) -> None:
        conns = [connect() for _ in range(3)]
        assert len({conn.fileno() for conn in conns}) == 3
        conns[1].listen("c")
        conns[0].notify("c")
        assert readable(conns[1].fileno(), PATIENCE)
        assert conns[1].poll()
        assert not readable(conns[1].fileno())

    def test_level_triggered(self, listening: pynotify.Connection) -> None:
        """Readable if and only if poll() may return something."""
        assert not readable(listening.fileno())
        listening.notify("c")
        for _ in range(3):
            assert readable(listening.fileno(), PATIENCE)
        listening.poll()
        assert not readable(listening.fileno())

    def test_every_kind_of_loop(self, listening: pynotify.Connection) -> None:
        epoll, poll = select.epoll(), select.poll()
        try:
            epoll.register(listening, select.EPOLLIN)
            poll.register(listening, select.POLLIN)
            assert not epoll.poll(0)
            assert not poll.poll(0)
            listening.notify("c")
            assert epoll.poll(PATIENCE)
            assert poll.poll(1000 * PATIENCE)
            assert select.select([listening], [], [], PATIENCE)[0] == [listening]
            listening.poll()
            assert not epoll.poll(0)
            assert not poll.poll(0)
        finally:
            epoll.close()

    def test_is_not_inherited(self, listening: pynotify.Connection) -> None:
        assert not os.get_inheritable(listening.fileno())

    def test_poll_without_anything_does_not_disarm(
        self, listening: pynotify.Connection, connect: Connect
    ) -> None:
        """A poll() that found nothing leaves the slot armed."""
        other = connect()
        for number in range(50):
            assert listening.poll() == []
            assert listening.poll() == []
            other.notify("c", str(number))
            assert readable(listening.fileno(), PATIENCE)
            assert payloads(listening.poll()) == [str(number)]


class TestNotifies:
    def test_stop_after_is_exact(self, listening: pynotify.Connection) -> None:
        """Exactly that many; what is left is not lost."""
        listening.notify_many("c", ["1", "2", "3"])
        assert payloads(listening.notifies(stop_after=2)) == ["1", "2"]
        assert payloads(listening.poll()) == ["3"]

    def test_timeout_zero_drains(self, listening: pynotify.Connection) -> None:
        assert list(listening.notifies(timeout=0)) == []
        listening.notify_many("c", ["1", "2"])
        listening.notify("c", "3")
        assert payloads(listening.notifies(timeout=0)) == ["1", "2", "3"]

    def test_timeout_bounds_each_wait(
        self, listening: pynotify.Connection, connect: Connect
    ) -> None:
        """Messages 150 ms apart keep a generator with 600 ms going for longer than that."""
        other, last = connect(), 6
        began = time.monotonic()
        heard, timers = [], []

        def send_later(number: int) -> None:
            timers.append(threading.Timer(0.15, other.notify, ["c", str(number)]))
            timers[-1].start()

        send_later(1)
        for message in listening.notifies(timeout=0.6):
            heard.append(message.payload)
            if len(heard) < last:
                send_later(len(heard) + 1)
        assert heard == [str(number) for number in range(1, last + 1)]
        assert time.monotonic() - began >= 0.15 * last + 0.5
        for timer in timers:
            timer.join()

    def test_leaving_the_loop_loses_nothing(self, listening: pynotify.Connection) -> None:
        listening.notify_many("c", [str(number) for number in range(10)])
        for message in listening.notifies(timeout=0):
            if message.payload == "3":
                break
        assert payloads(listening.poll()) == [str(number) for number in range(4, 10)]

    def test_closing_the_generator_loses_nothing(self, listening: pynotify.Connection) -> None:
        listening.notify_many("c", ["1", "2", "3"])
        generator = listening.notifies()
        assert next(generator).payload == "1"
        generator.close()
        assert payloads(listening.notifies(timeout=0)) == ["2", "3"]

    def test_two_generators_share(self, listening: pynotify.Connection) -> None:
        """Each message goes to one of them."""
        listening.notify_many("c", ["1", "2", "3", "4"])
        one, two = listening.notifies(timeout=0), listening.notifies(timeout=0)
        assert [next(gen).payload for gen in (one, two, one, two)] == ["1", "2", "3", "4"]
        one.close()
        two.close()

    def test_transaction_inside_the_loop(self, listening: pynotify.Connection) -> None:
        listening.notify_many("c", ["1", "2"])
        for message in listening.notifies(timeout=0):
            with listening.transaction():
                listening.notify("other", message.payload)
        assert listening.poll() == []

    def test_sending_inside_the_loop(self, listening: pynotify.Connection) -> None:
        """Sent meanwhile, heard in the same loop."""
        listening.notify("c", "5")
        heard = []
        for message in listening.notifies(timeout=0):
            heard.append(message.payload)
            if message.payload != "0":
                listening.notify("c", str(int(message.payload) - 1))
        assert heard == ["5", "4", "3", "2", "1", "0"]


class TestHandlers:
    def test_called_before_the_message_is_returned(self, listening: pynotify.Connection) -> None:
        calls: list[tuple[str, int]] = []
        listening.add_notify_handler(
            lambda message: calls.append((message.payload, threading.get_ident()))
        )
        listening.notify_many("c", ["1", "2"])
        assert calls == []
        assert payloads(listening.poll()) == ["1", "2"]
        assert calls == [("1", threading.get_ident()), ("2", threading.get_ident())]

    def test_in_notifies(self, listening: pynotify.Connection) -> None:
        calls: list[str] = []
        listening.add_notify_handler(lambda message: calls.append(message.payload))
        listening.notify_many("c", ["1", "2"])
        for message in listening.notifies(timeout=0):
            assert message.payload in calls
        assert calls == ["1", "2"]

    def test_in_poll_batch(self, listening: pynotify.Connection) -> None:
        calls: list[str] = []
        listening.add_notify_handler(lambda message: calls.append(message.payload))
        listening.notify("c", "1")
        assert len(listening.poll_batch()) == 1
        assert calls == ["1"]

    @pytest.mark.parametrize("again", [False, True], ids=["unlistened", "and listened again"])
    @pytest.mark.parametrize("how", ["poll", "poll_batch", "notifies"])
    def test_what_one_unlistens_is_not_delivered(
        self, connect: Connect, how: str, *, again: bool
    ) -> None:
        """To no handler either; what handlers had before is returned."""
        conn = connect()
        conn.listen("a", "b")
        called: list[str] = []

        def handler(message: pynotify.Notify) -> None:
            called.append(message.payload)
            if message.payload == "2":
                conn.unlisten("b")
                if again:
                    conn.listen("b")

        conn.add_notify_handler(handler)
        for channel, payload in [("b", "1"), ("b", "2"), ("a", "3"), ("b", "4"), ("a", "5")]:
            conn.notify(channel, payload)
        assert RECEIVE[how](conn) == ["1", "2", "3", "5"]
        assert called == ["1", "2", "3", "5"]
        assert conn.poll() == []

    @pytest.mark.parametrize("how", ["poll", "poll_batch"])
    def test_what_one_unlistens_of_a_large_batch_is_not_delivered(
        self, connect: Connect, how: str
    ) -> None:
        """Such a batch is read as columns."""
        conn = connect()
        conn.listen("a", "b")
        conn.add_notify_handler(
            lambda message: conn.unlisten("b") if message.payload == "first" else None
        )
        conn.notify("a", "first")
        conn.notify_many("b", [str(number) for number in range(3000)])
        conn.notify("a", "last")
        assert RECEIVE[how](conn) == ["first", "last"]
        assert conn.poll() == []

    @pytest.mark.parametrize("how", ["poll", "poll_batch", "notifies"])
    def test_what_one_unlistens_does_not_come_back_when_it_raises(
        self, connect: Connect, how: str
    ) -> None:
        conn = connect()
        conn.listen("a", "b")

        def handler(_message: pynotify.Notify) -> None:
            conn.remove_notify_handler(handler)
            conn.unlisten("b")
            raise KeyboardInterrupt

        conn.add_notify_handler(handler)
        for channel, payload in [("a", "1"), ("b", "2"), ("a", "3")]:
            conn.notify(channel, payload)
        with pytest.raises(KeyboardInterrupt):
            RECEIVE[how](conn)
        assert payloads(conn.poll()) == ["1", "3"]

    def test_wait_calls_none(self, listening: pynotify.Connection) -> None:
        calls: list[str] = []
        listening.add_notify_handler(lambda message: calls.append(message.payload))
        listening.notify("c", "1")
        assert listening.wait(PATIENCE)
        assert calls == []

    def test_one_that_raises_is_removed_and_logged(
        self, listening: pynotify.Connection, caplog: pytest.LogCaptureFixture
    ) -> None:
        calls: list[str] = []

        def broken(message: pynotify.Notify) -> None:
            calls.append(f"broken {message.payload}")
            raise ZeroDivisionError("broken handler")

        listening.add_notify_handler(broken)
        listening.add_notify_handler(lambda message: calls.append(message.payload))
        listening.notify_many("c", ["1", "2"])
        with caplog.at_level(logging.WARNING, logger="pynotify"):
            assert payloads(listening.poll()) == ["1", "2"]
        assert sorted(calls) == ["1", "2", "broken 1"]
        assert [record.name.split(".")[0] for record in caplog.records] == ["pynotify"]
        with pytest.raises(ValueError):
            listening.remove_notify_handler(broken)

    def test_removing_what_is_absent(self, listening: pynotify.Connection) -> None:
        with pytest.raises(ValueError):
            listening.remove_notify_handler(print)

    def test_may_notify(self, listening: pynotify.Connection) -> None:
        def echo(message: pynotify.Notify) -> None:
            if message.payload == "ping":
                listening.notify("c", "pong")

        listening.add_notify_handler(echo)
        listening.notify("c", "ping")
        assert payloads(listening.notifies(timeout=0)) == ["ping", "pong"]


# ---- signals of others while waiting, in a process of its own ----------------------------------

_marks: list[str] = []


def _interrupt_soon() -> threading.Timer:
    # Ignored from the start where the tests run as a background job.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    timer = threading.Timer(0.05, os.kill, [os.getpid(), signal.SIGINT])
    timer.start()
    return timer


def _wait_until_interrupted(name: str) -> str:
    with pynotify.connect(name) as conn:
        conn.listen("c")
        timer = _interrupt_soon()
        try:
            conn.wait()
        except KeyboardInterrupt:
            return "interrupted"
        finally:
            timer.join()
        return "returned"


def _wait_through_a_python_handler(name: str) -> tuple[bool, list[str]]:
    with pynotify.connect(name) as conn, pynotify.connect(name) as other:
        conn.listen("c")

        def handler(_number: int, _frame: object) -> None:
            _marks.append("handled")
            other.notify("c", "from the handler")

        signal.signal(signal.SIGUSR2, handler)
        timer = threading.Timer(0.05, os.kill, [os.getpid(), signal.SIGUSR2])
        timer.start()
        woken = conn.wait(PATIENCE)
        timer.join()
        return woken, _marks + payloads(conn.poll())


def _interrupt_notifies(name: str) -> list[str]:
    with pynotify.connect(name) as conn:
        conn.listen("c")
        conn.notify_many("c", ["1", "2"])
        timer = _interrupt_soon()
        heard = []
        try:
            for message in conn.notifies():
                heard.append(message.payload)
        except KeyboardInterrupt:
            heard.append("interrupted")
        timer.join()
        conn.notify("c", "3")
        return heard + payloads(conn.poll())


def test_ctrl_c_raises_in_wait(
    make_engine: EngineFactory, engine: pynotify.Engine, new_worker: NewWorker
) -> None:
    """Ctrl-C raises in it."""
    assert new_worker().call(_wait_until_interrupted, make_engine.name_of(engine)) == "interrupted"


def test_wait_runs_signal_handlers_of_python(
    make_engine: EngineFactory, engine: pynotify.Engine, new_worker: NewWorker
) -> None:
    """It runs Python's signal handlers, and goes on waiting."""
    result = new_worker().call(_wait_through_a_python_handler, make_engine.name_of(engine))
    assert result == (True, ["handled", "from the handler"])


def test_ctrl_c_in_notifies_loses_nothing(
    make_engine: EngineFactory, engine: pynotify.Engine, new_worker: NewWorker
) -> None:
    result = new_worker().call(_interrupt_notifies, make_engine.name_of(engine))
    assert result == ["1", "2", "interrupted", "3"]


def test_close_ends_a_sleep_of_another_thread(connect: Connect) -> None:
    """A connection is thread-safe: close() does not leave a sleeper behind."""
    closing = connect()
    closing.listen("c")
    raised: list[BaseException] = []
    entered = threading.Event()

    def sleep() -> None:
        entered.set()
        try:
            closing.wait(PATIENCE)
        except pynotify.Error as error:
            raised.append(error)

    thread = threading.Thread(target=sleep)
    thread.start()
    entered.wait()
    began = time.monotonic()
    closing.close()
    thread.join(PATIENCE)
    assert not thread.is_alive()
    assert time.monotonic() - began < PATIENCE / 2
    assert [type(error) for error in raised] == [pynotify.InterfaceError]


LARGE = 512 << 10


@pytest.mark.parametrize("how", ["notifies", "subscription"])
def test_what_is_read_ahead_is_bounded_in_bytes(make_engine: EngineFactory, how: str) -> None:
    """About a mebibyte at a time; nothing is lost or changes its place."""
    engine = make_engine(queue_pages=2048, max_payload=LARGE)
    with engine.connect() as conn, engine.connect() as other:
        sub = conn.subscribe("s") if how == "subscription" else None
        conn.listen("c")
        for number in range(8):
            other.notify("c" if sub is None else "s", bytes([number]) * LARGE)
        if sub is None:
            numbers = []
            for message in conn.notifies(timeout=0):
                assert isinstance(message, pynotify.Notify)
                numbers.append(message.data[0])
                assert len(conn._backlog) < 3
        else:
            numbers = [sub.next().data[0]]  # type: ignore[union-attr]
            assert sub.pending < 3
            numbers += [sub.next().data[0] for _ in range(7)]  # type: ignore[union-attr]
        assert numbers == list(range(8))
