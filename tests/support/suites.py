"""Other projects' own tests, run unmodified with an adapter in the place of what they test.

The source distribution is fetched by name and version through pip, into build/suites, and its tests
run in a process of their own, with a plugin (tests/contrib/suites) that puts the adapter there if
it is not a server that they connect to.
"""

from __future__ import annotations

import fcntl
import importlib.metadata
import os
import subprocess
import sys
import tarfile
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import pytest

import pynotify
from receiving import TIME_FACTOR
from requirement import require

ROOT = Path(__file__).resolve().parents[2]
FETCHED = ROOT / "build" / "suites"
PLUGINS = ROOT / "tests" / "contrib" / "suites"


def fetch(name: str, version: str) -> Path:
    """The unpacked source distribution; the test is skipped when it cannot be fetched."""
    installed = importlib.metadata.version(name)
    assert installed == version, f"{name} {installed} is installed, the suite is of {version}"
    FETCHED.mkdir(parents=True, exist_ok=True)
    with (FETCHED / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        folder = FETCHED / f"{name}-{version}"
        if not folder.exists():
            _download(name, version, folder)
    return folder


def _download(name: str, version: str, folder: Path) -> None:
    archives = FETCHED / f"{name}-archive"
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    command += ["--no-binary", ":all:", "--no-build-isolation", "--dest", str(archives)]
    done = subprocess.run(
        [*command, f"{name}=={version}"], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        reason = (done.stderr.strip() or "pip failed").splitlines()[-1]
        require(f"suite-{name}", f"pip could not fetch {name} {version}: {reason}")
    (archive,) = archives.glob("*.tar.gz")
    unpacked = archives / "unpacked"
    with tarfile.open(archive) as tar:
        tar.extraction_filter = getattr(tarfile, "data_filter", None)
        tar.extractall(unpacked)
    (top,) = unpacked.iterdir()
    top.rename(folder)


class Outcome(NamedTuple):
    """How many tests had which result, and what pytest printed."""

    counts: Counter[str]
    output: str

    def expect(self, *, passed: int, **others: int) -> None:
        """Exactly that many; nothing failed."""
        assert dict(self.counts) == {"passed": passed, **others}, self.output[-20000:]


def run(
    folder: Path, plugin: str | None, paths: list[str], tmp_path: Path, *options: str, **env: str
) -> Outcome:
    """Run tests of the distribution with the plugin; `options` are pytest's.

    Without a plugin they test what is installed, and not what lies beside them.
    """
    settings = tmp_path / "pytest.ini"
    settings.write_text(
        "[pytest]\naddopts = --import-mode=importlib -p no:randomly -p no:cacheprovider\n"
        "asyncio_mode = auto\nasyncio_default_fixture_loop_scope = function\n"
        f"timeout = {60 * TIME_FACTOR}\n"
    )
    report = tmp_path / "report.xml"
    isolated = ["-P"] if plugin is None else []
    command = [sys.executable, *isolated, "-m", "pytest", "-q", "-c", str(settings)]
    command += ["--rootdir", str(folder), f"--junitxml={report}", *options, *paths]
    command += [] if plugin is None else ["-p", plugin]
    search = os.pathsep.join([str(PLUGINS), str(ROOT), *([] if plugin is None else [str(folder)])])
    done = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": search, "PYTHONDONTWRITEBYTECODE": "1", **env},
        capture_output=True,
        text=True,
        check=False,
    )
    output = done.stdout + done.stderr
    if done.returncode not in (0, 1):
        pytest.fail(output[-20000:], pytrace=False)
    return Outcome(_counted(report), output)


def run_one(
    name: str,
    version: str,
    file: str,
    segment_name: str,
    tmp_path: Path,
    *options: str,
    left_out: Iterable[str] = (),
) -> Outcome:
    """One file of the distribution, with the plugin NAME_suite, on a segment that goes then."""
    folder = fetch(name, version)
    options = (*(f"--deselect={file}::{test}" for test in left_out), "-p", "no:warnings", *options)
    done = run(folder, f"{name}_suite", [file], tmp_path, *options, SEGMENT=segment_name)
    pynotify.unlink(segment_name, force=True, missing_ok=True)
    return done


def _counted(report: Path) -> Counter[str]:
    names = {"failure": "failed", "error": "error", "skipped": "skipped"}
    counts: Counter[str] = Counter()
    for case in ET.parse(report).iter("testcase"):
        kinds = [names[child.tag] for child in case if child.tag in names]
        counts[kinds[0] if kinds else "passed"] += 1
    return counts
