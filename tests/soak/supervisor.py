"""Starts the workers, kills, stops and continues them, and brings a round to its end."""

from __future__ import annotations

import ctypes
import os
import random
import signal
import time
import traceback
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

import pynotify
from pynotify._ffi import lib
from pynotify.errors import WouldWait
from receiving import TIME_FACTOR
from soak import journal as j
from soak.python_worker import Worker, compose

_PATIENCE = 60.0 * TIME_FACTOR  # seconds in which all workers have to come to the end
_PROGRESS = 20.0 * TIME_FACTOR  # seconds until each worker that is not stopped writes
_CHECK_EVERY = 0.5
_PR_SET_PDEATHSIG = 1
_EXIT_AT_LABEL = 99


_told_to_end = False


def end_with(parent: int) -> None:
    """When that process is dead, or this one is told to, the round is given up, and cleared up.

    A test that runs into pytest's time-out ends in a moment, and stops no process of its own.
    """

    def note(_signo: int, _frame: FrameType | None) -> None:
        global _told_to_end  # noqa: PLW0603
        _told_to_end = True

    signal.signal(signal.SIGTERM, note)
    if parent:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:  # it died before we asked for it
            note(signal.SIGTERM, None)


def _pause(seconds: float) -> None:
    time.sleep(seconds)
    if _told_to_end:
        raise SystemExit(128 + signal.SIGTERM)


@dataclass
class Settings:
    seed: int
    workers: int = 16
    python_workers: int = 4
    native: Path | None = None
    kills_per_second: float = 15.0
    stops_per_second: float = 10.0
    crash_share: float = 0.8  # of the native workers, that end at a crash point


@dataclass
class Member:
    pid: int
    place: int
    number: int  # of its first connection
    told: int  # what it writes when it has come to the end
    continue_at: float | None = None
    at_end: bool = False
    size: int = 0
    last_progress: float = field(default_factory=time.monotonic)


def _native_environment() -> dict[str, str]:
    """
    LeakSanitizer attaches to its own process at exit, with ptrace, and a SIGCONT of ours takes the
    SIGSTOP away that it waits for: it would wait for ever.
    """
    options = [os.environ.get("ASAN_OPTIONS"), "detect_leaks=0"]
    return {**os.environ, "ASAN_OPTIONS": ":".join(option for option in options if option)}


class Crowd:
    """The workers on one segment, for one round."""

    def __init__(
        self, settings: Settings, engine: pynotify.Engine, directory: Path, seed: int
    ) -> None:
        self.figures: Counter[str] = Counter()
        self.violations: Counter[str] = Counter()
        self.examples: list[str] = []
        self._settings = settings
        self._engine = engine
        self._directory = directory
        self._chance = random.Random(seed)
        self._members: dict[int, Member] = {}
        self._numbers = 16
        self._killed: set[int] = set()
        self._checked = time.monotonic()
        self._journal = j.Journal(directory, 1)
        self._txn = 0
        # Waiting for a lock whose holder we have stopped would be waiting for ourselves.
        lib.pn_set_never_wait(1)

    def violation(self, kind: str, text: str) -> None:
        self.violations[kind] += 1
        self.examples.append(f"{kind}: {text}")

    # ---- starting ------------------------------------------------------------------------

    def _start(self, place: int) -> None:
        number, self._numbers = self._numbers, self._numbers + 16
        told, theirs = os.pipe()
        seed = self._chance.getrandbits(60)
        native = self._settings.native
        errors = os.open(
            self._directory / f"{number}.err", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600
        )
        if native is None or place >= self._settings.workers - self._settings.python_workers:
            parent = os.getpid()
            pid = os.fork()
            if pid == 0:
                self._run_python(parent, number, place, seed, told=theirs, errors=errors)
        else:
            crash = "crash" if self._chance.random() < self._settings.crash_share else "none"
            os.set_inheritable(theirs, True)
            arguments = [self._engine.name, self._directory, number, place, seed, theirs, crash]
            arguments.append(os.getpid())
            pid = os.posix_spawn(
                native,
                [str(native), *map(str, arguments)],
                _native_environment(),
                file_actions=[(os.POSIX_SPAWN_DUP2, errors, 2)],
            )
        os.close(theirs)
        os.close(errors)
        os.set_blocking(told, False)
        self._members[pid] = Member(pid, place, number, told)
        self.figures["processes"] += 1

    def _run_python(self, parent: int, *arguments: int, told: int, errors: int) -> None:
        status = 3
        try:
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != parent:
                return  # it died before we asked for it
            lib.pn_set_never_wait(0)
            os.dup2(errors, 2)
            Worker(self._engine, self._directory, *arguments).run(told)
            status = 0
        except BaseException:
            os.write(2, traceback.format_exc().encode())
        finally:
            os._exit(status)

    # ---- dying ---------------------------------------------------------------------------

    def _reap(self, respawn: bool) -> None:
        while self._members:
            pid, status = os.waitpid(-1, os.WNOHANG | os.WUNTRACED)
            if pid == 0:
                return
            member = self._members[pid]
            if os.WIFSTOPPED(status):
                if member.continue_at is None:
                    self.figures["stopped at a label"] += 1
                    member.continue_at = time.monotonic() + self._chance.random() * 0.1
                continue
            self._buried(member, os.waitstatus_to_exitcode(status))
            if respawn:
                self._start(member.place)

    def _buried(self, member: Member, status: int) -> None:
        del self._members[member.pid]
        os.close(member.told)
        if status == -signal.SIGKILL and member.pid in self._killed:
            self.figures["kills"] += 1
        elif status in (-signal.SIGKILL, _EXIT_AT_LABEL):
            self.figures["killed at a label"] += 1
        elif status != 0:
            text = (self._directory / f"{member.number}.err").read_text(errors="replace")
            self.violation("died", f"worker {member.number}, status {status}: {text[-1000:]}")
        self._killed.discard(member.pid)

    # ---- mischief ------------------------------------------------------------------------

    def _molest(self, now: float, since: float) -> None:
        settings, chance = self._settings, self._chance
        for rate, action in (
            (settings.kills_per_second, self._kill),
            (settings.stops_per_second, self._stop),
        ):
            if self._members and chance.random() < rate * since:
                action(chance.choice(list(self._members.values())), now)
        for member in self._members.values():
            if member.continue_at is not None and now >= member.continue_at:
                self._continue(member)

    def _kill(self, member: Member, _now: float) -> None:
        self._killed.add(member.pid)
        os.kill(member.pid, signal.SIGKILL)

    def _stop(self, member: Member, now: float) -> None:
        if member.continue_at is None and member.pid not in self._killed:
            member.continue_at = now + self._chance.random() ** 3 * 0.5
            os.kill(member.pid, signal.SIGSTOP)
            self.figures["stops"] += 1

    def _continue(self, member: Member) -> None:
        member.continue_at = None
        member.last_progress = time.monotonic()
        os.kill(member.pid, signal.SIGCONT)

    # ---- looking after them --------------------------------------------------------------

    def _check(self) -> None:
        try:
            report = self._engine.check()
        except WouldWait:
            return  # a process holds the lock
        self._checked = time.monotonic()
        self.figures["checks"] += 1
        for problem in report.problems:
            self.violation("check", problem)

    def _watch_progress(self, now: float) -> None:
        for member in list(self._members.values()):
            size = sum(
                path.stat().st_size
                for path in (self._directory / f"{member.number + k}.journal" for k in range(16))
                if path.exists()
            )
            if size != member.size or member.continue_at is not None or member.at_end:
                member.size, member.last_progress = size, now
            elif now - member.last_progress > _PROGRESS:
                self._report_stuck(member)
                self._kill(member, now)

    def _report_stuck(self, member: Member) -> None:
        where = []
        for name in ("wchan", "syscall", "stack"):
            try:
                where.append((Path("/proc") / str(member.pid) / name).read_text().strip())
            except OSError:
                continue
        self.violation("stuck", f"worker {member.number}, process {member.pid}: {where}")

    # ---- a round -------------------------------------------------------------------------

    def run(self, *, seconds: float, kills: int) -> None:
        """Until the time is over, or so many were killed when `kills` is not 0."""
        for place in range(self._settings.workers):
            self._start(place)
        begun = last = now = watched = time.monotonic()
        while (
            self._all_kills() < kills and now - begun < 10 * seconds
            if kills
            else now - begun < seconds
        ):
            _pause(0.003)
            last, now = now, time.monotonic()
            self._molest(now, now - last)
            self._reap(respawn=True)
            if now - self._checked > _CHECK_EVERY:
                self._check()
            if now - watched > _CHECK_EVERY:
                watched = now
                self._watch_progress(now)

    def _all_kills(self) -> int:
        return self.figures["kills"] + self.figures["killed at a label"]

    def end(self, conn: pynotify.Connection) -> None:
        """Each worker comes to the end, or is killed and reported."""
        begun = time.monotonic()
        waited_for = 0
        while self._members:
            now = time.monotonic()
            for member in self._members.values():
                self._continue(member)
                member.at_end = member.at_end or self._has_told(member)
            if not all(member.at_end for member in self._members.values()):
                self._say(conn, 0)
            elif waited_for == 0:
                waited_for = self._say(conn, 1)
            self._reap(respawn=False)
            if now - begun > _PATIENCE:
                for member in self._members.values():
                    self._report_stuck(member)
                    self._kill(member, now)
            _pause(0.02)
        self._journal.close()

    def kill_all(self) -> None:
        """After an error of the supervisor's own."""
        for member in self._members.values():
            os.kill(member.pid, signal.SIGKILL)
            os.waitpid(member.pid, 0)

    @staticmethod
    def _has_told(member: Member) -> bool:
        try:
            return os.read(member.told, 1) == b"."
        except BlockingIOError:
            return False

    def _say(self, conn: pynotify.Connection, index: int) -> int:
        """The end is near (0), or here (1); 1 when it was said."""
        self._txn += 1
        payload = compose(1, self._txn, index, j.CHANNEL_END, length=32)
        self._journal.intent(
            self._txn, [{"kind": j.EVENT, "channel": j.CHANNEL_END, "index": index}]
        )
        try:
            conn.notify("end", payload)
        except (pynotify.QueueFull, WouldWait):
            self._journal.outcome(self._txn, 1)
            return 0
        self._journal.outcome(self._txn)
        return 1
