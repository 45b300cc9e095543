"""`pynotify top`: plain blocks, a live screen, JSON, and a segment that comes and goes."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Callable

import pytest
from console import Running, Terminal, run

import pynotify
from pynotify._types import EngineStat, ListenedChannel
from pynotify.cli.channels import channel_table
from pynotify.cli.rates import Sample, channel_rates, rates, take, topic_rates
from receiving import wait_until
from sessions import Connect

Screen = Callable[..., Terminal]
CLEAR, LEAVE = b"\x1b[J", b"\x1b[?25h\x1b[?1049l"
FAST = ("--interval", "0.02")


def test_once(engine_name: str, connect: Connect) -> None:
    listener, notifier = connect(), connect()
    listener.listen("c")
    notifier.notify("c", "x" * 3000)
    done = run("top", engine_name, "--once", *FAST)
    assert (done.status, done.err) == (0, "")
    assert done.out.startswith(f"{engine_name}  ")
    assert re.search(rf"queue +0\.0% of 1,024 pages, 3\.0 KiB held by {listener.pid} \(", done.out)
    assert "commits   0/s, 0/s notifications\n" in done.out
    assert "\x1b" not in done.out
    rows = done.out.partition("BACKEND")[2].partition("\n\n")[0].splitlines()[1:]
    assert [row.split()[0] for row in rows] == [str(listener.backend_id), str(notifier.backend_id)]


def test_count(engine_name: str) -> None:
    done = run("top", engine_name, "--count", "3", *FAST)
    assert done.out.count("queue ") == 3
    assert done.out.count(f"\n\n{engine_name}  ") == 2


def test_rates_in_json(
    engine_name: str, conn: pynotify.Connection, start: Callable[..., Running]
) -> None:
    running = start("top", engine_name, "--json", *FAST)
    first = json.loads(running.line())
    assert first["name"] == engine_name
    assert first["rates"]["commits"] == 0
    conn.notify_many("c", ["a", "b", "b"])
    while not (seen := json.loads(running.line()))["rates"]["commits"]:
        assert seen["commits"] == 0
    assert seen["rates"]["notifications"] == pytest.approx(2 / seen["seconds"])
    assert seen["rates"]["collapsed"] == pytest.approx(1 / seen["seconds"])
    assert seen["commits"] == 1
    assert seen["backends"][0]["pid"] == conn.pid
    running.signal(signal.SIGINT)
    assert running.finish().status == 130


def test_rates_of_channels_and_topics(engine_name: str, connect: Connect) -> None:
    conn = connect()
    conn.listen("c", "quiet")
    conn.topic("jobs").publish("one")

    def look() -> Sample:
        return take(engine_name)._replace(at=0.0)

    before = look()
    conn.notify_many("c", ["a", "b", "d"])
    conn.topic("jobs").publish("two")
    connect(database="other").listen("c")
    now = look()._replace(at=2.0)
    assert channel_rates(before, now) == {("default", "c"): 1.5, ("default", "quiet"): 0.0}
    assert topic_rates(before, now) == {("default", "jobs"): 0.5}
    (line,) = (line for line in channel_table(now.channels, channel_rates(before, now)) if
               line.startswith("c ") and "other" in line)  # fmt: skip
    assert line.split() == ["c", "other", "1", "0", "-"]
    assert take(engine_name, "other").channels[0].database == "other"


def test_a_channel_that_was_forgotten_counts_from_0() -> None:
    def sample(at: float, count: int, start: int) -> Sample:
        return Sample(at, None, None, (), [ListenedChannel("d", "c", 1, count, start)])

    assert channel_rates(sample(0.0, 90, 1), sample(2.0, 6, 91)) == {("d", "c"): 3.0}


def test_the_busiest_channels_are_shown() -> None:
    found = [ListenedChannel("d", f"c{i}", 1, i, 1) for i in range(25)]
    lines = channel_table(found, {("d", "c3"): 7.0})
    assert lines[1].split() == ["c3", "d", "1", "3", "7/s"]
    assert lines[2].split() == ["c24", "d", "1", "24", "-"]
    assert lines[-1] == "... 5 more: --json has all"


def test_reader_that_has_had_enough(engine_name: str, start: Callable[..., Running]) -> None:
    running = start("top", engine_name, "--json", "--interval", "0.01")
    running.line()
    running.hang_up()
    done = running.finish()
    assert (done.status, done.err) == (0, "")


@pytest.mark.parametrize("key", [b"q", b"Q"])
def test_screen_is_redrawn_until_q(
    engine_name: str, conn: pynotify.Connection, terminal: Screen, key: bytes
) -> None:
    screen = terminal("top", engine_name, *FAST)
    first = screen.read_until(CLEAR)
    assert b"\x1b[?1049h" in first and b"\x1b[H" in first
    assert f"{conn.pid}".encode() in first
    conn.notify("c", "x")
    wait_until(lambda: re.search(rb"commits   [1-9]", screen.read_until(CLEAR)), "a rate")
    screen.press(key)
    assert screen.finish() == 0
    assert screen.seen.endswith(LEAVE)


def test_ctrl_c_restores_the_screen(engine_name: str, terminal: Screen) -> None:
    screen = terminal("top", engine_name)
    screen.read_until(CLEAR)
    screen.press(b"\x03")
    assert screen.finish() == 130
    assert screen.seen.endswith(LEAVE)


def test_sigterm_restores_the_screen(engine_name: str, terminal: Screen) -> None:
    screen = terminal("top", engine_name)
    screen.read_until(CLEAR)
    os.kill(screen.pid, signal.SIGTERM)
    assert screen.finish() == -signal.SIGTERM
    assert screen.seen.endswith(LEAVE)


def test_ctrl_z_restores_the_screen(engine_name: str, terminal: Screen) -> None:
    screen = terminal("top", engine_name)
    screen.read_until(CLEAR)
    screen.press(b"\x1a")
    os.waitid(os.P_PID, screen.pid, os.WSTOPPED)
    screen.read_until(LEAVE)
    os.kill(screen.pid, signal.SIGCONT)
    screen.read_until(b"\x1b[?1049h")
    screen.press(b"q")
    assert screen.finish() == 0


def test_lines_are_cut_to_the_terminal(
    engine_name: str, connect: Connect, terminal: Screen
) -> None:
    for _ in range(20):
        connect(database="d" * 60)
    screen = terminal("top", engine_name, *FAST, COLUMNS="40", LINES="12")
    text = re.sub(rb"\x1b\[[?0-9;]*[A-Za-z]", b"", screen.read_until(CLEAR)).decode()
    lines = text.split("\r\n")
    assert len(lines) == 12
    assert max(map(len, lines)) == 40
    assert lines[-1] == "... 17 more"
    screen.press(b"q")
    assert screen.finish() == 0


@pytest.mark.parametrize("setting", [{"NO_COLOR": "1"}, {}], ids=["NO_COLOR", "colour"])
def test_colour(engine_name: str, terminal: Screen, setting: dict[str, str]) -> None:
    screen = terminal("top", engine_name, **setting)
    assert (b"\x1b[1m" in screen.read_until(CLEAR)) == (not setting)
    screen.press(b"q")
    screen.finish()


@pytest.mark.parametrize("setting", [{"NO_COLOR": "1"}, {}], ids=["NO_COLOR", "colour"])
def test_colours_of_rows(
    engine_name: str, connect: Connect, terminal: Screen, setting: dict[str, str]
) -> None:
    """Headings; connections that are behind, and the queue that is held; those that sleep."""
    behind, asleep = connect(), connect()
    behind.listen("c")
    asleep.listen("other")
    behind.notify("c", "x" * 3000)
    shown = terminal("top", engine_name, **setting).read_until(CLEAR)
    lines = {
        match[2]: match[1]
        for match in re.finditer(
            rb"(?m)^(?:\x1b\[(?:\?[0-9]+[hl]|H))*(\x1b\[[0-9;]+m)? *(\w+)", shown
        )
    }
    if setting:
        assert set(lines.values()) == {None}
        assert b"m" not in re.findall(rb"\x1b\[[0-9;?]*([A-Za-z])", shown)
        return
    assert lines[b"BACKEND"] == lines[b"CHANNEL"] == b"\x1b[1;36m"
    assert lines[b"queue"] == lines[str(behind.backend_id).encode()] == b"\x1b[33m"
    assert lines[str(asleep.backend_id).encode()] == b"\x1b[2m"
    assert lines[b"commits"] is None


def test_a_queue_that_is_half_full_is_red(new_name: Callable[[], str], terminal: Screen) -> None:
    with pynotify.connect(new_name(), queue_pages=64) as conn:
        conn.listen("c")
        conn.notify_many("c", [f"{number:<7900}" for number in range(40)])
        shown = terminal("top", conn._handle.segment).read_until(CLEAR)
    assert re.search(rb"\x1b\[1;31m *queue ", shown)
    assert re.search(rb"\x1b\[1;31m *%d " % conn.backend_id, shown)


def test_a_segment_that_has_vanished_is_red(new_name: Callable[[], str], terminal: Screen) -> None:
    name = new_name()
    pynotify.open(name).close()
    screen = terminal("top", name, *FAST)
    screen.read_until(CLEAR)
    pynotify.unlink(name)
    screen.read_until(b'\x1b[1;31msegment "')


def test_space_looks_again(engine_name: str, terminal: Screen) -> None:
    screen = terminal("top", engine_name, "--interval", "3600")
    assert b"q quits, space looks again" in screen.read_until(CLEAR)
    screen.press(b"x ")
    screen.read_until(CLEAR)
    screen.press(b" q")
    assert screen.finish() == 0


def test_dumb_terminal_gets_plain_blocks(engine_name: str, terminal: Screen) -> None:
    screen = terminal("top", engine_name, *FAST, TERM="dumb")
    screen.read_until(b"BACKEND")
    screen.press(b"\x03")
    assert screen.finish() == 130
    assert b"\x1b" not in screen.seen


def test_segment_that_vanishes_and_comes_back(
    new_name: Callable[[], str], start: Callable[..., Running]
) -> None:
    name = new_name()
    with pynotify.connect(name) as conn:
        conn.notify("c", "x")
        running = start("top", name, "--json", *FAST)
        assert json.loads(running.line())["commits"] == 1
        pynotify.unlink(name, force=True)
    while "error" not in (seen := json.loads(running.line())):
        pass
    assert seen["error"].startswith(f'segment "{name}" does not exist')
    with pynotify.connect(name) as conn:
        while "error" in (seen := json.loads(running.line())):
            pass
        assert seen["commits"] == 0
        assert not any(seen["rates"].values())


def test_rates_of_a_new_segment_begin_at_zero(engine: pynotify.Engine) -> None:
    def sample(at: float, commits: int) -> Sample:
        values = {name: 0 for name in EngineStat.__dataclass_fields__}
        return Sample(at, EngineStat(**values | {"commits": commits}), None)  # type: ignore[arg-type]

    assert rates(sample(1.0, 100), sample(3.0, 110))["commits"] == 5
    assert rates(sample(1.0, 100), sample(3.0, 10))["commits"] == 5
    assert rates(Sample(1.0, None, None), sample(3.0, 10))["commits"] == 0
