"""What the figures were measured on: without it they mean nothing."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from importlib import metadata
from pathlib import Path

DISTRIBUTIONS = (
    "pynotify-ipc",
    "cffi",
    "numpy",
    "pyzmq",
    "posix_ipc",
    "redis",
    "hiredis",
    "broadcaster",
    "starlette",
    "uvicorn",
    "uvloop",
    "websockets",
    "psycopg",
    "pyspark",
    "pyarrow",
    "crc32c",
    "duckdb",
    "polars",
)


def describe() -> dict[str, str]:
    """CPU, kernel, Python and the versions of everything that is measured."""
    machine = {
        "cpu": _cpu_model(),
        "cpus": f"{len(os.sched_getaffinity(0))} of {os.cpu_count()}",
        "virtual": "yes" if "hypervisor" in _cpu_field("flags").split() else "no",
        "kernel": platform.release(),
        "libc": " ".join(platform.libc_ver()),
        "python": f"{platform.python_implementation()} {platform.python_version()}",
    }
    for name in DISTRIBUTIONS:
        try:
            machine[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    if shutil.which("redis-server"):
        answer = subprocess.run(
            ["redis-server", "--version"], capture_output=True, text=True, check=True
        ).stdout
        machine["redis-server"] = answer.split("v=")[1].split()[0]
    return machine


def load() -> float:
    """What others did here during the last minute: one number, not to be trusted much."""
    return os.getloadavg()[0]


def _cpu_field(name: str) -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        key, _, value = line.partition(":")
        if key.strip() == name:
            return value.strip()
    return ""


def _cpu_model() -> str:
    model = _cpu_field("model name") or platform.machine()
    family, number = _cpu_field("cpu family"), _cpu_field("model")
    return f"{model} (family {family} model {number})" if family else model
