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
from abc import abstractmethod
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from multiprocessing.connection import Connection

import pynotify
from bench.latency import PLACES, SAMPLES, quantiles
from bench.peer import Part, message_number, payload
from bench.rig import PAUSE, LatencyCrew, Lost, ask_all, serve
from bench.settings import Settings

TOPIC = "guest"
CHANNEL = "bench"
UNIT = "us"

_PAIRS = 11
_SCALE_PAIRS = 3
_BAR = 1.1


class Side(Part):
    """A way to wake a task, and the task."""

    def __init__(self) -> None:
        #: What the sender's clock showed before each message of a pass.
        self.stamps = memoryview(mmap.mmap(-1, 8 * SAMPLES)).cast("q")

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


class Pair(LatencyCrew):
    """One side with its sender and its listener, ready for any number of passes."""

    def __init__(self, side: Side, loop: str) -> None:
        super().__init__(side)
        self.side = side
        self._loop = loop
        self.messages = self.signals = 0

    def start(self) -> None:
        self.receivers = self.children([self._listen])
        self.senders = self.children([self._send])

    def latencies(self, count: int) -> list[int]:
        before = self.side.signals()
        (listener,) = self.receivers
        listener.ask("take", count)
        ask_all(self.senders, "wake", count)
        moments: list[int] = listener.answer()
        self.signals += self.side.signals() - before
        self.messages += count
        return sorted(map(operator.sub, moments, self.side.stamps))

    def _send(self, pipe: Connection) -> None:
        waker, stamps, clock = self.side.waker(), self.side.stamps, time.monotonic_ns

        def wake(count: int) -> None:
            messages = [self.side.message(number) for number in range(count)]
            for number, message in enumerate(messages):
                time.sleep(PAUSE)
                stamps[number] = clock()
                waker(message)

        serve(pipe, wake=wake)

    def _listen(self, pipe: Connection) -> None:
        with asyncio.Runner(loop_factory=_loop_factory(self._loop)) as runner:
            runner.run(self.side.open())
            serve(pipe, take=lambda count: runner.run(self.side.take(count)))


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
        for place in PLACES:
            for label, (ours, bare) in quantiles(settings, sides, place, pairs):
                settings.compare(
                    TOPIC,
                    f"wake-up of a task, {loop}, {kind.name}, {label}, {place}",
                    UNIT,
                    ours,
                    bare,
                    against=Eventfd.name,
                    bar=bar if label == "p50" else None,
                    at_most=True,
                    note=f"asleep for {sides[0].signals / sides[0].messages:.1%} of the messages",
                )


def _loop_factory(name: str) -> Callable[[], asyncio.AbstractEventLoop] | None:
    if name != "uvloop":
        return None
    import uvloop

    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory
