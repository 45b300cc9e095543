"""Segments: created whole, found by name, replaced, listed, unlinked."""

from __future__ import annotations

import os
import select
import stat
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import pynotify
from namespaces import run_unshared
from receiving import PATIENCE, payloads, wait_until
from sessions import Connect, EngineFactory, NewWorker, RemoteSession

SHARED_MEMORY = Path("/dev/shm")


def file_of(name: str) -> Path:
    return SHARED_MEMORY / f"pynotify.{os.geteuid()}.{name}"


def files_of(name: str) -> list[str]:
    return sorted(path.name for path in SHARED_MEMORY.glob(f"pynotify*.{name}*"))


class TestOpen:
    def test_creates(self, segment_name: str) -> None:
        with pynotify.open(segment_name) as engine:
            assert isinstance(engine, pynotify.Engine)
            assert file_of(segment_name).exists()
            assert engine.check().ok

    def test_file_is_the_users_alone(self, segment_name: str) -> None:
        """0600, whatever the umask."""
        old = os.umask(0)
        try:
            with pynotify.open(segment_name) as engine, engine.connect() as conn:
                conn.listen("c")
                for name in files_of(segment_name):
                    mode = (SHARED_MEMORY / name).stat().st_mode
                    assert stat.S_IMODE(mode) == 0o600, name
        finally:
            os.umask(old)

    def test_odd_umask(self, segment_name: str) -> None:
        old = os.umask(0o777)
        try:
            with pynotify.open(segment_name) as one, pynotify.open(segment_name):
                assert one.check().ok
        finally:
            os.umask(old)

    def test_missing(self, segment_name: str) -> None:
        with pytest.raises(pynotify.SegmentNotFound):
            pynotify.open(segment_name, create=False)
        assert files_of(segment_name) == []

    def test_attaches_to_what_is_there(self, segment_name: str) -> None:
        with (
            pynotify.open(segment_name, queue_pages=64) as one,
            pynotify.open(segment_name, create=False) as two,
            one.connect() as listener,
            two.connect() as notifier,
        ):
            listener.listen("c")
            notifier.notify("c", "x")
            assert payloads(listener.poll()) == ["x"]
            assert two.stat().queue_pages == 64

    def test_segment_outlives_its_processes(self, segment_name: str, new_worker: NewWorker) -> None:
        """Until `unlink` or reboot."""
        worker = new_worker()
        RemoteSession(worker, _created(segment_name))
        before = file_of(segment_name).stat().st_ino
        worker.kill()
        with pynotify.open(segment_name, create=False) as engine:
            assert engine.stat().backends == []
            assert file_of(segment_name).stat().st_ino == before

    def test_connect_and_get_create_too(self, new_name: Callable[[], str]) -> None:
        first, second = new_name(), new_name()
        with pynotify.connect(first, queue_pages=64) as conn, pynotify.get(second) as other:
            assert not conn.closed
            assert not other.closed

    @pytest.mark.parametrize("options", [{}, {"queue_pages": 64}])
    def test_two_processes_create_at_once(
        self, segment_name: str, new_worker: NewWorker, options: dict[str, int]
    ) -> None:
        """Exactly one segment; the loser attaches to the winner's."""
        workers = [new_worker() for _ in range(4)]
        for _ in range(5):
            for worker in workers:
                worker.start(_create_and_listen, segment_name, options)
            for worker in workers:
                assert worker.result() == "listening"
            with pynotify.connect(segment_name) as conn:
                conn.notify("c", "x")
                assert [worker.call(_heard_and_closed) for worker in workers] == [["x"]] * 4
            pynotify.unlink(segment_name)

    def test_created_by_threads_at_once(self, segment_name: str) -> None:
        engines: list[pynotify.Engine] = []
        threads = [
            threading.Thread(target=lambda: engines.append(pynotify.open(segment_name)))
            for _ in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(engines) == 8
        with engines[0].connect() as listener, engines[7].connect() as notifier:
            listener.listen("c")
            notifier.notify("c", "x")
            assert payloads(listener.poll()) == ["x"]
        for engine in engines:
            engine.close()


def _created(name: str) -> str:
    pynotify.open(name).close()
    return name


_open: list[pynotify.Connection] = []


def _create_and_listen(name: str, options: dict[str, int]) -> str:
    _open.append(pynotify.connect(name, **options))
    _open[0].listen("c")
    return "listening"


def _heard_and_closed() -> list[str]:
    with _open.pop() as conn:
        return payloads(conn.poll())


class TestOptions:
    """Fixed when it is created; a later opener may omit them."""

    def test_same_values_again(self, segment_name: str) -> None:
        options = {"queue_pages": 64, "max_backends": 10, "on_full": "block", "full_timeout": 0.5}
        with pynotify.open(segment_name, **options), pynotify.open(segment_name, **options) as two:
            assert two.stat().queue_pages == 64

    def test_some_of_them_again(self, segment_name: str) -> None:
        with (
            pynotify.open(segment_name, queue_pages=64, max_backends=10),
            pynotify.open(segment_name, max_backends=10) as two,
        ):
            assert two.stat().queue_pages == 64

    @pytest.mark.parametrize(
        "other",
        [
            {"queue_pages": 65},
            {"max_backends": 11},
            {"max_channels": 17},
            {"max_subscriptions": 19},
            {"max_payload": 8000},
            {"max_channel_name": 64},
            {"on_full": "block"},
            {"full_timeout": 6.0},
            {"signaling": "broadcast"},
        ],
    )
    def test_other_values_with_live_backends(
        self, segment_name: str, other: dict[str, object]
    ) -> None:
        """LayoutMismatch lists their pids, and says what differs."""
        first = {"queue_pages": 64, "max_backends": 10, "max_channels": 16,
                 "max_subscriptions": 18}  # fmt: skip
        with pynotify.connect(segment_name, **first) as conn:
            for create in (True, False):
                with pytest.raises(pynotify.LayoutMismatch) as caught:
                    pynotify.open(segment_name, create=create, **other)
            assert next(iter(other)) in str(caught.value)
            with pytest.raises(pynotify.LayoutMismatch) as caught:
                pynotify.open(segment_name, **other)
            assert str(conn.pid) in str(caught.value)
            conn.listen("c")
            conn.notify("c", "unaffected")
            assert payloads(conn.poll()) == ["unaffected"]

    def test_other_values_without_live_backends_replace_it(self, segment_name: str) -> None:
        """An Engine without connections is not a live backend: it finds its segment unlinked."""
        with pynotify.open(segment_name, queue_pages=64) as old:
            with pynotify.open(segment_name, queue_pages=128) as new:
                assert new.stat().queue_pages == 128
                with new.connect() as conn:
                    conn.notify("c")
            with pytest.raises(pynotify.SegmentUnlinked):
                old.connect()

    def test_other_values_without_create_are_a_mismatch(self, segment_name: str) -> None:
        """A non-creating open with other options is `LayoutMismatch`, live backends or not."""
        with pynotify.open(segment_name, queue_pages=64):
            pass
        with pytest.raises(pynotify.LayoutMismatch):
            pynotify.open(segment_name, create=False, queue_pages=128)
        with pynotify.open(segment_name, create=False) as engine:
            assert engine.stat().queue_pages == 64

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("queue_pages", 64),
            ("max_backends", 1),
            ("max_channels", 1),
            ("max_subscriptions", 1),
            ("max_payload", 1),
            ("max_channel_name", 1),
            ("full_timeout", 0),
            ("full_timeout", 0.001),
            ("max_backends", 65536),
            ("max_channel_name", 255),
            ("max_payload", 2 << 20),
        ],
    )
    def test_extreme_values(self, make_engine: EngineFactory, name: str, value: object) -> None:
        engine = make_engine(**{name: value})
        with engine.connect(database="d") as conn:
            conn.listen("c")
            conn.notify("c", "x")
            assert payloads(conn.poll()) == ["x"]
        assert engine.check().ok

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("queue_pages", 63),
            ("queue_pages", 0),
            ("queue_pages", -1),
            ("queue_pages", 2**64),
            ("max_backends", 0),
            ("max_backends", 65537),
            ("max_channels", 0),
            ("max_subscriptions", 0),
            ("max_payload", 0),
            ("max_payload", -5),
            ("max_channel_name", 0),
            ("max_channel_name", 256),
            ("full_timeout", -1),
            ("full_timeout", float("nan")),
            ("full_timeout", float("inf")),
            ("on_full", "nope"),
            ("signaling", "nope"),
        ],
    )
    def test_bad_values(self, segment_name: str, name: str, value: object) -> None:
        with pytest.raises(ValueError) as caught:
            pynotify.open(segment_name, **{name: value})
        assert name in str(caught.value)
        assert files_of(segment_name) == []

    def test_unknown_options(self, segment_name: str) -> None:
        with pytest.raises(TypeError):
            pynotify.open(segment_name, queue_page=64)
        with pytest.raises(TypeError):
            pynotify.connect(segment_name, queue_page=64)
        assert files_of(segment_name) == []

    def test_max_backends(self, make_engine: EngineFactory, connect: Connect) -> None:
        engine = make_engine(max_backends=3)
        conns = [connect(to=engine) for _ in range(3)]
        with pytest.raises(pynotify.TooManyBackends) as caught:
            engine.connect()
        assert str(caught.value).startswith("sorry, too many clients already")
        assert caught.value.sqlstate == "53300"
        conns[1].close()
        connect(to=engine).notify("c")

    def test_slots_of_the_dead_are_used_again(
        self, make_engine: EngineFactory, new_worker: NewWorker
    ) -> None:
        """At the limit the dead are reaped before a process is refused."""
        engine = make_engine(max_backends=2)
        for _ in range(3):
            worker = new_worker()
            for _ in range(2):
                RemoteSession(worker, make_engine.name_of(engine))
            with pytest.raises(pynotify.TooManyBackends):
                engine.connect()
            worker.kill()
        with engine.connect() as one, engine.connect() as two:
            assert {one.backend_id, two.backend_id} == {0, 1}

    @pytest.mark.parametrize("option", ["max_channels", "max_subscriptions"])
    def test_full_tables(self, make_engine: EngineFactory, connect: Connect, option: str) -> None:
        """TooManyChannels at commit, which rolls back; UNLISTEN makes room again."""
        conn = connect(to=make_engine(**{option: 4}))
        conn.listen("a", "b", "c", "d")
        conn.begin()
        conn.notify("a", "rolled back with it")
        conn.listen("e")
        with pytest.raises(pynotify.TooManyChannels) as caught:
            conn.commit()
        assert caught.value.sqlstate == "53200"
        assert conn.poll() == []
        assert conn.listening_channels() == {"a", "b", "c", "d"}
        with pytest.raises(pynotify.TooManyChannels):
            conn.listen("e")
        conn.unlisten("a")
        conn.listen("e")
        assert conn.listening_channels() == {"b", "c", "d", "e"}

    def test_notifying_needs_no_entry(self, make_engine: EngineFactory, connect: Connect) -> None:
        conn = connect(to=make_engine(max_channels=2))
        conn.listen("a", "b")
        for number in range(100):
            conn.notify(f"another {number}")


class TestNames:
    @pytest.mark.parametrize("name", ["a", "A-b_c.9", "x" * 100])
    def test_good(self, name: str) -> None:
        unique = name if len(name) == 100 else f"{name}.{os.getpid()}"
        try:
            with pynotify.connect(unique) as conn:
                conn.notify("c")
            assert unique in [info.name for info in pynotify.segments()]
        finally:
            pynotify.unlink(unique, missing_ok=True)

    @pytest.mark.parametrize(
        "name",
        ["", ".hidden", "a/b", "/a", "a b", "ä", "x" * 101, "a\n", "a\0", "..", "a%", "\udc80"],
    )
    def test_bad(self, name: str) -> None:
        """A name matches as a whole."""
        for use in (pynotify.open, pynotify.connect, pynotify.get, pynotify.unlink):
            with pytest.raises(pynotify.ProgrammingError):
                use(name)

    @pytest.mark.parametrize("name", [None, 7, b"bytes"])
    def test_of_another_type(self, name: object) -> None:
        for use in (pynotify.open, pynotify.unlink):
            with pytest.raises((TypeError, pynotify.ProgrammingError)):
                use(name)

    @pytest.mark.parametrize("database", ["a", "Ä", "x" * 63, "with space", "a/b", "*"])
    def test_good_databases(self, engine: pynotify.Engine, database: str) -> None:
        with engine.connect(database=database) as conn:
            assert conn.database == database
            assert engine.stat().backends[0].database == database

    @pytest.mark.parametrize("database", ["", "x" * 64, "a\0b", "\udc80"])
    def test_bad_databases(self, engine: pynotify.Engine, database: str) -> None:
        """A database name follows the channel rule."""
        with pytest.raises(pynotify.ProgrammingError):
            engine.connect(database=database)
        assert engine.stat().backends == []


def test_what_is_no_segment_is_not_listed(new_name: Callable[[], str]) -> None:
    name = new_name()
    odd = Path(f"/dev/shm/pynotify.{os.geteuid()}.{name}")
    odd.mkdir()
    try:
        assert name not in [info.name for info in pynotify.segments()]
        with pytest.raises(pynotify.LayoutMismatch, match="is not a segment"):
            pynotify.open(name)
    finally:
        odd.rmdir()


class TestUnlink:
    def test_removes_every_file(self, segment_name: str) -> None:
        with pynotify.connect(segment_name) as conn:
            conn.listen("c")
            assert len(files_of(segment_name)) >= 2
        pynotify.unlink(segment_name)
        assert files_of(segment_name) == []
        with pytest.raises(pynotify.SegmentNotFound):
            pynotify.open(segment_name, create=False)

    def test_missing(self, segment_name: str) -> None:
        with pytest.raises(pynotify.SegmentNotFound):
            pynotify.unlink(segment_name)
        pynotify.unlink(segment_name, missing_ok=True)

    def test_refused_while_a_process_lives(self, segment_name: str, new_worker: NewWorker) -> None:
        """OperationalError lists the pids, and nothing has happened."""
        worker = new_worker()
        with pynotify.connect(segment_name) as conn:
            RemoteSession(worker, segment_name)
            with pytest.raises(pynotify.OperationalError) as caught:
                pynotify.unlink(segment_name)
            assert str(os.getpid()) in str(caught.value)
            assert str(worker.pid) in str(caught.value)
            conn.listen("c")
            conn.notify("c", "x")
            assert payloads(conn.poll()) == ["x"]
        with pytest.raises(pynotify.OperationalError) as caught:
            pynotify.unlink(segment_name)
        assert str(worker.pid) in str(caught.value)
        worker.kill()
        pynotify.unlink(segment_name)

    def test_engine_without_connections_is_not_a_live_backend(self, segment_name: str) -> None:
        with pynotify.open(segment_name) as engine:
            pynotify.unlink(segment_name)
            with pytest.raises(pynotify.SegmentUnlinked):
                engine.connect()

    def test_forced(self, segment_name: str) -> None:
        """Every method but `close` raises SegmentUnlinked; unread messages are gone."""
        conn = pynotify.connect(segment_name)
        conn.listen("c")
        conn.notify("c", "unread")
        pynotify.unlink(segment_name, force=True)
        assert files_of(segment_name) == []
        for use in (
            lambda: conn.listen("d"),
            lambda: conn.unlisten("c"),
            conn.unlisten_all,
            lambda: conn.notify("c"),
            lambda: conn.notify_many("c", ["x"]),
            conn.poll,
            conn.poll_batch,
            lambda: conn.wait(0),
            lambda: list(conn.notifies(timeout=0)),
            conn.listening_channels,
            conn.queue_usage,
            conn.begin,
        ):
            with pytest.raises(pynotify.SegmentUnlinked):
                use()
        conn.close()
        assert conn.closed

    def test_forced_in_a_transaction(self, segment_name: str) -> None:
        conn = pynotify.connect(segment_name)
        conn.begin()
        conn.notify("c", "x")
        pynotify.unlink(segment_name, force=True)
        with pytest.raises(pynotify.SegmentUnlinked):
            conn.commit()
        conn.close()

    @pytest.mark.parametrize("how", ["wait", "notifies", "descriptor"])
    def test_forced_wakes_a_sleeper(
        self, segment_name: str, new_worker: NewWorker, how: str
    ) -> None:
        """Also in a sleeper, which is woken."""
        worker = new_worker()
        session = RemoteSession(worker, _created(segment_name))
        session.listen("c")
        session.run({"wait": _wait, "notifies": _iterate, "descriptor": _watch}[how])
        wait_until(lambda: _sleeps(worker.pid), "it sleeps")
        began = time.monotonic()
        pynotify.unlink(segment_name, force=True)
        with pytest.raises(pynotify.SegmentUnlinked):
            worker.result()
        assert time.monotonic() - began < PATIENCE / 2

    def test_new_segment_of_the_same_name_is_another(self, segment_name: str) -> None:
        old = pynotify.connect(segment_name)
        pynotify.unlink(segment_name, force=True)
        with pynotify.connect(segment_name) as new:
            new.listen("c")
            with pytest.raises(pynotify.SegmentUnlinked):
                old.notify("c", "from the past")
            new.notify("c", "x")
            assert payloads(new.poll()) == ["x"]
            old.close()
            new.notify("c", "y")
            assert payloads(new.poll()) == ["y"]
            with pynotify.open(segment_name, create=False) as engine:
                assert len(engine.stat().backends) == 1

    def test_name_removed_by_another_program(self, segment_name: str) -> None:
        """rm, RemoveIPC, a resource tracker: a process that attaches hears of it at once."""
        with pynotify.open(segment_name) as engine:
            file_of(segment_name).unlink()
            with pytest.raises(pynotify.SegmentUnlinked):
                engine.connect()

    @pytest.mark.full
    def test_name_removed_under_a_sleeper(self, segment_name: str) -> None:
        """An error, not silence; the slow timer finds it."""
        with pynotify.connect(segment_name) as conn:
            conn.listen("c")
            file_of(segment_name).unlink()
            with pytest.raises(pynotify.SegmentUnlinked):
                conn.wait(3 * PATIENCE)


def _wait(conn: pynotify.Connection) -> bool:
    return conn.wait()


def _iterate(conn: pynotify.Connection) -> list[str]:
    return payloads(conn.notifies())


def _watch(conn: pynotify.Connection) -> object:
    select.select([conn], [], [])
    return conn.poll()


def _sleeps(pid: int) -> bool:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    return fields[0] == "S"


class TestSegments:
    def test_lists_them(self, segment_name: str) -> None:
        before = time.time()
        with pynotify.connect(segment_name), pynotify.connect(segment_name):
            (info,) = (info for info in pynotify.segments() if info.name == segment_name)
            assert info.size == file_of(segment_name).stat().st_size
            assert before - 1 <= info.created <= time.time() + 1
            assert info.backends == 2
            assert info.stale is False
        (info,) = (info for info in pynotify.segments() if info.name == segment_name)
        assert info.backends == 0

    def test_of_another_layout_is_stale(self, segment_name: str) -> None:
        """It does not hide the others, nor crash."""
        file_of(segment_name).write_bytes(b"not one of ours" * 1000)
        infos = {info.name: info for info in pynotify.segments()}
        assert infos[segment_name].stale
        pynotify.unlink(segment_name)


class TestClosing:
    def test_connection(self, engine: pynotify.Engine) -> None:
        conn = engine.connect()
        assert not conn.closed
        conn.close()
        conn.close()
        assert conn.closed
        assert engine.stat().backends == []

    def test_everything_is_a_context_manager(self, segment_name: str) -> None:
        with pynotify.open(segment_name) as engine, engine.connect() as conn:
            assert not conn.closed
        assert conn.closed
        with pytest.raises(pynotify.InterfaceError):
            engine.connect()
        engine.close()

    def test_connections_outlive_their_engine(self, segment_name: str) -> None:
        engine = pynotify.open(segment_name)
        with engine.connect() as conn:
            engine.close()
            conn.listen("c")
            conn.notify("c", "x")
            assert payloads(conn.poll()) == ["x"]

    def test_forgotten_connection_frees_its_slot(
        self, make_engine: EngineFactory, engine: pynotify.Engine, new_worker: NewWorker
    ) -> None:
        """Process exit frees the slot, also without close()."""
        worker = new_worker()
        RemoteSession(worker, make_engine.name_of(engine)).listen("c")
        assert len(engine.stat().backends) == 1
        worker.close()
        assert engine.stat().backends == []


def test_segment_of_another_time_namespace_is_refused(
    engine: pynotify.Engine, engine_name: str, connect: Connect
) -> None:
    """In there the monotonic clock, which dates commits and signals, is another one."""
    connect()  # without a live backend the segment would be replaced
    program = (
        f"import sys; sys.path.insert(0, {str(Path(__file__).parents[2])!r}); import pynotify\n"
        "try:\n"
        f"    pynotify.connect({engine_name!r})\n"
        "except pynotify.LayoutMismatch as error:\n"
        "    print('time namespace' in str(error))\n"
        "else:\n"
        "    print('attached')\n"
    )
    clock = ("-T", "-f", "--monotonic", "86400")
    done = run_unshared(*clock, sys.executable, "-c", program, what="time-namespace")
    assert done.stdout.split() == ["True"], done
    assert engine.check().ok


def test_segment_of_another_pid_namespace_is_not_replaced(
    engine: pynotify.Engine, engine_name: str, connect: Connect
) -> None:
    """The holder's pid cannot be seen from in there, but that its lock is held can."""
    listener = connect()
    listener.listen("c")
    program = (
        f"import sys; sys.path.insert(0, {str(Path(__file__).parents[2])!r}); import pynotify\n"
        "for attempt in (pynotify.connect, pynotify.unlink):\n"
        "    try:\n"
        f"        attempt({engine_name!r})\n"
        "    except pynotify.Error as error:\n"
        "        print(type(error).__name__, 'in another pid namespace' in str(error))\n"
        "        shared = 'Share the pid namespace' in (error.hint or '')\n"
        "        if attempt is pynotify.connect: print(shared)\n"
        f"(info,) = (each for each in pynotify.segments() if each.name == {engine_name!r})\n"
        "print(info.stale, info.other_pid_namespace)\n"
    )
    done = run_unshared("-p", "-f", "--mount-proc", sys.executable, "-c", program)
    first = ["LayoutMismatch", "True", "True"]
    assert done.stdout.split() == [*first, "OperationalError", "True", "False", "True"], done
    connect().notify("c", "still here")
    assert [n.payload for n in listener.poll() if isinstance(n, pynotify.Notify)] == ["still here"]
