"""PYNOTIFY_TIME_FACTOR multiplies the limits of pytest, of the tests' own waiting, and of ctest."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

PROGRAM = """
import time
import pytest
import receiving

@pytest.mark.timeout(1)
def test_slow():
    assert receiving.PATIENCE == 20.0 * receiving.TIME_FACTOR
    time.sleep(1.5)
"""


@pytest.mark.parametrize(("factor", "status"), [("1", 1), ("60", 0)])
def test_limits_of_pytest(tmp_path: Path, factor: str, status: int) -> None:
    (tmp_path / "test_slow.py").write_text(PROGRAM)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    (tmp_path / "conftest.py").write_text(
        f"import sys\nsys.path[:0] = [{str(ROOT)!r}, {str(ROOT / 'tests' / 'support')!r}]\n"
        "from tests.conftest import pytest_collection_modifyitems\n"
    )
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            "-p",
            "pytest_timeout",
            str(tmp_path),
        ],
        cwd=tmp_path,
        # Loading every other plugin takes ten times as long.
        env={
            **os.environ,
            "PYNOTIFY_TIME_FACTOR": factor,
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == status, done.stdout + done.stderr


def test_limits_of_ctest(tmp_path: Path) -> None:
    """What CMake computes; configured is nothing, as that takes a compiler."""
    rule = re.compile(r"^set\(time_factor 1\)\n.*?^endif\(\)\n", re.DOTALL | re.MULTILINE)
    factor = rule.search((ROOT / "CMakeLists.txt").read_text())
    assert factor is not None
    script = tmp_path / "factor.cmake"
    script.write_text(
        f'{factor[0]}math(EXPR t "900 * ${{time_factor}}")\nmessage("limit ${{t}}")\n'
    )
    cmake = shutil.which("cmake") or str(Path(sys.executable).with_name("cmake"))
    for value, limit in (("1", 900), ("4", 3600), ("", 900), ("much", 900)):
        done = subprocess.run(
            [cmake, "-P", str(script)],
            env={**os.environ, "PYNOTIFY_TIME_FACTOR": value},
            capture_output=True,
            text=True,
            check=True,
        )
        assert f"limit {limit}\n" in done.stderr
