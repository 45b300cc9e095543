"""The queue and what happens when it is full: C7, E4, Q2, Q4, Q6; Q3, Q5 differ on purpose."""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Iterable

import pytest

import pynotify
from receiving import PATIENCE, payloads, wait_until
from sessions import Connect, EngineFactory, NewWorker, RemoteSession, Sessions

PAGES = 64
ONE_PAGE = "x" * 7999
"""So large that an entry with it needs a page of its own."""


@pytest.fixture
def small(make_engine: EngineFactory) -> pynotify.Engine:
    return make_engine(queue_pages=PAGES)


def numbers(messages: Iterable[pynotify.Notify]) -> list[int]:
    """What `number_in_a_page` wrote; int() refuses so many digits."""
    return [int(message.payload[:8]) for message in messages]


def number_in_a_page(number: int) -> str:
    return f"{number:08}".ljust(7999, "x")


def fill(conn: pynotify.Connection, channel: str = "c", limit: int = 1000) -> int:
    """Notify until the queue is full; how many fitted."""
    for number in range(limit):
        try:
            conn.notify(channel, number_in_a_page(number))
        except pynotify.QueueFull:
            return number
    raise AssertionError(f"{limit} pages fitted into a queue of {PAGES}")


class TestUsage:
    def test_is_zero_at_first(self, conn: pynotify.Connection) -> None:
        """C7, T-REG-11."""
        usage = conn.queue_usage()
        assert usage == 0
        assert isinstance(usage, float)

    def test_counts_whole_pages(self, small: pynotify.Engine, connect: Connect) -> None:
        """C7: (head page - tail page) / pages; 0 while both are in one page."""
        listener, conn = connect(to=small), connect(to=small)
        listener.listen("c")
        conn.notify("c", "small")
        assert conn.queue_usage() == 0
        for pages in range(1, 11):
            conn.notify("c", ONE_PAGE)
            assert conn.queue_usage() in (pages / PAGES, (pages - 1) / PAGES)
        assert small.stat().queue_usage == conn.queue_usage()

    def test_advances_the_tail(self, small: pynotify.Engine, connect: Connect) -> None:
        """C7, and Q5, deliberately different: not the sender, every 4 pages, moves the tail.

        It moves when a sender needs room, or a caller asks for the usage.
        """
        listener, conn = connect(to=small), connect(to=small)
        listener.listen("c")
        for _ in range(10):
            conn.notify("c", ONE_PAGE)
        assert conn.queue_usage() > 0
        listener.poll()
        assert conn.queue_usage() == 0
        stat = small.stat()
        assert stat.tail <= stat.head

    def test_nothing_heard_takes_no_room(self, conn: pynotify.Connection) -> None:
        """A notification without a listener needs no room."""
        for _ in range(3000):
            conn.notify("unheard", ONE_PAGE)
        assert conn.queue_usage() == 0


class TestFull:
    def test_error(self, small: pynotify.Engine, connect: Connect) -> None:
        """E4, Q2 (T-FULL): the error, its SQLSTATE, and the holder of the tail."""
        listener, conn = connect(to=small), connect(to=small)
        listener.listen("c")
        listener.begin()
        fitted = fill(conn)
        assert PAGES - 2 <= fitted <= PAGES
        with pytest.raises(pynotify.QueueFull) as caught:
            conn.notify("c", ONE_PAGE)
        error = caught.value
        assert str(error).split("\n")[0] == "too many notifications in the NOTIFY queue"
        assert error.sqlstate == "54000"
        assert str(listener.pid) in str(error)
        assert error.hint in str(error)
        listener.rollback()
        assert len(listener.poll()) == fitted

    def test_room_is_planned_for_what_only_its_own_listen_hears(
        self, small: pynotify.Engine, connect: Connect
    ) -> None:
        """LISTEN and NOTIFY of one channel in one transaction: no other hears it yet."""
        slow, conn = connect(to=small), connect(to=small)
        slow.listen("c")
        fitted = fill(conn)
        with pytest.raises(pynotify.QueueFull), conn.transaction():
            conn.listen("d")
            for number in range(20):
                conn.notify("d", number_in_a_page(number))
        assert not small.check().problems
        assert numbers(slow.poll()) == list(range(fitted)), "nothing unread was overwritten"

    def test_names_the_process_that_holds_the_tail(
        self, small: pynotify.Engine, make_engine: EngineFactory, connect: Connect, remote: object
    ) -> None:
        name = make_engine.name_of(small)
        quick, slow, conn = connect(to=small), remote(name), connect(to=small)
        quick.listen("c")
        slow.listen("c")
        with pytest.raises(pynotify.QueueFull) as caught:
            for _ in range(1000):
                conn.notify("c", ONE_PAGE)
                quick.poll()
        assert str(slow.pid) in str(caught.value)
        assert small.stat().tail_holder_pid == slow.pid
        (row,) = (b for b in small.stat().backends if b.backend_id == slow.backend_id)
        assert row.lag_bytes > (PAGES - 3) * 8192
        assert len(slow.poll()) >= PAGES - 2
        assert small.stat().tail_holder_pid is None

    def test_whole_transaction_is_rolled_back(
        self, small: pynotify.Engine, connect: Connect
    ) -> None:
        """E4: raised during commit: the whole transaction rolls back, LISTENs included."""
        listener, conn = connect(to=small), connect(to=small)
        listener.listen("c", "small")
        for _ in range(PAGES - 6):
            conn.notify("c", ONE_PAGE)
        conn.begin()
        conn.notify("small", "first of the failing transaction")
        conn.listen("d")
        for number in range(10):
            conn.notify("c", number_in_a_page(number))
        with pytest.raises(pynotify.QueueFull):
            conn.commit()
        assert not conn.in_transaction
        assert conn.listening_channels() == frozenset()
        assert {message.channel for message in listener.poll()} == {"c"}
        conn.notify("small", "later")
        assert payloads(listener.poll()) == ["later"]

    def test_tail_is_advanced_first(self, small: pynotify.Engine, connect: Connect) -> None:
        """Q3, deliberately different: PostgreSQL's lazily kept tail can leave it stuck full.

        Here a sender that finds it full looks again first: it is full only if one has not read.
        """
        listener, conn = connect(to=small), connect(to=small)
        listener.listen("c")
        for _ in range(5):
            fitted = fill(conn)
            assert len(listener.poll()) == fitted
            conn.notify("c", "fits again, without any help")
            listener.poll()

    def test_ring_goes_round(self, small: pynotify.Engine, connect: Connect) -> None:
        """Q5: with a reader that reads, no number of messages fills it."""
        listener, conn = connect(to=small), connect(to=small)
        listener.listen("c")
        for number in range(20 * PAGES):
            payload = f"{number}:".ljust(1 + (number * 977) % 7999, "x")
            conn.notify("c", payload)
            assert payloads(listener.poll()) == [payload]

    def test_uninterested_listeners_pin_nothing(
        self, small: pynotify.Engine, connect: Connect
    ) -> None:
        """Q5, Q6, deliberately different: one that does not read, but is owed nothing."""
        idle, in_transaction, elsewhere = (connect(to=small, database=d) for d in "aab")
        listener, conn = connect(to=small, database="a"), connect(to=small, database="a")
        for quiet in (idle, in_transaction, elsewhere):
            quiet.listen("quiet")
        in_transaction.begin()
        listener.listen("c")
        for _ in range(3 * PAGES):
            conn.notify("c", ONE_PAGE)
            listener.poll()
        assert conn.queue_usage() <= 1 / PAGES
        conn.notify("quiet", "still there")
        in_transaction.rollback()
        assert payloads(idle.poll()) == ["still there"]
        assert payloads(in_transaction.poll()) == ["still there"]

    def test_listener_that_has_read_everything_pins_nothing(
        self, small: pynotify.Engine, connect: Connect
    ) -> None:
        """Q6: only one that does *not* read does; this one was handed all that it is owed."""
        listener, hearer, conn = (connect(to=small) for _ in range(3))
        listener.listen("rare")
        hearer.listen("c")
        for receive_one in (listener.poll, lambda: list(listener.notifies(stop_after=1))):
            conn.notify("rare", "x")
            assert payloads(receive_one()) == ["x"]
            for _ in range(2 * PAGES):
                conn.notify("c", ONE_PAGE)
                hearer.poll()

    def test_listener_that_does_not_read_pins_all_databases(
        self, small: pynotify.Engine, connect: Connect
    ) -> None:
        """Q6: for the whole cluster."""
        slow, notifier = connect(to=small, database="b"), connect(to=small, database="b")
        slow.listen("c")
        notifier.notify("c", "owed")
        listener, conn = connect(to=small, database="a"), connect(to=small, database="a")
        listener.listen("c")
        with pytest.raises(pynotify.QueueFull):
            for _ in range(2 * PAGES):
                conn.notify("c", ONE_PAGE)
                listener.poll()
        assert payloads(slow.poll()) == ["owed"]
        conn.notify("c", ONE_PAGE)

    def test_dead_listener_is_reaped_first(
        self, small: pynotify.Engine, make_engine: EngineFactory, connect: Connect,
        new_worker: NewWorker,
    ) -> None:  # fmt: skip
        dying, conn = new_worker(), connect(to=small)
        slow = RemoteSession(dying, make_engine.name_of(small))
        slow.listen("c")
        fill(conn)
        dying.kill()
        for _ in range(2 * PAGES):
            conn.notify("c", ONE_PAGE)
        assert [backend.pid for backend in small.stat().backends] == [conn.pid]

    def test_own_unread_messages_fill_it_too(
        self, small: pynotify.Engine, connect: Connect
    ) -> None:
        conn = connect(to=small)
        conn.listen("c")
        fitted = fill(conn)
        assert len(conn.poll()) == fitted
        conn.notify("c", "again")
        assert payloads(conn.poll()) == ["again"]

    def test_four_senders(
        self, small: pynotify.Engine, make_engine: EngineFactory, connect: Connect,
        sessions: Sessions,
    ) -> None:  # fmt: skip
        """T-FULL with four senders until the error; what they committed arrives, nothing else."""
        listener = connect(to=small)
        listener.listen("c")
        listener.begin()
        committed: list[str] = []
        lock = threading.Lock()

        def send(conn: pynotify.Connection, name: int) -> None:
            for number in range(1000):
                payload = f"{name}.{number}".ljust(3000, "x")
                try:
                    conn.notify("c", payload)
                except pynotify.QueueFull:
                    return
                with lock:
                    committed.append(payload)

        threads = [threading.Thread(target=send, args=(connect(to=small), n)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        listener.commit()
        assert sorted(payloads(listener.poll())) == sorted(committed)


class TestTooLarge:
    """Q3: a transaction that does not fit an empty queue."""

    def test_is_refused_at_once_and_says_what_would_do(
        self, small: pynotify.Engine, make_engine: EngineFactory, connect: Connect
    ) -> None:
        listener, conn = connect(to=small), connect(to=small)
        listener.listen("c")
        contents = [number_in_a_page(number) for number in range(3 * PAGES)]
        with pytest.raises(pynotify.QueueFull) as caught, conn.transaction():
            conn.notify_many("c", contents)
        assert caught.value.sqlstate == "54000"
        text = str(caught.value)
        assert text.startswith("too many notifications in the NOTIFY queue")
        found = re.search(r"queue_pages\D{0,20}(\d+)", text) or re.search(r"(\d+) pages", text)
        assert found, text
        enough = int(found[1])
        assert 3 * PAGES <= enough <= 4 * PAGES
        larger = make_engine(queue_pages=enough)
        listener, conn = connect(to=larger), connect(to=larger)
        listener.listen("c")
        assert conn.notify_many("c", contents) == len(contents)
        assert payloads(listener.poll()) == contents

    def test_even_when_it_would_block(self, make_engine: EngineFactory, connect: Connect) -> None:
        engine = make_engine(queue_pages=PAGES, on_full="block", full_timeout=PATIENCE)
        listener, conn = connect(to=engine), connect(to=engine)
        listener.listen("c")
        began = time.monotonic()
        with pytest.raises(pynotify.QueueFull):
            conn.notify_many("c", [number_in_a_page(number) for number in range(3 * PAGES)])
        assert time.monotonic() - began < PATIENCE / 2
        assert listener.poll() == []

    def test_as_large_as_the_queue(self, small: pynotify.Engine, connect: Connect) -> None:
        """What fits an empty queue goes through, wherever the head stands in its page."""
        conn = connect(to=small)
        conn.listen("c")
        for offset in range(20):
            conn.notify("c", "x" * 397 * offset)
            conn.poll()
            contents = [number_in_a_page(number) for number in range(PAGES - 2)]
            assert conn.notify_many("c", contents) == PAGES - 2
            assert payloads(conn.poll()) == contents


class TestBlock:
    @pytest.fixture
    def blocking(self, make_engine: EngineFactory) -> pynotify.Engine:
        return make_engine(queue_pages=PAGES, on_full="block", full_timeout=0.2)

    def test_gives_up_after_full_timeout(self, blocking: pynotify.Engine, connect: Connect) -> None:
        listener, conn = connect(to=blocking), connect(to=blocking)
        listener.listen("c")
        listener.begin()
        began = time.monotonic()
        fill(conn)
        assert 0.19 <= time.monotonic() - began < PATIENCE
        listener.commit()
        assert len(listener.poll()) >= PAGES - 2

    def test_waits_until_the_laggard_has_read(
        self, make_engine: EngineFactory, connect: Connect
    ) -> None:
        engine = make_engine(queue_pages=PAGES, on_full="block", full_timeout=PATIENCE)
        listener, conn = connect(to=engine), connect(to=engine)
        listener.listen("c")
        heard: list[int] = []
        total = 10 * PAGES

        def read() -> None:
            while len(heard) < total and listener.wait(PATIENCE):
                heard.extend(numbers(listener.poll(max=7)))

        thread = threading.Thread(target=read)
        thread.start()
        for number in range(total):
            conn.notify("c", number_in_a_page(number))
        thread.join(PATIENCE)
        assert heard == list(range(total))

    def test_the_laggard_is_signalled_out_of_its_sleep(
        self, make_engine: EngineFactory, connect: Connect, new_worker: NewWorker
    ) -> None:
        """A listener that sleeps in another process reads while the notifier waits."""
        engine = make_engine(queue_pages=PAGES, on_full="block", full_timeout=PATIENCE)
        conn, reader = connect(to=engine), new_worker()
        reader.start(_read_all, make_engine.name_of(engine), 5 * PAGES)
        wait_until(lambda: engine.stat().subscriptions == 1, "the reader listens")
        for number in range(5 * PAGES):
            conn.notify("c", number_in_a_page(number))
        assert reader.result() == list(range(5 * PAGES))

    def test_death_of_the_laggard_ends_the_wait(
        self, make_engine: EngineFactory, connect: Connect, new_worker: NewWorker
    ) -> None:
        engine = make_engine(queue_pages=PAGES, on_full="block", full_timeout=PATIENCE)
        conn, dying = connect(to=engine), new_worker()
        RemoteSession(dying, make_engine.name_of(engine)).listen("c")
        for _ in range(PAGES - 3):
            conn.notify("c", ONE_PAGE)
        killer = threading.Timer(0.1, dying.kill)
        killer.start()
        began = time.monotonic()
        for _ in range(10):
            conn.notify("c", ONE_PAGE)
        assert time.monotonic() - began < PATIENCE / 2
        killer.join()

    def test_a_writer_does_not_wait_for_itself(
        self, make_engine: EngineFactory, connect: Connect
    ) -> None:
        """Its own slot pins the tail: nothing would ever move it."""
        engine = make_engine(queue_pages=PAGES, on_full="block", full_timeout=PATIENCE)
        conn = connect(to=engine)
        conn.listen("c")
        began = time.monotonic()
        fitted = fill(conn)
        assert time.monotonic() - began < PATIENCE / 2
        assert len(conn.poll()) == fitted

    def test_reading_goes_on_while_a_writer_waits(
        self, blocking: pynotify.Engine, connect: Connect
    ) -> None:
        """Receiving never blocks sending, nor the other way round."""
        laggard, conn, other = (connect(to=blocking) for _ in range(3))
        laggard.listen("c")
        other.listen("c")
        waiting = threading.Thread(target=fill, args=(conn,))
        waiting.start()
        heard = 0
        while waiting.is_alive():
            heard += len(other.poll())
        heard += len(other.poll())
        waiting.join()
        assert heard >= PAGES - 2


def _read_all(name: str, count: int) -> list[int]:
    heard: list[int] = []
    with pynotify.connect(name) as conn:
        conn.listen("c")
        while len(heard) < count and conn.wait(PATIENCE):
            heard.extend(numbers(conn.poll()))
    return heard


class TestFillWarning:
    """Q4."""

    def test_texts(
        self, small: pynotify.Engine, connect: Connect, caplog: pytest.LogCaptureFixture
    ) -> None:
        """At 50 %, with the pid of a backend that holds the tail, to the committing notifier."""
        listener, conn = connect(to=small), connect(to=small)
        listener.listen("c")
        listener.begin()
        with caplog.at_level(logging.WARNING, logger="pynotify"):
            for _ in range(PAGES // 2 - 3):
                conn.notify("c", ONE_PAGE)
            assert caplog.records == []
            for _ in range(8):
                conn.notify("c", ONE_PAGE)
        (record,) = caplog.records
        text = record.getMessage()
        assert re.search(r"NOTIFY queue is 5[0-9]% full", text)
        assert (
            f"The server process with PID {listener.pid} is among those with the oldest "
            "transactions." in text
        )
        assert (
            "The NOTIFY queue cannot be emptied until that process ends its current transaction, "
            "or calls poll()." in text
        )
        assert record.name.split(".")[0] == "pynotify"
        assert record.levelno == logging.WARNING

    def test_only_once_in_five_seconds_for_all_notifiers(
        self, small: pynotify.Engine, connect: Connect, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Cluster-wide: a second notifier does not warn again."""
        listener, one, two = (connect(to=small) for _ in range(3))
        listener.listen("c")
        listener.begin()
        began = time.monotonic()
        with caplog.at_level(logging.WARNING, logger="pynotify"):
            for _ in range(PAGES // 2):
                one.notify("c", ONE_PAGE)
                two.notify("c", "x")
            for _ in range(10):
                one.notify("c", "x")
                two.notify("c", "x")
        if time.monotonic() - began < 5:
            assert len(caplog.records) == 1

    @pytest.mark.full
    def test_again_after_five_seconds(
        self, small: pynotify.Engine, connect: Connect, caplog: pytest.LogCaptureFixture
    ) -> None:
        listener, conn = connect(to=small), connect(to=small)
        listener.listen("c")
        listener.begin()
        with caplog.at_level(logging.WARNING, logger="pynotify"):
            for _ in range(PAGES // 2 + 2):
                conn.notify("c", ONE_PAGE)

            def warned_again() -> bool:
                conn.notify("c", "x")
                return len(caplog.records) > 1

            wait_until(warned_again, "a second warning")
        first, second = caplog.records
        assert second.created - first.created >= 4.9

    def test_none_without_a_reason(
        self, small: pynotify.Engine, connect: Connect, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Read entries that the lazily kept tail still covers are no reason to warn."""
        listener, conn = connect(to=small), connect(to=small)
        listener.listen("c")
        with caplog.at_level(logging.WARNING, logger="pynotify"):
            for _ in range(3 * PAGES):
                conn.notify("c", ONE_PAGE)
                listener.poll()
        assert caplog.records == []
