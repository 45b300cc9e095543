"""This process and all below it, the JVM and the Python workers: their time and their memory."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from spark_jobs.procfs import Stat, stat

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def _tree() -> list[Stat]:
    """Parents before their children, this process first."""
    there = [stat(name) for name in os.listdir("/proc") if name.isdigit()]
    children: dict[int, list[Stat]] = {}
    for process in filter(None, there):
        children.setdefault(process.parent, []).append(process)
    me = stat(os.getpid())
    assert me is not None
    found = [me]
    for process in found:
        found += children.get(process.pid, [])
    return found


class Clock:
    """Processor time of the tree.

    The daemon of PySpark does not wait for its workers, so the time of one that has ended is in no
    account of the kernel's. It stays in this one as it was last seen.
    """

    def __init__(self) -> None:
        self._seen: dict[tuple[int, int], Stat] = {}
        self._gone = 0

    def seconds(self) -> float:
        """User and system, so far. Exact to a clock tick a process, but for what a process
        without a waiting parent used after it was last seen here."""
        now = {(process.pid, process.start): process for process in _tree()}
        inherited = {}
        for key, process in now.items():
            before = self._seen.get(key)
            inherited[process.pid] = process.waited - (before.waited if before else 0)
        for key in self._seen.keys() - now.keys():
            process = self._seen[key]
            used = process.own + process.waited
            if inherited.get(process.parent, 0) >= used:
                inherited[process.parent] -= used
            else:
                self._gone += used
        self._seen = now
        return (self._gone + sum(each.own + each.waited for each in now.values())) / _TICKS_PER_S


@dataclass(frozen=True)
class Peaks:
    """The most resident memory, in MiB, of the driver's Python, the JVM, and any one worker."""

    driver: int
    jvm: int
    worker: int


def forget_peaks() -> None:
    """From now on `peaks` tells of what comes."""
    for process in _tree():
        try:
            Path(f"/proc/{process.pid}/clear_refs").write_text("5")
        except OSError:  # it has ended
            continue


def _peak(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    # one that has ended has no memory
    return next((int(line.split()[1]) >> 10 for line in lines if line.startswith("VmHWM:")), 0)


def peaks() -> Peaks:
    """Since they were forgotten; processes that have ended are not in it."""
    me, *others = _tree()
    by_kind = {True: [0], False: [0]}
    for process in others:
        by_kind[process.name == "java"].append(_peak(process.pid))
    return Peaks(_peak(me.pid), max(by_kind[True]), max(by_kind[False]))
