"""The run: one segment, the processes that share it, two kills, and the end of the stream.

Everything is an event: a message on the ledger, the death of a process, a word through a pipe.
"""

from __future__ import annotations

import multiprocessing
import os
import selectors
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from multiprocessing.context import ForkProcess
from pathlib import Path
from typing import Any

import pynotify
from pynotify.demo import interrupts, ledger, workers
from pynotify.demo.progress import Progress
from pynotify.demo.source import Library

NOTIFIERS = 4
LISTENERS = 6
IDLE = 50

# Small, so that a message does not grow old in it: at full load the queue is full.
QUEUE_PAGES = 256
# Two cores, sixty processes: a listener may have to wait for its turn.
FULL_TIMEOUT = 120.0
_SILENCE_S = 120.0
_KILL_LISTENER_AT = 0.3
_HOLD_NOTIFIER_AT = 0.4
_VICTIM = 0


class DemoError(Exception):
    """The demonstration could not be run to its end."""


@dataclass(frozen=True)
class Worker:
    """A process that ran: `name` is its part, such as "listener 3" or "idle 17"."""

    name: str
    pid: int
    role: str
    number: int
    channels: tuple[int, ...] = ()
    replacement: bool = False
    killed: bool = False

    @property
    def survived(self) -> bool:
        """Whether it was not killed."""
        return not self.killed


@dataclass
class Outcome:
    """What the parent knows when all is over."""

    library: Library
    notifications: int
    workers: list[Worker]
    accounts: ledger.Ledger
    before: pynotify.EngineStat
    after: pynotify.EngineStat
    parent: int
    #: In the transaction that the killed notifier had open.
    open_when_killed: int
    #: Committed when the listener was killed.
    killed_listener_at: int
    seconds: float
    check_problems: list[str]
    #: Sent by the parent: the ends of the channels, and the starting shot.
    sent_by_parent: int


def listened_channels(library: Library) -> list[tuple[int, ...]]:
    """Which listener hears what: each channel one that survives, two thirds of them two.

    The one to be killed hears only what another one hears too, so that every notification of the
    run is heard by a listener.
    """
    lists: list[list[int]] = [[] for _ in range(LISTENERS)]
    survivors = LISTENERS - 1
    for channel in range(len(library.channels)):
        first = 1 + channel % survivors
        lists[first].append(channel)
        if channel % 3 == 0:
            lists[_VICTIM].append(channel)
        elif channel % 3 == 1:
            lists[1 + (channel + 1 + channel // survivors % (survivors - 1)) % survivors].append(
                channel
            )
    return [tuple(channels) for channels in lists]


class Stage:
    """The processes of one run.  Leaving the block ends whatever is left of them."""

    def __init__(
        self, library: Library, notifications: int, logs: Path, progress: Progress
    ) -> None:
        self._library = library
        self._notifications = notifications
        self._logs = logs
        self._progress = progress
        self._fork = multiprocessing.get_context("fork")
        self._processes: dict[str, ForkProcess] = {}
        self._workers: dict[str, Worker] = {}
        self._past: list[Worker] = []
        self._accounts = ledger.Ledger()
        self._held: int | None = None
        self._last_news = time.monotonic()
        self._stack = ExitStack()

    def __enter__(self) -> Stage:
        with ExitStack() as stack:
            name = f"demo-{os.getpid()}"
            stack.callback(pynotify.unlink, name, missing_ok=True, force=True)
            self._engine = pynotify.open(
                name, queue_pages=QUEUE_PAGES, on_full="block", full_timeout=FULL_TIMEOUT
            )
            stack.callback(self._engine.close)
            self._conn = stack.enter_context(self._engine.connect(latency_log=self._logs))
            self._selector = stack.enter_context(selectors.DefaultSelector())
            self._lifeline, self._lifeline_end = os.pipe()
            stack.callback(os.close, self._lifeline)
            stack.callback(self._cut_lifeline)
            self._hold, self._hold_end = os.pipe()
            stack.callback(os.close, self._hold)
            stack.callback(os.close, self._hold_end)
            self._selector.register(self._conn.fileno(), selectors.EVENT_READ, self._read_ledger)
            self._selector.register(self._hold, selectors.EVENT_READ, self._read_hold)
            stack.callback(self._end_all)
            self._setting = workers.Setting(
                self._engine,
                self._library,
                self._logs,
                os.getpid(),
                self._lifeline,
                self._lifeline_end,
            )
            self._conn.listen(ledger.CHANNEL)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    # ---- the script ---------------------------------------------------------------------------

    def run(self) -> Outcome:
        """Run everything from the first fork to the last exit."""
        self._start_listeners()
        shares = self._start_notifiers()
        before = self._engine.stat()
        begun = time.monotonic()
        self._progress.begin(self._notifications)
        self._conn.notify(ledger.CONTROL, ledger.START)
        self._until(lambda: self._accounts.total >= _KILL_LISTENER_AT * self._notifications)
        killed_at = self._replace_listener()
        held = self._replace_notifier(shares[_VICTIM])
        self._until(lambda: self._accounts.all_done)
        with self._conn.transaction():
            for channel in self._library.channels:
                self._conn.notify(channel, ledger.END)
        listening = [w.name for w in self._workers.values() if w.role == "listener"]
        self._until(lambda: self._accounts.heard.keys() >= set(listening))
        seconds = time.monotonic() - begun
        after = self._engine.stat()
        self._end_idle()
        return Outcome(
            library=self._library,
            notifications=self._notifications,
            workers=[*self._past, *self._workers.values()],
            accounts=self._accounts,
            before=before,
            after=after,
            parent=os.getpid(),
            open_when_killed=held,
            killed_listener_at=killed_at,
            seconds=seconds,
            check_problems=self._close_and_check(),
            sent_by_parent=len(self._library.channels) + 1,
        )

    def _start_listeners(self) -> None:
        for number in range(IDLE):
            self._start(workers.idle_listener, "idle", number)
        for number, channels in enumerate(listened_channels(self._library)):
            self._start(workers.listener, "listener", number, channels, channels=channels)
        self._until(lambda: len(self._accounts.listening) == IDLE + LISTENERS)

    def _start_notifiers(self) -> list[workers.Share]:
        quota, rest = divmod(self._notifications, NOTIFIERS)
        shares = []
        for number in range(NOTIFIERS):
            share = workers.Share(
                number, self._library.files[number::NOTIFIERS], quota + (number < rest)
            )
            shares.append(share)
            self._accounts.notifiers[number] = ledger.NotifierAccount()
            if number == _VICTIM:
                hold_after = int(_HOLD_NOTIFIER_AT * share.quota)
                share = replace(share, hold_after=hold_after, hold_pipe=self._hold_end)
            self._start(workers.notifier, "notifier", number, share)
        self._until(lambda: len(self._accounts.ready) == NOTIFIERS)
        return shares

    def _replace_listener(self) -> int:
        """SIGKILL wherever it is just now; its replacement listens again."""
        committed = self._accounts.total
        victim = self._kill(f"listener-{_VICTIM}")
        name = self._start(
            workers.listener,
            "listener",
            _VICTIM,
            victim.channels,
            channels=victim.channels,
            replacement=True,
        )
        self._until(lambda: name in self._accounts.listening)
        return committed

    def _replace_notifier(self, share: workers.Share) -> int:
        """SIGKILL in an open transaction; its replacement goes on after the last commit."""
        self._until(lambda: self._held is not None)
        self._kill(f"notifier-{_VICTIM}")
        # Every commit of the dead one is in the queue by now; this reads to its end.
        self._read_ledger()
        rest = replace(share, start=self._accounts.notifiers[_VICTIM].last_number + 1)
        self._start(workers.notifier, "notifier", _VICTIM, rest, replacement=True)
        assert self._held is not None
        return self._held

    def _end_idle(self) -> None:
        self._cut_lifeline()
        self._until(lambda: len(self._accounts.idle) == IDLE)

    def _close_and_check(self) -> list[str]:
        """What is wrong with the segment when all processes have left it."""
        for name in self._workers:
            self._processes[name].join()
            self._check_end_of(name)
        self._read_ledger()
        self._selector.unregister(self._conn.fileno())
        self._conn.unlisten_all()
        self._conn.close()
        problems = self._engine.check().problems
        left = self._engine.stat().backends
        return [*problems, *(f"backend {b.backend_id} of {b.pid} is left" for b in left)]

    # ---- processes ----------------------------------------------------------------------------

    def _start(
        self,
        target: Callable[..., None],
        role: str,
        number: int,
        *arguments: Any,
        channels: Sequence[int] = (),
        replacement: bool = False,
    ) -> str:
        name = f"{role}-{number}" + ("-again" if replacement else "")
        given = arguments if role == "notifier" else (name, *arguments)
        process = self._fork.Process(target=target, args=(self._setting, *given), name=name)
        with interrupts.held_back():
            process.start()
            self._processes[name] = process
        assert process.pid is not None
        self._workers[name] = Worker(
            name, process.pid, role, number, tuple(channels), replacement=replacement
        )
        self._selector.register(
            process.sentinel, selectors.EVENT_READ, lambda: self._see_end_of(name)
        )
        self._read_ledger()  # sixty forks take a while
        return name

    def _kill(self, name: str) -> Worker:
        process = self._processes[name]
        self._selector.unregister(process.sentinel)
        process.kill()
        process.join()
        dead = replace(self._workers.pop(name), killed=True)
        self._past.append(dead)
        return dead

    def _see_end_of(self, name: str) -> None:
        process = self._processes[name]
        self._selector.unregister(process.sentinel)
        process.join()
        self._check_end_of(name)

    def _check_end_of(self, name: str) -> None:
        status = self._processes[name].exitcode
        if status != 0:
            raise DemoError(f"{name} ended with exit status {status}")

    def _end_all(self) -> None:
        """In the end no process is left; after an error or Ctrl-C this is what ends them."""
        self._cut_lifeline()
        for process in self._processes.values():
            if process.is_alive():
                process.kill()
        for process in self._processes.values():
            process.join()
            process.close()

    def _cut_lifeline(self) -> None:
        end, self._lifeline_end = self._lifeline_end, -1
        if end >= 0:
            os.close(end)

    # ---- events -------------------------------------------------------------------------------

    def _until(self, over: Callable[[], bool]) -> None:
        while not over():
            for key, _ in self._selector.select(_SILENCE_S):
                key.data()
            self._progress_or_silence()

    def _progress_or_silence(self) -> None:
        if self._accounts.ready and self._accounts.total:
            self._progress.show(self._accounts.total)
        if time.monotonic() - self._last_news > _SILENCE_S:
            raise DemoError(f"nothing was heard from any process for {_SILENCE_S:.0f} s")

    def _read_ledger(self) -> None:
        for message in self._conn.poll():
            if isinstance(message, pynotify.Gap):
                raise DemoError(f"the engine reports a gap in the ledger: {message}")
            self._accounts.take(message)
            self._last_news = time.monotonic()

    def _read_hold(self) -> None:
        self._held = int(os.read(self._hold, 100))
        self._last_news = time.monotonic()


def owed(outcome: Outcome, worker: Worker) -> Counter[int]:
    """What a listener must have been handed by the notifiers' accounts: with a channel's end."""
    expected = outcome.accounts.owed_to(worker.name, list(worker.channels))
    expected.update(worker.channels)
    return expected
