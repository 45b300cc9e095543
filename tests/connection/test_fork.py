"""fork, spawn, forkserver, pickle: an Engine survives, a Connection does not."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import threading
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing.connection import Connection as Pipe

import pytest

import pynotify
from forking import ForkedChild, in_child
from receiving import PATIENCE, payloads, receive, wait_until
from sessions import Connect, EngineFactory

USES: dict[str, Callable[[pynotify.Connection], object]] = {
    "listen": lambda conn: conn.listen("c"),
    "unlisten": lambda conn: conn.unlisten("c"),
    "unlisten_all": lambda conn: conn.unlisten_all(),
    "notify": lambda conn: conn.notify("c"),
    "notify_many": lambda conn: conn.notify_many("c", ["x"]),
    "begin": lambda conn: conn.begin(),
    "transaction": lambda conn: conn.transaction().__enter__(),
    "poll": lambda conn: conn.poll(),
    "poll_batch": lambda conn: conn.poll_batch(),
    "wait": lambda conn: conn.wait(0),
    "notifies": lambda conn: next(conn.notifies(timeout=0)),
    "listening_channels": lambda conn: conn.listening_channels(),
    "queue_usage": lambda conn: conn.queue_usage(),
    "fileno": lambda conn: conn.fileno(),
}


@pytest.mark.parametrize("name", list(USES))
def test_use_in_the_child_raises(conn: pynotify.Connection, name: str) -> None:
    """ForkedConnectionError, which names both pids."""
    conn.listen("c")
    parent = os.getpid()

    def use() -> tuple[str, bool, int]:
        try:
            USES[name](conn)
        except pynotify.ForkedConnectionError as error:
            return str(error), isinstance(error, pynotify.InterfaceError), os.getpid()
        raise AssertionError("nothing was raised")

    text, is_interface_error, child = in_child(use)
    assert is_interface_error
    assert str(parent) in text
    assert str(child) in text
    conn.notify("c", "unaffected")
    assert payloads(conn.poll()) == ["unaffected"]


def test_close_in_the_child_does_nothing(
    engine: pynotify.Engine, conn: pynotify.Connection
) -> None:
    """Nor does leaving its `with`, nor its garbage collection, nor the child's end."""
    conn.listen("c")

    def close() -> bool:
        conn.close()
        conn.close()
        return True

    assert in_child(close)
    assert not conn.closed
    assert [backend.pid for backend in engine.stat().backends] == [os.getpid()]
    conn.notify("c", "unaffected")
    assert conn.wait(PATIENCE)
    assert payloads(conn.poll()) == ["unaffected"]


def test_clean_exit_of_the_child_does_nothing(
    engine: pynotify.Engine, conn: pynotify.Connection
) -> None:
    """With all of Python's clean-up, as a multiprocessing child ends."""
    conn.listen("c")
    process = multiprocessing.get_context("fork").Process(target=os.getpid)
    process.start()
    process.join(PATIENCE)
    assert process.exitcode == 0
    conn.notify("c", "unaffected")
    assert payloads(receive(conn, 1)) == ["unaffected"]
    assert engine.check().ok


def test_engine_is_usable_in_the_child(engine: pynotify.Engine, conn: pynotify.Connection) -> None:
    """A connection made there is the child's own."""
    conn.listen("c")

    def talk() -> tuple[int, int]:
        with engine.connect() as mine:
            mine.listen("d")
            mine.notify("c", "from the child")
            mine.notify("d", "to itself")
            assert payloads(receive(mine, 1)) == ["to itself"]
            return mine.pid, mine.backend_id

    pid, backend_id = in_child(talk)
    assert pid != os.getpid()
    assert backend_id != conn.backend_id
    (message,) = conn.poll()
    assert message == ("c", "from the child", pid)
    assert message.backend_id == backend_id


def test_child_is_woken_by_signals_of_its_own(
    engine: pynotify.Engine, conn: pynotify.Connection
) -> None:
    """The child inherited our handler and must still have a doorbell of its own."""
    conn.listen("c")

    def echo() -> bool:
        with engine.connect() as mine:
            mine.listen("d")
            mine.notify("c", "ready")
            for number in range(20):
                assert payloads(receive(mine, 1)) == [str(number)]
                mine.notify("c", str(number))
        return True

    child = ForkedChild(echo)
    assert payloads(receive(conn, 1)) == ["ready"]
    for number in range(20):
        conn.notify("d", str(number))
        assert payloads(receive(conn, 1)) == [str(number)]
    assert child.result()


def test_transaction_of_the_parent_goes_on(conn: pynotify.Connection) -> None:
    conn.listen("c")
    conn.begin()
    conn.notify("c", "before")

    def look() -> str:
        try:
            conn.commit()
        except pynotify.ForkedConnectionError as error:
            return str(error)
        raise AssertionError("nothing was raised")

    in_child(look)
    conn.notify("c", "after")
    conn.commit()
    assert payloads(conn.poll()) == ["before", "after"]


def test_fork_while_threads_use_it(engine: pynotify.Engine, conn: pynotify.Connection) -> None:
    """Locks held by other threads at the moment of fork do not block the child's own connection."""
    conn.listen("c")
    over = threading.Event()

    def use() -> None:
        while not over.is_set():
            conn.notify("c", "x")
            conn.poll()
            conn.wait(0)
            engine.stat()

    threads = [threading.Thread(target=use) for _ in range(3)]
    for thread in threads:
        thread.start()

    def talk() -> list[str]:
        with pytest.raises(pynotify.ForkedConnectionError):
            conn.notify("c")
        with engine.connect(database="other") as mine:
            mine.listen("d")
            mine.notify("d", "x")
            return payloads(mine.poll())

    try:
        for _ in range(10):
            assert in_child(talk) == ["x"]
    finally:
        over.set()
        for thread in threads:
            thread.join()
    assert engine.check().ok


def test_parent_that_dies_first_is_reaped(engine: pynotify.Engine, connect: Connect) -> None:
    """A child that inherited all descriptors of a dead listener does not keep it alive."""
    reading, writing = os.pipe()

    def listen_and_die() -> None:
        dying = engine.connect()
        dying.listen("c")
        if os.fork() == 0:
            os.close(writing)
            os.read(reading, 1)  # lives until the test closes its end
            os._exit(0)

    child = ForkedChild(listen_and_die)
    child.result()
    os.close(reading)
    conn = connect()
    for _ in range(2000):
        conn.notify("c", "x" * 7990)
    assert [backend.pid for backend in engine.stat().backends] == [os.getpid()]
    os.close(writing)


def test_fork_in_the_child_of_a_fork(engine: pynotify.Engine, conn: pynotify.Connection) -> None:
    conn.listen("c")

    def deeper(levels: int) -> list[int]:
        with engine.connect() as mine:
            mine.notify("c", str(levels))
            return [mine.pid, *(in_child(lambda: deeper(levels - 1)) if levels else [])]

    pids = in_child(lambda: deeper(3))
    assert len(set(pids)) == 4
    assert [(m.payload, m.pid) for m in conn.poll()] == [
        (str(level), pid) for level, pid in zip((3, 2, 1, 0), pids, strict=True)
    ]


class TestGet:
    @pytest.fixture
    def name(self, engine: pynotify.Engine, make_engine: EngineFactory) -> str:
        return make_engine.name_of(engine)

    def test_is_cached_per_process(self, name: str) -> None:
        with pynotify.get(name) as conn:
            assert pynotify.get(name) is conn

    def test_makes_a_new_one_after_close(self, name: str) -> None:
        first = pynotify.get(name)
        first.close()
        with pynotify.get(name) as second:
            assert second is not first
            assert not second.closed

    def test_is_safe_after_fork(self, name: str) -> None:
        with pynotify.get(name) as conn:
            conn.listen("c")

            def use() -> tuple[int, bool]:
                mine = pynotify.get(name)
                mine.notify("c", "from the child")
                again = pynotify.get(name) is mine
                mine.close()
                return mine.pid, again and mine is not conn

            pid, distinct = in_child(use)
            assert distinct
            assert pynotify.get(name) is conn
            assert payloads(conn.poll()) == ["from the child"]
            assert pid != conn.pid

    def test_different_names_are_different(self, name: str, make_engine: EngineFactory) -> None:
        other = make_engine.name_of(make_engine())
        with pynotify.get(name) as one, pynotify.get(other) as two:
            assert one is not two


# ---- other processes by multiprocessing ---------------------------------------------------------


def _use_engine(engine: pynotify.Engine, pipe: Pipe) -> None:
    with engine.connect() as conn:
        conn.listen("to child")
        pipe.send(conn.pid)
        (message,) = receive(conn, 1)
        conn.notify("to parent", message.payload.upper())


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_start_methods(engine: pynotify.Engine, conn: pynotify.Connection, method: str) -> None:
    """An Engine may be handed to a process however that is started."""
    context = multiprocessing.get_context(method)
    ours, theirs = context.Pipe()
    process = context.Process(target=_use_engine, args=(engine, theirs))
    process.start()
    try:
        conn.listen("to parent")
        assert ours.poll(PATIENCE)
        pid = ours.recv()
        assert pid == process.pid
        conn.notify("to child", "hello")
        assert receive(conn, 1) == [("to parent", "HELLO", pid)]
    finally:
        process.join(PATIENCE)
        ours.close()
        theirs.close()
    assert process.exitcode == 0


def _publish(engine: pynotify.Engine, number: int) -> int:
    with engine.connect() as conn:
        conn.notify("c", str(number))
    return os.getpid()


def test_process_pool(engine: pynotify.Engine, conn: pynotify.Connection) -> None:
    conn.listen("c")
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(2, mp_context=context) as pool:
        pids = {future.result(PATIENCE) for future in
                [pool.submit(_publish, engine, number) for number in range(20)]}  # fmt: skip
    messages = conn.poll()
    assert sorted(int(message.payload) for message in messages) == list(range(20))
    assert {message.pid for message in messages} == pids
    wait_until(lambda: len(engine.stat().backends) == 1, "only the test's own backend is left")


class TestPickle:
    def test_attaches_to_the_same_segment(self, engine: pynotify.Engine, connect: Connect) -> None:
        copy = pickle.loads(pickle.dumps(engine))
        try:
            listener, conn = connect(), connect(to=copy)
            listener.listen("c")
            conn.notify("c", "through the copy")
            assert payloads(listener.poll()) == ["through the copy"]
        finally:
            conn.close()
            copy.close()

    def test_never_creates(self, new_name: Callable[[], str]) -> None:
        name = new_name()
        with pynotify.open(name) as engine:
            data = pickle.dumps(engine)
        pynotify.unlink(name)
        with pytest.raises(pynotify.SegmentNotFound):
            pickle.loads(data)
        assert name not in [info.name for info in pynotify.segments()]

    def test_of_a_segment_with_options(self, make_engine: EngineFactory) -> None:
        engine = make_engine(queue_pages=64, max_payload=100_000)
        with pickle.loads(pickle.dumps(engine)) as copy:
            assert copy.stat().queue_pages == 64

    def test_connection_is_not_pickled(self, conn: pynotify.Connection) -> None:
        with pytest.raises(TypeError):
            pickle.dumps(conn)
