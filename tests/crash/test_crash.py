"""SIGKILL at every crash point: nothing committed is lost, no process is stuck, nothing leaks."""

from __future__ import annotations

import contextlib
import logging
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import pynotify
from pynotify._ffi import lib
from receiving import PATIENCE, payloads, readable, receive, wait_until
from requirement import require
from sessions import EngineFactory, Worker
from victims import (
    BUMPING,
    COUNTERS,
    HEARD,
    ONE_PAGE,
    OWN,
    PAGES,
    crash_labels,
    kill_victim,
    read_log,
    start_falling_asleep,
    start_victim,
    victims_end,
    victims_result,
)

SUPPORT = Path(__file__).parents[1] / "support"
LISTING = "import victims; print(*victims.crash_labels())"
KILLED = -signal.SIGKILL
HOLDS_THE_LOCK = "commit:after-head"
"""Killed there, a notifier has committed and told no listener."""


NATIVE = (
    *("copy:", "evict:", "spill:", "datafile:", "datadir:"),
    *("block:ticket", "block:passed-on", "recover:mem-tail"),
    *("recfile:", "diskqueue:", "topiclog:", "spilled:", "refill:", "durable:", "tombstone:"),
    *("rest:", "later:", "divide:", "cancel:"),
    *("dirlock:", "frontier:", "turn:", "handler:", "signal:flags", "chain:flags"),
    # native/tests/crash/crash_topic_labels.h
    *("topic:", "topic-recover:", "publish:", "answer:", "arena:", "prepare:"),
    *("claim:due", "claim:in-flight", "claim:listed", "claim:handed", "claim:copying"),
    *("claim:renewed", "read:time"),
    *("commit:staged", "commit:answered", "commit:cancelled", "commit:topics", "commit:undone"),
)
"""They have native tests: native/tests/crash/test_crash_*.c."""


def labels() -> list[str]:
    """Of the build with crash points, or none when that is not built."""
    done = subprocess.run(
        [sys.executable, "-c", LISTING],
        env={**os.environ, "PYNOTIFY_CRASHPOINTS": "1", "PYTHONPATH": str(SUPPORT)},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        return []
    return [label for label in done.stdout.split() if not label.startswith(NATIVE)]


LABELS = labels()


class Scene:
    """A segment with survivors in this process, and victims."""

    def __init__(self, nursery: Worker, name: str, log: Path, **options: object) -> None:
        self.nursery, self.name, self.log = nursery, name, log
        self.engine = pynotify.open(name, queue_pages=PAGES, **options)
        self.listener = self.engine.connect()
        self.listener.listen(HEARD)
        self.notifier = self.engine.connect()
        self.heard: list[str] = []
        self.bumps = 0

    def start(self, scenario: str, label: str | None, **options: object) -> int:
        return self.nursery.call(start_victim, scenario, self.name, str(self.log), label, **options)

    def kill_one_before(self, scenario: str, label: str) -> None:
        pid = self.start(scenario, label)
        assert self.nursery.call(victims_end, pid) == KILLED

    def notes(self) -> list[str]:
        return read_log(self.log)[2]

    def attend(self, pid: int, busy: Callable[[], None] | None) -> int:
        """Be `busy` until the victim has ended; its exit status."""
        pidfd = os.pidfd_open(pid)
        try:
            while busy is not None and not readable(pidfd):
                busy()
            assert readable(pidfd, PATIENCE), "the victim neither died nor came to its end"
        finally:
            os.close(pidfd)
        return self.nursery.call(victims_end, pid)

    def notify_victim(self) -> None:
        with contextlib.suppress(pynotify.QueueFull):
            self.notifier.notify(OWN, "y" * 300)
        self.heard += payloads(self.listener.poll())
        select.select([], [], [], 0.001)

    def read(self) -> None:
        self.heard += payloads(self.listener.poll())
        select.select([], [], [], 0.002)

    def close(self) -> None:
        self.listener.close()
        self.notifier.close()
        self.engine.close()
        pynotify.unlink(self.name)

    def begin_again(self, heard: list[str]) -> None:
        """What was heard until now has been looked at; what it bumped stays bumped."""
        self.bumps += sum(payload in BUMPING for payload in heard)
        self.log.unlink()

    # ---- afterwards ------------------------------------------------------------------------------

    def verify(self) -> None:
        self.verify_progress()
        self.verify_messages()
        self.verify_counters()
        self.verify_nothing_leaked()
        report = self.engine.check()
        assert report.ok, report.problems

    def verify_progress(self) -> None:
        """Survivors hear each other, woken by signals, and new ones can come."""
        self.heard += payloads(self.listener.poll())
        self.notifier.notify(HEARD, "survivor 1")
        while self.heard[-1:] != ["survivor 1"]:
            self.heard += payloads(receive(self.listener, 1))
        with self.engine.connect() as newcomer:
            newcomer.listen(OWN)
            newcomer.notify(HEARD, "survivor 2")
            self.notifier.notify(OWN, "to the newcomer")
            assert payloads(receive(newcomer, 1)) == ["to the newcomer"]
        self.heard += payloads(receive(self.listener, 1))

    def verify_messages(self) -> None:
        """What was committed once and in order, what was not never, nothing by halves."""
        committed, doubtful, _notes = read_log(self.log)
        certain = [payload for transaction in committed for payload in transaction]
        survivors = ["survivor 1", "survivor 2"]
        heard = [payload.split(" ")[0] if payload[0] == "i" else payload for payload in self.heard]
        assert heard in ([*certain, *survivors], [*certain, *doubtful, *survivors])

    def verify_counters(self) -> None:
        """A transaction's bumps happened with its messages, once, or not at all."""
        bumps = self.bumps + sum(payload in BUMPING for payload in self.heard)
        assert [self.notifier.generation(name).value for name in COUNTERS] == [bumps, bumps]

    def verify_nothing_leaked(self) -> None:
        """Slots, reservations, room in the queue."""
        me = os.getpid()
        assert [row.pid for row in self.engine.stat().backends] == [me, me]
        assert self.engine.stat().subscriptions == 1
        assert self.notifier.queue_usage() == 0
        for number in range(PAGES - 2):
            self.notifier.notify(HEARD, f"{number} {ONE_PAGE}")
        assert len(self.listener.poll()) == PAGES - 2


@pytest.fixture
def stage(
    nursery: Worker, new_name: Callable[[], str], tmp_path: Path
) -> Iterator[Callable[..., Scene]]:
    with contextlib.ExitStack() as stack:

        def make(**options: object) -> Scene:
            name = new_name()
            scene = Scene(nursery, name, tmp_path / name, **options)
            stack.callback(scene.close)
            return scene

        yield make


def ended(pid: int) -> bool:
    """Dead, and perhaps not yet waited for."""
    return state(pid) in ("Z", "X", "")


def state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0]
    except FileNotFoundError:
        return ""


Stage = Callable[..., Scene]

# ---- each a way to lead a victim to a label: whether it died there ------------------------------


def working(stage: Stage, label: str, nth: int) -> Scene | None:
    scene = stage()
    pid = scene.start("work", label, nth=nth)
    return scene if scene.attend(pid, scene.notify_victim) == KILLED else None


def working_by_descriptor(stage: Stage, label: str, nth: int) -> Scene | None:
    scene = stage()
    pid = scene.start("work_by_descriptor", label, nth=nth)
    return scene if scene.attend(pid, scene.notify_victim) == KILLED else None


def reaping(stage: Stage, label: str, nth: int) -> Scene | None:
    """The victim meets a listener that died before."""
    scene = stage()
    pid = scene.start("hear", None)
    wait_until(lambda: "listening" in scene.notes(), "it listens")
    scene.nursery.call(kill_victim, pid)
    pid = scene.start("look_around", label, nth=nth)
    return scene if scene.attend(pid, None) == KILLED else None


def recovering(stage: Stage, label: str, nth: int) -> Scene | None:
    """The victim meets the lock of one that died holding it, with all still to be told."""
    scene = stage()
    scene.kill_one_before("take_over", HOLDS_THE_LOCK)
    scene.log.rename(scene.log.with_name("first"))
    pid = scene.start("take_over", label, nth=nth)
    status = scene.attend(pid, None)
    # The first one's message is committed and heard; it comes before the second one's.
    first, doubtful, _notes = read_log(scene.log.with_name("first"))
    assert (first, doubtful) == ([], ["h"])
    second = scene.log.read_text() if scene.log.exists() else ""
    scene.log.write_text("try h\nok\n" + second)
    return scene if status == KILLED else None


def rebuilding(stage: Stage, label: str, nth: int) -> Scene | None:
    """The victim meets the lock of one that died in the middle of a LISTEN."""
    scene = stage()
    scene.kill_one_before("listen_once", "listen:sub")
    pid = scene.start("take_over", label, nth=nth)
    return scene if scene.attend(pid, None) == KILLED else None


def passing_on(stage: Stage, label: str, nth: int) -> Scene | None:
    """Of many sleepers each wakes some others: victims all, and those that live must hear.

    Only a notifier that commits often lets others pass it on; we may be interrupted in between.
    """
    for _ in range(3):
        scene = stage()
        pids = [scene.start("sleep_once", label, nth=nth) for _ in range(8)]

        def all_listen(scene: Scene = scene, pids: list[int] = pids) -> bool:
            listening = {row.pid for row in scene.engine.stat().backends if row.channels}
            return all(pid in listening or ended(pid) for pid in pids)

        wait_until(all_listen, "they listen")
        scene.notifier.notify("unheard")
        scene.notifier.notify(OWN)
        statuses = [scene.attend(pid, None) for pid in pids]
        assert set(statuses) <= {KILLED, 0}
        if KILLED in statuses:
            return scene
    return None


def overtaking(stage: Stage, label: str, nth: int) -> Scene | None:
    """The victim looks while a notifier stands between telling it and waking it."""
    if "commit:want" not in LABELS or nth > 1:
        return None
    scene = stage()
    pid = scene.start("poll_busily", label)
    wait_until(lambda: "listening" in scene.notes() or ended(pid), "it listens")
    notifier = scene.start("notify_victim", "commit:want", stop=True)
    try:
        wait_until(lambda: state(notifier) == "T" or ended(notifier), "the notifier stands")
        wait_until(lambda: "over" in scene.notes() or ended(pid), "it polls")
    finally:
        os.kill(notifier, signal.SIGCONT)
    assert scene.nursery.call(victims_end, notifier) == 0
    return scene if scene.attend(pid, None) == KILLED else None


def reconsidering(stage: Stage, label: str, nth: int) -> Scene | None:
    """The victim is told something between its last look and its sleep."""
    if "wake:owed-cleared" not in LABELS or nth > 1:
        return None
    for passage in (2, 1, 3):  # the first is on the way to a message, the second on that to sleep
        scene = stage()
        arguments = scene.name, str(scene.log), label, passage
        pid = scene.nursery.call(start_falling_asleep, *arguments)
        wait_until(lambda pid=pid: state(pid) == "T" or ended(pid), "it stands")
        if not ended(pid):
            scene.notifier.notify(OWN)
            os.kill(pid, signal.SIGUSR2)
            os.kill(pid, signal.SIGCONT)
        if scene.attend(pid, None) == KILLED:
            return scene
    return None


def reserving(stage: Stage, label: str, nth: int) -> Scene | None:
    scene = stage()
    pid = scene.start("reserve", label, nth=nth)
    return scene if scene.attend(pid, None) == KILLED else None


def filling(stage: Stage, label: str, nth: int) -> Scene | None:
    """The victim waits for room; the survivor reads one when there is none."""
    scene = stage(on_full="block", full_timeout=PATIENCE)

    def read_when_full() -> None:
        if scene.notifier.queue_usage() > (PAGES - 2) / PAGES:
            scene.heard += payloads(scene.listener.poll(max=1))
        select.select([], [], [], 0.002)

    pid = scene.start("fill", label, nth=nth)
    return scene if scene.attend(pid, read_when_full) == KILLED else None


def making_room(stage: Stage, label: str, nth: int) -> Scene | None:
    """A survivor waits for room; the victim makes it."""
    scene = stage(on_full="block", full_timeout=PATIENCE)
    pid = scene.start("read_slowly", label, nth=nth)
    wait_until(lambda: "listening" in scene.notes() or ended(pid), "it listens")
    over = threading.Event()

    def press() -> None:
        while not over.is_set():
            scene.notifier.notify(OWN, ONE_PAGE)

    thread = threading.Thread(target=press)
    thread.start()
    try:
        status = scene.attend(pid, None)
    finally:
        over.set()
        thread.join(PATIENCE)
    assert not thread.is_alive()
    return scene if status == KILLED else None


def creating(stage: Stage, label: str, nth: int) -> Scene | None:
    """The segment is made by the victim, or by those that come after it."""
    scene = stage()
    scene.close()
    pid = scene.start("create", label, nth=nth)
    status = scene.attend(pid, None)
    again = Scene(scene.nursery, scene.name, scene.log)
    scene.engine, scene.listener, scene.notifier = again.engine, again.listener, again.notifier
    return scene if status == KILLED else None


WAYS = (
    working,
    creating,
    reaping,
    recovering,
    rebuilding,
    reserving,
    making_room,
    filling,
    working_by_descriptor,
    passing_on,
    reconsidering,
    overtaking,
)


def kill_at(stage: Stage, label: str, nth: int) -> list[str]:
    """Every way that leads to the label's nth passage is gone; the survivors must be unharmed."""
    gone = []
    for way in WAYS:
        scene = way(stage, label, nth)
        if scene is not None:
            gone.append(way.__name__)
            scene.verify()
    return gone


def first_way(stage: Stage, label: str) -> Scene | None:
    for way in WAYS:
        scene = way(stage, label, 1)
        if scene is not None:
            return scene
    return None


def test_there_are_labels() -> None:
    require("crash-points")
    assert len(LABELS) > 40


@pytest.mark.parametrize("label", LABELS)
def test_killed_at(stage: Stage, label: str) -> None:
    """A label that no scenario reaches is a failure too."""
    scene = first_way(stage, label)
    assert scene is not None, f"no scenario reaches {label}"
    scene.verify()


@pytest.mark.full
@pytest.mark.timeout(600)
@pytest.mark.parametrize("nth", [1, 2, 4])
@pytest.mark.parametrize("label", LABELS)
def test_killed_at_the_nth_passage(stage: Stage, label: str, nth: int) -> None:
    """In every scenario, and not only the first time."""
    assert kill_at(stage, label, nth) or nth > 1


@pytest.mark.parametrize("label", [label for label in LABELS if label.startswith("recover:")])
def test_killed_again_and_again_in_recovery(stage: Stage, label: str) -> None:
    """Recovery is idempotent: three in a row die in it."""
    scene = stage()
    scene.kill_one_before("take_over", HOLDS_THE_LOCK)
    ended = [scene.attend(scene.start("take_over", label), None) for _ in range(3)]
    assert set(ended) <= {KILLED, 0}
    scene.log.write_text("try h\nok\n" * (1 + ended.count(0)))
    scene.verify()


@pytest.mark.parametrize("label", [HOLDS_THE_LOCK, "commit:unlocked", "signal:flag"])
def test_a_sleeper_is_told_though_no_process_ever_notifies_again(stage: Stage, label: str) -> None:
    """The notifier dies between commit and signal: sleeping neighbours see it and take over."""
    if label not in LABELS:
        require("crash-points", f"no label {label}")
    scene = stage()
    slept: list[list[str]] = []
    sleeper = threading.Thread(
        target=lambda: slept.append(payloads(receive(scene.listener, 1, PATIENCE)))
    )
    sleeper.start()
    pid = scene.start("notify_once", label)
    assert scene.attend(pid, None) == KILLED
    sleeper.join(PATIENCE / 2)
    assert not sleeper.is_alive(), "deaf until its slow timer"
    assert slept == [["h"]]
    scene.log.write_text("try h\nok\n")
    scene.heard.append("h")
    scene.verify()


@pytest.mark.parametrize("label", [HOLDS_THE_LOCK, "commit:applied"])
def test_a_listener_that_only_polls_is_told_too(stage: Stage, label: str) -> None:
    """No process waits, notifies, or watches a descriptor: nothing else takes the lock."""
    if label not in LABELS:
        require("crash-points", f"no label {label}")
    scene = stage()
    scene.kill_one_before("notify_once", label)
    wait_until(lambda: scene.read() or scene.heard, "the poller hears it")
    scene.log.write_text("try h\nok\n")
    scene.verify()


@pytest.fixture
def lock_timeout(request: pytest.FixtureRequest) -> Iterator[None]:
    """In seconds, of this thread; as short as this, one of the tests is not one that takes long."""
    usual = lib.pn_set_lock_timeout(-1)
    lib.pn_set_lock_timeout(request.param * 10**9)
    yield
    lib.pn_set_lock_timeout(usual)


@pytest.mark.parametrize(
    ("label", "lock_timeout"),
    [
        ("commit:before-head", 1),
        pytest.param("commit:before-head", 10, marks=pytest.mark.full),
        pytest.param("lock:acquired", 10, marks=pytest.mark.full),
        pytest.param(HOLDS_THE_LOCK, 10, marks=pytest.mark.full),
    ],
    indirect=["lock_timeout"],
)
@pytest.mark.usefixtures("lock_timeout")
def test_stopped_with_the_lock(stage: Stage, label: str) -> None:
    """SIGSTOP while it holds the lock: others time out, naming it; none steals it."""
    if label not in LABELS:
        require("crash-points", f"no label {label}")
    scene = stage()
    pid = scene.start("take_over", label, stop=True)
    wait_until(lambda: state(pid) == "T", "it stands")
    try:
        with pytest.raises(pynotify.LockTimeout) as caught:
            scene.notifier.notify(HEARD, "too late")
        lib.pn_set_lock_timeout(10 * 10**9)
        assert str(pid) in str(caught.value)
        heard = scene.listener.poll()
        assert heard in ([], [(HEARD, "h", pid)])
    finally:
        os.kill(pid, signal.SIGCONT)
    assert scene.nursery.call(victims_end, pid) == 0
    scene.begin_again(payloads(heard + scene.listener.poll()))
    scene.verify()


@pytest.mark.full
def test_prepared_commit_waits_without_limit(stage: Stage) -> None:
    """It is longer than any other call would wait, and succeeds."""
    scene = stage()
    with contextlib.ExitStack() as stack:
        tx = stack.enter_context(scene.notifier.transaction())
        scene.notifier.notify(HEARD, "prepared")
        tx.prepare()
        pid = scene.start("notify_once", "commit:before-head", stop=True)
        wait_until(lambda: state(pid) == "T", "it stands")
        resume = threading.Timer(12, os.kill, [pid, signal.SIGCONT])
        resume.start()
        stack.callback(resume.join)
    assert scene.nursery.call(victims_end, pid) == 0
    assert payloads(scene.listener.poll()) == ["h", "prepared"]
    scene.begin_again(["h"])
    scene.verify()


def test_recovery_is_counted_and_logged(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    """`recoveries`; and recoveries are among what the logger "pynotify" is told."""
    scene = stage()
    scene.kill_one_before("notify_once", HOLDS_THE_LOCK)
    with caplog.at_level(logging.WARNING, logger="pynotify"):
        scene.notifier.notify(HEARD, "x")
        assert payloads(scene.listener.poll()) == ["h", "x"]
    assert scene.engine.stat().recoveries == 1
    assert any(record.name.split(".")[0] == "pynotify" for record in caplog.records)
    scene.begin_again(["h"])
    scene.verify()


READING = [label for label in LABELS if label.split(":")[0] in ("read", "wake", "sleep")]


@pytest.mark.parametrize("label", READING)
def test_t_race_1_reader_stopped_at(stage: Stage, label: str) -> None:
    """T-RACE-1: a reader stands at `label` while the tail moves as far as it may."""
    scene = stage()
    pid = scene.start("hear", label, stop=True)
    sent = 0

    def stands() -> bool:
        return state(pid) == "T"

    def notify() -> None:
        nonlocal sent
        sent += 1
        scene.notifier.notify(OWN, str(sent))

    wait_until(lambda: stands() or "listening" in scene.notes(), "it listens")
    try:
        while not stands() and sent < 30:
            notify()
            select.select([], [], [], 0.005)
        for number in range(100):
            with contextlib.suppress(pynotify.QueueFull):
                scene.notifier.notify(HEARD, f"{number:03000}")
            scene.listener.poll()
            if number % 10 == 0:
                notify()
                scene.notifier.queue_usage()
    finally:
        os.kill(pid, signal.SIGCONT)
    scene.notifier.notify(OWN, "end")
    heard = scene.nursery.call(victims_result, pid)
    expected = [str(number) for number in range(sent + 1)] + ["end"]
    assert heard == expected[-len(heard) :]
    assert len(heard) >= len(expected) - 1
    scene.log.unlink()
    scene.verify()


def test_labels_of_the_release_build() -> None:
    """Release builds have none, and cannot be armed."""
    if os.environ.get("PYNOTIFY_CRASHPOINTS") != "1":
        assert crash_labels() == []


def test_both_builds_share_a_segment(
    make_engine: EngineFactory, engine: pynotify.Engine, nursery: Worker, tmp_path: Path
) -> None:
    name, log = make_engine.name_of(engine), str(tmp_path / "log")
    with engine.connect() as listener:
        listener.listen(HEARD)
        pid = nursery.call(start_victim, "take_over", name, log, None)
        assert nursery.call(victims_end, pid) == 0
        assert payloads(listener.poll()) == ["h"]
