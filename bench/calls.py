"""What single calls cost their caller, beside the same calls of the core made from C.

Processor time of the calling thread, so that others on the machine change little.  The C side is
`bench_calls`, a process of its own with a segment of its own; the passes take turns.  One thread
has two connections: one sends 100 bytes, the other listens and is awake, so no signal is sent;
bodies of topics have 200 bytes.  The loop is timed, and that what is returned is freed; what
prepares a call is not.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from itertools import repeat
from pathlib import Path

import pynotify
from bench import native_programs
from bench.pairs import alternate
from bench.settings import Settings

TOPIC = "calls"
UNIT = "ns"

_CALLS = 20_000
_PAIRS = 15
_CHANNEL = "bench"
_PAYLOAD = b"x" * 100
_BODY = b"x" * 200
_AT_ONCE = 1_000
_MANY = [number.to_bytes(4, "little") + _PAYLOAD[4:] for number in range(_AT_ONCE)]
_PROGRAM = "bench_calls"


@dataclass(frozen=True)
class _Call:
    """`make(n)` makes n calls of `each` messages; they are `rounds_of` between `before`, `after`.

    `name` is what the program calls it.
    """

    name: str
    title: str
    make: Callable[[int], object]
    before: Callable[[int], object] = int
    after: Callable[[int], object] = int
    rounds_of: int | None = None
    each: int = 1
    bar: float | None = None

    def run(self, count: int) -> float:
        """Nanoseconds of one message of `count`."""
        calls = count // self.each
        at_once = self.rounds_of or calls
        spent = 0
        for _ in range(calls // at_once):
            self.before(at_once)
            begin = time.thread_time_ns()
            self.make(at_once)
            spent += time.thread_time_ns() - begin
            self.after(at_once)
        return spent / (calls * self.each)


class _Ours:
    """The calls from Python."""

    def __init__(self, sender: pynotify.Connection, listener: pynotify.Connection) -> None:
        self._sender = sender
        self._listener = listener
        listener.listen(_CHANNEL)
        self._topic = sender.topic("t")
        self._consumer = self._topic.channel("c").consumer(max_in_flight=100)

    def close(self) -> None:
        self._consumer.close()

    def calls(self) -> list[_Call]:
        """The bars are those of the issue that asked for calls in C."""
        return [
            _Call("notify", "notify", self._notify, after=self._drain, bar=2.5),
            _Call(
                "notify-many",
                "notify_many of 1,000, a payload",
                self._notify_many,
                after=self._drain,
                rounds_of=1,
                each=_AT_ONCE,
            ),
            _Call(
                "poll-many",
                "poll of 1,000, a message",
                self._poll_many,
                before=self._notify_many,
                rounds_of=1,
                each=_AT_ONCE,
                bar=4,
            ),
            _Call("poll-one", "poll of one", self._poll_one, before=self._notify),
            _Call("poll-none", "poll that finds nothing", self._poll_none),
            _Call("notify-poll", "notify and poll of it", self._notify_and_poll),
            _Call("publish", "publish", self._publish, after=self._get_and_finish),
            _Call("get-finish", "get and finish", self._get_and_finish, before=self._publish),
        ]

    def _notify(self, count: int) -> None:
        notify = self._sender.notify
        for _ in repeat(None, count):
            notify(_CHANNEL, _PAYLOAD)

    def _notify_many(self, _count: int) -> None:
        self._sender.notify_many(_CHANNEL, _MANY, dedup=False)

    def _drain(self, _count: int) -> None:
        self._listener.poll()

    def _poll_many(self, _count: int) -> None:
        assert len(self._listener.poll()) == _AT_ONCE

    def _poll_one(self, count: int) -> None:
        poll = self._listener.poll
        for _ in repeat(None, count):
            (_message,) = poll(1)

    def _poll_none(self, count: int) -> None:
        poll = self._listener.poll
        for _ in repeat(None, count):
            poll()

    def _notify_and_poll(self, count: int) -> None:
        notify, poll = self._sender.notify, self._listener.poll
        for _ in repeat(None, count):
            notify(_CHANNEL, _PAYLOAD)
            (_message,) = poll()

    def _publish(self, count: int) -> None:
        publish = self._topic.publish
        for _ in repeat(None, count):
            publish(_BODY)

    def _get_and_finish(self, count: int) -> None:
        get = self._consumer.get
        for _ in repeat(None, count):
            get(0).finish()


class _Core:
    """The program that makes the same calls from C."""

    def __init__(self, program: Path) -> None:
        command = [str(program), "--serve"]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )

    def run(self, name: str, count: int) -> float:
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(f"{name} {count}\n")
        return float(process.stdout.readline())

    def close(self) -> None:
        """It ends when its input does."""
        self._process.communicate()


def run(settings: Settings) -> None:
    """Each call, from Python and from C; nothing where the program has not been built."""
    program = native_programs.find_one(_PROGRAM)
    if program is None:
        print(f"{TOPIC}: left out: no {_PROGRAM} under build/, which `make build` makes")
        return
    name = f"bench-calls-python-{os.getpid()}"
    with ExitStack() as stack:
        stack.callback(pynotify.unlink, name, missing_ok=True)
        sender, listener = (stack.enter_context(pynotify.connect(name)) for _ in range(2))
        ours, core = _Ours(sender, listener), _Core(program)
        stack.callback(ours.close)
        stack.callback(core.close)
        # A round is a thousand at least, and is had whole.
        count = max(settings.messages(_CALLS), 2 * _AT_ONCE)
        for call in ours.calls():
            passes = [partial(call.run, count), partial(core.run, call.name, count)]
            python, c = alternate(passes, settings.pairs(_PAIRS))
            settings.compare(
                TOPIC, call.title, UNIT, python, c,
                against="the core, from C", bar=call.bar, at_most=True,
            )  # fmt: skip
