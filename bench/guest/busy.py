"""An application loop that does its own work while notifications arrive for it.

One process works in a loop and polls every 10 ms; another, on another processor, sends 10,000
notifications a second one by one.  The time inside of poll() is measured where it is spent, and is
what reading costs.  What is lost beyond that (signals, handlers, cold caches) is the figure: the
work that was done against the work that the quiet passes would have done in the time that was
left.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import ExitStack
from multiprocessing.connection import Connection

import pynotify
from bench.figures import Spread
from bench.rig import Child, Lost, ask_all, serve
from bench.settings import Settings

_RATE = 10_000  # notifications a second
_POLL_EVERY_NS = 10_000_000
_PASS_SECONDS = 2.0
_PAIRS = 9
_BAR = 2.0


def run(settings: Settings, topic: str) -> None:
    seconds = _PASS_SECONDS / (4 if settings.quick else 1)
    name = f"bench-busy-{os.getpid()}"
    losses, reading = [], []
    with ExitStack() as stack, pynotify.open(name) as engine:
        stack.callback(pynotify.unlink, name, force=True)
        guest = Child(lambda pipe: _work(pipe, engine))
        sender = Child(lambda pipe: _send(pipe, engine))
        try:
            for child, cpu in ((guest, 0), (sender, -1)):
                child.answer()
                ask_all([child], "pin", cpu)
            for repetition in range(settings.pairs(_PAIRS) + 1):
                quiet = _pass(guest, seconds, lambda: None)
                sender.ask("send", int(seconds * _RATE))
                busy = _pass(guest, seconds, sender.answer)
                if busy[2] < 0.9 * seconds * _RATE:
                    raise Lost(f"only {busy[2]} notifications came in {seconds} s")
                if repetition:
                    per_second = quiet[0] / (seconds - quiet[1])
                    losses.append(100 * (1 - busy[0] / (per_second * (seconds - busy[1]))))
                    reading.append(100 * busy[1] / seconds)
        finally:
            for child in (guest, sender):
                child.end()
    settings.alone(
        topic,
        f"work lost beyond reading, {_RATE:,} notifications/s",
        "%",
        losses,
        bar=_BAR,
        at_most=True,
        note=f"reading took {Spread.of(reading).text()} % of the time",
    )


def _pass(guest: Child, seconds: float, meanwhile: Callable[[], object]) -> tuple[int, float, int]:
    """Rounds of work, seconds inside of poll(), messages."""
    guest.ask("work", seconds)
    meanwhile()
    answer: tuple[int, float, int] = guest.answer()
    return answer


def _work(pipe: Connection, engine: pynotify.Engine) -> None:
    conn = engine.connect()
    conn.listen("c")
    clock, poll = time.monotonic_ns, conn.poll

    def work(seconds: float) -> tuple[int, float, int]:
        rounds = reading = messages = 0
        now = clock()
        end, next_poll = now + int(seconds * 1e9), now
        while now < end:
            if now >= next_poll:
                next_poll = now + _POLL_EVERY_NS
                messages += len(poll())
                reading += clock() - now
            sum(range(500))  # the program's own work: some microseconds
            rounds += 1
            now = clock()
        messages += len(poll())
        return rounds, reading / 1e9, messages

    serve(pipe, work=work)


def _send(pipe: Connection, engine: pynotify.Engine) -> None:
    notify, clock = engine.connect().notify, time.monotonic_ns

    def send(count: int) -> None:
        began, interval = clock(), 1_000_000_000 // _RATE
        for number in range(count):
            while clock() < began + number * interval:
                pass
            notify("c", "x" * 100)

    serve(pipe, send=send)
