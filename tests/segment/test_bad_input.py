"""Segments that are not what they should be: an error each time, never a crash, never a hang."""

from __future__ import annotations

import mmap
import os
import random
import resource
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import pynotify
from forking import ChildFailed, ForkedChild, in_child
from namespaces import run_unshared
from receiving import PATIENCE, wait_until
from requirement import require
from sessions import Worker

SHARED_MEMORY = Path("/dev/shm")
NOBODY = 65534
NAME_SIZE, DATA_DIR_SIZE = 128, 512  # in the header, in this order; its state follows
REFUSALS = (pynotify.LayoutMismatch, pynotify.SegmentCorrupt)
REFUSED = (pynotify.OperationalError, pynotify.InterfaceError)


@pytest.fixture
def segment_file(segment_name: str) -> Path:
    """The file of a sound segment that no process uses."""
    with pynotify.connect(segment_name, queue_pages=64, max_backends=16) as conn:
        conn.listen("c")
        conn.notify_many("c", [f"{number:0500}" for number in range(100)])
    return SHARED_MEMORY / f"pynotify.{os.geteuid()}.{segment_name}"


def overwrite(path: Path, offset: int, data: bytes) -> None:
    fd = os.open(path, os.O_WRONLY)
    try:
        os.pwrite(fd, data, offset)
    finally:
        os.close(fd)


def attach(name: str) -> str:
    """Open and use an existing segment; the name of the error, or "used"."""
    try:
        with pynotify.open(name, create=False) as engine:
            engine.stat()
            engine.check()
            use(engine)
    except pynotify.Error as error:
        return type(error).__name__
    return "used"


def use(engine: pynotify.Engine) -> None:
    with engine.connect() as conn:
        conn.listen("c", "d")
        for number in range(50):
            conn.notify("c", f"{number:0300}")
            conn.notify("d")
        conn.poll(max=3)
        with conn.transaction():
            conn.unlisten("d")
            conn.notify("c", "x")
        conn.wait(0)
        conn.poll()
        conn.queue_usage()


class TestBeforeAttaching:
    @pytest.mark.parametrize("size", [0, 1, 7, 64, 4095, 4096, 8192, 100_000])
    def test_truncated(self, segment_name: str, segment_file: Path, size: int) -> None:
        os.truncate(segment_file, size)
        outcome = in_child(lambda: attach(segment_name))
        assert outcome in ("SegmentCorrupt", "LayoutMismatch")

    def test_longer_than_it_says(self, segment_name: str, segment_file: Path) -> None:
        os.truncate(segment_file, segment_file.stat().st_size + 8192)
        outcome = in_child(lambda: attach(segment_name))
        assert outcome in ("SegmentCorrupt", "LayoutMismatch", "used")

    @pytest.mark.parametrize("content", [b"\0", b"\xff", b"pynotify"])
    def test_all_one_pattern(self, segment_name: str, segment_file: Path, content: bytes) -> None:
        size = segment_file.stat().st_size
        overwrite(segment_file, 0, content * (size // len(content)))
        outcome = in_child(lambda: attach(segment_name))
        assert outcome in ("SegmentCorrupt", "LayoutMismatch")

    def test_magic(self, segment_name: str, segment_file: Path) -> None:
        first = segment_file.read_bytes()[:1]
        overwrite(segment_file, 0, bytes([first[0] ^ 0xFF]))
        with pytest.raises(REFUSALS):
            pynotify.open(segment_name, create=False)

    def test_bytes_of_the_header(self, segment_name: str, segment_file: Path) -> None:
        """Flipped one at a time, each is refused: a checksum is over all that does not change."""
        header = segment_file.read_bytes()[:4096]
        fixed = header.index(segment_name.encode()) + NAME_SIZE + DATA_DIR_SIZE
        flipped = mmap.mmap(-1, 8)

        def look() -> dict[int, str]:
            outcomes = {}
            for offset in range(fixed):
                flipped[:] = offset.to_bytes(8, "little")
                overwrite(segment_file, offset, bytes([header[offset] ^ 0xFF]))
                outcomes[offset] = attach(segment_name)
                overwrite(segment_file, offset, header[offset : offset + 1])
            return outcomes

        # All in one child: to fork a large process once for each byte took seconds.
        try:
            outcomes = in_child(look)
        except ChildFailed as failed:
            failed.add_note(f"byte {int.from_bytes(flipped[:], 'little')} was flipped")
            raise
        assert set(outcomes.values()) == {"SegmentCorrupt", "LayoutMismatch"}, outcomes
        assert in_child(lambda: attach(segment_name)) == "used"

    def test_another_layout_is_replaced_when_no_process_lives(
        self, segment_name: str, segment_file: Path
    ) -> None:
        """A creating open that finds another layout and no live backend replaces it."""
        overwrite(segment_file, 0, b"\xff" * 4096)
        with pytest.raises(REFUSALS):
            pynotify.open(segment_name, create=False)
        with pynotify.open(segment_name) as engine:
            assert engine.check().ok
            use(engine)

    def test_another_layout_with_live_backends_lists_their_pids(
        self, segment_name: str, segment_file: Path, worker: Worker
    ) -> None:
        """Proved by their locks: nothing in the segment can be believed."""
        with pynotify.connect(segment_name) as conn:
            header = segment_file.read_bytes()[:4096]
            overwrite(segment_file, 0, b"\xff" * 64)
            try:
                kind, text = worker.call(open_elsewhere, segment_name)
                assert kind == "LayoutMismatch"
                assert str(conn.pid) in text
                with pytest.raises(pynotify.OperationalError):
                    pynotify.unlink(segment_name)
            finally:
                overwrite(segment_file, 0, header[:64])

    def test_file_of_garbage_can_be_unlinked(self, segment_name: str, segment_file: Path) -> None:
        segment_file.write_bytes(os.urandom(10_000))
        pynotify.unlink(segment_name)
        assert not segment_file.exists()


def open_elsewhere(name: str) -> tuple[str, str]:
    try:
        pynotify.open(name).close()
    except pynotify.Error as error:
        return type(error).__name__, str(error)
    return "opened", ""


class TestScribbled:
    """A process writes garbage into the segment while others use it."""

    @pytest.mark.parametrize("seed", range(24))
    def test_one_block(self, segment_name: str, segment_file: Path, seed: int) -> None:
        self.scribble(segment_name, segment_file, seed, blocks=1)

    @pytest.mark.parametrize("seed", range(12))
    def test_many_blocks(self, segment_name: str, segment_file: Path, seed: int) -> None:
        self.scribble(segment_name, segment_file, seed, blocks=40)

    @staticmethod
    def scribble(name: str, path: Path, seed: int, blocks: int) -> None:
        chance = random.Random(seed)
        size = path.stat().st_size
        # Most of a segment is its ring; the small tables before it deserve as much attention.
        places = [
            chance.randrange(size if number % 4 == 0 else size // 4) & ~7
            for number in range(blocks)
        ]
        garbage = [chance.choice((chance.randbytes(256), b"\xff" * 64, b"\0" * 512, b"\x01" * 8))
                   for _ in places]  # fmt: skip
        reading, writing = os.pipe()

        def work() -> str:
            os.close(writing)
            with pynotify.open(name, create=False) as engine:
                use(engine)
                with engine.connect() as conn:
                    conn.listen("c")
                    conn.notify_many("c", [f"{number:0700}" for number in range(200)])
                    os.write(told, b".")
                    os.read(reading, 1)  # until the test has scribbled
                    try:
                        conn.poll()
                        use(engine)
                        engine.check()
                        engine.stat()
                    except pynotify.Error as error:
                        return type(error).__name__
                    return "used"

        listened, told = os.pipe()
        child = ForkedChild(work)
        os.close(reading)
        os.close(told)
        assert os.read(listened, 1) == b"."
        for place, data in zip(places, garbage, strict=True):
            overwrite(path, min(place, size - len(data)), data)
        os.close(writing)
        os.close(listened)
        outcome = child.result()
        assert issubclass(getattr(pynotify, outcome, pynotify.Error), pynotify.Error)
        assert in_child(lambda: attach(name))

    def test_poisoned_for_good(self, segment_name: str, segment_file: Path) -> None:
        """Everything after the header is garbage: every look raises, no process goes on."""
        size = segment_file.stat().st_size
        with pynotify.open(segment_name, create=False) as engine:
            overwrite(segment_file, 4096, b"\xa5" * (size - 4096))

            def look() -> list[str]:
                seen = []
                for _ in range(2):
                    try:
                        use(engine)
                        seen.append("used")
                    except pynotify.Error as error:
                        seen.append(type(error).__name__)
                return seen

            assert in_child(look) == ["SegmentCorrupt", "SegmentCorrupt"]
            assert not in_child(lambda: engine.check().ok)


class TestOwnership:
    def test_segment_of_another_user(self, segment_name: str, segment_file: Path) -> None:
        """Another user's name: the file is there, but is not ours."""
        require("root")
        os.chown(segment_file, NOBODY, NOBODY)
        for create in (True, False):
            with pytest.raises(REFUSED) as caught:
                pynotify.open(segment_name, create=create)
            assert str(NOBODY) in str(caught.value)
        assert segment_file.stat().st_uid == NOBODY, "another user's segment was replaced"
        os.chown(segment_file, os.geteuid(), os.getegid())

    def test_each_user_has_a_name_space(
        self, segment_name: str, new_name: Callable[[], str]
    ) -> None:
        require("root")
        only_mine = new_name()

        def as_other_user() -> tuple[bool, list[str]]:
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            with pynotify.connect(segment_name) as conn:
                conn.listen("c")
                conn.notify("c", "x")
                heard = bool(conn.poll())
            names = [info.name for info in pynotify.segments()]
            pynotify.unlink(segment_name)
            return heard, names

        with pynotify.connect(segment_name) as mine, pynotify.connect(only_mine):
            mine.listen("c")
            heard, names = in_child(as_other_user)
            assert heard
            assert segment_name in names
            assert only_mine not in names
            assert mine.poll() == []

    def test_open_to_others(self, segment_name: str, segment_file: Path) -> None:
        """Mode 0600, or another user may have tampered with it."""
        segment_file.chmod(0o666)
        with pytest.raises(REFUSED):
            pynotify.open(segment_name, create=False)

    def test_hard_link(self, segment_name: str, segment_file: Path) -> None:
        second = segment_file.with_name(f"second.{segment_file.name}")
        os.link(segment_file, second)
        try:
            with pytest.raises(REFUSED):
                pynotify.open(segment_name, create=False)
        finally:
            second.unlink()

    def test_symbolic_link(self, segment_name: str, segment_file: Path, tmp_path: Path) -> None:
        elsewhere = tmp_path / "elsewhere"
        elsewhere.write_bytes(segment_file.read_bytes())
        elsewhere.chmod(0o600)
        aside = segment_file.rename(segment_file.with_name(f"aside.{segment_file.name}"))
        segment_file.symlink_to(elsewhere)
        try:
            with pytest.raises((*REFUSED, OSError)):
                pynotify.open(segment_name, create=False)
        finally:
            aside.rename(segment_file)

    def test_engine_under_another_euid(self, segment_name: str) -> None:
        """An Engine used under another euid than it was opened with: InterfaceError."""
        require("root")
        with pynotify.open(segment_name) as engine:

            def as_other_user() -> str:
                os.seteuid(NOBODY)
                try:
                    engine.connect()
                except pynotify.InterfaceError as error:
                    return str(error)
                return "connected"

            assert str(NOBODY) in in_child(as_other_user)

    def test_connection_under_another_euid(self, segment_name: str) -> None:
        """It says so as soon as it can be known: where it waits, or could not signal a sleeper."""
        require("root")

        def sleep() -> str:
            with pynotify.connect(segment_name) as conn:
                conn.listen("c")
                while not conn.wait(PATIENCE):
                    pass
                return conn.poll()[0].payload

        with pynotify.connect(segment_name):
            sleeper = ForkedChild(sleep)
            with pynotify.open(segment_name) as engine:
                wait_until(lambda: any(b.asleep for b in engine.stat().backends if b.channels), "")

            def as_other_user() -> list[str]:
                said = []
                with pynotify.connect(segment_name) as own:
                    own.listen("d")
                    own.poll()
                    os.setresuid(NOBODY, NOBODY, NOBODY)
                    for call in (
                        lambda: own.notify("c", "1"),  # committed, but the sleeper not signalled
                        own.poll,
                        lambda: own.notify("c", "2"),
                        lambda: own.listen("e"),
                        lambda: own.wait(0.001),
                        own.fileno,
                    ):
                        try:
                            call()
                            said.append("")
                        except pynotify.InterfaceError as error:
                            said.append(str(error))
                return said

            first, *others = in_child(as_other_user)
            assert first == ""
            for text in others:
                assert f"user {os.geteuid()}" in text, others
                assert f"user {NOBODY}" in text
                assert "connect after changing the user" in text
        assert sleeper.result() == "1"

    def test_connection_back_under_its_euid(self, segment_name: str) -> None:
        require("root")

        def change() -> str:
            with pynotify.connect(segment_name) as conn:
                conn.listen("c")
                os.seteuid(NOBODY)
                try:
                    conn.wait(0.001)
                except pynotify.InterfaceError as error:
                    os.seteuid(0)
                    conn.notify("c", "1")
                    assert [n.payload for n in conn.poll()] == ["1"]
                    return str(error)
            return "waited"

        assert str(NOBODY) in in_child(change)


NO_ROOM = """
import os, sys, pynotify
if not os.path.ismount("/dev/shm"):
    sys.exit("not a mount")
try:
    pynotify.open("big")
except pynotify.SegmentFull as error:
    print(type(error).__name__, len(str(error)) > 10)
left = [name for name in os.listdir("/dev/shm") if name.startswith("pynotify.")]
print(left)
try:
    with pynotify.connect("small", queue_pages=64, max_backends=4, max_channels=16,
                          max_subscriptions=16) as conn:
        conn.listen("c")
        conn.notify("c", "x")
        print(conn.poll()[0].payload)
except pynotify.SegmentFull:
    print("x")
"""


def test_no_room_in_shared_memory(tmp_path: Path) -> None:
    """SegmentFull at once, no SIGBUS later, and nothing is left behind."""
    script = tmp_path / "no_room.py"
    script.write_text(NO_ROOM)
    command = f"mount -t tmpfs -o size=1m tmpfs /dev/shm && exec '{sys.executable}' '{script}'"
    done = run_unshared("-m", "sh", "-c", command)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["SegmentFull True", "[]", "x"]


def test_shared_memory_shrunk_by_file_size_limit(segment_name: str) -> None:
    """RLIMIT_FSIZE: an error, not SIGXFSZ."""

    def limited() -> str:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
        try:
            pynotify.open(segment_name)
        except (pynotify.Error, OSError) as error:
            return type(error).__name__
        return "opened"

    assert in_child(limited) != "opened"
    assert not (SHARED_MEMORY / f"pynotify.{os.geteuid()}.{segment_name}").exists()


def test_no_descriptors_left(segment_name: str) -> None:
    """EMFILE: a clean error, and all works again when there are some."""
    with pynotify.open(segment_name) as engine:

        def starved() -> list[str]:
            used = len(os.listdir("/proc/self/fd"))
            soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
            seen = []
            for spare in range(8):
                resource.setrlimit(resource.RLIMIT_NOFILE, (used + spare, hard))
                try:
                    use(engine)
                    seen.append("used")
                except (pynotify.Error, OSError) as error:
                    seen.append(type(error).__name__)
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            use(engine)
            return seen

        outcomes = in_child(starved)
        assert len(outcomes) == 8
        assert engine.check().ok
        assert engine.stat().backends == []


WRONG_TYPES: list[Callable[[pynotify.Connection], object]] = [
    lambda conn: conn.notify_many("c", b"bytes"),
    lambda conn: conn.notify_many("c", None),
    lambda conn: conn.notify_many("c", 7),
    lambda conn: conn.notify("c", "x", "y"),
    lambda conn: conn.savepoint(7),
    lambda conn: conn.listen(["a", "b"]),
]


@pytest.mark.parametrize("number", range(len(WRONG_TYPES)))
def test_wrong_types(conn: pynotify.Connection, number: int) -> None:
    conn.begin()
    with pytest.raises(TypeError):
        WRONG_TYPES[number](conn)
    conn.rollback()
