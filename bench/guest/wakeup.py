"""From the sender's clock to a task of an event loop that slept.

The floor is the least that an event loop can do: `loop.add_reader` on an eventfd, whose callback
reads it and sets a future, which the task awaits.  No message comes with it.  The clock is taken
before the call that sends and when the task has gone on, for both sides; the sender's stamps
travel in shared memory.
"""

from __future__ import annotations

import asyncio
import importlib.util
import mmap
import operator
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from multiprocessing.connection import Connection
from typing import ClassVar, Self

import pynotify
from bench.figures import compare
from bench.peer import message_number, payload
from bench.rig import Child, Lost, pin_all_threads
from bench.settings import Settings

TOPIC = "guest"
COMMAND = "python -m bench --only guest"
CHANNEL = "bench"
UNIT = "us"

_SAMPLES = 2_000
_PAUSE = 0.001
_PAIRS = 11
_SCALE_PAIRS = 3
_QUANTILES = (("p50", 0.50), ("p99", 0.99))
_BAR = 1.2
# Sender's CPU, listener's CPU; each turns round with every second pair.
_PLACES = {"one CPU": ((0, 0), (1, 1)), "two CPUs": ((0, 1), (1, 0))}


class Side(ABC):
    """Prepared and disposed of by the parent; the rest happens in its children."""

    name: ClassVar[str]

    def __init__(self) -> None:
        #: What the sender's clock showed before each message of a pass.
        self.stamps = memoryview(mmap.mmap(-1, 8 * _SAMPLES)).cast("q")

    def prepare(self) -> None:  # noqa: B027
        """Before the children are forked."""

    @abstractmethod
    def waker(self) -> Callable[[bytes], object]:
        """Sends a message."""

    def message(self, number: int) -> bytes:
        """What the waker is called with, made beforehand."""
        return payload(number)

    @abstractmethod
    async def open(self) -> None:
        """Listen, in the loop."""

    @abstractmethod
    async def take(self, count: int) -> list[int]:
        """So many messages, in the loop; the moment at which each was there."""

    def signals(self) -> int:
        """How many were sent until now."""
        return 0

    def dispose(self) -> None:  # noqa: B027
        """After the children have ended."""


class Eventfd(Side):
    """The floor."""

    name = "bare loop.add_reader(eventfd)"

    def prepare(self) -> None:
        self._fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)

    def waker(self) -> Callable[[bytes], object]:
        return partial(os.write, self._fd)

    def message(self, number: int) -> bytes:
        return (1).to_bytes(8, "little")

    async def open(self) -> None:
        loop, fd, read = asyncio.get_running_loop(), self._fd, os.read
        self._future: asyncio.Future[bytes] = loop.create_future()

        def on_readable() -> None:
            self._future.set_result(read(fd, 8))

        loop.add_reader(fd, on_readable)

    async def take(self, count: int) -> list[int]:
        loop, clock = asyncio.get_running_loop(), time.monotonic_ns
        moments: list[int] = []
        while len(moments) < count:
            writes = await self._future
            now = clock()
            self._future = loop.create_future()
            moments += [now] * int.from_bytes(writes, "little")
        return moments

    def dispose(self) -> None:
        os.close(self._fd)


class Notifies(Side):
    """`async for notify in conn.notifies()`."""

    name = "AsyncConnection.notifies()"
    _serial = 0

    def prepare(self) -> None:
        Notifies._serial += 1
        self._segment = f"bench-guest-{os.getpid()}-{Notifies._serial}"
        self._engine = pynotify.open(self._segment)

    def waker(self) -> Callable[[bytes], object]:
        self._sender = self._engine.connect()
        return partial(self._sender.notify, CHANNEL)

    async def open(self) -> None:
        self._conn = await pynotify.AsyncConnection.connect(self._segment)
        await self._conn.listen(CHANNEL)

    async def take(self, count: int) -> list[int]:
        clock = time.monotonic_ns
        moments, messages = [], []
        async for message in self._conn.notifies(stop_after=count):
            moments.append(clock())
            messages.append(message)
        self._verify(messages)
        return moments

    def _verify(self, messages: Sequence[pynotify.Notify | pynotify.Gap]) -> None:
        for number, message in enumerate(messages):
            if isinstance(message, pynotify.Gap) or message_number(message.data) != number:
                raise Lost(f"{self.name}: message {number} is {message!r}")

    def signals(self) -> int:
        return self._engine.stat().signals_sent

    def dispose(self) -> None:
        self._engine.close()
        pynotify.unlink(self._segment, force=True)


class Subscribes(Notifies):
    """`await subscription.next()`."""

    name = "AsyncSubscription.next()"

    async def open(self) -> None:
        self._conn = await pynotify.AsyncConnection.connect(self._segment)
        self._subscription = await self._conn.subscribe(CHANNEL)

    async def take(self, count: int) -> list[int]:
        clock, receive = time.monotonic_ns, self._subscription.next
        moments, messages = [], []
        for _ in range(count):
            message = await receive()
            moments.append(clock())
            messages.append(message)
        self._verify(messages)
        return moments


class Pair:
    """One side with its sender and its listener, ready for any number of passes."""

    def __init__(self, side: Side, loop: str) -> None:
        self.side = side
        self._loop = loop
        self.messages = self.signals = 0

    def __enter__(self) -> Self:
        self.side.prepare()
        self._listener = Child(self._listen)
        self._listener.answer()
        self._sender = Child(self._send)
        self._sender.answer()
        return self

    def __exit__(self, kind: object, error: object, _traceback: object) -> None:
        for child in (self._sender, self._listener):
            if error is not None:
                child.process.kill()
            child.end() if error is None else child.process.join()
        self.side.dispose()

    def pin(self, sender_cpu: int, listener_cpu: int) -> None:
        """To the nth CPUs that this process may use, modulo their number."""
        allowed = sorted(os.sched_getaffinity(0))
        for child, cpu in ((self._sender, sender_cpu), (self._listener, listener_cpu)):
            child.ask("pin", allowed[cpu % len(allowed)])
            child.answer()

    def latencies(self, count: int) -> list[int]:
        """Sorted, in ns; a pause before each message, so that the loop sleeps."""
        before = self.side.signals()
        self._listener.ask("pass", count)
        self._sender.ask("pass", count)
        self._sender.answer()
        moments: list[int] = self._listener.answer()
        self.signals += self.side.signals() - before
        self.messages += count
        return sorted(map(operator.sub, moments, self.side.stamps))

    def _send(self, pipe: Connection) -> None:
        wake, stamps, clock = self.side.waker(), self.side.stamps, time.monotonic_ns
        pipe.send("ready")
        while (command := pipe.recv())[0] != "quit":
            if command[0] == "pin":
                pin_all_threads(command[1])
            else:
                messages = [self.side.message(number) for number in range(command[1])]
                for number, message in enumerate(messages):
                    time.sleep(_PAUSE)
                    stamps[number] = clock()
                    wake(message)
            pipe.send("done")

    def _listen(self, pipe: Connection) -> None:
        with asyncio.Runner(loop_factory=_loop_factory(self._loop)) as runner:
            runner.run(self.side.open())
            pipe.send("ready")
            while (command := pipe.recv())[0] != "quit":
                if command[0] == "pin":
                    pin_all_threads(command[1])
                    pipe.send("done")
                else:
                    pipe.send(runner.run(self.side.take(command[1])))


def run(settings: Settings) -> None:
    """With the loop of the standard library, and for scale with uvloop."""
    _compare(settings, Notifies, pairs=_PAIRS, bar=_BAR)
    _compare(settings, Subscribes, pairs=_SCALE_PAIRS)
    if importlib.util.find_spec("uvloop") is not None:
        _compare(settings, Notifies, loop="uvloop", pairs=_SCALE_PAIRS)


def _compare(
    settings: Settings,
    kind: type[Side],
    *,
    pairs: int,
    loop: str = "asyncio",
    bar: float | None = None,
) -> None:
    with ExitStack() as stack:
        sides = [stack.enter_context(Pair(side(), loop)) for side in (kind, Eventfd)]
        for place in _PLACES:
            ours, bare = _alternate(settings, sides, place, pairs)
            note = f"asleep for {sides[0].signals / sides[0].messages:.1%} of the messages"
            for label, quantile in _QUANTILES:
                settings.report(
                    compare(
                        TOPIC,
                        f"wake-up of a task, {loop}, {kind.name}, {label}, {place}",
                        UNIT,
                        [_quantile(taken, quantile) for taken in ours],
                        [_quantile(taken, quantile) for taken in bare],
                        against=Eventfd.name,
                        command=COMMAND,
                        bar=bar if label == "p50" else None,
                        at_most=True,
                        note=note,
                    )
                )


def _alternate(
    settings: Settings, sides: Sequence[Pair], place: str, pairs: int
) -> list[list[list[int]]]:
    """Sorted latencies of each pass of each side; one warm-up, both orders, both placements."""
    samples: list[list[list[int]]] = [[] for _ in sides]
    for repetition in range(settings.pairs(pairs) + 1):
        cpus = _PLACES[place][repetition // 2 % 2]
        order = list(range(len(sides)))
        if repetition % 2:
            order.reverse()
        for i in order:
            sides[i].pin(*cpus)
            taken = sides[i].latencies(settings.messages(_SAMPLES))
            if repetition:
                samples[i].append(taken)
    return samples


def _quantile(taken: Sequence[int], quantile: float) -> float:
    """In us."""
    return taken[min(int(len(taken) * quantile), len(taken) - 1)] / 1000


def _loop_factory(name: str) -> Callable[[], asyncio.AbstractEventLoop] | None:
    if name != "uvloop":
        return None
    import uvloop

    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory
