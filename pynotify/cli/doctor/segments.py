"""The segments themselves: usable, sound, and without anything left of earlier ones."""

from __future__ import annotations

import contextlib
import os
import pwd
from pathlib import Path
from typing import TYPE_CHECKING

from pynotify._engine import open as open_segment
from pynotify._segments import live_pids, segments
from pynotify.cli.doctor import backends, sizing, topics
from pynotify.cli.doctor.finding import Finding, ok, problem, warning
from pynotify.cli.liveness_files import lock_files
from pynotify.cli.rates import Sample, take
from pynotify.cli.terminal import Watch
from pynotify.errors import Error, LayoutMismatch, SegmentNotFound

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

# The times of files come from a clock that ticks every 10 ms at the worst.
_TICK = 0.1


def check(names: Sequence[str], interval: float, load: sizing.Load | None) -> Iterator[Finding]:
    """The segments of these names, or else all; live ones are looked at twice."""
    yield from _check_leftovers(names)
    names = names or [info.name for info in segments()]
    first = {name: take(name) for name in names}
    if any(sample.stat for sample in first.values()):
        Watch().wait(interval)
    for name, before in first.items():
        yield from check_others(name)
        yield from _check_segment(name, before, load)
    if not names:
        yield ok("segments", "this user has none")
    if load is not None and not any(sample.stat for sample in first.values()):
        yield sizing.check_load(load, None, None)


def _check_segment(name: str, before: Sample, load: sizing.Load | None) -> Iterator[Finding]:
    now = before if before.error is not None else take(name)
    if now.error is not None:
        yield _unusable(name, now.error)
    if before.stat is None or now.stat is None:
        return
    yield from _check_invariants(name)
    yield from backends.check(name, before.stat, now.stat)
    yield from topics.check(name, now.topics)
    if load is not None:
        yield sizing.check_load(load, name, now.stat)
    else:
        yield sizing.estimate(name, before.stat, now.stat, now.at - before.at)


def check_others(name: str, directory: Path = Path("/dev/shm")) -> Iterator[Finding]:
    """Segments of this name that are other users': their processes and ours do not meet."""
    for path in sorted(directory.glob(f"pynotify.*.{name}")):
        uid, _, rest = path.name.removeprefix("pynotify.").partition(".")
        if not uid.isdecimal() or rest != name:
            continue
        with contextlib.suppress(FileNotFoundError):
            # A file that another user has given the name is no segment.
            if path.stat().st_uid == int(uid) != os.geteuid():
                yield warning(
                    "users",
                    f"user {_user(int(uid))} has a segment of this name; it is another one",
                    f"Run all processes as one user, or pynotify gateway {name} --allow-uid UID.",
                    segment=name,
                )


def _user(uid: int) -> str:
    try:
        return f"{pwd.getpwuid(uid).pw_name} ({uid})"
    except KeyError:
        return str(uid)


def _unusable(name: str, error: Error) -> Finding:
    text = str(error).partition("\n")[0]
    if isinstance(error, SegmentNotFound):
        return problem("segments", text, "`pynotify ls` lists what there is.", segment=name)
    if isinstance(error, LayoutMismatch) and not live_pids(name):
        return warning("segments", f"stale: {text}", f"pynotify rm {name}", segment=name)
    return problem("segments", text, error.hint or "", segment=name)


def _check_invariants(name: str) -> Iterator[Finding]:
    try:
        with open_segment(name, create=False) as engine:
            problems = engine.check().problems
    except Error as error:
        yield _unusable(name, error)
        return
    for text in problems:
        advice = f"Stop its processes, `pynotify rm --force {name}`, and start again."
        yield problem("invariants", text, advice, segment=name)
    if not problems:
        yield ok("invariants", "all hold", segment=name)


# ---- what was left behind ------------------------------------------------------------------------


def _check_leftovers(names: Sequence[str]) -> Iterator[Finding]:
    """Lock files of segments that are not there any more, and processes that still use them."""
    instances = lock_files()  # before the segments, or one that is made now would have none
    created = {info.name: info.created for info in segments()}
    for name, times in sorted(instances.items()):
        if names and name not in names:
            continue
        if name not in created:
            yield from _check_orphans(name, live_pids(name))
        elif _left_behind(times, created[name]):
            yield from _check_survivors(name)


def _left_behind(times: dict[str, float], created: float) -> bool:
    return len(times) > 1 or max(times.values()) < created - _TICK


def _check_orphans(name: str, pids: list[int]) -> Iterator[Finding]:
    if pids:
        yield problem(
            "segments",
            f"processes {_join(pids)} use a segment whose name was removed; no other can join them",
            "Restart them.",
            segment=name,
        )
    elif name in lock_files():  # it may just have been removed
        yield warning(
            "segments",
            "lock files of a segment that is not there any more",
            f"pynotify rm {name}",
            segment=name,
        )


def _check_survivors(name: str) -> Iterator[Finding]:
    """Connected to an earlier segment of the same name: the two halves do not hear each other."""
    before = set(live_pids(name))
    sample = take(name)
    if sample.stat is None:
        return
    connected = {backend.pid for backend in sample.stat.backends}
    # Both before and after, or a process that has just come or gone would be among them.
    pids = sorted(before & set(live_pids(name)) - connected)
    if pids:
        yield problem(
            "segments",
            f"processes {_join(pids)} use an earlier segment of this name",
            "Restart them: no other process hears them.",
            segment=name,
        )


def _join(pids: list[int]) -> str:
    return ", ".join(str(pid) if pid else "(in another pid namespace)" for pid in pids)
