"""Checks of `pynotify doctor` that need another host: another root, another kernel."""

from __future__ import annotations

import dataclasses
import errno
import os
from pathlib import Path

import pytest

import pynotify
from pynotify._procfs import command_name, frozen, process_status
from pynotify.cli.doctor import backends, host, sizing
from pynotify.cli.doctor.finding import Level
from sessions import Connect, EngineFactory

NOBODYS_PID = 2**22 + 1  # above the largest that Linux gives


def refuse() -> None:
    raise PermissionError(errno.EPERM, "Operation not permitted")


def test_kernel_has_what_is_needed() -> None:
    finding = host.check_kernel()
    assert finding.level is Level.OK
    assert [name for name in host.PROBES if name not in finding.text] == []


def test_system_call_that_is_refused() -> None:
    finding = host.check_kernel({**host.PROBES, "pidfd_open": refuse})
    assert finding.level is Level.PROBLEM
    assert finding.text.endswith("refuses pidfd_open (Operation not permitted)")
    assert "seccomp" in finding.advice


def test_old_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.release", lambda: "4.19.0-27-amd64")
    assert host.check_kernel({"pidfd_open": refuse}).advice == "Use Linux 5.3 or newer."


def test_size_of_the_default_segment(engine_name: str) -> None:
    (info,) = (info for info in pynotify.segments() if info.name == engine_name)
    assert info.size == host.DEFAULT_SEGMENT_BYTES


def test_dev_shm_is_read_only(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    real = os.statvfs(tmp_path)
    values = [*real[:8], real.f_flag | os.ST_RDONLY, real.f_namemax]
    monkeypatch.setattr("os.statvfs", lambda _path: os.statvfs_result(values))
    texts = [finding.text for finding in host.check_shared_memory(tmp_path)]
    assert "it is mounted read-only" in texts
    assert not any("does not let" in text for text in texts)


def test_no_dev_shm(tmp_path: Path) -> None:
    (finding,) = host.check_shared_memory(tmp_path / "shm")
    assert finding.level is Level.PROBLEM
    assert finding.text == "it is not there: No such file or directory"


@pytest.mark.parametrize(
    ("files", "removes"),
    [
        ({}, True),
        ({"etc/systemd/logind.conf": "[Login]\n#RemoveIPC=no\n"}, True),
        ({"etc/systemd/logind.conf": "[Login]\nRemoveIPC=no\n"}, False),
        ({"etc/systemd/logind.conf": "[Login]\nHandleLidSwitch\nRemoveIPC=off\n"}, False),
        (
            {
                "etc/systemd/logind.conf": "[Login]\nRemoveIPC=no\n",
                "usr/lib/systemd/logind.conf.d/50.conf": "[Login]\nRemoveIPC=yes\n",
            },
            True,
        ),
        (
            {
                "usr/lib/systemd/logind.conf.d/50.conf": "[Login]\nRemoveIPC=yes\n",
                "etc/systemd/logind.conf.d/50.conf": "[Login]\nRemoveIPC=no\n",
            },
            False,
        ),
        ({"etc/systemd/logind.conf": "RemoveIPC=no, and no section\n"}, True),
    ],
)
def test_logind(tmp_path: Path, files: dict[str, str], removes: bool) -> None:
    (tmp_path / "run/systemd/seats").mkdir(parents=True)
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    finding = host.check_logind(tmp_path, uid=1000)
    assert (finding.level is Level.WARNING) == removes
    assert host.check_logind(tmp_path, uid=999).level is Level.OK


def test_without_logind(tmp_path: Path) -> None:
    assert host.check_logind(tmp_path, uid=1000).text == "systemd-logind does not run here"


# ---- /proc ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_frozen", [True, False])
def test_frozen_cgroup_version_2(tmp_path: Path, is_frozen: bool) -> None:
    group = tmp_path / "cgroup/app.slice/one"
    group.mkdir(parents=True)
    (group / "cgroup.events").write_text(f"populated 1\nfrozen {is_frozen:d}\n")
    proc(tmp_path, f"30 25 0:26 / {tmp_path}/cgroup rw - cgroup2 cgroup2 rw\n", "0::/app.slice/one")
    assert frozen(7, tmp_path / "proc") == is_frozen


@pytest.mark.parametrize("is_frozen", [True, False])
def test_frozen_cgroup_version_1(tmp_path: Path, is_frozen: bool) -> None:
    group = tmp_path / "freezer/one"
    group.mkdir(parents=True)
    (group / "freezer.state").write_text("FROZEN\n" if is_frozen else "THAWED\n")
    mounts = (
        f"31 25 0:27 / {tmp_path}/cpu rw - cgroup cgroup rw,cpu\n"
        f"32 25 0:28 /docker {tmp_path}/freezer rw - cgroup cgroup rw,freezer\n"
    )
    proc(tmp_path, mounts, "5:cpu:/docker/one\n4:freezer:/docker/one\n0::/")
    assert frozen(7, tmp_path / "proc") == is_frozen


def proc(root: Path, mounts: str, groups: str) -> None:
    for name in ("self", "7"):
        (root / "proc" / name).mkdir(parents=True)
    (root / "proc/self/mountinfo").write_text(mounts)
    (root / "proc/7/cgroup").write_text(groups + "\n")


def test_process_that_is_not_there() -> None:
    assert process_status(NOBODYS_PID) is None
    assert command_name(NOBODYS_PID) is None
    assert not frozen(NOBODYS_PID)


def test_backend_that_is_not_visible(engine: pynotify.Engine, conn: pynotify.Connection) -> None:
    stat = engine.stat()
    (row,) = stat.backends
    hidden = dataclasses.replace(stat, backends=[dataclasses.replace(row, pid=NOBODYS_PID)])
    (finding,) = backends.check("app", hidden, hidden)
    assert finding.level is Level.PROBLEM
    assert finding.text == f"process {NOBODYS_PID} (?) is not visible in /proc"


def test_a_slow_reader_is_not_reported(engine: pynotify.Engine, connect: Connect) -> None:
    """It went on between the two looks."""
    listener, notifier = connect(), connect()
    listener.listen("c")
    notifier.notify_many("c", ["a", "b"])
    before = engine.stat()
    assert listener.poll(1)
    (finding,) = backends.check("app", before, engine.stat())
    assert finding.level is Level.OK


def test_wake_ups_that_could_not_be_sent(
    engine: pynotify.Engine, conn: pynotify.Connection
) -> None:
    """A warning while they go on."""
    before, now = (dataclasses.replace(engine.stat(), signals_unsent=n) for n in (1000, 1003))
    long_ago, *_ = backends.check("app", now, now)
    assert long_ago.level is Level.OK
    assert long_ago.text == "1,003 wake-ups could not be sent, 0 of them just now"
    going_on, *_ = backends.check("app", before, now)
    assert going_on.level is Level.WARNING
    assert going_on.text.startswith("1,003 wake-ups could not be sent, 3 of them just now; ")


# ---- sizing --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "load",
    [
        sizing.Load(100, 200, 30),
        sizing.Load(1, 7999, 90),
        sizing.Load(10, 4100, 10),
        sizing.Load(50_000, 0, 0.1),
        sizing.Load(7, 20_000, 9),
    ],
    ids=str,
)
def test_recommended_size_is_enough_and_not_much_more(
    make_engine: EngineFactory, connect: Connect, load: sizing.Load
) -> None:
    """What is sent during the absence fits, also when the tail stands at the end of a page."""
    pages = sizing.pages_needed(load)
    assert pages > 64
    engine = make_engine(queue_pages=pages, max_payload=20_000)
    listener, notifier = connect(to=engine), connect(to=engine)
    channel = "c" * 63
    listener.listen("before", channel)
    notifier.notify("before", "x" * (sizing.PAGE - 128))
    notifier.notify("before")
    assert len(listener.poll()) == 2
    count = round(load.rate * load.absence)
    sent = 0
    payload = b"x" * load.payload
    with pytest.raises(pynotify.QueueFull):
        while True:
            notifier.notify(channel, payload)
            sent += 1
    assert count <= sent <= count * 1.1 + 200
    assert len(listener.poll()) == sent


def test_load_against_a_segment(engine: pynotify.Engine) -> None:
    stat = engine.stat()
    small, large = sizing.Load(10, 100, 60), sizing.Load(1000, 100, 3600)
    assert sizing.check_load(small, "app", stat).level is Level.OK
    finding = sizing.check_load(large, "app", stat)
    assert finding.level is Level.PROBLEM
    assert f"queue_pages={sizing.pages_needed(large)}" in finding.advice
    assert sizing.check_load(large, None, None).level is Level.OK


def test_the_example_of_the_rule() -> None:
    """150 bytes an entry, one a second, an hour: 540,000 bytes in the talk that gave the rule."""
    load = sizing.Load(rate=1, payload=150 - 56 - 63, absence=3600)
    assert 540_000 <= sizing.pages_needed(load) * sizing.PAGE < 540_000 * 1.1


def test_estimate(engine: pynotify.Engine, connect: Connect) -> None:
    listener, notifier = connect(), connect()
    listener.listen("c")
    before = engine.stat()
    quiet = sizing.estimate("app", before, before, 1.0)
    assert quiet.level is Level.OK and "did not grow" in quiet.text
    notifier.notify_many("c", [bytes([number]) * 4000 for number in range(100)])
    now = engine.stat()
    written = now.head - before.head
    slow = sizing.estimate("app", before, now, 10.0)
    assert slow.level is Level.OK
    assert "(10 notifications/s)" in slow.text
    assert slow.text.endswith(f"absent for {1024 * 8192 * 10 / written / 60:.0f} min") or (
        slow.text.endswith(f"absent for {1024 * 8192 * 10 / written:.0f} s")
    )
    fast = sizing.estimate("app", before, now, 0.01)
    assert fast.level is Level.WARNING
    assert "queue_pages" in fast.advice
