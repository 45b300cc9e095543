"""A PostgreSQL of the benchmark's own, on a Unix socket in a temporary directory."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any, Self

from spark_jobs.procfs import stat

_PATIENCE = 60.0
_CLUSTER = ("-U", "postgres", "-A", "trust", "-N")
_SETTINGS = {
    "listen_addresses": "",
    "max_connections": "300",
    "fsync": "off",  # nothing here is about disks
    "log_min_messages": "warning",
}


def find_programs() -> Path | None:
    """Where initdb and postgres are; Debian has them beside PATH."""
    found = shutil.which("initdb")
    if found and (Path(found).resolve().parent / "postgres").exists():
        return Path(found).resolve().parent
    versions = list(Path("/usr/lib/postgresql").glob("*/bin/postgres"))
    if not versions:
        return None
    return max(versions, key=lambda path: float(path.parts[-3])).parent


class Server:
    """`with Server(find_programs()) as server:`; it is gone afterwards."""

    def __init__(self, programs: Path) -> None:
        self._programs = programs

    def __enter__(self) -> Self:
        self.directory = Path(tempfile.mkdtemp(prefix="bench-pg-"))
        self._account: dict[str, Any] = {}
        if os.geteuid() == 0:  # PostgreSQL refuses to be root
            user = _ordinary_user()
            os.chown(self.directory, user.pw_uid, user.pw_gid)
            self._account = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
        data = self.directory / "data"
        subprocess.run(
            [str(self._programs / "initdb"), "-D", str(data), *_CLUSTER],
            stdout=subprocess.DEVNULL, check=True, cwd=self.directory, **self._account,
        )  # fmt: skip
        settings = {**_SETTINGS, "unix_socket_directories": str(self.directory)}
        options = [word for key, value in settings.items() for word in ("-c", f"{key}={value}")]
        self._process = subprocess.Popen(
            [str(self._programs / "postgres"), "-D", str(data), *options],
            stderr=subprocess.DEVNULL, cwd=self.directory, **self._account,
        )  # fmt: skip
        self._wait()
        return self

    def _wait(self) -> None:
        deadline = time.monotonic() + _PATIENCE
        ready = [str(self._programs / "pg_isready"), "-q", "-h", str(self.directory)]
        while subprocess.run(ready, check=False).returncode:
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError("PostgreSQL did not start")
            time.sleep(0.1)

    def dsn(self, database: str = "postgres") -> str:
        return f"host={self.directory} user=postgres dbname={database}"

    def cpu_seconds(self) -> float:
        """Processor time of all its processes, those that have ended included."""
        pid = self._process.pid
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()
        ticks = sum(_ticks(each) for each in [str(pid), *children])
        return ticks / os.sysconf("SC_CLK_TCK")

    def __exit__(self, *_: object) -> None:
        self._process.send_signal(signal.SIGINT)
        self._process.wait()
        shutil.rmtree(self.directory)


def _ordinary_user() -> pwd.struct_passwd:
    try:
        return pwd.getpwnam("postgres")
    except KeyError:
        return pwd.getpwnam("nobody")


def _ticks(pid: str) -> int:
    """User and system time, of it and of its ended children."""
    found = stat(pid)
    return 0 if found is None else found.own + found.waited
