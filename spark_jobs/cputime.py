"""Processor time of this process and of all below it: the JVM, the Python workers, the dead."""

from __future__ import annotations

import os
from collections import defaultdict
from pathlib import Path

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def _stat(entry: Path) -> tuple[int, int] | None:
    """(parent, ticks used by it and by the children it has waited for); None when it is gone."""
    try:
        fields = (entry / "stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return None
    return int(fields[1]), sum(map(int, fields[11:15]))


def tree_cpu_s() -> float:
    """User and system seconds so far.

    A difference of two is exact to a clock tick for each process, unless one of the tree died
    without being waited for in between.
    """
    children: dict[int, list[int]] = defaultdict(list)
    ticks = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (stat := _stat(entry)) is not None:
            children[stat[0]].append(int(entry.name))
            ticks[int(entry.name)] = stat[1]
    total, todo = 0, [os.getpid()]
    while todo:
        pid = todo.pop()
        total += ticks.get(pid, 0)
        todo += children[pid]
    return total / _TICKS_PER_S
