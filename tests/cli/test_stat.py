"""`pynotify ls`, `stat` and `rm`."""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import pytest
from console import run

import pynotify
from pynotify._procfs import command_line
from pynotify._table import size
from pynotify.bridge._local import become_bridge
from pynotify.cli import rm
from receiving import wait_until
from sessions import Connect, NewWorker, RemoteSession


def row_of(out: str, name: str) -> list[str]:
    (line,) = (line for line in out.splitlines() if line.startswith(f"{name} "))
    return line.split()


def test_ls(engine_name: str, conn: pynotify.Connection) -> None:
    done = run("ls")
    assert (done.status, done.err) == (0, "")
    assert done.out.splitlines()[0].split() == [
        "NAME", "SIZE", "CREATED", "BACKENDS", "LAST", "USED", "STALE"
    ]  # fmt: skip
    (info,) = (info for info in pynotify.segments() if info.name == engine_name)
    _, number, unit, _date, _time, backends, used, stale = row_of(done.out, engine_name)
    assert (f"{number} {unit}", backends, used, stale) == (size(info.size), "1", "now", "no")


def test_ls_json(engine_name: str, conn: pynotify.Connection) -> None:
    found = {row["name"]: row for row in json.loads(run("ls", "--json").out)}
    (info,) = (info for info in pynotify.segments() if info.name == engine_name)
    assert found[engine_name] == asdict(info)


def test_last_use_is_when_a_connection_was_opened_or_closed(engine_name: str) -> None:
    def last_used() -> float:
        (info,) = (info for info in pynotify.segments() if info.name == engine_name)
        assert info.created <= info.last_used <= time.time()
        return info.last_used

    before = last_used()
    with pynotify.connect(engine_name):
        opened = last_used()
    closed = last_used()
    assert before < opened < closed == last_used()
    assert re.search(rf"^{engine_name} .* ago +no$", run("ls").out, re.M)


def test_ls_shows_what_is_stale(new_name: Callable[[], str]) -> None:
    name = new_name()
    pynotify.open(name).close()
    (path,) = Path("/dev/shm").glob(f"pynotify.*.{name}")
    with path.open("r+b") as file:
        file.write(b"another")
    assert row_of(run("ls").out, name)[-1] == "yes"
    done = run("doctor", name)
    assert f"pynotify rm {name}" in done.out
    assert run("rm", name).status == 0
    assert name not in run("ls").out


def test_stat(engine: pynotify.Engine, engine_name: str, connect: Connect) -> None:
    listener, notifier = connect(database="one"), connect(database="one")
    listener.listen("c")
    notifier.notify_many("c", ["x" * 5000, "x" * 5000, "y"])
    done = run("stat", engine_name)
    assert (done.status, done.err) == (0, "")
    figures = dict(line.split("  ", 1) for line in done.out.partition("\n\n")[0].splitlines())
    figures = {name: value.strip() for name, value in figures.items()}
    comm = Path("/proc/self/comm").read_text().strip()
    assert figures["queue"] == f"0.0% of 1,024 pages, 5.0 KiB held by {listener.pid} ({comm})"
    assert figures["notifications"] == "2 and 1 collapsed"
    assert figures["signals"] == "1 sent, 0 elided, 0 not to be sent"
    backends, channels = (block.splitlines() for block in done.out.split("\n\n")[1:])
    assert [row.split() for row in channels] == [
        ["CHANNEL", "DATABASE", "LISTENERS", "NOTIFICATIONS"], ["c", "one", "1", "2"]
    ]  # fmt: skip
    assert backends[0].split()[:6] == ["BACKEND", "PID", "COMMAND", "DATABASE", "CHANNELS", "LAG"]
    command = command_line(listener.pid)
    assert command is not None and command.startswith(comm)
    assert backends[1].split() == [
        str(listener.backend_id), str(listener.pid), *command.split(), "one", "1", "5.0", "KiB",
        "awake", "SIGUSR1",
    ]  # fmt: skip
    assert backends[2].split()[-6:] == ["one", "0", "-", "not", "listening", "SIGUSR1"]


def test_stat_json_is_all_of_engine_stat(
    engine: pynotify.Engine, engine_name: str, conn: pynotify.Connection
) -> None:
    conn.listen("c")
    conn.listen_pattern("c*")
    document = json.loads(run("stat", engine_name, "--json").out)
    assert document.pop("name") == engine_name
    (backend,) = document["backends"]
    assert backend.pop("command") == Path("/proc/self/comm").read_text().strip()
    assert document.pop("topics") == []
    assert document.pop("listened_channels") == [asdict(each) for each in engine.channels()]
    assert document.pop("listened_patterns") == [asdict(each) for each in engine.patterns()]
    assert document == asdict(engine.stat())


def test_stat_of_a_transaction_and_of_polling(engine_name: str, connect: Connect) -> None:
    conn = connect(wakeup="poll")
    conn.begin()
    assert run("stat", engine_name).out.splitlines()[-1].endswith("in transaction  poll")
    conn.rollback()


def test_names_of_others_cannot_move_the_cursor(
    engine_name: str, new_worker: NewWorker, connect: Connect
) -> None:
    worker = new_worker()
    worker.call(Path("/proc/self/comm").write_bytes, b"\x1b[2J\nevil")
    session = RemoteSession(worker, engine_name, database="d\x1b]0;x\x07")
    out = run("stat", engine_name).out
    assert r"\x1b[2J\nevil" in out
    assert r"d\x1b]0;x\x07" in out
    assert "\x1b" not in out
    session.close()


def test_rm(new_name: Callable[[], str]) -> None:
    names = [new_name(), new_name()]
    for name in names:
        pynotify.open(name).close()
    done = run("rm", *names)
    assert (done.status, done.out, done.err) == (0, "", "")
    assert not set(names) & {info.name for info in pynotify.segments()}


@pytest.fixture
def unused(monkeypatch: pytest.MonkeyPatch, new_name: Callable[[], str]) -> Callable[..., int]:
    """`pynotify rm --unused` that sees these segments alone: the others are other tests'."""

    def remove(*names: str, older: float | None = None) -> int:
        monkeypatch.setattr(
            rm, "segments", lambda: [info for info in pynotify.segments() if info.name in names]
        )
        return rm.run(argparse.Namespace(unused=True, older=older, names=[], force=False))

    return remove


def test_rm_unused_removes_what_has_no_connection(
    unused: Callable[..., int],
    engine_name: str,
    conn: pynotify.Connection,
    new_name: Callable[[], str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    name = new_name()
    pynotify.open(name).close()
    assert unused(engine_name, name, older=3600.0) == 0
    assert capsys.readouterr() == ("", "")
    assert unused(engine_name, name) == 0
    assert capsys.readouterr() == (f"{name}\n", "")
    found = {info.name for info in pynotify.segments()}
    assert engine_name in found and name not in found
    conn.notify("c", "still there")


def test_rm_unused_keeps_messages_in_topics(
    unused: Callable[..., int], new_name: Callable[[], str], capsys: pytest.CaptureFixture[str]
) -> None:
    name = new_name()
    with pynotify.connect(name) as conn:
        conn.topic("jobs").channel("workers")
        conn.topic("jobs").publish("one")
    assert unused(name) == 0
    assert capsys.readouterr() == (
        "", f"pynotify rm: {name} is kept: its topics hold 1 messages\n"
    )  # fmt: skip
    with pynotify.connect(name) as conn:
        consumer = conn.topic("jobs").channel("workers").consumer()
        message = consumer.get(timeout=0)
        assert message is not None
        message.finish()
    assert unused(name) == 0
    assert name not in {info.name for info in pynotify.segments()}


def test_rm_unused_counts_from_when_a_dead_process_is_found(
    unused: Callable[..., int], engine_name: str, remote: Callable[..., RemoteSession]
) -> None:
    session = remote(engine_name)
    session.listen("c")
    os.kill(session.worker.pid, signal.SIGKILL)
    session.worker.join()

    def look() -> pynotify.SegmentInfo:
        (info,) = (info for info in pynotify.segments() if info.name == engine_name)
        return info

    wait_until(lambda: not look().backends, "the process counts no more")
    info = look()
    assert unused(engine_name, older=time.time() - info.last_used) == 0
    assert engine_name in {info.name for info in pynotify.segments()}


@pytest.mark.parametrize(
    "words", [("--unused", "app"), ("--unused", "--force"), ("--older", "1h", "app"), ()]
)
def test_rm_names_or_unused(words: tuple[str, ...]) -> None:
    assert run("rm", *words).status == 2


@pytest.mark.parametrize("age", ["1w", "h", "nan"])
def test_rm_of_a_bad_age(age: str) -> None:
    done = run("rm", "--unused", "--older", age)
    assert done.status == 2
    assert f"invalid age (say 30m, 1h, 7d) value: '{age}'" in done.err


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (["-X", "dev", "-W", "ignore", "SCRIPT", "--port", "80"], "worker.py"),
        (["-m", "timeit", "-s", "import time", "-n1", "time.sleep(60)"], "-m timeit"),
        (["-c", "import time; time.sleep(60)"], "-c"),
    ],
    ids=["script", "module", "text"],
)
def test_a_command_shows_what_its_interpreter_runs(
    tmp_path: Path, words: list[str], shown: str
) -> None:
    script = tmp_path / "worker.py"
    script.write_text("import time\ntime.sleep(60)\n")
    words = [str(script) if word == "SCRIPT" else word for word in words]
    with subprocess.Popen([sys.executable, *words]) as process:
        try:
            wait_until(Path(f"/proc/{process.pid}/cmdline").read_bytes, "its arguments are there")
            comm = Path(f"/proc/{process.pid}/comm").read_text().strip()
            assert command_line(process.pid) == f"{comm} {shown}"
        finally:
            process.kill()


def test_rm_refuses_while_a_process_is_connected(
    engine_name: str, conn: pynotify.Connection
) -> None:
    done = run("rm", engine_name)
    assert done.status == 1
    assert done.err.splitlines() == [
        f'pynotify rm: segment "{engine_name}" is used by processes {conn.pid}',
        "End them or close their connections first, or use --force.",
    ]
    conn.notify("c", "still there")


@pytest.mark.parametrize("option", ["-f", "--force"])
def test_rm_by_force(new_name: Callable[[], str], option: str) -> None:
    name = new_name()
    with pynotify.connect(name) as conn:
        done = run("rm", option, name)
        assert (done.status, done.err) == (0, "")
        with pytest.raises(pynotify.SegmentUnlinked):
            conn.notify("c", "x")


def test_rm_goes_on_after_a_wrong_name(new_name: Callable[[], str]) -> None:
    missing, name = new_name(), new_name()
    pynotify.open(name).close()
    done = run("rm", missing, name)
    assert done.status == 1
    assert done.err.startswith(f'pynotify rm: segment "{missing}" does not exist\n')
    assert name not in {info.name for info in pynotify.segments()}


def test_a_bridge_is_shown(engine_name: str, connect: Connect) -> None:
    bridge = connect(database="one")
    become_bridge(bridge.link.handle)
    for words in (["stat"], ["top", "--once", "--interval", "0.01"]):
        assert "  bridge, one way  SIGUSR1" in run(*words, engine_name).out
    bridge.listen("c")
    done = run("doctor", engine_name, "--interval", "0.01")
    assert f"bridge of {engine_name}: process {bridge.pid} (" in done.out
    assert 'both ways, of database "one"' in done.out
