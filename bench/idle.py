"""What 1,000 listeners cost that are not concerned.

A thousand processes, each with a connection and a channel of its own, sleep in wait().  One active
listener reads what one or four notifiers send on another channel; the rate counts until it has
everything.  "Without" is a segment with the same options and no other process in it, "with" is the
segment of the thousand; passes alternate.  The processor time that the thousand use meanwhile is
printed, so that they cannot hide in both.

`signaling="broadcast"` wakes every listener of the database, as PostgreSQL did up to 18 (the
same experiment on PostgreSQL 15 leaves 0.002 of the rate).
"""

from __future__ import annotations

import os
import signal
import time
from contextlib import ExitStack
from pathlib import Path
from typing import NoReturn, Self

import pynotify
from bench.pairs import alternate
from bench.peers.ours import Pynotify
from bench.rig import Lost, Rig
from bench.settings import Settings

TOPIC = "idle"
UNIT = "notifications/s"

_IDLE = 1_000
_IDLE_QUICK = 200
_MESSAGES = 100_000
_BROADCAST_MESSAGES = 200
_PAIRS = 11
_BROADCAST_PAIRS = 3
_START_TIMEOUT = 120.0


class IdleListeners:
    """`with IdleListeners(segment, 1000): ...`; the processes are killed at the end."""

    def __init__(self, segment: str, number: int) -> None:
        self._segment = segment
        self._number = number
        self._pids: list[int] = []

    def __enter__(self) -> Self:
        ready, theirs = os.pipe()
        for i in range(self._number):
            pid = os.fork()
            if pid == 0:
                self._sleep_for_ever(i, theirs)
            self._pids.append(pid)
        os.close(theirs)
        told = 0
        deadline = time.monotonic() + _START_TIMEOUT
        while told < self._number and time.monotonic() < deadline:
            chunk = os.read(ready, 4096)
            if not chunk:
                break
            told += len(chunk)
        os.close(ready)
        if told < self._number:
            self.__exit__()
            raise Lost(f"only {told} of {self._number} idle listeners have started")
        return self

    def __exit__(self, *_: object) -> None:
        for pid in self._pids:
            os.kill(pid, signal.SIGKILL)
        for pid in self._pids:
            os.waitpid(pid, 0)
        self._pids.clear()

    def _sleep_for_ever(self, i: int, ready: int) -> NoReturn:
        try:
            conn = pynotify.connect(self._segment)
            conn.listen(f"idle.{i}")
            os.write(ready, b".")
            while True:
                conn.wait()
                if conn.poll():
                    os._exit(2)
        finally:
            os._exit(1)

    def cpu_seconds(self) -> float:
        """Processor time of all of them since they were started.

        Not from /proc/PID/stat: its ticks of 10 ms would hide what a thousand use of less each.
        """
        nanoseconds = 0
        for pid in self._pids:
            text = Path(f"/proc/{pid}/schedstat").read_text(encoding="ascii")
            nanoseconds += int(text.split()[0])
        return nanoseconds / 1e9


def run(settings: Settings) -> None:
    """With one notifier, with four, and with all listeners woken."""
    for notifiers in (1, 4):
        _measure(
            settings, notifiers, number=_MESSAGES, pairs=_PAIRS, signaling="targeted", bar=0.95
        )
    _measure(
        settings,
        1,
        number=_BROADCAST_MESSAGES,
        pairs=_BROADCAST_PAIRS,
        signaling="broadcast",
        bar=None,
    )


def _measure(
    settings: Settings,
    notifiers: int,
    *,
    number: int,
    pairs: int,
    signaling: str,
    bar: float | None,
) -> None:
    messages = settings.messages(number)
    idle = _IDLE_QUICK if settings.quick else _IDLE
    alone, crowded = (
        Pynotify(settings.directory, signaling=signaling, max_backends=2 * _IDLE) for _ in range(2)
    )
    with ExitStack() as stack:
        without = stack.enter_context(Rig(alone, senders=notifiers))
        among = stack.enter_context(Rig(crowded, senders=notifiers))
        listeners = stack.enter_context(IdleListeners(crowded.segment, idle))
        before, begin = listeners.cpu_seconds(), time.monotonic()
        with_idle, without_idle = alternate(
            [lambda: among.rate(messages), lambda: without.rate(messages)],
            settings.pairs(pairs),
        )
        used = listeners.cpu_seconds() - before
        elapsed = time.monotonic() - begin
    plural = "notifier" if notifiers == 1 else "notifiers"
    settings.compare(
        TOPIC,
        f"{idle:,} idle listeners, {notifiers} {plural}, signaling={signaling}",
        UNIT,
        with_idle,
        without_idle,
        against="pynotify without idle listeners",
        bar=bar,
        note=f"the idle used {used:.2f} s of processor time in {elapsed:.1f} s",
    )
