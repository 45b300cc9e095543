"""What /proc says of a process.  None stands for a process that is not there, or not visible."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc")
_INTERPRETERS = ("python", "pypy", "node", "ruby", "perl")
_WITH_A_VALUE = ("-W", "-X", "-r")  # before the script's name


@dataclass(frozen=True, slots=True)
class ProcessStatus:
    """/proc/PID/status, as far as it matters to signals.

    `state` is the letter of the process's state; the masks have bit n-1 set for signal n and,
    as `blocked` is of the main thread only, `blocked_by_all` is what no thread lets in.
    """

    state: str
    caught: int
    ignored: int
    blocked: int
    blocked_by_all: int
    signals_queued: int
    signals_limit: int


def command_name(pid: int) -> str | None:
    """/proc/PID/comm.  A process chooses it, so it may hold any character."""
    try:
        name = (_PROC / str(pid) / "comm").read_bytes()
    except OSError:
        return None
    return name.removesuffix(b"\n").decode("utf-8", "backslashreplace")


def command_line(pid: int) -> str | None:
    """The command's name; of an interpreter what it runs, too: "python3 worker.py"."""
    name = command_name(pid)
    if name is None or not name.startswith(_INTERPRETERS):
        return name
    try:
        text = (_PROC / str(pid) / "cmdline").read_bytes().decode("utf-8", "backslashreplace")
    except OSError:
        return name
    words = iter(text.split("\0")[1:])
    for word in words:
        if word in ("-m", "-c"):
            return f"{name} -m {next(words, '')}" if word == "-m" else f"{name} -c"
        if word in _WITH_A_VALUE:
            next(words, None)
        elif word and not word.startswith("-"):
            return f"{name} {os.path.basename(word)}"
    return name


def process_status(pid: int) -> ProcessStatus | None:
    """The masks and the state of a process."""
    directory = _PROC / str(pid)
    try:
        fields = _fields(directory / "status")
        blocked_by_all = _mask(fields, "SigBlk")
        for thread in os.listdir(directory / "task"):
            blocked_by_all &= _mask(_fields(directory / "task" / thread / "status"), "SigBlk")
    except (OSError, KeyError, ValueError):  # gone, perhaps in between
        return None
    queued, _, limit = fields.get("SigQ", "0/0").partition("/")
    return ProcessStatus(
        state=fields["State"][:1],
        caught=_mask(fields, "SigCgt"),
        ignored=_mask(fields, "SigIgn"),
        blocked=_mask(fields, "SigBlk"),
        blocked_by_all=blocked_by_all,
        signals_queued=int(queued),
        signals_limit=int(limit),
    )


def descriptors(pid: int) -> tuple[int, int] | None:
    """How many descriptors a process has open, and its soft limit."""
    directory = _PROC / str(pid)
    try:
        used = len(os.listdir(directory / "fd"))
        for line in (directory / "limits").read_text().splitlines():
            if line.startswith("Max open files"):
                return used, int(line.split()[3])
    except (OSError, ValueError):  # gone, or "unlimited"
        pass
    return None


def standard_error(pid: int) -> str | None:
    """What descriptor 2 of a process leads to."""
    try:
        return os.readlink(_PROC / str(pid) / "fd" / "2")
    except OSError:
        return None


def frozen(pid: int, proc: Path = _PROC) -> bool:
    """Whether a freezer cgroup, of version 1 or 2, holds the process."""
    try:
        memberships = (proc / str(pid) / "cgroup").read_text().splitlines()
        mounts = (proc / "self" / "mountinfo").read_text().splitlines()
    except OSError:
        return False
    for mount in mounts:
        left, _, right = mount.partition(" - ")
        kind, _, options = right.split(" ", 2)
        if kind not in ("cgroup", "cgroup2"):
            continue
        if kind == "cgroup" and "freezer" not in options.split(" ")[-1].split(","):
            continue
        root, point = left.split(" ")[3:5]
        for membership in memberships:
            _, controllers, path = membership.split(":", 2)
            named = "freezer" in controllers.split(",") if kind == "cgroup" else not controllers
            if named and _is_frozen(Path(point) / os.path.relpath(path, root)):
                return True
    return False


def _is_frozen(group: Path) -> bool:
    try:
        if (group / "freezer.state").exists():
            return (group / "freezer.state").read_text().strip() == "FROZEN"
        return "frozen 1" in (group / "cgroup.events").read_text().splitlines()
    except OSError:
        return False


def _fields(path: Path) -> dict[str, str]:
    text = path.read_bytes().decode("utf-8", "backslashreplace")
    pairs = (line.partition(":") for line in text.split("\n"))
    return {name: value.strip() for name, _, value in pairs}


def _mask(fields: dict[str, str], name: str) -> int:
    return int(fields[name], 16)
