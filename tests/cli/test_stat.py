"""`pynotify ls`, `stat` and `rm`."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import pytest
from console import run

import pynotify
from pynotify._table import size
from pynotify.bridge._local import become_bridge
from sessions import Connect, NewWorker, RemoteSession


def row_of(out: str, name: str) -> list[str]:
    (line,) = (line for line in out.splitlines() if line.startswith(f"{name} "))
    return line.split()


def test_ls(engine_name: str, conn: pynotify.Connection) -> None:
    done = run("ls")
    assert (done.status, done.err) == (0, "")
    assert done.out.splitlines()[0].split() == ["NAME", "SIZE", "CREATED", "BACKENDS", "STALE"]
    (info,) = (info for info in pynotify.segments() if info.name == engine_name)
    _, number, unit, _date, _time, backends, stale = row_of(done.out, engine_name)
    assert (f"{number} {unit}", backends, stale) == (size(info.size), "1", "no")


def test_ls_json(engine_name: str, conn: pynotify.Connection) -> None:
    found = {row["name"]: row for row in json.loads(run("ls", "--json").out)}
    (info,) = (info for info in pynotify.segments() if info.name == engine_name)
    assert found[engine_name] == asdict(info)


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
    backends = done.out.partition("\n\n")[2].splitlines()
    assert backends[0].split()[:6] == ["BACKEND", "PID", "COMMAND", "DATABASE", "CHANNELS", "LAG"]
    assert backends[1].split() == [
        str(listener.backend_id), str(listener.pid), comm, "one", "1", "5.0", "KiB", "awake",
        "SIGUSR1",
    ]  # fmt: skip
    assert backends[2].split()[3:] == ["one", "0", "-", "not", "listening", "SIGUSR1"]


def test_stat_json_is_all_of_engine_stat(
    engine: pynotify.Engine, engine_name: str, conn: pynotify.Connection
) -> None:
    conn.listen("c")
    document = json.loads(run("stat", engine_name, "--json").out)
    assert document.pop("name") == engine_name
    (backend,) = document["backends"]
    assert backend.pop("command") == Path("/proc/self/comm").read_text().strip()
    assert document.pop("topics") == []
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


def test_rm_refuses_while_somebody_is_connected(
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
