"""What a test needs from the machine and may not find: one way to say so.

``require("root")`` skips the test when the named thing is missing, with its name in the reason;
the end of the run names everything that was missing in one line.  The environment variable
``PYNOTIFY_REQUIRE`` (names, separated by commas) turns the skips of these names into failures.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

ENVIRONMENT = "PYNOTIFY_REQUIRE"
_REASON = re.compile(r"requires ([A-Za-z0-9_.-]+)")


def _root() -> str | None:
    return None if os.geteuid() == 0 else "the tests do not run as root"


def _mount_namespace() -> str | None:
    if os.geteuid() != 0:
        return "a private mount namespace needs root"
    missing = [tool for tool in ("unshare", "mount") if shutil.which(tool) is None]
    return f"not installed: {', '.join(missing)}" if missing else None


def _choosing_pids() -> str | None:
    path = Path("/proc/sys/kernel/ns_last_pid")
    if os.geteuid() == 0 and path.exists() and os.access(path, os.W_OK):
        return None
    if int(Path("/proc/sys/kernel/pid_max").read_text()) <= 32768:
        return None
    return "neither /proc/sys/kernel/ns_last_pid nor a small pid_max to force the reuse of a pid"


def _crash_points() -> str | None:
    if importlib.util.find_spec("pynotify._native_crash") is None:
        return "the extension with crash points is not built"
    return None


def _descriptors() -> str | None:
    soft, hard = os.sysconf("SC_OPEN_MAX"), 1024
    return None if soft >= hard else f"only {soft} file descriptors"


def postgres_programs() -> Path:
    """Where PostgreSQL's server programs are; Debian has them beside PATH."""
    found = shutil.which("initdb")
    if found and (Path(found).resolve().parent / "postgres").exists():
        return Path(found).resolve().parent
    versions = Path("/usr/lib/postgresql").glob("*/bin/postgres")
    newest = max(versions, key=lambda path: float(path.parts[-3]), default=None)
    if newest is None:
        raise FileNotFoundError("no PostgreSQL server (Debian: the package postgresql)")
    return newest.parent


def _postgres() -> str | None:
    try:
        postgres_programs()
    except FileNotFoundError as error:
        return str(error)
    return None


_PROBES: dict[str, Callable[[], str | None]] = {
    "root": _root,
    "mount-namespace": _mount_namespace,
    "pid-reuse": _choosing_pids,
    "crash-points": _crash_points,
    "descriptors": _descriptors,
    "postgres": _postgres,
}


def require(name: str, why_missing: str | None = None) -> None:
    """Skip unless `name` is there; `why_missing` says that the test itself found it missing."""
    if why_missing is None:
        probe = _PROBES.get(name, lambda: _program(name))
        why_missing = probe()
    if why_missing is None:
        return
    demanded = {part.strip() for part in os.environ.get(ENVIRONMENT, "").split(",")}
    if name in demanded:
        pytest.fail(f"{ENVIRONMENT} demands {name}: {why_missing}")
    pytest.skip(f"requires {name}: {why_missing}", allow_module_level=True)


def _program(name: str) -> str | None:
    return None if shutil.which(name) else f"{name} is not installed"


def missing(skip_reasons: Iterable[str]) -> list[str]:
    """The names in the reasons of the skipped tests, each once."""
    return sorted({found for reason in skip_reasons for found in _REASON.findall(reason)})
