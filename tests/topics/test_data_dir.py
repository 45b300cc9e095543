"""One log of durable topics, one segment: the second one of that name is kept out."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
import socket
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection as Pipe
from pathlib import Path

import pytest
from consuming import PATIENCE

import pynotify
from namespaces import run_on_a_small_disk
from pynotify.cli.doctor import topics
from pynotify.cli.doctor.finding import Level
from receiving import wait_until

SPAWN = multiprocessing.get_context("spawn")
SHM = Path("/dev/shm")


class Host:
    """A segment of the name, or none, and others that were moved out of its way."""

    def __init__(self, name: str, data_dir: Path) -> None:
        self.name = name
        self._data_dir = str(data_dir)
        self._file = SHM / f"pynotify.{os.geteuid()}.{name}"
        self._opened: list[pynotify.Connection] = []

    def connect(self) -> pynotify.Connection:
        self._opened.append(pynotify.connect(self.name, data_dir=self._data_dir))
        return self._opened[-1]

    def topic(self) -> pynotify.Topic:
        return self.connect().topic("t", durable=True, fsync="always")

    def close(self) -> None:
        for conn in self._opened:
            conn.close()
        self._opened.clear()

    def move(self, old: str, new: str) -> None:
        """As if another host had another /dev/shm."""
        self._aside(old).rename(self._aside(new))

    def _aside(self, label: str) -> Path:
        return self._file.with_name(self._file.name + label)

    def remove(self) -> None:
        self.close()
        for path in SHM.glob(self._file.name + ".*"):
            path.unlink()


@pytest.fixture
def host(tmp_path: Path, new_name: Callable[[], str]) -> Iterator[Host]:
    made = Host(new_name(), tmp_path)
    yield made
    made.remove()


def depth(topic: pynotify.Topic) -> int:
    return topic.stats().unfinished


def test_a_second_segment_is_refused_while_the_first_is_used(host: Host) -> None:
    topic = host.topic()
    topic.publish("one")
    host.connect().close()  # another connection of the process keeps nothing open
    host.move("", ".first")
    with pytest.raises(pynotify.DataDirInUse) as caught:
        host.topic()
    assert caught.value.sqlstate == "55006"
    assert f"process {os.getpid()} on host {socket.gethostname()}" in str(caught.value)
    assert caught.value.hint
    with pytest.raises(pynotify.DataDirInUse):  # it would read the log that is there
        host.connect().topic("not-durable")
    topic.publish("two")
    assert depth(topic) == 2
    host.close()
    assert depth(host.topic()) == 2


def test_a_segment_whose_log_was_taken_over_writes_no_more(host: Host) -> None:
    host.topic().publish("one")
    host.close()
    host.move("", ".first")
    host.topic().publish("two")
    host.close()
    host.move("", ".second")
    host.move(".first", "")
    with pytest.raises(pynotify.DataDirInUse, match="taken over"):
        host.topic()
    host.close()
    pynotify.unlink(host.name)
    assert depth(host.topic()) == 2


def test_a_segment_that_was_unlinked_holds_nothing(host: Host) -> None:
    host.topic().publish("one")
    pynotify.unlink(host.name, force=True)
    topic = host.topic()
    assert depth(topic) == 1


def _hold(name: str, data_dir: str, pipe: Pipe, fork: bool) -> None:
    topic = pynotify.connect(name, data_dir=data_dir).topic("t", durable=True, fsync="always")
    topic.publish("one")
    if fork and (child := os.fork()) != 0:
        pipe.send(child)
    elif not fork:
        pipe.send(0)
    signal.pause()


@pytest.mark.parametrize("fork", [False, True])
def test_a_killed_process_holds_nothing(host: Host, tmp_path: Path, fork: bool) -> None:
    """Nor does a child that it has forked, which has a copy of its descriptors."""
    ours, theirs = SPAWN.Pipe()
    holder = SPAWN.Process(target=_hold, args=(host.name, str(tmp_path), theirs, fork))
    holder.start()
    theirs.close()
    assert ours.poll(PATIENCE)
    child = ours.recv()
    try:
        host.move("", ".first")
        with pytest.raises(pynotify.DataDirInUse, match=f"process {holder.pid} "):
            host.topic()
        holder.kill()
        # Not join(): it waits for the end of a pipe that the child has, too.
        wait_until(lambda: holder.exitcode is not None, "the holder is dead")
        assert depth(host.topic()) == 1
    finally:
        holder.kill()
        if child:
            os.kill(child, signal.SIGKILL)
        holder.join(PATIENCE)
        holder.close()
        ours.close()


def _log_file(host: Host, tmp_path: Path) -> Path:
    return max((tmp_path / host.name).glob("log.*"), key=lambda file: file.stat().st_size)


def _flip(file: Path, at: int) -> None:
    raw = bytearray(file.read_bytes())
    raw[at] ^= 1
    file.write_bytes(raw)


def _end(host: Host) -> None:
    host.close()
    pynotify.unlink(host.name)


def test_a_torn_move_has_not_happened(host: Host, tmp_path: Path) -> None:
    """Its FINISHED is on the disk and its PUBLISH is not: the message is where it was."""
    conn = host.connect()
    here, there = (conn.topic(x, durable=True, fsync="always") for x in ("here", "there"))
    work = here.channel("work")
    there.channel("work")
    here.publish("precious")
    consumer = work.consumer()
    message = consumer.get(PATIENCE)
    with conn.transaction():
        there.publish(b"moved" + b"x" * 9000)
        message.finish()
    assert (depth(here), depth(there)) == (0, 1)
    consumer.close()
    _end(host)
    file = _log_file(host, tmp_path)
    _flip(file, file.read_bytes().index(b"moved") + 5000)
    conn = host.connect()
    assert (depth(conn.topic("here")), depth(conn.topic("there"))) == (1, 0)


def test_damage_to_a_log_is_told(
    host: Host, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Once, at the first `topic` after `open`; then by `TopicStats.corrupt`, and `doctor`."""
    topic = host.topic()
    for i in range(10):
        topic.publish(b"message %d " % i * 20)
    assert topic.stats().corrupt == 0
    _end(host)
    file = _log_file(host, tmp_path)
    _flip(file, file.read_bytes().index(b"message 4") + 30)
    topic = host.topic()
    stats = topic.stats()
    assert (stats.unfinished, stats.corrupt) == (9, 1)
    host.topic()
    warnings = [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]
    assert len([text for text in warnings if "1 of its records could not be read" in text]) == 1
    assert str(tmp_path / host.name) in warnings[0]
    with pynotify.open(host.name) as engine:
        findings = list(topics.check(host.name, engine.topics()))
    assert any(f.level is Level.PROBLEM and "could not be read" in f.text for f in findings)


def test_a_log_that_has_lost_its_beginning_is_damaged(host: Host, tmp_path: Path) -> None:
    """With the marks in the file's head, which say how many records there were."""
    topic = host.topic()
    for i in range(10):
        topic.publish(b"message %d " % i * 20)
    _end(host)
    file = _log_file(host, tmp_path)
    content = file.read_bytes()
    middle = content.index(b"message 4")
    file.write_bytes(bytes(middle) + content[middle:])
    stats = host.topic().stats()
    assert stats.unfinished == 0
    assert stats.corrupt > 0


@pytest.mark.parametrize("name", [b"unmistakable-topic", b"unmistakable-channel"])
def test_a_damaged_name_is_had_again(host: Host, tmp_path: Path, name: bytes) -> None:
    """Wherever it stands in the log, each time one."""
    topic = host.connect().topic("unmistakable-topic", durable=True, fsync="always")
    topic.channel("unmistakable-channel")
    for i in range(3):
        topic.publish(b"message %d" % i)
    _end(host)
    file = _log_file(host, tmp_path)
    raw = file.read_bytes()
    places = [at for at in range(len(raw)) if raw.startswith(name, at)]
    assert len(places) > 1
    for at in places:
        for other in file.parent.glob("log.*"):
            other.unlink()
        file.write_bytes(raw)
        file.chmod(0o600)
        _flip(file, at)
        conn = host.connect()
        assert conn.topics() == ["unmistakable-topic"]
        topic = conn.topic("unmistakable-topic")
        assert topic.channel("unmistakable-channel").stats().depth == 3
        _end(host)


FULL = """
import subprocess, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import pynotify
name, data_dir = sys.argv[2:]
conn = pynotify.connect(name, data_dir=data_dir)
topic = conn.topic("t", durable=True, fsync="none")
topic.channel("c")
published = 0
try:
    while True:
        topic.publish(b"x" * 1000)
        published += 1
except pynotify.DiskFull as error:
    assert error.sqlstate == "53100" and data_dir in str(error), error
files = sorted(Path(data_dir, name).glob("log.*"))
subprocess.run(["mount", "-o", "remount,size=8m", data_dir], check=True)
topic.publish(b"again")
assert sorted(Path(data_dir, name).glob("log.*")) == files  # it was not written again
conn.close()
pynotify.unlink(name)
conn = pynotify.connect(name, data_dir=data_dir)
print(conn.topic("t").stats().unfinished - published)
conn.close()
"""


def test_on_a_full_disk_nothing_has_happened(host: Host, tmp_path: Path) -> None:
    """The log goes on in its file when there is room again."""
    assert run_on_a_small_disk(host.name, tmp_path, FULL, size="2m") == "1"


def log_of_100(host: Host) -> tuple[pynotify.Connection, pynotify.Topic]:
    """Messages."""
    conn = host.connect()
    topic = conn.topic("t", durable=True, fsync="always")
    topic.channel("c")
    topic.publish_many([b"before %d" % i for i in range(100)])
    return conn, topic


@pytest.mark.parametrize("what", ["file", "files", "directory", "cut"])
def test_a_log_that_was_removed_is_written_again(
    host: Host, tmp_path: Path, what: str, caplog: pytest.LogCaptureFixture
) -> None:
    """By something that cleans up, under the running system."""
    conn, topic = log_of_100(host)
    directory = tmp_path / host.name
    if what == "directory":
        shutil.rmtree(directory)
    elif what == "cut":
        os.truncate(_log_file(host, tmp_path), 0)
    else:
        for file in directory.glob("log.*" if what == "file" else "*"):
            file.unlink()
    topic.publish(b"after")
    conn.notify("anything")  # a commit tells what there is to be told
    assert "were removed under the running system" in caplog.text
    _end(host)
    conn = host.connect()
    assert conn.topic("t").channel("c").stats().depth == 101
    conn.close()


def test_a_directory_that_was_removed_while_none_used_it_is_asked_for(
    host: Host, tmp_path: Path
) -> None:
    """Not made: it may be that of a container without the volume that the others have."""
    host.topic().publish(b"before")
    host.close()
    directory = tmp_path / host.name
    shutil.rmtree(directory)
    with pytest.raises(pynotify.OperationalError, match="is not there") as caught:
        host.topic()
    assert caught.value.hint is not None
    assert "make it again, with mode 0700" in caught.value.hint
    directory.mkdir(mode=0o700)
    host.topic().publish(b"after")
    _end(host)
    assert depth(host.topic()) == 2


@pytest.mark.parametrize("what", ["moved", "copied"])
def test_a_log_that_was_replaced_is_written_again(
    host: Host, tmp_path: Path, what: str, caplog: pytest.LogCaptureFixture
) -> None:
    """By an administrator, under the running system: what was written to the old file is gone."""
    conn, topic = log_of_100(host)
    directory, aside = tmp_path / host.name, tmp_path / "aside"
    directory.rename(aside)
    if what == "copied":
        shutil.copytree(aside, directory)
    published = 100

    def told() -> bool:
        nonlocal published
        published += topic.publish(b"after") != ""
        conn.notify("anything")  # a commit tells what there is to be told
        return "was written again from memory" in caplog.text

    wait_until(told, "the log was written again")
    assert (directory / "lock").exists()
    _end(host)
    conn = host.connect()
    assert conn.topic("t").channel("c").stats().depth == published
    conn.close()


@pytest.mark.parametrize("copied", [False, True])
def test_a_log_that_was_replaced_by_anothers_is_not_written(
    host: Host, tmp_path: Path, copied: bool
) -> None:
    """The lock in the directory that was moved away says nothing of this one."""
    topic = host.topic()
    channel = topic.channel("c")
    topic.publish(b"ours")
    directory, aside = tmp_path / host.name, tmp_path / "aside"
    directory.rename(aside)
    if copied:
        shutil.copytree(aside, directory)
    host.move("", ".here")
    theirs = host.topic()
    theirs.publish(b"theirs")

    def refused() -> bool:
        try:
            topic.publish(b"ours again")
        except pynotify.DataDirInUse:
            return True
        return False

    wait_until(refused, "the directory is another segment's")
    with channel.consumer() as consumer, pytest.raises(pynotify.SyncFailed, match="another seg"):
        consumer.get(PATIENCE).finish()  # it has happened, so the log is to be written again
    for _ in range(3):
        assert refused()
    _end(host)
    assert depth(host.topic()) == 1 + copied


def _take_over(name: str, data_dir: str, pipe: Pipe) -> None:
    topic = pynotify.connect(name, data_dir=data_dir).topic("t", durable=True, fsync="always")
    topic.publish("theirs")
    pipe.send(None)
    signal.pause()


def test_a_segment_without_a_name_makes_no_file_in_the_place_of_anothers(
    host: Host, tmp_path: Path
) -> None:
    """Which has gone on in the log since, and has removed what it had compacted."""
    topic = host.topic()
    topic.publish("ours")
    file = _log_file(host, tmp_path)
    (SHM / f"pynotify.{os.geteuid()}.{host.name}").unlink()  # as systemd-logind may
    ours, pipe = SPAWN.Pipe()
    other = SPAWN.Process(target=_take_over, args=(host.name, str(tmp_path), pipe))
    other.start()
    try:
        assert ours.poll(PATIENCE)
        file.unlink()
        with pytest.raises(pynotify.SegmentUnlinked):
            topic.publish("ours again")
    finally:
        other.kill()
        other.join(PATIENCE)
        other.close()
        ours.close()
        pipe.close()
    _end(host)
    assert depth(host.topic()) == 1
