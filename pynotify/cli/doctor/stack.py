"""`doctor --stack PID`: a process says itself what it is doing."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING

from pynotify._engine import open as open_segment
from pynotify._procfs import process_status, standard_error
from pynotify._segments import segments
from pynotify.cli.backends import process
from pynotify.cli.terminal import complain, say
from pynotify.errors import Error, SegmentNotFound

if TYPE_CHECKING:
    from pynotify._types import BackendStat


def ask_for_stack(pid: int) -> int:
    """Signal every backend of `pid`; the exit status."""
    if pid < 1 or not os.path.exists(f"/proc/{pid}"):
        say(f"pynotify doctor: there is no process {pid}")
        return 1
    asked = []
    names = [info.name for info in segments() if not info.stale]
    for name in names:
        with suppress(Error), open_segment(name, create=False) as engine:
            # Without stat() before, which waits for the lock: the laggard may be holding it.
            if engine.log_stack(pid) > 0:
                asked.append(name)
    if not asked:
        say(f"pynotify doctor: {_why_not(pid, _backends_of(pid, names))}")
        return 1
    target = standard_error(pid)
    where = f" ({target})" if target else ""
    print(f"asked process {process(pid)} in segment {', '.join(asked)}:")
    print(f"it prints the stacks of its threads to its own standard error{where}")
    status = process_status(pid)
    if status is not None and status.state in "Tt":
        print("it is stopped, and will do so when it continues")
    return 0


def _backends_of(pid: int, names: list[str]) -> list[BackendStat]:
    found: list[BackendStat] = []
    for name in names:
        try:
            with open_segment(name, create=False) as engine:
                found += [row for row in engine.stat().backends if row.pid == pid]
        except SegmentNotFound:
            continue
        except Error as error:  # that one may be stuck, and the process be in others
            complain("doctor", error)
    return found


def _why_not(pid: int, connected: list[BackendStat]) -> str:
    what = f"process {process(pid)}"
    if not connected:
        return f"{what} has no backend in any segment of this user"
    if all(row.wakeup == "poll" for row in connected):
        return f'{what} is connected with wakeup="poll": it cannot be signalled'
    if not any(row.channels for row in connected):
        return f"{what} does not listen, and so has no handler that could print its stack"
    return f"{what} could not be signalled: it has exited, or does not catch the signal"
