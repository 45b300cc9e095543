"""A Python of another processor, to be run in qemu: see wheels.py.

apt fetches what Debian's python3 needs there, with a state of its own in a directory that goes
again: it installs nothing, and this machine's packages are left alone.  The sources are those of
this machine; one that is not Debian, or whose mirror has no such processor, has no such Python.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

_ARCHITECTURE = {"aarch64": "arm64", "x86_64": "amd64"}
_PACKAGES = ("python3-minimal", "libpython3-stdlib", "libstdc++6")


class NoSuchPython(Exception):
    """There is none, for this reason."""


class Foreign:
    """`python` is the command that runs it; wheels are installed into a directory beside it."""

    def __init__(self, machine: str, place: Path) -> None:
        needed = (f"qemu-{machine}", "apt-get", "dpkg-deb")
        missing = [name for name in needed if shutil.which(name) is None]
        if missing:
            raise NoSuchPython(f"there is no {missing[0]}")
        self._root = place / "root"
        self._site = place / "site"
        self._fetch(machine, place)
        python = self._root / "usr" / "bin" / "python3"
        self.python = [str(shutil.which(needed[0])), "-L", str(self._root), str(python)]
        self.version = self.run("-c", "import platform; print(platform.python_version())").strip()

    def _fetch(self, machine: str, place: Path) -> None:
        for name in ("state/lists/partial", "cache/archives/partial", "root", "site"):
            (place / name).mkdir(parents=True)
        (place / "state" / "status").touch()
        settings = {
            "APT::Architecture": _ARCHITECTURE[machine],
            "APT::Architectures": _ARCHITECTURE[machine],
            "APT::Sandbox::User": "",
            "Dir::State": place / "state",
            "Dir::State::status": place / "state" / "status",
            "Dir::Cache": place / "cache",
            "Debug::NoLocking": "1",
        }
        apt = ["apt-get", "-qq", *(f"-o{key}={value}" for key, value in settings.items())]
        _check([*apt, "update"])
        how = ("--download-only", "--yes", "--no-install-recommends")
        _check([*apt, "install", *how, *_PACKAGES])
        for package in sorted((place / "cache" / "archives").glob("*.deb")):
            _check(["dpkg-deb", "--extract", str(package), str(self._root)])

    def install(self, wheel: Path, tags: list[str]) -> None:
        """The wheel and what it needs, by this machine's pip, which runs nothing of it."""
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        command += ["--only-binary=:all:", "--target", str(self._site)]
        command += ["--python-version", ".".join(self.version.split(".")[:2])]
        command += [word for tag in tags for word in ("--platform", tag)]
        _check([*command, str(wheel)])

    def run(self, *words: str, timeout: float = 120) -> str:
        """Output of Python with these arguments, with what was installed, and nothing on PATH."""
        environment = {"PATH": str(self._site / "nothing"), "PYTHONPATH": str(self._site)}
        return _check([*self.python, *words], timeout=timeout, env=environment, cwd=self._root)


def _check(command: list[str], timeout: float = 600, **more: object) -> str:
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            check=False,
            timeout=timeout * float(os.environ.get("PYNOTIFY_TIME_FACTOR", "1")),
            **more,
        )
    except subprocess.TimeoutExpired:
        raise NoSuchPython(f"{Path(command[0]).name} did not end in time") from None
    if done.returncode != 0:
        last = (done.stderr or done.stdout).strip().splitlines()[-1:] or ["it said nothing"]
        raise NoSuchPython(f"{Path(command[0]).name}: {last[0]}")
    return done.stdout
