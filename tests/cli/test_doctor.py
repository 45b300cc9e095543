"""`pynotify doctor`: each thing that can be wrong is made wrong, and found."""

from __future__ import annotations

import json
import os
import resource
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from console import COMMAND, Done, Guest, environment, run

import pynotify
from namespaces import run_unshared
from pynotify.cli.doctor.segments import check_others
from requirement import require
from sessions import Connect, NewWorker, RemoteSession

SHM = Path("/dev/shm")
FAST = ("--interval", "0.01")
Remote = Callable[..., RemoteSession]


def findings(done: Done) -> list[tuple[str, str, str]]:
    """Level, check and text of what was found in the segment itself, not on the host."""
    rows = json.loads(done.out)["findings"]
    return [(row["level"], row["check"], row["text"]) for row in rows if row["segment"]]


def doctor(*words: str, **more: str) -> list[tuple[str, str, str]]:
    return findings(run("doctor", *words, "--json", *FAST, **more))


def bad(*words: str) -> list[tuple[str, str, str]]:
    return [finding for finding in doctor(*words) if finding[0] != "ok"]


@pytest.fixture
def listener(engine_name: str, remote: Remote) -> RemoteSession:
    """In a process of its own, on the channel "c"."""
    session = remote(engine_name)
    session.listen("c")
    return session


def test_all_is_well(engine_name: str, listener: RemoteSession) -> None:
    done = run("doctor", engine_name, *FAST)
    assert done.err == ""
    lines = done.out.splitlines()
    assert done.status == (0 if "no problems" in lines[-1] else 1)
    assert f"ok       invariants of {engine_name}: all hold" in lines
    assert any(f"backends of {engine_name}: 1 connected" in line for line in lines)
    assert [line for line in lines if "problem " in line and engine_name in line] == []


def test_json_says_what_to_do(engine_name: str, conn: pynotify.Connection) -> None:
    done = run("doctor", engine_name, "--json", *FAST)
    document = json.loads(done.out)
    levels = {row["level"] for row in document["findings"]}
    assert document["ok"] == ("problem" not in levels) == (done.status == 0)
    for row in document["findings"]:
        assert set(row) == {"level", "check", "text", "advice", "segment"}
        assert bool(row["advice"]) == (row["level"] != "ok")
    assert {"kernel", "pid namespace", "limits", "/dev/shm", "logind"} <= {
        row["check"] for row in document["findings"]
    }


def test_without_a_name_all_segments(engine_name: str, conn: pynotify.Connection) -> None:
    rows = json.loads(run("doctor", "--json", *FAST).out)["findings"]
    assert engine_name in {row["segment"] for row in rows}


def test_missing_segment_is_a_problem(new_name: Callable[[], str]) -> None:
    name = new_name()
    assert bad(name) == [("problem", "segments", f'segment "{name}" does not exist')]
    assert run("doctor", name, *FAST).status == 1


def test_another_user_has_one_of_this_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Not a file that one user has given another one's name."""
    for uid in (os.geteuid(), os.geteuid() + 1):
        (tmp_path / f"pynotify.{uid}.app").touch()
        (tmp_path / f"pynotify.{uid}.an.app").touch()
    assert list(check_others("app", tmp_path)) == []
    own = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: own + 1)
    (finding,) = check_others("app", tmp_path)
    assert finding.level == "warning"
    assert f"({own}) has a segment of this name; it is another one" in finding.text
    assert "pynotify gateway app --allow-uid" in finding.advice
    assert list(check_others("ap", tmp_path)) == []


# ---- signals -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("action", "arguments", "wrong"),
    [
        (signal.signal, (signal.SIGUSR1, signal.SIG_IGN), "ignores SIGUSR1"),
        (signal.signal, (signal.SIGUSR1, signal.SIG_DFL), "does not catch SIGUSR1"),
        (
            signal.pthread_sigmask,
            (signal.SIG_BLOCK, {signal.SIGUSR1}),
            "has SIGUSR1 blocked in all of its threads",
        ),
    ],
    ids=["ignored", "default", "blocked"],
)
def test_signal_that_does_not_arrive(
    engine_name: str,
    new_worker: NewWorker,
    action: Callable[..., Any],
    arguments: tuple[Any, ...],
    wrong: str,
) -> None:
    worker = new_worker(OPENBLAS_NUM_THREADS="1")
    session = RemoteSession(worker, engine_name)
    session.listen("c")
    worker.start(action, *arguments)
    worker.result()
    ((level, check, text),) = bad(engine_name)
    assert (level, check) == ("problem", "signals")
    assert f"process {session.pid} (" in text and wrong in text
    session.close()


def test_signal_blocked_in_the_main_thread_only(
    engine_name: str, guest: Callable[[str, str], Guest]
) -> None:
    """Another thread takes it, so that this is only mentioned."""
    program = (
        "conn.listen('c')\n"
        "threading.Thread(target=signal.pause, daemon=True).start()\n"
        "signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})\n"
    )
    running = guest(engine_name, program)
    (mentioned,) = (text for _, check, text in doctor(engine_name) if check == "signals")
    assert f"process {running.pid} (" in mentioned
    assert "blocked in its main thread; another thread takes it" in mentioned
    assert bad(engine_name) == []


def test_polling_needs_no_signal(engine_name: str, remote: Remote) -> None:
    session = remote(engine_name, wakeup="poll")
    session.listen("c")
    assert bad(engine_name) == []


def test_notifying_alone_needs_no_handler(engine_name: str, remote: Remote) -> None:
    session = remote(engine_name)
    session.notify("c", "x")
    assert bad(engine_name) == []


def test_real_time_signal(engine_name: str, new_worker: NewWorker) -> None:
    worker = new_worker()
    session = RemoteSession(worker, engine_name, wakeup=signal.SIGRTMIN + 5)
    session.listen("c")
    assert bad(engine_name) == []
    worker.call(signal.signal, signal.SIGRTMIN + 5, signal.SIG_IGN)
    ((_, _, text),) = bad(engine_name)
    assert "ignores SIGRTMIN+5" in text
    session.close()


def test_no_room_for_pending_signals(engine_name: str, new_worker: NewWorker) -> None:
    worker = new_worker()
    session = RemoteSession(worker, engine_name)
    session.listen("c")
    worker.call(resource.setrlimit, resource.RLIMIT_SIGPENDING, (0, 0))
    ((level, _, text),) = bad(engine_name)
    assert level == "warning"
    assert "of 0 pending signals" in text
    session.close()


# ---- processes -----------------------------------------------------------------------------------


def test_stopped_listener(engine_name: str, listener: RemoteSession, connect: Connect) -> None:
    listener.worker.suspend()
    try:
        ((level, check, text),) = bad(engine_name)
        assert (level, check) == ("problem", "backends")
        assert f"process {listener.pid} (" in text and text.endswith("is stopped")
    finally:
        listener.worker.resume()


def test_stopped_notifier_is_a_warning(engine_name: str, remote: Remote) -> None:
    session = remote(engine_name)
    session.worker.suspend()
    try:
        ((level, _, text),) = bad(engine_name)
        assert (level, text.endswith("is stopped")) == ("warning", True)
    finally:
        session.worker.resume()


def test_descriptors_run_out(engine_name: str, new_worker: NewWorker) -> None:
    worker = new_worker()
    session = RemoteSession(worker, engine_name)
    used = len(os.listdir(f"/proc/{worker.pid}/fd"))
    worker.call(resource.setrlimit, resource.RLIMIT_NOFILE, (used, used))
    ((level, check, text),) = bad(engine_name)
    assert (level, check) == ("warning", "backends")
    assert f"has {used} of {used} descriptors open" in text
    session.close()


# ---- reading -------------------------------------------------------------------------------------


def test_a_listener_that_does_not_read(engine_name: str, connect: Connect) -> None:
    listener, notifier = connect(), connect()
    listener.listen("c")
    notifier.notify("c", "x" * 3000)
    ((level, check, text),) = bad(engine_name)
    assert (level, check) == ("warning", "queue")
    assert f"process {listener.pid} (" in text
    assert "does not read 3.0 KiB and holds the tail; the queue is 0% full" in text
    listener.begin()
    assert "it has a transaction open" in bad(engine_name)[0][2]
    listener.rollback()


def test_a_reader_that_fills_the_queue(new_name: Callable[[], str]) -> None:
    name = new_name()
    with pynotify.connect(name, queue_pages=64) as conn:
        conn.listen("c")
        conn.notify_many("c", [bytes([number]) * 7000 for number in range(40)])
        ((level, check, text),) = bad(name)
        assert (level, check) == ("problem", "queue")
        assert text.endswith("the queue is 61% full") or text.endswith("the queue is 62% full")
        assert run("doctor", name, *FAST).status == 1


# ---- segments ------------------------------------------------------------------------------------


def lock_files_of(name: str) -> list[Path]:
    return list(SHM.glob(f"pynotify-lock.{os.geteuid()}.{name}.*"))


def test_lock_files_without_a_segment(new_name: Callable[[], str]) -> None:
    name = new_name()
    (SHM / f"pynotify-lock.{os.geteuid()}.{name}.0123456789abcdef.0").touch()
    found = run("doctor", name, *FAST)
    assert "lock files of a segment that is not there any more" in found.out
    assert f"\n           pynotify rm {name}\n" in found.out
    done = run("rm", name)
    assert (done.status, done.err) == (0, "")
    assert lock_files_of(name) == []


def test_segment_removed_under_its_users(
    new_name: Callable[[], str], guest: Callable[[str, str], Guest]
) -> None:
    """By hand, or by systemd-logind; then another of the same name is made."""
    name = new_name()
    with pynotify.connect(name):
        (SHM / f"pynotify.{os.geteuid()}.{name}").unlink()
        removed = f"processes {os.getpid()} use a segment whose name was removed"
        assert any(text.startswith(removed) for _, _, text in bad(name))
        second = guest(name, "")
        ((level, _, text),) = bad(name)
        assert level == "problem"
        assert text == f"processes {os.getpid()} use an earlier segment of this name"
        second.close()


def test_corrupt_segment(new_name: Callable[[], str]) -> None:
    name = new_name()
    pynotify.open(name).close()
    path = SHM / f"pynotify.{os.geteuid()}.{name}"
    with path.open("r+b") as file:
        file.seek(2 * 4096)
        file.write(b"\xa5" * 4096)
    done = run("doctor", name, *FAST)
    assert done.status == 1
    assert f"problem  segments of {name}: " in done.out
    assert "Traceback" not in done.err


def privately(command: str, *options: str) -> Done:
    """In namespaces of its own, as root."""
    done = run_unshared(*options, "sh", "-c", command, env=environment())
    return Done(done.returncode, done.stdout.encode(), done.stderr.encode())


def shell(*words: str) -> str:
    return shlex.join([*COMMAND, *words])


def test_another_pid_namespace(engine_name: str, conn: pynotify.Connection) -> None:
    look = shell("doctor", engine_name, "--json")
    done = privately(look, "--pid", "--fork", "--mount-proc", "--kill-child")
    ((level, check, text),) = findings(done)
    assert (level, check) == ("problem", "segments")
    assert f'segment "{engine_name}" belongs to pid namespace ' in text


def test_small_dev_shm() -> None:
    mount = "mount -t tmpfs -o size=1m,mode=0755 tmpfs /dev/shm"
    done = privately(f"{mount} && {shell('doctor', '--json')}", "--mount")
    rows = [row for row in json.loads(done.out)["findings"] if row["check"] == "/dev/shm"]
    assert [row["level"] for row in rows] == ["warning", "warning"]
    assert "its mode is 0755, not 1777" in rows[0]["text"]
    assert rows[1]["text"].startswith("1.0 MiB, 1.0 MiB free: no room for another segment")
    assert done.status == 0


def test_dev_shm_on_disk(tmp_path: Path) -> None:
    if "tmpfs" in subprocess.run(
        ["stat", "-f", "-c", "%T", str(tmp_path)], capture_output=True, text=True, check=True
    ).stdout:  # fmt: skip
        require("disk", "the temporary directory is on tmpfs")
    (tmp_path / "shm").mkdir(mode=0o1777)
    (tmp_path / "shm").chmod(0o1777)
    mount = shlex.join(["mount", "--bind", str(tmp_path / "shm"), "/dev/shm"])
    done = privately(f"{mount} && {shell('doctor', '--json')}", "--mount")
    (row,) = (row for row in json.loads(done.out)["findings"] if row["check"] == "/dev/shm")
    assert row["level"] == "warning"
    assert "not on tmpfs" in row["text"]


def test_limits_of_the_host(engine_name: str) -> None:
    program = (
        "import os, resource, sys\n"
        "resource.setrlimit(resource.RLIMIT_SIGPENDING, (0, 0))\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))\n"
        "os.execv(sys.executable, [sys.executable, '-m', 'pynotify', *sys.argv[1:]])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, "doctor", engine_name, "--json", *FAST],
        env=environment(),
        capture_output=True,
        check=True,
    )
    rows = [row for row in json.loads(done.stdout)["findings"] if row["check"] == "limits"]
    assert [row["level"] for row in rows] == ["warning", "warning"]
    assert "RLIMIT_SIGPENDING is 0" in rows[0]["text"]
    assert "RLIMIT_NOFILE is 64" in rows[1]["text"]


def test_colours_on_a_terminal_only(engine_name: str, terminal: Callable[..., Any]) -> None:
    screen = terminal("doctor", engine_name, *FAST)
    screen.finish()
    assert b"\x1b[32mok     \x1b[0m  kernel: " in screen.seen
    plain = terminal("doctor", engine_name, *FAST, NO_COLOR="1")
    plain.finish()
    assert b"\x1b" not in plain.seen
    assert "\x1b" not in run("doctor", engine_name, *FAST).out
