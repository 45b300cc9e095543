"""What others on the host may not do, beyond test_segments.py and test_bad_input.py."""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import pynotify
from forking import ChildFailed, ForkedChild
from requirement import require

SHARED_MEMORY = Path("/dev/shm")
NOBODY = 65534


def file_of(name: str) -> Path:
    return SHARED_MEMORY / f"pynotify.{os.geteuid()}.{name}"


def as_other_user(action: Callable[[], str]) -> str:
    def run() -> str:
        os.setgid(NOBODY)
        os.setuid(NOBODY)
        return action()

    return ForkedChild(run).result()


@pytest.fixture(params=[0, 0o777, 0o200])
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    old = os.umask(request.param)
    yield request.param
    os.umask(old)


# ---- segments --------------------------------------------------------------------------------


def test_another_user_cannot_open_the_file(segment_name: str) -> None:
    require("root")

    def read() -> str:
        try:
            os.close(os.open(SHARED_MEMORY / f"pynotify.0.{segment_name}", os.O_RDONLY))
        except PermissionError:
            return "refused"
        return "opened"

    with pynotify.open(segment_name):
        assert as_other_user(read) == "refused"


def test_a_link_that_another_user_planted(segment_name: str, tmp_path: Path) -> None:
    """Squatted before the segment was made: neither followed nor replaced, and nothing written."""
    require("root")
    victim = tmp_path / "victim"
    victim.write_text("precious")

    def plant() -> str:
        file_of_root = SHARED_MEMORY / f"pynotify.0.{segment_name}"
        file_of_root.symlink_to(victim)
        return "planted"

    path = file_of(segment_name)
    try:
        assert as_other_user(plant) == "planted"
        with pytest.raises((pynotify.Error, OSError)):
            pynotify.open(segment_name)
        assert path.is_symlink()
        assert victim.read_text() == "precious"
    finally:
        path.unlink()


def test_a_file_that_another_user_planted(segment_name: str) -> None:
    """It is refused by its owner, which is named; also when all users may write to it."""
    require("root")

    def plant() -> str:
        path = SHARED_MEMORY / f"pynotify.0.{segment_name}"
        path.write_bytes(bytes(1 << 20))
        path.chmod(0o666)
        return "planted"

    path = file_of(segment_name)
    try:
        assert as_other_user(plant) == "planted"
        with pytest.raises(pynotify.OperationalError, match=str(NOBODY)):
            pynotify.open(segment_name)
        assert path.read_bytes() == bytes(1 << 20)
    finally:
        path.unlink()


@pytest.mark.parametrize("kind", ["fifo", "file"])
def test_what_another_user_planted_is_nothing_of_ours(segment_name: str, kind: str) -> None:
    """No call replaces it, removes it, lists it, or fails with anything but an error of ours."""
    require("root")
    path = file_of(segment_name)

    def plant() -> str:
        if kind == "fifo":
            os.mkfifo(path, 0o666)
        else:
            path.touch(0o600)
        return "planted"

    try:
        assert as_other_user(plant) == "planted"
        for call in (
            lambda: pynotify.open(segment_name),
            lambda: pynotify.open(segment_name, create=False),
            lambda: pynotify.unlink(segment_name),
            lambda: pynotify.unlink(segment_name, force=True),
        ):
            with pytest.raises(pynotify.OperationalError, match=f"belongs to user {NOBODY}"):
                call()
        assert segment_name not in [info.name for info in pynotify.segments()]
        assert path.exists()
    finally:
        path.unlink()


def test_a_fifo_of_our_own(segment_name: str) -> None:
    os.mkfifo(file_of(segment_name))
    try:
        with pytest.raises(pynotify.LayoutMismatch, match="not a plain file"):
            pynotify.open(segment_name)
    finally:
        file_of(segment_name).unlink()


def test_lock_files_that_another_user_planted(segment_name: str) -> None:
    """It holds a lock in one: it does not count as a user of the segment."""
    require("root")
    pynotify.open(segment_name, queue_pages=64).close()
    path = SHARED_MEMORY / f"pynotify-lock.{os.geteuid()}.{segment_name}.0123456789abcdef.0"
    ready, told = os.pipe()
    go_on, over = os.pipe()

    def squat() -> str:
        os.close(over)
        os.setgid(NOBODY)
        os.setuid(NOBODY)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        os.fchmod(descriptor, 0o666)
        fcntl.lockf(descriptor, fcntl.LOCK_EX, 1, 0)
        os.write(told, b"!")
        os.read(go_on, 1)
        path.unlink()
        return "done"

    squatter = ForkedChild(squat)
    try:
        assert os.read(ready, 1) == b"!"
        pynotify.open(segment_name, queue_pages=128).close()
        pynotify.unlink(segment_name)
    finally:
        os.close(over)
        path.unlink(missing_ok=True)
        for descriptor in (ready, told, go_on):
            os.close(descriptor)
    with contextlib.suppress(ChildFailed):  # unlinked already
        squatter.result()


def test_a_lock_file_that_another_user_plants_beforehand(segment_name: str) -> None:
    """The name of the second one is known from the first one's; another is made in its place."""
    require("root")
    ready, told = os.pipe()
    wait, go_on = os.pipe()

    def connect_often() -> list[str]:
        os.setgid(NOBODY - 1)
        os.setuid(NOBODY - 1)
        with pynotify.open(segment_name, max_backends=70) as engine, engine.connect() as first:
            os.write(told, b"!")
            os.read(wait, 1)
            conns = [engine.connect() for _ in range(69)]
            conns[-1].listen("c")
            again = ForkedChild(lambda: len(pynotify.open(segment_name).stat().backends))
            assert again.result() == 70
            first.notify("c", "1")
            payloads = [n.payload for n in conns[-1].poll()]
            for conn in conns:
                conn.close()
        pynotify.unlink(segment_name)
        return payloads

    child = ForkedChild(connect_often)
    planted = None
    try:
        assert os.read(ready, 1) == b"!"
        (lock_file,) = SHARED_MEMORY.glob(f"pynotify-lock.*.{segment_name}.*")
        planted = lock_file.with_suffix(".1")
        planted.touch()
        os.chown(planted, NOBODY, NOBODY)
        os.write(go_on, b"!")
        assert child.result() == ["1"]
        assert list(SHARED_MEMORY.glob(f"pynotify-lock.*.{segment_name}.*")) == [planted]
    finally:
        if planted is not None:
            planted.unlink()
        for descriptor in (ready, told, wait, go_on):
            os.close(descriptor)


def test_lock_files_under_any_umask(segment_name: str, umask: int) -> None:
    with pynotify.connect(segment_name) as conn:
        conn.listen("c")
        files = list(SHARED_MEMORY.glob(f"pynotify-lock.*.{segment_name}.*"))
        assert files
        assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o600}, oct(umask)


# ---- latency logs ------------------------------------------------------------------------------


def log(name: str, directory: Path) -> list[Path]:
    """The files of a connection that has written one message and read it."""
    with pynotify.open(name) as engine, engine.connect(latency_log=directory) as conn:
        conn.listen("c")
        conn.notify("c", "x")
        assert len(conn.poll()) == 1
    return list(directory.glob("*.pynlog"))


def test_log_files_under_any_umask(segment_name: str, tmp_path: Path, umask: int) -> None:
    directory = tmp_path / "logs"
    directory.mkdir()
    directory.chmod(0o700)
    (path,) = log(segment_name, directory)
    assert stat.S_IMODE(path.stat().st_mode) & 0o177 == 0, oct(umask)


def test_the_directory_that_a_log_makes(segment_name: str, tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        assert log(segment_name, tmp_path / "new")
    finally:
        os.umask(old)
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o700


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o1777])
def test_a_log_directory_that_others_may_write_to(
    segment_name: str, tmp_path: Path, mode: int
) -> None:
    directory = tmp_path / "logs"
    directory.mkdir()
    directory.chmod(mode)
    with pytest.raises(pynotify.OperationalError, match="others may write to it"):
        log(segment_name, directory)
    assert not list(directory.iterdir())
    directory.chmod(0o755)
    assert log(segment_name, directory)


def test_a_log_directory_of_another_user(segment_name: str, tmp_path: Path) -> None:
    require("root")
    directory = tmp_path / "logs"
    directory.mkdir(mode=0o700)
    os.chown(directory, NOBODY, NOBODY)
    with pytest.raises(pynotify.OperationalError, match=f"must belong to user {os.geteuid()}"):
        log(segment_name, directory)
    assert not list(directory.iterdir())


def test_a_link_to_a_log_directory(segment_name: str, tmp_path: Path) -> None:
    """Our own is followed, another user's is not, though the directory is ours."""
    require("root")
    directory, link = tmp_path / "logs", tmp_path / "link"
    directory.mkdir(mode=0o700)
    link.symlink_to(directory)
    os.chown(link, NOBODY, NOBODY, follow_symlinks=False)
    with pytest.raises(pynotify.OperationalError, match="or made the link"):
        log(segment_name, link)
    assert not list(directory.iterdir())
    os.chown(link, os.geteuid(), os.getegid(), follow_symlinks=False)
    assert log(segment_name, link)


def test_a_log_file_whose_name_is_taken(segment_name: str, tmp_path: Path) -> None:
    """A link of that name: neither followed nor written to; the log takes another name."""
    directory = tmp_path / "logs"
    directory.mkdir(mode=0o700)
    victim = tmp_path / "victim"
    victim.write_text("precious")

    def twice() -> int:
        (first,) = log(segment_name, directory)
        front, number, suffix = first.name.rsplit(".", 2)
        following = directory / f"{front}.{int(number) + 1}.{suffix}"
        following.symlink_to(victim)
        log(segment_name, directory)
        return len(list(directory.iterdir()))

    assert ForkedChild(twice).result() == 3
    assert victim.read_text() == "precious"
