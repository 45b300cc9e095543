"""What containers and service managers refuse, and what then works, or is said."""

from __future__ import annotations

import subprocess
import sys

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


@pytest.mark.parametrize("call", ["timerfd_create", "epoll_pwait2", "get_robust_list"])
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


def test_the_lock_of_the_dead_is_kept(segment_name: str) -> None:
    """It is said by the first connection to an open segment; and by doctor."""
    connecting = """
import sys, pynotify
with pynotify.open(sys.argv[1]) as engine:
    for _ in range(2):
        engine.connect().close()
"""
    done = run(refused("set_robust_list"), connecting, segment_name)
    assert done.returncode == 0
    assert done.stderr.count("set_robust_list: Operation not permitted") == 1
    assert "LockTimeout" in done.stderr
    asking = "import pynotify.cli.main as cli, sys\nsys.exit(cli.main(['doctor', sys.argv[1]]))"
    looked = run(refused("set_robust_list"), asking, segment_name)
    assert looked.returncode == 1
    assert "refuses set_robust_list (Operation not permitted)" in looked.stdout
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


def in_dev_shm(
    options: str, program: str, name: str, *before: str
) -> subprocess.CompletedProcess[str]:
    """With a tmpfs of these options there, or none, for this program and those in front of it."""
    require("mount-namespace")
    place = f"-o {options} tmpfs /dev/shm" if options else "tmpfs /dev"
    shell = f'mount -t tmpfs {place} && exec "$@"'
    done = run(["unshare", "-m", "sh", "-c", shell, "-", *before], program, name)
    if "unshare failed" in done.stderr:
        require("mount-namespace", done.stderr.strip())
    return done


@pytest.mark.parametrize(
    ("options", "heard", "said"),
    [
        ("size=64m,noexec,nosuid,nodev", True, ""),  # Docker's
        ("size=16m", True, "SegmentFull"),  # room for the default segment, and for no topic
        ("size=1m", False, "SegmentFull"),
        ("size=64m,ro", False, "OperationalError: could not create a file in /dev/shm: Read-only"),
        ("", False, "OperationalError: could not create a file in /dev/shm: No such file"),
    ],
)
def test_dev_shm(options: str, heard: bool, said: str, segment_name: str) -> None:
    done = in_dev_shm(options, ROUND_TRIP, segment_name)
    assert ("heard" in done.stdout) == heard, done.stderr
    assert ("done" in done.stdout) == (said == ""), done.stderr
    assert done.returncode == (1 if said else 0)
    assert said in done.stderr
    if said == "SegmentFull":
        assert "Make /dev/shm larger (docker run --shm-size) or lower" in done.stderr


def test_dev_shm_in_which_this_user_may_not_write(segment_name: str) -> None:
    require("setpriv")
    without = ["setpriv", "--inh-caps=-all", "--bounding-set=-all"]
    options = "mode=0755,uid=65534"
    done = in_dev_shm(options, ROUND_TRIP, segment_name, *without)
    assert done.returncode == 1
    said = "pynotify.OperationalError: could not create a file in /dev/shm: Permission denied\n"
    assert f"{said}`pynotify doctor` says" in done.stderr


#: Two segments with topics are all that Docker's 64 MiB hold.
THREE = """
import sys
import pynotify
from pynotify.cli.main import main

names = [f"{sys.argv[1]}.{number}" for number in range(3)]
for name in names[:2]:
    with pynotify.connect(name) as conn:
        conn.topic("t").publish(b"x")
        print("fits", flush=True)
        main(["doctor", name, "--interval", "0.1"])
pynotify.connect(names[2])
"""


def test_doctor_warns_before_dev_shm_is_full(segment_name: str) -> None:
    done = in_dev_shm("size=64m", THREE, segment_name)
    first, second = done.stdout.split("fits\n")[1:]
    assert "no room for another segment" not in first
    assert "no room for another segment" in second
    assert "docker run --shm-size" in second
    assert "SegmentFull" in done.stderr
