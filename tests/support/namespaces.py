"""Programs in namespaces of their own, where the machine permits that."""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from programs import ROOT
from receiving import PATIENCE
from requirement import require


def run_unshared(
    *command: str, what: str = "mount-namespace", env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """What `unshare` with these arguments has ended with."""
    require("mount-namespace")
    done = subprocess.run(
        ["unshare", *command],
        capture_output=True,
        text=True,
        env=env,
        timeout=PATIENCE,
        check=False,
    )
    if "ermitted" in done.stderr or "unshare:" in done.stderr:
        require(what, done.stderr.strip())
    return done


def run_on_a_small_disk(name: str, tmp_path: Path, program: str, *args: str, size: str) -> str:
    """What the program prints, with a file system of its own as data_dir.

    It is given where the package is, the name and the data_dir before `args`.
    """
    script = tmp_path / "program.py"
    script.write_text(program)
    data_dir = tmp_path / "data"
    data_dir.mkdir(mode=0o700)
    run = shlex.join([sys.executable, str(script), str(ROOT), name, str(data_dir), *args])
    mount = f"mount -t tmpfs -o size={size},mode=0700 none {data_dir}"
    done = run_unshared("-m", "sh", "-c", f"{mount} && exec {run}")
    assert done.returncode == 0, done
    return done.stdout.strip()
