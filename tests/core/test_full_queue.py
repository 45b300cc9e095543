"""Full queues: the slowest listener is evicted and told so, pages go to files, writers wait."""

from __future__ import annotations

import logging
import os
import resource
import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest

import pynotify
from receiving import PATIENCE, readable
from sessions import Connect, EngineFactory, RemoteSession

Message = pynotify.Notify | pynotify.Gap
PAGES = 64
PAGE = 8192


def page(number: int) -> str:
    """A payload that takes a page of its own."""
    return f"{number:08}".ljust(7999, "x")


def number_of(message: Message) -> int:
    assert isinstance(message, pynotify.Notify)
    return int(message.payload[:8])


def shown(messages: Iterable[Message]) -> list[int | str]:
    """Numbers, and for a gap its reason."""
    return [m.reason if isinstance(m, pynotify.Gap) else number_of(m) for m in messages]


def send(conn: pynotify.Connection, numbers: Iterable[int], channel: str = "c") -> None:
    for number in numbers:
        conn.notify(channel, page(number))


class TestDropSlowest:
    @pytest.fixture
    def engine(self, make_engine: EngineFactory) -> pynotify.Engine:
        return make_engine(queue_pages=PAGES, on_full="drop-slowest")

    def test_one_gap_and_then_everything_after_it(self, connect: Connect) -> None:
        slow, fast, conn = (connect() for _ in range(3))
        slow.listen("c")
        fast.listen("c")
        kept = []
        for number in range(200):
            conn.notify("c", page(number))
            kept += fast.poll()
        assert shown(kept) == list(range(200))
        gap, *rest = slow.poll()
        assert isinstance(gap, pynotify.Gap)
        assert (gap.reason, gap.channel, gap.missed) == ("evicted", None, None)
        lost = gap.missed_bytes // PAGE
        assert gap.missed_bytes == lost * PAGE
        assert shown(rest) == list(range(lost, 200))
        assert 200 - PAGES <= lost < 200 - PAGES // 2
        assert slow.poll() == []

    def test_it_counts_as_a_message(self, connect: Connect) -> None:
        slow, conn = connect(), connect()
        slow.listen("c")
        send(conn, range(100))
        assert shown(slow.poll(max=1)) == ["evicted"]
        first, second = slow.poll(max=2)
        assert number_of(second) == number_of(first) + 1
        send(conn, range(100, 200))
        assert shown(slow.poll(max=2))[0] == "evicted"

    def test_poll_batch(self, connect: Connect) -> None:
        slow, conn = connect(), connect()
        slow.listen("c")
        send(conn, range(10))
        assert len(slow.poll_batch(max=4)) == 4
        send(conn, range(10, 200))
        batch = slow.poll_batch()
        ((index, gap),) = batch.gaps
        assert index == 0
        assert gap.reason == pynotify.Gap.EVICTED
        assert gap.missed_bytes // PAGE + len(batch) + 4 == 200
        assert number_of(next(iter(batch))) == 4 + gap.missed_bytes // PAGE
        assert len(batch.payloads()) == len(batch.seq) == len(batch)
        assert slow.poll_batch().gaps == []

    def test_notifies(self, connect: Connect) -> None:
        slow, conn = connect(), connect()
        slow.listen("c")
        send(conn, range(150))
        two = list(slow.notifies(stop_after=2))
        assert shown(two)[0] == "evicted"
        rest = list(slow.notifies(timeout=0))
        assert number_of(rest[-1]) == 149
        assert len(rest) + 1 == 150 - two[0].missed_bytes // PAGE

    def test_each_subscription_gets_it(self, connect: Connect) -> None:
        """It is not known for which of them the messages were."""
        slow, conn = connect(), connect()
        with slow.subscribe("c", maxlen=3) as c, slow.subscribe("d") as d:
            conn.notify("d", page(1000))
            send(conn, range(150))
            assert shown([d.next(PATIENCE)]) == ["evicted"]
            assert shown([c.next(PATIENCE) for _ in range(2)]) == ["evicted", "overflow"]
            assert shown([c.next(PATIENCE) for _ in range(3)]) == [147, 148, 149]
            assert slow.poll() == []  # poll() has listened to nothing
            conn.notify("d", page(1001))
            assert shown([d.next(PATIENCE)]) == [1001]

    def test_one_after_the_other_are_one(self, connect: Connect) -> None:
        """Where nothing stands between them: a subscription that gets nothing keeps one Gap."""
        slow, conn = connect(), connect()
        slow.listen("c")
        with slow.subscribe("d") as d:
            missed = []
            for number in (1000, 1001):
                for _ in range(3):
                    send(conn, range(150))
                    gap = slow.poll()[0]
                    assert isinstance(gap, pynotify.Gap)
                    missed.append(gap.missed_bytes)
                conn.notify("d", page(number))
                slow.poll()
            first, one, second, two = (d.next(PATIENCE) for _ in range(4))
            assert shown([first, one, second, two]) == ["evicted", 1000, "evicted", 1001]
            assert isinstance(first, pynotify.Gap) and isinstance(second, pynotify.Gap)
            assert first.missed_bytes == sum(missed[:3])
            assert second.missed_bytes == sum(missed[3:])
            assert first.missed is None

    def test_poll_and_a_subscription_both_get_it(self, connect: Connect) -> None:
        slow, conn = connect(), connect()
        slow.listen("c")
        with slow.subscribe("c") as sub:
            send(conn, range(150))
            messages = slow.poll()
            assert shown(messages)[0] == "evicted"
            assert [sub.next(0) for _ in messages] == messages

    def test_handlers_do_not_see_it(self, connect: Connect) -> None:
        slow, conn = connect(), connect()
        slow.listen("c")
        heard: list[pynotify.Notify] = []
        slow.add_notify_handler(heard.append)
        send(conn, range(150))
        assert slow.poll()[1:] == heard
        heard.clear()
        send(conn, range(150))
        assert [*slow.poll_batch()] == heard

    def test_a_waiting_listener_is_woken_to_it(self, connect: Connect) -> None:
        slow, conn = connect(), connect()
        slow.listen("c")
        fd = slow.fileno()
        send(conn, range(150))
        assert readable(fd, PATIENCE)
        assert slow.wait(PATIENCE)
        assert shown(slow.poll())[0] == "evicted"
        assert not readable(fd)

    def test_an_uninterested_listener_has_lost_nothing(self, connect: Connect) -> None:
        other, conn = connect(), connect()
        other.listen("other")
        slow = connect()
        slow.listen("c")
        send(conn, range(150))
        assert other.poll() == []
        conn.notify("other", "still here")
        assert [m.payload for m in other.poll() if isinstance(m, pynotify.Notify)] == ["still here"]

    def test_stat_and_the_warning(
        self, engine: pynotify.Engine, connect: Connect, caplog: pytest.LogCaptureFixture
    ) -> None:
        slow, conn = connect(), connect()
        slow.listen("c")
        with caplog.at_level(logging.WARNING, logger="pynotify"):
            send(conn, range(100))
        assert engine.stat().evictions > 0
        (text,) = [r.getMessage() for r in caplog.records if "has lost them" in r.getMessage()]
        assert f"PID {slow.pid} (backend {slow.backend_id})" in text

    def test_a_prepared_commit_never_fails(self, connect: Connect) -> None:
        slow, conn, other = (connect() for _ in range(3))
        slow.listen("c")
        send(other, range(PAGES - 1))
        with conn.transaction() as tx:
            send(conn, range(1000, 1020))
            tx.prepare()
            send(other, range(PAGES, 3 * PAGES))
        messages = slow.poll()
        assert shown(messages)[0] == "evicted"
        assert shown(messages)[-20:] == list(range(1000, 1020))


def files_of(directory: Path) -> list[Path]:
    return sorted(directory.iterdir())


class TestFiles:
    @pytest.fixture
    def directory(self, tmp_path: Path) -> Path:
        (tmp_path / "data").mkdir(mode=0o700)
        return tmp_path / "data"

    @pytest.fixture
    def engine(self, make_engine: EngineFactory, directory: Path) -> pynotify.Engine:
        return make_engine(queue_pages=PAGES, max_queue_pages=1000, data_dir=directory)

    def test_beyond_the_ring_and_back(
        self, engine: pynotify.Engine, connect: Connect, directory: Path
    ) -> None:
        slow, middle, conn = (connect() for _ in range(3))
        slow.listen("c")
        middle.listen("c")
        send(conn, range(300))
        files = files_of(directory)
        assert len(files) >= (300 - PAGES) // 32
        assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}
        stats = engine.stat()
        assert (stats.queue_pages, stats.max_queue_pages) == (PAGES, 1000)
        assert stats.mem_tail - stats.tail == stats.spilled_pages * PAGE
        assert stats.head - stats.mem_tail <= PAGES * PAGE
        assert conn.queue_usage() == pytest.approx(0.3, abs=0.01)
        assert engine.check().ok
        assert shown(middle.poll(max=100)) == list(range(100))
        assert shown(slow.poll()) == list(range(300))
        assert len(files_of(directory)) < len(files)  # what lies before the 100th is gone
        send(conn, range(300, 500))
        assert shown(middle.poll(max=50)) == list(range(100, 150))
        assert shown(middle.poll()) == list(range(150, 500))
        assert shown(slow.poll()) == list(range(300, 500))
        assert files_of(directory) == []
        assert engine.check().ok

    @pytest.mark.parametrize("size", [10, 7999], ids=["small", "pages"])
    def test_headers_come_back_with_their_messages(
        self,
        engine: pynotify.Engine,
        connect: Connect,
        directory: Path,
        size: int,
    ) -> None:
        """Of none to more than a page, by each way of reading."""
        slow, other, conn = (connect() for _ in range(3))
        for listener in (slow, other):
            listener.listen("c")
        sent = []
        while len(files_of(directory)) < 5:
            number = len(sent)
            length = (0, 30, 3_000, 30_000)[number % 4]
            headers = {"n": str(number), "more": "v" * length} if length else {}
            sent.append((f"{number:08}".ljust(size, "x"), headers))
            conn.notify("c", sent[-1][0], headers=headers)
        assert engine.stat().spilled_pages > 100
        assert engine.check().ok
        got = slow.poll(max=len(sent) // 3)
        got += slow.poll()
        batch = other.poll_batch()
        for messages in (got, list(batch)):
            assert [(m.payload, m.headers) for m in messages] == sent  # type: ignore[union-attr]
        assert [batch.headers(index) for index in range(len(batch))] == [each for _, each in sent]
        assert files_of(directory) == []

    def test_headers_for_another_process_and_objects(
        self,
        engine: pynotify.Engine,
        make_engine: EngineFactory,
        remote: Callable[..., RemoteSession],
        connect: Connect,
    ) -> None:
        """What was sent as several segments, with headers at the last, lies in several files."""
        other, conn = remote(make_engine.name_of(engine)), connect()
        other.listen("c")
        with pynotify.PubSub(connect()) as slow, pynotify.PubSub(conn) as sender:
            slow.subscribe("c")
            for number in range(20):
                sender.publish("c", bytes(100_000), headers={"n": str(number)})
            assert engine.stat().spilled_pages > 100
            heard = [(received.obj, received.headers) for received in slow.ready()]
        assert heard == [(bytes(100_000), {"n": str(number)}) for number in range(20)]
        found = [m.headers["n"] for m in other.poll() if m.headers]
        assert found == [str(number) for number in range(20)]

    def test_all_of_max_queue_pages(self, connect: Connect) -> None:
        slow, conn = connect(), connect()
        slow.listen("c")
        with pytest.raises(pynotify.QueueFull, match=rf"PID {os.getpid()}.*max_queue_pages"):
            send(conn, range(1001))
        assert shown(slow.poll()) == list(range(1000))

    def test_other_processes_read_the_same_files(
        self,
        engine: pynotify.Engine,
        make_engine: EngineFactory,
        remote: Callable[..., RemoteSession],
        connect: Connect,
    ) -> None:
        other, conn = remote(make_engine.name_of(engine)), connect()
        other.listen("c")
        send(conn, range(300))
        assert [m.payload[:8] for m in other.poll()] == [f"{n:08}" for n in range(300)]

    def test_a_full_disk_is_queue_full_and_nothing_is_lost(
        self, connect: Connect, directory: Path
    ) -> None:
        """RLIMIT_FSIZE stands for it."""
        slow, conn = connect(), connect()
        slow.listen("c")
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
        try:
            with pytest.raises(pynotify.QueueFull) as caught:
                send(conn, range(PAGES + 1))
            with pytest.raises(pynotify.QueueFull), conn.transaction() as tx:
                send(conn, range(10))
                tx.prepare()
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert str(caught.value).startswith("too many notifications in the NOTIFY queue\n")
        assert caught.value.sqlstate == "54000"
        assert str(directory) in str(caught.value)
        assert "File too large" in str(caught.value)
        assert f"PID {os.getpid()}" in str(caught.value)
        assert files_of(directory) == []
        send(conn, range(PAGES, 200))
        assert shown(slow.poll()) == list(range(200))

    def test_a_damaged_file_is_a_gap(self, connect: Connect, directory: Path) -> None:
        slow, conn = connect(), connect()
        slow.listen("c")
        send(conn, range(200))
        with files_of(directory)[0].open("r+b") as file:
            file.seek(128 + 5 * (40 + PAGE) + 1000)  # of the body of record 5
            file.write(b"damage")
        messages = slow.poll()
        assert shown(messages) == [*range(5), "damaged", *range(6, 200)]
        assert messages[5] == pynotify.Gap(PAGE, pynotify.Gap.DAMAGED)

    def test_unlink_removes_them(self, new_name: Callable[[], str], directory: Path) -> None:
        name = new_name()
        options = {"queue_pages": PAGES, "max_queue_pages": 1000, "data_dir": directory}
        engine = pynotify.open(name, **options)
        with engine, engine.connect() as slow, engine.connect() as conn:
            slow.listen("c")
            send(conn, range(200))
            assert files_of(directory)
            pynotify.unlink(name, force=True)
            assert files_of(directory) == []

    def test_those_of_the_killed_are_removed_at_the_next_open(
        self, new_name: Callable[[], str], directory: Path
    ) -> None:
        name = new_name()
        options = {"queue_pages": PAGES, "max_queue_pages": 1000, "data_dir": str(directory)}
        program = f"""
import os, pynotify
engine = pynotify.open({name!r}, **{options!r})
slow, conn = engine.connect(), engine.connect()
slow.listen("c")
for number in range(200):
    conn.notify("c", "x" * 7999)
os.unlink(f"/dev/shm/pynotify.{{os.geteuid()}}.{name}")
os.kill(os.getpid(), {signal.SIGKILL})
"""
        done = subprocess.run([sys.executable, "-c", program], check=False, timeout=3 * PATIENCE)
        assert done.returncode == -signal.SIGKILL
        assert files_of(directory)
        (directory / "another-program's").touch()
        with pynotify.open(name, **options):
            assert [file.name for file in files_of(directory)] == ["another-program's"]


class TestOptions:
    def test_a_directory_is_needed(self, new_name: Callable[[], str]) -> None:
        with pytest.raises(ValueError, match="data_dir"):
            pynotify.open(new_name(), queue_pages=PAGES, max_queue_pages=PAGES + 1)

    def test_fewer_than_the_ring(self, new_name: Callable[[], str], tmp_path: Path) -> None:
        with pytest.raises(ValueError, match="at least queue_pages"):
            pynotify.open(new_name(), queue_pages=128, max_queue_pages=64, data_dir=tmp_path)

    @pytest.mark.parametrize("value", ["", 5, "/" + "x" * 600, "a\0b"])
    def test_what_is_no_path(self, new_name: Callable[[], str], value: object) -> None:
        with pytest.raises(ValueError, match="data_dir"):
            pynotify.open(new_name(), data_dir=value)

    def test_a_directory_that_is_not_there(
        self, new_name: Callable[[], str], tmp_path: Path
    ) -> None:
        with pytest.raises(pynotify.OperationalError, match="nowhere"):
            pynotify.open(new_name(), data_dir=tmp_path / "nowhere")

    def test_a_directory_that_others_may_write_to(
        self, new_name: Callable[[], str], tmp_path: Path
    ) -> None:
        tmp_path.chmod(0o770)
        with pytest.raises(pynotify.OperationalError, match="others may write to it"):
            pynotify.open(new_name(), data_dir=tmp_path)

    def test_another_value_is_a_mismatch(
        self, new_name: Callable[[], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        name = new_name()
        options = {"queue_pages": PAGES, "max_queue_pages": 100}
        link = tmp_path / "link"
        (tmp_path / "data").mkdir(mode=0o700)
        link.symlink_to(tmp_path / "data")
        monkeypatch.chdir(tmp_path)
        with pynotify.open(name, data_dir=link, **options) as engine, engine.connect():
            for same in ("data", link, os.fsencode(tmp_path / "data")):
                pynotify.open(name, create=False, data_dir=same).close()
            pynotify.open(name).close()
            with pytest.raises(pynotify.LayoutMismatch, match=r"data_dir='.*data', not data_dir="):
                pynotify.open(name, data_dir=tmp_path)
            with pytest.raises(pynotify.LayoutMismatch, match="data_dir=None"):
                pynotify.open(name, data_dir=None)
            with pytest.raises(pynotify.LayoutMismatch, match="max_queue_pages=100, not"):
                pynotify.open(name, max_queue_pages=PAGES)
            with pytest.raises(
                pynotify.LayoutMismatch, match='"error", not on_full="drop-slowest"'
            ):
                pynotify.open(name, on_full="drop-slowest")


class TestBlock:
    @pytest.fixture
    def laggards(
        self, make_engine: EngineFactory, connect: Connect
    ) -> Iterator[tuple[pynotify.Connection, pynotify.Connection]]:
        """A listener that has not read a full queue, and a notifier."""
        engine = make_engine(queue_pages=PAGES, on_full="block", full_timeout=0.05)
        slow, conn = connect(to=engine), connect(to=engine)
        slow.listen("c")
        send(conn, range(PAGES))
        yield slow, conn
        slow.poll()

    def test_the_error_and_the_warning_name_the_laggard(
        self,
        laggards: tuple[pynotify.Connection, pynotify.Connection],
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        slow, conn = laggards
        with pytest.raises(pynotify.QueueFull, match=r"within 0\.05 s") as caught:
            conn.notify("c", page(PAGES))
        assert f"PID {slow.pid} (backend {slow.backend_id})" in str(caught.value)
        slow.poll()
        with caplog.at_level(logging.WARNING, logger="pynotify"):
            conn.notify("c", "x")
        (text,) = [r.getMessage() for r in caplog.records if "Waiting for" in r.getMessage()]
        assert f"PID {slow.pid} (backend {slow.backend_id})" in text
