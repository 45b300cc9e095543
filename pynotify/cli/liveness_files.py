"""The liveness lock files in /dev/shm, by their names.

They are not opened here: a process that opens and closes one loses its own locks on it.
"""

from __future__ import annotations

import os
from pathlib import Path

_DIRECTORY = Path("/dev/shm")


def lock_files() -> dict[str, dict[str, float]]:
    """The lock files of this user: segment name -> instance -> when its last one was made."""
    prefix = f"pynotify-lock.{os.geteuid()}."
    found: dict[str, dict[str, float]] = {}
    for path in _DIRECTORY.glob(f"{prefix}*"):
        parts = path.name.removeprefix(prefix).rsplit(".", 2)
        if len(parts) != 3:
            continue
        try:
            made = path.stat().st_mtime
        except FileNotFoundError:
            continue
        name, instance, _ = parts
        instances = found.setdefault(name, {})
        instances[instance] = max(made, instances.get(instance, 0.0))
    return found
