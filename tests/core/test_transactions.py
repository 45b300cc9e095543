"""Transactions: X1, X2, X13 and O3 (deliberately different), E5 (prepare), and what is added."""

from __future__ import annotations

import threading
import types
from collections.abc import Callable

import pytest

import pynotify
from receiving import pairs, payloads
from sessions import Connect, EngineFactory, Sessions, Worker


def in_thread(function: Callable[[], object]) -> None:
    """Run it in a thread of its own and wait for its end; what it raises is raised here."""
    raised: list[BaseException] = []

    def body() -> None:
        try:
            function()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=body)
    thread.start()
    thread.join()
    if raised:
        raise raised[0]


@pytest.fixture
def listening(conn: pynotify.Connection) -> pynotify.Connection:
    conn.listen("c")
    return conn


def test_rollback_discards_everything(sessions: Sessions) -> None:
    """X1."""
    listener, notifier = sessions(2)
    listener.listen("c")
    notifier.begin()
    notifier.notify("c", "gone")
    notifier.listen("c")
    notifier.rollback()
    notifier.notify("c", "kept")
    assert listener.heard() == [("c", "kept")]
    assert notifier.heard() == []


def test_pending_actions_touch_nothing_shared(
    engine: pynotify.Engine, conn: pynotify.Connection, connect: Connect
) -> None:
    """X1: the lists are local to the backend until commit."""
    listener = connect()
    listener.listen("c")
    before = engine.stat()
    conn.begin()
    conn.notify("c", "x" * 5000)
    conn.listen("d")
    during = engine.stat()
    assert (during.head, during.commits) == (before.head, before.commits)
    assert (during.slot_writes, during.signals_sent) == (before.slot_writes, before.signals_sent)
    conn.rollback()


def test_one_transaction_spans_its_statements(sessions: Sessions) -> None:
    """X2: what one multi-statement query is there, an explicit transaction is here."""
    listener, notifier = sessions(2)
    listener.listen("c")
    notifier.begin()
    for payload in ("a", "b", "a"):
        notifier.notify("c", payload)
    notifier.commit()
    messages = listener.poll()
    assert [message.payload for message in messages] == ["a", "b"]
    assert len({message.seq for message in messages}) == 1


def test_nothing_uncommitted_is_ever_in_the_queue(
    engine: pynotify.Engine, connect: Connect
) -> None:
    """X13, O3, deliberately different: no dead entries, no in-progress transaction to stop at."""
    listener, notifier, other = connect(), connect(), connect()
    listener.listen("c")
    notifier.begin()
    notifier.notify("c", "uncommitted")
    head = engine.stat().head
    other.notify("c", "committed")
    assert payloads(listener.poll()) == ["committed"], "a reader stopped at an open transaction"
    after_other = engine.stat().head
    assert after_other > head
    notifier.rollback()
    assert engine.stat().head == after_other, "an aborted transaction left entries"
    assert listener.poll() == []


def test_failed_commit_leaves_no_entries(make_engine: EngineFactory, connect: Connect) -> None:
    """X13: where PostgreSQL leaves the pages that it had filled, nothing remains here."""
    engine = make_engine(queue_pages=64)
    listener, notifier = connect(to=engine), connect(to=engine)
    listener.listen("c")
    notifier.notify("c", "first")
    head = engine.stat().head
    notifier.begin()
    for number in range(70):
        notifier.notify("c", f"{number:07999}")
    with pytest.raises(pynotify.QueueFull):
        notifier.commit()
    assert engine.stat().head == head
    assert not notifier.in_transaction
    notifier.notify("c", "second")
    assert payloads(listener.poll()) == ["first", "second"]


class TestWith:
    def test_commits_at_the_end(self, listening: pynotify.Connection) -> None:
        with listening.transaction():
            assert listening.in_transaction
            listening.notify("c", "x")
        assert not listening.in_transaction
        assert payloads(listening.poll()) == ["x"]

    def test_exception_rolls_back_and_propagates(self, listening: pynotify.Connection) -> None:
        with pytest.raises(ZeroDivisionError), listening.transaction():
            listening.notify("c", "x")
            raise ZeroDivisionError
        assert not listening.in_transaction
        assert listening.poll() == []

    @pytest.mark.parametrize("named", [True, False])
    def test_rollback_is_swallowed(self, listening: pynotify.Connection, named: bool) -> None:
        with listening.transaction() as tx:
            listening.notify("c", "x")
            raise pynotify.Rollback(tx) if named else pynotify.Rollback
        assert not listening.in_transaction
        assert listening.poll() == []

    def test_nested_is_a_savepoint(self, listening: pynotify.Connection) -> None:
        with listening.transaction():
            listening.notify("c", "1")
            with listening.transaction():
                listening.notify("c", "2")
                raise pynotify.Rollback
            assert listening.in_transaction
            listening.notify("c", "3")
        assert payloads(listening.poll()) == ["1", "3"]

    def test_exception_of_an_inner_block_undoes_only_it(
        self, listening: pynotify.Connection
    ) -> None:
        with listening.transaction():
            listening.notify("c", "1")
            with pytest.raises(ZeroDivisionError), listening.transaction():
                listening.notify("c", "2")
                raise ZeroDivisionError
            listening.notify("c", "3")
        assert payloads(listening.poll()) == ["1", "3"]

    def test_rollback_names_the_outer_block(self, listening: pynotify.Connection) -> None:
        """It is swallowed by the block it names; the inner one is left by an exception."""
        reached = []
        with listening.transaction() as outer:
            listening.notify("c", "1")
            with listening.transaction():
                listening.notify("c", "2")
                raise pynotify.Rollback(outer)
            reached.append("after the inner block")
        assert not reached
        assert not listening.in_transaction
        assert listening.poll() == []

    def test_rollback_names_the_inner_block(self, listening: pynotify.Connection) -> None:
        with listening.transaction():
            listening.notify("c", "1")
            with listening.transaction() as inner:
                listening.notify("c", "2")
                raise pynotify.Rollback(inner)
        assert payloads(listening.poll()) == ["1"]

    def test_rollback_that_names_another_transaction_propagates(
        self, listening: pynotify.Connection, connect: Connect
    ) -> None:
        other = connect()
        with other.transaction() as foreign:
            with pytest.raises(pynotify.Rollback), listening.transaction():
                listening.notify("c", "x")
                raise pynotify.Rollback(foreign)
            assert not listening.in_transaction
            assert other.in_transaction
        assert listening.poll() == []

    def test_inside_begin_it_is_a_savepoint(self, listening: pynotify.Connection) -> None:
        listening.begin()
        listening.notify("c", "1")
        with listening.transaction():
            listening.notify("c", "2")
        assert listening.in_transaction
        with listening.transaction():
            listening.notify("c", "3")
            raise pynotify.Rollback
        listening.commit()
        assert payloads(listening.poll()) == ["1", "2"]

    @pytest.mark.parametrize("method", ["commit", "rollback"])
    def test_commit_and_rollback_inside_raise(
        self, listening: pynotify.Connection, method: str
    ) -> None:
        """`commit()` inside a `with transaction()`: ProgrammingError, which does not fail it."""
        with listening.transaction():
            listening.notify("c", "1")
            with pytest.raises(pynotify.ProgrammingError):
                getattr(listening, method)()
            listening.notify("c", "2")
        assert payloads(listening.poll()) == ["1", "2"]

    @pytest.mark.parametrize("method", ["commit", "rollback"])
    def test_commit_and_rollback_in_a_nested_block_raise(
        self, listening: pynotify.Connection, method: str
    ) -> None:
        listening.begin()
        with listening.transaction():
            listening.notify("c", "1")
            with pytest.raises(pynotify.ProgrammingError):
                getattr(listening, method)()
        listening.commit()
        assert payloads(listening.poll()) == ["1"]

    def test_blocks_must_end_in_order(self, listening: pynotify.Connection) -> None:
        outer, inner = listening.transaction(), listening.transaction()
        outer.__enter__()
        inner.__enter__()
        with pytest.raises(pynotify.OutOfOrderTransactionNesting):
            outer.__exit__(None, None, None)

    def test_begin_inside_raises(self, listening: pynotify.Connection) -> None:
        with pytest.raises(pynotify.ActiveTransaction), listening.transaction():
            listening.begin()
        assert not listening.in_transaction


class TestExplicit:
    def test_begin_inside_a_transaction(self, conn: pynotify.Connection) -> None:
        conn.begin()
        with pytest.raises(pynotify.ActiveTransaction) as caught:
            conn.begin()
        assert str(caught.value).startswith("there is already a transaction in progress")
        assert caught.value.sqlstate == "25001"
        conn.rollback()

    @pytest.mark.parametrize("method", ["commit", "rollback"])
    def test_end_outside_a_transaction(self, conn: pynotify.Connection, method: str) -> None:
        with pytest.raises(pynotify.NoActiveTransaction) as caught:
            getattr(conn, method)()
        assert str(caught.value).startswith("there is no transaction in progress")
        assert caught.value.sqlstate == "25P01"

    @pytest.mark.parametrize("method", ["savepoint", "release", "rollback_to"])
    def test_savepoints_outside_a_transaction(self, conn: pynotify.Connection, method: str) -> None:
        with pytest.raises(pynotify.NoActiveTransaction):
            getattr(conn, method)("s")

    def test_empty_transaction(self, engine: pynotify.Engine, conn: pynotify.Connection) -> None:
        """`commits` counts transactions with an effect."""
        before = engine.stat().commits
        conn.begin()
        conn.commit()
        with conn.transaction():
            pass
        conn.begin()
        conn.notify("c")
        conn.rollback()
        assert engine.stat().commits == before

    def test_a_connection_is_used_again_and_again(self, listening: pynotify.Connection) -> None:
        for number in range(100):
            listening.begin()
            listening.notify("c", str(number))
            if number % 2:
                listening.rollback()
            else:
                listening.commit()
        assert payloads(listening.poll()) == [str(number) for number in range(0, 100, 2)]


class TestFailed:
    """An error inside a transaction fails it, as in PostgreSQL."""

    @pytest.fixture
    def failed(self, listening: pynotify.Connection) -> pynotify.Connection:
        listening.begin()
        listening.notify("c", "x")
        with pytest.raises(pynotify.InvalidChannelName):
            listening.notify("")
        return listening

    @pytest.mark.parametrize(
        "use",
        [
            lambda conn: conn.notify("c", "y"),
            lambda conn: conn.notify_many("c", ["y"]),
            lambda conn: conn.listen("d"),
            lambda conn: conn.unlisten("c"),
            lambda conn: conn.unlisten_all(),
            lambda conn: conn.savepoint("s"),
            lambda conn: conn.release("s"),
        ],
    )
    def test_everything_but_rollback_raises(
        self, failed: pynotify.Connection, use: Callable[[pynotify.Connection], object]
    ) -> None:
        with pytest.raises(pynotify.InFailedTransaction) as caught:
            use(failed)
        text = "current transaction is aborted, commands ignored until end of transaction block"
        assert str(caught.value).startswith(text)
        assert caught.value.sqlstate == "25P02"
        assert failed.in_transaction
        failed.rollback()
        assert failed.poll() == []
        assert failed.listening_channels() == {"c"}

    def test_commit_rolls_back_and_raises(self, failed: pynotify.Connection) -> None:
        with pytest.raises(pynotify.InFailedTransaction):
            failed.commit()
        assert not failed.in_transaction
        assert failed.poll() == []
        failed.notify("c", "after")
        assert payloads(failed.poll()) == ["after"]

    def test_reading_behaves_as_in_any_transaction(self, failed: pynotify.Connection) -> None:
        assert failed.poll() == []
        assert failed.listening_channels() == {"c"}
        with pytest.raises(pynotify.ActiveTransaction):
            failed.wait(0)
        failed.rollback()

    def test_rollback_to_makes_it_usable_again(self, listening: pynotify.Connection) -> None:
        listening.begin()
        listening.notify("c", "1")
        listening.savepoint("s")
        with pytest.raises(pynotify.PayloadTooLong):
            listening.notify("c", "x" * 8000)
        listening.rollback_to("s")
        listening.notify("c", "2")
        listening.commit()
        assert payloads(listening.poll()) == ["1", "2"]

    def test_release_raises(self, listening: pynotify.Connection) -> None:
        listening.begin()
        listening.savepoint("s")
        with pytest.raises(pynotify.InvalidChannelName):
            listening.listen("")
        with pytest.raises(pynotify.InFailedTransaction):
            listening.release("s")
        listening.rollback_to("s")
        listening.release("s")
        listening.commit()

    def test_leaving_a_nested_block_by_an_exception_makes_it_usable_again(
        self, listening: pynotify.Connection
    ) -> None:
        with listening.transaction():
            listening.notify("c", "1")
            with pytest.raises(pynotify.InvalidChannelName), listening.transaction():
                listening.notify("c", "2")
                listening.notify("")
            listening.notify("c", "3")
        assert payloads(listening.poll()) == ["1", "3"]

    def test_leaving_the_block_normally_raises(self, listening: pynotify.Connection) -> None:
        """As `commit()`: it rolls back and raises."""
        with pytest.raises(pynotify.InFailedTransaction), listening.transaction():
            listening.notify("c", "1")
            with pytest.raises(pynotify.InvalidChannelName):
                listening.notify("")
        assert not listening.in_transaction
        assert listening.poll() == []

    @pytest.mark.parametrize(
        "mistake",
        [
            lambda conn: conn.notify("c", None),
            lambda conn: conn.notify(None),
            lambda conn: conn.notify_many("c", [1]),
            lambda conn: conn.listen(7),
            lambda conn: conn.unlisten(b"c"),
            lambda conn: conn.savepoint(None),
            lambda conn: conn.notify(),
        ],
    )
    def test_type_error_does_not_fail_it(
        self, listening: pynotify.Connection, mistake: Callable[[pynotify.Connection], object]
    ) -> None:
        with listening.transaction():
            listening.notify("c", "1")
            with pytest.raises(TypeError):
                mistake(listening)
            listening.notify("c", "2")
        assert payloads(listening.poll()) == ["1", "2"]

    def test_commit_that_fails_leaves_nothing_open(
        self, make_engine: EngineFactory, connect: Connect
    ) -> None:
        """After a failed commit nothing is open."""
        conn = connect(to=make_engine(max_subscriptions=1))
        conn.listen("a")
        conn.begin()
        conn.listen("b")
        with pytest.raises(pynotify.TooManyChannels):
            conn.commit()
        assert not conn.in_transaction
        conn.begin()
        conn.notify("a", "x")
        conn.commit()
        assert payloads(conn.poll()) == ["x"]

    def test_block_whose_commit_fails_leaves_nothing_open(
        self, make_engine: EngineFactory, connect: Connect
    ) -> None:
        conn = connect(to=make_engine(max_subscriptions=1))
        with pytest.raises(pynotify.TooManyChannels), conn.transaction():
            conn.listen("a", "b")
        assert not conn.in_transaction
        assert conn.listening_channels() == frozenset()


class TestPrepare:
    """E5, deliberately different: PREPARE TRANSACTION is refused there, `prepare()` reserves."""

    def test_prepared_transaction_commits(self, listening: pynotify.Connection) -> None:
        with listening.transaction() as tx:
            listening.notify("c", "x")
            listening.listen("d")
            tx.prepare()
            assert listening.poll() == []
            assert listening.listening_channels() == {"c"}
        assert payloads(listening.poll()) == ["x"]
        assert listening.listening_channels() == {"c", "d"}

    def test_prepared_transaction_rolls_back(
        self, engine: pynotify.Engine, listening: pynotify.Connection
    ) -> None:
        head = engine.stat().head
        with listening.transaction() as tx:
            listening.notify("c", "x")
            listening.listen("d")
            tx.prepare()
            raise pynotify.Rollback(tx)
        assert listening.poll() == []
        assert listening.listening_channels() == {"c"}
        assert engine.stat().head == head

    def test_nothing_may_follow_it(self, listening: pynotify.Connection) -> None:
        """`listen`, `unlisten`, `notify`, `savepoint`, `prepare` raise and leave it as it was."""
        with listening.transaction() as tx:
            listening.notify("c", "x")
            tx.prepare()
            for use in (
                lambda: listening.notify("c", "y"),
                lambda: listening.notify_many("c", ["y"]),
                lambda: listening.listen("d"),
                lambda: listening.unlisten("c"),
                listening.unlisten_all,
                lambda: listening.savepoint("s"),
                tx.prepare,
            ):
                with pytest.raises(pynotify.ProgrammingError) as caught:
                    use()
                assert not isinstance(caught.value, pynotify.InFailedTransaction)
        assert payloads(listening.poll()) == ["x"]
        assert listening.listening_channels() == {"c"}

    def test_only_the_outermost_block(self, listening: pynotify.Connection) -> None:
        with listening.transaction():
            listening.notify("c", "1")
            with pytest.raises(pynotify.ProgrammingError), listening.transaction() as inner:
                inner.prepare()
            listening.notify("c", "2")
        assert payloads(listening.poll()) == ["1", "2"]

    def test_commit_cannot_fail_for_want_of_room(
        self, make_engine: EngineFactory, connect: Connect
    ) -> None:
        """Room is reserved; all others find the queue full, the prepared one commits."""
        engine = make_engine(queue_pages=64)
        reader, preparer, other = (connect(to=engine) for _ in range(3))
        reader.listen("c")
        sent = [f"p{number:06998}" for number in range(20)]
        with preparer.transaction() as tx:
            preparer.notify_many("c", sent)
            tx.prepare()
            filled = 0
            with pytest.raises(pynotify.QueueFull):
                for number in range(200):
                    other.notify("c", f"o{number:06998}")
                    filled += 1
            assert filled > 0
        received = payloads(reader.poll())
        assert received[-20:] == sent
        assert len(received) == filled + 20

    def test_reserved_room_is_given_back(
        self, make_engine: EngineFactory, connect: Connect
    ) -> None:
        engine = make_engine(queue_pages=64)
        reader, preparer, other = (connect(to=engine) for _ in range(3))
        reader.listen("c")
        for _ in range(10):
            with preparer.transaction() as tx:
                preparer.notify_many("c", [f"p{number:07990}" for number in range(25)])
                tx.prepare()
                raise pynotify.Rollback(tx)
        sent = [f"o{number:07990}" for number in range(50)]
        for payload in sent:
            other.notify("c", payload)
        assert payloads(reader.poll()) == sent

    def test_it_fails_the_transaction_when_there_is_no_room(
        self, make_engine: EngineFactory, connect: Connect
    ) -> None:
        """A failing `prepare()` fails the transaction."""
        engine = make_engine(queue_pages=64)
        reader, preparer = connect(to=engine), connect(to=engine)
        reader.listen("c")
        preparer.notify_many("c", [f"x{number:07990}" for number in range(40)])
        with pytest.raises(pynotify.QueueFull), preparer.transaction() as tx:
            preparer.notify_many("c", [f"y{number:07990}" for number in range(40)])
            try:
                tx.prepare()
            except pynotify.QueueFull:
                with pytest.raises(pynotify.InFailedTransaction):
                    preparer.notify("c", "z")
                raise
        assert len(reader.poll()) == 40

    def test_it_reserves_table_entries(self, make_engine: EngineFactory, connect: Connect) -> None:
        """Table entries for the worst case: another's LISTEN cannot take the last one."""
        engine = make_engine(max_channels=2, max_subscriptions=2)
        preparer, other = connect(to=engine), connect(to=engine)
        with preparer.transaction() as tx:
            preparer.listen("a", "b")
            tx.prepare()
            with pytest.raises(pynotify.TooManyChannels):
                other.listen("x")
        assert preparer.listening_channels() == {"a", "b"}

    def test_reservation_of_a_dead_process_is_given_back(
        self, make_engine: EngineFactory, connect: Connect, worker: Worker
    ) -> None:
        engine = make_engine(queue_pages=64)
        reader, other = connect(to=engine), connect(to=engine)
        reader.listen("c")
        worker.call(_prepare_and_stay, make_engine.name_of(engine))
        with pytest.raises(pynotify.QueueFull):
            other.notify_many("c", [f"o{number:07990}" for number in range(50)])
        worker.kill()
        assert other.notify_many("c", [f"o{number:07990}" for number in range(50)]) == 50
        assert len(reader.poll()) == 50


_kept: list[object] = []


def _prepare_and_stay(name: str) -> None:
    conn = pynotify.connect(name)
    block = conn.transaction()
    tx = block.__enter__()
    conn.notify_many("c", [f"p{number:07990}" for number in range(25)])
    tx.prepare()
    _kept.extend((conn, block, tx))


def test_what_a_statement_keeps_of_a_block_lasts_until_it_is_left(
    listening: pynotify.Connection,
) -> None:
    """CPython 3.14 lets go of a bound method before it calls the function."""
    block = listening.transaction()
    leave = block.__exit__
    assert not isinstance(leave, types.MethodType)
    block.__enter__()
    listening.notify("c", "x")
    leave(None, None, None)
    assert [note.payload for note in listening.poll()] == ["x"]


class TestThreads:
    """A transaction belongs to the thread that began it."""

    def test_another_thread_is_not_in_it(self, listening: pynotify.Connection) -> None:
        with listening.transaction():
            in_thread(lambda: _assert_not_in_transaction(listening))
            assert listening.in_transaction

    def test_another_threads_notify_is_its_own_and_does_not_wait(
        self, listening: pynotify.Connection, connect: Connect
    ) -> None:
        listener = connect()
        listener.listen("c")
        with listening.transaction():
            listening.notify("c", "mine")
            in_thread(lambda: listening.notify("c", "other's"))
            assert payloads(listener.poll()) == ["other's"]
        assert payloads(listener.poll()) == ["mine"]

    def test_two_threads_have_a_transaction_each(self, listening: pynotify.Connection) -> None:
        def other() -> None:
            listening.begin()
            listening.notify("c", "2")
            listening.rollback()
            with listening.transaction():
                listening.notify("c", "3")

        listening.begin()
        listening.notify("c", "1")
        in_thread(other)
        listening.commit()
        assert payloads(listening.poll()) == ["3", "1"]

    def test_another_thread_may_read_meanwhile(self, listening: pynotify.Connection) -> None:
        """Nothing is delivered while *the polling thread* has a transaction open."""
        listening.notify("c", "x")
        got: list[list[str]] = []
        with listening.transaction():
            assert listening.poll() == []
            in_thread(lambda: got.append(payloads(listening.poll())))
        assert got == [["x"]]
        assert listening.poll() == []

    def test_transaction_of_an_ended_thread_is_rolled_back(
        self, engine: pynotify.Engine, listening: pynotify.Connection
    ) -> None:
        def leave_open() -> None:
            listening.begin()
            listening.notify("c", "x")
            listening.unlisten("c")

        in_thread(leave_open)
        assert not listening.in_transaction
        assert listening.poll() == []
        listening.notify("c", "y")
        assert payloads(listening.poll()) == ["y"]
        assert not engine.stat().backends[0].in_transaction

    def test_close_rolls_back_all(self, connect: Connect) -> None:
        listener, conn = connect(), connect()
        listener.listen("c")
        began, closed = threading.Event(), threading.Event()

        def other() -> None:
            conn.begin()
            conn.notify("c", "2")
            began.set()
            closed.wait()
            with pytest.raises(pynotify.InterfaceError):
                conn.commit()

        thread = threading.Thread(target=other)
        thread.start()
        began.wait()
        conn.begin()
        conn.notify("c", "1")
        conn.close()
        closed.set()
        thread.join()
        assert listener.poll() == []


def _assert_not_in_transaction(conn: pynotify.Connection) -> None:
    assert not conn.in_transaction
    with pytest.raises(pynotify.NoActiveTransaction):
        conn.commit()


def test_order_of_interleaved_transactions_is_commit_order(connect: Connect) -> None:
    """O2, with transactions that began in the other order."""
    listener, one, two = connect(), connect(), connect()
    listener.listen("c")
    one.begin()
    one.notify("c", "began first")
    two.begin()
    two.notify("c", "committed first")
    two.commit()
    one.commit()
    assert pairs(listener.poll()) == [("c", "committed first"), ("c", "began first")]


@pytest.mark.parametrize(
    ("channel", "given", "headers", "kind"),
    [
        ("", ["x"], None, pynotify.InvalidChannelName),
        ("x" * 64, ["x"], None, pynotify.InvalidChannelName),
        ("c", ["x", "x" * 9000, "y"], None, pynotify.PayloadTooLong),
        ("c", ["x"], {"k": "v" * (1 << 16)}, pynotify.PayloadTooLong),
    ],
    ids=["no channel", "a long channel", "a long payload", "long headers"],
)
def test_what_notify_many_refuses_fails_the_transaction(
    listening: pynotify.Connection,
    channel: str,
    given: list[str],
    headers: dict[str, str] | None,
    kind: type[pynotify.Error],
) -> None:
    """At once, as outside of one, and not when it commits."""
    with pytest.raises(kind) as outside:
        listening.notify_many(channel, given, headers=headers)
    listening.begin()
    listening.notify("c", "before")
    with pytest.raises(kind) as inside:
        listening.notify_many(channel, given, headers=headers)
    assert str(inside.value) == str(outside.value)
    with pytest.raises(pynotify.InFailedTransaction):
        listening.commit()
    assert listening.poll() == []
