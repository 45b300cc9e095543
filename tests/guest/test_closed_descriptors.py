"""A program that closes every descriptor in mid-life, as one does that becomes a daemon."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import pynotify
from receiving import PATIENCE
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
