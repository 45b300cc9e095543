"""What the host gives: system calls, limits, /dev/shm, and what empties it."""

from __future__ import annotations

import configparser
import contextlib
import ctypes
import errno
import fcntl
import os
import platform
import resource
import signal
import stat
import struct
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from pynotify._table import size
from pynotify.cli.doctor.finding import Finding, ok, problem, warning

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

_OLDEST_KERNEL = (5, 3)
DEFAULT_SEGMENT_BYTES = 28_905_472
_FEW_DESCRIPTORS = 256
_FIRST_REGULAR_UID = 1000
_SHM_MODE = 0o1777


def check() -> Iterator[Finding]:
    """Everything that is the same for all segments."""
    yield check_kernel()
    yield check_pid_namespace()
    yield from check_limits()
    yield from check_shared_memory()
    yield check_logind()


# ---- the kernel ----------------------------------------------------------------------------------


def _pidfd_open() -> None:
    os.close(os.pidfd_open(os.getpid()))


def _pidfd_send_signal() -> None:
    descriptor = os.pidfd_open(os.getpid())
    try:
        signal.pidfd_send_signal(descriptor, 0)
    finally:
        os.close(descriptor)


def _ofd_lock() -> None:
    flock = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
    with tempfile.TemporaryFile() as file:
        fcntl.fcntl(file, fcntl.F_OFD_GETLK, flock)


def _eventfd() -> None:
    os.close(os.eventfd(0))


def _timerfd() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    descriptor = libc.timerfd_create(time.CLOCK_MONOTONIC, 0)
    if descriptor < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    os.close(descriptor)


#: By the machine's name; the C libraries have no function for it.
_SET_ROBUST_LIST = {"x86_64": 273, "aarch64": 99}


def _robust_list() -> None:
    """Without it the lock of a process that is killed is given to no other."""
    number = _SET_ROBUST_LIST.get(platform.machine())
    if number is None:
        return
    libc = ctypes.CDLL(None, use_errno=True)
    # The kernel looks at the length first: EINVAL, and nothing is changed.
    wrong = ctypes.c_long(number), None, ctypes.c_size_t(0)
    why = ctypes.get_errno() if libc.syscall(*wrong) != 0 else errno.ENOSYS
    if why != errno.EINVAL:
        raise OSError(why, os.strerror(why))


#: Tried, not looked up: a sandbox can forbid what the kernel has.
PROBES: Mapping[str, Callable[[], None]] = {
    "pidfd_open": _pidfd_open,
    "pidfd_send_signal": _pidfd_send_signal,
    "F_OFD_GETLK": _ofd_lock,
    "eventfd": _eventfd,
    "timerfd": _timerfd,
    "set_robust_list": _robust_list,
}


def check_kernel(probes: Mapping[str, Callable[[], None]] = PROBES) -> Finding:
    """The system calls that the core needs."""
    failed = []
    for name, probe in probes.items():
        try:
            probe()
        except (OSError, AttributeError) as error:
            why = error.strerror if isinstance(error, OSError) else "not in this C library"
            failed.append(f"{name} ({why})")
    release = platform.release()
    if failed:
        advice = "Allow them in the sandbox's seccomp profile."
        if _kernel_version(release) < _OLDEST_KERNEL:
            advice = "Use Linux 5.3 or newer."
        return problem("kernel", f"Linux {release} refuses {', '.join(failed)}", advice)
    return ok("kernel", f"Linux {release}: {', '.join(probes)}")


def _kernel_version(release: str) -> tuple[int, ...]:
    numbers = release.partition("-")[0].split(".")[:2]
    return tuple(int(number) for number in numbers if number.isdecimal())


def check_pid_namespace() -> Finding:
    """Ours; a segment of another one cannot be opened, and says so."""
    return ok("pid namespace", os.readlink("/proc/self/ns/pid"))


def check_limits() -> Iterator[Finding]:
    """The limits of a process that is started here; the backends' own are checked with them."""
    pending, _ = resource.getrlimit(resource.RLIMIT_SIGPENDING)
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    found = []
    if pending == 0:
        found.append(
            warning(
                "limits",
                "RLIMIT_SIGPENDING is 0: wake-ups cannot be told from other signals",
                "Raise it (ulimit -i, LimitSIGPENDING= of systemd).",
            )
        )
    if 0 <= files < _FEW_DESCRIPTORS:
        found.append(
            warning(
                "limits",
                f"RLIMIT_NOFILE is {files}: a notifier keeps a descriptor for each it wakes",
                "Raise it (ulimit -n, LimitNOFILE= of systemd).",
            )
        )
    yield from found or [ok("limits", f"{_limit(pending)} pending signals, {_limit(files)} files")]


def _limit(value: int) -> str:
    return "unlimited" if value == resource.RLIM_INFINITY else str(value)


# ---- /dev/shm ------------------------------------------------------------------------------------


def check_shared_memory(directory: Path = Path("/dev/shm")) -> Iterator[Finding]:
    """That it is there, is memory, has room, and lets us in."""
    name = str(directory)
    try:
        status, room = directory.stat(), os.statvfs(directory)
    except OSError as error:
        yield problem(name, f"it is not there: {error.strerror}", "Mount a tmpfs on it.")
        return
    bad = [*_wrong_file_system(name), *_wrong_mode(directory, status.st_mode)]
    total, free = room.f_blocks * room.f_frsize, room.f_bavail * room.f_frsize
    text = f"{size(total)}, {size(free)} free"
    if free < DEFAULT_SEGMENT_BYTES:
        bad.append(
            warning(
                name,
                f"{text}: no room for another segment with the default options "
                f"({size(DEFAULT_SEGMENT_BYTES)})",
                "Make it larger (docker run --shm-size), or remove what is not needed; segments "
                "that are there have all of their memory already.",
            )
        )
    yield from bad or [ok(name, text)]


def _wrong_file_system(name: str) -> Iterator[Finding]:
    kind = _file_system(name)
    if kind not in (None, "tmpfs"):
        yield warning(
            name,
            f"it is on {kind}, not on tmpfs: segments outlive a reboot, and pages may go to disk",
            "Mount a tmpfs on it.",
        )


def _file_system(name: str) -> str | None:
    """The mount that `name` is in; the last of several at one place is the visible one."""
    best, kind = "", None
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/mountinfo").read_text().splitlines():
            left, _, right = line.partition(" - ")
            point = left.split(" ")[4]
            inside = name == point or name.startswith(point.rstrip("/") + "/")
            if inside and len(point) >= len(best):
                best, kind = point, right.split(" ")[0]
    return kind


def _wrong_mode(directory: Path, mode: int) -> Iterator[Finding]:
    shown = f"{stat.S_IMODE(mode):04o}"
    advice = f"chmod 1777 {directory}"
    if os.statvfs(directory).f_flag & os.ST_RDONLY:
        yield problem(str(directory), "it is mounted read-only", f"mount -o remount,rw {directory}")
    elif not os.access(directory, os.W_OK | os.X_OK):
        yield problem(str(directory), f"mode {shown} does not let this user create files", advice)
    elif stat.S_IMODE(mode) != _SHM_MODE:
        yield warning(
            str(directory), f"its mode is {shown}, not 1777: other users may be kept out", advice
        )


# ---- systemd-logind ------------------------------------------------------------------------------


def check_logind(root: Path = Path("/"), uid: int | None = None) -> Finding:
    """RemoveIPC=yes, its default, removes a regular user's segments when the last session ends."""
    uid = os.geteuid() if uid is None else uid
    if not (root / "run/systemd/seats").is_dir():
        return ok("logind", "systemd-logind does not run here")
    if uid < _FIRST_REGULAR_UID:
        return ok("logind", "RemoveIPC does not concern system users")
    if not removes_ipc(root):
        return ok("logind", "RemoveIPC=no")
    return warning(
        "logind",
        f"RemoveIPC=yes: the segments of user {uid} are removed when the last session ends",
        "Run services as a system user, or set RemoveIPC=no in /etc/systemd/logind.conf.",
    )


def removes_ipc(root: Path) -> bool:
    """RemoveIPC of logind.conf and its drop-ins, of which the last by name counts."""
    places = [root / place / "systemd/logind.conf.d" for place in ("usr/lib", "run", "etc")]
    by_name = {path.name: path for place in places for path in sorted(place.glob("*.conf"))}
    value = True
    for path in (root / "etc/systemd/logind.conf", *(by_name[name] for name in sorted(by_name))):
        parser = configparser.ConfigParser(interpolation=None, strict=False, allow_no_value=True)
        try:
            parser.read_string(path.read_text())
            value = parser.getboolean("Login", "RemoveIPC", fallback=value)
        except (OSError, ValueError, configparser.Error):
            continue
    return value
