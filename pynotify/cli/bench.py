"""`pynotify bench`: how fast is it here?  One notifier, one listener process, two passes.

* wake-ups: a message each millisecond to a listener that sleeps (in a stream it would not), from
  the commit to poll()'s return in the listener
* stream: as many as go through, the notifier waiting when the queue is full
"""

from __future__ import annotations

import logging
import os
import signal
import statistics
import sys
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, NamedTuple

from pynotify._engine import open as open_segment
from pynotify._segments import unlink
from pynotify.cli import arguments
from pynotify.cli.terminal import tidied_up
from pynotify.errors import Error

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from pynotify._connection import Connection
    from pynotify._engine import Engine

_PING, _PONG, _STREAM, _END, _READY = "ping", "pong", "stream", "end", "ready"
_PATIENCE = 10.0
_PAUSE = 0.001
_ENDINGS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_BURST = 64
_KEPT = 1_000_000  # latencies; the listener may not grow without end


class Result(NamedTuple):
    """Latencies in microseconds, one way."""

    payload_bytes: int
    wakeups: int
    p50_us: float
    p99_us: float
    max_us: float
    messages: int
    messages_per_s: float


class BenchError(OSError):
    """The listener ended or did not answer."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the command."""
    parser.add_argument(
        "--duration",
        type=arguments.positive_seconds,
        default=3.0,
        metavar="S",
        help="of each of the two passes (default: 3)",
    )
    parser.add_argument(
        "--payload", type=arguments.size, default=64, metavar="BYTES", help="(default: 64)"
    )
    arguments.add_json(parser, "an object")


def run(options: argparse.Namespace) -> int:
    """Measure in a segment of its own, and print."""
    # The queue is full on purpose.
    logging.getLogger("pynotify").setLevel(logging.ERROR)
    name = f"bench-{os.getpid()}"
    with tidied_up(), ExitStack() as stack:
        engine = stack.enter_context(open_segment(name, on_full="block"))
        stack.callback(unlink, name, missing_ok=True, force=True)
        result = _measure(engine, options.duration, options.payload)
    if options.json:
        arguments.print_json(result._asdict())
        return 0
    print(f"payload           {result.payload_bytes} bytes")
    print(f"wake-up, one way  p50 {result.p50_us:.1f} us, p99 {result.p99_us:.1f} us, "
          f"max {result.max_us:.1f} us ({result.wakeups:,} times)")  # fmt: skip
    print(f"stream            {result.messages_per_s:,.0f} messages/s ({result.messages:,})")
    return 0


def _measure(engine: Engine, seconds: float, size: int) -> Result:
    payload = b"x" * size
    with engine.connect() as notifier, _Listener(engine) as listener:
        notifier.listen(_PONG, _READY)
        listener.start()
        _await(notifier, _READY, listener)
        wakeups = _ping(notifier, listener, payload, seconds)
        begun = time.monotonic()
        sent = _stream(notifier, payload, seconds)
        notifier.notify(_END)
        p50, p99, worst, received = map(float, _await(notifier, _PONG, listener).split())
        elapsed = time.monotonic() - begun
    if received != sent:
        raise BenchError(f"sent {sent} messages, of which {received:.0f} arrived")
    return Result(size, wakeups, p50, p99, worst, sent, sent / elapsed)


def _ping(notifier: Connection, listener: _Listener, payload: bytes, seconds: float) -> int:
    progress = _Progress("wake-ups", seconds)
    count = 0
    while progress.goes_on(count):
        notifier.notify(_PING, payload)
        _await(notifier, _PONG, listener)
        count += 1
        time.sleep(_PAUSE)
    return count


def _stream(notifier: Connection, payload: bytes, seconds: float) -> int:
    progress = _Progress("stream", seconds)
    count = 0
    while progress.goes_on(count):
        for _ in range(_BURST):
            notifier.notify(_STREAM, payload)
        count += _BURST
    return count


def _await(conn: Connection, channel: str, listener: _Listener) -> str:
    """The payload of the next message, which must come on `channel`."""
    deadline = time.monotonic() + _PATIENCE
    while not (messages := conn.poll(1)):
        if not conn.wait(0.5) and (time.monotonic() > deadline or listener.has_ended()):
            raise BenchError("the listener does not answer")
    (message,) = messages
    if message.channel != channel:
        raise BenchError(f"unexpected {message!r}")
    return message.payload


class _Progress:
    """Whether the time is over; a line on the terminal each second."""

    def __init__(self, what: str, seconds: float) -> None:
        self._what, self._shown = what, sys.stderr.isatty()
        self._begun = self._last = time.monotonic()
        self._end = self._begun + seconds

    def goes_on(self, count: int) -> bool:
        now = time.monotonic()
        if self._shown and (now - self._last >= 1.0 or now >= self._end):
            self._last = now
            line = f"{self._what}: {now - self._begun:.0f} s, {count / (now - self._begun):,.0f}/s"
            print(line, file=sys.stderr, flush=True)
        return now < self._end


class _Listener:
    """A process by fork(), which the engine survives."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._pid = 0

    def start(self) -> None:
        parent = os.getpid()
        # An exception out of a signal handler is lost in what Python runs around a fork.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _ENDINGS)
        self._pid = os.fork()
        if self._pid == 0:
            _in_child(lambda: _listen(self._engine, parent))
        signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def has_ended(self) -> bool:
        return os.waitid(os.P_PID, self._pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def __enter__(self) -> _Listener:
        return self

    def __exit__(self, *_error: object) -> None:
        if self._pid:
            os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)


def _in_child(work: Callable[[], None]) -> None:
    """Nothing of the parent's clean-up may run here."""
    status = 1
    try:
        for number in _ENDINGS:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _ENDINGS)
        work()
        status = 0
    except Error as error:
        print(f"pynotify bench: listener: {error}", file=sys.stderr, flush=True)
    finally:
        os._exit(status)


def _listen(engine: Engine, parent: int) -> None:
    """Answer each ping, count the stream, and report at its end."""
    latencies: list[int] = []
    received = 0
    with engine.connect() as conn:
        conn.listen(_PING, _STREAM, _END)
        conn.notify(_READY)
        while True:
            if not conn.wait(1.0) and os.getppid() != parent:
                return
            messages = conn.poll()
            now = time.monotonic_ns()
            for message in messages:
                if message.channel == _STREAM:
                    received += 1
                elif message.channel == _PING:
                    if len(latencies) < _KEPT:
                        latencies.append(now - message.sent_ns)
                    conn.notify(_PONG)
                else:
                    conn.notify(_PONG, f"{_report(latencies)} {received}")


def _report(latencies: list[int]) -> str:
    """p50, p99 and the worst, in microseconds."""
    if len(latencies) < 2:
        latencies = (latencies or [0]) * 2
    points = statistics.quantiles(latencies, n=100, method="inclusive")
    return " ".join(f"{value / 1000:.3f}" for value in (points[49], points[98], max(latencies)))
