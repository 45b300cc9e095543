"""The processes.  Each inherits the engine by fork and makes a connection of its own.

None of them polls or sleeps: they wait for a notification, or at the read end of the lifeline, a
pipe that only the parent can write to and that closes when the parent ends the run or dies.
"""

from __future__ import annotations

import os
import select
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from pathlib import Path

import pynotify
from pynotify.demo import interrupts, ledger
from pynotify.demo.source import Library, SourceFile
from pynotify.demo.workload import Passage, Plan, plans

# How long a listener waits before it makes sure that there still is a process to listen for.
_PATIENCE = 5.0


@dataclass(frozen=True)
class Setting:
    """What all processes share."""

    engine: pynotify.Engine
    library: Library
    logs: Path
    parent: int
    lifeline: int
    lifeline_end: int

    def enter_child(self) -> None:
        """First of all."""
        interrupts.ignore_in_child()
        os.close(self.lifeline_end)

    def connect(self) -> pynotify.Connection:
        """Connect to the segment of the demo."""
        return self.engine.connect(latency_log=self.logs)

    def check_parent(self) -> None:
        """End the process when the demo has died."""
        if os.getppid() != self.parent:
            raise SystemExit(1)


def _listen(conn: pynotify.Connection, name: str, channels: Iterable[str]) -> None:
    """LISTEN, and say so in the same commit: its number is where the listener's claims begin."""
    with conn.transaction():
        conn.listen(*channels)
        conn.notify(ledger.CHANNEL, f"listening {name}")


# ---- notifiers --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Share:
    """What one notifier has to send, from transaction number `start` on."""

    notifier: int
    files: Sequence[SourceFile]
    quota: int
    start: int = 0
    #: With so many committed, stop in an open transaction, say so here and wait to be killed.
    hold_after: int | None = None
    hold_pipe: int = -1


def notifier(setting: Setting, share: Share) -> None:
    """Commits its quota; the first ones wait for the starting shot, a replacement does not."""
    setting.enter_child()
    with setting.connect() as conn:
        if share.start == 0:
            _await_start(setting, conn, share.notifier)
        committed = rolled_back = 0
        for plan in plans(share.files, share.notifier, share.quota):
            hold = share.hold_after is not None and committed >= share.hold_after
            if hold and plan.notified >= 10:
                _hold(setting, conn, plan, share.hold_pipe)
            counts = plan.committed
            committed += counts.total()
            if plan.number < share.start:
                continue
            rolled_back += plan.rolled_back
            entry = ledger.Entry(
                share.notifier, plan.number, plan.collapsed, rolled_back, counts
            ).encode()
            _send(setting, conn, plan, partial(conn.notify, ledger.CHANNEL, entry))
            if counts:
                rolled_back = 0
            setting.check_parent()
        conn.notify(ledger.CHANNEL, f"done {share.notifier}")


def _await_start(setting: Setting, conn: pynotify.Connection, number: int) -> None:
    with conn.transaction():
        conn.listen(ledger.CONTROL)
        conn.notify(ledger.CHANNEL, f"ready {number}")
    while not any(message.data == ledger.START for message in _receive(setting, conn)):
        pass
    conn.unlisten(ledger.CONTROL)


def _send(
    setting: Setting, conn: pynotify.Connection, plan: Plan, last: Callable[[], object]
) -> None:
    with conn.transaction() as whole:
        _notify(setting, conn, plan.first)
        if plan.nested:
            with conn.transaction() as nested:
                _notify(setting, conn, plan.nested)
                if plan.nested_undone:
                    raise pynotify.Rollback(nested)
        _notify(setting, conn, plan.last)
        if plan.undone:
            raise pynotify.Rollback(whole)
        last()


def _notify(setting: Setting, conn: pynotify.Connection, passages: Iterable[Passage]) -> None:
    for passage in passages:
        channel = setting.library.channels[passage.channel]
        if len(passage.lines) == 1:
            conn.notify(channel, passage.lines[0])
            continue
        queued = conn.notify_many(channel, passage.lines)
        if queued != passage.distinct:
            raise AssertionError(
                f"{len(passage.lines)} lines of {channel} left {queued} notifications after "
                f"collapsing, not {passage.distinct}"
            )


def _hold(setting: Setting, conn: pynotify.Connection, plan: Plan, pipe: int) -> None:
    """An open transaction, never committed: the parent kills us in the middle of it."""

    def wait_to_be_killed() -> None:
        os.write(pipe, str(plan.notified).encode())
        os.read(setting.lifeline, 1)
        raise SystemExit(1)

    plan.undone = False
    _send(setting, conn, plan, wait_to_be_killed)


# ---- listeners --------------------------------------------------------------------------------


def listener(setting: Setting, name: str, channels: Sequence[int]) -> None:
    """Reads its channels up to the end, tells how much there was, and leaves."""
    setting.enter_child()
    names = [setting.library.channels[channel] for channel in channels]
    with setting.connect() as conn:
        _listen(conn, name, names)
        heard: Counter[str] = Counter()
        ended: set[str] = set()
        while len(ended) < len(names):
            messages = _receive(setting, conn)
            heard.update(map(attrgetter("channel"), messages))
            # The ends of all channels are one transaction: they come together, and last.
            if messages[-1].data == ledger.END:
                ended.update(m.channel for m in messages if m.data == ledger.END)
        counts = ",".join(str(heard[channel]) for channel in setting.library.channels)
        conn.notify(ledger.CHANNEL, f"heard {name} {counts}")
        conn.unlisten_all()


def _receive(setting: Setting, conn: pynotify.Connection) -> list[pynotify.Notify]:
    """At least one message."""
    while True:
        if not conn.wait(_PATIENCE):
            setting.check_parent()
            continue
        messages = []
        for message in conn.poll():
            if isinstance(message, pynotify.Gap):
                raise AssertionError(f"the engine reports a gap: {message}")
            messages.append(message)
        if messages:
            return messages


def idle_listener(setting: Setting, name: str) -> None:
    """Listens to channels on which nothing is sent, in an event loop, until the lifeline closes."""
    setting.enter_child()
    with setting.connect() as conn:
        _listen(conn, name, [f"demo.{name}"])
        loop = select.poll()
        loop.register(setting.lifeline, select.POLLIN)
        loop.register(conn.fileno(), select.POLLIN)
        received = 0
        while not any(fd == setting.lifeline for fd, _ in loop.poll()):
            received += len(conn.poll())  # the connection's own slow timer, or a message
        conn.notify(ledger.CHANNEL, f"idle {name} {received}")
        conn.unlisten_all()
