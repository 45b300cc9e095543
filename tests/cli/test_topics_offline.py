"""`pynotify topics fsck` and `export`: a data directory is read without its segment."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from console import run

import pynotify


class Logged:
    """A data directory, and the segment whose durable topics it has."""

    def __init__(self, name: str, data_dir: Path) -> None:
        self.name = name
        self.data_dir = data_dir
        self.log = data_dir / name
        with self.connect() as conn:
            topic = conn.topic("orders", durable=True, fsync="none")
            topic.channel("billing")
            topic.channel("shipping")
            for i in range(10):
                topic.publish(b"message %d " % i * 20, delay=3600 if i == 9 else 0)
            with topic.channel("shipping").consumer() as consumer:
                for _ in range(4):
                    consumer.get(5).finish()

    def connect(self, **options: Any) -> pynotify.Connection:
        return pynotify.connect(self.name, data_dir=str(self.data_dir), **options)

    def end(self) -> None:
        pynotify.unlink(self.name)

    def reopen(self) -> None:
        """As after a reboot: it begins another file."""
        self.end()
        with self.connect() as conn:
            conn.topic("orders")

    def files(self) -> list[Path]:
        return sorted(self.log.glob("log.*"))


@pytest.fixture
def logged(tmp_path: Path, new_name: Callable[[], str]) -> Iterator[Logged]:
    data_dir = tmp_path / "data"
    data_dir.mkdir(mode=0o700)
    yield Logged(new_name(), data_dir)


def fsck(path: Path, status: int) -> dict[str, Any]:
    """The only log there; nothing in the directory may change."""
    before = snapshot(path)
    done = run("topics", "fsck", str(path), "--json")
    assert done.status == status, done
    assert snapshot(path) == before
    document: dict[str, Any] = json.loads(done.out)
    assert document["damaged"] == (status == 1)
    (log,) = document["logs"]
    return dict(log)


def snapshot(path: Path) -> list[tuple[str, int, bytes]]:
    files = [each for each in sorted(path.rglob("*")) if each.is_file()]
    return [(str(each), each.stat().st_mtime_ns, each.read_bytes()) for each in files]


def damage(log: dict[str, Any]) -> list[tuple[str, str]]:
    return [(each["file"], each["reason"]) for each in log["damage"]]


def flip(file: Path, at: int) -> None:
    raw = bytearray(file.read_bytes())
    raw[at] ^= 1
    file.write_bytes(raw)


def place(file: Path, text: bytes) -> int:
    """Where the body that begins so is, of which there is one."""
    raw = file.read_bytes()
    assert raw.count(text * 3) >= 1
    return raw.index(text * 3)


def test_what_is_there_is_counted(logged: Logged) -> None:
    for ended in (False, True):
        if ended:
            logged.end()
        log = fsck(logged.data_dir, 0)
        counts = {each["channel"]: each for each in log["counts"]}
        assert {each["topic"] for each in counts.values()} == {"orders"}
        assert [counts["billing"][key] for key in ("messages", "deferred")] == [10, 1]
        assert [counts["shipping"][key] for key in ("messages", "deferred")] == [6, 1]
        assert counts["billing"]["bytes"] == 10 * 20 * len("message 0 ")
        assert (log["messages"], log["holder"], log["damage"]) == (10, None, [])
    assert fsck(logged.log, 0)["messages"] == 10  # the directory of the segment itself
    page = run("topics", "fsck", str(logged.data_dir)).out
    assert f"{logged.log}: 10 messages, 2,000 bytes" in page
    assert "billing" in page


def test_a_directory_in_use_is_refused(logged: Logged) -> None:
    with logged.connect() as conn:
        conn.topic("orders")
        done = run("topics", "fsck", str(logged.data_dir))
        assert done.status == 2
        assert f"process {os.getpid()} on host {os.uname().nodename}" in done.err
        assert "--live" in done.err
        assert run("topics", "export", str(logged.data_dir)).status == 2
        done = run("topics", "fsck", str(logged.data_dir), "--live")
        assert done.status == 0
        assert f"process {os.getpid()}" in done.err
        assert "10 messages" in done.out
    assert run("topics", "fsck", str(logged.data_dir)).status == 0


def test_a_flipped_bit_in_a_body(logged: Logged) -> None:
    logged.end()
    (file,) = logged.files()
    at = place(file, b"message 4 ")
    flip(file, at + 7)
    log = fsck(logged.data_dir, 1)
    (found,) = log["damage"]
    assert (found["file"], found["reason"], found["records"]) == (file.name, "spoilt", 1)
    assert at - 200 < found["offset"] < at
    assert log["messages"] == 9
    page = run("topics", "fsck", str(logged.data_dir))
    assert f"{file.name} at {found['offset']:,}: a record with other content" in page.out
    with logged.connect() as conn:  # as the next segment finds it
        stats = conn.topic("orders").stats()
        assert (stats.unfinished, stats.corrupt) == (9, 1)


def test_a_flipped_bit_in_a_header(logged: Logged) -> None:
    logged.end()
    (file,) = logged.files()
    flip(file, place(file, b"message 4 ") + 7)
    (found,) = fsck(logged.data_dir, 1)["damage"]
    flip(file, found["offset"] + 4)
    (found,) = fsck(logged.data_dir, 1)["damage"]
    assert (found["reason"], found["records"]) == ("unreadable", 1)


def test_a_torn_transaction(logged: Logged) -> None:
    with logged.connect() as conn:
        topic = conn.topic("orders")
        with conn.transaction():
            for i in range(3):
                topic.publish(b"together %d " % i * 20)
        topic.publish("behind")
    (file,) = logged.files()
    assert fsck(logged.data_dir, 0)["messages"] == 14
    flip(file, place(file, b"together 1 "))
    log = fsck(logged.data_dir, 1)
    assert sorted(each["reason"] for each in log["damage"]) == ["spoilt", "torn", "torn"]
    assert log["messages"] == 11


def test_the_end_of_a_write_that_was_killed_is_no_damage(logged: Logged) -> None:
    logged.end()
    (file,) = logged.files()
    os.truncate(file, file.stat().st_size - 20)
    (found,) = fsck(logged.data_dir, 0)["damage"]
    assert found["reason"] == "unfinished"
    assert found["offset"] + found["bytes"] == file.stat().st_size
    assert "no damage" in run("topics", "fsck", str(logged.data_dir)).out


def test_a_damaged_end_is_told(logged: Logged) -> None:
    """An end that no killed process leaves."""
    logged.end()
    (file,) = logged.files()
    flip(file, file.stat().st_size - 20)
    (found,) = fsck(logged.data_dir, 1)["damage"]
    assert found["reason"] == "bad end"
    file.write_bytes(file.read_bytes()[:-20] + bytes(5000))
    (found,) = fsck(logged.data_dir, 1)["damage"]
    assert (found["reason"], found["bytes"] > 5000) == ("bad end", True)


def test_missing_files(logged: Logged) -> None:
    for _ in range(2):
        logged.reopen()
    logged.end()
    files = logged.files()
    assert len(files) == 3
    assert fsck(logged.data_dir, 0)["messages"] == 10
    aside = logged.data_dir.parent / "aside"
    for lost, found in ((0, ["missing"]), (1, ["missing", "unreadable"])):
        files[lost].rename(aside)
        log = fsck(logged.data_dir, 1)
        assert [reason for _, reason in damage(log)] == found
        assert damage(log)[0][0] == files[lost].name
        aside.rename(files[lost])
    for file in files:
        file.unlink()
    assert fsck(logged.data_dir, 1)["no_files"]
    (logged.log / "lock").unlink()
    assert run("topics", "fsck", str(logged.data_dir)).status == 0


def test_the_first_file_is_missed_when_it_is_opened(logged: Logged) -> None:
    logged.reopen()
    logged.end()
    logged.files()[0].unlink()
    with logged.connect() as conn:
        assert conn.topic("orders").stats().corrupt == 1


def test_files_that_compaction_has_removed_are_not_missed(logged: Logged) -> None:
    with logged.connect() as conn:
        topic = conn.topic("orders")
        with topic.channel("shipping").consumer() as consumer:
            topic.channel("billing").delete()
            while int(logged.files()[0].name[-16:], 16) == 1:
                topic.publish_many([bytes(60_000)] * 10)
                for _ in range(10):
                    consumer.get(5).finish()
    log = fsck(logged.data_dir, 0)
    assert log["damage"] == []
    logged.end()
    with logged.connect() as conn:
        assert conn.topic("orders").stats().corrupt == 0


def test_damage_to_overflow_is_told(logged: Logged) -> None:
    logged.end()
    with logged.connect(topic_memory=128 << 10) as conn:
        topic = conn.topic("plain")
        topic.channel("c")
        for i in range(500):
            topic.publish(b"message %d " % i * 40)
        (file,) = logged.data_dir.glob("pynotify.*.d.*")
        document = json.loads(run("topics", "fsck", str(logged.data_dir), "--live", "--json").out)
        (queue,) = document["overflow"]
        assert (queue["segment"], queue["files"], queue["damage"]) == (logged.name, 1, [])
        flip(file, place(file, b"message 499 ") - 2000)
        done = run("topics", "fsck", str(logged.data_dir), "--live", "--json")
        (queue,) = json.loads(done.out)["overflow"]
        assert (done.status, len(queue["damage"])) == (1, 1)
        assert queue["damage"][0]["file"] == file.name


def test_what_cannot_be_read(tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir(mode=0o700)
    done = run("topics", "fsck", str(empty))
    assert (done.status, done.out) == (0, f"{empty}: no log of durable topics, no overflow\n")
    assert run("topics", "fsck", str(tmp_path / "none")).status == 2
    log = empty / "app"
    log.mkdir()
    (log / "lock").touch(mode=0o600)
    log.chmod(0o777)
    done = run("topics", "fsck", str(empty))
    assert done.status == 2
    assert "others may write to it" in done.err
    (empty / "file").touch()
    assert run("topics", "export", str(empty / "file")).status == 2


def test_export(logged: Logged) -> None:
    with logged.connect() as conn:
        conn.topic("orders").publish(b"\xff", headers={"a": "b"})
        alone = conn.topic("alone", durable=True).publish("nobody's")
    done = run("topics", "export", str(logged.data_dir))
    assert (done.status, done.err) == (0, "")
    lines = [json.loads(line) for line in done.out.splitlines()]
    assert len(lines) == 12
    first, raw = lines[0], lines[-2]
    assert (first["topic"], first["body"]) == ("orders", "message 0 " * 20)
    assert [each["channel"] for each in first["channels"]] == ["billing"]
    assert first["due_ns"] == 0
    assert lines[9]["due_ns"] > lines[9]["published_ns"] + 3599 * 10**9
    assert (base64.b64decode(raw["body_base64"]), raw["headers"]) == (b"\xff", {"a": "b"})
    assert (lines[-1]["id"], lines[-1]["channels"]) == (alone, None)
    (file,) = logged.files()
    flip(file, place(file, b"message 4 "))
    done = run("topics", "export", str(logged.data_dir))
    assert (done.status, len(done.out.splitlines())) == (1, 11)
    assert "fsck" in done.err
