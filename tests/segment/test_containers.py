"""What containers and service managers refuse, and what then works, or is said."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import pynotify
import seccomp
from programs import ROOT, environment
from receiving import PATIENCE
from requirement import require

ROUND_TRIP = """
import os, sys
import pynotify

with pynotify.connect(sys.argv[1]) as conn:
    conn.listen("c")
    child = os.fork()
    if child == 0:
        with pynotify.connect(sys.argv[1]) as other:
            other.notify("c", "heard")
        os._exit(0)
    for note in conn.notifies():
        print(note.payload, flush=True)
        break
    assert os.waitpid(child, 0)[1] == 0
    topic = conn.topic("t")
    topic.publish(b"done")
    with topic.channel("w").consumer() as consumer:
        print(consumer.get().body.decode(), flush=True)
pynotify.unlink(sys.argv[1])
"""
#: What is there already needs no wait, so the wait comes first.
SLEEPS = """
import sys
import pynotify

with pynotify.connect(sys.argv[1]) as conn:
    conn.listen("c")
    conn.wait(0.001)
"""
#: A signal is not sent where pidfds are refused; a poll finds what was sent all the same.
POLLED = ROUND_TRIP.replace("pynotify.connect(sys.argv[1])", "connected()").replace(
    "import pynotify\n",
    "import pynotify\n\ndef connected():\n"
    "    return pynotify.connect(sys.argv[1], wakeup='poll')\n",
)


def run(command: list[str], program: str, name: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*command, sys.executable, "-c", program, name],
        env=environment(),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=3 * PATIENCE,
        check=False,
    )


def refused(*calls: str) -> list[str]:
    if not seccomp.supported():
        require("seccomp", "the numbers of this machine's system calls are not known")
    return [sys.executable, str(ROOT / "tests" / "support" / "seccomp.py"), *calls, "--"]


@pytest.mark.parametrize("call", ["timerfd_create", "epoll_pwait2"])
def test_a_system_call_that_can_be_done_without(call: str, segment_name: str) -> None:
    done = run(refused(call), ROUND_TRIP, segment_name)
    assert (done.stdout.split(), done.stderr) == (["heard", "done"], "")


@pytest.mark.parametrize("call", ["pidfd_open", "pidfd_send_signal"])
def test_pidfds_are_refused(call: str, segment_name: str) -> None:
    """It is said once, with what helps; and that does help."""
    done = run(refused(call), POLLED, segment_name)
    assert done.stdout.split() == ["heard", "done"], done.stderr
    warned = run(
        refused(call), "import sys, pynotify\npynotify.connect(sys.argv[1]).close()", segment_name
    )
    assert "pidfd_open or pidfd_send_signal: Operation not permitted" in warned.stderr
    assert 'wakeup="poll"' in warned.stderr
    pynotify.unlink(segment_name)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        ("eventfd2", "could not create an eventfd: Operation not permitted"),
        ("fallocate", "could not allocate shared memory: Operation not permitted"),
    ],
)
def test_a_system_call_that_is_needed(call: str, said: str, segment_name: str) -> None:
    done = run(refused(call), SLEEPS, segment_name)
    assert done.returncode == 1
    assert f"pynotify.OperationalError: {said}\n`pynotify doctor` says" in done.stderr
    pynotify.unlink(segment_name, missing_ok=True)


@pytest.mark.parametrize(
    "command",
    [
        ["setpriv", "--no-new-privs", "--inh-caps=-all", "--bounding-set=-all"],
        ["unshare", "-U", "-r"],
    ],
    ids=["no privileges", "user namespace"],
)
def test_without_privileges(command: list[str], segment_name: str) -> None:
    require(command[0])
    done = run(command, ROUND_TRIP, segment_name)
    if "unshare failed" in done.stderr or "ermitted" in done.stderr:
        require("user-namespace", done.stderr.strip())
    assert done.stdout.split() == ["heard", "done"], done.stderr


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("size=64m,noexec,nosuid,nodev", "done"),  # Docker's
        ("size=27m", "SegmentFull"),  # for the default segment, and for no topic
        ("size=1m", "SegmentFull"),
        ("size=64m,ro", "Read-only file system"),
    ],
)
def test_dev_shm(options: str, said: str, segment_name: str, tmp_path: Path) -> None:
    require("mount-namespace")
    program = tmp_path / "program.py"
    program.write_text(ROUND_TRIP)
    shell = f'mount -t tmpfs -o {options} tmpfs /dev/shm && exec "$@"'
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", shell, "-", sys.executable, program, segment_name],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=3 * PATIENCE,
        check=False,
    )
    if "unshare failed" in done.stderr:
        require("mount-namespace", done.stderr.strip())
    assert said in done.stdout + done.stderr
    assert done.returncode == (0 if said == "done" else 1)
