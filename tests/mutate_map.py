"""Which tests execute which line, for tests/mutate.py: what it runs first for a mutant.

The C side is built with gcov, and each program of the native tests runs with counters of its own;
the Python side runs under `coverage`, which is told by pytest, or by the environment in processes
that a test starts, whose line it is.  A process that is killed leaves no counters, and what runs at
import belongs to no test, so the map only says what comes first: the whole suite judges the rest.
"""

from __future__ import annotations

import json
import os
import re
import sqlite3
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

COVERAGE = """\
[run]
source_pkgs = pynotify
parallel = true
data_file = {where}/data
context = ${{PYTEST_CURRENT_TEST-}}
concurrency = thread,multiprocessing
patch = fork,_exit
disable_warnings = no-data-collected,module-not-imported,module-not-measured,already-imported
"""
AWAY = 4  # how far from the line one may be that is counted in its stead
TEST_LIMIT_S, NATIVE_LIMIT_S = 240, 30  # what takes longer is found by its name
PYTEST = f"-m pytest -q -n 2 -p mutate_map -p no:randomly --timeout={TEST_LIMIT_S}"


class Map:
    """For each line of a file, the tests that execute it, and how long each takes."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.lines: dict[str, dict[int, set[str]]] = defaultdict(lambda: defaultdict(set))

    def save(self, path: Path) -> None:
        lines = {
            file: {line: sorted(tests) for line, tests in of.items()}
            for file, of in self.lines.items()
        }
        path.write_text(json.dumps({"seconds": self.seconds, "lines": lines}))

    @classmethod
    def load(cls, path: Path) -> Map:
        found, new = json.loads(path.read_text()), cls()
        new.seconds = found["seconds"]
        for file, of in found["lines"].items():
            new.lines[file].update({int(line): set(tests) for line, tests in of.items()})
        return new

    def tests(self, file: Path, line: int, most_s: float) -> list[str]:
        """Those that execute the line, quickest first, until they take `most_s` together."""
        executed = self.lines.get(str(file), {})
        # A statement of many lines is counted for one of them.
        near = (line + d for away in range(AWAY + 1) for d in (away, -away))
        found = next((executed[n] for n in near if n in executed), set())
        ordered = sorted(found, key=lambda test: self.seconds.get(test, 1.0))
        total, chosen = 0.0, []
        for test in ordered:
            total += self.seconds.get(test, 1.0)
            if chosen and total > most_s:
                break
            chosen.append(test)
        return chosen


# ---- C: gcov -----------------------------------------------------------------------------------


def native(copy: Any, where: Path, into: Map) -> None:
    build = copy.root / "build/gcov"
    flags = "-DCMAKE_C_FLAGS=--coverage -fprofile-update=atomic"
    copy.run(["cmake", "-S", ".", "-B", str(build), "-DCMAKE_BUILD_TYPE=Debug", flags])
    copy.run(["cmake", "--build", str(build), "--parallel", str(os.cpu_count() or 1)])
    listed = subprocess.run(
        ["ctest", "--test-dir", str(build), "-N"], capture_output=True, text=True, check=True
    )

    def counted(test: str) -> None:
        program = str(build / "native/tests" / test)
        began = time.monotonic()
        copy.run(
            ["env", f"GCOV_PREFIX={where / test}", program], apart=True, limit_s=NATIVE_LIMIT_S
        )
        into.seconds[test] = time.monotonic() - began

    # Single steps take forever with counters.
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(counted, set(re.findall(r": (test_\w+)", listed.stdout)) - {"test_step"}))
    read_counters(copy.root, where, into)


def read_counters(root: Path, where: Path, into: Map) -> None:
    for folder in sorted(path for path in where.iterdir() if path.is_dir()):
        counters = [p for p in folder.rglob("*.gcda") if "/native/src/" in str(p)]
        for counter in counters:
            notes = counter.with_suffix(".gcno")
            if not notes.exists():
                notes.symlink_to("/" / notes.relative_to(folder))
        if not counters:
            continue
        done = subprocess.run(
            ["gcov", "--json-format", "--stdout", *map(str, counters)],
            cwd=root / "build/gcov",
            capture_output=True,
            text=True,
            check=False,
        )
        for document in filter(None, done.stdout.splitlines()):
            for file, line in _executed(json.loads(document), root):
                into.lines[file][line].add(folder.name)


def _executed(document: dict[str, Any], root: Path) -> Iterator[tuple[str, int]]:
    for file in document["files"]:
        path = Path(document["current_working_directory"], file["file"]).resolve()
        if path.is_relative_to(root / "native/src"):
            for line in file["lines"]:
                if line["count"]:
                    yield str(path.relative_to(root)), line["line_number"]


# ---- Python: coverage --------------------------------------------------------------------------


def python(copy: Any, where: Path, marked: str, into: Map) -> None:
    (where / "rc").write_text(COVERAGE.format(where=where))
    found = f"PYTHONPATH={copy.root}:{copy.root / 'tests'}:{copy.root / 'tests' / 'support'}"
    counted = [
        "env",
        f"COVERAGE_PROCESS_START={where / 'rc'}",
        found,
        sys.executable,
    ]
    left_out = [f"--ignore=tests/project/test_{name}.py" for name in ("sourcecode", "packaging")]
    copy.run(
        [*counted, *PYTEST.split(), *left_out, "-m", marked, f"--junitxml={where / 'times'}"],
        apart=True,
    )
    read_data(copy.root, where, into)


def read_data(root: Path, where: Path, into: Map) -> None:
    for data in where.glob("data*"):
        try:
            with closing(sqlite3.connect(data)) as database:
                _read_database(database, root, into)
        except sqlite3.DatabaseError:
            continue  # of a process that was killed
    cases = ElementTree.parse(where / "times").iter("testcase")
    for case in (case for case in cases if case.get("classname")):
        parts = case.attrib["classname"].split(".")
        inside = 0 if (root / "/".join(parts)).with_suffix(".py").exists() else 1
        file = "/".join(parts[: len(parts) - inside]) + ".py"
        test = _plain("::".join([file, *parts[len(parts) - inside :], case.attrib["name"]]))
        into.seconds[test] = into.seconds.get(test, 0) + float(case.attrib["time"])


def _read_database(database: sqlite3.Connection, root: Path, into: Map) -> None:
    rows = database.execute(
        "SELECT path, context, numbits FROM line_bits"
        " JOIN file ON file.id = file_id JOIN context ON context.id = context_id"
    )
    for path, context, bits in rows:
        test = _plain(context)
        if test and Path(path).is_relative_to(root):
            lines = into.lines[str(Path(path).relative_to(root))]
            for line in (n for n in range(len(bits) * 8) if bits[n // 8] >> (n % 8) & 1):
                lines[line].add(test)


def _plain(context: str) -> str:
    """A test without its parameters and its phase."""
    return re.split(r"\[| \(", context, maxsplit=1)[0]


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """As a plugin of the counted run: whose lines the following ones are."""
    import coverage  # only a counted run needs it

    counter = coverage.Coverage.current() if os.getenv("COVERAGE_PROCESS_START") else None
    if counter is not None:
        counter.switch_context(_plain(item.nodeid))
    try:
        return (yield)
    finally:
        if counter is not None:
            counter.switch_context("")
