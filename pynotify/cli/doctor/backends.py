"""Whether each backend can be woken, and whether it reads."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pynotify._procfs import ProcessStatus, descriptors, frozen, process_status
from pynotify._table import size
from pynotify.cli.backends import process, queue_line, signal_name
from pynotify.cli.doctor.finding import Finding, Level, ok, problem, warning

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pynotify._types import BackendStat, EngineStat

_HALF_FULL = 0.5
_MOST_DESCRIPTORS = 0.9
_LISTENERS = "See docs/signals.md; a real-time signal (wakeup=) leaves this one to the host."


def check(name: str, before: EngineStat, now: EngineStat) -> Iterator[Finding]:
    """All backends of a segment, seen twice."""
    found = [
        *(finding for backend in now.backends for finding in _check_process(name, backend)),
        *_check_reading(name, before, now),
        *_check_unsent(name, before, now),
    ]
    yield from found
    for backend in now.backends:
        if backend.bridge is not None:
            text = f"process {process(backend.pid)}, {backend.bridge}, of database "
            yield ok("bridge", f'{text}"{backend.database}"', segment=name)
    if all(finding.level is Level.OK for finding in found):
        count = len(now.backends)
        text = f"{count} connected; the queue is at {queue_line(now)}"
        yield ok("backends", text, segment=name)


def _check_process(name: str, backend: BackendStat) -> Iterator[Finding]:
    pid = process(backend.pid)
    status = process_status(backend.pid)
    if status is None:
        yield problem(
            "backends",
            f"process {pid} is not visible in /proc",
            "Look from its pid namespace, and see how /proc is mounted (hidepid).",
            segment=name,
        )
        return
    yield from _check_running(name, backend, status)
    if backend.channels:
        yield from _check_signal(name, backend, status)
    used = descriptors(backend.pid)
    if used is not None and used[0] > used[1] * _MOST_DESCRIPTORS:
        yield warning(
            "backends",
            f"process {pid} has {used[0]} of {used[1]} descriptors open",
            "Raise its RLIMIT_NOFILE; without descriptors it cannot signal others.",
            segment=name,
        )


def _check_running(name: str, backend: BackendStat, status: ProcessStatus) -> Iterator[Finding]:
    if status.state in "Tt":
        how = "is stopped" if status.state == "T" else "is stopped by a debugger"
        advice = f"Let it continue (kill -CONT {backend.pid}), or end it."
    elif frozen(backend.pid):
        how, advice = "is in a frozen cgroup", "Thaw the cgroup (docker unpause), or end it."
    else:
        return
    # A backend that listens to nothing blocks no other, unless it stands in the middle of a commit.
    report = problem if backend.channels else warning
    yield report("backends", f"process {process(backend.pid)} {how}", advice, segment=name)


def _check_signal(name: str, backend: BackendStat, status: ProcessStatus) -> Iterator[Finding]:
    if isinstance(backend.wakeup, str):
        return
    bit = 1 << (backend.wakeup - 1)
    pid, what = process(backend.pid), signal_name(backend.wakeup)
    if status.ignored & bit:
        wrong = f"ignores {what}"
    elif not status.caught & bit:
        wrong = f"does not catch {what}: something set it back to its default"
    elif status.blocked_by_all & bit:
        wrong = f"has {what} blocked in all of its threads"
    else:
        wrong = ""
    if wrong:
        yield problem(
            "signals",
            f"process {pid} {wrong}; it hears of messages by its slow timer only, seconds late",
            _LISTENERS,
            segment=name,
        )
    if not wrong and status.blocked & bit:
        yield ok(
            "signals",
            f"process {pid} has {what} blocked in its main thread; another thread takes it",
            segment=name,
        )
    if status.signals_limit == 0 or status.signals_queued >= status.signals_limit:
        yield warning(
            "signals",
            f"process {pid} has {status.signals_queued} of {status.signals_limit} pending signals: "
            "wake-ups lose their tag, real-time ones are not sent",
            "Raise its RLIMIT_SIGPENDING.",
            segment=name,
        )


def _check_unsent(name: str, before: EngineStat, now: EngineStat) -> Iterator[Finding]:
    if now.signals_unsent == 0:
        return
    since = now.signals_unsent - before.signals_unsent
    text = f"{now.signals_unsent:,} wake-ups could not be sent, {since:,} of them just now"
    if since == 0:
        yield ok("signals", text, segment=name)
        return
    yield warning(
        "signals",
        f"{text}; their listeners come to their messages late",
        "The log of the process that sends says why: RLIMIT_NOFILE, RLIMIT_SIGPENDING, a sandbox.",
        segment=name,
    )


def _check_reading(name: str, before: EngineStat, now: EngineStat) -> Iterator[Finding]:
    """Backends that have something to read, and did not read between the two looks."""
    earlier = {(backend.backend_id, backend.pid): backend for backend in before.backends}
    for backend in now.backends:
        old = earlier.get((backend.backend_id, backend.pid))
        if not backend.lag_bytes or old is None or not old.lag_bytes:
            continue
        if now.head - backend.lag_bytes != before.head - old.lag_bytes:
            continue
        holds = " and holds the tail" if backend.pid == now.tail_holder_pid else ""
        why = "; it has a transaction open" if backend.in_transaction else ""
        report = problem if now.queue_usage >= _HALF_FULL else warning
        yield report(
            "queue",
            f"process {process(backend.pid)} does not read {size(backend.lag_bytes)}{holds}{why}; "
            f"the queue is {now.queue_usage:.0%} full",
            f"Let it call poll(); `pynotify doctor --stack {backend.pid}` shows what it does.",
            segment=name,
        )
