"""`pynotify listen`: psql's sentence, line by line, and every way to end."""

from __future__ import annotations

import base64
import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from console import COMMAND, Running, Terminal, environment, run

import pynotify
from pynotify.cli.listen import as_json, gap_sentence
from receiving import wait_until
from sessions import Connect

Start = Callable[..., Running]
WaitForListeners = Callable[..., None]


@pytest.fixture
def listen(
    engine: pynotify.Engine,
    engine_name: str,
    start: Start,
    wait_for_listeners: WaitForListeners,
) -> Start:
    """Starts `listen` and waits until it does."""

    def make(*words: str, channels: int = 1, **more: str) -> Running:
        running = start("listen", *words, "--name", engine_name, **more)
        wait_for_listeners(engine, channels)
        return running

    return make


def test_psqls_sentence(listen: Start, conn: pynotify.Connection) -> None:
    running = listen("x")
    conn.notify("x", "y")
    assert running.line().decode() == (
        'Asynchronous notification "x" with payload "y" '
        f"received from server process with PID {conn.pid}."
    )
    conn.notify("x")
    assert running.line().decode() == (
        f'Asynchronous notification "x" received from server process with PID {conn.pid}.'
    )


def test_patterns(listen: Start, conn: pynotify.Connection) -> None:
    running = listen("x1", "--pattern", "x*", "--pattern", "*é", "--json")
    for channel in ("x1", "x2", "é", "y"):
        conn.notify(channel)
    lines = [json.loads(running.line()) for _ in range(3)]
    assert [(line["channel"], line.get("pattern")) for line in lines] == [
        ("x1", None),
        ("x2", "x*"),
        ("é", "*é"),
    ]


def test_a_pattern_in_a_line_and_in_the_environment(
    listen: Start, conn: pynotify.Connection, tmp_path: Path
) -> None:
    running = listen("--pattern", "x*", "--format", "{channel} {pattern}")
    conn.notify("x2")
    assert running.line() == b"x2 x*"
    command = f'echo "$NOTIFY_CHANNEL $NOTIFY_PATTERN" >> {tmp_path}/out'
    executing = listen("--pattern", "x*", "--exec", command, "--count", "1", channels=2)
    conn.notify("x3")
    assert executing.finish().status == 0
    assert (tmp_path / "out").read_text() == "x3 x*\n"


HEADERS = {"k": "v w", "ü": "ä\n\x1b", "'": '"'}


def test_headers_in_json(listen: Start, conn: pynotify.Connection) -> None:
    running = listen("x", "--json")
    conn.notify("x", "1", headers=HEADERS)
    conn.notify("x", "2")
    first, second = (json.loads(running.line()) for _ in range(2))
    assert first["headers"] == HEADERS
    assert "headers" not in second


def test_headers_in_a_line_and_in_the_environment(
    listen: Start, conn: pynotify.Connection, tmp_path: Path
) -> None:
    """As JSON on one line."""
    running = listen("x", "--format", "{payload} {headers}")
    command = f'printf "%s\\n" "$NOTIFY_HEADERS" >> {tmp_path}/out'
    executing = listen("y", "--exec", command, "--count", "3", channels=2)
    for channel in ("x", "y"):
        conn.notify(channel, "1", headers=HEADERS)
        conn.notify(channel, "2")
        conn.notify(channel, "3", headers={"k": "é" * 30_000})
    lines = [running.line().split(b" ", 1) for _ in range(3)]
    assert executing.finish().status == 0
    written = (tmp_path / "out").read_bytes().splitlines()
    assert written == [headers for _, headers in lines]
    assert [payload for payload, _ in lines] == [b"1", b"2", b"3"]
    assert json.loads(written[0]) == HEADERS
    assert written[1] == b"{}"
    assert json.loads(written[2]) == {"k": "é" * 30_000}


def test_a_terminal_gets_no_escapes_of_headers(
    engine: pynotify.Engine,
    engine_name: str,
    connect: Connect,
    terminal: Callable[..., Terminal],
    wait_for_listeners: WaitForListeners,
) -> None:
    words = ("listen", "c", "-n", engine_name, "--count", "1", "--format", "{headers}")
    screen = terminal(*words, LC_ALL="C.UTF-8")
    wait_for_listeners(engine)
    connect().notify("c", headers={"k": "\x9b31m\x7f\u202e"})
    assert screen.finish() == 0
    shown = screen.seen.decode().removesuffix("\r\n")
    assert [char for char in shown if not char.isprintable()] == []
    assert shown.startswith('{"k":')


def test_something_has_to_be_named() -> None:
    done = run("listen")
    assert done.status == 2
    assert "name a channel, or a --pattern" in done.err


def test_each_line_comes_at_once(listen: Start, conn: pynotify.Connection) -> None:
    """The next notification is sent only when the line of the one before has been read."""
    running = listen("x")
    for number in range(20):
        conn.notify("x", str(number))
        assert f'"{number}"'.encode() in running.line()


def test_several_channels_and_count(listen: Start, conn: pynotify.Connection) -> None:
    running = listen("a", "--count", "3", "b", channels=2)
    conn.notify("a", "1")
    conn.notify("b", "2")
    conn.notify_many("a", ["3", "4"])
    done = running.finish()
    assert done.status == 0
    assert [line.split('"')[3] for line in done.out.splitlines()] == ["1", "2", "3"]


def test_json(listen: Start, conn: pynotify.Connection) -> None:
    running = listen("x", "--json", "--count", "2")
    conn.notify("x", "ä\n\x1b")
    conn.notify("x", b"\xff\x00")
    done = running.finish()
    first, second = map(json.loads, done.out.splitlines())
    assert (first["channel"], first["payload"]) == ("x", "ä\n\x1b")
    assert (first["pid"], first["backend_id"]) == (conn.pid, conn.backend_id)
    assert second["seq"] == first["seq"] + 1
    assert second["sent_ns"] > first["sent_ns"]
    assert second["payload"] is None
    assert base64.b64decode(second["payload_base64"]) == b"\xff\x00"
    assert done.out.isascii()


def test_pipe_gets_the_payload_as_it_was_sent(listen: Start, conn: pynotify.Connection) -> None:
    running = listen("x", "--count", "1", LC_ALL="C")
    conn.notify("x", b"\x1b[31m\xff \xc3\xa4")
    assert b'with payload "\x1b[31m\xff \xc3\xa4" received' in running.finish().raw


def test_terminal_gets_nothing_that_is_not_printable(
    engine: pynotify.Engine,
    engine_name: str,
    connect: Connect,
    terminal: Callable[..., Terminal],
    wait_for_listeners: WaitForListeners,
) -> None:
    channel = "c\x1b[2J"
    screen = terminal("listen", channel, "-n", engine_name, "--count", "1", LC_ALL="C.UTF-8")
    wait_for_listeners(engine)
    payload = "\x1b]0;evil\x07\x9b31m\r\n\t\x7f\u202e ä 你 \N{FAMILY}"
    connect().notify(channel, payload.encode() + b"\xff")
    assert screen.finish() == 0
    shown = screen.seen.decode()
    assert [char for char in shown.removesuffix("\r\n") if not char.isprintable()] == []
    assert r'notification "c\x1b[2J" with payload' in shown
    assert r'"\x1b]0;evil\x07\x9b31m\r\n\t\x7f\u202e ä 你 👪\xff"' in shown


def test_timeout_without_a_notification(engine_name: str) -> None:
    done = run("listen", "x", "-n", engine_name, "--timeout", "0.01")
    assert (done.status, done.out, done.err) == (0, "", "")


def test_timeout_before_the_count(listen: Start, conn: pynotify.Connection) -> None:
    running = listen("x", "--count", "2", "--timeout", "0.5")
    conn.notify("x", "only")
    done = running.finish()
    assert done.status == 1
    assert "only" in done.out


def test_ctrl_c(engine: pynotify.Engine, listen: Start) -> None:
    running = listen("x")
    running.signal(signal.SIGINT)
    done = running.finish()
    assert (done.status, done.out, done.err) == (130, "", "")
    assert engine.stat().backends == []


def test_reader_that_has_had_enough(
    engine: pynotify.Engine, listen: Start, conn: pynotify.Connection
) -> None:
    """As in `pynotify listen a b | head -1`: it does not take another notification to end it."""
    running = listen("a", "b", channels=2)
    conn.notify("b", "first")
    assert b"first" in running.line()
    running.hang_up()
    done = running.finish()
    assert (done.status, done.err) == (0, "")
    assert [row.pid for row in engine.stat().backends] == [conn.pid]


def test_reader_that_leaves_in_a_flood(listen: Start, conn: pynotify.Connection) -> None:
    running = listen("a")
    conn.notify_many("a", [str(number) for number in range(10_000)])
    assert b'"0"' in running.line()
    running.hang_up()
    done = running.finish()
    assert (done.status, done.err) == (0, "")


def test_head_in_a_shell(
    engine: pynotify.Engine,
    engine_name: str,
    conn: pynotify.Connection,
    start: Start,
    wait_for_listeners: WaitForListeners,
) -> None:
    line = f"'{COMMAND[0]}' -m pynotify listen a b -n {engine_name} | head -1"
    shell = start(line, command=["sh", "-c"])
    wait_for_listeners(engine, 2)
    conn.notify("a", "one")
    done = shell.finish()
    assert done.out.count("\n") == 1
    assert (done.status, done.err) == (0, "")


def test_another_database_hears_nothing(
    engine: pynotify.Engine, listen: Start, connect: Connect
) -> None:
    running = listen("x", "--database", "two", "--count", "1")
    connect(database="one").notify("x", "from one")
    connect(database="two").notify("x", "from two")
    done = running.finish()
    assert "from two" in done.out
    assert "from one" not in done.out


def test_unlinked_segment_ends_it(
    new_name: Callable[[], str], start: Start, wait_for_listeners: WaitForListeners
) -> None:
    name = new_name()
    running = start("listen", "x", "-n", name, "--create")
    wait_until(lambda: name in [info.name for info in pynotify.segments()], "it is created")
    with pynotify.open(name) as engine:
        wait_for_listeners(engine)
    pynotify.unlink(name, force=True)
    done = running.finish()
    assert done.status == 1
    assert done.err.startswith("pynotify listen: ")
    assert "Traceback" not in done.err


def test_creates_the_segment_when_told_so(new_name: Callable[[], str]) -> None:
    name = new_name()
    assert run("listen", "x", "-n", name, "--timeout", "0", "--create").status == 0
    assert name in [info.name for info in pynotify.segments()]


def test_waits_for_a_segment_and_makes_none(
    new_name: Callable[[], str], start: Start, wait_for_listeners: WaitForListeners
) -> None:
    """The program that comes later has options of its own, which a segment of ours would not."""
    name = new_name()
    running = start("listen", "x", "-n", name, "--count", "1")
    waiting = f'pynotify listen: waiting for segment "{name}"; --create makes it'
    assert running.line(err=True).decode() == waiting
    assert name not in [info.name for info in pynotify.segments()]
    with pynotify.connect(name, max_payload=100_000) as conn, pynotify.open(name) as engine:
        wait_for_listeners(engine)
        conn.notify("x", "y" * 90_000)
        done = running.finish()
    assert done.status == 0
    assert "y" * 90_000 in done.out


@pytest.mark.parametrize(("count", "status"), [((), 0), (("--count", "1"), 1)])
def test_waits_no_longer_than_the_timeout(
    new_name: Callable[[], str], count: tuple[str, ...], status: int
) -> None:
    name = new_name()
    done = run("listen", "x", "-n", name, "--timeout", "0.05", *count)
    assert (done.status, done.out) == (status, "")
    assert name not in [info.name for info in pynotify.segments()]


def test_waiting_ends_with_its_reader(new_name: Callable[[], str], start: Start) -> None:
    running = start("listen", "x", "-n", new_name())
    running.line(err=True)
    running.hang_up()
    assert running.finish().status == 0


def test_bad_channel(engine_name: str) -> None:
    done = run("listen", "x" * 64, "-n", engine_name)
    assert done.status == 1
    assert "channel name too long" in done.err


def test_no_handler_of_python(engine_name: str) -> None:
    """Python's own disposition of SIGUSR1 is as it was, during and after."""
    code = (
        "import signal, sys\n"
        "from pynotify.cli import listen, main\n"
        "before = signal.getsignal(signal.SIGUSR1)\n"
        "seen = []\n"
        "wait = listen.Watch.wait\n"
        "def look(*rest):\n"
        "    seen.append(signal.getsignal(signal.SIGUSR1))\n"
        "    return wait(*rest)\n"
        "listen.Watch.wait = look\n"
        f"main.main(['listen', 'x', '-n', {engine_name!r}, '--timeout', '0.01'])\n"
        "print(seen[0] == before == signal.getsignal(signal.SIGUSR1))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment(), capture_output=True, check=True
    )
    assert done.stdout == b"True\n"


def test_gap() -> None:
    """No way of reading makes one yet, so only its texts."""
    gap = pynotify.Gap(missed_bytes=4096, reason="evicted")
    assert gap_sentence(gap) == "Notifications are missing here: 4096 bytes (evicted)."
    upstream = pynotify.Gap(missed_bytes=0, reason=pynotify.Gap.UPSTREAM)
    assert gap_sentence(upstream) == "Notifications may be missing here (upstream connection lost)."
    document = as_json(gap)
    assert (document["channel"], document["missed_bytes"]) == (None, 4096)
    assert document["reason"] == "evicted"


def test_frees_its_slot(engine: pynotify.Engine, listen: Start) -> None:
    running = listen("x")
    running.signal(signal.SIGTERM)
    assert running.finish().status == -signal.SIGTERM
    wait_until(lambda: not engine.stat().backends, "the slot is free")


# ---- other ways to give them out -----------------------------------------------------------------


def test_a_format_and_nul(listen: Start, conn: pynotify.Connection) -> None:
    """Byte for byte, with newlines and what is no text."""
    running = listen("x", "--format", "{channel} {pid}: {payload} {{}}", "-0", "--count", "2")
    conn.notify("x", b"two\nlines\xff")
    conn.notify("x", "{pid}")
    done = running.finish()
    expected = [b"x %d: two\nlines\xff {{}}" % conn.pid, b"x %d: {pid} {{}}" % conn.pid, b""]
    assert (done.raw.split(b"\0"), done.err) == (expected, "")


def test_a_field_that_there_is_not() -> None:
    done = run("listen", "x", "--format", "{chanel}")
    assert done.status == 2
    assert "{chanel} is none of channel, payload" in done.err
    assert "three ways" in run("listen", "x", "--json", "--format", "x").err


def test_a_command_for_each(listen: Start, conn: pynotify.Connection, tmp_path: Path) -> None:
    command = f'cat >> {tmp_path}/out; echo " $NOTIFY_CHANNEL $NOTIFY_PID" >> {tmp_path}/out'
    running = listen("x", "--exec", f"{command}; exit $(wc -l < {tmp_path}/out)", "--count", "2")
    conn.notify("x", "one")
    conn.notify("x", "two")
    done = running.finish()
    assert done.out == ""
    assert (tmp_path / "out").read_text() == f"one x {conn.pid}\ntwo x {conn.pid}\n"
    assert done.err.splitlines() == [
        f"pynotify listen: the command ended with status {status}" for status in (1, 2)
    ]
