"""What /proc says of a process."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple


class Stat(NamedTuple):
    """/proc/PID/stat.  `own` and `waited`: ticks used by it, and by ended children of it."""

    pid: int
    name: str
    state: str
    parent: int
    start: int
    own: int
    waited: int


def stat(pid: int | str) -> Stat | None:
    """None when the process is gone."""
    try:
        head, _, tail = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")
    except OSError:
        return None
    fields = tail.decode("ascii").split()
    return Stat(
        pid=int(pid),
        name=head.partition(b"(")[2].decode(errors="replace"),
        state=fields[0],
        parent=int(fields[1]),
        start=int(fields[19]),
        own=int(fields[11]) + int(fields[12]),
        waited=int(fields[13]) + int(fields[14]),
    )
