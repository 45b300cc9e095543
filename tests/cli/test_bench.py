"""`pynotify bench`, `demo` and what they leave behind: nothing."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from console import Running, Terminal, run

import pynotify
from receiving import wait_until


def left_by(pid: int) -> list[str]:
    return [info.name for info in pynotify.segments() if info.name == f"bench-{pid}"]


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_json() -> None:
    done = run("bench", "--duration", "0.05", "--payload", "10", "--json")
    assert (done.status, done.err) == (0, "")
    figures = json.loads(done.out)
    assert figures["payload_bytes"] == 10
    assert figures["wakeups"] > 0
    assert 0 < figures["p50_us"] <= figures["p99_us"] <= figures["max_us"]
    assert figures["messages"] > 0
    assert figures["messages_per_s"] > 0


def test_text() -> None:
    out = run("bench", "--duration", "0.02").out
    number = r"[\d,.]+"
    assert re.fullmatch(
        rf"payload           64 bytes\n"
        rf"wake-up, one way  p50 {number} us, p99 {number} us, max {number} us \({number} times\)\n"
        rf"stream            {number} messages/s \({number}\)\n",
        out,
    )


def test_progress_on_a_terminal(terminal: Callable[..., Terminal]) -> None:
    screen = terminal("bench", "--duration", "0.02")
    assert screen.finish() == 0
    assert re.search(rb"^wake-ups: 0 s, [\d,]+/s\r\nstream: 0 s, [\d,]+/s\r\n", screen.seen)
    assert left_by(screen.pid) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_interrupted(start: Callable[..., Running], number: signal.Signals) -> None:
    running = start("bench", "--duration", "60")
    wait_until(lambda: left_by(running.pid) and children(running.pid), "the listener is there")
    (child,) = children(running.pid)
    running.signal(number)
    done = running.finish()
    assert done.status == (130 if number == signal.SIGINT else -number)
    assert done.err == ""
    assert left_by(running.pid) == []
    wait_until(lambda: not Path(f"/proc/{child}").exists(), "the listener is gone")


def test_killed_it_leaves_no_listener(start: Callable[..., Running]) -> None:
    running = start("bench", "--duration", "60")
    wait_until(lambda: left_by(running.pid) and children(running.pid), "the listener is there")
    running.signal(signal.SIGKILL)
    assert running.finish().status == -signal.SIGKILL  # the listener held its output as well
    for name in left_by(running.pid):
        pynotify.unlink(name)


def test_payload_too_long() -> None:
    done = run("bench", "--duration", "0.02", "--payload", "8000")
    assert done.status == 1
    assert done.err.startswith("pynotify bench: payload string too long")


def test_demo_has_its_own_arguments() -> None:
    done = run("demo", "--notifications", "1")
    assert done.status == 1
    assert "usage: python -m pynotify.demo" in done.err
