"""A program that closes every descriptor in mid-life, as one does that becomes a daemon."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import pynotify
from receiving import PATIENCE, payloads, wait_until
from sessions import EngineFactory

# Tells by its output that it sleeps, having taken its liveness locks again, and what it receives.
PROGRAM = """
import os, sys, tempfile, threading, time
import pynotify

SLEEPS = {"epoll_pwait2": "441", "ppoll": "73" if os.uname().machine == "aarch64" else "271"}

def tell_when_asleep():
    while True:
        with open(f"/proc/self/task/{os.getpid()}/syscall") as file:
            if file.read().split()[0] in SLEEPS.values():
                return print("asleep", flush=True)
        time.sleep(0.001)

name, how, with_files = sys.argv[1], sys.argv[2], sys.argv[3] == "files"
conn = pynotify.connect(name)
conn.listen("c")
sub = conn.subscribe("c")
consumer = conn.topic("t").channel("ch").consumer()
conn.wait(0.001)
try:
    consumer.get(0.001)
except pynotify.Timeout:
    pass
os.closerange(3, 256)
files = [tempfile.TemporaryFile() for _ in range(32 if with_files else 0)]


def get():
    message = consumer.get()
    message.finish()
    return message.body.decode()


receive = {
    "wait": lambda: conn.wait() and conn.poll()[0].payload,
    "notifies": lambda: next(conn.notifies()).payload,
    "sub.next": lambda: sub.next().payload,
    "get": get,
}[how]
for _ in range(2):
    teller = threading.Thread(target=tell_when_asleep)
    teller.start()
    received = receive()
    teller.join()
    print(received, flush=True)
for file in files:
    assert os.fstat(file.fileno()).st_size == 0
    file.close()
conn.close()
"""

SEND: dict[str, Callable[[pynotify.Connection, str], object]] = {
    "wait": lambda conn, text: conn.notify("c", text),
    "notifies": lambda conn, text: conn.notify("c", text),
    "sub.next": lambda conn, text: conn.notify("c", text),
    "get": lambda conn, text: conn.topic("t").publish(text.encode()),
}


@pytest.mark.parametrize("used_again", ["free", "files"])
@pytest.mark.parametrize("how", SEND)
def test_it_receives_as_before(
    make_engine: EngineFactory, tmp_path: Path, how: str, used_again: str
) -> None:
    engine = make_engine()
    conn = engine.connect()
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    name = make_engine.name_of(engine)
    with subprocess.Popen(
        [sys.executable, program, name, how, used_again], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        for text in ("first", "second"):
            assert process.stdout.readline() == "asleep\n"
            SEND[how](conn, text)
            assert process.stdout.readline() == f"{text}\n"
        assert process.wait(PATIENCE) == 0
    conn.close()


REUSED = """
import os, sys, pynotify


def link(fd):
    try:
        return os.readlink(f"/proc/self/fd/{fd}")
    except OSError:  # the one of the listing itself
        return ""


conn = pynotify.connect(sys.argv[1])
conn.notify("c", "first")
print("sent", flush=True)
sys.stdin.readline()  # the listener sleeps again
kept = [int(fd) for fd in os.listdir("/proc/self/fd") if "pidfd" in link(fd)]
for fd in kept:
    os.close(fd)
mine = [os.pidfd_open(int(pid)) for pid in sys.argv[2:]]
assert set(kept) <= set(mine), (kept, mine)
conn.notify("c", "second")
conn.close()
for fd in mine:
    assert "pidfd" in link(fd), "one of the program's was closed"
print("done", flush=True)
"""


def test_a_pidfd_of_the_program_is_not_signalled(
    make_engine: EngineFactory, tmp_path: Path
) -> None:
    """It closed ours, and has its children's under their numbers: no child gets the wake-up."""
    engine = make_engine()
    program = tmp_path / "program.py"
    program.write_text(REUSED)

    def start(*command: str) -> subprocess.Popen[str]:
        pipe = subprocess.PIPE
        return subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)

    def answer(process: subprocess.Popen[str], text: str = "") -> str:
        assert process.stdin is not None
        assert process.stdout is not None
        if text:
            print(text, file=process.stdin, flush=True)
        return process.stdout.readline().strip()

    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(engine.connect())
        listener.listen("c")
        children = [stack.enter_context(start("cat")) for _ in range(8)]
        pids = [str(child.pid) for child in children]
        name = make_engine.name_of(engine)
        process = stack.enter_context(start(sys.executable, str(program), name, *pids))
        assert answer(process) == "sent"
        assert payloads(listener.poll()) == ["first"]
        wait_until(lambda: not listener.poll() and _sleeps(engine), "the listener to sleep again")
        assert answer(process, "go on") == "done"
        assert process.wait(PATIENCE) == 0
        assert payloads(listener.poll()) == ["second"]
        assert [answer(child, "alive") for child in children] == ["alive"] * len(children)


def _sleeps(engine: pynotify.Engine) -> bool:
    return any(backend.asleep for backend in engine.stat().backends)
